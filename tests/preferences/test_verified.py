"""preferences/verified.py and experiments/tools/veripo.py: verdicts on worked sums, and the pairs of rollouts."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from configs.preferences import veripo as config_of
from experiments.parts import check_config, stops
from experiments.tools import veripo
from rl_jax.preferences import verified
from rl_jax.tasks import arithmetic
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


def test_a_verdict_is_on_the_answer_and_on_each_step():
    """Against the task's own solutions, with one total changed."""
    for problem in [(12, 8, -2), (3, -5, 2, -7), (1, 1, 1, 1, 1)]:
        prompt, solution = arithmetic.render(problem, worked=True)
        steps = len(problem) - 1
        assert verified.verify(prompt, solution) == (True, 1.0)
        totals = solution.split("=")
        for place in range(steps):
            wrong = [*totals[:place], str(int(totals[place]) + 1), *totals[place + 1 :]]
            found = verified.verify(prompt, "=".join(wrong))
            # Its own step is wrong, and the next one, which does not follow from it.
            assert found.right == (place < steps - 1)
            assert found.consistent == pytest.approx((steps - 1 - (place < steps - 1)) / steps)
            assert found.kind == ("inconsistent" if found.right else "wrong")
    assert verified.verify("12+8-2=", "18") == (True, 0.0)  # the answer alone: no step leads to it
    assert verified.verify("12+8-2=", "20=18=18") == (True, 0.0)
    for text in ("", "x", "20=", "20=+18", "=" * 50):
        assert not verified.verify("12+8-2=", text).right


def test_pairs_contrast_the_best_with_one_of_each_worse_kind():
    rollouts = ["20=17", "21=18", "20=18", "19=17", "20=18", "18", ""]
    found = {pair["rejected_is"]: pair for pair in verified.contrast("12+8-2=", rollouts)}
    assert {kind: pair["rejected"] for kind, pair in found.items()} == {"wrong": "20=17", "inconsistent": "21=18"}
    assert all(pair["chosen"] == "20=18" for pair in found.values())
    assert verified.contrast("12+8-2=", ["20=18"] * 3) == verified.contrast("12+8-2=", ["", " "]) == []
    only_wrong = verified.contrast("12+8-2=", ["1=2", "20=2"])  # the steps decide where no answer is right
    assert [(pair["chosen"], pair["rejected"]) for pair in only_wrong] == [("20=2", "1=2")]


