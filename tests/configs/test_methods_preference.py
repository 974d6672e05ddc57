"""Every file of configs/methods/preferences: what it says, what it builds, that it learns."""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import preference_steps
from experiments.tools import methods
from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch
from rl_jax.testing import preference_probes as probes
from tests.preference_probes import of_config

FAMILY = methods.FAMILIES["preference"]
KEYS = methods.keys("preference")
every_method = pytest.mark.parametrize("key", KEYS)
# One of each kind without waiting; the others with the slow tests.
QUICK = ("dpo", "ipo", "simpo", "orpo", "kto", "bco", "aot", "beta_dpo", "tdpo2", "wpo", "lipo", "sppo", "nash_md")
EACH = [pytest.param(key, marks=() if key in QUICK else pytest.mark.slow) for key in KEYS]


# What the files say.


def test_there_is_one_file_a_method():
    assert len(KEYS) == len(set(KEYS)) >= 60
    assert not set(KEYS) & set(methods.keys("online"))
    assert sorted(KEYS) == sorted(p.stem for p in FAMILY.folder.glob("*.py") if p.stem not in ("__init__", "_start"))


@every_method
def test_a_file_is_short_and_says_what_it_is(key):
    text = (FAMILY.folder / f"{key}.py").read_text(encoding="utf-8")
    assert 10 <= len(text.splitlines()) <= 25
    said = methods.read_docstring(methods.module_of(key).__doc__, FAMILY.departs)
    assert re.search(r"arXiv \d{4}\.\d{5}", said.source)
    assert re.search(r"[=<>]", said.equation)
    runs = "online_dpo" if "sample" in methods.load(key) else "dpo"
    assert said.command == f"python -m experiments.{runs} --config=configs/methods/preferences/{key}.py"


# What they build.


@every_method
@pytest.mark.parametrize("smoke", ["", "smoke"])
def test_a_method_starts_from_its_task(key, smoke):
    config = methods.load(key, smoke)
    samples = "sample" in config and config.sample.data != "pairs"
    given = "rankings" if "sample" not in config and config.algorithm.responses > 2 else "moods"
    assert config.name == f"{key}_{'arithmetic' if samples else given}" + "_smoke" * bool(smoke)
    plain = methods.load("online_dpo" if samples else "dpo", smoke)
    for name in ("steps", "batch_size", "optimizer", "micro_batches", "max_grad_norm"):
        assert config.train[name] == plain.train[name], "sizes and rates are the task's"


@every_method
def test_an_unknown_word_is_refused(key):
    with pytest.raises(ValueError, match="'smokee'.*smoke"):
        methods.load(key, "smokee")


def test_data_without_rankings_are_refused():
    assert methods.load("simpo", "persona").name == "simpo_persona"
    assert methods.load("sppo", "stories,smoke").name == "sppo_stories_smoke"
    assert methods.load("dpo_pl", "solutions").data.name == "gsm8k_solutions"
    with pytest.raises(ValueError, match="'persona'.*rankings, solutions"):
        methods.load("dpo_pl", "persona")
    with pytest.raises(ValueError, match="one data set, not 2: hh, persona"):
        methods.load("simpo", "persona,hh")


def test_wpo_weighs_no_pair_more_than_dpo():
    """The authors' bound: answers that the policy prefers to its samples are worth 1."""
    weight = preference_steps.make_objective(methods.load("wpo")).weight
    response_weights = jnp.array([[0.5, 0.5], [2.0, 1.5]])
    found = weight(jnp.ones(2), response_weights=response_weights, present=jnp.ones((2, 2), bool))
    np.testing.assert_allclose(found, [0.25, 1.0])


def test_no_two_methods_are_the_same():
    said = {}
    for key in KEYS:
        config = methods.load(key)
        with config.unlocked():
            del config["name"]
        said.setdefault(config.to_json_best_effort(sort_keys=True), []).append(key)
    assert [keys for keys in said.values() if len(keys) > 1] == []


@every_method
def test_every_keyword_is_one_that_the_function_has(key):
    """Binding refuses a misspelt function or keyword, the start a misspelt field."""
    for slot, fn in methods.bound_functions(methods.load(key)).items():
        assert callable(fn), slot


