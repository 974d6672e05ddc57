"""A policy that acts by a code of what should happen, and an encoder of episodes into such codes (OPPO)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.offline_networks import OfflineNetworks, make_networks


class HindsightPolicy(NamedTuple):
    """Pure functions of params {"encoder", "policy", "goal"}.

    Attributes:
      init: (key) -> params.
      encode: (params, OfflineData [m, K], mask bool [m, K]) -> z float32 [m, Z].
      clone: (params, OfflineData [m, K], z [m, Z]) -> float32 [m, K], squared errors or -log probs of the actions.
      policy: (params, observations [n, ...]) -> outputs [n, ...], of the code "goal".
    """

    init: Callable
    encode: Callable
    clone: Callable
    policy: Callable


def make_hindsight_policy(
    observation_shape: tuple[int, ...], networks: OfflineNetworks, *, code: int, kind: dict[str, Any], **layers
) -> HindsightPolicy:
    """A HindsightPolicy of two networks of offline_networks.

    Args:
      observation_shape: of one observation; it is flattened.
      networks: for the actions' distribution and encoding.
      code: Z; 16 published.
      kind: of make_networks: num_actions, or low and high.
      **layers: of make_networks.
    """
    flat = math.prod(observation_shape)
    actor = make_networks((flat + code,), **kind, **layers)
    encoder = make_networks((flat + networks.size,), num_actions=code, **layers)

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        actor_key, encoder_key, goal_key = jax.random.split(key, 3)
        return {
            "policy": actor.init(actor_key)["policy"],
            "encoder": encoder.init(encoder_key)["policy"],
            "goal": jax.random.normal(goal_key, (code,)) * code**-0.5,
        }

    def encode(params: dict[str, Any], data, mask: chex.Array) -> chex.Array:
        rows, length = mask.shape
        inputs = [data.steps.observations.reshape(rows * length, -1).astype(jnp.float32)]
        inputs.append(networks.encode(data.steps.actions).reshape(rows * length, -1))
        each = encoder.policy({"policy": params["encoder"]}, jnp.concatenate(inputs, axis=-1))
        weights = mask / jnp.sum(mask, axis=1, keepdims=True)
        return jnp.sum(each.reshape(rows, length, -1) * weights[:, :, None], axis=1)

    def outputs_of(params: dict[str, Any], observations: chex.Array, codes: chex.Array) -> chex.Array:
        flat_observations = observations.reshape(len(codes), -1).astype(jnp.float32)
        return actor.policy(params, jnp.concatenate([flat_observations, codes], axis=-1))

    def clone(params: dict[str, Any], data, codes: chex.Array) -> chex.Array:
        actions = data.steps.actions
        rows, length = actions.shape[:2]
        repeated = jnp.repeat(codes, length, axis=0)
        outputs = outputs_of(params, data.steps.observations.reshape(rows * length, -1), repeated)
        actions = actions.reshape(rows * length, *actions.shape[2:])
        if networks.num_actions:
            return -networks.distribution.log_prob(outputs, actions).reshape(rows, length)
        return jnp.mean(jnp.square(networks.distribution.mode(outputs) - actions), axis=-1).reshape(rows, length)

    def policy(params: dict[str, Any], observations: chex.Array) -> chex.Array:
        return outputs_of(params, observations, jnp.broadcast_to(params["goal"], (len(observations), code)))

    return HindsightPolicy(init, encode, clone, policy)
