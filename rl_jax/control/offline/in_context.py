"""In-context learning of several tasks: which one it is, is read from rewards of the episode so far.

    t2mir   mean over t of (tanh(mean) - a*_t)^2 + c_even even_loads + c_task task_contrast          (losses.experts)

a*_t is the task's best action where the window's behaviour, good or bad, was at t: a decision-pretrained transformer
(arXiv 2306.14892), of which T2MIR-DPT is the form with experts. A batch is two windows of each of B/2 drawn tasks.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.recipe import Batch, Recipe
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.losses import experts


class InContext(NamedTuple):
    """What a fit reads of all tasks; or, sampled, a batch of it.

    Attributes:
      data: OfflineData [K, N] of the tasks; sampled: windows [B, T], halves of the same tasks.
      best: float32 [K, N, A], the tasks' best actions; sampled: [B, T, A].
      mask: bool [K, N], all True; sampled: [B, T], False before an episode's first step.
      task: int32 [K], their numbers; sampled: [B/2].
    """

    data: datasets.OfflineData
    best: chex.Array
    mask: chex.Array
    task: chex.Array


def sample_pairs(tasks: InContext, key: chex.PRNGKey, size: int, *, context: int) -> InContext:
    """Two windows, of size in all, of each of size/2 drawn tasks; they end at random steps.

    Raises:
      ValueError: if the size is odd.
    """
    if size % 2:
        raise ValueError(f"train.batch_size={size} must be even: two windows of each task")
    task_key, end_key = jax.random.split(key)
    task = jax.random.randint(task_key, (size // 2,), 0, len(tasks.task))
    ends = jax.random.randint(end_key, (size,), 0, tasks.mask.shape[1])
    row = jnp.concatenate([task, task])

    def window(row: chex.Array, end: chex.Array):
        own = jax.tree.map(lambda x: x[row], (tasks.data, tasks.best))
        index = jnp.maximum(end + jnp.arange(1 - context, 1), 0)
        found, mask = datasets.windows(own[0], end[None], context)
        return jax.tree.map(lambda x: x[0], found), own[1][index], mask[0]

    return InContext(*jax.vmap(window)(row, ends), task)


def rewards_before(rewards: chex.Array, mask: chex.Array) -> chex.Array:
    """The reward of the step before, 0 for the first of a window or an episode: float [B, T], with bool [B, T]."""
    chex.assert_equal_shape([rewards, mask])
    first = jnp.zeros_like(rewards[:, :1])
    return jnp.concatenate([first, jnp.where(mask, rewards, 0.0)[:, :-1]], axis=1)


def t2mir(model, *, even_coef: float = 0.1, task_coef: float = 0.01, target_rate: float = 0.005) -> Recipe:
    """T2MIR: cloning of the best actions in context, by token-wise and task-wise experts. Source: arXiv 2506.05426.

    Args:
      model: models.agents.expert_transformer.ExpertTransformer.
      even_coef: of the token-wise experts' even load.
      task_coef: of the contrast between tasks.
      target_rate: share of the task-wise gate in its slow copy, per update.

    Raises:
      ValueError: for a finite set of actions.
    """

    def loss(params, batch: Batch):
        data, best, mask, task = batch.data
        steps = data.steps
        if jnp.issubdtype(steps.actions.dtype, jnp.integer):
            raise ValueError("t2mir is for continuous actions")
        before = rewards_before(steps.rewards, mask)
        inputs = model.sequence(before, steps.observations, model.encode(steps.actions), data.time, mask)
        routed = model.apply(params, inputs, batch.targets["gate"], batch.key)
        each = jnp.mean(jnp.square(model.distribution.mode(routed.outputs) - best), axis=-1)
        action = masked_mean(each, mask)
        contrast = experts.task_contrast(routed.queries, routed.keys, params["contrast"]["kernel"], task)
        added = even_coef * routed.uneven + task_coef * jnp.mean(contrast)
        one = jnp.float32(1.0)
        return Mean(action.total + action.count * added, action.count), {
            "loss/action": action,
            "loss/uneven": Mean(routed.uneven, one),
            "loss/tasks": Mean(jnp.mean(contrast), one),
        }

    return Recipe(loss, ("sequence", "gate", "contrast"), targets=("gate",), target_rate=target_rate)
