"""Learning from replay: one update of critics, and of an actor if there is one, as a pure function of all of a run.

    T steps of B environments  -> the ring                                             replay.add
    G times: N draws           -> loss of the critics, one optimizer step              method.critic_loss
             slow copy <- (1 - tau) slow copy + tau params
             every E-th time   -> loss of the actor, one optimizer step                method.actor_loss

So the slow actor follows one of the actor's steps later than in TD3's code, which copies after both.

Methods (DQN, TD3, SAC, REDQ ... in replay_methods.py) are choices of the losses; heads (losses.value_heads) of what a
critic's outputs mean. The functions have the form of update.make_update: they work under jit, lax.scan, lax.map, vmap
and, with `axis_name`, with environments and rings spread over devices.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rl_jax.control import interventions
from rl_jax.control.adversaries import Adversary
from rl_jax.control.replay import Replay, add, empty
from rl_jax.control.replay_learning import make_draws, make_learner
from rl_jax.control.replay_types import OffPolicy, ReplaySettings, ReplayState, check, first_memory, opener
from rl_jax.control.transitions import Transitions
from rl_jax.control.update import own_key
from rl_jax.core.masked import Max, Mean
from rl_jax.rollout.envs.steps import Worlds, collect, start
from rl_jax.training.step import TrainState


def make_replay_update(
    method: OffPolicy,
    distribution,
    env,
    settings: ReplaySettings,
    optimizers: dict[str, optax.GradientTransformation],
    *,
    num_steps: int,
    axis_name=None,
    learn_from: Callable | None = None,
    intervention: Callable | None = None,
    adversary: Adversary | None = None,
) -> tuple[Callable, Callable, Callable]:
    """Builds the pure functions of a training run from replay.

    Args:
      method: the losses.
      distribution: of the actions, whose last output is the probability of a uniform one
        (models.agents.exploration.exploring).
      env: envs.Vector.
      settings: the numbers.
      optimizers: group of params -> optax transformation.
      num_steps: T, steps of each environment per update.
      axis_name: mapped axis over which the environments are spread. Gradients are summed over it; draws are each
        part's own.
      learn_from: (state, key) -> ReplayBatch, instead of a draw from the replay alone.
      intervention: observations [B, ...] -> (the expert's actions [B, D] as the distribution stores them, bool [B]
        whether it takes over). The distribution is then one of models.agents.exploration.intervened.
      adversary: learns on a draw before the method's steps, and pays every draw instead of the environment.

    Returns:
      (init, update, policy_of), see update.make_update; init(key) -> ReplayState.

    Raises:
      ValueError: if numbers do not divide.
    """
    check(settings, num_steps, method, intervening=intervention is not None)
    if adversary is not None and (intervention is not None or learn_from is not None):
        raise ValueError("an adversary pays draws from the replay alone: no intervention, no learn_from")
    opened = opener(method)
    learn = make_learner(method, settings, optimizers, axis_name=axis_name, learn_from=learn_from, adversary=adversary)
    judged = _make_judged(settings, adversary, axis_name)

    acting = make_acting(method, intervention)
    gathered = _make_gathered(acting, distribution, env, intervention is not None, method.keep)

    def both(train: TrainState):
        """(params, slow copies) as the method's pytrees."""
        return opened(train.params), opened(train.trackers["slow"])

    init = _make_init(method, env, settings, optimizers, gathered, both, axis_name, intervention, adversary)

    def update(state: ReplayState):
        key = own_key(jax.random.fold_in(state.train.rng, state.updates), axis_name)
        act_key, learn_key = jax.random.split(key)
        share = settings.random_share(state.updates)
        worlds, rows, taken, metrics = gathered(*both(state.train), state.worlds, act_key, share, num_steps)
        if intervention is not None:
            flags = interventions.write(state.train.trackers["taken"], state.written, taken)
            state = state._replace(train=state.train._replace(trackers=state.train.trackers | {"taken": flags}))
            metrics["intervention/share"] = Mean(jnp.sum(taken), jnp.float32(taken.size))
        replay = add(state.replay, state.written, rows)
        state = state._replace(worlds=worlds, replay=replay, written=state.written + num_steps)
        state, found = judged(state, jax.random.fold_in(learn_key, 1))
        state, learned = learn(state, learn_key)
        metrics |= learned | found
        metrics["nonfinite/skipped"] = Max(state.train.skipped.astype(jnp.float32))
        metrics["explore/share"] = Mean(jnp.asarray(share, jnp.float32), jnp.float32(1.0))
        return state._replace(updates=state.updates + 1), metrics

    def policy_of(state: ReplayState) -> Callable:
        return acting(*both(state.train), jnp.float32(0.0))

    return init, update, policy_of


def make_acting(method: OffPolicy, intervention: Callable | None = None) -> Callable:
    """(params, slow, share of random actions, when the expert takes over) -> the policy of `collect`.

    Args:
      method: with `policy`, which needs no memory, or `acting`.
      intervention: as at make_replay_update.
    """

    def acting(params: dict[str, Any], slow: dict[str, Any], share: chex.Array, helped: str = "never") -> Callable:
        def policy(worlds: Worlds):
            if method.acting is None:
                outputs, memory = method.policy(params, worlds.observation), worlds.memory
            else:
                outputs, memory = method.acting(params, slow, worlds)
            column = jnp.broadcast_to(jnp.asarray(share, outputs.dtype), (len(outputs), 1))
            if intervention is None:
                return jnp.concatenate([outputs, column], axis=1), memory
            actions, flags = intervention(worlds.observation)
            flags = {"never": jnp.zeros_like(flags), "when due": flags, "always": jnp.ones_like(flags)}[helped]
            return jnp.concatenate([outputs, column, actions, flags[:, None]], axis=1), memory

        return policy

    return acting


