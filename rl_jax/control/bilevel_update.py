"""Two levels in one update: a policy follows a reward r_phi, and phi follows what the trained policy is judged by.

    inner   theta <- theta - eta d_theta L,   L(theta, phi) = -mean_t (log pi(a_t|s_t) G_t + c H_t) + l2 |theta|^2 / 2
            G_t = sum_{j >= t} gamma^{j - t} r_phi(s_j, a_j) to the end of the episode or of the rollout
    outer   phi <- phi - eta' dJ / dphi,   dJ / dphi = d_phi J - (d_phi d_theta L)^T (d_theta^2 L)^-1 d_theta J
            J on the newest rollout, by the policy's own log-probs; both second derivatives of L on the kept ones

One update is a rollout, a step of phi (bilevel.hypergradient), and epochs x minibatches steps of the actor on rows
drawn from the last `window` rollouts, without importance weights, as BARFI's code does (Dhawgupta/gupta2023behavior).
G is a constant in d_theta L, so d_theta^2 L has second derivatives of log pi alone, there as well. The actor's params
are theta; the critic is not used. Which reward and which J: control.aligned_rewards.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control import aligned_rewards, bilevel
from rl_jax.control.algorithm import Algorithm, uses_kl
from rl_jax.control.aligned_rewards import DesignedReward, Steps, rewards_to_go
from rl_jax.control.update import TURN_METRICS, ControlState, make_parts, over_turns, unraveler
from rl_jax.core.binding import bind, needs
from rl_jax.core.masked import Mean
from rl_jax.core.types import StepInputs
from rl_jax.rollout.envs.steps import collect
from rl_jax.training.step import TrainState, all_finite, make_train_step


class Outer(NamedTuple):
    """State of the outer level, in TrainState.trackers["outer"].

    Attributes:
      phi: params of the reward.
      optimizer: state of RMSprop.
      window: Steps [W, B, ...], the last W rollouts.
      count: int32 [], rollouts so far.
    """

    phi: Any
    optimizer: Any
    window: Steps
    count: chex.Array


def policy_loss(
    log_probs: chex.Array, entropies: chex.Array, returns: chex.Array, live: chex.Array, *, entropy_coef: Any = 0.0
) -> Mean:
    """The sum of -(log pi G + c H) over live rows, and their steps: REINFORCE without a baseline.

    Args:
      log_probs: float [N, T], differentiated.
      entropies: float [N, T], differentiated.
      returns: G, float [N, T]; the outer level differentiates it by phi.
      live: bool [N].
      entropy_coef: c.
    """
    chex.assert_equal_shape([log_probs, entropies, returns])
    chex.assert_shape(live, (len(log_probs),))
    mask = jnp.broadcast_to(live[:, None], log_probs.shape)
    log_probs, entropies, returns = (jnp.where(mask, x, 0.0) for x in (log_probs, entropies, returns))
    each = -log_probs * returns - entropy_coef * entropies
    return Mean(jnp.sum(each), jnp.sum(mask, dtype=jnp.float32))


def make_bilevel_update(
    agent,
    env,
    algorithm: Algorithm,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    design: Mapping[str, Any] | str,
    axis_name=None,
    outer_rate: Any = 0.005,
    outer_start: int = 10,
    window: int = 4,
    l2: Any = 0.0,
    solver: Mapping[str, Any] | None = None,
) -> tuple[Callable, Callable, Callable]:
    """Builds (init, update, policy_of) as update.make_update does.

    Args:
      agent: models.agents.actor_critic.Agent.
      env: envs.Vector.
      algorithm: its epochs, minibatches, max_grad_norm, entropy_coef and discount. Other rewards, losses, scales and KL
        are refused; surrogate, advantage and value loss are not read.
      optimizer: of the inner level, any optax transformation.
      num_steps: T.
      design: the reward and J: a function of aligned_rewards, or "module:function", with its keywords.
      axis_name: must be None.
      outer_rate: eta' of RMSprop. 0 leaves phi where it begins: REINFORCE on that reward.
      outer_start: updates before the first step of phi, 1 or more.
      window: W, rollouts that are kept.
      l2: of the actor's params.
      solver: keywords of bilevel.hypergradient. None: 5 terms of a Neumann series at a rate of .0005, as published.

    Returns:
      (init, update, policy_of), see update.make_update.

    Raises:
      ValueError: if a setting does not fit, or has no meaning here.
    """
    solver = dict(solver or dict(method="neumann", iterations=5, rate=5e-4))
    _check(env, algorithm, axis_name, solver, dict(outer_start=outer_start, window=window))
    solve = bind(solver | dict(fn=bilevel.hypergradient), bilevel)
    designed = make_design(design, agent, env, algorithm, num_steps)
    parts = make_parts(agent, env, algorithm._replace(minibatches=1), optimizer, num_steps=num_steps)
    unravel, turns = unraveler(agent), algorithm.epochs * algorithm.minibatches
    size = env.num_envs // algorithm.minibatches
    moves = optax.rmsprop(outer_rate, decay=0.99, eps=1e-8, eps_in_sqrt=False)

    def roll(state: ControlState, key: chex.PRNGKey):
        policy = parts.policy_of(state)
        return collect(policy, agent.distribution, env, state.worlds, key, num_steps=num_steps)

    def init(key: chex.PRNGKey) -> ControlState:
        state, phi = parts.init(key), designed.begin()
        shapes = jax.eval_shape(lambda: designed.read(roll(state, key)[1]))
        empty = jax.tree.map(lambda s: jnp.zeros((window, *s.shape), s.dtype), shapes)
        outer = Outer(phi, moves.init(phi), empty, jnp.int32(0))
        return state._replace(train=state.train._replace(trackers={"outer": outer}))

    scores, inner = make_levels(agent, designed, algorithm, l2)
    moved = make_outer_step(scores, inner, designed, moves, solve)

    def loss_fn(params: chex.Array, batch):
        loss, entropy = inner(unravel(params), *batch)
        return loss, {"entropy": Mean(entropy, jnp.float32(1.0))}

    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=algorithm.max_grad_norm, check_params=False)

    def update(state: ControlState):
        key = jax.random.fold_in(state.train.rng, state.train.step // turns)
        act_key, judge_key, draw_key = jax.random.split(key, 3)
        outer, params = state.train.trackers["outer"], unravel(state.train.params)
        worlds, rows, metrics = roll(state, act_key)
        newest = designed.read(rows)
        outer = jax.lax.cond(
            outer.count >= outer_start, lambda x: moved(params, x, newest, judge_key), lambda x: x, outer
        )
        outer = with_newest(outer, newest)
        steps, live = rows_of(outer)

        def turn(train: TrainState, key: chex.PRNGKey):
            drawn = jax.random.randint(key, (size,), 0, jnp.sum(live))
            batch = (outer.phi, jax.tree.map(lambda x: x[drawn], steps), jnp.ones(size, bool))
            train, learned = train_step(train, batch)
            return train, {name: learned[name] for name in (*TURN_METRICS, "entropy")}

        train = state.train._replace(trackers={"outer": outer})
        train, learned = jax.lax.scan(turn, train, jax.random.split(draw_key, turns))
        measured = {name: Mean(x, jnp.float32(1.0)) for name, x in designed.measure(outer.phi, newest).items()}
        return ControlState(train, worlds, state.actor), metrics | over_turns(learned) | measured

    return init, update, parts.policy_of


def make_levels(agent, designed: DesignedReward, algorithm: Algorithm, l2: Any) -> tuple[Callable, Callable]:
    """(scores, inner): what both levels differentiate.

    Returns:
      scores (params, Steps [N, T]) -> TokenScores [N, T]; inner (params, phi, Steps [N, T], live bool [N]) -> (L as a
      Mean, the mean entropy).
    """

    def scores(params: Any, steps: Steps):
        flat = StepInputs(*(x.reshape(-1, *x.shape[2:]) for x in (steps.observations, steps.actions)))
        return jax.tree.map(lambda x: x.reshape(steps.rewards.shape), agent.predict(params, flat)[0])

    def inner(params: Any, phi: Any, steps: Steps, live: chex.Array) -> tuple[Mean, chex.Array]:
        found = scores(params, steps)
        returns = rewards_to_go(designed.rewards(phi, steps), steps.over, designed.discount(phi))
        loss = policy_loss(found.log_probs, found.entropy, returns, live, entropy_coef=algorithm.entropy_coef)
        squares = sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(params["actor"]))
        return Mean(loss.total + 0.5 * l2 * squares * loss.count, loss.count), jnp.mean(found.entropy)

    return scores, inner


def make_outer_step(
    scores: Callable,
    inner: Callable,
    designed: DesignedReward,
    moves: optax.GradientTransformation,
    solve: Callable,
) -> Callable:
    """(params, Outer, newest Steps, key) -> Outer after a step of phi; one that is not finite changes nothing.

    Args:
      scores: of make_levels.
      inner: of make_levels.
      designed: the reward and J.
      moves: of phi.
      solve: bilevel.hypergradient with its keywords.
    """

    def gradient(params: Any, outer: Outer, newest: Steps, key: chex.PRNGKey) -> Any:
        """dJ / dphi, with zeros for what is fixed."""

        def judged(actor: Any, phi: Any) -> chex.Array:
            return designed.judge(scores(params | {"actor": actor}, newest).log_probs, phi, newest, key)

        def trained(actor: Any, phi: Any) -> chex.Array:
            loss = inner(params | {"actor": actor}, phi, *rows_of(outer))[0]
            return loss.total / loss.count

        if designed.implicit:
            found = solve(judged, trained, params["actor"], outer.phi)
        else:
            found = jax.grad(judged, argnums=1)(params["actor"], outer.phi)
        return {name: jnp.zeros_like(x) if name in designed.fixed else x for name, x in found.items()}

    def moved(params: Any, outer: Outer, newest: Steps, key: chex.PRNGKey) -> Outer:
        slopes = gradient(params, outer, newest, key)
        updates, optimizer_state = moves.update(slopes, outer.optimizer, outer.phi)
        after = outer._replace(phi=optax.apply_updates(outer.phi, updates), optimizer=optimizer_state)
        return jax.tree.map(lambda new, old: jnp.where(all_finite(slopes), new, old), after, outer)

    return moved


def make_design(spec: Mapping[str, Any] | str, agent, env, algorithm: Algorithm, num_steps: int) -> DesignedReward:
    """The DesignedReward that a config names.

    Raises:
      ValueError: if the function lacks a keyword.
    """
    known = dict(
        observation_shape=env.observation_space.shape,
        distribution=agent.distribution,
        discount=algorithm.discount,
        num_envs=env.num_envs,
        num_steps=num_steps,
    )
    fn = bind(spec, aligned_rewards, **known)
    if missing := sorted(needs(fn)):
        raise ValueError(f"updater.design needs {', '.join(missing)}: set algorithm.updater.design.{missing[0]}")
    return fn()


def with_newest(outer: Outer, newest: Steps) -> Outer:
    """The state with the newest rollout in the oldest one's place."""
    slot = outer.count % len(outer.window.rewards)
    window = jax.tree.map(lambda kept, new: kept.at[slot].set(new), outer.window, newest)
    return outer._replace(window=window, count=outer.count + 1)


