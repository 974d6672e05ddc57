"""The ablation runner: what it runs, what it skips, and when it says that a claim was reproduced."""

import importlib
import json
import pathlib

import pytest

from experiments import ablation
from tests.paths import REPO_ROOT


@pytest.mark.parametrize("key", ablation.keys())
def test_every_ablation_is_complete(key):
    paper = importlib.import_module(f"configs.papers.{key}").get_ablation()
    assert paper.paper.startswith("arXiv ") and paper.claim and paper.scaled_down
    assert set(paper.expected_gain) == set(paper.arms) and len(set(paper.seeds)) >= 3
    assert (REPO_ROOT / "experiments" / f"{paper.program}.py").exists()
    assert all({arm, lead.over} <= set(paper.arms) and arm != lead.over for arm, lead in paper.expected_lead.items())
    for config in [paper.warm_start, *paper.arms.values()]:
        path, _, argument = config.partition(":")
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        assert (REPO_ROOT / path).exists() and module.get_config(argument).grpo.steps > 0


EXPECTED = {"good": {"at_least": 0.3}, "bad": {"at_most": 0.05}}


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ({"good": [0.3, 0.4], "bad": [0.05, -0.2]}, "reproduced"),
        ({"good": [0.3, 0.29], "bad": [0.0, 0.0]}, "not reproduced"),  # one seed is enough
        ({"good": [0.3, 0.4], "bad": [0.06, 0.0]}, "not reproduced"),
        ({"good": [], "bad": []}, "not reproduced"),
    ],
)
def test_verdict(gains, said):
    assert ablation.verdict(gains, EXPECTED, {}) == said


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ({"good": [0.3, 0.7], "bad": [0.2, 0.6]}, "reproduced"),  # seed by seed: 0.3 is less than the other arm's 0.6
        ({"good": [0.5, 0.5], "bad": [0.2, 0.45]}, "not reproduced"),
        ({"good": [0.29, 0.5], "bad": [0.0, 0.0]}, "not reproduced"),  # it leads, but does not gain what it should
    ],
)
def test_verdict_on_a_lead(gains, said):
    leads = {"good": {"over": "bad", "at_least": 0.0999}}
    assert ablation.verdict(gains, {"good": {"at_least": 0.3}}, leads) == said


def write_metrics(folder: pathlib.Path, values: list[float]) -> None:
    folder.mkdir(parents=True)
    rows = [{"step": i, "eval/pass@1": value} for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "final.json").write_text("{}")


def test_runs_every_arm_and_seed_from_the_seeds_own_warm_start(tmp_path, monkeypatch, capsys):
    calls = []

    def fake(command, check):
        assert check
        calls.append(command[2:])
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        write_metrics(folder, [0.4, 0.5, 0.9] if folder.name == "correct" else [0.4, 0.6, 0.4])

    monkeypatch.setattr(ablation.subprocess, "run", fake)
    outcome = ablation.run("spurious_rewards", tmp_path, ["--config.grpo.steps=2"])
    assert outcome["verdict"] == "reproduced"
    assert outcome["before_after"]["correct"] == [(0.4, 0.9)] * 3  # first and last, not the best
    assert "| correct | 0.400 (0.400 to 0.400) | 0.900" in capsys.readouterr().out
    assert len(calls) == 9 and all("--config.grpo.steps=2" in call for call in calls)
    for seed in range(3):
        arms = [call for call in calls if f"--config.seed={seed}" in call and call[0] == "experiments.grpo"]
        assert len(arms) == 2 and all(f"--config.init_from={tmp_path}/seed{seed}/sft" in call for call in arms)
    ablation.run("spurious_rewards", tmp_path, [])
    assert len(calls) == 9, "finished runs do not run again"


def test_the_arms_are_run_by_the_ablations_own_program(tmp_path, monkeypatch):
    calls = []

    def fake(command, check):
        calls.append(command[2:])
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        write_metrics(folder, [0.2, 0.9] if folder.name == "hl_gauss" else [0.2, 0.8])

    monkeypatch.setattr(ablation.subprocess, "run", fake)
    assert ablation.run("hl_gauss", tmp_path, [])["verdict"] == "reproduced"
    assert [call[0] for call in calls] == 5 * ["experiments.sft", "experiments.ppo", "experiments.ppo"]


def test_a_gain_needs_two_evaluations(tmp_path):
    write_metrics(tmp_path / "run", [0.5])
    with pytest.raises(ValueError, match="evaluated 1 times"):
        ablation.gain(tmp_path / "run", "eval/pass@1")


def test_list_names_the_claims(capsys):
    ablation.main(["--list"])
    assert "arXiv 2507.10532" in capsys.readouterr().out
