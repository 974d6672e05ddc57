"""experiments.bench.asynchronous: what it counts, and what becomes of lengths. A run is in test_grpo_async.py."""

import json
import types

import numpy as np
import pytest

from experiments.bench import asynchronous, asynchronous_peers
from experiments.parts.async_flow import LOG
from rl_jax.rollout.lm.requests import Completion, Request


class Engine:
    """An engine whose step adds three tokens to the longest row."""

    def __init__(self):
        self.submitted, self.idle = [], False
        self.programs = types.SimpleNamespace(decode_steps=lambda *_: ("state", "drawn", np.array([1, 3, 0])))

    def submit(self, requests, key):
        self.submitted += requests

    def step(self, params, version=0):
        return self.programs.decode_steps(params)


@pytest.fixture
def slept(monkeypatch):
    """Seconds that were slept; the clock stands still but for that."""
    found = []
    monkeypatch.setattr(asynchronous.time, "monotonic", lambda: 10.0 + sum(found))
    monkeypatch.setattr(asynchronous.time, "sleep", found.append)
    return found


def test_a_step_lasts_as_long_as_its_tokens(slept):
    pace, engine = asynchronous.Pace(), Engine()
    paced = asynchronous.PacedEngine(engine, np.array([[4, 5], [6, 7]]), 0.5, pace)
    assert paced.step("params")[1] == "drawn" and slept == [1.5]
    paced.step("params", 1)
    assert slept == [1.5, 1.5] and pace.starts == [10.0, 11.5] and pace.ends == [11.5, 13.0]
    assert pace.late == 0 and not paced.idle and len(pace.cpu_s) == 2


def test_a_late_call_is_counted_and_not_slept(slept):
    pace = asynchronous.Pace()
    pace.hold(begin=7.0, least_s=2.0)
    assert slept == [0.0] and pace.late == 1 and pace.own_s == 3.0


def test_rows_get_their_lengths_again_if_they_are_interrupted():
    engine = Engine()
    paced = asynchronous.PacedEngine(engine, np.array([[4, 5], [6, 7]]), 0.0, asynchronous.Pace())
    rows = [Request(index, np.int32([1]), 99) for index in (1, 2, 7)]
    paced.submit(rows, None)
    assert [request.max_tokens for request in engine.submitted] == [5, 6, 7]  # group 3 has the lengths of group 1
    done = Completion(rows[0], np.int32([3]), np.zeros(1), np.zeros(1), "aborted", np.int32([0]))
    paced.submit([done.resumed()], None)
    assert engine.submitted[-1].max_tokens == 5 and len(engine.submitted[-1].tokens) == 1


def work_of(**changes):
    """The work of a smallest run."""
    fields = dict(prompts=2, group_size=2, mean=3, longest=3.0, steps=8, decode_steps=1, schedule="counted", age=3)
    fields |= dict(token_s=0.0, train_s=0.0, tool_s=0.0)
    return asynchronous.make_work(types.SimpleNamespace(**(fields | changes)), 0.75, 2, 0)


def test_figures_are_those_of_the_files(tmp_path):
    """Six batches of two groups; what counts begins with the sixth train step."""
    work, groups = work_of(), [[0, 2], [1, 3], [4, 5], [6, 7], [8, 9], [10, 13]]
    (tmp_path / "sampler").mkdir()
    rows = [{"step": step + 1, "groups": of} for step, of in enumerate(groups)]
    (tmp_path / "sampler" / LOG).write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = [{"completion_length": 2.0, "lag/row_max": 1.0}, {"eval/reward": 0.0}, {"completion_length": 4.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    counted = {"trainer": {"train": {"starts": [0.0, 9, 9, 9, 9, 20, 23, 28], "late": 1}}}
    counted["sampler"] = {"decode": {"starts": [0.0] * 12, "late": 4}}
    for role, said in counted.items():
        (tmp_path / f"pace_{role}.json").write_text(json.dumps(said))
    found = asynchronous.figures(work, tmp_path, ("trainer", "sampler"))
    lengths = asynchronous.lengths_of(work)
    kept = lengths[[n for of in groups for n in of]].mean() / lengths[:14].mean()
    expected = {"batch_s": 4.0, "kept": kept, "age": 1.0, "late": 5 / 20, "batches": 6, "version": 5, "tokens": 3.0}
    assert found == pytest.approx(expected)


def test_the_summary_has_mean_least_and_largest():
    lines = [
        {"sigma": 0.25, "eta": 2, "seed": seed, "speed": speed, "kept": 1.0, "age": 2.0, "late": 0.0}
        for seed, speed in enumerate((1.0, 2.0, 4.5))
    ]
    assert asynchronous.summary(lines)["0.25"]["eta2"]["speed"] == [2.5, 1.0, 4.5]


def test_few_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        asynchronous.main(["--steps=6"])
    assert "the first 5 batches are not measured" in capsys.readouterr().err


def test_a_process_that_fails_is_shown(tmp_path):
    def run(role):
        raise ValueError("a message of the sampler")

    with pytest.raises(RuntimeError, match="(?s)the sampler ended with status 1:.*a message of the sampler"):
        asynchronous.together(("sampler",), tmp_path / "run", run)


def test_every_side_has_the_same_work():
    work = asynchronous_peers.make_work({"vocab": 50}, eta=1, steps=3, prompts=2, group_size=8)
    assert np.shape(work["prompts"]) == (6, 64) and np.shape(work["lengths"]) == (6, 8)
    assert {tuple(sorted(row)) for row in work["lengths"]} == {(16,) * 6 + (64,) * 2}
    assert all(prompt[0] == 1 for prompt in work["prompts"])
    tokenizer = asynchronous_peers.Numbers(50)
    assert tokenizer.encode(tokenizer.decode([7, 12]), bos=True) == [1, 7, 12]
    assert asynchronous_peers.reward("", "7 12 4 9", {})["reward"] == 0.5


def test_ratios_are_of_the_steps_that_count(monkeypatch):
    """Steps before the warm-up and the last eta are left out; rounds take turns."""
    runs = iter([[9, 1, 1, 9], [9, 3, 3, 9], [9, 2, 2, 9], [9, 5, 5, 9]])

    def run_apart(side, command, work):
        steps = next(runs)
        return {"step_s": steps, "cpu_s": [2 * s for s in steps], "age": 1, "lost": 0, "tokens_trained": 4}

    monkeypatch.setattr(asynchronous_peers, "run_apart", run_apart)
    found = asynchronous_peers.measure({"eta": 1}, {"tunix": "python"}, rounds=2, warmup=1)
    assert found["sides"]["ours"] == {"step_s": 1.5, "cpu_s": 3.0, "age": 1, "lost": 0, "tokens_trained": 4}
    assert found["ratio"] == {"tunix": {"step_s": 2.67, "cpu_s": 2.67}}


@pytest.mark.parametrize("steps", [5, 6, 7])
def test_steps_that_leave_none_are_refused(steps, monkeypatch, capsys):
    """Of seven steps there are six differences, of which one is left after three and before two."""
    monkeypatch.setattr(asynchronous_peers, "measure", lambda *_, **__: {})
    if steps == 7:
        asynchronous_peers.main(["--steps=7"])
        return
    with pytest.raises(SystemExit):
        asynchronous_peers.main([f"--steps={steps}"])
    assert "leaves none between" in capsys.readouterr().err
