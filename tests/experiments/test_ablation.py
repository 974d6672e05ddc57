"""The ablation runner: what it runs, what it skips, and when it says that a claim was reproduced."""

import functools
import importlib
import importlib.util
import inspect
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import scipy.stats
from ml_collections import ConfigDict

from experiments import studies
from experiments.ablation import claims as claims
from experiments.ablation import cli, once
from experiments.ablation.chart import curves_chart, interval_chart
from experiments.ablation.store import to_store
from experiments.parts import origin
from experiments.studies.base import Outcome
from rl_jax import stats
from rl_jax.core import binding
from tests.paths import REPO_ROOT


@pytest.mark.parametrize("key", cli.keys())
@pytest.mark.parametrize("smoke", [False, True])
def test_every_ablation_is_complete(key, smoke):
    paper = cli.load(key, smoke=smoke)
    assert paper.paper.startswith("arXiv ") and paper.claim and paper.scaled_down and paper.expected
    counts = [paper.tried] if isinstance(paper.tried, int) else paper.tried.values()
    assert all(count >= 1 for count in counts), "how many settings each arm had before those of the file"
    assert len(set(paper.seeds)) == len(paper.seeds) >= (2 if smoke else 3)
    assert f"python -m experiments.ablation {key}\n" in importlib.import_module(f"configs.papers.{key}").__doc__
    if "study" in paper:
        fn = binding.bind({"fn": paper.study, **paper.settings.to_dict()}, studies)
        assert binding.needs(fn) == set(), "every setting stands in the file"
        assert len(paper.seeds) >= 5 or smoke
        measured = {part for statement in paper.expected for part in statement["metric"].split("_")}
        for name, value in paper.settings.items():  # metrics are named by what is swept: what is claimed is measured
            whole = cli.load(key).settings[name]
            gone = set(whole) - set(value) if smoke and isinstance(whole, tuple) and isinstance(value, tuple) else ()
            assert not measured & {str(x).replace(".", "") for x in gone}, f"{name} lacks what `expected` names"
        return
    stages = paper.get("stages", ())
    programs = {paper.program} if isinstance(paper.program, str) else set(paper.program.values())
    for program in programs | {stage["program"] for stage in stages}:
        assert (REPO_ROOT / "experiments" / f"{program}.py").exists()
    assert all(len(own) >= len(paper.seeds) for own in paper.get("given", {}).values())
    starts = [paper.warm_start] if "warm_start" in paper else []
    for config in [*starts, *(stage["config"] for stage in stages), *paper.arms.values()]:
        path, _, argument = config.partition(":")
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        steps = module.get_config(argument).train.steps
        assert (REPO_ROOT / path).exists() and 0 < steps and (steps <= 5 or not smoke)


@pytest.fixture
def no_shortfall(monkeypatch):
    """Made-up values decide nothing, and how many seeds more it would take is nearly all that judging costs."""
    monkeypatch.setattr(claims, "shortfall", lambda *_: {})


@pytest.mark.usefixtures("no_shortfall")
@pytest.mark.parametrize("key", cli.keys())
def test_every_statement_is_one_about_the_arms(key):
    paper = cli.load(key)
    arms = paper.arms if "arms" in paper else paper.settings.arms
    metrics = {statement["metric"] for statement in paper.expected}
    values = {arm: dict.fromkeys(metrics, (0.0, 1.0)) for arm in arms}
    assert len(cli.judgements(values, paper.expected)) >= len(paper.expected)


GOOD, BAD = [1.0, 1.2, 1.1, 0.9, 1.3], [0.1, 0.4, 0.2, 0.1, 0.3]
NOISY = [1.9, -0.4, 0.2, -1.0, 1.3]
VALUES = {"good": {"error": GOOD}, "bad": {"error": BAD}, "noisy": {"error": NOISY}}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (dict(increasing=("bad", "good"), by=0.0), "reproduced"),
        (dict(increasing=("good", "bad"), by=0.0), "not reproduced"),
        (dict(increasing=("bad", "noisy"), by=0.0), "undecided"),
        (dict(increasing=("bad", "good"), by=0.8), "undecided"),  # the lead is .88 [.8, .98]
        (dict(increasing=("bad", "good"), by=1.2), "not reproduced"),
        (dict(arm="bad", at_most=0.5), "reproduced"),
        (dict(arm="bad", at_least=0.5), "not reproduced"),
        (dict(arm="bad", at_least=0.0, at_most=0.2), "undecided"),
        (dict(arm="good", at_least=0.5, at_most=2.0), "reproduced"),
    ],
)
def test_judgements(statement, said):
    (judged,) = cli.judgements(VALUES, [dict(metric="error", **statement)])
    assert judged["verdict"] == said


def test_one_of_many_statements_refutes_a_claim_only_by_a_wider_interval():
    """-1 +- 1.1: with nine statements, chance alone would refute a true claim in 20 of 100 cases."""
    values = {"a": {"m": [-2.4, -1.6, -1.0, -0.4, 0.3, -2.6, 0.6, -1.2, -0.7, -1.0]}}
    below, above = dict(metric="m", arm="a", at_least=0.0), dict(metric="m", arm="a", at_most=1.0)
    said = [cli.judgements(values, [below, *[above] * more])[0] for more in (0, 8)]
    assert [row["verdict"] for row in said] == ["not reproduced", "undecided"]
    assert said[0]["interval"] == said[1]["interval"], "the interval that is shown is that of one mean"
    seeds = stats.seeds_for_power(np.array(values["a"]["m"]), confidence=1 - 0.05 / 9)
    assert said[1]["more_seeds"]["power"] == seeds - 10 > 0
    (found,) = cli.judgements(values, [dict(metric="m", arm="a", at_most=0.0)])
    assert found["verdict"] == "reproduced", "all statements have to hold, so this needs no correction"


