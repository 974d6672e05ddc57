"""The value losses of offline methods under Q estimates of which some are far off."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import optax

from experiments.studies.base import Outcome, per_seed, seed_keys
from rl_jax.core.binding import bind
from rl_jax.losses import offline


def value_outliers(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    actions: int,
    outliers: float,
    size: float,
    batch_size: int,
    steps: int,
    learning_rate: float,
) -> Outcome:
    """V of one state, fitted to Q of its actions by each loss, without and with outliers of the same batches.

    Q of action i is i + N(0, .1^2); a share `outliers` of the samples has N(0, size^2) on top. V begins at 0 and makes
    `steps` updates of Adam; nothing guards it. Metrics: finite, 1 if V is at the end; shift, |V - V without outliers|,
    at most `size`, in units of the range of Q, actions - 1. A lost V is given `size`, too, so its shift is a convention
    and no result. Source: arXiv 2302.08560 section 5.

    Args:
      seeds: of the batches.
      arms: name -> a function of rl_jax.losses.offline.
      actions: number of actions, equally likely.
      outliers: share of the samples.
      size: deviation of an outlier.
      batch_size: samples per update.
      steps: updates.
      learning_rate: of Adam.
    """
    optimizer = optax.adam(learning_rate)

    def fitted(loss, key, share: float):
        def update(carry, key):
            value, state = carry
            action_key, noise_key, coin_key, far_key = jax.random.split(key, 4)
            q = jax.random.randint(action_key, (batch_size,), 0, actions).astype(jnp.float32)
            q = q + 0.1 * jax.random.normal(noise_key, (batch_size,))
            wrong = jax.random.uniform(coin_key, (batch_size,)) < share
            q = q + jnp.where(wrong, size * jax.random.normal(far_key, (batch_size,)), 0.0)
            slope = jax.grad(lambda v: jnp.mean(loss(jnp.broadcast_to(v, (batch_size,)), q)))(value)
            change, state = optimizer.update(slope, state, value)
            return (value + change, state), None

        begin = jnp.float32(0.0)
        return jax.lax.scan(update, (begin, optimizer.init(begin)), jax.random.split(key, steps))[0][0]

    def study(key):
        result = {}
        for arm, spec in arms.items():
            loss = bind(dict(spec), offline)
            clean, value = fitted(loss, key, 0.0), fitted(loss, key, outliers)
            finite = jnp.isfinite(value)
            shift = jnp.where(finite, jnp.minimum(jnp.abs(value - clean), size), size) / (actions - 1)
            result[arm] = {"finite": finite.astype(jnp.float32), "shift": shift, "clean": clean}
        return result

    found = jax.jit(jax.vmap(study))(seed_keys(seeds))
    return Outcome({arm: per_seed(metrics) for arm, metrics in found.items()})
