"""Beam search in an environment whose steps are not random and whose episodes have one length."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp


def beam_search(policy: Callable, env, key: chex.PRNGKey, *, width: int, num_steps: int) -> chex.Array:
    """The highest return of the `width` episodes that are kept.

        score(a_1 .. a_t) = sum_i log pi(a_i | s_i),   kept are the `width` beginnings of the highest scores

    Source: naver/bq-nco (arXiv 2301.03313), which decodes so and takes the shortest of the tours that are left.

    Args:
      policy: observations [W, *shape] -> logits [W, A].
      env: an envs.Environment of A actions, one of them that is impossible counts as another.
      key: of the reset; steps are not random.
      width: W; 1 always takes the likeliest action.
      num_steps: of each episode.

    Returns:
      float32 [].

    Raises:
      ValueError: if the width is below 1.
    """
    if width < 1:
        raise ValueError(f"width={width} must be 1 or more")
    first = jax.tree.map(lambda x: jnp.broadcast_to(x, (width, *jnp.shape(x))), env.reset(key))

    def step(carry, _):
        (state, observations), scores, returns = carry
        log_probs = jax.nn.log_softmax(policy(observations))
        chex.assert_shape(log_probs, (width, None))
        actions = log_probs.shape[1]
        added = jnp.broadcast_to(scores[:, None], log_probs.shape) + log_probs
        scores, index = jax.lax.top_k(added.reshape(-1), width)
        state, returns = jax.tree.map(lambda x: x[index // actions], (state, returns))
        state, now = jax.vmap(env.step, in_axes=(None, 0, 0))(key, state, (index % actions).astype(jnp.int32))
        return ((state, now.observation), scores, returns + now.reward), None

    # All begin in the same state: only the first may go on, or the others would be its copies.
    scores = jnp.where(jnp.arange(width) == 0, 0.0, -jnp.inf)
    return jnp.max(jax.lax.scan(step, (first, scores, jnp.zeros(width)), None, num_steps)[0][2])