@pytest.mark.usefixtures("kept_signals")
def test_the_loop_goes_from_stage_to_stage(tmp_path, monkeypatch, capsys):
    """GRPO starts from DPO and DPO from GRPO, on the verifier's pairs; complete stages are not run again."""
    runs = []

    def program(name):
        def run(config, folder):
            path = config.data.path if name == "dpo" else ""
            runs.append((folder.name, config.init_from.rpartition("/")[2], path.rpartition("/")[2]))
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config.to_dict()))

        return run

    monkeypatch.setattr(veripo.grpo, "run", program("grpo"))
    monkeypatch.setattr(veripo.dpo, "run", program("dpo"))
    monkeypatch.setattr(veripo, "is_complete", lambda folder: folder.exists())
    rollouts = [("12+8-2=", text) for text in ("20=18", "21=18", "20=17", "9")]
    monkeypatch.setattr(veripo, "sampled", lambda run, smoke: rollouts)
    assert veripo.main([f"--workdir={tmp_path}", "--loops=2", "--smoke"]) == 0
    stages = [("grpo_1", "", ""), ("dpo_1", "grpo_1", "pairs_1.jsonl")]
    stages += [("grpo_2", "dpo_1", ""), ("dpo_2", "grpo_2", "pairs_2.jsonl")]
    assert runs == stages
    report = json.loads((tmp_path / "veripo.json").read_text())
    assert report == [{"good": 0.25, "inconsistent": 0.25, "wrong": 0.5, "pairs": 2}] * 2
    pairs = [json.loads(line) for line in (tmp_path / "pairs_2.jsonl").read_text().splitlines()]
    assert pairs == verified.contrast("12+8-2=", [text for _, text in rollouts])
    assert veripo.main([f"--workdir={tmp_path}", "--loops=3", "--smoke"]) == 0 and len(runs) == 6
    assert veripo.main([f"--workdir={tmp_path}", "--loops=0"]) == 2
    config = json.loads((tmp_path / "dpo_1/config.json").read_text())
    (tmp_path / "dpo_1/config.json").write_text(json.dumps(config | {"seed": 99}))
    capsys.readouterr()
    assert veripo.main([f"--workdir={tmp_path}", "--loops=3", "--smoke"]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'dpo_1'} has a run of other settings" in said and "  seed: 99 -> 0\n" in said
    monkeypatch.setattr(veripo, "sampled", lambda run, smoke: rollouts[:1])
    assert veripo.main([f"--workdir={tmp_path / 'other'}", "--smoke"]) == 2


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("when", ["grpo_1", "sampled", "dpo_1"])
def test_a_signal_ends_the_loop_with_the_status_of_a_stopped_run(tmp_path, monkeypatch, when):
    """Whether it comes in a stage or between two; a stage that ended at its last step counts."""
    ran, due = [], [when]

    def now(name):
        ran.append(name)
        if name in due:
            due.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    def run(config, folder):
        stop = stops.shared()
        now(folder.name)
        if folder.name != "grpo_1" or not stop.received:
            folder.mkdir()  # dpo_1 was at its last step

    monkeypatch.setattr(veripo.grpo, "run", run)
    monkeypatch.setattr(veripo.dpo, "run", run)
    monkeypatch.setattr(veripo, "is_complete", lambda folder: folder.exists())
    monkeypatch.setattr(veripo.origin, "check_result", lambda *_: None)
    rollouts = [("12+8-2=", text) for text in ("20=18", "21=18")]
    monkeypatch.setattr(veripo, "sampled", lambda run, smoke: now("sampled") or rollouts)
    assert veripo.main([f"--workdir={tmp_path}", "--loops=2", "--smoke"]) == stops.STOPPED
    assert ran == ["grpo_1", "sampled", "dpo_1"][: ran.index(when) + 1]
    assert stops.shared() is None
    assert veripo.main([f"--workdir={tmp_path}", "--loops=1", "--smoke"]) == 0 and ran.count("dpo_1") == 1


def test_each_rollout_stands_at_its_own_prompt():
    """The records of a batch are those of its rows, samples of a prompt one after the other."""
    records = [{"prompt": prompt} for prompt in ("1+1=", "1+1=", "2+2=", "2+2=")]
    judged = SimpleNamespace(records=records, completions=["2", "3", "4", "5"])
    wanted = [("1+1=", "2"), ("1+1=", "3"), ("2+2=", "4"), ("2+2=", "5")]
    assert veripo.rows_of([judged, judged]) == wanted * 2


@pytest.mark.parametrize("stopped", [False, True])
def test_the_rollouts_are_those_of_best_of_n(tmp_path, monkeypatch, stopped):
    monkeypatch.setattr(veripo, "load_params", lambda *_: {})
    monkeypatch.setattr(veripo, "stops", SimpleNamespace(shared=lambda: SimpleNamespace(received=stopped)))
    monkeypatch.setattr(veripo.best_of_n, "jit_generate", lambda *_: lambda *_: {})
    monkeypatch.setattr(veripo.best_of_n, "judge", lambda setup, rewards, rollout, records: SimpleNamespace(
        records=records, completions=["2"] * len(records)
    ))  # fmt: skip
    rows = veripo.sampled(tmp_path, smoke=True)
    assert len(rows) == (0 if stopped else 32) and {text for _, text in rows} == (set() if stopped else {"2"})


@pytest.mark.parametrize("arg", [None, "grpo,smoke", "sample", "sample,smoke", "dpo", "dpo,smoke"])
def test_its_configs_can_run(arg):
    config = config_of.get_config(arg)
    check_config.check(config)
    assert config.program == {"s": "best_of_n", "d": "dpo"}.get((arg or "g")[0], "grpo")
    with pytest.raises(ValueError, match="one stage, not 2: dpo, grpo"):
        config_of.get_config("dpo,grpo")
