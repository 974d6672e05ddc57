"""relabelling/redistribution.py: against loops over episodes, its sums, and where it is even."""

import jax
import numpy as np

from rl_jax.control import relabelling
from tests.control.relabelling.rows import TWO, random_rows


def spread(rewards, importance, done, scale):
    """Row by row and episode by episode."""
    found = np.zeros_like(rewards)
    for row in range(len(rewards)):
        ends = [*(np.flatnonzero(done[row]) + 1), rewards.shape[1]]
        for begin, end in zip([0, *ends], ends, strict=False):
            weights = np.exp(scale * importance[row, begin:end])
            found[row, begin:end] = rewards[row, begin:end].sum() * weights / max(weights.sum(), 1e-30)
    return found


def test_an_episodes_reward_is_spread_and_its_sum_stays():
    rows = random_rows(steps=12)
    done, feature = rows.terminated | rows.truncated, rows.next_observations[..., 1]
    assert 3 < done.sum() < 20 and done[:, :-1].any()
    evenly = None
    for scale in (-3.0, 0.0):
        spec = dict(fn="feature", index=1)
        made = relabelling.by_importance(distribution=TWO, importance=spec, scale=scale)
        paid = np.asarray(jax.jit(made.apply)(made.begin(jax.random.key(0)), rows)[1].rewards)
        np.testing.assert_allclose(paid, spread(rows.rewards, feature, done, scale), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(paid.sum(axis=1), rows.rewards.sum(axis=1), rtol=1e-4)
        evenly = paid
    inside = ~done[:, :-1]
    np.testing.assert_allclose(evenly[:, 1:][inside], evenly[:, :-1][inside], rtol=1e-5)
