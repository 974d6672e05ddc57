"""credit/process_rewards.py: gradients by hand, and nothing comes from where no step is."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.credit import process_rewards

PROBS = np.array([[0.9, 0.5, 0.2, 0.0], [0.6, 0.0, 0.0, np.nan], [0.0, 0.0, 0.0, 0.0]], np.float32)
STEPS = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)


def test_gradients_are_those_of_the_formulas_and_zero_off_the_steps():
    """A step that is not there may hold a probability of 0, whose logarithm has no gradient."""
    names = ("product", "geometric_mean", "mean", "mean_logit", "minimum", "maximum", "last")
    found = jax.jit(
        lambda probs: [jax.grad(lambda p, n=n: jnp.sum(getattr(process_rewards, n)(p, STEPS)))(probs) for n in names]
    )(PROBS)
    p, score = np.float64([0.9, 0.5, 0.2]), 0.09
    mean = np.mean(np.log(p / (1 - p)))
    sigma = 1 / (1 + np.exp(-mean))
    first = {
        "product": score / p,
        "geometric_mean": score ** (1 / 3) / (3 * p),
        "mean": np.full(3, 1 / 3),
        "minimum": np.array([0.0, 0.0, 1.0]),
        "maximum": np.array([1.0, 0.0, 0.0]),
        "last": np.array([0.0, 0.0, 1.0]),
        "mean_logit": sigma * (1 - sigma) / (3 * p * (1 - p)),
    }
    for name, slope in zip(names, found, strict=True):
        expected = np.zeros(PROBS.shape)
        expected[0, :3], expected[1, 0] = first[name], 1.0  # one step is itself
        np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-7, err_msg=name)
