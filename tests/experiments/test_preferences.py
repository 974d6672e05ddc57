"""The frontier: its arithmetic and its picture on made-up results, its arms, and the whole at the smallest size."""

import contextlib
import json
import os
import re
import signal
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs.preferences import frontier as frontier_config
from experiments.frontier import cli, curves
from experiments.parts import trackers
from experiments.parts.sample_candidates import Candidates
from experiments.parts.setup import Setup
from rl_jax.core.types import Rollout, TokenBatch
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


def point(method, kl, reward, setting="beta 0.1", step=10):
    return {
        "method": method,
        "setting": setting,
        "step": step,
        "reward": reward,
        "reward_se": 0.01,
        "kl": kl,
        "kl_se": 0.1,
        "kl_per_token": kl / 64,
    }


POINTS = [
    point("DPO", 1.0, 0.60),
    point("DPO", 4.0, 0.75, step=20),
    point("DPO", 2.0, 0.55, "beta 0.3"),
    point("best <of> n", 0.3, 0.58, "n 2", step=0),
    point("DPO", 9.0, 0.70, step=30),
    point("GRPO", 6.0, 0.80),
]


def test_sequence_kl_is_the_mean_log_ratio_of_sequences():
    mask = np.array([[True, True, False], [True, False, False], [True, True, True]])
    ratios = np.array([[0.5, 1.0, np.nan], [0.25, 7.0, -9.0], [-0.5, 0.5, 1.0]])
    found = curves.sequence_kl(ratios, mask)
    totals = [1.5, 0.25, 1.0]
    assert found["kl"] == pytest.approx(np.mean(totals))
    assert found["kl_se"] == pytest.approx(np.std(totals, ddof=1) / np.sqrt(3))
    assert found["kl_per_token"] == pytest.approx(2.75 / 6)


def test_sequence_kl_of_samples_is_the_exact_kl():
    """Two categorical policies over two tokens of a sequence: the estimate agrees with the sum over all sequences."""
    rng = np.random.default_rng(0)
    policy, reference = rng.dirichlet(np.ones(4), size=2), rng.dirichlet(np.ones(4), size=2)
    exact = (policy * np.log(policy / reference)).sum()
    drawn = np.stack([rng.choice(4, p=p, size=20_000) for p in policy], axis=1)
    ratios = np.log(policy / reference)[np.arange(2)[None], drawn]
    found = curves.sequence_kl(ratios, np.ones(ratios.shape, bool))
    assert abs(found["kl"] - exact) < 4 * found["kl_se"] < 0.1
    assert found["kl_per_token"] == pytest.approx(found["kl"] / 2)


def test_the_samples_of_a_prompt_are_no_independent_values():
    values = np.array([1.0, 3.0, 2.0, 2.0, 5.0, 7.0])
    assert curves.standard_error(values, 2) == pytest.approx(np.std([2, 2, 6], ddof=1) / np.sqrt(3))
    assert curves.standard_error(values[:1]) == 0.0
    ratios, mask = values.reshape(6, 1), np.ones((6, 1), bool)
    assert curves.sequence_kl(ratios, mask, 2)["kl_se"] == pytest.approx(curves.standard_error(values, 2))


def test_best_within_a_budget():
    assert curves.best_within(POINTS, "DPO", 0.5) is None
    assert curves.best_within(POINTS, "DPO", 1.0)["reward"] == 0.60
    assert curves.best_within(POINTS, "DPO", 3.9)["reward"] == 0.60
    assert curves.best_within(POINTS, "DPO", np.inf)["step"] == 20


def test_the_frontier_leaves_out_what_less_kl_beats():
    assert [p["kl"] for p in curves.frontier(POINTS, "DPO")] == [1.0, 4.0]
    assert curves.methods_of(POINTS) == ["DPO", "best <of> n", "GRPO"]


def test_the_table():
    lines = curves.table(POINTS, [1, 5]).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[0] == ["method", "KL <= 1", "KL <= 5", "best point"]
    assert rows[2] == ["DPO", "0.600 ± 0.010", "0.750 ± 0.010", "0.750 at 4.00 nats (beta 0.1, step 20)"]
    assert rows[4][:3] == ["GRPO", "-", "-"] and len({len(row) for row in rows}) == 1


def test_labels_are_spread_in_their_order():
    places = [50.0, 52.0, 51.0, 200.0, 395.0, 396.0]
    found = curves.spread(places, 15, 0, 400)
    order = np.argsort(places)
    assert (np.diff(np.array(found)[order]) >= 15 - 1e-9).all() and max(found) <= 400 and min(found) >= 0
    assert found[3] == 200.0