def rows_of(outer: Outer) -> tuple[Steps, chex.Array]:
    """(all kept rows, Steps [W B, ...], whether a rollout has filled them, bool [W B]); the first are filled first."""
    slots, envs = outer.window.rewards.shape[:2]
    steps = jax.tree.map(lambda x: x.reshape(slots * envs, *x.shape[2:]), outer.window)
    return steps, jnp.repeat(jnp.arange(slots) < outer.count, envs)


def _check(env, algorithm: Algorithm, axis_name, solver: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    if axis_name is not None:
        raise ValueError("two levels train on one device per run: use mesh=seeds:N")
    if env.objectives:
        raise ValueError(f"two levels have one reward: {env.objectives} objectives need make_objectives_update")
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"updater.{name}={count} must be 1 or more")
    if solver.get("method", "cg") not in bilevel.METHODS:
        raise ValueError(f"updater.solver.method={solver['method']!r} is none of {', '.join(bilevel.METHODS)}")
    if env.num_envs % algorithm.minibatches:
        raise ValueError(f"{env.num_envs} environments do not divide into {algorithm.minibatches} minibatches")
    for name in ("relabel", "auxiliary", "normalize_observations", "normalize_rewards"):
        if getattr(algorithm, name):
            raise ValueError(f"algorithm.{name} has no meaning for two levels: leave it out")
    if uses_kl(algorithm):
        raise ValueError("algorithm.kl_coef and algorithm.kl_control have no meaning for two levels: leave them out")
    if algorithm.actor_lag > 1:
        raise ValueError(f"algorithm.actor_lag={algorithm.actor_lag} must be 1 for two levels")
