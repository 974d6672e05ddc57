"""In-context learning of several tasks: which one it is, is read from episodes that were lived in it.

    t2mir   mean over t of (tanh(mean_t) - a*)^2 + c_even even_loads + c_task task_contrast          (losses.experts)

a* is the task's best action at the query, a step drawn from the task's data; mean_t is what the model says of it after
t steps of the prompt: a decision-pretrained transformer (arXiv 2306.14892), of which T2MIR-DPT is the form with
experts. A prompt is whole episodes of the task, good or bad, the worst first. A batch has B/2 tasks, each twice.
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
    """What a fit reads of K tasks.

    Attributes:
      data: OfflineData [K, N].
      best: float32 [K, N, A], the tasks' best actions.
    """

    data: datasets.OfflineData
    best: chex.Array


class Prompted(NamedTuple):
    """A batch; its halves are of the same tasks.

    Attributes:
      queries: float32 [B, *shape], observations.
      best: float32 [B, A], the best action at each.
      data: OfflineData [B, T], the prompts.
      mask: bool [B, T]. False after an episode's end.
      task: int32 [B/2], their numbers.
    """

    queries: chex.Array
    best: chex.Array
    data: datasets.OfflineData
    mask: chex.Array
    task: chex.Array


def sample_prompts(tasks: InContext, key: chex.PRNGKey, size: int, *, episodes: int, length: int) -> Prompted:
    """A query and a prompt of each of `size` rows; rows i and size/2 + i are of the same task.

    Tasks are drawn without replacement if there are enough of them; episodes are those of steps that are drawn.

    Args:
      tasks: of K tasks.
      key: for the sampling.
      size: B.
      episodes: of a prompt, by their returns, the worst first.
      length: the first steps of an episode that are read; T is episodes * length.

    Raises:
      ValueError: if the size is odd.
    """
    if size % 2:
        raise ValueError(f"train.batch_size={size} must be even: two prompts of each task")
    task_key, step_key, query_key = jax.random.split(key, 3)
    count, steps = tasks.data.time.shape
    half = size // 2
    if half <= count:
        task = jax.random.permutation(task_key, count)[:half]
    else:
        task = jax.random.randint(task_key, (half,), 0, count)
    drawn = jax.random.randint(step_key, (size, episodes), 0, steps)
    at = jax.random.randint(query_key, (size,), 0, steps)

    def row(task: chex.Array, drawn: chex.Array, at: chex.Array):
        own, best = jax.tree.map(lambda x: x[task], (tasks.data, tasks.best))
        first = drawn - own.time[drawn]
        first = first[jnp.argsort(own.to_go[first])]
        index = (first[:, None] + jnp.arange(length)[None]).reshape(-1)
        within = jnp.minimum(index, steps - 1)
        mask = (index < steps) & (own.episode[within] == jnp.repeat(own.episode[first], length))
        return own.steps.observations[at], best[at], datasets.take(own, within), mask

    return Prompted(*jax.vmap(row)(jnp.concatenate([task, task]), drawn, at), task)


def t2mir(model, *, even_coef: float = 0.01, task_coef: float = 0.01, target_rate: float = 0.005) -> Recipe:
    """T2MIR-DPT: cloning of the best actions in context, by token-wise and task-wise experts.

    Source: arXiv 2506.05426, NJU-RL/T2MIR, T2MIR-DPT/train.py.

    Args:
      model: models.agents.expert_transformer.ExpertTransformer.
      even_coef: of the token-wise experts' even load.
      task_coef: of the contrast between tasks.
      target_rate: share of the task-wise gate in its slow copy, per update.

    Raises:
      ValueError: for a finite set of actions.
    """

    def loss(params, batch: Batch):
        queries, best, data, mask, task = batch.data
        steps = data.steps
        if jnp.issubdtype(steps.actions.dtype, jnp.integer):
            raise ValueError("t2mir is for continuous actions")
        prompt = model.prompt(steps.observations, model.encode(steps.actions), steps.rewards, mask)
        routed = model.apply(params, queries, prompt, batch.targets["gate"], batch.key)
        each = jnp.mean(jnp.square(model.distribution.mode(routed.outputs) - best[:, None]), axis=-1)
        action = masked_mean(each, jnp.concatenate([jnp.ones_like(mask[:, :1]), mask], axis=1))
        contrast = experts.task_contrast(routed.queries, routed.keys, params["contrast"]["kernel"], task)
        added = even_coef * routed.uneven + task_coef * jnp.mean(contrast)
        one = jnp.float32(1.0)
        return Mean(action.total + action.count * added, action.count), {
            "loss/action": action,
            "loss/uneven": Mean(routed.uneven, one),
            "loss/tasks": Mean(jnp.mean(contrast), one),
        }

    return Recipe(loss, ("sequence", "gate", "contrast"), targets=("gate",), target_rate=target_rate)
