"""tasks/bfcl.py: the leaderboard's records, whose own answers are right, and bad files."""

import gzip
import json

import pytest

from rl_jax import tasks
from rl_jax.rewards import tools
from rl_jax.tasks import bfcl
from tests.paths import shared_data


@pytest.mark.slow
def test_the_answers_written_for_the_warm_start_are_right():
    folder = shared_data("tools/bfcl_v4_multiple.json.gz").parent
    for name in bfcl.NAMES:
        answers = None if name == "irrelevance" else folder / f"bfcl_v4_{name}.answers.json.gz"
        records = bfcl.read(folder / f"bfcl_v4_{name}.json.gz", answers, name)
        assert len(records) >= 200
        for record in records:
            info = json.loads(record["info"])
            assert tools.exact("", record["completion"], info)["reward"] == 1.0
            assert tools.exact("", "No function fits.", info)["reward"] == float(name == "irrelevance")
            if info["calls"]:
                assert tools.fine("", record["completion"], info)["reward"] == 4.0


@pytest.mark.slow
def test_the_task(tmp_path):
    folder = shared_data("tools/bfcl_v4_multiple.json.gz").parent
    task = tasks.load("bfcl", path=str(folder), names=("multiple", "irrelevance"), data_dir=str(tmp_path))
    train, test = (task.data_source(split) for split in ("train", "test"))
    assert len(train) + len(test) == 440 and 20 < len(test) < 70
    record = train[0]
    assert record["prompt"].startswith("[{") and json.loads(record["info"])["source"] == "multiple"
    assert task.reward_fn(record["prompt"], record["completion"], json.loads(record["info"]))["reward"] == 1.0


@pytest.mark.parametrize(
    ("questions", "answers", "message"),
    [
        ('{"id": "a"}', "", r"json.gz, line 1, field 'question': missing"),
        ('{"id": 1}', "", r"json.gz, line 1, field 'id': expected str, found int"),
        ("nothing", "", "json.gz, line 1: "),
        ("[]", "", "json.gz, line 1: "),
        ('{"id": "a", "question": [[]], "function": []}', '{"id": "b", "ground_truth": []}', "no answer to a"),
    ],
)
def test_bad_files_are_named(tmp_path, questions, answers, message):
    for name, text in (("", questions), (".answers", answers)):
        (tmp_path / f"bfcl_v4_multiple{name}.json.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ValueError, match=message):
        tasks.load("bfcl", path=str(tmp_path), names="multiple", data_dir=str(tmp_path / "data"))
    with pytest.raises(ValueError, match="is missing"):
        tasks.load("bfcl", path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="no file multi; the names are"):
        tasks.load("bfcl", path=str(tmp_path), names="multi")
