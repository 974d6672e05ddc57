"""Two levels: a high level says a command in words, a low level does it; both are cloned, the high one is corrected.

    z = h(s),  y = argmax_c cos(z, e_c)           the command whose words' embedding is nearest
    a = l(s, e_y)                                 the low level reads the command's embedding
    h: min -log softmax(cos(z, e) / tau)_y        losses.commands, on the commands that were said
    l: min |l(s, e_y) - a|^2                      on the actions that were done under a command

Yell At Your Robot (arXiv 2403.12910): somebody watches and says another command where the robot's is wrong. It is done
at once, and h is trained further on (s, what they said), round after round, while l stays as it is. A batch has a share
of the newest round's corrections and the rest of all older data (`draw_rounds`). Its code: yay-robot/yay_robot,
src/instructor and act/utils.py. AD-H (arXiv 2406.03474) clones both levels of a driver, its commands found in recorded
driving by rules.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control.cloning import clone
from rl_jax.control.relabelling.base import begin, descend
from rl_jax.losses.commands import command_logits, command_loss


class Levels(NamedTuple):
    """The networks and the commands they share.

    Attributes:
      high: with init and apply, as models.agents.features.Net: [N, D] -> [N, E], z.
      low: likewise: [N, D + E] -> [N, A], actions.
      commands: float32 [C, E], embeddings of the commands' words.
    """

    high: Any
    low: Any
    commands: chex.Array


class Said(NamedTuple):
    """Steps with the command that was said.

    Attributes:
      observations: float32 [N, D].
      commands: int32 [N].
      actions: float32 [N, A]; () where only the commands are known.
    """

    observations: chex.Array
    commands: chex.Array
    actions: Any = ()


class Watched(NamedTuple):
    """An episode of T steps; what comes after its end is not `alive`.

    Attributes:
      observations: float32 [T, D], before each step.
      own: int32 [T], the high level's commands.
      done: int32 [T], the commands that were done.
      spoke: bool [T], where somebody said another one.
      actions: float32 [T, A].
      rewards: float32 [T], 0 after the end.
      alive: bool [T].
      last: float32 [D], the observation of the last step.
    """

    observations: chex.Array
    own: chex.Array
    done: chex.Array
    spoke: chex.Array
    actions: chex.Array
    rewards: chex.Array
    alive: chex.Array
    last: chex.Array


def new_high(levels: Levels, key: chex.PRNGKey) -> dict:
    """The high level's params: its network's, and tau = 1."""
    return {"net": levels.high.init(key), "temperature": jnp.float32(1.0)}


def commanded(levels: Levels, high: dict, observations: chex.Array) -> chex.Array:
    """argmax_c cos(h(s), e_c): float [N, D] -> int32 [N]."""
    logits = command_logits(levels.high.apply(high["net"], observations), levels.commands, high["temperature"])
    return jnp.argmax(logits, axis=1).astype(jnp.int32)


def done_under(levels: Levels, low: Any, observations: chex.Array, commands: chex.Array) -> chex.Array:
    """l(s, e_y): float [N, D], int [N] -> float [N, A]."""
    words = jnp.asarray(levels.commands)[commands]
    return levels.low.apply(low, jnp.concatenate([observations, words], axis=1))


def draw_rounds(
    key: chex.PRNGKey, newest: int | chex.Array, others: int | chex.Array, size: int, *, share: float
) -> chex.Array:
    """Places of a batch in [others, newest]: int(share size) of the newest round, the rest of the others.

    With replacement, each of a part as likely; where one part has no steps all are of the other. Source: arXiv
    2403.12910, src/act/utils.py: DAggerSampler and its dagger_ratio. Departs: there a batch without the other part is
    smaller.

    Args:
      key: typed PRNG key.
      newest: steps of the newest round, which come last. int or int [].
      others: steps before them. int or int []; one of both is above 0.
      size: N.
      share: of the newest round.

    Returns:
      int32 [N].

    Raises:
      ValueError: if the share is not from 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"draw_rounds: share={share} must be from 0 to 1")
    from_newest = (jnp.arange(size) < int(size * share)) & (newest > 0) | (jnp.asarray(others) == 0)
    low = jnp.where(from_newest, others, 0)
    high = jnp.where(from_newest, others + newest, others)
    return jax.random.randint(key, (size,), low, high).astype(jnp.int32)