def test_seeds_that_all_agree_decide_by_the_range_of_the_metric_only():
    values = {"a": {"m": [0.5] * 10, "far": [0.5] * 40}, "b": {"m": [1.0] * 10}, "c": {"m": [0.0] * 10}}

    def said(**statement):
        return cli.judgements(values, [dict(dict(metric="m") | statement)])[0]

    alone = said(arm="a", at_least=0.3)
    assert alone["verdict"] == "undecided" and "more_seeds" not in alone
    assert alone["interval"] == dict(mean=0.5, low=0.5, high=0.5)
    values |= {"x": {"m": [0.9, 0.8, 0.7, 0.6]}, "y": {"m": [0.8, 0.7, 0.6, 0.5]}}  # all differ by .1, but for rounding
    rounded = said(increasing=("y", "x"), by=0.05)
    assert rounded["verdict"] == "undecided" and "more_seeds" not in rounded
    assert said(arm="a", at_least=0.3, within=(0.0, 1.0))["verdict"] == "reproduced"
    assert said(arm="a", at_least=0.4, within=(0.0, 1.0))["verdict"] == "undecided"
    assert said(arm="a", metric="far", at_least=0.4, within=(0.0, 1.0))["verdict"] == "reproduced"
    share = dict(within=(0.0, 1.0))
    assert said(arm="b", at_least=0.6, **share)["verdict"] == "reproduced"
    assert said(arm="b", at_least=0.8, **share)["verdict"] == "undecided"
    assert said(increasing=("a", "b"), by=0.0)["verdict"] == "undecided"
    assert said(increasing=("c", "b"), by=0.0, **share)["verdict"] == "reproduced"
    assert said(increasing=("c", "b"), by=0.5, **share)["verdict"] == "undecided"
    for statement in (dict(arm="b", at_least=0.6), dict(arm="b", at_most=1.05), dict(increasing=("c", "b"), by=0.0)):
        assert said(**statement)["verdict"] == "undecided", "1 for every seed may be a ratio"


def test_arms_are_compared_seed_by_seed():
    """The seeds differ by far more than the arms do, and share what makes them differ."""
    base = [10.0, -30.0, 5.0, 80.0, -2.0]
    values = {"less": {"m": base}, "more": {"m": [x + 1.0 + 0.01 * i for i, x in enumerate(base)]}}
    (judged,) = cli.judgements(values, [dict(metric="m", increasing=("less", "more"), by=0.0)])
    assert judged["verdict"] == "reproduced" and judged["interval"]["mean"] == pytest.approx(1.02)
    values["more"]["m"] = values["more"]["m"][::-1]
    (judged,) = cli.judgements(values, [dict(metric="m", increasing=("less", "more"), by=0.0)])
    assert judged["verdict"] == "undecided"


def test_an_order_of_three_is_two_statements():
    judged = cli.judgements(VALUES, [dict(metric="error", increasing=("bad", "good", "noisy"), by=0.0)])
    assert [row["verdict"] for row in judged] == ["reproduced", "undecided"]
    assert judged[0]["statement"] == "error: bad < good"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (dict(metric="error", arm="god", at_least=0.0), "no 'error' of the arm 'god'.*'good'"),
        (dict(metric="errors", arm="good", at_least=0.0), "no 'errors' of the arm 'good'"),
        (dict(metric="error", arm="good", at_lest=0.0), "at_lest.*is not a statement"),
        (dict(metric="error", arm="good"), "is not a statement"),
        (dict(metric="error", increasing=("bad", "good")), "is not a statement"),
        (dict(arm="good", at_least=0.0, at_most=1.0), "is not a statement"),
    ],
)
def test_a_wrong_statement_is_an_error(statement, said):
    with pytest.raises(ValueError, match=said):
        cli.judgements(VALUES, [statement])


def test_a_seed_without_a_value_is_left_out_of_what_it_would_be_compared_in():
    values = {"less": {"m": [0.0, 0.1, None, 0.3, 0.2]}, "more": {"m": [1.0, None, 90.0, 1.2, 1.3]}}
    (found,) = cli.judgements(values, [dict(metric="m", increasing=("less", "more"), by=0.0)])
    assert found["dropped"] == 2 and found["verdict"] == "reproduced"
    assert found["interval"] == stats.paired_difference([1.0, 1.2, 1.3], [0.0, 0.3, 0.2])._asdict()
    assert claims.verdict_cell(found) == "reproduced, 2 seeds left out"
    assert claims.cell(values["less"]["m"]).endswith("] of 4") and claims.cell([None, 1.0]) == "-"
    assert claims.cell([1.0] * 10) == "1 [1, 1]" and claims.cell([1.0] * 10, [0.0, 1.0]) == "1 [0.692, 1]"
    assert claims.ranges([dict(metric="m", within=(0.0, 1.0)), dict(metric="n")]) == {"m": (0.0, 1.0)}
    values["less"]["m"] = [None, None, 0.1, 0.2, None]
    with pytest.raises(ValueError, match="m: less < more: 2 of 5 seeds|m: less < more: 1 of 5 seeds"):
        cli.judgements(
            {**values, "more": {"m": [1.0, 1.0, 1.0, None, 1.0]}},
            [dict(metric="m", increasing=("less", "more"), by=0.0)],
        )


def test_an_undecided_statement_says_how_many_more_seeds():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=20)
    noise -= noise.mean()
    near, far = ({"a": {"m": (noise + lead).tolist()}} for lead in (0.05, 0.4))
    asked = {}
    for name, values in (("near", near), ("far", far)):
        (found,) = cli.judgements(values, [dict(metric="m", arm="a", at_least=0.0)])
        assert found["verdict"] == "undecided" and set(found["more_seeds"]) == {"power", "adastop", "decided"}
        asked[name] = found["more_seeds"]
    assert asked["far"]["power"] == stats.seeds_for_power(noise + 0.4) - 20 < 40 < 1000 < asked["near"]["power"]
    assert asked["far"]["adastop"] < asked["near"]["adastop"] == 80 and asked["near"]["decided"] < 0.5
    assert "AdaStop needs" in claims.verdict_cell(found) and "more for a power of 80%" in claims.verdict_cell(found)
    (both,) = cli.judgements(near, [dict(metric="m", arm="a", at_least=0.0, at_most=0.4)])
    assert both["more_seeds"]["power"] == asked["near"]["power"], "the bound that is harder to clear"
    (none,) = cli.judgements({"a": {"m": [-1.0, 1.0]}}, [dict(metric="m", arm="a", at_least=0.0)])
    assert none["more_seeds"]["power"] is None and "over 10,000 more" in claims.verdict_cell(none)


