"""Over-optimisation of a language model of words: policy gradients on one reward model, or on several together."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies import texts
from experiments.studies.base import Outcome, curve
from experiments.studies.over_optimization import (
    Policy,
    fine_tuned,
    labelled,
    make_draw,
    make_reward_models,
    make_sample,
    make_score_all,
)
from rl_jax.advantages.groups import leave_one_out, to_tokens
from rl_jax.core.binding import bind
from rl_jax.core.masked import zero_masked
from rl_jax.credit import ensembles
from rl_jax.losses.policy.clipped import clipped_surrogate
from rl_jax.training.scoring import make_score

MEASURED = ("gold", "proxy", "others", "first", "second", "kl")  # first, second: gold of the halves of the samples


def make_improve(policy: Policy, *, group_size: int, kl_coef: float, learning_rate: float):
    """Makes (tx, improve), improve(params, state, rollout, rewards [B]) -> (params, state, KL).

    One update of the clipped surrogate on fresh samples, with A_i = R_i - the mean of the others of its prompt and
    R = reward - kl_coef (log pi - log ref), summed over the tokens (k1).

    Args:
      policy: the reference.
      group_size: samples per prompt.
      kl_coef: of the KL in the reward.
      learning_rate: of Adam.
    """
    score = make_score(policy.model, completion_length=policy.columns[1])
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))

    @jax.jit
    def improve(params, state, rollout, rewards):
        chex.assert_rank(rewards, 1)
        mask, old = rollout.completion_mask, rollout.raw_log_probs
        ref = score(policy.params, rollout.batch).log_probs
        log_ratio = jnp.sum(zero_masked(old - ref, mask), axis=1)
        advantages = to_tokens(leave_one_out(rewards - kl_coef * log_ratio, group_size=group_size), mask)

        def loss(params):
            found = clipped_surrogate(score(params, rollout.batch).log_probs, old, advantages, mask).loss
            return jnp.mean(jnp.sum(zero_masked(found, mask), axis=1))

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state, jnp.mean(log_ratio)

    return tx, improve


def described(windows: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What a run has gained and lost.

    Args:
      windows: gold, proxy, others, kl, and first and second, the gold reward of the two halves of the samples; float
        [W] each: means over windows of steps, the first before all training.

    Returns:
      start, peak and after, the first, best and last gold reward; rise, peak - start; lost, peak - after; fell, the
      same with the window of the peak chosen on one half of the samples and both read from the other, so that noise
      adds nothing to it on average; mean, over the windows; proxy_gain, of the reward that is trained on; others, the
      gain of those that were not (of all five, where all are); kl, the last.
    """
    gold = windows["gold"]
    gain = {name: windows[name][-1] - windows[name][0] for name in ("proxy", "others")}
    at = {"start": gold[0], "peak": np.max(gold), "after": gold[-1], "mean": np.mean(gold[1:])}
    other = windows["second"]
    fell = other[np.argmax(windows["first"])] - other[-1]
    moved = {"rise": at["peak"] - at["start"], "lost": at["peak"] - at["after"], "fell": fell}
    return at | moved | {"proxy_gain": gain["proxy"], "others": gain["others"], "kl": windows["kl"][-1]}


def make_measured(arm: Mapping, reference: np.ndarray, standardized_again: bool):
    """Makes measured(gold [B], rewards [B, M]) -> (the reward that is trained on [B], numbers as MEASURED but the KL).

    Args:
      arm: as at optimized_policy.
      reference: float [N, M], standardized rewards of the reference's samples.
      standardized_again: as at optimized_policy.
    """
    combine, used = bind(arm["combine"], ensembles), arm["members"]
    raw = combine(jnp.asarray(reference[:, :used]))
    shift, scale = (jnp.mean(raw), jnp.std(raw)) if standardized_again else (0.0, 1.0)

    def measured(gold, rewards):
        proxy = (combine(jnp.asarray(rewards[:, :used])) - shift) / scale
        others = rewards[:, used % rewards.shape[1] :]
        return proxy, (np.mean(gold), np.mean(proxy), np.mean(others), *np.reshape(gold, (2, -1)).mean(axis=1))

    return measured


