"""A code of the last K observations and actions, networks that read the code, and a model of what follows it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.decision_transformer import Sequence
from rl_jax.models.agents.offline_networks import OfflineNetworks, make_networks

MIN_LOG_STD, MAX_LOG_STD = -4.0, 1.0


class HistoryNetworks(NamedTuple):
    """Pure functions of params {"history", "model"} and those of `readers`.

    Attributes:
      init: (key) -> params.
      encode: (params, Sequence [N, K]) -> z float32 [N, Z]. Not read: the newest step's action, the returns to go.
      predict: (params, z [N, Z], actions) -> (rewards [N], means [N, Z], stds [N, Z]) of the next code.
      readers: OfflineNetworks whose observations are codes.
      size: A, numbers of an encoded action.
      context: K.
      sequence: makes a Sequence of its fields.
    """

    init: Callable
    encode: Callable
    predict: Callable
    readers: OfflineNetworks
    size: int
    context: int
    sequence: Callable = Sequence


def make_history_networks(
    observation_shape: tuple[int, ...], *, code: int, context: int, kind: dict[str, Any], **layers: Any
) -> HistoryNetworks:
    """HistoryNetworks of networks of offline_networks; the encoder reads the K steps as one vector.

    Args:
      observation_shape: of one observation; it is flattened.
      code: Z.
      context: K.
      kind: of make_networks: num_actions, or low and high.
      **layers: of make_networks.
    """
    readers = make_networks((code,), **kind, **layers)
    step = math.prod(observation_shape) + readers.size + 1
    encoder = make_networks((context * step,), num_actions=code, **layers)
    model = make_networks((code + readers.size,), num_actions=2 * code + 1, **layers)

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        reader_key, encoder_key, model_key = jax.random.split(key, 3)
        params = readers.init(reader_key)
        return params | {"history": encoder.init(encoder_key)["policy"], "model": model.init(model_key)["policy"]}

    def encode(params: dict[str, Any], seen: Sequence) -> chex.Array:
        rows, length = seen.mask.shape
        chex.assert_shape(seen.observations, (rows, context, *observation_shape))
        # An action counts from the step after it on.
        known = seen.mask[:, :, None] & (jnp.arange(length) < length - 1)[None, :, None]
        inputs = [
            jnp.where(seen.mask[:, :, None], seen.observations.reshape(rows, length, -1), 0.0),
            jnp.where(known, seen.actions, 0.0),
            seen.mask[:, :, None].astype(jnp.float32),
        ]
        return encoder.policy({"policy": params["history"]}, jnp.concatenate(inputs, axis=-1).reshape(rows, -1))

    def predict(params: dict[str, Any], codes: chex.Array, actions: chex.Array):
        inputs = jnp.concatenate([codes, readers.encode(actions)], axis=-1)
        outputs = model.policy({"policy": params["model"]}, inputs)
        means, log_stds = outputs[:, :code], jnp.clip(outputs[:, code:-1], MIN_LOG_STD, MAX_LOG_STD)
        return outputs[:, -1], codes + means, jnp.exp(log_stds)

    return HistoryNetworks(init, encode, predict, readers, readers.size, context)
