"""experiments/tools/adapter_stages.py: who speaks in which stage, and what the adapter is tuned on."""

import json
import os
import subprocess
import sys

import jax
import pytest

from configs import task
from configs.control import guides as configs
from experiments.parts import check_config, control_setup, stops
from experiments.parts.text_models import by_server
from experiments.sweep.points import load_config, set_fields
from experiments.tools import adapter_stages
from rl_jax.envs import speakers
from rl_jax.runs import logging
from rl_jax.runs.logging import read_jsonl
from rl_jax.runs.run_record import flatten, write_run_record

PROMPT = "Player sees: <a tent>. Player status: <{}>."


def test_an_analysis_is_scored_by_what_its_world_did_next():
    scores = [(0, 0.9), (1, 0.1)] * 3
    rows = [dict(world=world, score=score, turn=n // 2, number=n) for n, (world, score) in enumerate(scores)]
    rows[2]["score"] = 0.2
    assert [row["number"] for row in adapter_stages.learned_from(rows, 0.5)] == [2]
    assert adapter_stages.learned_from(rows, 0.0) == rows, "as the paper's code"
    repeated = [*rows[:4], dict(rows[4], score=0.0), *rows[2:]]  # killed after turn 1, whose checkpoint was before it
    for least in (0.0, 0.5):
        assert adapter_stages.learned_from(repeated, least) == adapter_stages.learned_from(rows, least)


def test_the_script_is_wrong_in_a_share_of_its_answers():
    texts = [PROMPT.format(rare) + f" {n}" for n in range(200) for rare in ("parched", "famished")]
    right = [speakers.camp().adapter(text) for text in texts]
    for share in (0.0, 0.4):
        said = adapter_stages.scripted(share)(texts)
        wrong = [a != b for a, b in zip(said, right, strict=True)]
        assert abs(sum(wrong) / len(wrong) - share) < 0.08 and all(" means " in text for text in said)
    assert adapter_stages.scripted(1.0)([PROMPT.format("tired")]) == ["the player is tired"], "a plain word"


class Programs:
    """A policy of two rows of metrics a stage, an adapter, and its server, in place of those of `main`.

    Attributes:
      heard: (total steps, an answer) of each call of `train`; tuned, closed: likewise.
      stops: numbers of calls of `train` and `tune` that a signal ends early.
      trained: number of calls of `train` that were complete.
    """

    def __init__(self, stops=()):
        self.heard, self.tuned, self.closed, self.stops = [], [], [], stops
        self.calls, self.turn, self.trained = 0, 0, 0

    def _goes_on(self):
        self.calls += 1
        return self.calls not in self.stops

    def train(self, fields, folder):
        folder.mkdir(exist_ok=True)
        total = fields["train.total_steps"]
        self.heard.append((total, by_server(url=fields["env.guide.adapter.url"])(["x"])))
        done = self._goes_on()
        self.turn, self.trained = self.turn + 1, self.trained + done
        with open(fields["env.guide.record"], "a") as file:
            file.write(json.dumps(dict(prompt="x", completion="y", world=0, turn=self.turn, score=self.turn / 10)))
            file.write("\n" if done else '\n{"prompt": "x", "comp')
        with open(folder / "metrics.jsonl", "a") as file:
            file.writelines(f"{json.dumps(dict(env_steps=total + more, step=1))}\n" for more in (-50, 7)[: 1 + done])
        return done

    def tune(self, data, folder, before):
        rows = [json.loads(line)["score"] for line in data.read_text().splitlines()]
        self.tuned.append((rows, folder.name, before and before.name))
        return self._goes_on()

    def serve(self, folder):
        return lambda texts: [folder.name for _ in texts], lambda: self.closed.append(folder.name)

    def run(self, workdir, **numbers):
        with adapter_stages.Front(0) as front:
            front.ask = lambda texts: ["the script"] * len(texts)
            does = dict(train=self.train, tune=self.tune, serve=self.serve)
            return adapter_stages.run_stages(workdir, front, **dict(stages=2, steps=100, least=0.0) | numbers, **does)


def test_the_stages(tmp_path):
    """Two stages and a last one: each goes on from the one before, and speaks with the newest adapter."""
    programs = Programs()
    found = programs.run(tmp_path)
    assert programs.heard == [(100, ["the script"]), (200, ["adapter_1"]), (300, ["adapter_2"])]
    assert programs.tuned == [([0.1], "adapter_1", None), ([0.2], "adapter_2", "adapter_1")]
    assert programs.closed == ["adapter_1", "adapter_2"] and [row["env_steps"] for row in found] == [107, 207, 307]
    for file in tmp_path.glob("said_*"):
        file.unlink()
    with pytest.raises(ValueError, match="stage 0: no analysis was followed with a score of 0.99"):
        programs.run(tmp_path, least=0.99)


@pytest.mark.parametrize("stops", [{1}, {3}, {2}, {4}, {1, 4}])
def test_stages_go_on_where_they_stopped(tmp_path, stops):
    """The data of each stage and the metrics at its end are those of no stop, and no stage is trained twice."""
    programs = Programs(stops)
    while len(found := programs.run(tmp_path)) < 3:
        assert stops
    assert [row["env_steps"] for row in found] == [107, 207, 307]
    assert programs.trained == 3
    learned = [row["turn"] for stage in (1, 2) for row in read_jsonl(tmp_path / f"said_{stage}.jsonl")]
    assert learned == list(range(1, len(programs.heard)))
    calls = programs.calls
    assert programs.run(tmp_path) == found and programs.calls == calls + 2, "two adapters that are complete"


def test_results_of_other_options_are_refused(tmp_path):
    """They are named; more stages, and a lower --least after one that kept nothing, are no other options."""
    programs = Programs()
    found = programs.run(tmp_path, stages=1)
    for numbers, named in [
        (dict(steps=5000), r"stage_0_options.json: (.|\n)*  --steps: 100 -> 5000"),
        (dict(first="a server"), '  --first, --wrong: "a script" -> "a server"'),
        (dict(least=0.9), r"said_1_options.json: (.|\n)*  --least: 0.0 -> 0.9"),
    ]:
        with pytest.raises(ValueError, match=named):
            programs.run(tmp_path, stages=1, **numbers)
    assert programs.run(tmp_path, stages=2)[:2] == found
    (tmp_path / "stage_0_options.json").unlink()
    with pytest.raises(ValueError, match="stage_0_options.json: no settings were kept"):
        programs.run(tmp_path)
    for least in (0.9, 0.8):
        with pytest.raises(ValueError, match="lower --least"):
            programs.run(tmp_path / "other", stages=1, least=least)


def test_an_adapter_of_another_model_or_length_is_refused(tmp_path, monkeypatch):
    ran, folder, data = [], tmp_path / "adapter_1", tmp_path / "said_1.jsonl"
    monkeypatch.setattr(adapter_stages, "ran", lambda *given: ran.append(given) or True)
    assert adapter_stages.tuned(data, folder, None, model="", steps=7) and len(ran) == 1
    config, _, fields, _ = ran[0]
    made = set_fields(load_config(config), fields)
    write_run_record(folder, config=made.to_dict(), command="", task="", algorithm="sft")
    (folder / "final.json").write_text("{}")
    assert adapter_stages.tuned(data, folder, None, model="", steps=7) and len(ran) == 1
    for other, named in [
        (dict(steps=70), "  sft.steps: 7 -> 70"),
        (dict(model="FOLDER"), '  model.path: "" -> "FOLDER"'),
    ]:
        with pytest.raises(ValueError, match=named):
            adapter_stages.tuned(data, folder, None, **dict(model="", steps=7) | other)


def test_half_a_data_file_is_not_learned_from(tmp_path, monkeypatch):
    """A disk that is full, or a kill, while it is written."""
    programs, marked = Programs(), (tmp_path / "stage_0.json").exists
    monkeypatch.setattr(logging.os, "fsync", lambda number: 1 / 0 if marked() else None)
    with pytest.raises(ZeroDivisionError):
        programs.run(tmp_path, stages=1)
    assert not (tmp_path / "said_1.jsonl").exists()
    monkeypatch.undo()
    assert len(programs.run(tmp_path, stages=1)) == 2 and programs.tuned == [([0.1], "adapter_1", None)]


def test_each_program_is_a_process_and_the_server_is_not_on_the_accelerator(tmp_path, monkeypatch):
    started = []

    class Process:
        def __init__(self, command, **options):
            self.stdout, self.status = ["x answers at http://127.0.0.1:1\n"], {"sft": 75, "ppo": 0}.get(status, 1)
            started.append((command, options.get("env", {}).get("JAX_PLATFORMS", "")))

        def wait(self):
            return self.status

        def terminate(self):
            started.append("end")

    monkeypatch.setattr(adapter_stages.subprocess, "Popen", Process)
    status = "ppo"
    assert adapter_stages.ran("c.py:a", "control.ppo", {"train.total_steps": 5, "a.b": "x y"}, tmp_path)
    status = "sft"
    assert not adapter_stages.ran("c.py", "sft", {}, tmp_path), "a signal"
    status = "other"
    with pytest.raises(RuntimeError, match=f"experiments.sft in {tmp_path} ended with 1"):
        adapter_stages.ran("c.py", "sft", {}, tmp_path)
    command = started[0][0]
    assert command[1:3] == ["-m", "experiments.control.ppo"] and command[3:5] == [
        "--config=c.py:a",
        f"--workdir={tmp_path}",
    ]
    assert command[5:] == ["--config.train.total_steps=5", "--config.a.b=x y"]
    adapter_stages.served(tmp_path, "cpu")[1]()
    assert started[-2][1] == "cpu" and started[-1] == "end"


@pytest.mark.slow
def test_the_command_takes_no_device(tmp_path):
    """With a platform that does not exist, jax raises as soon as it is asked for a device."""
    code = """
import pathlib, sys
from experiments.tools import adapter_stages

def ran(config, program, fields, folder):
    folder.mkdir()
    record = fields.get("env.guide.record")
    if record:
        pathlib.Path(record).write_text('{"prompt": "x", "completion": "y", "world": 0, "turn": 1, "score": 1}\\n')
        row = '{"eval/return": 1, "episode/return": 2, "episode/understood": 3}\\n'
        (folder / "metrics.jsonl").write_text(row)
        print(adapter_stages.by_server(url=fields["env.guide.adapter.url"])(["Player status: <parched>."]))
    return program == "control.ppo"

adapter_stages.ran = ran
sys.exit(adapter_stages.main(["--workdir", sys.argv[1], "--stages=1", "--port=0"]))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "nowhere"}, capture_output=True, text=True)
    assert done.returncode == stops.STOPPED, done.stderr
    assert done.stdout.splitlines()[0] == "['parched means thirsty']"
    assert done.stdout.splitlines()[1].startswith("stage 0: {'eval/return': 1")


def test_the_world_of_the_stages_asks_the_front_each_time():
    config = configs.get_config("staged,smoke")
    with adapter_stages.Front(0) as front:
        texts = []
        front.ask = lambda asked: [texts.append(text) or speakers.camp().adapter(text) for text in asked]
        config.env.guide.adapter.url = front.url
        env = control_setup.load_env(config, 4)
        env.reset(jax.random.key(0))
        assert len(texts) == 4 and all(text.startswith("Player sees: <a tent>.") for text in texts)
    with pytest.raises(ValueError, match="choose one of unadapted, served and staged"):
        configs.get_config("staged,served")


def test_the_fields_of_both_programs_are_those_of_their_configs(tmp_path):
    word, fields = adapter_stages.tuning(tmp_path / "a.jsonl", "", tmp_path / "before", 7)
    small = task.get_config(word)
    small.update_from_flattened_dict(fields)
    assert small.sft.steps == 7 and small.init_from == str(tmp_path / "before") and not small.model.path
    assert small.model.embed_dim == 64 and small.rollout.prompt_buckets == (256,)
    word, fields = adapter_stages.tuning(tmp_path / "a.jsonl", "FOLDER", None, 7)
    large = task.get_config(word)
    large.update_from_flattened_dict(fields)
    assert large.model.path == "FOLDER" and large.model.lora.rank > 0 and large.init_from == ""
    policy = configs.get_config("camp,staged")
    check_config.check(policy)
    for name in ("train.total_steps", "env.guide.record", "env.guide.adapter.url"):
        assert name in flatten(policy.to_dict())


def test_a_server_that_is_stopped_while_it_loads_is_closed(monkeypatch, tmp_path):
    """And no terminal's signal reaches it: it is in a session of its own, to answer until the policy has saved."""
    called, options = [], {}

    class Loading:
        def __init__(self, command, **found):
            options.update(found)
            self.stdout = iter(self)

        def __iter__(self):
            yield "loading\n"
            raise KeyboardInterrupt

        def terminate(self):
            called.append("terminate")

        def wait(self):
            called.append("wait")

    monkeypatch.setattr(adapter_stages.subprocess, "Popen", Loading)
    with pytest.raises(KeyboardInterrupt):
        adapter_stages.served(tmp_path, "cpu")
    assert called == ["terminate", "wait"] and options["start_new_session"]


def test_records_of_an_older_version_are_refused():
    with pytest.raises(ValueError, match="take a new --workdir"):
        adapter_stages.learned_from([{"prompt": "p", "completion": "c", "world": 0, "score": 0.5}], 0.0)
