"""What a training from replay is made of: a method's losses, the numbers of an update, and the state of a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rl_jax.control.replay import Priority, Replay
from rl_jax.rollout.envs.steps import Worlds
from rl_jax.training.step import TrainState


class OffPolicy(NamedTuple):
    """A method of replay. params and slow are {"critic": pytree, "actor": pytree}, as far as there are such groups.

    Attributes:
      init: (key) -> params.
      policy: (params, observations [N, ...]) -> outputs [N, ...] of the distribution. None if it has `acting`.
      critic_loss: (params, slow, ReplayBatch [N], key) -> (loss [N], size of the errors [N], {name: float []}).
      actor_loss: (params, slow, ReplayBatch [N], key) -> (loss [N], {name: float []}), or None without an actor.
      slow: the groups of which a slow copy is kept.
      acting: (params, slow, Worlds [B]) -> (outputs [B, ...], memory), for a method that acts with more than its
        newest params and the observation.
      memory: (key, B) -> the memory at the start, a pytree with B first; () without it.
      single_steps: whether the losses need the next observation after one step, as a learned model of it does.
      window: W, successive steps of each draw, for losses of sequences: the steps of a ReplayBatch are then [N, W]
        (replay.draw_windows). 0: draws of one step, or of sums over n.
      keep: (control.transitions.Transitions [B, T], outputs [B, T, ...] of the policy and the caller's columns after
        them) -> the rows that the replay holds, a NamedTuple with their `rewards`. None: the Transitions.
    """

    init: Callable
    policy: Callable | None
    critic_loss: Callable
    actor_loss: Callable | None
    slow: tuple[str, ...]
    acting: Callable | None = None
    memory: Callable | None = None
    single_steps: bool = False
    window: int = 0
    keep: Callable | None = None


class ReplaySettings(NamedTuple):
    """The numbers of an update. They may be traced where float is said.

    Attributes:
      slots: R, steps that are kept of each environment.
      warmup: random steps of each environment before the first update.
      batch_size: N, draws of one gradient step.
      kept: steps of each environment by the untrained policy (with interventions: by the expert), before the warm-up,
        which are never overwritten; half of each batch is drawn from them. 0 is none. Source: arXiv 2302.02948 (RLPD),
        symmetric sampling.
      steps: n, rewards that are summed before the value.
      discount: gamma, float.
      tau: share of the newest params in the slow copy, float; 1 copies.
      target_every: gradient steps between changes of the slow copy.
      gradient_steps: G per update.
      actor_every: E, gradient steps of the critics per one of the actor.
      max_grad_norm: float, or None.
      priority: of the draws.
      random_share: (updates so far, int32 []) -> the probability of a uniform action.
    """

    slots: int
    warmup: int
    batch_size: int
    steps: int = 1
    discount: Any = 0.99
    tau: Any = 0.005
    target_every: int = 1
    gradient_steps: int = 1
    actor_every: int = 1
    max_grad_norm: Any = None
    priority: Priority = Priority()
    kept: int = 0
    random_share: Callable = lambda updates: jnp.float32(0.0)


class ReplayState(NamedTuple):
    """Everything a run carries.

    Attributes:
      train: TrainState. params and opt_state are {"critic": one flat vector, "actor": ...}; trackers is {"slow": ...},
        the slow copies, and {"in_a_row": {group: int32 []}}, its steps skipped since the last good one, with
        {"kept": Replay} and {"taken": float32 [B, R]}, the flags of interventions, and {"adversary": its state}, if
        there are such. Its step counts gradient steps of the critics.
      worlds: state of the environments.
      replay: Replay.
      written: int32 []. Steps of each environment in the replay so far, those that were overwritten included.
      updates: int32 [].
    """

    train: TrainState
    worlds: Worlds
    replay: Replay
    written: chex.Array
    updates: chex.Array


def unravelers(method: OffPolicy) -> dict[str, Callable]:
    """group -> the function that turns its flat vector of params into the method's pytree."""
    shapes = jax.eval_shape(method.init, jax.random.key(0))
    return {
        name: ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree))[1]
        for name, tree in shapes.items()
    }


def opener(method: OffPolicy) -> Callable:
    """{group: flat vector} -> {group: pytree}, for any of the method's groups."""
    unravel = unravelers(method)
    return lambda vectors: {name: unravel[name](x) for name, x in vectors.items()}


def first_memory(method: OffPolicy, key: chex.PRNGKey, num_envs: int) -> Any:
    """The memory of a method's policy at the start of `num_envs` environments; () if it has none."""
    return () if method.memory is None else method.memory(key, num_envs)


def check(settings: ReplaySettings, num_steps: int, method: OffPolicy, *, intervening: bool = False) -> None:
    """Checks the numbers of an update against each other.

    Args:
      settings: the numbers.
      num_steps: T.
      method: the losses.
      intervening: whether an expert takes over.

    Raises:
      ValueError: if they do not divide, or the warm-up is too short for a draw or too long for the replay.
    """
    every, count = settings.actor_every, settings.gradient_steps
    if method.actor_loss is not None and max(every, count) % min(every, count):
        raise ValueError(
            f"train.gradient_steps={count} and train.actor_every={every}: one must be a multiple of the other"
        )
    if settings.slots % num_steps or settings.warmup % num_steps:
        raise ValueError(
            f"replay: {settings.slots} slots and {settings.warmup} warm-up steps of each environment must be "
            f"multiples of the {num_steps} steps of an update"
        )
    needed = method.window or max(settings.steps, 1)
    reason = f"the {needed} of a draw" if method.window else f"n_step={settings.steps}"
    if settings.kept and (settings.batch_size % 2 or settings.kept < needed or settings.priority.used()):
        raise ValueError(
            f"replay: {settings.kept} kept steps of each environment need an even batch_size={settings.batch_size}, at "
            f"least {reason} of them, and draws without priority"
        )
    if intervening and (settings.steps != 1 or not settings.kept):
        raise ValueError(
            f"algorithm.intervention needs demonstrations, replay.kept={settings.kept} above 0, and draws of single "
            f"steps: set algorithm.n_step={settings.steps} to 1"
        )
    if method.single_steps and settings.steps != 1:
        raise ValueError(
            f"algorithm.n_step={settings.steps}: this method learns a model of the next state, and a draw of several "
            f"steps has the state after all of them; set it to 1"
        )
    if not needed <= settings.warmup <= settings.slots:
        raise ValueError(
            f"replay: {settings.warmup} warm-up steps of each environment must be at least {reason}, "
            f"and fit into its {settings.slots} slots"
        )