def test_the_picture_is_svg_that_says_what_it_shows():
    text = curves.picture(POINTS, title="a & b", baseline=0.5)
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg" and "a & b" in root.get("aria-label")
    labels = [node.text for node in root.iter(f"{space}text") if node.get("class", "").startswith("name")]
    assert labels == ["DPO", "best <of> n", "GRPO"]
    titles = [node.text for node in root.iter(f"{space}title")]
    for p in POINTS:
        words = f"{p['method']}, {p['setting']}, step {p['step']}: reward {p['reward']:.3f}"
        assert any(title.startswith(words) for title in titles)
    assert "prefers-color-scheme:dark" in text and "nan" not in text
    numbers = [float(n) for n in re.findall(r'(?:cx|cy|x1|x2|y1|y2)="([-\d.]+)"', text)]
    assert min(numbers) >= 0 and max(numbers) <= curves.WIDTH


def test_the_picture_puts_points_where_they_belong():
    """x is sqrt(KL), y falls with the reward; each method has its own colour and its own shape."""
    points = [point("A", 0.0, 0.2), point("A", 1.0, 0.4), point("A", 4.0, 0.8), point("B", 1.0, 0.4)]
    text = curves.picture(points, title="t")
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.6"', text)[:3]
    (x0, y0), (x1, y1), (x2, y2) = [(float(x), float(y)) for x, y in circles]
    assert x2 - x0 == pytest.approx(2 * (x1 - x0), abs=0.2) and (y0 - y2) == pytest.approx(3 * (y0 - y1), abs=0.4)
    assert 'class="line m0"' in text and 'class="line m1"' in text
    assert len(set(curves.MARKERS)) == len(curves.MARKERS) >= 8
    assert len({c for pair in curves.COLOURS for c in pair}) == 2 * len(curves.COLOURS)


def test_one_point_at_no_kl_draws():
    ElementTree.fromstring(curves.picture([point("A", 0.0, 0.5)], title="t"))


@pytest.mark.parametrize("lost", [dict(kl=np.nan), dict(reward=np.nan), dict(kl=np.inf)], ids=str)
def test_a_point_that_is_not_finite_is_left_out(lost, tmp_path):
    config = frontier_config.get_config("smoke")
    first, second, *_ = config.frontier.arms
    results = cli.Results(config, tmp_path, {"reference": "k0", first: "k1", second: "k2"})
    results.add("reference", [point("reference", 0.0, 0.5)], 1.0)
    results.add(first, [point("DPO", 1.0, 0.6), point("DPO", 2.0, 0.9, step=20) | lost], 1.0)
    results.add(second, [point("GRPO", 1.0, 0.7) | lost], 1.0)
    text = (tmp_path / "frontier.md").read_text()
    assert "| 0.600 at 1.00 nats (beta 0.1, step 10) |" in text and "| GRPO | - | - |" in text
    assert "Left out, as their reward or KL is not finite: DPO (beta 0.1, step 20), GRPO (beta 0.1, step 10)." in text
    svg = (tmp_path / "frontier.svg").read_text()
    assert "GRPO" not in svg and "nan" not in svg and "inf" not in svg
    assert ElementTree.fromstring(curves.picture([point("A", 1.0, 0.5) | lost], title="t")).tag.endswith("svg")


def test_kl_and_length_end_where_the_scored_text_does(monkeypatch):
    """At a stop string: judge cuts the rows there, and what follows is no part of what is measured."""
    eval_fields = dict(samples_per_prompt=1, batch_size=2, num_prompts=2)
    config = ConfigDict(dict(seed=0, eval=eval_fields, rollout=dict(completion_length=3), score=dict(chunk=1)))
    ends = np.array([[True, False, False], [True, True, False]])

    def judged(setup, scorer, rollout, records):
        result = SimpleNamespace(rewards=np.array([0.0, 1.0]))
        return SimpleNamespace(result=result, rollout=rollout._replace(completion_mask=ends))

    log_probs = np.array([[0.5, 9.0, 9.0], [0.25, 0.25, 9.0]])
    rollout = Rollout(*[None] * len(Rollout._fields))
    rollout = rollout._replace(raw_log_probs=log_probs, completion_mask=np.ones((2, 3), bool))
    scores = SimpleNamespace(log_probs=np.zeros((2, 3)))
    task = SimpleNamespace(data_source=lambda split: None)
    monkeypatch.setattr(cli, "lockstep_sampler", lambda setup, size: lambda *arguments: rollout)
    monkeypatch.setattr(cli, "make_score", lambda *arguments, **options: None)
    monkeypatch.setattr(cli, "jit_score", lambda *arguments: lambda params, batch: scores)
    monkeypatch.setattr(cli, "encode_prompts", lambda setup, records: (None, None))
    monkeypatch.setattr(cli.pipeline, "eval_batches", lambda *arguments: [[{}, {}]])
    monkeypatch.setattr(cli, "judge", judged)
    found = cli.make_measure(SimpleNamespace(config=config, task=task, model=None), None, None)(None)
    assert found["length"] == 1.5 and found["kl"] == pytest.approx(0.5)


