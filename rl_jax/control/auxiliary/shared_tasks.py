"""Several tasks on the layers of the actor, kept from blurring into each other and from going different ways.

sum_t L_t + c_e mean entropy(S) + c_a mean alignment(S),   S_t = dL_t / dz                    (losses.saliency)
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.control.auxiliary.predictions import sign_entropy
from rl_jax.core.types import Params
from rl_jax.losses import saliency

TASKS = ("reward", "state", "next")


def rep_mtl(
    *,
    width: int,
    action_size: int,
    make_net: Callable,
    state_size: int,
    threshold: float = 0.01,
    entropy_coef: float = 0.9,
    alignment_coef: float = 0.9,
    temperature: float = 0.1,
    coef: float = 0.1,
    rows: int = 128,
) -> Auxiliary:
    """Three predictions from z with Rep-MTL's two losses: the reward's sign, the state, and the next state.

        L_reward = CE(head_r(z, a), sign class of r)
        L_state  = mean (head_s(z) - o)^2
        L_next   = mean (head_n(z, a) - o')^2

    Source: arXiv 2507.21049, whose representation is an encoder's of images and whose tasks are labels of them: here it
    is z, one place of `width` channels. The policy is a further task on the same layers, but its saliency is not read.
    Both coefficients at 0 are the tasks alone, equal weights, its baseline. The paper does not say tau.

    Args:
      width: of z.
      action_size: numbers of an action; discrete ones are one-hot.
      make_net: models.agents.features.make_net.
      state_size: numbers of an observation.
      threshold: a reward of at most this size is about 0.
      entropy_coef: c_e; .7 to 1.5 published.
      alignment_coef: c_a; .7 to 1.5 published.
      temperature: tau.
      coef: weight of the whole.
      rows: of the minibatch whose saliencies are read, the first ones.
    """
    sizes = {
        "reward": (width + action_size, 3),
        "state": (width, state_size),
        "next": (width + action_size, state_size),
    }
    heads = {name: make_net(*size, hidden=(width,)) for name, size in sizes.items()}

    def init(key: chex.PRNGKey) -> Params:
        keys = jax.random.split(key, len(heads))
        return {name: heads[name].init(k) for k, name in zip(keys, TASKS, strict=True)}

    def loss(params, features, observations, actions, next_observations, key, extras) -> chex.Array:
        z, rewards = features(observations), extras["step_rewards"].reshape(-1)
        chex.assert_equal_shape_prefix([z, actions, rewards], 1)
        seen, after = (
            jax.lax.stop_gradient(x.reshape(len(x), -1).astype(z.dtype)) for x in (observations, next_observations)
        )

        def tasks(z: chex.Array) -> chex.Array:
            """float [T, n]."""
            with_action = jnp.concatenate([z, actions[: len(z)]], axis=1)
            said = {name: heads[name].apply(params[name], z if name == "state" else with_action) for name in TASKS}
            gaps = (
                jnp.mean(jnp.square(said[name] - x[: len(z)]), axis=1) for name, x in (("state", seen), ("next", after))
            )
            return jnp.stack([sign_entropy(said["reward"], rewards[: len(z)], threshold), *gaps])

        # A row's loss reads its own z only, so the gradient of the sum has every row's.
        saliencies = jax.jacrev(lambda z: jnp.sum(tasks(z), axis=1))(z[:rows])[:, :, None]
        blurred = jnp.mean(saliency.task_entropy(saliencies))
        apart = jnp.mean(saliency.saliency_alignment(saliencies, temperature=temperature))
        return jnp.sum(jnp.mean(tasks(z), axis=1)) + entropy_coef * blurred + alignment_coef * apart

    return Auxiliary(init, loss, coef, reads_extras=True)
