"""In-context learning of several tasks: which one it is, is read from episodes that were lived in it.

    t2mir      mean over t of (tanh(mean_t) - a*)^2 + c_even even_loads + c_task task_contrast       (losses.experts)
    t2mir_ad   mean over t of (tanh(mean_t) - a_t)^2 + the same

a* is the task's best action at the query, a step drawn from the task's data; mean_t is what the model says of it after
t steps of the prompt: a decision-pretrained transformer (arXiv 2306.14892), of which T2MIR-DPT is the form with
experts. A prompt is whole episodes of the task, good or bad, the worst first. A batch has B/2 tasks, each twice.

a_t is what a learner did at step t of its history, several episodes in the order in which it got better: to imitate it
is to get better from episode to episode without an update, algorithm distillation (arXiv 2210.14215), of which T2MIR-AD
is the form with experts.
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


class Histories(NamedTuple):
    """A batch of parts of learning histories; its halves are of the same tasks.

    Attributes:
      data: OfflineData [B, T].
      mask: bool [B, T]. False after an episode's end.
      task: int32 [B/2], their numbers.
    """

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
    task_key, step_key, query_key = jax.random.split(key, 3)
    steps, task = tasks.data.time.shape[1], _sample_tasks(task_key, size, len(tasks.data.time))
    drawn = jax.random.randint(step_key, (size, episodes), 0, steps)
    at = jax.random.randint(query_key, (size,), 0, steps)

    def row(task: chex.Array, drawn: chex.Array, at: chex.Array):
        own, best = jax.tree.map(lambda x: x[task], (tasks.data, tasks.best))
        first = drawn - own.time[drawn]
        first = first[jnp.argsort(own.to_go[first])]
        return own.steps.observations[at], best[at], *_episodes(own, first, length)

    return Prompted(*jax.vmap(row)(jnp.concatenate([task, task]), drawn, at), task)


def sample_histories(
    histories: datasets.OfflineData,
    key: chex.PRNGKey,
    size: int,
    *,
    episodes: int,
    length: int,
    by_return: bool = True,
    consecutive: bool = False,
) -> Histories:
    """Episodes of the learning histories of `size` rows; rows i and size/2 + i are of the same task.

    Source: NJU-RL/T2MIR, T2MIR-AD/algorithms/datasets.py. Its PointRobot, HalfCheetah and Walker have by_return=True
    and episodes from anywhere in the history; its DarkRoom by_return=False and a window of the history.

    Args:
      histories: OfflineData [K, N] of K tasks, in the order in which the learner lived it.
      key: for the sampling.
      size: B.
      episodes: of a row, all different; a history has as many.
      length: the first steps of an episode that are read; T is episodes * length.
      by_return: a row's episodes are ordered by their returns, the worst first. False: as they were lived.
      consecutive: they follow on each other in the history. False: they are drawn from all of it.

    Raises:
      ValueError: if the size is odd.
    """
    chex.assert_rank(histories.time, 2)
    task_key, row_key = jax.random.split(key)
    task = _sample_tasks(task_key, size, len(histories.time))

    def row(task: chex.Array, key: chex.PRNGKey):
        own = jax.tree.map(lambda x: x[task], histories)
        if consecutive:
            e = jax.random.randint(key, (), 0, own.episode[-1] + 2 - episodes) + jnp.arange(episodes)
            first = jnp.argmax(own.episode[None] == e[:, None], axis=1)
        else:
            scores = jnp.where(own.time == 0, jax.random.uniform(key, own.time.shape), -1.0)
            first = jnp.sort(jax.lax.top_k(scores, episodes)[1])
        if by_return:
            first = first[jnp.argsort(own.to_go[first])]
        return _episodes(own, first, length)

    return Histories(*jax.vmap(row)(jnp.concatenate([task, task]), jax.random.split(row_key, size)), task)


def _sample_tasks(key: chex.PRNGKey, size: int, count: int) -> chex.Array:
    """size / 2 of `count` tasks, without replacement if there are enough. Raises ValueError if the size is odd."""
    if size % 2:
        raise ValueError(f"train.batch_size={size} must be even: two prompts of each task")
    half = size // 2
    if half <= count:
        return jax.random.permutation(key, count)[:half]
    return jax.random.randint(key, (half,), 0, count)


def _episodes(own: datasets.OfflineData, first: chex.Array, length: int) -> tuple[datasets.OfflineData, chex.Array]:
    """(data [E length], mask) of the episodes that begin at `first` int [E], in this order."""
    index = (first[:, None] + jnp.arange(length)[None]).reshape(-1)
    steps = len(own.time)
    within = jnp.minimum(index, steps - 1)
    mask = (index < steps) & (own.episode[within] == jnp.repeat(own.episode[first], length))
    return datasets.take(own, within), mask


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
        _check_continuous("t2mir", steps)
        prompt = model.prompt(steps.observations, model.encode(steps.actions), steps.rewards, mask)
        routed = model.apply(params, queries, prompt, batch.targets["gate"], batch.key)
        each = jnp.mean(jnp.square(model.distribution.mode(routed.outputs) - best[:, None]), axis=-1)
        action = masked_mean(each, jnp.concatenate([jnp.ones_like(mask[:, :1]), mask], axis=1))
        return _with_routing(params, action, routed, task, even_coef, task_coef)

    return Recipe(loss, ("sequence", "gate", "contrast"), targets=("gate",), target_rate=target_rate)


def t2mir_ad(model, *, even_coef: float = 0.1, task_coef: float = 0.01, target_rate: float = 0.005) -> Recipe:
    """T2MIR-AD: imitation of learning histories, by token-wise and task-wise experts.

    Source: arXiv 2506.05426, NJU-RL/T2MIR, T2MIR-AD/train.py; its continuous form.

    Args:
      model: models.agents.expert_transformer.ExpertTransformer.
      even_coef: of the token-wise experts' even load.
      task_coef: of the contrast between tasks.
      target_rate: share of the task-wise gate in its slow copy, per update.

    Raises:
      ValueError: for a finite set of actions.
    """

    def loss(params, batch: Batch):
        data, mask, task = batch.data
        steps = data.steps
        _check_continuous("t2mir_ad", steps)
        prompt = model.prompt(steps.observations, model.encode(steps.actions), steps.rewards, mask)
        routed = model.imitate(params, prompt, data.time, batch.targets["gate"], batch.key)
        each = jnp.mean(jnp.square(model.distribution.mode(routed.outputs) - steps.actions), axis=-1)
        return _with_routing(params, masked_mean(each, mask), routed, task, even_coef, task_coef)

    return Recipe(loss, ("sequence", "gate", "contrast"), targets=("gate",), target_rate=target_rate)


def _check_continuous(name: str, steps) -> None:
    if jnp.issubdtype(steps.actions.dtype, jnp.integer):
        raise ValueError(f"{name} is for continuous actions")


def _with_routing(params, action: Mean, routed, task: chex.Array, even_coef: float, task_coef: float):
    """The loss of the actions with those of the two gates, and all three. routed: expert_transformer.Routed."""
    contrast = experts.task_contrast(routed.queries, routed.keys, params["contrast"]["kernel"], task)
    added = even_coef * routed.uneven + task_coef * jnp.mean(contrast)
    one = jnp.float32(1.0)
    return Mean(action.total + action.count * added, action.count), {
        "loss/action": action,
        "loss/uneven": Mean(routed.uneven, one),
        "loss/tasks": Mean(jnp.mean(contrast), one),
    }