def test_a_misspelt_field_is_refused():
    start = methods.importlib.import_module("configs.methods.preferences._start")
    with pytest.raises(ValueError, match="config.algorithm has no field 'linc'.*link"):
        start.dpo("x", None, linc=dict(fn="hinge"))
    with pytest.raises(ValueError, match="config.sample has no field 'pair_selectoin'.*pair_selection"):
        start.online_dpo("x", None, online=dict(pair_selectoin={}))


# The assembled loss.


class Made(NamedTuple):
    """A method's probe and its compiled gradient: one program for a step's tests and for training."""

    probe: probes.Probe
    gradient: Callable


# Weights for a table in which each answer is the chosen one of some pairs: published ones hold it where it is.
WEIGHTS = {"cpl_bc": {"regularizer_coef": 0.02}, "dpop": {"score_map": {"fn": "positive", "penalty": 0.5}}}


def config_of(key: str):
    """A method's config with the weights of the probe."""
    config = methods.load(key)
    for name, value in WEIGHTS.get(key, {}).items():
        config.algorithm[name] = value
    return config


@functools.cache
def made(key: str) -> Made:
    probe = of_config(config_of(key))
    return Made(probe, probes.make_gradient(probe.objective))


class Step(NamedTuple):
    """A batch of the assembled method, off the reference, a row cut short.

    table: float [N, K, C], log-probs, nan behind the mask, as are those of the batch. clean: the batch without nan.
    """

    table: np.ndarray
    more: dict
    batch: PreferenceBatch
    clean: PreferenceBatch
    mask: np.ndarray


@functools.cache
def one_step(key: str) -> Step:
    rng, probe = np.random.default_rng(7), made(key).probe
    logits = probes.start() + jnp.asarray(rng.normal(0, 0.5, probes.REWARDS.shape), jnp.float32)
    rows = probe.sample(rng, logits) if probe.sample else probes.given(rng, probe.responses)
    present = np.array(rows.batch.present)
    if present.shape[1] > 2:
        present[0, -1] = False
    rows = rows._replace(batch=rows.batch._replace(present=present))
    before = probes.start() + 0.7 * (logits - probes.start())
    clean = probes.complete(probe, rows, before, probe.init(), poison=False)[0].batch
    poisoned = probes.complete(probe, rows, before, probe.init())[0].batch
    table, more = jax.tree.map(np.asarray, probes.forward(logits, rows.prompts, rows.actions))
    return Step(table, more, poisoned, clean, np.asarray(clean.completion_mask & present[:, :, None]))


