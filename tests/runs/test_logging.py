"""The run directory: bytes that repeat, files that survive kill -9, errors that name file and line."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from rl_jax.runs import logging
from rl_jax.runs.run_record import read_json, write_run_record
from tests.paths import REPO_ROOT

FILES = [logging.METRICS_FILE, logging.SAMPLES_FILE, logging.GROUP_VIEW_FILE]
QUIET = {"progress": False, "tensorboard": False}


def write_steps(workdir, steps, *, resume_step=None):
    """Log the given steps the way a loop does, every value a function of the step."""
    with logging.RunLogger(workdir, total_steps=100, resume_step=resume_step, **QUIET) as logger:
        for step in steps:
            rng = np.random.default_rng(step)
            values = {"loss": rng.normal(), "kl/k1": np.float32(rng.normal()), "reward/mean": rng.random()}
            if step % 3 == 0:
                values["loss"] = math.nan
            logger.log(step, values, {"step_s": 0.1})
            logger.samples(step, [{"prompt": "a", "completion": "é\ud800\n", "reward": rng.random()}])
            logger.group_view(step, {"prompt": "a", "rows": [{"tokens": ["x"], "mask": [True], "reward": 1.0}]})


def content(workdir):
    return {name: (workdir / name).read_bytes() for name in FILES}


def test_resumed_files_equal_uninterrupted_ones_byte_for_byte(tmp_path):
    write_steps(tmp_path / "whole", range(1, 11))
    write_steps(tmp_path / "cut", range(1, 8))
    with open(tmp_path / "cut" / logging.METRICS_FILE, "ab") as file:
        file.write(b'{"loss": 0.3, "st')  # killed in the middle of a row
    write_steps(tmp_path / "cut", range(6, 11), resume_step=5)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_a_run_without_a_checkpoint_starts_its_files_again(tmp_path):
    write_steps(tmp_path / "whole", range(0, 3))
    write_steps(tmp_path / "again", range(0, 2))
    write_steps(tmp_path / "again", range(0, 3), resume_step=None)
    assert content(tmp_path / "again") == content(tmp_path / "whole")


def test_nothing_logged_is_lost_to_kill_9(tmp_path):
    program = textwrap.dedent(f"""
        import os, signal
        from rl_jax.runs.logging import RunLogger
        logger = RunLogger({str(tmp_path)!r}, total_steps=9, progress=False, tensorboard=False)
        for step in range(5):
            logger.log(step, {{"loss": 1.0}}, {{"step_s": 2.0}})
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO_ROOT, timeout=600)
    assert done.returncode == -signal.SIGKILL
    assert [row["step"] for row in logging.read_jsonl(tmp_path / logging.METRICS_FILE)] == list(range(5))
    assert [row["step"] for row in logging.read_jsonl(tmp_path / logging.TIMING_FILE)] == list(range(5))


def test_cut_back_keeps_rows_up_to_the_step_and_rows_without_one(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"note": 1}\n{"step": 3}\n{"step": 4}\n')
    logging.cut_back(path, 3)
    assert path.read_text() == '{"note": 1}\n{"step": 3}\n'
    logging.cut_back(tmp_path / "none.jsonl", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["own.jsonl"]


def test_only_files_that_the_logger_writes_are_cut_back(tmp_path):
    """A user's data may be in the workdir, and have a field "step" of its own; a program's rows are its own."""
    mine = '{"prompt": "a", "step": 3}\nno JSON'
    (tmp_path / "pairs.jsonl").write_text(mine)
    for steps, resume_step in ((range(4), None), (range(2, 4), 1)):
        with logging.RunLogger(tmp_path, total_steps=4, resume_step=resume_step, **QUIET) as logger:
            for step in steps:
                logger.log(step, {"loss": 1.0})
                logger.rows("episodes", [{"step": step}, {"step": step}])
    assert (tmp_path / "pairs.jsonl").read_text() == mine
    assert [row["step"] for row in logging.read_jsonl(tmp_path / "episodes.jsonl")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row["step"] for row in logging.read_jsonl(tmp_path / logging.METRICS_FILE)] == [0, 1, 2, 3]


def test_floats_come_back_exactly():
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, float(np.float32(0.1))]
    row = json.loads(logging.encode_row({"values": values, "single": np.float32(0.1)}))
    assert [value.hex() for value in row["values"]] == [value.hex() for value in values]
    assert row["single"] == float(np.float32(0.1))


