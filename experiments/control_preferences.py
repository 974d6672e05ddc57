"""Control without a reward: from preferences between segments of episodes, or between whole episodes.

    python -m experiments.control_preferences --config=configs/control/preferences.py:reward
    python -m experiments.control_preferences --config=configs/control/preferences.py:cpl
    python -m experiments.control_preferences --config=configs/control/preferences.py:spo

    reward   segments -> Bradley-Terry -> a reward network -> PPO (or what config.algorithm says) on its reward
    regret   segments -> the regret model -> the reward of a finite MDP -> its optimal policy
    cpl      segments -> the policy, after behaviour cloning
    spo      PPO on the fraction of recent episodes that an episode is preferred to

The true reward labels segments and episodes, as a person would, and gives eval/return; it is never a training signal.
Runs, meshes, checkpoints and the loop are those of experiments.control_ppo.
"""

import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from experiments.parts import control_loop, control_runs, control_setup, flags
from rl_jax import control, envs, reward_model
from rl_jax.advantages import steps as step_advantages
from rl_jax.control import duels, relabel, segments, tabular
from rl_jax.core.binding import bind
from rl_jax.envs.learned import learned_reward
from rl_jax.envs.worlds import tabular as tables
from rl_jax.losses import reward_model as reward_losses
from rl_jax.losses.preference import regularizers, score_maps
from rl_jax.losses.reward_model import rankings
from rl_jax.models.agents.reward_network import RewardNetwork, make_reward_network
from rl_jax.rollout.envs.steps import Transitions, collect, memoryless, start
from rl_jax.training.step import TrainState, init_state


def partial_return(rows: Transitions, advantages: Callable) -> jax.Array:
    """What each step adds to its segment's score: the rewards, float32 [B, T]."""
    return rows.rewards


def regret(rows: Transitions, advantages: Callable) -> jax.Array:
    """Minus the regret of each step, A*(s, a), float32 [B, T]."""
    return advantages(rows)


JUDGES = {"partial_return": partial_return, "regret": regret}
TABLES = {"probes/gridworld": tables.gridworld}  # environments that are also available as arrays


class Offline(NamedTuple):
    """State of a run that learns from segments only.

    Attributes:
      train: TrainState.
      data: segments.SegmentPairs.
    """

    train: TrainState
    data: segments.SegmentPairs


class Parts(NamedTuple):
    """What the methods are built from.

    Attributes:
      agent: models.actor_critic.Agent.
      algorithm: control.Algorithm.
      env: envs.Vector of a single env, for its spaces.
    """

    agent: Any
    algorithm: control.Algorithm
    env: envs.Vector


def make_parts(config) -> Parts:
    """The network and the algorithm of the config.

    Raises:
      ValueError: if observations are to be normalised, or the network is no mlp.
    """
    if config.algorithm.normalize_observations:
        raise ValueError("algorithm.normalize_observations: segments are read as they come; set it False")
    if config.network.kind != "mlp":
        raise ValueError(f"network.kind={config.network.kind!r}: segments are read step by step, by an mlp")
    env = control_setup.load_env(config, 1)
    algorithm = control_setup.make_algorithm(control_setup.settings_of(config))
    return Parts(control_setup.make_network(config, env, algorithm.objective.num_outputs()), algorithm, env)


def table_of(config) -> tables.Table:
    """The arrays of config.env. Raises ValueError if it is no finite MDP."""
    if config.env.name not in TABLES:
        raise ValueError(f"env.name={config.env.name}: the regret model solves finite MDPs, {', '.join(TABLES)}")
    wrappers = ("name", "features", "frame_stack", "at_reset")
    return TABLES[config.env.name](**{name: x for name, x in config.env.items() if name not in wrappers})


def make_teacher(config, agent) -> Callable:
    """Makes the teacher that collects segments: (key, swept values) -> params.

    It is trained with segments.teacher_steps of PPO on the true reward; 0 leaves it untrained.
    """
    if not config.segments.teacher_steps:
        return lambda key, values: agent.init(key)
    taught = config.copy_and_resolve_references()
    with taught.unlocked():
        del taught["preferences"]  # the teacher is a run of control_ppo
        taught.update(program="control_ppo", log_every=1)
    taught.train.total_steps = config.segments.teacher_steps
    taught.checkpoint.every = 1
    taught.eval.num_episodes = 0
    init, advance, params = control_runs.make_run(taught)
    updates = control_setup.num_updates(taught)
    return lambda key, values: params(advance(init(key, values), values, updates)[0])


