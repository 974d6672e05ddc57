"""configs/asynchronous: what each file says and builds; stale rows are corrected; the frameworks' own functions."""

import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import async_check, policy
from experiments.parts.check_config import check
from experiments.tools import methods
from rl_jax import grpo
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.testing.batches import ragged_batch
from tests.configs import test_presets
from tests.oracles import asynchronous, trl, verl
from tests.paths import REPO_ROOT

KEYS = sorted(p.stem for p in (REPO_ROOT / "configs" / "asynchronous").glob("*.py") if not p.stem.startswith("_"))
GROUP = 4
every_file = pytest.mark.parametrize("key", KEYS)


def module_of(key: str):
    return importlib.import_module(f"configs.asynchronous.{key}")


@every_file
def test_a_file_says_what_it_is(key):
    text = module_of(key).__doc__
    said = methods.read_docstring(text)
    assert re.search(r"[=<>]", said.equation) and re.search(r"arXiv \d{4}\.\d{5}|\d\.\d|2026", said.title + said.source)
    assert said.command == f"python -m experiments.grpo_async --config=configs/asynchronous/{key}.py"
    assert "stale" in " ".join(text.split()).partition("Departs from GRPO: ")[2]


@every_file
@pytest.mark.parametrize("arg", [None, "game24,smoke"])
def test_its_config_can_run(key, arg):
    config = module_of(key).get_config(arg)
    check(config)
    async_check.checked(config)
    policy.check_choices(config)
    assert config.program == "grpo_async" and config.name.startswith(key) and config.flow.eta > 0
    updates = config.train.epochs * config.train.minibatches * config.train.steps
    assert arg or config.train.optimizer.warmup_steps + config.train.optimizer.decay_steps == updates


# --- The frameworks' own functions -----------------------------------------------------------------------------------


class Case:
    """Rows of three policies: mu has drawn them at versions 2 to 6 of 6, prox begins the updates, pi is trained."""

    def __init__(self, seed):
        batch = ragged_batch(seed, rows=8)
        self.mask, self.advantages = batch.mask, None
        self.log_probs, self.prox = batch.log_probs - 1.0, batch.old_log_probs - 1.0
        rng = np.random.default_rng(seed)
        self.mu = self.prox + rng.normal(0, 0.8, self.mask.shape).astype(np.float32)
        self.versions = np.where(self.mask, rng.integers(2, 7, self.mask.shape), -1).astype(np.int32)
        self.rewards = np.float32([1, 0, 0, 1, 0.5, 0, 0, 1])

    def ours(self, key):
        """(value, gradient), and keeps the advantages [B, T]."""
        config = module_of(key).get_config()
        config.rollout.completion_length, config.sample.group_size = self.mask.shape[1], GROUP
        blank, never = jnp.zeros(self.mask.shape, jnp.int32), jnp.zeros(len(self.rewards), bool)
        rows = TokenBatch(blank, blank, blank)
        rollout = Rollout(rows, self.mask, self.mu, self.mu, ~never, never, versions=self.versions)
        arrays = {"log_probs": self.prox, "ref_log_probs": self.prox, "group_size": GROUP, "key": jax.random.key(0)}
        batch = rule.assign(policy.make_credit(config), rollout, jnp.asarray(self.rewards), **arrays)
        lags = np.where(self.mask, 6 - self.versions, 0).astype(np.int32)
        batch = batch._replace(old_log_probs=self.prox, extras=batch.extras | {"lags": lags})
        self.advantages, objective = np.asarray(batch.advantages), policy.make_objective(config)

        def loss(log_probs):
            return grpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()

        return jax.value_and_grad(loss)(jnp.asarray(self.log_probs))

    def shaped(self, *, ddof=None, eps=0.0):
        """Advantages by hand, [B, T]."""
        groups = np.float64(self.rewards).reshape(-1, GROUP)
        found = groups - groups.mean(axis=1, keepdims=True)
        if ddof is not None:
            found /= groups.std(axis=1, ddof=ddof, keepdims=True) + eps
        return found.reshape(-1, 1) * self.mask


def areal(case, prox=None, *, eps_clip=0.4, eps=1e-5):
    prox = case.prox if prox is None else prox(case)
    arrays = (case.log_probs, prox, case.mu, case.shaped(ddof=1, eps=eps), case.mask)
    return asynchronous.areal_loss(*arrays, eps_clip=eps_clip, upper=5.0)


def loglinear(case):
    return asynchronous.areal_loglinear(case.mu, case.versions, 6)


def by_verl(case, *, shaped=dict(ddof=1, eps=1e-6), mode="token-mean", **settings):  # noqa: B006
    correction = {"loss_type": "ppo_clip", "rollout_is": None, "rollout_rs": None} | settings.pop("correction", {})
    arrays = (case.log_probs, case.mu, case.shaped(**shaped), case.mask)
    return verl.policy_loss("bypass_mode", *arrays, loss_agg_mode=mode, rollout_correction=correction, **settings)