def test_rows_have_sorted_keys_and_plain_types():
    row = {"b": np.bool_(True), "a": np.int32(3), "c": {"y": (1, 2), "x": np.array([0.5])}, "d": None}
    assert logging.encode_row(row) == '{"a": 3, "b": true, "c": {"x": [0.5], "y": [1, 2]}, "d": null}'


def test_a_number_that_is_not_finite_is_null_and_named():
    row = json.loads(logging.encode_row({"loss": math.nan, "norm": {"g": [1.0, -math.inf]}, "kl": 0.5}))
    assert row == {
        "loss": None,
        "norm": {"g": [1.0, None]},
        "kl": 0.5,
        "nonfinite": {"loss": "nan", "norm.g[1]": "-inf"},
    }


def test_a_row_comes_back_with_what_is_not_finite():
    row = {"a": math.inf, "b": {"c": [1.0, [-math.inf, {"d": math.inf}]]}, "e": None}
    assert logging.decode_row(json.loads(logging.encode_row(row))) == row
    assert math.isnan(logging.decode_row({"a": None, "nonfinite": {"a": "nan"}})["a"])
    for where, text in (("b.c[1]", "inf"), ("a.b", "inf"), ("a", "x")):
        with pytest.raises(ValueError, match=re.escape(f"{where!r} is {text!r}, but the row has no such number")):
            logging.decode_row({"a": None, "b": {"c": [None]}, "nonfinite": {where: text}})


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"field 'a\.b' holds a function"):
        logging.encode_row({"a": {"b": len}} | {"a": {"b": lambda: 0}})
    with logging.RunLogger(tmp_path, total_steps=3, **QUIET) as logger:
        with pytest.raises(ValueError, match="metric 'loss' must be one number"):
            logger.log(1, {"loss": np.ones(2)})
        logger.log(1, {"loss": 1.0})
        with pytest.raises(ValueError, match="step 1 was logged after step 1"):
            logger.log(1, {"loss": 1.0})
        with pytest.raises(ValueError, match="completion 0: 'entropy' has 1 entries for 2 tokens"):
            logger.group_view(1, {"prompt": "", "rows": [{"tokens": ["a", "b"], "entropy": [0.0], "reward": 0.0}]})
    assert len(logging.read_jsonl(tmp_path / logging.METRICS_FILE)) == 1


@pytest.mark.parametrize(("line", "complaint"), [("{broken", "damaged line"), ("[1]", "expected a JSON object")])
def test_a_damaged_line_is_named_with_its_file(tmp_path, line, complaint):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(ValueError, match=rf"metrics\.jsonl:2: {complaint}"):
        logging.read_jsonl(path)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        logging.cut_back(path, 1)


def test_a_line_separator_inside_a_string_does_not_split_the_row(tmp_path):
    with logging.RunLogger(tmp_path, total_steps=1, **QUIET) as logger:
        logger.samples(0, [{"completion": "a\u2028b\x85c\x0bd\re\nf"}])
    assert logging.read_jsonl(tmp_path / logging.SAMPLES_FILE)[0]["completion"] == "a\u2028b\x85c\x0bd\re\nf"


def test_a_reader_of_a_running_run_skips_the_unfinished_line(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"step": 2}')
    assert logging.read_jsonl(tmp_path / "m.jsonl") == [{"step": 1}]