def advantages_by(config, parts: Parts, teacher: Any) -> Callable:
    """Makes A(s_t, a_t): exact in a finite MDP, else r + gamma V' - V with the teacher's critic.

    Args:
      config: of the run.
      parts: agent and algorithm.
      teacher: params of the teacher.

    Returns:
      advantages(rows [B, T]) -> float32 [B, T].
    """
    if config.env.name in TABLES:
        table = table_of(config)
        known = tabular.advantages(
            jnp.asarray(table.rewards), jnp.asarray(table.transition_probs), discount=config.segments.label.discount
        )
        return lambda rows: known[jnp.argmax(rows.observations, axis=-1), rows.actions]

    def values(observations: jax.Array) -> jax.Array:
        value = functools.partial(parts.agent.value, teacher)
        return parts.algorithm.objective.values(of_steps(value, 2, observations))

    def by_critic(rows: Transitions) -> jax.Array:
        state_values, next_values = values(rows.observations), values(rows.next_observations)
        discount = config.algorithm.advantage.discount
        return step_advantages.gae(
            rows.rewards, state_values, next_values, rows.terminated, rows.truncated, discount=discount, lam=0.0
        )[0]

    return by_critic


def of_steps(fn: Callable, rank: int, *arrays: jax.Array) -> jax.Array:
    """Applies `fn` to arrays with their first `rank` axes flattened into one, and restores these axes in the result."""
    shape = arrays[0].shape[:rank]
    found = fn(*(x.reshape(-1, *x.shape[rank:]) for x in arrays))
    return found.reshape(*shape, *found.shape[1:])


def make_gather(config, parts: Parts) -> Callable:
    """Makes the data: steps are collected, cut into segments, scored and compared.

    Environments are loaded here, outside of what is traced.

    Args:
      config: of the run; its group `segments`.
      parts: agent and algorithm.

    Returns:
      gather(key, swept values) -> (SegmentPairs to train on, held-out pairs of the same segments).

    Raises:
      ValueError: if segments.label.fn is unknown, or the config cannot measure the regret it asks for.
    """
    settings, agent = config.segments, parts.agent
    if settings.label.fn not in JUDGES:
        raise ValueError(f"segments.label.fn={settings.label.fn!r} is none of {', '.join(JUDGES)}")
    if settings.label.fn == "regret" and config.env.name not in TABLES:
        if not settings.teacher_steps:
            raise ValueError("segments.label.fn=regret: a critic has to say what regret is; set segments.teacher_steps")
        if config.algorithm.normalize_rewards:
            raise ValueError("algorithm.normalize_rewards: a critic of scaled rewards knows no regret; set it False")
    teach, env = make_teacher(config, agent), control_setup.load_env(config, settings.num_envs)
    annotator = dict(beta=settings.beta, flip_rate=settings.flip_rate)

    def rollout(teacher, untrained, world_key: jax.Array, act_key: jax.Array) -> Transitions:
        shares = jnp.linspace(0.0, 1.0, settings.num_envs)[:, None]

        def behave(observations: jax.Array) -> jax.Array:
            best, worst = agent.policy(teacher, observations), agent.policy(untrained, observations)
            share = jnp.broadcast_to(shares, best.shape)
            return (1.0 - share) * best + share * worst

        worlds = start(env, world_key)
        return collect(memoryless(behave), agent.distribution, env, worlds, act_key, num_steps=settings.num_steps)[1]

    def gather(key: jax.Array, values: dict[str, jax.Array]):
        teacher_key, other_key, world_key, act_key, pair_key, held_key = jax.random.split(key, 6)
        teacher = teach(teacher_key, values)
        rows = rollout(teacher, agent.init(other_key), world_key, act_key)
        judged = JUDGES[settings.label.fn](rows, advantages_by(config, parts, teacher))
        steps = control.StepInputs(rows.observations, rows.actions)
        (steps, judged), mask = segments.cut((steps, judged), rows.terminated | rows.truncated, length=settings.length)
        sums = segments.segment_sums(judged, mask, discount=settings.label.discount)
        pairs = segments.labelled_pairs(pair_key, sums, count=settings.num_pairs, **annotator)
        held = segments.labelled_pairs(held_key, sums, count=settings.held_out, **annotator)
        return segments.SegmentPairs(steps, mask, pairs), segments.SegmentPairs(steps, mask, held)

    return gather


def make_fit(config, loss_fn: Callable) -> tuple[optax.GradientTransformation, Callable]:
    """(optimizer, segments.make_fit) of config.fit."""
    optimizer = optax.adam(**config.fit.optimizer.to_dict())
    options = dict(batch_size=config.fit.batch_size, max_grad_norm=config.fit.max_grad_norm)
    return optimizer, segments.make_fit(loss_fn, optimizer, **options)


def make_network(config, env: envs.Vector) -> RewardNetwork:
    """The reward network that fits the environment's spaces."""
    space, fields = env.action_space, config.reward
    kind = dict(num_actions=space.n) if isinstance(space, envs.Discrete) else dict(action_size=math.prod(space.shape))
    size = math.prod(env.observation_space.shape)
    shape = dict(members=fields.members, hidden=fields.hidden, activation=fields.activation)
    return make_reward_network(size, **kind, **shape)