def high_fitter(
    levels: Levels, *, share: float = 0.5, steps: int = 500, batch_size: int = 64, learning_rate: float = 3e-3
) -> Callable:
    """(high, rounds of Said, key) -> the high level trained further on all that was said, the newest round last.

    The low level is not touched. Rows are padded to a power of two, so that few programs serve all rounds.

    Args:
      levels: see Levels.
      share: of a batch that the newest round gets.
      steps: of Adam.
      batch_size: N.
      learning_rate: of Adam.

    Raises:
      ValueError: by the fitter, if nobody has said a command yet.
    """
    optimizer = optax.adam(learning_rate)

    @jax.jit
    def fitted(high, observations, said, newest, others, key):
        def loss_fn(params: dict, key: chex.PRNGKey) -> chex.Array:
            rows = draw_rounds(key, newest, others, batch_size, share=share)
            found = levels.high.apply(params["net"], observations[rows])
            return jnp.mean(command_loss(found, levels.commands, said[rows], params["temperature"]))

        return descend(loss_fn, begin(high, optimizer, key), optimizer, steps=steps).params

    def fit(high: dict, rounds: Sequence[Said], key: chex.PRNGKey) -> dict:
        observations, said = (np.concatenate([np.asarray(x[i]) for x in rounds]) for i in range(2))
        if not len(said):
            raise ValueError("high_fitter: nobody has said a command yet")
        newest = len(rounds[-1].commands) if len(rounds) > 1 else 0
        more = (1 << (len(said) - 1).bit_length()) - len(said)
        padded = np.pad(observations, ((0, more), (0, 0))), np.pad(said, (0, more))
        return fitted(high, *padded, newest, len(said) - newest, key)

    return fit


def fit_low(
    levels: Levels,
    shown: Said,
    key: chex.PRNGKey,
    *,
    steps: int = 500,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
) -> Any:
    """Clones the low level from actions that were done under commands: min |l(s, e_y) - a|^2.

    Args:
      levels: see Levels.
      shown: with actions.
      key: typed PRNG key.
      steps: of Adam.
      batch_size: N.
      learning_rate: of Adam.
    """
    chex.assert_equal_shape_prefix(list(shown), 1)

    @jax.jit
    def fitted(key: chex.PRNGKey) -> Any:
        init_key, key = jax.random.split(key)
        seen, said, actions = (jnp.asarray(x) for x in shown)
        inputs = jnp.concatenate([seen, jnp.asarray(levels.commands)[said]], axis=1)
        options = dict(steps=steps, batch_size=batch_size, learning_rate=learning_rate)
        return clone(levels.low.apply, levels.low.init(init_key), inputs, actions, key, **options)

    return fitted(key)


def watch(env, levels: Levels, high: dict, low: Any, speaker: Callable, key: chex.PRNGKey, *, steps: int) -> Watched:
    """An episode in which `speaker` may say another command than the high level, which is then done.

    Args:
      env: an envs.protocol.Environment whose actions are numbers.
      levels: see Levels.
      high: params of the high level.
      low: params of the low level.
      speaker: (observation [D], the high level's command int []) -> (a command int [], whether it is said, bool []).
      key: typed PRNG key.
      steps: T.
    """
    reset_key, key = jax.random.split(key)
    state, seen = env.reset(reset_key)

    def turn(carry, key: chex.PRNGKey):
        state, seen, alive = carry
        own = commanded(levels, high, seen[None])[0]
        other, speaks = speaker(seen, own)
        command = jnp.where(speaks, other, own)
        action = done_under(levels, low, seen[None], command[None])[0]
        moved, now = env.step(key, state, action)
        following = jnp.where(alive, now.observation, seen)
        row = (seen, own, command, speaks & alive, action, jnp.where(alive, now.reward, 0.0), alive)
        return (moved, following, alive & ~now.done), row

    (_, last, _), rows = jax.lax.scan(turn, (state, seen, jnp.bool_(True)), jax.random.split(key, steps))
    return Watched(*rows, last)


def corrections(watched: Watched) -> Said:
    """What was said against the high level, and where: of episodes with any leading axes, on the host."""
    spoke = np.asarray(watched.spoke)
    return Said(np.asarray(watched.observations)[spoke], np.asarray(watched.done)[spoke])
