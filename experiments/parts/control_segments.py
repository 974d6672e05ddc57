"""Labelled segments for control.preferences: the agent, the teacher that collects steps, the synthetic annotator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import control_runs, control_setup
from rl_jax import control, envs
from rl_jax.advantages import steps as step_advantages
from rl_jax.control import segments, tabular
from rl_jax.core.types import StepInputs
from rl_jax.envs.worlds import tabular as tables
from rl_jax.rollout.envs.steps import Transitions, collect, memoryless, start


def partial_return(rows: Transitions, advantages: Callable) -> jax.Array:
    """What each step adds to its segment's score: the rewards, float32 [B, T]."""
    return rows.rewards


def regret(rows: Transitions, advantages: Callable) -> jax.Array:
    """Minus the regret of each step, A*(s, a), float32 [B, T]."""
    return advantages(rows)


LABELS = {"partial_return": partial_return, "regret": regret}
TABLES = {"probes/gridworld": tables.gridworld}  # environments that are also available as arrays


class AgentSetup(NamedTuple):
    """An agent and what belongs to it, from a config.

    Attributes:
      agent: models.agents.actor_critic.Agent.
      algorithm: control.Algorithm, whose objective reads the critic.
      env: envs.Vector of a single env, for its spaces.
    """

    agent: Any
    algorithm: control.Algorithm
    env: envs.Vector


def make_agent_setup(config) -> AgentSetup:
    """The AgentSetup of a config.

    Raises:
      ValueError: if observations are to be normalised, or the network is no mlp.
    """
    if config.algorithm.normalize_observations:
        raise ValueError("algorithm.normalize_observations: segments are read as they come; set it False")
    if config.network.kind != "mlp":
        raise ValueError(f"network.kind={config.network.kind!r}: segments are read step by step, by an mlp")
    env = control_setup.load_env(config, 1)
    algorithm = control_setup.make_algorithm(control_setup.settings_of(config))
    return AgentSetup(control_setup.make_network(config, env, algorithm.objective.num_outputs()), algorithm, env)


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
        del taught["preferences"]  # the teacher is a run of control.ppo
        taught.update(program="control.ppo", log_every=1)
    taught.train.total_steps = config.segments.teacher_steps
    taught.checkpoint.every = 1
    taught.eval.num_episodes = 0
    init, advance, params = control_runs.make_run(taught)
    updates = control_setup.num_updates(taught)
    return lambda key, values: params(advance(init(key, values), values, updates)[0])


def advantages_by(config, setup: AgentSetup, teacher: Any, discount: Any) -> Callable:
    """Makes A(s_t, a_t): exact in a finite MDP, else r + gamma V' - V with the teacher's critic.

    Args:
      config: of the run.
      setup: agent and algorithm.
      teacher: params of the teacher.
      discount: that its critic was trained with; a finite MDP's is segments.label.discount.

    Returns:
      advantages(rows [B, T]) -> float32 [B, T].
    """
    if config.env.name in TABLES:
        table = table_of(config)
        exact = tabular.advantages(
            jnp.asarray(table.rewards), jnp.asarray(table.transition_probs), discount=config.segments.label.discount
        )
        return lambda rows: exact[tabular.states(rows.observations), rows.actions]

    def values(observations: jax.Array) -> jax.Array:
        outputs = segments.over_leading(lambda x: setup.agent.value(teacher, x), 2, observations)
        return setup.algorithm.objective.values(outputs)

    def by_critic(rows: Transitions) -> jax.Array:
        state_values, next_values = values(rows.observations), values(rows.next_observations)
        return step_advantages.gae(
            rows.rewards, state_values, next_values, rows.terminated, rows.truncated, discount=discount, lam=0.0
        )[0]

    return by_critic


def check_labels(config) -> None:
    """Raises ValueError if segments.label.fn is unknown, or the config cannot measure the regret that it asks for."""
    settings = config.segments
    if settings.label.fn not in LABELS:
        raise ValueError(f"segments.label.fn={settings.label.fn!r} is none of {', '.join(LABELS)}")
    if settings.label.fn == "regret" and config.env.name not in TABLES:
        if not settings.teacher_steps:
            raise ValueError("segments.label.fn=regret: the regret needs a trained critic; set segments.teacher_steps")
        if config.algorithm.normalize_rewards:
            raise ValueError(
                "algorithm.normalize_rewards: the regret cannot be measured on scaled rewards; set it False"
            )


def make_gather(config, setup: AgentSetup) -> Callable:
    """Makes the data: steps are collected, cut into segments, scored and compared.

    Environments are loaded here, outside of what is traced.

    Args:
      config: of the run; its group `segments`.
      setup: agent and algorithm.

    Returns:
      gather(key, swept values) -> (SegmentPairs to train on, held-out pairs of the same segments).

    Raises:
      ValueError: as in `check_labels`.
    """
    check_labels(config)
    settings, agent = config.segments, setup.agent
    teach, env = make_teacher(config, agent), control_setup.load_env(config, settings.num_envs, learning=True)
    annotator = dict(beta=settings.beta, flip_rate=settings.flip_rate)

    def rollout(teacher, untrained, env_key: jax.Array, act_key: jax.Array) -> Transitions:
        shares = jnp.linspace(0.0, 1.0, settings.num_envs)[:, None]

        def behave(observations: jax.Array) -> jax.Array:
            best, worst = agent.policy(teacher, observations), agent.policy(untrained, observations)
            share = jnp.broadcast_to(shares, best.shape)
            return (1.0 - share) * best + share * worst

        began = start(env, env_key)
        return collect(memoryless(behave), agent.distribution, env, began, act_key, num_steps=settings.num_steps)[1]

    def gather(key: jax.Array, values: dict[str, jax.Array]):
        teacher_key, other_key, env_key, act_key, pair_key, held_key = jax.random.split(key, 6)
        teacher = teach(teacher_key, values)
        rows = rollout(teacher, agent.init(other_key), env_key, act_key)
        swept = control_setup.with_values(control_setup.settings_of(config), values)["algorithm"]
        discount = control_setup.discount_of(swept["advantage"])
        added = LABELS[settings.label.fn](rows, advantages_by(config, setup, teacher, discount))
        steps = StepInputs(rows.observations, rows.actions)
        (steps, added), mask = segments.cut((steps, added), rows.terminated | rows.truncated, length=settings.length)
        sums = segments.segment_sums(added, mask, discount=settings.label.discount)
        pairs = segments.labelled_pairs(pair_key, sums, count=settings.num_pairs, **annotator)
        held_out = segments.labelled_pairs(held_key, sums, count=settings.held_out, **annotator)
        return segments.SegmentPairs(steps, mask, pairs), segments.SegmentPairs(steps, mask, held_out)

    return gather
