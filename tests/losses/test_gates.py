"""losses/policy/gates.py: the family as one kernel. Each surrogate's gradient is -W A of its gate, and `gated` with it.

A surrogate is differentiated; a gate is written from the derivative. Neither reads the other's code.
"""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import binding
from rl_jax.losses import aggregate, policy
from rl_jax.losses.policy import gates
from rl_jax.losses.policy.base import row_mean
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import aggregate as aggregate_reference

# surrogate, gate, keywords of both, level of the ratio. Ratios are 0.4 to 2.5: every bound has tokens on both sides.
PAIRS = [
    ("reinforce", "reinforce_gate", {}, "token"),
    ("importance_sampling", "importance_sampling_gate", {}, "token"),
    ("clipped_surrogate", "ppo_gate", {"clip_low": 0.2, "clip_high": 0.28}, "token"),
    ("dual_clip", "dual_clip_gate", {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 1.7}, "token"),
    ("two_sided_clip", "two_sided_clip_gate", {"clip_low": 0.2, "clip_high": 0.28, "delta": 1.7}, "token"),
    ("cispo", "cispo_gate", {"ratio_min": 0.8, "ratio_max": 1.28}, "token"),
    ("truncated_is", "truncated_is_gate", {"ratio_max": 1.0}, "token"),
    ("aipo", "aipo_gate", {"ratio_max": 1.4}, "token"),
    ("topr", "topr_gate", {"sequence_ratio": False}, "token"),
    ("topr", "topr_gate", {"sequence_ratio": True}, "product"),
    ("rec_one_side", "rec_one_side_gate", {"clip_low": 0.2, "clip_high": 0.28}, "token"),
    ("sapo", "sapo_gate", {"tau_positive": 1.5, "tau_negative": 3.0}, "token"),
    ("vespo", "vespo_gate", {}, "product"),
    ("vespo", "vespo_gate", dict(k_positive=1.0, lambda_positive=0.5, k_negative=1.5, lambda_negative=0.7), "product"),
    ("dppo_tv", "dppo_tv_gate", {"divergence_low": 0.15, "divergence_high": 0.1, "ratio_max": 1.8}, "token"),
    ("dppo_kl", "dppo_kl_gate", {"divergence_low": 0.05, "divergence_high": 0.03, "ratio_max": 1.8}, "token"),
]
every_pair = pytest.mark.parametrize(
    "name, gate, keywords, level", PAIRS, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(PAIRS)]
)
GATES = binding.public_functions(gates)


def _batch(seed, on_policy=False):
    """A ragged batch of real log-probs, below 0; the sampler is the old policy."""
    batch = ragged_batch(seed)
    old = batch.log_probs if on_policy else batch.old_log_probs
    return batch._replace(log_probs=batch.log_probs - np.float32(1.0), old_log_probs=old - np.float32(1.0))


def _gate_keywords(keywords):
    return {key: value for key, value in keywords.items() if key != "sequence_ratio"}


def _gradient(fn, batch, aggregation=jnp.sum, **keywords):
    """The gradient with respect to log_probs of a surrogate's loss, summed over tokens or aggregated."""
    if "behavior_log_probs" in inspect.signature(fn).parameters:
        keywords["behavior_log_probs"] = batch.old_log_probs

    def total(log_probs):
        return aggregation(fn(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords).loss)

    return np.asarray(jax.grad(total)(batch.log_probs))


def _ratio(batch, level):
    """float64, by hand."""
    difference = np.where(batch.mask, np.float64(batch.log_probs) - batch.old_log_probs, 0)
    rows = {"geometric": difference.sum(axis=1) / batch.mask.sum(axis=1), "product": difference.sum(axis=1)}
    return np.exp(difference if level == "token" else np.where(batch.mask, rows[level][:, None], 0))


@pytest.mark.parametrize("on_policy", [False, True])
@every_pair
def test_the_gradient_of_a_surrogate_is_minus_its_gate_times_a(name, gate, keywords, level, on_policy):
    batch = _batch(0, on_policy)
    gradient = _gradient(getattr(policy, name), batch, **keywords)
    gate = functools.partial(GATES[gate], **_gate_keywords(keywords))
    if "old_log_probs" in inspect.signature(gate).parameters:
        gate = functools.partial(gate, old_log_probs=batch.old_log_probs)
    weight = gate(_ratio(batch, level).astype(np.float32), batch.advantages)
    assert weight.dtype == jnp.float32
    np.testing.assert_allclose(gradient, np.where(batch.mask, -weight * batch.advantages, 0), rtol=3e-5, atol=1e-6)
    if on_policy:
        np.testing.assert_allclose(np.asarray(weight)[batch.mask], 1.0, rtol=1e-6)