def fit_reward(config, parts: Parts, network: RewardNetwork, key: jax.Array, data, held):
    """Fits the reward network to the labelled segments.

    Args:
      config: of the run; its groups `reward` and `fit`.
      parts: agent and algorithm.
      network: the reward network.
      key: a typed key.
      data: SegmentPairs to train on.
      held: held-out SegmentPairs.

    Returns:
      (relabel.LearnedReward, reward/accuracy and reward/margin on the held-out pairs).
    """
    fields, to_env = config.reward, parts.agent.distribution.to_env
    objective = reward_model.Objective(
        loss=bind(fields.loss.to_dict(), reward_losses),
        regularizer=bind(fields.regularizer.to_dict(), rankings),
        regularizer_coef=fields.regularizer_coef,
        members=fields.members,
    )

    def loss_fn(params, batch):
        steps = batch.batch
        rewards = of_steps(functools.partial(network.apply, params), 3, steps.observations, to_env(steps.actions))
        return segments.reward_loss(rewards, batch, objective, discount=config.fit.discount)

    optimizer, fit = make_fit(config, loss_fn)
    init_key, fit_key = jax.random.split(key)
    state, _ = fit(init_state(network.init(init_key), optimizer, fit_key), data, config.fit.updates)
    _, found = loss_fn(state.params, segments.pair_batch(held, jnp.arange(len(held.pairs))))
    flat = (x.reshape(-1, *x.shape[2:]) for x in (data.steps.observations, to_env(data.steps.actions)))
    learned = relabel.standardized_by(network.apply, state.params, *flat, data.mask.reshape(-1), center=fields.center)
    return learned, {name: found[name].value() for name in ("reward/accuracy", "reward/margin")}


def reward_run(config, *, parts: int = 1, axis_name: str | None = None):
    """PPO on a reward learned from segments. Arguments and result as for control_runs.make_run."""
    found = make_parts(config)
    network, distribution = make_network(config, found.env), found.agent.distribution
    blank = relabel.LearnedReward(
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(network.init, jax.random.key(0))),
        *jnp.zeros((2, config.reward.members)),
    )
    by_reward = relabel.by_reward(network.apply, distribution.to_env, lambda: blank)
    online_init, online_advance, online_params = control_runs.make_run(
        config, parts=parts, axis_name=axis_name, relabel=by_reward
    )
    judged, gather = control_setup.load_env(config, config.eval.num_episodes), make_gather(config, found)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> control.ControlState:
        online_key, gather_key, fit_key = jax.random.split(key, 3)
        state = online_init(online_key, values)
        reward, fitted = fit_reward(config, found, network, fit_key, *gather(gather_key, values))
        carried = state.train.trackers | {"relabel": reward, "fitted": fitted}
        return state._replace(train=state.train._replace(trackers=carried))

    def advance(state: control.ControlState, values: dict[str, jax.Array], count: int):
        state, metrics = online_advance(state, values, count)
        carried, params = state.train.trackers, online_params(state)
        env = learned_reward(judged, functools.partial(relabel.learned, network.apply, carried["relabel"]))
        policy = memoryless(functools.partial(found.agent.policy, params))
        seen = control_runs.judge(config, policy, distribution, env, state.train)
        return state, metrics | carried["fitted"] | {"eval/learned_return": seen["eval/return"]}

    return init, advance, online_params


def spo_run(config, *, parts: int = 1, axis_name: str | None = None):
    """PPO on how often an episode is preferred. Arguments and result as for control_runs.make_run."""
    fields = config.spo
    by_self_play = relabel.by_self_play(
        config.sample.num_envs // parts,
        preference=bind(fields.preference.to_dict(), duels),
        queue_size=fields.queue_size,
        horizon=fields.horizon or None,
        axis_name=axis_name,
    )
    return control_runs.make_run(config, parts=parts, axis_name=axis_name, relabel=by_self_play)


def offline_run(config, begin: Callable, loss_fn: Callable, policy_of: Callable, found: Parts):
    """A run that fits a function to segments and evaluates the policy it implies.

    Args:
      config: of the run.
      begin: (key, data) -> params.
      loss_fn: (params, PreferenceBatch) -> (Mean, metrics).
      policy_of: params -> (observations -> outputs).
      found: agent, algorithm and env.

    Returns:
      (init, advance, params), as control_runs.make_run returns.
    """
    optimizer, fit = make_fit(config, loss_fn)
    judged, gather = control_setup.load_env(config, config.eval.num_episodes), make_gather(config, found)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> Offline:
        begin_key, gather_key, fit_key = jax.random.split(key, 3)
        data, _ = gather(gather_key, values)
        return Offline(init_state(begin(begin_key, data), optimizer, fit_key), data)

    def advance(state: Offline, values: dict[str, jax.Array], count: int):
        train, metrics = fit(state.train, state.data, count)
        policy = memoryless(policy_of(train.params))
        metrics |= control_runs.judge(config, policy, found.agent.distribution, judged, train)
        return state._replace(train=train), metrics

    return init, advance, lambda state: state.train.params