def test_the_power_calculation_keeps_its_word():
    rng, effect = np.random.default_rng(0), 0.6
    sample = scipy.stats.norm.ppf((np.arange(40) + 0.5) / 40)
    sample = effect + sample / sample.std(ddof=1)
    n = stats.seeds_for_power(sample)
    draws = rng.normal(size=(4000, n)) + effect
    half = scipy.stats.t.ppf(0.975, n - 1) * draws.std(axis=1, ddof=1) / np.sqrt(n)
    assert np.mean(draws.mean(axis=1) - half > 0.0) == pytest.approx(0.8, abs=0.03)
    assert stats.seeds_for_power(sample, bound=effect) is None and stats.seeds_for_power([1.0, 1.0]) == 2


def toy(seeds, *, arms, size):
    """A study whose arms are `size` apart, with curves."""
    values = {
        arm: {"error": [size * place + 0.01 * seed * (1 + place) for seed in seeds]} for arm, place in arms.items()
    }
    curves = {"error over time": {arm: [(1, 0.5), (20, size * place)] for arm, place in arms.items()}}
    return Outcome(values, curves, note="the seeds are toys")


def toy_ablation(size):
    return ConfigDict(
        dict(
            paper="arXiv 0000.00000",
            claim="a < b",
            scaled_down="all of it",
            study="toy",
            settings=dict(arms={"a": 0.0, "b": 1.0}, size=size),
            seeds=(0, 1, 2),
            tried={"a": 1, "b": 4},
            metric="error",
            expected=(dict(metric="error", increasing=("a", "b"), by=0.0),),
            smoke=dict(seeds=(5, 7), settings=dict(size=-1.0)),
        )
    )


@pytest.fixture
def a_toy(monkeypatch):
    """Puts the toy study among the studies, and its ablation among the papers."""
    fn = inspect.unwrap(toy)
    monkeypatch.setattr(studies, "toy", fn, raising=False)
    monkeypatch.setattr(fn, "__module__", "experiments.studies.toy")

    def install(size=1.0):
        monkeypatch.setattr(cli, "keys", lambda: ["toy"])
        module = type("module", (), {"get_ablation": staticmethod(lambda: toy_ablation(size))})
        monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)

    return install


@pytest.mark.parametrize(("size", "said"), [(1.0, "reproduced"), (0.0, "undecided"), (-1.0, "not reproduced")])
def test_a_study_is_run_and_judged(a_toy, tmp_path, capsys, size, said):
    a_toy(size)
    outcome = cli.run("toy", tmp_path, [])
    assert outcome["verdict"] == said
    assert json.loads((tmp_path / "ablation.json").read_text()) == json.loads(json.dumps(outcome))
    assert outcome["values"]["b"]["error"] == pytest.approx([size, size + 0.02, size + 0.04])
    text = (tmp_path / "ablation.md").read_text()
    assert text in capsys.readouterr().out
    assert f"**{said}**, 3 seeds (0 to 2), 20" in text and "settings tried: a 1, b 4" in text
    assert "| a | 0.01 [-0.0148, 0.0348] |" in text and f"| error: a < b | {size + 0.01:.3g} [" in text
    assert "Scaled down: all of it. the seeds are toys.\n" in text
    for name in ("ablation.svg", "error over time.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")


def test_smoke_replaces_what_it_names(a_toy, tmp_path):
    a_toy()
    outcome = cli.run("toy", tmp_path, [], smoke=True)
    assert outcome["seeds"] == [5, 7] and outcome["verdict"] == "not reproduced"
    assert outcome["command"] == "python -m experiments.ablation toy --smoke"


def test_a_study_takes_no_overrides(a_toy, tmp_path, capsys):
    a_toy()
    with pytest.raises(ValueError, match=r"a study.*--config.x=1.*configs/papers/toy.py"):
        cli.run("toy", tmp_path, ["--config.x=1"])
    with pytest.raises(SystemExit) as end:
        cli.main(["toy", f"--workdir={tmp_path}", "--config.x=1"])
    assert end.value.code == 2 and capsys.readouterr().err.startswith("experiments.ablation: toy is a study and takes")


def test_a_misspelt_setting_is_an_error(a_toy, tmp_path):
    a_toy()
    paper = toy_ablation(1.0)
    paper.settings.sise = 1.0
    with pytest.raises(ValueError, match="no keyword 'sise'; it takes: arms, size"):
        cli.run_study(paper)


def test_the_table_has_what_is_stored(a_toy, tmp_path, monkeypatch, capsys):
    a_toy()
    cli.main(["toy", f"--workdir={tmp_path / 'toy'}"])
    monkeypatch.setattr(cli, "keys", lambda: ["never_run", "toy"])
    capsys.readouterr()
    cli.main(["--table", f"--workdir={tmp_path}"])
    head, _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert head == "1 claims: 1 reproduced." and len(rows) == 3
    assert rows[2] == "| A < b (arXiv 0000.00000) | reproduced | `error: a < b`: 1.01 [0.985, 1.03] | 3 | toy |"
    cli.main(["toy", "--table", f"--workdir={tmp_path}"])
    said = capsys.readouterr().out
    assert said.startswith("## toy\n\nA < b (arXiv 0000.00000): **reproduced**.\n\n3 seeds (0 to 2), 20")
    assert "0.1 min, settings tried: a 1, b 4. Arms, error: a 0.01 [-0.0148, 0.0348]; b 1.02 [0.97, 1.07]" in said
    assert said.endswith("| `error: a < b` | 1.01 [0.985, 1.03] |\n")