@pytest.mark.parametrize("seed", [1, 2])
@every_pair
def test_gated_is_the_surrogate(name, gate, keywords, level, seed):
    """From a config, by the names; same gradient, same ratio, and the same clips where the gate closes."""
    batch = _batch(seed)
    spec = {"fn": "gated", "gate": {"fn": gate, **_gate_keywords(keywords)}, "level": level}
    gated = binding.bind(spec, policy)
    expected = _gradient(getattr(policy, name), batch, **keywords)
    np.testing.assert_allclose(_gradient(gated, batch), expected, rtol=3e-5, atol=1e-6)
    out = gated(*batch[:3], batch.mask)
    np.testing.assert_allclose(out.ratio, _ratio(batch, level), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(out.clipped_low | out.clipped_high), batch.mask & (expected == 0))


def test_every_gate_and_every_surrogate_is_in_this_file():
    assert {gate for _, gate, _, _ in PAIRS} == set(GATES)
    by_rows = {"gspo", "gspo_token", "product_ratio_clip", "gmpo"}  # below
    with_a_regulariser = {"dro", "kl_cov"}  # below
    here = {name for name, *_ in PAIRS} | by_rows | with_a_regulariser
    assert set(binding.public_functions(policy)) == here | {"gated"}


@pytest.mark.parametrize("name, gate", sorted({(name, gate) for name, gate, _, _ in PAIRS}))
def test_a_gate_has_the_defaults_of_its_surrogate(name, gate):
    def defaults(fn):
        return {p.name: p.default for p in inspect.signature(fn).parameters.values() if p.default is not p.empty}

    ours, theirs = defaults(GATES[gate]), defaults(getattr(policy, name))
    assert ours == {key: theirs[key] for key in ours}
    assert set(theirs) - set(ours) <= {"sequence_ratio", "max_log_ratio"}


# --- Whole completions -----------------------------------------------------------------------------------------------


def _one_advantage_a_row(seed):
    batch = _batch(seed)
    return batch._replace(advantages=np.repeat(batch.advantages[:, :1], batch.mask.shape[1], axis=1))


def _mean_over_rows(batch):
    return lambda loss: aggregate.seq_mean_token_mean(loss, batch.mask).value()


def _sum_over_rows(batch):
    return lambda loss: aggregate.seq_mean_token_sum(loss, batch.mask).value()


def _clip(advantages, ratio, low, high):
    """PPO's indicator by hand."""
    return np.where(advantages > 0, ratio <= 1 + high, ratio >= 1 - low)


@pytest.mark.parametrize("name", ["gspo", "gspo_token"])
def test_gspo_is_ppos_gate_on_the_geometric_mean(name):
    batch, bounds = _one_advantage_a_row(3), {"clip_low": 0.05, "clip_high": 0.08}
    ratio = _ratio(batch, "geometric")
    weight = ratio * _clip(batch.advantages, ratio, 0.05, 0.08)
    assert (weight[batch.mask] == 0).any() and (weight[batch.mask] > 0).any()
    c = aggregate_reference.coefficients("seq_mean_token_mean", batch.mask)
    expected = -c * np.where(batch.mask, weight * batch.advantages, 0)
    mean = _mean_over_rows(batch)
    gated = functools.partial(policy.gated, gate={"fn": "ppo_gate", **bounds}, level="geometric")
    np.testing.assert_allclose(_gradient(getattr(policy, name), batch, mean, **bounds), expected, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(_gradient(gated, batch, mean), expected, rtol=1e-5, atol=1e-8)


def test_the_product_ratio_is_ppos_gate_summed_over_tokens():
    """The row's loss is -A p, so that each token has the whole of it: c = 1 / B', not 1 / (n_i B')."""
    batch, bounds = _one_advantage_a_row(4), {"clip_low": 0.3, "clip_high": 0.4}
    ratio = _ratio(batch, "product")
    weight = ratio * _clip(batch.advantages, ratio, 0.3, 0.4)
    assert (weight[batch.mask] == 0).any() and (weight[batch.mask] > 0).any()
    c = aggregate_reference.coefficients("seq_mean_token_sum", batch.mask)
    expected = -c * np.where(batch.mask, weight * batch.advantages, 0)
    gradient = _gradient(policy.product_ratio_clip, batch, _mean_over_rows(batch), **bounds)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)
    gated = functools.partial(policy.gated, gate={"fn": "ppo_gate", **bounds}, level="product")
    np.testing.assert_allclose(_gradient(gated, batch, _sum_over_rows(batch)), expected, rtol=1e-5, atol=1e-8)


