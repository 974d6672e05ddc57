"""Self-PRM (arXiv 2505.11227) and ProcessBench's F1 (2412.06559): the task, the judge, what its verdicts say."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from configs.preferences import self_prm
from experiments.parts.judges import self_judging
from rl_jax import preferences, tasks
from rl_jax.rewards import benchmarks
from rl_jax.tasks import self_judged

SUMS = dict(name="arithmetic", num_operands=(3, 3), digits=1, num_train=40, num_test=20)


def test_f1_is_the_harmonic_mean_of_the_two_accuracies():
    named, true = [2, -1, 0, 1, -1, 3, -1], [2, 1, 0, -1, -1, -1, -1]
    found = benchmarks.first_error_f1(named, true)
    wrong = np.mean([n == t for n, t in zip(named, true, strict=True) if t != -1])
    right = np.mean([n == -1 for n, t in zip(named, true, strict=True) if t == -1])
    np.testing.assert_allclose([found["wrong"], found["right"]], [wrong, right])
    np.testing.assert_allclose(found["f1"], 1 / np.mean([1 / wrong, 1 / right]))
    assert benchmarks.first_error_f1([0, 0], [1, -1])["f1"] == 0.0
    assert benchmarks.first_error_f1([0], [0]) == {"wrong": 1.0}


def test_a_problem_and_a_verdict_for_each_sum(tmp_path):
    task = tasks.load("rl_jax.tasks.self_judged:load", of=SUMS | dict(data_dir=str(tmp_path)))
    records = list(task.data_source("sft_train"))
    assert len(records) == 80 and {x["source"] for x in records} == {"solved", "wrong", "right"}
    for solved, judged in zip(records[::2], records[1::2], strict=True):
        prompt, shown = solved["prompt"], judged["prompt"].removeprefix(solved["prompt"]).removesuffix("==")
        assert judged["prompt"] == f"{prompt}{shown}=="
        totals = np.cumsum([int(x) for x in prompt[:-1].replace("-", "+-").split("+")])[1:]
        differ = [place for place, text in enumerate(shown.split("=")) if int(text) != totals[place]]
        assert int(judged["completion"]) == (differ[0] if differ else -1)
        for record in (solved, judged):
            info = json.loads(record["info"])
            assert task.reward_fn(record["prompt"], record["completion"], info)["reward"] == 1.0
        assert task.reward_fn(judged["prompt"], "5", json.loads(judged["info"]))["reward"] == 0.0
    assert all("source" not in x for x in task.data_source("problems"))
    with pytest.raises(ValueError, match="unfinished_share=0.5: solutions to judge are whole"):
        tasks.load("rl_jax.tasks.self_judged:load", of=SUMS | dict(unfinished_share=0.5))
    assert [self_judged.first_error(x, ["4", "9"]) for x in ("4=9", "4=8", "5=9", "4", "4=9=9")] == [-1, 1, 0, 1, 2]


def test_solutions_without_a_named_error_are_kept(monkeypatch):
    said = {
        "1+1+1=2=3==": "-1",
        "1+1+1=2=4==": "1",
        "1+1+1=3=3==": "-1",
        "1+1+1=3=4==": "1",
        "1+1+1===": "==",
        "1+1+1=3==": "-12",
    }
    monkeypatch.setattr(self_judging, "make_ask", lambda *args: lambda texts: [said[text] for text in texts])
    texts = ["2=3", "2=4", "3=3", "3=4", "", "3"]
    records = [{"prompt": "1+1+1=", "info": json.dumps({"answer": 3, "steps": ["2", "3"]})}] * 6
    verdict = self_judging.first_wrong_step(None, path="x")(SimpleNamespace(records=records, completions=texts))
    np.testing.assert_array_equal(verdict.rewards, [1, 0, 1, 0, 0, 0])  # "-12" is not -1
    np.testing.assert_array_equal(verdict.components["first_error"], [-1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(verdict.components["unparsed"], [0, 0, 0, 0, 1, 1])
    components = {f"own/{name}": column[:5] for name, column in verdict.components.items()}
    found = self_judging.report([components], np.array([1.0, 0.0, 1.0, 0.0, 0.0]))["own"]
    assert found == {
        "kept": pytest.approx(0.4),
        "precision": 1.0,
        "recall": 1.0,
        "process_bench/wrong": 0.25,
        "process_bench/right": 1.0,
        "process_bench/f1": pytest.approx(0.4),
    }
    assert self_judging.report([{"task": np.ones(5)}], np.ones(5)) == {}


def test_processbench_files_and_the_config(tmp_path):
    more = {"generator": "g", "final_answer_correct": True}
    rows = [
        {"problem": "Sum?", "steps": ["a", "b"], "label": 1, **more},
        {"problem": "Next?", "steps": ["a"], "label": -1, **more},
    ]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = preferences.load("processbench", path=str(tmp_path / "gsm8k.jsonl"), data_dir=str(tmp_path))
    labels = {x["prompt"].split()[1]: x["labels"] for x in found.data_source("test")}
    assert labels == {"Sum?": [1, 0], "Next?": [1]}
    config = self_prm.get_config("smoke")
    assert config.judge.own.path == config.init_from == f"runs/{self_prm.get_config('model,smoke').name}"
