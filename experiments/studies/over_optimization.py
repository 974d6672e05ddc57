"""Over-optimisation on a language model: the best of many samples by reward models of few, partly wrong labels."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, curve
from rl_jax import sft, tasks
from rl_jax.core.binding import bind
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.credit import ensembles
from rl_jax.data import pipeline
from rl_jax.losses.reward_model import bradley_terry
from rl_jax.models.heads import add_reward_head, make_predict_last
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rewards import benchmarks
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training.scoring import make_score

PROMPT, COMPLETION = 48, 64  # columns
ROWS = 1024  # of a batch of samples


class Policy(NamedTuple):
    """A language model that was fine-tuned on stories, and the task that grades what it writes.

    Attributes:
      task: of rl_jax.tasks.
      model: a transformer.
      params: of the model.
      columns: of a prompt and of a completion.
    """

    task: tasks.Task
    model: Model
    params: Params
    columns: tuple[int, int] = (PROMPT, COMPLETION)


def fine_tuned(
    key: chex.PRNGKey,
    task: tasks.Task | None = None,
    columns: tuple[int, int] = (PROMPT, COMPLETION),
    *,
    sizes: Mapping,
    steps: int,
    batch_size: int,
    learning_rate: float,
) -> Policy:
    """A transformer from scratch, trained on the task's completions.

    Args:
      key: for the initial params.
      task: None: the stories of rl_jax.tasks.
      columns: of a prompt and of a completion.
      sizes: fields of TransformerConfig.
      steps: number of updates.
      batch_size: stories per update.
      learning_rate: the largest of a cosine schedule.
    """
    task = task or tasks.load("stories")
    prompt, completion = columns
    model = make_transformer(TransformerConfig(vocab_size=task.tokenizer.vocab_size, **sizes))
    score = make_score(model, completion_length=completion)
    tx = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, learning_rate, 10, max(steps, 11)), weight_decay=0.1)

    @jax.jit
    def update(params, state, rows, mask):
        gradient = jax.grad(lambda params: sft.loss(score(params, rows), mask)[0].value())(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.jit(model.init)(key)
    state = jax.jit(tx.init)(params)
    batches = pipeline.train_iterator(task.data_source("sft_train"), batch_size=batch_size, seed=0)
    for _ in range(steps):
        arrays = pipeline.encode_sft(
            task.tokenizer, next(batches), prompt_buckets=(prompt,), completion_length=completion
        )
        rows = TokenBatch(arrays["tokens"], arrays["positions"], arrays["segment_ids"])
        params, state = update(params, state, rows, arrays["completion_mask"][:, -completion:])
    return Policy(task, model, params, (prompt, completion))


class Samples(NamedTuple):
    """Samples of P prompts, S of each.

    Attributes:
      rows: TokenBatch of [P, S, T].
      gold: float [P, S], the task's reward.
    """

    rows: TokenBatch
    gold: np.ndarray


def make_draw(policy: Policy, count: int):
    """Makes draw(params, key, records) -> (Rollout, float [B]): `count` samples of each prompt, their gold rewards."""
    tokenizer, (prompt, completion) = policy.task.tokenizer, policy.columns
    generate = jax.jit(
        make_generate(policy.model, completion_length=completion, group_size=count, eos_ids=tokenizer.eos_ids, pad_id=0)
    )

    def draw(params, key, records: Sequence[Mapping]):
        encoded = pipeline.encode_prompts(tokenizer, [r["prompt"] for r in records], buckets=(prompt,))
        rollout = jax.device_get(generate(params, *encoded, key))
        texts = [tokenizer.decode(row) for row in rollout.batch.tokens[:, -completion:]]
        of_row = [record for record in records for _ in range(count)]
        graded = [policy.task.reward_fn(r["prompt"], t, {})["reward"] for r, t in zip(of_row, texts, strict=True)]
        return rollout, np.array(graded)

    return draw


def make_sample(policy: Policy, count: int):
    """Makes sample(key, split, prompts) -> Samples: `count` of each of so many prompts of a split."""
    draw, at_once = make_draw(policy, count), max(ROWS // count, 1)

    def sample(key, split: str, prompts: int) -> Samples:
        source = policy.task.data_source(split)
        chosen = np.random.default_rng(int(jax.random.bits(key))).choice(len(source), prompts, replace=False)
        rows, gold = [], []
        for start in range(0, prompts, at_once):
            records = [source[int(i)] for i in chosen[start : start + at_once]]
            rollout, graded = draw(policy.params, jax.random.fold_in(key, start), records)
            rows.append(jax.tree.map(lambda x: x.reshape(-1, count, x.shape[-1]), rollout.batch))
            gold.append(graded.reshape(-1, count))
        return Samples(jax.tree.map(lambda *x: np.concatenate(x), *rows), np.concatenate(gold))

    return sample


def labelled(samples: Samples, pairs: int, flipped: float, seed: int) -> TokenBatch:
    """Pairs of samples, the one with the higher gold reward first but for the share that is flipped.

    Prompts whose samples differ in reward are taken before others, in which the first sample is called better.

    Args:
      samples: [P, 2], of as many prompts as pairs or more.
      pairs: N.
      flipped: share of the pairs whose order is reversed, exactly.
      seed: chooses the pairs and those that are flipped.

    Returns:
      TokenBatch of [N, 2, T].
    """
    chex.assert_shape(samples.gold, (None, 2))
    order = np.random.default_rng(seed).permutation(len(samples.gold))
    chosen = order[np.argsort(samples.gold[order, 0] == samples.gold[order, 1], kind="stable")][:pairs]
    first = np.argmax(samples.gold[chosen], axis=1)
    first[: round(flipped * pairs)] ^= 1
    return jax.tree.map(lambda x: x[chosen[:, None], np.stack([first, 1 - first], axis=1)], samples.rows)


def make_reward_models(model: Model, *, members: int, steps: int, batch_size: int, learning_rate: float):
    """Makes train(key, pairs [N, 2, T]) -> params of `members` reward models, stacked.

    The members see the same labels and differ in what the paper's differ in, which is their initial params, and in the
    order of the batches.

    Args:
      model: their architecture, to which a head for the reward is added.
      members: M.
      steps: number of updates.
      batch_size: pairs per update.
      learning_rate: of Adam.
    """
    read, tx = make_predict_last(model), optax.adam(learning_rate)

    def loss(params, rows):
        rewards = read(params, jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), rows)).reshape(-1, 2)
        return jnp.mean(bradley_terry(rewards, jnp.ones(rewards.shape, bool)).loss)

    def train_one(key, pairs):
        keys = jax.random.split(key, 3)
        params = add_reward_head(model, model.init(keys[0]), keys[1])

        def update(carry, key):
            params, state = carry
            chosen = jax.random.choice(key, len(pairs.tokens), (batch_size,), replace=False)
            gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[chosen], pairs))
            updates, state = tx.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(update, (params, tx.init(params)), jax.random.split(keys[2], steps))[0][0]

    return jax.jit(lambda key, pairs: jax.vmap(lambda k: train_one(k, pairs))(jax.random.split(key, members)))


def make_score_all(model: Model):
    """Makes score(stacked params of M, rows [P, S, T]) -> float [P, S, M], prompt by prompt."""
    read = make_predict_last(model)
    one = jax.jit(lambda params, rows: jax.lax.map(lambda p: read(p, rows)[:, 0], params).T)

    def score(params, rows: TokenBatch) -> np.ndarray:
        prompts = range(len(rows.tokens))
        return np.stack([np.asarray(one(params, jax.tree.map(lambda x, i=i: x[i], rows))) for i in prompts])

    return score


def gold_of_best(rewards: np.ndarray, gold: np.ndarray, combine: str | Mapping | None, sizes: Sequence[int]):
    """The gold reward of the best of n samples, exact over all subsets of n: float [len(sizes)].

    Args:
      rewards: float [P, S, M] of the members, which are standardized first: Bradley-Terry leaves offset and scale open.
      gold: float [P, S].
      combine: a function of rl_jax.credit.ensembles. None: each member alone, and the mean over the members of what it
        chooses.
      sizes: values of n.
    """
    chex.assert_shape(rewards, (*gold.shape, None))
    rewards = (rewards - rewards.mean((0, 1))) / rewards.std((0, 1))
    chosen = np.moveaxis(rewards, -1, 0)
    if combine is not None:
        chosen = [np.asarray(bind(combine, ensembles)(jnp.asarray(rewards, jnp.float32)))]
    return np.mean([[point.gold for point in benchmarks.best_of_n(x, gold, sizes)] for x in chosen], axis=0)


def best_of_many(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    policy: Mapping,
    labels: Mapping,
    training: Mapping,
    prompts: int,
    samples: int,
    sizes: Sequence[int],
    middle: int,
) -> Outcome:
    """The gold reward of the best of n samples of a language model, by one reward model or by several together.

    One policy is fine-tuned for all seeds. Each seed has pairs of its own, `members` reward models that are trained on
    them from initial params of their own, and samples of its own. Rewards are standardized per member, over all
    samples. The gold reward at n is exact over all subsets of n samples (rewards.benchmarks.best_of_n). Metrics:
    start, middle and after, the gold reward at the first, `middle` and last of the sizes; held, after - middle: below 0
    where more samples are worse; agreement, the members' mean correlation. Source: arXiv 2310.02743 section 5.1.

    Args:
      seeds: of the pairs, reward models and samples.
      arms: name -> None, each member alone, and the mean over the members of what it chooses; or the function of
        rl_jax.credit.ensembles that combines them.
      policy: keywords of fine_tuned.
      labels: prompts (of which the pairs are taken), pairs and flipped, see `labelled`.
      training: keywords of make_reward_models.
      prompts: P, held-out ones.
      samples: S of each.
      sizes: values of n, up to S.
      middle: one of them.
    """
    trained = fine_tuned(jax.random.key(0), **policy)
    train, score = make_reward_models(trained.model, **training), make_score_all(trained.model)
    sample_pairs, sample_many = make_sample(trained, 2), make_sample(trained, samples)
    curves = {arm: [] for arm in arms}
    agreement = []
    for seed in seeds:
        keys = jax.random.split(jax.random.key(seed), 3)
        pairs = labelled(sample_pairs(keys[0], "train", labels["prompts"]), labels["pairs"], labels["flipped"], seed)
        drawn = sample_many(keys[1], "test", prompts)
        rewards = score(train(keys[2], pairs), drawn.rows)
        count = rewards.shape[-1]
        agreement.append((np.sum(np.corrcoef(rewards.reshape(-1, count).T)) - count) / max(count * (count - 1), 1))
        for arm, combine in arms.items():
            curves[arm].append(gold_of_best(rewards, drawn.gold, combine, sizes))
    values = {}
    for arm, rows in curves.items():
        gold = np.array(rows)
        at = {"start": gold[:, 0], "middle": gold[:, list(sizes).index(middle)], "after": gold[:, -1]}
        values[arm] = at | {"held": at["after"] - at["middle"], "agreement": np.array(agreement)}
    return Outcome(values, {"gold_of_best_of": {arm: curve(sizes, rows) for arm, rows in curves.items()}})