@pytest.fixture
def three(monkeypatch):
    """Three ablations of which "bad" fails, and what --all has started: [(key, words)]."""
    started = []

    def fake(command, **kept):
        key, *words = command[3:]
        started.append((key, words))
        if key != "bad":
            folder = pathlib.Path(words[0].removeprefix("--workdir="))
            folder.mkdir(parents=True)  # fails where an old result was left
            if "--smoke" in words:
                (folder / cli.SMALL).touch()
            outcome = {"settings": cli.settings_text(toy_ablation(1.0), [])}
            (folder / "ablation.json").write_text(json.dumps(outcome))
        said = f"all that {key} says\n" if kept.get("stdout") == subprocess.PIPE else None
        status = 3 if key == "bad" else 0
        return types.SimpleNamespace(communicate=lambda: (said, None), wait=lambda: status)

    monkeypatch.setattr(cli, "keys", lambda: ["bad", "good", "nodata"])
    needs = {"nodata": ("no/such/file",)}
    monkeypatch.setattr(cli, "load", lambda key: ConfigDict({**toy_ablation(1.0), "needs": needs.get(key, ())}))
    monkeypatch.setattr(cli, "settings_text", lambda paper, overrides: str(paper.settings))
    monkeypatch.setattr(cli.subprocess, "Popen", fake)
    return started


def test_a_signal_to_all_ends_what_runs_and_begins_nothing_more(tmp_path, monkeypatch, capsys):
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    begin, started = subprocess.Popen, []

    def popen(command, **kept):
        started.append(command[3])
        return begin([sys.executable, "-c", code], **kept)

    monkeypatch.setattr(cli, "keys", lambda: ["first", "second"])
    monkeypatch.setattr(cli, "load", lambda key: toy_ablation(1.0))
    monkeypatch.setattr(cli.subprocess, "Popen", popen)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.run_all(tmp_path, smoke=False) == once.stops.STOPPED and started == ["first"]
    assert "first: stopped" in capsys.readouterr().out and signal.getsignal(signal.SIGTERM) is before


def test_a_smoke_run_takes_no_place_of_a_full_one(a_toy, three, tmp_path, capsys):
    """Neither what is finished nor what has begun is deleted; what smoke runs left is."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder, name in ((good, "ablation.json"), (bad, cli.SPENT)):
        folder.mkdir()
        (folder / name).write_text("hours")
    with pytest.raises(SystemExit) as end:
        cli.main(["--all", "--smoke", "--jobs=1", f"--workdir={tmp_path}"])
    said = capsys.readouterr().out
    assert end.value.code == 1 and not three and said.endswith("failed: bad, good\n")
    assert f"good: {good} has results of the full size" in said and f"bad: {bad} has" in said
    assert (good / "ablation.json").read_text() == (bad / cli.SPENT).read_text() == "hours"


def test_a_folder_is_known_as_that_of_a_smoke_run(a_toy, tmp_path):
    a_toy()
    cli.run("toy", tmp_path / "small", [], smoke=True)
    assert (tmp_path / "small" / cli.SMALL).exists()
    cli.run("toy", tmp_path / "small", [], smoke=True)
    cli.run("toy", tmp_path / "small", [])
    text = (tmp_path / "small" / "ablation.json").read_text()
    with pytest.raises(ValueError, match="small has results of the full size"):
        cli.run("toy", tmp_path / "small", [], smoke=True)
    assert (tmp_path / "small" / "ablation.json").read_text() == text


@pytest.mark.parametrize("smoke", [False, True])
def test_all_goes_on_after_a_failure_and_names_it(three, tmp_path, capsys, smoke):
    words = ["--all", f"--workdir={tmp_path}", *["--smoke", "--jobs=2"] * smoke]
    for repeated in (False, True):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 1
        said = capsys.readouterr().out
        assert "bad: FAILED (3)" in said and said.endswith("failed: bad\n")
        assert ("all that bad says\nbad: FAILED" in said) == smoke, "with two at a time, what one says stays together"
        assert "nodata: skipped, because these files are missing: no/such/file" in said
        assert ("good: already finished" in said) == (repeated and not smoke), "a smoke run is made anew"
    kept = [f"--workdir={tmp_path / 'good'}", *["--smoke"] * smoke]
    assert three.count(("good", kept)) == (2 if smoke else 1) and [key for key, _ in three].count("bad") == 2


def test_a_result_of_other_settings_is_not_finished(three, tmp_path):
    (tmp_path / "good").mkdir()
    assert not cli.finished("good", tmp_path / "good")
    (tmp_path / "good" / "ablation.json").write_text(json.dumps({"settings": "others"}))
    assert not cli.finished("good", tmp_path / "good")
    (tmp_path / "good" / "ablation.json").write_text(json.dumps({"settings": str(toy_ablation(1.0).settings)}))
    assert cli.finished("good", tmp_path / "good")


def test_all_takes_neither_a_key_nor_overrides(three, capsys):
    for words in (["--all", "good"], ["--all", "--config.x=1"]):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 2 and "--all uses the settings of the files" in capsys.readouterr().err
    for words in (["--all", "--jobs=0"], ["good", "--jobs=2"]):
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        assert end.value.code == 2 and "set it to 1 or more, with --all" in capsys.readouterr().err


def noise(folder: pathlib.Path) -> float:
    """What is made up of a run's seed: seeds that all agree decide nothing."""
    return 1e-6 * int(folder.parent.name.removeprefix("seed")) if folder.parent.name.startswith("seed") else 0.0


def write_metrics(folder: pathlib.Path, values: list[float], **more: list[float]) -> None:
    folder.mkdir(parents=True)
    more = {f"eval/{name}": column for name, column in more.items()}
    rows = [{"step": i, "eval/pass@1": value} | {n: c[i] for n, c in more.items()} for i, value in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "final.json").write_text("{}")