def test_an_online_arm_of_another_reference_is_another_run(monkeypatch, tmp_path):
    """Its folder depends on the reference: a finished run that started from an older one is not measured for it."""
    config, folders = frontier_config.get_config("smoke"), []
    with config.unlocked():
        config.frontier.arms = ("GRPO_KL_0p1",)

    def train(setup, program, folder, measure, points, stop):
        folders.append(folder)
        return [point("GRPO", 1.0, 0.7)]

    monkeypatch.setattr(cli, "train_online", train)
    monkeypatch.setattr(cli, "make_measure", lambda *arguments: lambda params: dict(reward=0.5, reward_se=0.1, kl=0.0))
    monkeypatch.setattr(cli, "best_of_points", lambda *arguments: [point("best of n", 0.1, 0.6)])
    setup = Setup(*[None] * len(Setup._fields))._replace(config=config)
    for number in (0.0, 0.0, 1.0):
        (tmp_path / "frontier.json").unlink(missing_ok=True)
        cli.run_arms(setup, None, {"w": np.full(2, number)}, tmp_path, SimpleNamespace(received=False))
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.usefixtures("kept_signals")
def test_a_signal_between_two_arms_ends_the_frontier(monkeypatch, tmp_path):
    """What was measured when it came is kept, and the status says that the same command goes on."""
    config, noted = frontier_config.get_config("smoke"), []

    def measured(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return [point("best of n", 0.1, 0.6)]

    setup = Setup(*[None] * len(Setup._fields))._replace(config=config)
    monkeypatch.setattr(cli, "make_setup", lambda config: setup)
    monkeypatch.setattr(cli, "make_rewards", lambda setup: contextlib.nullcontext())
    monkeypatch.setattr(cli, "warm_start", lambda *_: {"w": np.zeros(2)})
    monkeypatch.setattr(cli, "make_measure", lambda *_: lambda params: dict(reward=0.5, reward_se=0.1, kl=0.0))
    monkeypatch.setattr(cli, "best_of_points", measured)
    for name in ("train_online", "train_offline"):
        monkeypatch.setattr(cli, name, lambda *_: pytest.fail("an arm after the signal"))
    monkeypatch.setattr(cli.stops, "note", lambda: noted.append(1))
    monkeypatch.setattr(cli.jax.config, "update", lambda *_: None)
    cli.run(config, tmp_path)
    cli.disk.unlock(tmp_path)
    assert noted and set(json.loads((tmp_path / "frontier.json").read_text())) == {"reference", "best_of_n"}


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.reward.update(terms=dict(longer=dict(fn="form.longer", cap=50))),
        lambda c: c.judge.update(friend=dict(fn="letters")),
        lambda c: c.update(seed=7),
    ],
)
def test_what_another_reward_judged_is_measured_again(monkeypatch, tmp_path, change):
    """The reference, its best of n and the samples of the offline arms, too."""
    config, done, two = frontier_config.get_config("smoke"), [], np.zeros((1, 2))
    candidates = Candidates(TokenBatch(two, two, two), two, two, two, two)
    with config.unlocked():
        config.frontier.arms = ("DPO_beta_0p1",)

    def of(name, *values):
        return lambda *arguments: done.append(name) or [point(name, *values)]

    monkeypatch.setattr(cli, "make_measure", lambda *_: lambda params: done.append("reference") or POINTS[0])
    monkeypatch.setattr(cli, "best_of_points", of("best of n", 0.1, 0.6))
    monkeypatch.setattr(cli, "train_offline", lambda setup, candidates, *_: candidates() and [point("DPO", 1.0, 0.6)])
    monkeypatch.setattr(cli, "Source", lambda *_: lambda *_: (done.append("candidates") or candidates, {}))
    monkeypatch.setattr(cli, "make_judge", lambda *_: None)
    monkeypatch.setattr(cli, "make_prompts", lambda *_, **__: None)
    task = SimpleNamespace(data_source=lambda split: None)
    setup = Setup(*[None] * len(Setup._fields))._replace(config=config, task=task)
    every = ["reference", "best of n", "candidates"]
    for wanted in (every, [], every):
        done.clear()
        cli.run_arms(setup, None, {"w": np.zeros(2)}, tmp_path, SimpleNamespace(received=False))
        assert done == wanted
        if not wanted:
            with config.unlocked():
                change(config)


