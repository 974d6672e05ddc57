"""The update of an agent with memory: the same algorithm, trained on whole rows of T steps.

    outputs, V, V'   = look_ahead(params, o [B, T], m, first, o')     m: the memory with which the row was begun
    minibatch        = some of the B rows; loss of unroll(params, o, m, first), with gradients through the row's T steps

The memory m is the actor's own, stored with the row, so it comes from older params than those being trained (the
"stored state" of R2D2, Kapturowski et al., ICLR 2019, without its burn-in; also recurrent PPO in Huang et al., "The 37
implementation details of PPO", 2022). It is empty at the start of an episode, which `first` marks for each step. The
bootstrap value V' of an episode's last step uses that episode's memory and does not affect the next episode's.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rl_jax import ppo
from rl_jax.control.algorithm import Algorithm, credited
from rl_jax.control.update import LearnRule
from rl_jax.core.masked import Mean
from rl_jax.core.types import SequenceInputs
from rl_jax.rollout.envs.steps import Transitions, Worlds


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
      (batch [B, T] of SequenceInputs, metrics of the critic, undivided).
    """
    done = rows.terminated | rows.truncated
    first = jnp.concatenate([began.episode_length[:, None] == 0, done[:, :-1]], axis=1)
    observations, following = normalize(rows.observations), normalize(rows.next_observations)
    inputs = SequenceInputs(observations, rows.actions, first, began.memory)
    return credited(agent, params, inputs, following, rows, algorithm, axis_name, shape=first.shape)