def test_runs_every_arm_and_seed_from_the_seeds_own_warm_start(tmp_path, monkeypatch, capsys):
    calls = []

    def fake(command):
        calls.append(command[2:])
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        last = 0.9 if folder.name == "correct" else 0.4
        write_metrics(folder, [0.4, 0.5 if last == 0.9 else 0.6, last + noise(folder)])
        config = once.asked_for(command[3].removeprefix("--config="), command[5:])
        (folder / "config.json").write_text(json.dumps(origin.named(config.to_dict())))

    monkeypatch.setattr(once.stops, "wait", lambda command: fake(command) or 0)
    outcome = cli.run("spurious_rewards", tmp_path, ["--config.train.steps=2"])
    assert outcome["verdict"] == "reproduced"
    assert outcome["values"]["correct"]["before"] == [0.4] * 3  # first and last, not the best
    assert outcome["values"]["correct"]["after"] == pytest.approx([0.9] * 3, abs=1e-5)
    assert outcome["values"]["shuffled"]["gain"] == pytest.approx([0.0] * 3, abs=1e-5)
    assert "| correct | 0.4 [0.4, 0.4] | 0.9 [0.9, 0.9] | 0.5 [0.5, 0.5] |" in capsys.readouterr().out
    assert len(calls) == 9 and all("--config.train.steps=2" in call for call in calls)
    for seed in range(3):
        arms = [call for call in calls if f"--config.seed={seed}" in call and call[0] == "experiments.grpo"]
        assert len(arms) == 2 and all(f"--config.init_from={tmp_path}/seed{seed}/sft" in call for call in arms)
    spent = cli.read_jsonl(tmp_path / cli.SPENT)
    assert len(spent) == 9 and outcome["wall_seconds"] == pytest.approx(sum(row["seconds"] for row in spent), abs=0.1)
    with (tmp_path / cli.SPENT).open("a") as file:
        file.write('{"run": "an interrupted start", "seconds": 100.0}\n')
    again = cli.run("spurious_rewards", tmp_path, ["--config.train.steps=2", "--config.log.progress=False"])
    assert len(calls) == 9, "finished runs do not run again"
    assert again["wall_seconds"] == pytest.approx(outcome["wall_seconds"] + 100.0, abs=0.1)
    text = (tmp_path / "ablation.json").read_text()
    with pytest.raises(origin.ChangedError, match=r"seed0/correct has a run of other .*\n  train.steps: 2 -> \d+\nDel"):
        cli.run("spurious_rewards", tmp_path, [])
    assert len(calls) == 9 and (tmp_path / "ablation.json").read_text() == text, "no old run under new settings"


@pytest.mark.parametrize("code", ["sys.exit(75)", "os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"])
def test_a_program_that_is_stopped_stops_the_ablation(tmp_path, monkeypatch, code):
    """A signal to the ablation goes to its program, which saves and says so; that is no failure, and is timed."""
    monkeypatch.setattr(once, "check_same", lambda *_, **__: None)
    command = [sys.executable, "-c", f"import os, signal, sys, time; {code}"]
    monkeypatch.setattr(once.stops, "wait", functools.partial(lambda wait, _: wait(command), once.stops.wait))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        once.run_once("grpo", "c.py", tmp_path / "run", [], tmp_path / cli.SPENT)
    assert end.value.code == once.stops.STOPPED and len(cli.read_jsonl(tmp_path / cli.SPENT)) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    command[-1] = "raise SystemExit(3)"
    with pytest.raises(subprocess.CalledProcessError):
        once.run_once("grpo", "c.py", tmp_path / "run", [], tmp_path / cli.SPENT)


def test_a_run_of_other_evaluations_or_of_another_program_is_refused(tmp_path):
    """A program may go on with either of the former two; a result may not pass for that of the other."""
    config, asked = "configs/tasks/arithmetic.py:smoke", ["--config.seed=3", "--config.eval.every=7", "--verbosity=1"]
    workdir = tmp_path / "run"
    write_metrics(workdir, [0.4, 0.9])
    (workdir / "config.json").write_text(json.dumps(origin.named(once.asked_for(config, asked).to_dict())))
    once.check_same("grpo", config, workdir, [*asked, "--config.mesh=fsdp:8"])
    once.check_same("sft", config, workdir, [*asked, "--config.train.steps=77"])
    with pytest.raises(origin.ChangedError, match="  eval.every: 7 -> "):
        once.check_same("grpo", config, workdir, asked[:1])
    with pytest.raises(origin.ChangedError, match="  seed: 3 -> 4"):
        once.check_same("sft", config, workdir, ["--config.seed=4"])
    once.check_same("grpo", config, workdir, asked[:1], free=("eval",))
    (workdir / "run.json").write_text(json.dumps({"algorithm": "ppo"}))
    with pytest.raises(origin.ChangedError, match="another program: ppo, not grpo"):
        once.check_same("grpo", config, workdir, asked)
    with pytest.raises(ValueError, match="config.sead"):
        once.asked_for(config, ["--config.sead=4"])
    (workdir / "final.json").unlink()
    once.check_same("grpo", config, workdir, [])  # nothing is kept of a run without a checkpoint


def test_the_arms_are_run_by_the_ablations_own_program(tmp_path, monkeypatch):
    calls = []

    def fake(command):
        calls.append(command[2:])
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        last = 0.9 + noise(folder) if folder.name == "hl_gauss" else 0.8 - noise(folder)
        write_metrics(folder, [0.2, last])

    monkeypatch.setattr(once.stops, "wait", lambda command: fake(command) or 0)
    assert cli.run("hl_gauss", tmp_path, [])["verdict"] == "reproduced"
    assert [call[0] for call in calls] == 5 * ["experiments.sft", "experiments.ppo", "experiments.ppo"]


