"""The update of an agent with memory: the same algorithm, trained on whole rows of T steps.

    outputs, V, V'   = look_ahead(params, o [B, T], m, first, o')     m: the memory with which the row was begun
    minibatch        = some of the B rows; loss of unroll(params, o, m, first), with gradients through the row's T steps

The memory m is the actor's own, stored with the row, so it comes from older params than those being trained (the
"stored state" of R2D2, Kapturowski et al., ICLR 2019, without its burn-in; also recurrent PPO in Huang et al., "The 37
implementation details of PPO", 2022). It is empty at the start of an episode, which `first` marks for each step. The
bootstrap value V' of an episode's last step uses that episode's memory and does not affect the next episode's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp

from rl_jax import ppo
from rl_jax.control.algorithm import Algorithm, NetworkOutputs, credited, scored_loss
from rl_jax.control.update import LearnRule
from rl_jax.core.masked import Max, Mean
from rl_jax.core.types import TokenScores
from rl_jax.rollout.envs.steps import Transitions, Worlds


class SequenceInputs(NamedTuple):
    """The content of PolicyBatch.batch for agents with memory.

    Attributes:
      observations: float32 [B, T, *shape], normalised.
      actions: [B, T, ...].
      first: bool [B, T]. True at the first step of an episode.
      memory: the agent's state before each row, a pytree with B first.
    """

    observations: chex.Array
    actions: chex.Array
    first: chex.Array
    memory: Any


def by_rows(agent, env, algorithm: Algorithm, *, num_steps: int, axis_name=None) -> LearnRule:
    """The `learner` of make_update for an agent with memory: minibatches are whole rows of T steps.

    A row starts with the memory that the actor had there, computed with older params (the stored state, see above).

    Args:
      agent: models.agents.memory.MemoryAgent.
      env: envs.Vector.
      algorithm: see control.algorithm.
      num_steps: T.
      axis_name: mapped axis over which the environments are spread.

    Returns:
      The LearnRule.

    Raises:
      ValueError: if the environments do not divide into the minibatches.
    """
    if env.num_envs % algorithm.minibatches:
        raise ValueError(
            f"{env.num_envs} environments do not divide into {algorithm.minibatches} minibatches: an agent with memory "
            "learns from whole rows, one of each environment"
        )

    def policy(params: Any, normalize: Callable) -> Callable:
        def act(worlds: Worlds):
            first = worlds.episode_length == 0
            outputs, _, memory = agent.step(params, normalize(worlds.observation), worlds.memory, first)
            return outputs, memory

        return act

    return LearnRule(
        policy=policy,
        assign=lambda params, rows, normalize, began: assign_rows(
            agent, params, rows, normalize, algorithm, axis_name, began=began
        ),
        loss=lambda params, batch: rows_loss(agent, params, batch, algorithm),
        size=env.num_envs,
    )


def assign_rows(
    agent, params: Any, rows: Transitions, normalize: Callable, algorithm: Algorithm, axis_name=None, *, began: Worlds
) -> tuple[ppo.PPOBatch, dict[str, Mean]]:
    """control.assign for whole rows [B, T].

    Args:
      agent: models.agents.memory.MemoryAgent.
      params: the learner's, before this batch.
      rows: [B, T].
      normalize: observations -> observations.
      algorithm: see control.algorithm.
      axis_name: mapped axis over which the environments are spread.
      began: the environments' state at the start of the rows, including the memory at that time.

    Returns:
      (batch [B, T], metrics of the critic, undivided).
    """
    done = rows.terminated | rows.truncated
    first = jnp.concatenate([began.episode_length[:, None] == 0, done[:, :-1]], axis=1)
    observations, following = normalize(rows.observations), normalize(rows.next_observations)
    distributions, *values = agent.look_ahead(params, observations, began.memory, first, following)
    log_prob = agent.distribution.log_prob
    behavior = log_prob(rows.outputs, rows.actions)
    log_probs = behavior if algorithm.actor_lag == 1 else log_prob(distributions, rows.actions)
    outputs = NetworkOutputs(log_probs, behavior, *(algorithm.objective.values(x) for x in values))
    steps = SequenceInputs(observations, rows.actions, first, began.memory)
    return credited(steps, rows, outputs, algorithm, axis_name, shape=first.shape)


def rows_loss(agent, params: Any, batch: ppo.PPOBatch, algorithm: Algorithm) -> tuple[Mean, dict[str, Mean | Max]]:
    """control.minibatch_loss for n whole rows. batch: [n, T] of `assign_rows`."""
    rows = batch.policy.batch
    outputs, values = agent.unroll(params, rows.observations, rows.memory, rows.first)
    distribution = agent.distribution
    scores = TokenScores(distribution.log_prob(outputs, rows.actions), distribution.entropy(outputs))
    return scored_loss(scores, values, batch, algorithm)