def _make_init(
    method: OffPolicy,
    env,
    settings: ReplaySettings,
    optimizers: dict[str, optax.GradientTransformation],
    gathered: Callable,
    both: Callable,
    axis_name,
    intervention: Callable | None,
    adversary: Adversary | None,
) -> Callable:
    """(key) -> ReplayState at the start of a run, with its warm-up; arguments as at make_replay_update.

    both: TrainState -> (params, slow copies) as the method's pytrees.
    """

    def init(key: chex.PRNGKey) -> ReplayState:
        params_key, worlds_key, train_key, warmup_key = jax.random.split(key, 4)
        train = _first(method, optimizers, params_key, train_key)
        if adversary is not None:
            first = adversary.init(jax.random.fold_in(params_key, 1))
            train = train._replace(trackers=train.trackers | {"adversary": first})
        # No environment's number: split(key, B)[b] is fold_in(key, b). envs.starts and envs.objectives have the others.
        memory_key = jax.random.fold_in(own_key(worlds_key, axis_name), 2**31 - 3)
        memory = first_memory(method, memory_key, env.num_envs)
        worlds = start(env, own_key(worlds_key, axis_name), memory)
        warmup_key, kept_key = jax.random.split(own_key(warmup_key, axis_name))
        if settings.kept:
            untrained = *both(train), worlds, kept_key, jnp.float32(0.0), settings.kept
            worlds, rows, _, _ = gathered(*untrained, helped="always")
            kept = _holding(rows, settings._replace(slots=settings.kept))
            train = train._replace(trackers=train.trackers | {"kept": kept})
        keys = warmup_key, jnp.float32(1.0)
        worlds, rows, taken, _ = gathered(*both(train), worlds, *keys, settings.warmup)
        if intervention is not None:
            flags = interventions.write(jnp.zeros((len(taken), settings.slots)), jnp.int32(0), taken)
            train = train._replace(trackers=train.trackers | {"taken": flags})
        return ReplayState(train, worlds, _holding(rows, settings), jnp.int32(settings.warmup), jnp.int32(0))

    return init


def _make_judged(settings: ReplaySettings, adversary: Adversary | None, axis_name) -> Callable:
    """(state, key) -> (state after the adversary's steps on a draw, {name: Mean}); nothing without one."""
    if adversary is None:
        return lambda state, key: (state, {})
    draws = make_draws(settings._replace(steps=1), axis_name)  # what these steps are paid is not read

    def judged(state: ReplayState, key: chex.PRNGKey):
        steps, trackers = draws(state, key).steps, state.train.trackers
        moved, found = adversary.fit(trackers["adversary"], steps.observations, steps.actions)
        state = state._replace(train=state.train._replace(trackers=trackers | {"adversary": moved}))
        return state, {name: Mean(x, jnp.float32(1.0)) for name, x in found.items()}

    return judged


def _make_gathered(acting: Callable, distribution, env, intervening: bool, keep: Callable | None) -> Callable:
    """(params, slow, worlds, key, share, T) -> (worlds, rows [B, T], which the expert took or (), metrics).

    The rows are Transitions, or what `keep` (OffPolicy) makes of them.
    """

    def gathered(params, slow, worlds: Worlds, key, share: chex.Array, count: int, helped: str = "when due"):
        policy = acting(params, slow, share, helped)
        worlds, rows, metrics = collect(policy, distribution, env, worlds, key, num_steps=count)
        kept = Transitions(
            observations=rows.observations,
            actions=distribution.to_env(rows.actions),
            rewards=rows.rewards,
            next_observations=rows.next_observations,
            terminated=rows.terminated,
            truncated=rows.truncated,
        )
        kept = kept if keep is None else keep(kept, rows.outputs)
        return worlds, kept, rows.outputs[..., -1] if intervening else (), metrics

    return gathered


def _first(method: OffPolicy, optimizers, params_key: chex.PRNGKey, train_key: chex.PRNGKey) -> TrainState:
    """The TrainState before the first step."""
    params = {name: ravel_pytree(x)[0] for name, x in method.init(params_key).items()}
    opt_state = {name: optimizers[name].init(x) for name, x in params.items()}
    slow = {name: params[name] + 0.0 for name in method.slow}  # copies: a shared buffer cannot be donated
    zeros = (jnp.int32(0) for _ in range(3))
    trackers = {"slow": slow, "in_a_row": {name: jnp.int32(0) for name in params}}
    return TrainState(next(zeros), params, opt_state, train_key, *zeros, trackers)


def _holding(rows: Transitions, settings: ReplaySettings) -> Replay:
    """A replay that begins with the rows [B, warmup]."""
    count = rows.rewards.shape[1]
    replay = empty(rows, settings.slots, settings.priority)
    filled = jax.tree.map(lambda old, new: old.at[:, :count].set(new), replay.rows, rows)
    if settings.priority.used():
        return Replay(filled, replay.priorities.at[:, :count].set(1.0))
    return Replay(filled, ())