def test_a_claim_about_calibration_needs_the_accuracy_too(tmp_path, monkeypatch, capsys):
    """`also` names a second metric: a lower Brier score is no merit if the answers are all wrong."""

    def fake(command):
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        ours, more = folder.name == "calibrated", noise(folder)
        write_metrics(folder, [0.4, 0.1 + more if ours else 0.5], brier=[0.35, 0.05 + more if ours else 0.3])

    monkeypatch.setattr(once.stops, "wait", lambda command: fake(command) or 0)
    outcome = cli.run("rlcr", tmp_path, [])
    assert outcome["values"]["calibrated"]["accuracy"] == pytest.approx([0.1] * len(outcome["seeds"]), abs=1e-4)
    assert outcome["values"]["plain"]["gain"] == pytest.approx([-0.05] * len(outcome["seeds"]))
    assert [row["verdict"] for row in outcome["statements"]] == ["reproduced", "not reproduced"]
    assert outcome["verdict"] == "not reproduced"


def test_stages_run_once_and_arms_begin_from_them(tmp_path, monkeypatch):
    """rlhf_ensemble: samples and reward models, then policies that rise and fall."""
    calls = []

    def fake(command):
        calls.append(command[2:])
        folder = pathlib.Path(command[4].removeprefix("--workdir="))
        more = noise(folder)
        gold = [0.5, 0.9, 0.8, 0.7] if folder.name == "ensemble" else [0.5, 0.9 + more, 0.6 - more, 0.5 - more]
        write_metrics(folder, gold, task=gold, reward=[-1.0, 0.0, 0.5, 1.0 + more])

    monkeypatch.setattr(once.stops, "wait", lambda command: fake(command) or 0)
    outcome = cli.run("rlhf_ensemble", tmp_path, [])
    assert [call[0] for call in calls[:9]] == ["experiments.best_of_n", *8 * ["experiments.reward_model"]]
    assert f"--config.data.path={tmp_path}/candidates/rankings.jsonl" in calls[8]
    six = {pathlib.Path(call[2].removeprefix("--workdir=")).name: call for call in calls if "/seed6/" in call[2]}
    programs = {name: call[0] for name, call in six.items()}
    assert programs == dict(single="experiments.ppo", ensemble="experiments.ppo", grpo="experiments.grpo")
    assert f"--config.judge.proxy.path={tmp_path}/reward_model_6" in six["single"]
    members = tuple(f"{tmp_path}/reward_model_{member}" for member in (6, 7, 0, 1, 2))
    assert f"--config.judge.proxy.path={members}" in six["ensemble"]
    assert not any("critic" in argument for argument in six["grpo"])
    of = {arm: {name: row[0] for name, row in metrics.items()} for arm, metrics in outcome["values"].items()}
    assert of["single"] == pytest.approx(
        dict(before=0.5, after=0.5, gain=0.0, peak=0.9, rise=0.4, lost=0.4, mean=2 / 3, proxy=1.0, proxy_gain=2.0)
    )
    assert of["ensemble"]["mean"] == pytest.approx(0.8) and outcome["verdict"] == "reproduced"


def test_a_gain_needs_two_evaluations(tmp_path):
    write_metrics(tmp_path / "run", [0.5])
    with pytest.raises(ValueError, match="evaluated 1 times"):
        cli.evaluations(tmp_path / "run", "eval/pass@1")


def test_an_evaluation_without_a_value_leaves_out_its_seed_only(tmp_path):
    write_metrics(tmp_path / "middle", [0.5, None, 0.75])
    of_middle = dict(before=0.5, after=0.75, gain=0.25, peak=None, rise=None, lost=None, mean=None)
    assert cli.curve(tmp_path / "middle", "eval/pass@1") == of_middle
    write_metrics(tmp_path / "last", [0.5, 0.75, None])
    found = cli.curve(tmp_path / "last", "eval/pass@1")
    assert found == dict.fromkeys(of_middle) | dict(before=0.5)


