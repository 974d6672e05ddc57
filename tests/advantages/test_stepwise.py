"""Advantages of steps, by hand; holes and separators outside the mask."""

import numpy as np

from rl_jax.advantages import stepwise


def test_the_critic_s_difference_over_each_step():
    mask = np.array([[True, True, False, True, True, False], [True, True, True, False, False, False]])
    tokens = np.array([[1, 7, 7, 1, 1, 7], [1, 1, 7, 7, 7, 7]], np.int32)
    values = np.array([[0.5, 9.0, 9.0, 0.25, 9.0, 9.0], [0.125, 9.0, 9.0, 9.0, 9.0, 9.0]], np.float32)
    rewards = np.array([[0.0, 0.0625, 9.0, 0.0, 1.0, 9.0], [0.0, 0.0, 0.0, 9.0, 9.0, 9.0]], np.float32)
    after = np.array([0.0, 0.75], np.float32)
    found, returns = stepwise.direct(rewards, values, mask, tokens=tokens, bootstrap_values=after, separators=(7,))
    first, second = 0.25 - 0.5 + 0.0625, 0.0 - 0.25 + 1.0
    np.testing.assert_allclose(found, [[first, first, 0, second, second, 0], [0.625] * 3 + [0] * 3], atol=1e-6)
    np.testing.assert_allclose(returns, [[1.0625, 1.0625, 0, 1, 1, 0], [0.75] * 3 + [0] * 3], atol=1e-6)