def cpl_run(config, *, parts: int = 1, axis_name: str | None = None):
    """CPL: behaviour cloning of all segments, then the policy from preferences.

    Arguments and result are those of control_runs.make_run.

    Raises:
      ValueError: if the envs are spread over devices.
    """
    check_one_part(config, parts)
    found, fields = make_parts(config), config.cpl
    agent, distribution = found.agent, found.agent.distribution
    objective = segments.CPL._replace(
        beta=fields.alpha,
        length_power=fields.length_power,
        token_weight=functools.partial(score_maps.discounted, discount=fields.discount),
        score_map=functools.partial(score_maps.biased, bias=fields.bias),
        regularizer=regularizers.behaviour_cloning,
        regularizer_coef=fields.cloning_coef,
    )
    unravel = control.unraveler(agent)

    def log_probs(params: jax.Array, steps: control.StepInputs) -> jax.Array:
        policy = functools.partial(agent.policy, unravel(params))
        return of_steps(lambda x, a: distribution.log_prob(policy(x), a), 3, steps.observations, steps.actions)

    def loss_fn(params: jax.Array, batch):
        return segments.policy_loss(log_probs(params, batch.batch), batch, objective)

    def begin(key: jax.Array, data: segments.SegmentPairs) -> jax.Array:
        optimizer, clone = make_fit(
            config, lambda params, batch: segments.cloning_loss(log_probs(params, batch.batch), batch)
        )
        init_key, fit_key = jax.random.split(key)
        state = init_state(ravel_pytree(agent.init(init_key))[0], optimizer, fit_key)
        return clone(state, data, fields.cloning_updates)[0].params

    def policy_of(params: jax.Array) -> Callable:
        return functools.partial(agent.policy, unravel(params))

    init, advance, flat = offline_run(config, begin, loss_fn, policy_of, found)
    return init, advance, lambda state: unravel(flat(state))


def regret_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Fits the reward r(s, a) of a finite MDP by the regret model; the policy is greedy on Q*_r.

    The transition probabilities are known, as in arXiv 2206.02231; rewards are in units of 1 / beta. Arguments and
    result are those of control_runs.make_run.

    Raises:
      ValueError: if the env is no finite MDP, tabular.model is unknown, or the envs are spread over devices.
    """
    check_one_part(config, parts)
    found, table = make_parts(config), table_of(config)
    probs, fields = jnp.asarray(table.transition_probs), config.tabular.to_dict()
    model = fields.pop("model")
    if model not in JUDGES:
        raise ValueError(f"tabular.model={model!r} is none of {', '.join(JUDGES)}")
    objective = reward_model.Objective(loss=reward_losses.bradley_terry)

    def loss_fn(params: jax.Array, batch):
        each = tabular.advantages(params, probs, **fields) if model == "regret" else params
        steps = batch.batch
        taken = each[jnp.argmax(steps.observations, axis=-1), steps.actions]
        return segments.reward_loss(taken[..., None], batch, objective, discount=config.fit.discount)

    def policy_of(params: jax.Array) -> Callable:
        q, _ = tabular.solve(params, probs, **fields)
        return lambda observations: q[jnp.argmax(observations, axis=-1)]

    return offline_run(config, lambda key, data: jnp.zeros(table.rewards.shape), loss_fn, policy_of, found)


def check_one_part(config, parts: int) -> None:
    """Raises ValueError if a run that collects no steps is to spread its envs over devices."""
    if parts > 1:
        raise ValueError(f"mesh={config.mesh!r}: {config.preferences.method} has no worlds to spread; use seeds:N")


METHODS = {"reward": reward_run, "regret": regret_run, "cpl": cpl_run, "spo": spo_run}


def run(config, workdir: pathlib.Path) -> None:
    """Fits to segments first, if the method does, then the loop of control_ppo."""
    method = config.preferences.method
    if method not in METHODS:
        raise ValueError(f"preferences.method={method!r} is none of {', '.join(METHODS)}")
    if method == "regret":  # its policy is a table: no episodes are recorded
        control_loop.train(config, workdir, regret_run, lambda config: lambda state, step: [])
    else:
        control_loop.train(config, workdir, METHODS[method])


if __name__ == "__main__":
    flags.main(run, several_processes=True)
