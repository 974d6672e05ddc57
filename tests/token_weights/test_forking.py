"""token_weights/forking.py against loops, and its band through grpo.loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import grpo
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit import CreditRule, rule
from rl_jax.losses import aggregate
from rl_jax.testing.batches import ragged_batch
from rl_jax.token_weights.forking import entropy_band, forking


def case(seed):
    batch = ragged_batch(seed)
    entropy = np.random.default_rng(seed).uniform(0, 3, batch.mask.shape).astype(np.float32)
    return batch, np.where(batch.mask, entropy, np.nan)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_the_least_sure_tokens_of_each_row(share):
    batch, entropy = case(1)
    batch.mask[2] = False
    found = np.asarray(forking(batch.mask, entropy=entropy, share=share))
    for row, mask, h in zip(found, batch.mask, entropy, strict=True):
        count = max(1, int(np.ceil(np.float32(share) * np.float32(mask.sum()))))
        expected = np.zeros(mask.shape)
        if mask.any():
            expected[np.flatnonzero(mask)[np.argsort(-h[mask])[:count]]] = 1
        np.testing.assert_array_equal(row, expected)
    np.testing.assert_array_equal(forking(batch.mask, entropy=entropy, share=1.0), batch.mask)


def test_a_share_that_comes_to_a_whole_number_is_not_rounded_up():
    """.3 of 50 is 15.000001 in float32, and that of 5000 more above 1500 yet; but .3 of 51 is 16."""
    lengths = np.array([50, 51, 90, 100, 1000, 5000])
    mask = np.arange(5000) < lengths[:, None]
    entropy = np.broadcast_to(np.arange(5000, dtype=np.float32), mask.shape)
    fn = jax.jit(lambda share: forking(mask, entropy=entropy, share=share).sum(axis=1))
    for tenth in range(1, 11):
        np.testing.assert_array_equal(fn(tenth / 10), -(-tenth * lengths // 10))


def test_the_band():
    batch, entropy = case(2)
    kept = np.asarray(forking(batch.mask, entropy=entropy, share=0.5)) > 0
    edges = np.quantile(entropy[kept], [0.25, 0.75])
    found = entropy_band(batch.mask, entropy=entropy, share=0.5, low=0.25, high=0.75, raise_coef=0.3, lower_coef=0.2)
    expected = np.where(entropy < edges[0], 0.3, np.where(entropy > edges[1], -0.2, 0.0))
    np.testing.assert_allclose(found, np.where(kept, expected, 0), rtol=1e-6)
    assert {0.0, 0.3, -0.2} == {round(float(x), 3) for x in np.unique(found)}
    with pytest.raises(ValueError, match="low=0.6 and high=0.5 must be quantiles"):
        entropy_band(batch.mask, entropy=entropy, low=0.6)


def test_the_defaults_of_a_row_of_a_hundred():
    """A fifth of the row is 20 tokens, H = 81 to 100: the quantiles .1 and .5 of these are 82.9 and 90.5."""
    entropy = np.random.default_rng(0).permutation(100).astype(np.float32)[None] + 1
    everything = np.ones((1, 100), bool)
    np.testing.assert_array_equal(forking(everything, entropy=entropy), entropy > 80)
    expected = np.where(entropy > 80, 0.01 * (entropy < 82.9) - 0.01 * (entropy > 90.5), 0.0)
    np.testing.assert_allclose(entropy_band(everything, entropy=entropy), expected, rtol=1e-6)
    found = entropy_band(everything, entropy=entropy, share=1.0, low=0.0, high=0.0)  # the same edge twice
    np.testing.assert_allclose(found, -0.01 * (entropy > 1), rtol=1e-6)
    np.testing.assert_array_equal(entropy_band(everything, entropy=entropy, low=0.0, high=1.0), 0.0)
    with pytest.raises(ValueError, match="high=1.5 must be quantiles"):
        entropy_band(everything, entropy=entropy, high=1.5)


def test_its_gradient_is_that_of_the_distance_to_the_band():
    """Through credit.weigh and grpo.loss: d/dH of raise (lo - H)+ + lower (H - hi)+, over all tokens."""
    batch, entropy = case(3)
    blank, cut = np.zeros(batch.mask.shape, np.int32), np.zeros(8, bool)
    rollout = Rollout(TokenBatch(blank, blank, blank), batch.mask, batch.old_log_probs, batch.old_log_probs, ~cut, cut)
    chosen = CreditRule(entropy_weight=entropy_band)
    assert chosen.needs_scores()
    data = rule.weigh(
        chosen, rollout, jnp.zeros(batch.mask.shape), group_size=4, key=jax.random.key(0), entropy=entropy
    )
    assert isinstance(data, PolicyBatch) and data.extras["entropy_coefs"].shape == batch.mask.shape
    objective = grpo.Objective(kl_coef=0.0, aggregate=aggregate.token_mean)

    def loss(h):
        return grpo.loss(TokenScores(batch.log_probs, h), data, objective)[0].value()

    found = jax.grad(loss)(jnp.where(batch.mask, entropy, 0.0))
    kept = np.asarray(forking(batch.mask, entropy=entropy)) > 0
    low, high = np.quantile(entropy[kept], [0.1, 0.5])
    slope = np.where(entropy < low, -0.01, np.where(entropy > high, 0.01, 0.0)) * kept / batch.mask.sum()
    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-9)
