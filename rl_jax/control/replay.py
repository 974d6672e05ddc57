"""Replay as arrays in the training state: a ring of steps per environment, drawn from uniformly or by priority.

Every function is pure, so a replay is checkpointed, resumed, mapped over seeds and split over devices like the rest of
the state. A ring has R slots for each of B environments; successive slots of an environment are successive steps, so
sums over n steps are made when a batch is drawn.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.sum_tree import draw_stratified
from rl_jax.control.transitions import Transitions
from rl_jax.losses.td import n_step as sum_steps


class Replay(NamedTuple):
    """The newest R steps of each of B environments.

    Attributes:
      rows: Transitions [B, R], or what a method keeps instead (OffPolicy.keep). Slot i holds the newest step whose
        number is i modulo R.
      priorities: float32 [B, R], p^exponent; 0 where nothing is written, or the error was not finite. () if draws are
        uniform.
    """

    rows: Transitions
    priorities: Any


class ReplayBatch(NamedTuple):
    """N draws.

    Attributes:
      steps: Transitions [N]; rewards are sums over n steps, next_observations those after the last of them. Of
        `draw_windows`: rows [N, W] as they were kept, discounts [N, W].
      discounts: float32 [N], of the value after the last step: gamma^m, and 0 if the task ended.
      weights: float32 [N], importance weights, 1 at most; all 1 if draws are uniform.
      places: int32 [N, 2], environment and slot, for `with_priorities`.
    """

    steps: Transitions
    discounts: chex.Array
    weights: chex.Array
    places: chex.Array


class Priority(NamedTuple):
    """How much the size of an error counts. Source: arXiv 1511.05952.

    Attributes:
      exponent: omega of P(i) ~ p_i^omega; 0 (a plain number) is a uniform draw.
      correction: beta of the weights (N P(i))^-beta; 1 removes the bias.
      floor: added to each error, so that every step can be drawn.
    """

    exponent: Any = 0.0
    correction: Any = 0.4
    floor: float = 1e-3

    def used(self) -> bool:
        """Whether draws are by priority; an exponent that is traced (swept) counts as used."""
        return not (isinstance(self.exponent, int | float) and self.exponent == 0)


UNIFORM = Priority()


def empty(rows: Transitions, slots: int, priority: Priority) -> Replay:
    """A replay of R = slots slots, for rows [B, T] of these shapes (arrays or shapes)."""
    blank = jax.tree.map(lambda x: jnp.zeros((x.shape[0], slots, *x.shape[2:]), x.dtype), rows)
    shape = blank.rewards.shape
    return Replay(blank, jnp.zeros(shape) if priority.used() else ())


def add(replay: Replay, written: chex.Array, rows: Transitions) -> Replay:
    """The replay after T more steps of each environment. New ones get the largest priority there is, 1 at first.

    Args:
      replay: R slots, a multiple of T, so that a write never wraps around.
      written: int32 []. Steps written so far per environment, a multiple of T.
      rows: [B, T].

    Raises:
      ValueError: if R is no multiple of T.
    """
    slots, count = replay.rows.rewards.shape[1], rows.rewards.shape[1]
    if slots % count:
        raise ValueError(f"a replay of {slots} steps per environment is no multiple of the {count} that are written")
    at = written % slots

    def write(old: chex.Array, new: chex.Array) -> chex.Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), at, axis=1)

    priorities = replay.priorities
    if not isinstance(priorities, tuple):
        largest = jnp.max(priorities)
        priorities = write(priorities, jnp.full(rows.rewards.shape, jnp.where(largest > 0, largest, 1.0)))
    return Replay(jax.tree.map(write, replay.rows, rows), priorities)


def cut_off(replay: Replay, written: chex.Array) -> Replay:
    """The replay whose newest step of each environment ends its episode: what is written next does not go on from it.

    Args:
      replay: with rows of any kind that have `terminated` and `truncated`, bool [B, R].
      written: int32 []. Steps written so far per environment, 1 or more.
    """
    rows = replay.rows
    newest = (written - 1) % rows.rewards.shape[1]
    truncated = rows.truncated.at[:, newest].set(~rows.terminated[:, newest])
    return replay._replace(rows=rows._replace(truncated=truncated))


def draw(
    replay: Replay,
    written: chex.Array,
    key: chex.PRNGKey,
    size: int,
    *,
    discount: float,
    steps: int = 1,
    priority: Priority = UNIFORM,
    axis_name=None,
    pay: Callable | None = None,
) -> ReplayBatch:
    """N = size draws with replacement.

        uniform:     every start of n whole steps is as likely
        by priority: P(i) = p_i^omega / sum p^omega, w_i = (M P(i))^-beta / max w, M starts

    By priority the unit interval is cut into N equal parts, and one number is drawn in each (sum_tree). Finding them
    takes a sum over the whole replay.

    Args:
      replay: with at least n steps written.
      written: int32 []. Steps written so far per environment.
      key: typed PRNG key.
      size: N.
      discount: gamma.
      steps: n. The newest n - 1 steps of each environment start no draw.
      priority: as at `empty`.
      axis_name: mapped axis over which the environments are spread; each part draws from its own.
      pay: (observations [M, ...], actions [M, ...]) -> rewards [M] in the place of the stored ones.
    """
    slots = replay.rows.rewards.shape[1]
    env, slot, weights = _starts(replay, written, key, size, steps=steps, priority=priority, axis_name=axis_name)
    places = jnp.stack([env, slot], axis=1).astype(jnp.int32)
    first = _read(replay.rows, written, env, slot)
    if steps == 1:
        found = _paid(first, pay)
        discounts = jnp.where(found.terminated, 0.0, discount)
        return ReplayBatch(found, discounts, weights, places)
    of = _paid(_windows(replay, written, env, slot, steps), pay)
    total, discounts, last = sum_steps(of.rewards, of.terminated, of.truncated, discount)
    end = _read(replay.rows, written, env, (slot + last) % slots)
    found = end._replace(observations=first.observations, actions=first.actions, rewards=total)
    return ReplayBatch(found, discounts, weights, places)


def draw_windows(
    replay: Replay,
    written: chex.Array,
    key: chex.PRNGKey,
    size: int,
    *,
    discount: float,
    length: int,
    priority: Priority = UNIFORM,
    axis_name=None,
    pay: Callable | None = None,
) -> ReplayBatch:
    """N = size draws of W = length successive steps, across the ends of episodes: steps and discounts are [N, W].

    Args:
      replay: with at least W steps written; rows of any kind with `rewards` and `terminated`.
      written: as at `draw`.
      key: as at `draw`.
      size: as at `draw`.
      discount: gamma, of a single step.
      length: W. The newest W - 1 steps of each environment start no draw.
      priority: as at `draw`.
      axis_name: as at `draw`.
      pay: as at `draw`.
    """
    env, slot, weights = _starts(replay, written, key, size, steps=length, priority=priority, axis_name=axis_name)
    found = _paid(_windows(replay, written, env, slot, length), pay)
    places = jnp.stack([env, slot], axis=1).astype(jnp.int32)
    return ReplayBatch(found, jnp.where(found.terminated, 0.0, discount), weights, places)


def _starts(replay: Replay, written, key: chex.PRNGKey, size: int, *, steps: int, priority: Priority, axis_name):
    """(environments [N], slots [N], weights [N]) of the first of `steps` successive steps; arguments as `draw`'s."""
    envs, slots = replay.rows.rewards.shape
    held = jnp.minimum(written, slots)
    starts = held - (steps - 1)  # per environment
    oldest = jnp.where(written > slots, written % slots, 0)
    if isinstance(replay.priorities, tuple):
        # One draw of a number below starts x envs: its two parts are independent.
        place = jax.random.randint(key, (size,), 0, starts * envs)
        env, slot = place // starts, (oldest + place % starts) % slots
        weights = jnp.ones(size)
    else:
        age = (jnp.arange(slots) - oldest) % slots
        likely = jnp.where((age < starts)[None, :], replay.priorities, 0.0).reshape(-1)
        place, total = draw_stratified(likely, key, size)
        env, slot = place // slots, place % slots
        chance = likely[place] / total * (starts * envs)
        weights = jnp.power(jnp.maximum(chance, 1e-12), -priority.correction)
        largest = jnp.max(weights)
        weights = weights / (largest if axis_name is None else jax.lax.pmax(largest, axis_name))
    return env, slot, weights


