"""Many policies for a front, in one program: C-MORL (arXiv 2410.02236), or its first stage alone.

    stage 1    M policies, each of its own weights: ascend w_m . J          Pareto initialisation
    archive    all policies so far, of these the front, of these the N least crowded
    stage 2    from the least crowded, for each objective i in turn:        constrained extension
               J_i + 1 / t sum_{j != i} log(J_j - b_j),   b_j = J_j - (1 - beta) |J_j| at the start
               after `length` updates they are archived, and the next round starts in new episodes

Every policy is a row of params [M, P] with optimizer, environments and returns of its own; the M updates are one vmap.
Departures: b_j is beta J_j of the paper if J_j is positive, and the same slack below it if it is not; the slope of the
barrier is held fixed during an update and goes on as a line outside of the constraint (control.vector.barrier).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control import fronts
from rl_jax.control.algorithm import Algorithm
from rl_jax.control.objectives import MeanReturns, check, make_member, remember
from rl_jax.control.update import ControlState, unraveler
from rl_jax.control.vector import barrier
from rl_jax.core.masked import Max, Mean
from rl_jax.rollout.envs.steps import Worlds, evaluate, memoryless, start
from rl_jax.stats import pareto
from rl_jax.training.step import TrainState


class Archive(NamedTuple):
    """The front so far.

    Attributes:
      params: float32 [N, P]. Rows that are not kept repeat one that is.
      points: float32 [N, K], their mean episode returns over the scales.
      kept: bool [N].
    """

    params: chex.Array
    points: chex.Array
    kept: chex.Array


class Search(NamedTuple):
    """What a search carries beside its policies.

    Attributes:
      known: MeanReturns of M policies, [M, K] and [M].
      bounds: b, float32 [M, K].
      archive: Archive.
    """

    known: MeanReturns
    bounds: chex.Array
    archive: Archive


def spread_weights(objectives: int, parts: int) -> np.ndarray:
    """The weights of stage 1: all i / parts that sum to 1, float32 [M, K]."""
    return pareto.weight_grid(objectives, parts, name="updater.parts").astype(np.float32)


def archived(archive: Archive, params: chex.Array, points: chex.Array) -> Archive:
    """The archive with further policies: of all of them the front, of the front the N least crowded.

    Args:
      archive: N places.
      params: float32 [M, P].
      points: float32 [M, K], their returns.
    """
    all_params, all_points = jnp.concatenate([archive.params, params]), jnp.concatenate([archive.points, points])
    valid = jnp.concatenate([archive.kept, jnp.ones(len(params), bool)])
    front = fronts.nondominated(all_points, valid)
    size = len(archive.kept)
    order = jnp.argsort(-fronts.crowding(all_points, front), stable=True)[:size]
    kept = front[order]
    order = jnp.where(kept, order, order[0])
    return Archive(all_params[order], all_points[order], kept)


def bounds_of(points: chex.Array, share: float | chex.Array) -> chex.Array:
    """J - (1 - beta) |J|, float32 [..., K]: beta J if J is positive. share: beta."""
    return points - (1.0 - share) * jnp.abs(points)


class Stages(NamedTuple):
    """The numbers of a search, see make_front_update."""

    first: int
    length: int
    extend: bool
    share: Any
    sharpness: Any
    size: int
    max_steps: int


def make_front_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    axis_name=None,
    parts: int = 5,
    first: int = 100,
    length: int = 20,
    extend: bool = True,
    share: Any = 0.9,
    sharpness: Any = 20.0,
    size: int = 24,
    max_steps: int = 100,
    scales: Sequence[float] = (),
    decay: float = 0.8,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) of M policies, as update.make_update does for one.

    `policy_of` acts with policy b % N in environment b: those of the archive, in stage 1 those in training.

    Args:
      agent: models.agents.actor_critic.Agent with K values.
      env: envs.Vector with K objectives: its B environments are those of each policy.
      algorithm: as objectives.make_objectives_update takes it.
      optimizer: any optax transformation.
      num_steps: T, of each policy.
      axis_name: must be None.
      parts: M is the number of weights i / parts that sum to 1.
      first: updates of stage 1.
      length: updates of a round of stage 2.
      extend: whether there is a stage 2; if not, stage 1 goes on.
      share: beta.
      sharpness: t.
      size: N, at least M.
      max_steps: of the episodes that judge a policy for the archive, one in each environment.
      scales: rewards are divided by these K numbers before anything else; () is ones.
      decay: of the estimates of J, per update.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if a setting has no meaning here.
    """
    check(env, algorithm, num_steps, axis_name)
    if algorithm.normalize_observations:
        raise ValueError("the policies of a front read plain observations: set algorithm.normalize_observations=False")
    weights = spread_weights(env.objectives, parts)
    scale = jnp.asarray(pareto.check_scales("updater.scales", scales, env.objectives))
    stages = Stages(first, length, extend, share, sharpness, size, max_steps)
    if size < len(weights) or min(first, length) < 1:
        raise ValueError(
            f"updater: size={size} must be {len(weights)} or more, first={first} and length={length} positive"
        )
    one, advance = make_member(agent, env, algorithm, optimizer, num_steps=num_steps, scales=scale)
    advance_each = jax.vmap(lambda train, worlds, c: advance(ControlState(train, worlds, ()), c))
    turns = algorithm.epochs * algorithm.minibatches
    next_round = _make_round(agent, env, optimizer, scale, stages)

    def update(state: ControlState):
        train, updates = state.train, state.train.step // turns
        search, count = train.trackers["search"], len(weights)
        keys = jax.vmap(lambda m: jax.random.fold_in(train.rng, m))(jnp.arange(count))
        members = train._replace(step=jnp.full(count, train.step), rng=keys, trackers={})
        coefs = coefs_of(search, jnp.asarray(weights), (updates >= first) & extend, sharpness)
        moved, metrics = advance_each(members, state.worlds, coefs)
        each = jax.vmap(lambda known, found: remember(known, found, scale, decay))
        search = search._replace(known=each(search.known, {k: x for k, x in metrics.items() if "objective_" in k}))
        metrics = {name: _joined(x) for name, x in metrics.items()}
        train = moved.train._replace(step=moved.train.step[0], rng=train.rng, trackers={"search": search})
        done = updates + 1 - first
        ends = (done >= 0) & (done % length == 0)
        train, worlds = jax.lax.cond(ends, next_round, lambda *kept: kept, train, moved.worlds)
        kept = jnp.sum(train.trackers["search"].archive.kept).astype(jnp.float32)
        metrics["front/size"] = Mean(kept, jnp.float32(1.0))
        return ControlState(train, worlds, ()), metrics

    def policy_of(state: ControlState) -> Callable:
        training, params = state.train.params, state.train.trackers["search"].archive.params
        early = state.train.step // turns < first
        return mixed_policy(agent, jnp.where(early, training[jnp.arange(size) % len(training)], params))

    return functools.partial(_begin, one.init, len(weights), size, env.objectives), update, policy_of


