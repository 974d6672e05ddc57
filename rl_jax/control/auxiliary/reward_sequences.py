"""Lucy-SKG's two auxiliary networks, by its code: the reward's sign from a sequence, the state through a bottleneck.

    h   = LSTM_32(z_{t-K+1}, ..., z_t),   L_r = CE(W h, whether r_t is below, about or above 0)
    o'  = decoder_{32,128,512,512}(encoder_{128,32,16}(z_t)),   L_s = mean huber_1(o' - o_t)

Each layer of encoder and decoder is linear, then normalised over the minibatch, then rectified; the last is not
normalised.
"""

from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.auxiliary.agent_modelling import episodes_of
from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.control.auxiliary.predictions import sign_entropy
from rl_jax.core.types import Params


def steps_behind(observations: chex.Array, done: chex.Array, *, steps: int) -> dict[str, chex.Array]:
    """The K observations up to each step, as far as they are of one episode and of the rollout.

    Args:
      observations: [B, T, ...].
      done: bool [B, T], True in an episode's last step.
      steps: K.

    Returns:
      {"behind_observations" [B, T, K, ...], the newest last, "behind_valid" bool [B, T, K]}. Where it is not valid the
      observation is of some other step.
    """
    chex.assert_equal_shape_prefix([observations, done], 2)
    length, episode = done.shape[1], episodes_of(done)
    index = jnp.arange(length)[:, None] + jnp.arange(1 - steps, 1)[None]
    taken = jnp.maximum(index, 0)
    same = episode[:, taken] == episode[:, :, None]
    return {"behind_observations": observations[:, taken], "behind_valid": same & (index >= 0)[None]}


def last_state(params: Params, inputs: chex.Array, valid: chex.Array) -> chex.Array:
    """h of an LSTM after N sequences, float [N, H]; a step that is not valid leaves h and c as they are.

        i, f, g, o = W [x, h] + b,   c = sigma(f) c + sigma(i) tanh(g),   h = sigma(o) tanh(c)

    Args:
      params: "kernel" [D + H, 4 H] and "bias" [4 H].
      inputs: float [N, K, D].
      valid: bool [N, K].
    """
    chex.assert_rank([inputs, valid], [3, 2])
    size = len(params["bias"]) // 4
    start = jnp.zeros((2, len(inputs), size))

    def step(state: chex.Array, now):
        (h, c), (x, there) = state, now
        gates = jnp.concatenate([x, h], axis=1) @ params["kernel"] + params["bias"][None]
        enter, keep, new, leave = jnp.split(gates, 4, axis=1)
        c_next = jax.nn.sigmoid(keep) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        h_next = jax.nn.sigmoid(leave) * jnp.tanh(c_next)
        return jnp.where(there[None, :, None], jnp.stack([h_next, c_next]), state), None

    return jax.lax.scan(step, start, (jnp.moveaxis(inputs, 1, 0), valid.T))[0][0]


def normalised(x: chex.Array, scale: chex.Array, offset: chex.Array) -> chex.Array:
    """Batch norm of a minibatch by its own moments: float [N, D], mean 0 and variance 1 over N, scaled and moved."""
    centred = x - jnp.mean(x, axis=0, keepdims=True)
    deviation = jnp.sqrt(jnp.mean(jnp.square(centred), axis=0, keepdims=True) + 1e-5)
    return centred / deviation * scale[None] + offset[None]


def reward_sequence_and_state(
    *,
    width: int,
    make_net: Callable,
    state_size: int,
    steps: int = 20,
    threshold: float = 0.01,
    memory: int = 32,
    encoder: Sequence[int] = (128, 32, 16),
    decoder: Sequence[int] = (32, 128, 512, 512),
    rectified: bool = True,
    reward_coef: float = 1.0,
    state_coef: float = 1.0,
    coef: float = 1.0,
) -> Auxiliary:
    """The actor's layers have to say what the state was, and from K steps whether the last one paid about 0.

    Source: arXiv 2305.15801 (Lucy-SKG) and its code's AuxPPO, SeqRewardPredictionNetwork and
    DeepStateRepresentationNetwork: sizes, K, the two losses and their weights, 1, in PPO's loss. Departs: z is the
    actor's representation, where there a cross-attention of each network's own reads the actor's embeddings of the
    players and the ball; a step before the episode's start does not count (how the code fills it up was not read).

    Args:
      width: of z.
      make_net: models.agents.features.make_net.
      state_size: numbers of an observation.
      steps: K; 20 there.
      threshold: a reward of at most this size is about 0; the code has it as an argument.
      memory: of the LSTM.
      encoder: widths of the encoder's layers; the last is the code of the state.
      decoder: widths of the decoder's layers before the state.
      rectified: whether the decoder's output is at least 0, as in the code: no state with negative numbers is learned.
      reward_coef: weight of L_r.
      state_coef: weight of L_s.
      coef: weight of both.

    Raises:
      ValueError: if steps is below 1.
    """
    if steps < 1:
        raise ValueError(f"algorithm.auxiliary.steps={steps} must be 1 or more")
    widths = (width, *encoder, *decoder, state_size)
    layers = [make_net(one, other, hidden=()) for one, other in zip(widths, widths[1:], strict=False)]
    head = make_net(memory, 3, hidden=())

    def init(key: chex.PRNGKey) -> Params:
        head_key, memory_key, *keys = jax.random.split(key, len(layers) + 2)
        stack = [layer.init(k) for k, layer in zip(keys, layers, strict=True)]
        bound = memory**-0.5
        kernel = jax.random.uniform(memory_key, (width + memory, 4 * memory), minval=-bound, maxval=bound)
        norms = [{"scale": jnp.ones(size), "offset": jnp.zeros(size)} for size in widths[1:-1]]
        lstm = {"kernel": kernel, "bias": jnp.zeros(4 * memory)}
        return {"head": head.init(head_key), "memory": lstm, "layers": stack, "norms": norms}

    def state_of(params: Params, z: chex.Array) -> chex.Array:
        for place, layer in enumerate(layers):
            z = layer.apply(params["layers"][place], z)
            if place < len(layers) - 1:
                z = jax.nn.relu(normalised(z, **params["norms"][place]))
        return jax.nn.relu(z) if rectified else z

    def loss(params, features, observations, actions, next_observations, key, extras) -> chex.Array:
        count, shape = len(observations), observations.shape[1:]
        rewards = extras["step_rewards"].reshape(-1)
        chex.assert_shape(rewards, (count,))
        behind, valid = extras["behind_observations"], extras["behind_valid"].reshape(count, steps)
        codes = features(behind.reshape(count * steps, *shape)).reshape(count, steps, -1)
        logits = head.apply(params["head"], last_state(params["memory"], codes, valid))
        of_rewards = jnp.mean(sign_entropy(logits, rewards, threshold))
        apart = jnp.abs(state_of(params, features(observations)) - observations.reshape(count, -1))
        of_states = jnp.mean(jnp.where(apart < 1.0, 0.5 * jnp.square(apart), apart - 0.5))
        return reward_coef * of_rewards + state_coef * of_states

    def look(observations, next_observations, actions, rewards, done) -> dict[str, chex.Array]:
        return steps_behind(observations, done, steps=steps)

    return Auxiliary(init, loss, coef, reads_extras=True, look=look)