def _windows(replay: Replay, written: chex.Array, env: chex.Array, slot: chex.Array, length: int):
    """The rows [N, length] from these places [N] on."""
    window = (slot[:, None] + jnp.arange(length)[None, :]) % replay.rows.rewards.shape[1]
    return _read(replay.rows, written, env[:, None], window)


def _read(rows: Transitions, written: chex.Array, env: chex.Array, slot: chex.Array) -> Transitions:
    """The rows of these environments and slots, two int32 arrays that broadcast; zeros of a replay without any.

    On a CPU they are read in a branch: XLA would fuse a plain read with the write before it, and then write into a
    copy of the whole replay, at each update.
    """

    def read(rows: Transitions) -> Transitions:
        return jax.tree.map(lambda x: x[env, slot], rows)

    if jax.default_backend() != "cpu":
        return read(rows)
    shapes = jax.eval_shape(read, rows)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.cond(written > 0, read, lambda rows: zeros, rows)


def _paid(rows: Transitions, pay: Callable | None) -> Transitions:
    """The rows [N] or [N, n] with the rewards of `pay`, if there is one."""
    if pay is None:
        return rows
    shape = rows.rewards.shape
    observations, actions = (x.reshape(-1, *x.shape[len(shape) :]) for x in (rows.observations, rows.actions))
    return rows._replace(rewards=pay(observations, actions).reshape(shape))


def with_priorities(replay: Replay, places: chex.Array, errors: chex.Array, priority: Priority) -> Replay:
    """The replay after these steps were trained on. A step whose error is not finite has priority 0 from then on.

    Args:
      replay: after the draw of these steps.
      places: int32 [N, 2], environment and slot.
      errors: float [N], their sizes.
      priority: as at `empty`.
    """
    if isinstance(replay.priorities, tuple):
        return replay
    raised = jnp.power(jnp.abs(errors) + priority.floor, priority.exponent)
    # Its old priority would have it drawn again, and each batch that it is in has no finite gradient.
    raised = jnp.where(jnp.isfinite(errors) & jnp.isfinite(raised), raised, 0.0)
    return replay._replace(priorities=replay.priorities.at[places[:, 0], places[:, 1]].set(raised))


def join(left: ReplayBatch, right: ReplayBatch) -> ReplayBatch:
    """The draws of both, the left ones first."""
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), left, right)