def test_gmpo_is_a_gate_that_sees_its_row():
    """W = exp(mean_t q) on the tokens that are not clipped, q the log ratios clipped on one side."""
    batch, low, high = _one_advantage_a_row(5), 0.3, 0.4

    def gate(ratio, advantages, *, log_probs, old_log_probs, mask):
        log_ratios = log_probs - old_log_probs
        kept = jnp.where(advantages > 0, log_ratios <= high, log_ratios >= -low)
        q = jnp.where(kept, log_ratios, jnp.where(advantages > 0, high, -low))
        return jnp.where(kept, jnp.exp(row_mean(q, mask)), 0.0)

    difference = np.where(batch.mask, np.float64(batch.log_probs) - batch.old_log_probs, 0)
    expected = np.zeros(batch.mask.shape)
    for i, row in enumerate(difference):
        a, n = float(batch.advantages[i, 0]), batch.mask[i].sum()
        kept = row <= high if a > 0 else row >= -low
        pooled = math.exp(sum(np.where(kept, row, high if a > 0 else -low)) / n)
        expected[i] = np.where(kept & batch.mask[i], -a * pooled / n / len(difference), 0.0)
    clipped = batch.mask & (expected == 0)
    assert clipped.any() and not clipped.all()
    mean = _mean_over_rows(batch)
    gradient = _gradient(policy.gmpo, batch, mean, clip_low=low, clip_high=high)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)
    gradient = _gradient(functools.partial(policy.gated, gate=gate), batch, mean)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


# --- A gate and a regulariser ----------------------------------------------------------------------------------------


def test_dro_and_kl_cov_are_a_gate_and_a_regulariser():
    batch = _batch(6)
    difference = batch.log_probs - batch.old_log_probs
    selected = np.random.default_rng(6).random(batch.mask.shape) < 0.4
    for fn, gate, keywords, regulariser in (
        (policy.dro, gates.reinforce_gate, {"tau": 0.7}, 0.7 * difference),
        (policy.kl_cov, gates.importance_sampling_gate, {"coef": 0.3}, 0.3 * np.sign(difference) * selected),
    ):
        extras = {"selected": selected} if fn is policy.kl_cov else {}
        weight = gate(np.exp(difference), batch.advantages)
        expected = np.where(batch.mask, -weight * batch.advantages + regulariser, 0)
        np.testing.assert_allclose(_gradient(fn, batch, **keywords, **extras), expected, rtol=1e-5, atol=1e-6)