def assert_sums(whole, parts):
    """Totals, counts and gradients of the parts, each [N, ...], give those of the whole."""
    (total, count, gradient), (totals, counts, gradients) = whole, zip(*parts, strict=True)
    np.testing.assert_allclose(sum(totals) / sum(counts), total / count, rtol=1e-5)
    assert sum(counts) == count
    largest = np.abs(gradient[0]).max()
    np.testing.assert_allclose(sum(x[0] for x in gradients), gradient[0], rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.slow
@every_method
def test_one_step_is_finite_and_does_not_look_behind_the_mask(key):
    step, gradient = one_step(key), made(key).gradient
    value, count, (by_table, _) = gradient(np.nan_to_num(step.table), step.more, step.clean)
    assert np.isfinite(value) and np.isfinite(by_table).all()
    assert np.abs(by_table / count).max() > 1e-6
    poisoned, _, (poisoned_by_table, _) = gradient(step.table, step.more, step.batch)
    np.testing.assert_array_equal(poisoned, value)
    np.testing.assert_array_equal(poisoned_by_table, by_table)
    np.testing.assert_array_equal(np.asarray(by_table)[~step.mask], 0)


@every_method
def test_micro_batches_change_nothing(key):
    """Of the same program, so that nothing is compiled for it: the rows of the other micro-batches are absent."""
    step, gradient = one_step(key), made(key).gradient
    parts = []
    for part in range(2):
        mine = np.arange(len(step.table)) % 2 == part  # as train._deal does it: row i goes to part i % parts
        present = step.batch.present & mine[:, None]
        parts.append(gradient(step.table, step.more, step.batch._replace(present=present)))
    assert_sums(gradient(step.table, step.more, step.batch), parts)


@pytest.mark.parametrize("key", QUICK)
def test_micro_batches_of_fewer_rows_change_nothing(key):
    """Really half as many rows, for one method of each kind: another program each."""
    step, gradient = one_step(key), made(key).gradient
    given = step.table, step.more, step.batch
    halves = [gradient(*jax.tree.map(lambda x, i=part: x[i::2], given)) for part in range(2)]
    total, count, (by_table, _) = gradient(*given)
    joined = np.stack([by_table[0::2], by_table[1::2]])
    np.testing.assert_allclose(sum(half[0] for half in halves), total, rtol=1e-5)
    assert sum(half[1] for half in halves) == count
    found = np.stack([half[2][0] for half in halves])
    np.testing.assert_allclose(found, joined, rtol=1e-4, atol=1e-5 * np.abs(joined).max())


# That they learn.

GAIN = 0.1  # in the probability of a good answer, which starts at a half
# Where the pull of the pairs is bent or held: a likelihood of all answers, a clip, rewards that flatten.
LESS = {"alphapo": 0.05}
# The lead of good answers over the reference at the start, and what they gain from there. DiscoPOP is not monotone: it
# pushes the other way below a margin of 0.1. What APO-down takes from both sides goes to whatever is likeliest.
LEAD = {"discopop": (2.5, 0.02), "apo_down": (1.0, 0.1)}


@pytest.mark.parametrize("key", EACH)
def test_learns(key):
    (probe, gradient), (lead, least) = made(key), LEAD.get(key, (0.0, LESS.get(key, GAIN)))
    gain = probes.train(probe, lead=lead, gradient=gradient)
    assert np.all(gain > least), gain


def backwards(objective: dpo.Objective) -> dpo.Objective:
    """The worse response as the better one."""
    shape = objective.score_map
    return objective._replace(score_map=lambda u: -shape(u))


def detached(objective: dpo.Objective) -> dpo.Objective:
    """Scores without a gradient."""
    return objective._replace(score_map=lambda u: jax.lax.stop_gradient(objective.score_map(u)))


def exchanged(objective: dpo.Objective) -> dpo.Objective:
    """Each prompt's score of another prompt's response."""
    return objective._replace(score_map=lambda u: jnp.roll(objective.score_map(u), 1, axis=1))


FAULTS = [(key, fault) for key in ("dpo", "ipo", "simpo", "s_dpo") for fault in (backwards, detached, exchanged)]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "fault"), FAULTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_method_does_not_learn(key, fault):
    probe = of_config(methods.load(key))
    gain = probes.train(probe._replace(objective=fault(probe.objective)))
    assert np.all(gain < min(LESS.values())), gain


def test_the_probe_measures_what_it_draws():
    rng = np.random.default_rng(0)
    prompts = np.arange(4000) % probes.PROMPTS
    drawn = probes.draw(rng, probes.start(), prompts, 1)[:, 0]
    share = [(probes.REWARDS[prompts, drawn] > 0)[prompts == p].mean() for p in range(probes.PROMPTS)]
    np.testing.assert_allclose(share, probes.good(probes.start()), atol=0.05)
    np.testing.assert_allclose(probes.good(probes.start()), 0.5, atol=0.15)


# The table: that it has every method is held in test_methods.py, which reads all tests for its own family already.


def test_the_changes_are_the_difference_of_two_configs():
    row = methods.method("simpo")
    assert row.changes == {
        "reference": "none",
        "length_power": "1",
        "beta": "2",
        "offset": "target_margin(margin=0.5)",
    }
    assert row.defaults == {"target_margin": {"margin": 0.5}} and row.papers == ["2405.14734"]
    online = methods.method("sppo").changes
    assert online["candidate_value"] == "win_rate" and online["compare"] == "win_rates"
    assert not [name for name in online if "optimizer" in name or "prompts" in name]