def vtrace(case):
    weights = verl.rollout_weights(case.prox, case.mu, case.mask, threshold=1.0)
    arrays = (case.log_probs, case.prox, case.shaped(), case.mask)
    return verl.policy_loss("reinforce", *arrays, loss_agg_mode="token-mean", rollout_is_weights=weights)


def dppo(case):
    arrays = (case.log_probs, case.mu, case.shaped(ddof=1, eps=1e-6), case.mask)
    clip = dict(clip_ratio_low=0.15, clip_ratio_high=0.15, clip_ratio_c=20.0)
    return verl.policy_loss("dppo_tv", *arrays, loss_agg_mode="token-mean", **clip)


THEIRS = {
    "areal_1": areal,
    "decoupled": functools.partial(areal, eps_clip=0.2, eps=1e-6),
    "interpolated": functools.partial(areal, prox=loglinear, eps_clip=0.2, eps=1e-6),
    "verl_v1_async": by_verl,
    "bypass": functools.partial(by_verl, clip_ratio_c=1e9),
    "aipo": functools.partial(
        by_verl,
        shaped={},
        mode="seq-mean-token-sum",
        correction={"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0},
    ),
    "vtrace": vtrace,
    "dppo_tv": dppo,
    "prime_rl_default": lambda c: asynchronous.prime_rl_loss(c.log_probs, c.mu, c.shaped(), c.mask),
    "trl_async_grpo": lambda c: trl.async_grpo_loss(c.log_probs, c.mu, c.shaped(ddof=0, eps=1e-8), c.mask),
}


def test_every_file_is_compared():
    assert sorted(THEIRS) == KEYS


@every_file
def test_the_whole_loss_is_theirs(key):
    case = Case(0)
    value, gradient = case.ours(key)
    expected, expected_gradient = THEIRS[key](case)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    np.testing.assert_allclose(gradient, np.where(case.mask, expected_gradient, 0), rtol=2e-4, atol=1e-7)


@every_file
def test_a_stale_row_is_not_a_fresh_one(key):
    """The same batch with mu = prox has another gradient: nothing treats stale rows as on-policy."""
    stale, fresh = Case(0), Case(0)
    fresh.mu = fresh.prox
    assert np.abs(stale.ours(key)[1] - fresh.ours(key)[1]).max() > 1e-3


def test_a_loss_that_does_not_know_of_stale_rows_is_refused():
    config = module_of("bypass").get_config()
    config.algorithm.surrogate = dict(fn="clipped_surrogate")
    with pytest.raises(ValueError, match="rows are stale, and nothing in config.algorithm knows it"):
        async_check.checked(config)
    config.flow.eta = 0  # as the message says
    async_check.checked(config)


FROZEN = {  # advantage, surrogate, weight; eta, age, order, in flight; updates: a later version is a new file
    "areal_1": "group_relative(ddof=1, eps=1e-05, relative_tolerance=1e-06) clipped_surrogate(clip_low=0.4, "
    "clip_high=0.4, max_log_ratio=inf) masked(level='token', cap=5.0, normalize=False, max_log=20.0) "
    "2 8 ready interrupt 1",
    "verl_v1_async": "group_relative(ddof=1, eps=1e-06, relative_tolerance=1e-06) against_sampler(surrogate=dual_clip "
    "clip_high=0.2 clip_low=0.2 dual_clip=3.0 max_log_ratio=20.0) none() 1 8 ready interrupt 4",
    "prime_rl_default": "group_centered() near_sampler(divergence_low=0.2, divergence_high=0.2, log_ratio_coef=0.001) "
    "none() 8 8 drop keep 1",
    "trl_async_grpo": "group_relative(ddof=0, eps=1e-08, relative_tolerance=1e-06) against_sampler("
    "surrogate=clipped_surrogate clip_high=0.2 clip_low=0.2) none() 4 4 drop keep 1",
}


@pytest.mark.parametrize("key", FROZEN)
def test_a_preset_is_what_it_was(key):
    config = module_of(key).get_config()
    rule, objective, flow = policy.make_credit(config), policy.make_objective(config), config.flow
    surrogate = test_presets.written(objective.surrogate)
    inner = config.algorithm.surrogate.get("surrogate")
    if inner is not None:
        words = [inner.fn, *(f"{name}={value}" for name, value in sorted(inner.items()) if name != "fn")]
        surrogate = f"against_sampler(surrogate={' '.join(words)})"
    chosen = (test_presets.written(rule.advantage), surrogate, test_presets.written(rule.behavior_weight))
    numbers = (flow.eta, flow.age, flow.order, flow.in_flight, config.train.minibatches)
    assert " ".join(map(str, chosen + numbers)) == FROZEN[key]
    assert objective.aggregate.__name__ == "token_mean" and objective.kl_coef == objective.entropy_coef == 0
    assert (config.rollout.temperature, config.train.epochs, config.train.max_grad_norm) == (1.0, 1, 1.0)
