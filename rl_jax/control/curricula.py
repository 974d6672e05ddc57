"""A curriculum of the weights of a reward's terms: what is in the replay is paid anew under the newest weights.

    w_i(k) = min(w_i(0) factor_i^k, limit_i),   k = floor(updates / every)
    r(s, a) = pay(s, a, w(k)) for every step that is drawn, however old

So what the replay holds is never of another reward than what is learned now. Source: arXiv 2311.13081 ("Learning to
Fly in Seconds") and its code (steps/curriculum.h with recalculate_rewards), which rewrites the whole buffer when the
weights change; here a draw is paid when it is drawn, which is the same.
"""

from collections.abc import Callable

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.control.adversaries import Adversary


def weights_at(
    updates: chex.Array,
    *,
    first: tuple[float, ...],
    factors: tuple[float, ...],
    limits: tuple[float, ...],
    every: int,
) -> chex.Array:
    """w_i(k) = min(w_i(0) factor_i^k, limit_i), k = floor(updates / every): float32 [n].

    Args:
      updates: int [], those that are done.
      first: n weights at the start.
      factors: what they are multiplied by, each time.
      limits: the largest there may be.
      every: updates between changes.
    """
    first, factors, limits = (np.asarray(x, np.float32) for x in (first, factors, limits))
    chex.assert_equal_shape([first, factors, limits])
    stage = jnp.asarray(updates // every, jnp.float32)
    return jnp.minimum(first * jnp.power(factors, stage), limits)


def curriculum(
    pay: Callable,
    names: tuple[str, ...],
    *,
    first: tuple[float, ...],
    factors: tuple[float, ...],
    limits: tuple[float, ...],
    every: int,
) -> Adversary:
    """Pays draws by `weights_at` of the update that draws them. Its state is the number of updates so far.

    Args:
      pay: (observations [N, ...], actions [N, ...], weights [n]) -> rewards float32 [N].
      names: of the n terms, for the metrics.
      first: see `weights_at`, and so are the others. Published: 5, 5, .01, .01 of position, orientation, velocity and
        action.
      factors: 1.2, 1, 1.4, 1.4 published.
      limits: 40, 5, 1, 1 published.
      every: 100,000 of 300,000 environment steps published.

    Raises:
      ValueError: if the numbers are not one per term, a weight begins above its limit, or `every` is below 1.
    """
    if {len(first), len(factors), len(limits)} != {len(names)}:
        raise ValueError(f"curriculum: first={first}, factors={factors}, limits={limits} need one for each of {names}")
    if every < 1 or any(low > high for low, high in zip(first, limits, strict=True)):
        raise ValueError(f"curriculum: every={every} must be 1 or more, first={first} not above limits={limits}")

    def now(state: chex.Array) -> chex.Array:
        return weights_at(state, first=first, factors=factors, limits=limits, every=every)

    def init(key: chex.PRNGKey) -> chex.Array:
        return jnp.int32(-1)  # the first update makes it 0

    def fit(state: chex.Array, observations: chex.Array, actions: chex.Array):
        weights = now(state + 1)
        return state + 1, {f"curriculum/{name}": weights[i] for i, name in enumerate(names)}

    return Adversary(init, fit, lambda state, observations, actions: pay(observations, actions, now(state)))