@pytest.mark.parametrize("name", frontier_config.arms())
def test_every_arm_is_a_config_of_its_program(name):
    config = frontier_config.get_config()
    found, arm = cli.arm_config(config, name), config.arms[name]
    assert found.program == arm.program and ("critic" in found) == (arm.program == "ppo")
    assert ("link" in found.algorithm) == (arm.program == "dpo")
    assert not {"arms", "programs", "frontier"} & set(found)
    if found.program in ("grpo", "ppo"):  # which read these groups in every step
        assert {"schedules", "foreign"} <= set(found)
        assert set(trackers.make_trackers(found)) == set(), "no tracker by default"
    for group, fields in arm.fields.to_dict().items():
        assert {field: found.to_dict()[group][field] for field in fields} == fields
    if arm.program == "dpo":
        objective = cli.preference_steps.make_objective(found)
        assert objective.beta == found.algorithm.beta
    else:
        assert found.checkpoint.keep >= found.train.steps // found.checkpoint.every


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.frontier.update(arms=("DPO",)), "'DPO' is none of DPO_beta_0p1"),
        (lambda c: c.arms.DPO_beta_0p1.fields.algorithm.update(betta=1.0), "config.algorithm has no field 'betta'"),
    ],
)
def test_a_wrong_arm_is_refused(change, said):
    config = frontier_config.get_config()
    with config.unlocked():
        change(config)
    with pytest.raises(ValueError, match=said):
        for name in config.frontier.arms:
            cli.arm_config(config, name)


@pytest.mark.parametrize(("steps", "points"), [(48, 10), (48, 4), (7, 4), (3, 4), (1, 1)])
def test_every_checkpoint_that_is_measured_is_kept(steps, points):
    config = frontier_config.get_config()
    with config.unlocked():
        config.frontier.points = points
        config.programs.grpo.train.steps = steps
    found = cli.arm_config(config, "GRPO_KL_0p1")
    measured, settings = cli.measured_steps(steps, points), found.checkpoint
    assert measured[-1] == steps == found.train.steps and len(measured) <= points
    assert len({b - a for a, b in zip([0, *measured[:-1]], measured[:-1], strict=False)}) <= 1
    saved = [step for step in range(1, steps + 1) if step % settings.every == 0 or step == steps]
    assert set(measured) <= set(saved) and len(saved) <= settings.keep


def test_the_smoke_config_runs_one_arm_of_each_kind():
    config = frontier_config.get_config("smoke")
    arms = [config.arms[name] for name in config.frontier.arms]
    assert {arm.program for arm in arms} == {"dpo", "grpo", "ppo"}


def test_results_are_kept_by_what_they_were_made_of(tmp_path):
    config = frontier_config.get_config("smoke")
    name, other, *_ = config.frontier.arms
    keys = {"reference": "k0", name: "k1", other: "k1"}
    first = cli.Results(config, tmp_path, keys)
    first.add("reference", [point("reference", 0.0, 0.5)], 1.0)
    assert not (tmp_path / "frontier.md").exists()
    first.add(name, POINTS[:2], 60.0)
    assert cli.Results(config, tmp_path, keys).has(name) and not cli.Results(config, tmp_path, keys).has(other)
    assert json.loads((tmp_path / "frontier.json").read_text())[name]["points"] == POINTS[:2]
    text = (tmp_path / "frontier.md").read_text()
    assert "The reference: 0.500 ± 0.010" in text and "Measured in 1.0 minutes" in text and "| DPO | " in text
    ElementTree.fromstring((tmp_path / "frontier.svg").read_text())
    changed = cli.Results(config, tmp_path, keys | {name: "k2"})
    changed.add(other, [point("GRPO", 1.0, 0.7)], 60.0)
    text = (tmp_path / "frontier.md").read_text()
    assert "| GRPO | " in text and "| DPO | " not in text
