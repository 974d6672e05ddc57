"""The comparators of K responses through rl_jax.dpo.loss: what must change nothing, and what no gradient enters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import dpo
from rl_jax.core.binding import needs, public_functions
from rl_jax.core.masked import merge
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.losses.preference import compare, links
from rl_jax.losses.preference.compare import games, lists

N, K, C = 6, 4, 5
# Those that read the order of the responses, and those that read their rewards only.
ORDERED = ("softmax", "pro")
SYMMETRIC = (
    "plackett_luce",
    "all_pairs",
    "lambda_pairs",
    "label_softmax",
    "point_square",
    "point_logistic",
    "rrhf",
    "info_nca",
    "brain",
    "win_rates",
    "contrastive_policy_gradient",
    "nash_md",
    "advantage_leftover",
    "group_advantage_leftover",
)
every_comparator = pytest.mark.parametrize("name", ORDERED + SYMMETRIC)


def _batch(seed=0, padding=0.0, width=C):
    """log_probs [N, K, width] and a PreferenceBatch of ragged lists, `padding` behind every mask."""
    rng = np.random.default_rng(seed)
    present = np.arange(K) < np.array([4, 2, 3, 4, 2, 3])[:, None]
    lengths = rng.integers(1, C + 1, (N, K, 1))
    arrays = np.float32(rng.uniform(-2.0, -0.1, (2, N, K, C)))
    rewards = np.float32(-np.sort(-rng.random((N, K)), axis=1))
    extras = {
        "prior_log_ratios": np.float32(rng.normal(size=(N, K))),
        "values": np.float32(rng.random(N)),
    }
    mask = (np.arange(width) < lengths) & present[:, :, None]
    wide = np.full((2, N, K, width), padding, np.float32)
    wide[..., :C] = arrays
    log_probs, refs = np.where(mask, wide, np.float32(padding))
    rewards = np.where(present, rewards, np.float32(padding))
    extras["prior_log_ratios"] = np.where(present, extras["prior_log_ratios"], np.float32(padding))
    return log_probs, PreferenceBatch(None, mask, present, rewards, refs, None, extras)


@functools.cache
def _objective(name):
    return dpo.Objective(beta=0.4, compare=getattr(compare, name), link=links.logistic)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(name, micro_batches, log_probs, batch):
    """(value, gradient in log_probs [N, K, C], gradient in ref_log_probs) of the batch in so many parts."""

    def total(log_probs, refs):
        whole = batch._replace(ref_log_probs=refs), log_probs
        mean = None
        for i in range(micro_batches):
            part, rows = jax.tree.map(lambda x, i=i: x[i::micro_batches], whole)
            rows = rows.reshape(-1, rows.shape[-1])
            found = dpo.loss(TokenScores(rows, jnp.zeros_like(rows)), part, _objective(name))[0]
            mean = found if mean is None else merge(mean, found)
        return mean.value()

    value, gradients = jax.value_and_grad(total, argnums=(0, 1))(log_probs, batch.ref_log_probs)
    return value, *gradients


@every_comparator
def test_laws(name):
    log_probs, batch = _batch()
    value, gradient, ref_gradient = _run(name, 1, log_probs, batch)
    mask = batch.completion_mask
    assert np.isfinite(value) and np.any(gradient) and not np.any(np.asarray(gradient)[~mask])
    assert not np.any(ref_gradient), "the reference gets a gradient"

    # Padding: its contents, of absent responses too, and, for those that read tokens themselves, its width.
    width = C + 3 if "log_probs" in needs(getattr(compare, name)) else C
    found = _run(name, 1, *_batch(padding=np.nan, width=width))
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1][..., :C], gradient, rtol=1e-4, atol=1e-6)

    # Every second prompt, and the others: of each half the rest is absent, which is one program and not two.
    half = (np.arange(N) % 2 == 0)[:, None]
    parts = [_run(name, 1, log_probs, batch._replace(present=batch.present & side)) for side in (half, ~half)]
    np.testing.assert_allclose((parts[0][0] + parts[1][0]) / 2, value, rtol=1e-5)
    np.testing.assert_allclose((parts[0][1] + parts[1][1]) / 2, gradient, rtol=1e-4, atol=1e-6)

    # The order of the prompts.
    order = np.random.default_rng(1).permutation(N)
    found = _run(name, 1, *jax.tree.map(lambda x: x[order], (log_probs, batch)))
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1], gradient[order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["lambda_pairs", "group_advantage_leftover"])
def test_micro_batches(name):
    log_probs, batch = _batch()
    value, gradient, _ = _run(name, 1, log_probs, batch)
    found = _run(name, 2, log_probs, batch)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_the_order_of_the_responses_changes_nothing(name):
    log_probs, batch = _batch()
    value, gradient, _ = _run(name, 1, log_probs, batch)
    order = np.array([2, 0, 3, 1])

    def mix(x):
        return x[:, order] if x.ndim > 1 else x

    found = _run(name, 1, *jax.tree.map(mix, (log_probs, batch)))
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    np.testing.assert_allclose(found[1], gradient[:, order], rtol=1e-4, atol=1e-6)


def test_every_comparator_of_several_responses_is_held_to_the_laws():
    here = {name for module in (games, lists) for name in public_functions(module)}
    assert here == set(ORDERED + SYMMETRIC) <= set(public_functions(compare))