def test_list_names_the_claims(capsys):
    cli.main(["--list"])
    assert "arXiv 2507.10532" in capsys.readouterr().out
    cli.main(["--list", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in rows] == cli.keys()
    assert {row["kind"] for row in rows} == {"study", "programs"} and all(row["claim"] for row in rows)


def test_charts_escape_and_stand_alone():
    chart = interval_chart({"<a&b>": [1.0, 2.0, 4.0], "flat": [3.0, 3.0]}, title="x < y")
    root = ElementTree.fromstring(chart)
    assert root.get("aria-label").startswith("x < y. <a&b>: 2.33 [")
    few = ElementTree.fromstring(interval_chart({"none": [], "one": [1.0], "two": [1.0, 2.0]}, title="t"))
    assert len(few.findall(".//{*}circle")) == 3 and len(few.findall(".//{*}path")) == 1
    assert few.get("aria-label").startswith("t. two: 1.5 [")
    assert not ElementTree.fromstring(interval_chart({"none": []}, title="t")).findall(".//{*}circle")
    assert len(root.findall(".//{*}circle")) == 5 and "<a&b>" in [text.text for text in root.findall(".//{*}text")]
    lines = ElementTree.fromstring(curves_chart({"a": [(1, 0.0), (2, 1.0)], "b": [(1, 1.0), (2, 1.0)]}, title="t"))
    assert len(lines.findall(".//{*}path")) == 4


# --- Stored results --------------------------------------------------------------------------------------------------

STORED = sorted(cli.RESULTS.glob("*.json"))


def statements_of(ablation) -> set[str]:
    """The texts of an ablation's statements, by judging results in which every arm and metric stands."""
    arms = {arm for row in ablation.expected for arm in (row.get("increasing") or (row["arm"],))}
    metrics = {row["metric"] for row in ablation.expected}
    values = {arm: {metric: [0.0, 1.0] for metric in metrics} for arm in arms}
    return {row["statement"] for row in cli.judgements(values, ablation.expected)}


def test_every_claim_has_a_stored_result():
    assert [path.stem for path in STORED] == cli.keys()


@pytest.mark.usefixtures("no_shortfall")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_result_is_of_its_claim(path):
    found, ablation = json.loads(path.read_text()), cli.load(path.stem)
    assert (found["key"], found["paper"], found["claim"]) == (path.stem, ablation.paper, ablation.claim)
    assert found["metric"] == ablation.metric and found["verdict"] in ("reproduced", "not reproduced", "undecided")
    assert list(range(found["seeds"]["first"], found["seeds"]["last"] + 1)) == list(ablation.seeds)
    assert found["tried"] in (None, ablation.to_dict()["tried"]) and found["source"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
    assert found["command"] == f"python -m experiments.ablation {path.stem}"
    assert {row["statement"] for row in found["statements"]} <= statements_of(ablation)
    for interval in [*found["arms"].values(), *(row["interval"] for row in found["statements"])]:
        assert interval.get("low", interval["mean"]) <= interval["mean"] <= interval.get("high", interval["mean"])


def _step(number: float) -> float:
    """Half a unit in the last of three digits: what rounding may have taken from a number that is kept."""
    return 0.5 * 10.0 ** (np.floor(np.log10(abs(number))) - 2) if number else 0.0


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_arms_are_of_the_metric_that_is_named(path):
    """A mean of one arm, or the difference of two, is that of the statement about them, unless seeds were left out."""
    found = json.loads(path.read_text())
    metric = re.escape(found["metric"])
    for row in found["statements"]:
        two = re.fullmatch(rf"{metric}: (\S+) < (\S+)(?: by \S+)?", row["statement"])
        one = re.fullmatch(rf"{metric} of (\S+) at .*", row["statement"])
        if not (two or one) or row.get("dropped"):
            continue
        means = [found["arms"][arm]["mean"] for arm in ((two[2], two[1]) if two else (one[1],))]
        rounding = 1.01 * sum(map(_step, [row["interval"]["mean"], *means]))
        assert means[0] - sum(means[1:]) == pytest.approx(row["interval"]["mean"], abs=rounding), row["statement"]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_verdict_is_that_of_its_intervals(path):
    """Judged anew from the rounded intervals: each statement's text says which side is claimed."""
    found, verdicts = json.loads(path.read_text()), []
    statements, seeds = len(statements_of(cli.load(path.stem))), found["seeds"]["last"] - found["seeds"]["first"] + 1
    for row in found["statements"]:
        interval, bounds = stats.Interval(**row["interval"]), {}
        for name, number in re.findall(r"(at least|at most|by) (-?[\d.]+(?:e-?\d+)?)", row["statement"]):
            bounds["at_most" if name == "at most" else "at_least"] = float(number)
        if " < " in row["statement"]:
            bounds.setdefault("at_least", 0.0)
        said = stats.judge(interval, **bounds)
        if said == "not reproduced":
            said = stats.judge(stats.widened(interval, seeds, statements), **bounds)
        verdicts.append(said)
        assert ("more_seeds" in row) <= (said == "undecided")
    assert found["verdict"] == stats.judge_all(verdicts)


def test_the_table_of_a_clone_has_every_claim(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "RUNS", tmp_path)
    cli.main(["--table"])
    table = capsys.readouterr().out
    head, _, _, _, _, *rows = table.splitlines()
    assert head.startswith(f"{len(STORED)} claims: ") and len(rows) == len(STORED) >= 28
    page = (REPO_ROOT / "docs/pages/results.md").read_text()
    for path, row in zip(STORED, rows, strict=True):
        key = path.stem
        assert row.endswith(f" | {key} |"), "a table for the terminal has no links"
        assert row.removesuffix(f"{key} |") + f"[{key}](results_by_claim.md#{key}) |" in page, "the table of the docs"
    cli.main(["--table", "--smoke"])
    assert capsys.readouterr().out.startswith("No results yet: run python -m experiments.ablation KEY")


def test_the_table_leaves_out_what_is_of_other_settings(a_toy, tmp_path, monkeypatch, capsys):
    """A smoke run, and one of the claim as it was before, in the folder that --table reads."""
    monkeypatch.setattr(cli, "RUNS", tmp_path / "runs")
    stored = tmp_path / "stored"
    stored.mkdir()
    monkeypatch.setattr(cli, "RESULTS", stored)
    folder = tmp_path / "runs" / "ablations" / "toy"

    def table():
        capsys.readouterr()
        cli.main(["--table"])
        return capsys.readouterr()

    a_toy()
    cli.main(["toy", f"--workdir={folder}", "--smoke"])
    assert table().out.startswith("No results yet")
    (stored / "toy.json").write_text(json.dumps(json.loads(STORED[0].read_text()) | {"key": "toy", "claim": "of old"}))
    said = table()
    assert "Of old" in said.out and f"{folder / 'ablation.json'} is of other settings" in said.err
    shutil.rmtree(folder)
    cli.main(["toy"])
    said = table()
    assert "A < b" in said.out and not said.err
    a_toy(0.5)
    assert "Of old" in table().out


def test_the_table_of_one_claim_has_every_statement(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "RUNS", tmp_path)

    def table_of(key):
        cli.main([key, "--table"])
        return capsys.readouterr().out

    said = table_of("clip_higher")
    assert "higher with an upper clip of .28 than with one of .2 (arXiv 2503.14476): **reproduced**." in said
    assert (
        "100 seeds (0 to 99), 2026-11-22, 0.4 min, 12 settings tried per arm, from the README of commit 4200538. "
        "Arms, entropy: higher 0.966 [0.896, 1.04]; symmetric 0.725 [0.65, 0.8].\n" in said
    )
    assert "| `entropy: symmetric < higher` | 0.241 [0.161, 0.321] |" in said
    assert "; undecided, 21 more seeds (power) or 20 (AdaStop, 89% decided) |" in table_of("tis_mismatch")
    old = "gain: hl_gauss 0.46; mse 0.461 (means of runs made before the statement had an interval;"
    assert old in table_of("hl_gauss")
    assert table_of("best_seed") in (REPO_ROOT / "docs/pages/results_by_claim.md").read_text()


def test_a_run_comes_before_a_stored_result(a_toy, tmp_path, monkeypatch, capsys):
    a_toy()
    stored = tmp_path / "stored"
    stored.mkdir()
    text = STORED[0].read_text()
    (stored / "toy.json").write_text(json.dumps(json.loads(text) | {"key": "toy", "claim": "of old"}))
    monkeypatch.setattr(cli, "RESULTS", stored)
    monkeypatch.setattr(cli, "RUNS", tmp_path / "runs")
    cli.main(["--table"])
    assert "Of old" in capsys.readouterr().out
    cli.main(["toy"])
    capsys.readouterr()
    cli.main(["--table"])
    said = capsys.readouterr().out
    assert "Of old" not in said and "`error: a < b`: 1.01 [0.985, 1.03]" in said


@pytest.fixture
def stored_toy(a_toy, tmp_path, monkeypatch):
    """Makes the toy study's ablation anew, and returns the path of its stored result, which is not there yet."""
    monkeypatch.setattr(cli, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(cli, "RESULTS", tmp_path / "stored")
    (tmp_path / "stored").mkdir()
    a_toy()
    return tmp_path / "stored" / "toy.json"


def said_by(capsys, *arguments: str) -> str:
    capsys.readouterr()
    cli.main(list(arguments))
    return capsys.readouterr().out


def test_a_finished_result_is_stored_and_read_back(stored_toy, tmp_path, monkeypatch, capsys):
    said_by(capsys, "toy")
    table = said_by(capsys, "--table")
    assert said_by(capsys, "toy", "--store").startswith(f"{stored_toy}\n")
    shutil.rmtree(tmp_path / "runs")
    assert said_by(capsys, "--table") == table and "`error: a < b`: 1.01 [0.985, 1.03]" in table

    found = json.loads(stored_toy.read_text())
    other = json.loads((STORED[0].parent / "asynchronous_speed.json").read_text())
    assert list(found) == [*other, "note"] and stored_toy.read_text() == json.dumps(found, indent=1) + "\n"
    assert found["arms"]["a"] == dict(mean=0.01, low=-0.0148, high=0.0348) and found["seeds"] == dict(first=0, last=2)
    assert [list(row) for row in found["statements"]] == [["statement", "interval"]]
    assert found["wall_minutes"] == 0.1 and found["source"].startswith("run of the command on ")
    for test in (
        test_a_stored_result_is_of_its_claim,
        test_stored_arms_are_of_the_metric_that_is_named,
        test_a_stored_verdict_is_that_of_its_intervals,
    ):
        test(stored_toy)

    spec = importlib.util.spec_from_file_location("results", REPO_ROOT / "docs" / "results.py")
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    monkeypatch.setattr(reader, "STORED", stored_toy.parent)
    monkeypatch.setattr(reader, "PAGES", tmp_path)
    for name in ("results.md", "results_by_claim.md"):
        (tmp_path / name).write_text(f"before {reader.BEGIN}\n{reader.END} after")
    short, by_claim = reader.written().values()
    assert short.endswith(" | 3 | [toy](results_by_claim.md#toy) |\n<!-- END --> after")
    assert "3 seeds (0 to 2), 20" in by_claim and "a 0.01 [-0.0148, 0.0348]; b 1.02 [0.97, 1.07] (the seeds" in by_claim


def test_only_a_finished_run_of_the_files_settings_is_stored(stored_toy, a_toy, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs" / "ablations" / "toy"

    def refused(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            cli.main(["toy", "--store", *arguments])
        assert end.value.code == 2 and not stored_toy.exists()
        return capsys.readouterr().err

    assert f"{folder / 'ablation.json'} does not exist: run python -m experiments.ablation toy to its end" in refused()
    for other in ("--smoke", "--table", "--config.x=1"):
        assert "--store goes with a KEY alone" in refused(other)
    cli.main(["toy", f"--workdir={folder}", "--smoke"])
    assert "not of the settings of configs/papers/toy.py (of a smoke run," in refused()
    cli.main(["toy"])
    a_toy(2.0)  # the file has changed
    assert "not of the settings of configs/papers/toy.py" in refused()
    a_toy()
    ablation = toy_ablation(1.0)
    ablation.arms = dict(a="a.py", b="b.py")
    (folder / "seed1" / "b").mkdir(parents=True)
    settings = cli.settings_text(toy_ablation(1.0), [])
    with pytest.raises(ValueError, match="seed1/b; run python -m experiments.ablation toy"):
        cli.store("toy", ablation, settings, folder, stored_toy.parent)
    (folder / "seed1" / "b" / "final.json").touch()
    cli.store("toy", ablation, settings, folder, stored_toy.parent)
    assert stored_toy.exists()


def test_stored_numbers_have_the_digits_that_their_verdict_takes():
    """Three, unless an end then lies on the bound, or both ends are one."""
    ablation = ConfigDict(dict(expected=[dict(metric="error", arm="good", at_least=0.8)]))
    values = {"good": {"error": [0.8, 1.1]}, "same": {"error": [1.0, 1.0 + 1e-6]}}

    def kept(low: float, seeds=(0, 1), **more) -> dict:
        row = dict(statement="s", interval=dict(mean=0.95123, low=low, high=1.1), verdict="reproduced", dropped=0)
        names = dict.fromkeys(("key", "paper", "claim", "verdict", "tried", "command", "date"), "x")
        result = dict(metric="error", seeds=list(seeds), values=values, ranges={}, statements=[row], note="")
        return to_store(names | result | dict(wall_seconds=90.0) | more, ablation)

    assert kept(0.80512)["statements"][0]["interval"] == dict(mean=0.951, low=0.805, high=1.1)
    assert kept(0.80012)["statements"][0]["interval"] == dict(mean=0.9512, low=0.8001, high=1.1)
    assert kept(0.9)["arms"]["same"]["low"] < kept(0.9)["arms"]["same"]["high"] and kept(0.9)["wall_minutes"] == 1.5
    assert "note" not in kept(0.9) and kept(0.9, note="n")["note"] == "n"
    with pytest.raises(ValueError, match=r"consecutive seeds can be stored, not \[0, 2\]"):
        kept(0.9, seeds=(0, 2))
    values["same"]["error"][0] = None
    with pytest.raises(ValueError, match="error of same has a value with 1 seeds"):
        kept(0.9)