def coefs_of(search: Search, weights: chex.Array, second: chex.Array, sharpness: float | chex.Array) -> chex.Array:
    """The weights of the advantages of M policies, float32 [M, K]: w_m, or in stage 2 the slope of the barrier.

    Args:
      search: its returns and bounds.
      weights: float32 [M, K]. In stage 2 the goal of policy m is objective m % K.
      second: bool [].
      sharpness: t.
    """
    goals = jnp.arange(len(weights)) % weights.shape[1]
    held = jax.vmap(jax.grad(functools.partial(barrier, sharpness=sharpness)))
    return jnp.where(second, held(search.known.value(), search.bounds, goals), weights)


def mixed_policy(agent, params: chex.Array) -> Callable:
    """A policy that acts with row b % N of params [N, P] in environment b, as rollout.envs.steps takes it."""
    unravel, size = unraveler(agent), len(params)

    def act(observations: chex.Array) -> chex.Array:
        rows = len(observations)
        groups = -(-rows // size)
        wide = jnp.concatenate([observations, jnp.repeat(observations[:1], groups * size - rows, axis=0)])
        wide = jnp.swapaxes(wide.reshape(groups, size, *observations.shape[1:]), 0, 1)
        outputs = jax.vmap(lambda vector, x: agent.policy(unravel(vector), x))(params, wide)
        return jnp.swapaxes(outputs, 0, 1).reshape(groups * size, *outputs.shape[2:])[:rows]

    return memoryless(act)


def _begin(init: Callable, count: int, size: int, objectives: int, key: chex.PRNGKey) -> ControlState:
    """The state of `count` new policies, and an empty archive of `size`."""
    init_key, rng = jax.random.split(key)  # apart: split(key, M)[m] is fold_in(key, m), from which updates draw
    states = jax.vmap(init)(jax.random.split(init_key, count))
    places = states.train.params[jnp.arange(size) % count]
    archive = Archive(places, jnp.full((size, objectives), -jnp.inf), jnp.zeros(size, bool))
    nothing = MeanReturns(jnp.zeros((count, objectives)), jnp.zeros(count))
    search = Search(nothing, jnp.zeros((count, objectives)), archive)
    return ControlState(
        states.train._replace(step=jnp.int32(0), rng=rng, trackers={"search": search}), states.worlds, ()
    )


def _make_round(agent, env, optimizer: optax.GradientTransformation, scale: chex.Array, stages: Stages) -> Callable:
    """(TrainState, Worlds) -> both after a round's end: policies are judged and archived, others take their place.

    Those begin new episodes: a return would be that of two policies otherwise.

    Arguments as in make_front_update; scale: float32 [K].
    """
    unravel = unraveler(agent)

    def judged(vector: chex.Array, key: chex.PRNGKey) -> chex.Array:
        policy = memoryless(lambda x: agent.policy(unravel(vector), x))
        found = evaluate(policy, agent.distribution, env, key, max_steps=stages.max_steps).returns
        return jnp.mean(found, axis=0) / scale

    def next_round(train: TrainState, worlds: Worlds) -> tuple[TrainState, Worlds]:
        search, key = train.trackers["search"], jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 4), train.step)
        judge_key, worlds_key = jax.random.split(key)
        archive = archived(search.archive, train.params, jax.vmap(lambda x: judged(x, judge_key))(train.params))
        if not stages.extend:
            return train._replace(trackers={"search": search._replace(archive=archive)}), worlds
        # The archive is in the order of its crowding: place m starts from policy m // K, for objective m % K.
        count, objectives = search.bounds.shape
        chosen = (jnp.arange(count) // objectives) % jnp.maximum(jnp.sum(archive.kept), 1)
        params, points = archive.params[chosen], archive.points[chosen]
        moments = restarted(jax.vmap(optimizer.init)(params), train.opt_state)
        search = Search(MeanReturns(points, jnp.ones(count)), bounds_of(points, stages.share), archive)
        train = train._replace(params=params, opt_state=moments, trackers={"search": search})
        return train, jax.vmap(lambda key: start(env, key, agent.initial_state(env.num_envs)))(
            jax.random.split(worlds_key, count)
        )

    return next_round


def restarted(fresh: Any, old: Any) -> Any:
    """The state of an optimizer for other params: new, but the schedule of the learning rate goes on.

    Adam's own count starts again with its moments, whose bias it corrects.

    Args:
      fresh: as from optimizer.init.
      old: of the same optimizer. Its optax.ScaleByScheduleState are kept, wherever they are.
    """

    def scheduled(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    return jax.tree.map(lambda new, was: was if scheduled(was) else new, fresh, old, is_leaf=scheduled)


def _joined(x: Mean | Max) -> Mean | Max:
    """The statistic of all policies together, from one of each."""
    return Max(jnp.max(x.largest)) if isinstance(x, Max) else Mean(jnp.sum(x.total), jnp.sum(x.count))