# --- The gates themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gate, ratio, advantage, weight",
    [
        # On a bound a token is inside; without an advantage it counts with the negative ones (VESPO's: the positive).
        (functools.partial(gates.ppo_gate, clip_high=0.25), 1.25, 1.0, 1.25),
        (functools.partial(gates.ppo_gate, clip_low=0.25), 0.75, -1.0, 0.75),
        (gates.ppo_gate, 1.5, 0.0, 1.5),
        (gates.ppo_gate, 0.5, 0.0, 0.0),
        (functools.partial(gates.dual_clip_gate, clip_high=0.25), 1.25, 1.0, 1.25),
        (functools.partial(gates.dual_clip_gate, clip_low=0.25), 0.75, -1.0, 0.75),
        (gates.dual_clip_gate, 3.0, -1.0, 3.0),
        (gates.dual_clip_gate, 3.01, -1.0, 0.0),
        (gates.two_sided_clip_gate, 4.0, -1.0, 4.0),
        (gates.two_sided_clip_gate, 4.01, -1.0, 0.0),
        (functools.partial(gates.rec_one_side_gate, clip_high=0.25), 1.25, 1.0, 1.0),
        (functools.partial(gates.rec_one_side_gate, clip_low=0.25), 0.75, -1.0, 1.0),
        (gates.topr_gate, 0.5, 0.0, 1.0),
        (gates.topr_gate, 0.5, 1.0, 1.0),
        (gates.topr_gate, 0.5, -1.0, 0.5),
        (gates.sapo_gate, 2.0, 0.0, 8.0 * math.exp(-1.05) / (1.0 + math.exp(-1.05)) ** 2),
        (gates.sapo_gate, 2.0, 1.0, 8.0 * math.exp(-1.0) / (1.0 + math.exp(-1.0)) ** 2),
        (gates.vespo_gate, 2.0, -1.0, 8.0 * math.exp(-2.0)),
        (gates.vespo_gate, 2.0, 0.0, 4.0 * math.exp(-3.0)),
        (gates.vespo_gate, math.inf, 1.0, 0.0),
        (gates.vespo_gate, 0.0, 1.0, 0.0),
        (functools.partial(gates.dppo_tv_gate, old_log_probs=0.0, divergence_high=0.25), 1.25, 1.0, 1.25),
        (functools.partial(gates.dppo_tv_gate, old_log_probs=0.0, divergence_low=0.25), 0.75, -1.0, 0.75),
        (functools.partial(gates.dppo_kl_gate, old_log_probs=-1.0, divergence_high=0.0), 1.0, 1.0, 1.0),
        (functools.partial(gates.dppo_kl_gate, old_log_probs=-1.0, divergence_low=0.0), 1.0, -1.0, 1.0),
        (functools.partial(gates.dppo_kl_gate, old_log_probs=0.0), 1.0, 1.0, 1.0),  # p = p_old = 1: log(0 / 0)
        (functools.partial(gates.dppo_kl_gate, old_log_probs=math.log(0.8)), 1.3, 1.0, 0.0),  # rounded beyond p = 1
        # 1 - p or 1 - p_old is 0 in float32; the KL is about .001, inside of the bound.
        (functools.partial(gates.dppo_kl_gate, old_log_probs=math.log(0.9999)), 1.0002, 1.0, 1.0002),
        (functools.partial(gates.dppo_kl_gate, old_log_probs=0.0), 0.999, -1.0, 0.999),
    ],
)
def test_values_of_a_gate(gate, ratio, advantage, weight):
    array = functools.partial(np.full, (1, 1), dtype=np.float32)
    if isinstance(gate, functools.partial) and "old_log_probs" in gate.keywords:
        gate = functools.partial(gate, old_log_probs=array(gate.keywords["old_log_probs"]))
    small = 0.01 * advantage  # its sign alone counts
    np.testing.assert_allclose(gate(array(ratio), array(small)), weight, rtol=1e-6)


@pytest.mark.parametrize("name", GATES)
def test_bad_input_is_refused(name):
    ratio, advantages = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    extras = {"old_log_probs": -advantages} if "dppo" in name else {}
    for bad in ((ratio, advantages[:, 0]), (ratio[:1], advantages), (ratio[0], advantages[0])):
        with pytest.raises(AssertionError):
            GATES[name](*bad, **extras)
    with pytest.raises(AssertionError):
        GATES[name](ratio, advantages.astype(np.int32), **extras)
    if extras:
        with pytest.raises(AssertionError):
            GATES[name](ratio, advantages, old_log_probs=ratio[:1])


def test_what_an_open_gate_becomes():
    batch = _batch(7)
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    for gate in (
        functools.partial(gates.ppo_gate, clip_low=np.inf, clip_high=np.inf),
        functools.partial(gates.dual_clip_gate, clip_low=np.inf, clip_high=np.inf, dual_clip=np.inf),
        functools.partial(gates.cispo_gate, ratio_max=np.inf),
        functools.partial(gates.truncated_is_gate, ratio_max=np.inf),
        functools.partial(gates.aipo_gate, ratio_max=np.inf),
        functools.partial(gates.sapo_gate, tau_positive=1e-4, tau_negative=1e-4),
        functools.partial(gates.vespo_gate, k_positive=1.0, lambda_positive=0.0, k_negative=1.0, lambda_negative=0.0),
    ):
        np.testing.assert_allclose(gate(ratio, batch.advantages), ratio, rtol=1e-5)
    np.testing.assert_allclose(
        gates.vespo_gate(
            ratio, batch.advantages, k_positive=0.0, lambda_positive=0.0, k_negative=0.0, lambda_negative=0.0
        ),
        gates.reinforce_gate(ratio, batch.advantages),
        rtol=1e-6,
    )