def tensorboard_scalars(folder):
    """{tag: {step: value}} as TensorBoard shows it: a file's purge step hides what earlier files logged after it."""
    shown = {}
    for path in sorted(folder.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            assert masked_crc32c(data[at : at + 8]) == int.from_bytes(data[at + 8 : at + 12], "little")
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            if event.session_log.status == event_pb2.SessionLog.START:
                shown = {tag: {s: v for s, v in steps.items() if s < event.step} for tag, steps in shown.items()}
            for value in event.summary.value:
                shown.setdefault(value.tag, {})[event.step] = value.simple_value
    return shown


def test_tensorboard_shows_one_curve_after_a_resume(tmp_path):
    with logging.RunLogger(tmp_path, total_steps=9, progress=False) as logger:
        for step in range(6):
            logger.log(step, {"loss": 1.0, "kl/k1": math.nan}, {"step_s": 0.5})
    for path in (tmp_path / "tb").iterdir():  # the name holds the second: a resume comes later
        os.rename(path, path.with_name("events.out.tfevents.0000000001"))
    with logging.RunLogger(tmp_path, total_steps=9, progress=False, resume_step=2) as logger:
        logger.log(3, {"loss": 2.0}, {"step_s": 0.5})
    shown = tensorboard_scalars(tmp_path / "tb")
    assert shown["loss"] == {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0}
    assert shown["timing/step_s"][3] == 0.5
    assert "kl/k1" not in shown


def test_a_full_disk_under_tensorboard_ends_a_run_in_place_of_letting_it_wait(tmp_path):
    """Its events are more than the file's buffer, in the middle of a run and at its end."""
    with logging.RunLogger(tmp_path, total_steps=200, progress=False) as logger:
        logger.log(0, {"loss": 1.0})
        os.dup2(os.open("/dev/full", os.O_WRONLY), logger._tensorboard._file._writer.fileno())
        with pytest.raises(OSError, match="tb cannot be written: the disk is full"):
            for step in range(1, 1000):
                logger.log(step, {f"loss/{index}": 1.0 for index in range(20)})
        with pytest.warns(UserWarning, match="tb: the last curves could not be written .*the disk is full"):
            logger.close()


def test_run_record_says_what_ran_and_keeps_the_first_start(tmp_path):
    record = {"command": ["a", "b"], "task": "arithmetic", "algorithm": "grpo", "devices": ["TFRT_CPU_0"]}
    write_run_record(tmp_path, config={"b": (1, 2), "a": {"lr": 1e-3}}, **record)
    first = read_json(tmp_path / "run.json")
    (tmp_path / "run.json").write_text(json.dumps(first | {"started": "2020-01-01T00:00:00+00:00"}))
    write_run_record(tmp_path, config={"b": (1, 2), "a": {"lr": 1e-3}}, **record)
    second = read_json(tmp_path / "run.json")
    assert read_json(tmp_path / "config.json") == {"a": {"lr": 0.001}, "b": [1, 2]}
    assert first["command"] == ["a", "b"] and first["task"] == "arithmetic" and first["algorithm"] == "grpo"
    assert first["versions"]["jax"].count(".") == 2 and first["hardware"]["cpu_count"] == os.cpu_count()
    assert first["hardware"]["memory_bytes"] > 2**30
    assert first["resumed"] == [] and second["started"] == "2020-01-01T00:00:00+00:00"
    assert second["resumed"] == [max(second["resumed"])] and second["resumed"][0] >= first["started"]


def test_run_record_holds_the_commit_of_this_checkout(tmp_path):
    write_run_record(tmp_path, config={}, command="x", task="t", algorithm="a")
    git = ["git", "-C", str(REPO_ROOT)]
    tracked = subprocess.run([*git, "ls-files", "--error-unmatch", "rl_jax/runs/run_record.py"], capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    expected = head.stdout.strip() if tracked.returncode == 0 and head.returncode == 0 else "unknown"
    assert read_json(tmp_path / "run.json")["git_commit"] == expected


def test_run_record_names_a_config_value_that_json_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match=r"'a\.fn' holds a function"):
        write_run_record(tmp_path, config={"a": {"fn": lambda: 0}}, command="x", task="t", algorithm="a")
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: damaged file"):
        write_run_record(tmp_path, config={}, command="x", task="t", algorithm="a")