def optimized_policy(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    task: Mapping,
    columns: tuple[int, int],
    policy: Mapping,
    labels: Mapping,
    training: Mapping,
    improving: Mapping,
    standardized_again: bool,
    prompts: int,
    steps: int,
    windows: int,
) -> Outcome:
    """The gold reward of a language model that is trained on one reward model, or on several together.

    One policy is fine-tuned for all seeds. Each seed has pairs of its own, and `members` reward models that are trained
    on all of them from initial params of their own. Rewards are standardized per member over samples of the reference,
    which are window 0. Gold and proxy are of the samples that the policy is trained on, before the update. Metrics: see
    `described`; agreement, the members' mean correlation on the reference. Source: arXiv 2310.02743.

    Args:
      seeds: of the pairs, reward models and samples.
      arms: name -> members, how many of the reward models are trained on, and combine, a function of
        rl_jax.credit.ensembles.
      task: a function of studies.texts, with its keywords.
      columns: of a prompt and of a completion.
      policy: keywords of fine_tuned.
      labels: prompts (of which the pairs are taken), pairs and flipped, see `labelled`; and task, fields of the task
        that differ in the texts of the language model whose samples are labelled ({}: the policy's own samples are).
      training: keywords of make_reward_models.
      improving: keywords of make_improve.
      standardized_again: whether rewards are standardized once more after they are combined: kl_coef then means the
        same in all arms, and several members, whose mean varies less, are pressed harder. The source does not.
      prompts: per step.
      steps: of the policy.
      windows: into which the steps are divided.
    """
    start = fine_tuned(jax.random.key(0), bind(task, texts)(), tuple(columns), **policy)
    group = improving["group_size"]
    train, score = make_reward_models(start.model, **training), make_score_all(start.model)
    writer = start
    if labels["task"]:
        writer = fine_tuned(jax.random.key(1), bind({**task, **labels["task"]}, texts)(), tuple(columns), **policy)
    sample_pairs, draw = make_sample(writer, 2), make_draw(start, group)
    tx, improve = make_improve(start, **improving)
    source = start.task.data_source("train")

    def rated(models, rows, moments=None) -> np.ndarray:
        """float [B, M]."""
        rewards = score(models, jax.tree.map(lambda x: x[None], rows))[0]
        return rewards if moments is None else np.asarray(ensembles.standardized(rewards, *moments))

    def run(key, arm, models, moments, first):
        rng, measured = np.random.default_rng(first["seed"]), make_measured(arm, first["rewards"], standardized_again)
        params, state = start.params, tx.init(start.params)
        trace = []
        for step in range(steps):
            records = [source[int(i)] for i in rng.choice(len(source), prompts, replace=False)]
            rollout, gold = draw(params, jax.random.fold_in(key, step), records)
            proxy, found = measured(gold, rated(models, rollout.batch, moments))
            params, state, kl = improve(params, state, rollout, proxy)
            trace.append((*found, float(kl)))
        means = np.reshape(trace, (windows, steps // windows, len(MEASURED))).mean(axis=1)
        means = np.concatenate([[(*measured(first["gold"], first["rewards"])[1], 0.0)], means])
        return dict(zip(MEASURED, means.T, strict=True))

    found = {arm: [] for arm in arms}
    agreement = []
    for seed in seeds:
        keys = jax.random.split(jax.random.key(seed), 4)
        pairs = labelled(sample_pairs(keys[0], "train", labels["prompts"]), labels["pairs"], labels["flipped"], seed)
        models = train(keys[1], pairs)
        rng = np.random.default_rng(seed)
        asked = [source[int(i)] for i in rng.choice(len(source), prompts * 16, replace=False)]
        parts = [draw(start.params, jax.random.fold_in(keys[2], i), asked[i::16]) for i in range(16)]
        rewards = np.concatenate([rated(models, rollout.batch) for rollout, _ in parts])
        moments = jnp.asarray(rewards.mean(axis=0)), jnp.asarray(rewards.std(axis=0))
        first = dict(seed=seed, gold=np.concatenate([gold for _, gold in parts]))
        first["rewards"] = np.asarray(ensembles.standardized(jnp.asarray(rewards), *moments))
        count = rewards.shape[1]
        agreement.append((np.sum(np.corrcoef(rewards.T)) - count) / max(count * (count - 1), 1))
        for name, arm in arms.items():
            found[name].append(run(keys[3], arm, models, moments, first))
    values, curves = {}, {f"{what}_by_window": {} for what in ("gold", "proxy", "kl")}
    for name, rows in found.items():
        metrics = [described(row) for row in rows]
        values[name] = {metric: np.array([row[metric] for row in metrics]) for metric in metrics[0]}
        values[name]["agreement"] = np.array(agreement)
        for what in ("gold", "proxy", "kl"):
            curves[f"{what}_by_window"][name] = curve(range(windows + 1), np.array([row[what] for row in rows]))
    return Outcome(values, curves)
