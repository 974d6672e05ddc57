"""Kinds of config.foreign that make their rows of the step's own answers; called like those of foreign_kinds.

Named in a config by their import path, "experiments.parts.foreign_own:self_verification".
"""

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts
from experiments.parts.foreign_stage import Candidates, Stage, rephrased
from experiments.parts.judging import Judged
from rl_jax.rewards.pool import RewardResult
from rl_jax.selection import foreign_rows, own_rows


def self_verification(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    template: str = "{prompt}\n{answer}\nIs this answer right? 1 or 0:\n",
    verdicts: tuple[str, str] = ("1", "0"),
    paid: tuple[float, float, float] = (1.0, 0.0, 0.0),
) -> Candidates | None:
    """Groups that judge an own answer of this step: their prompt shows it, and right is what its reward said.

    The answer is a random one of a random group that stays; if none stays, of the group itself. The rows are trained on
    as answers to the prompt that asks for the verdict, with replace="group".
    Source: RISE arXiv 2505.13445.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N]. The groups that become verifications.
      template: of the prompt, with the places prompt and answer.
      verdicts: what is to be said of an answer with a reward above `above`, and of the others.
      paid: rewards of the right verdict, of the wrong one, and of anything else.
    """
    if not wanted.any():
        return None
    size, own = stage.group_size, judged.result.rewards
    shown = own_rows.shown_answers(jax.random.fold_in(stage.key, 2), wanted, size)
    is_right, records = own[shown] > stage.above, stage.records(judged)
    asked = []
    for group, row in enumerate(shown):
        source = judged.records[row]
        asked.append(
            rephrased(source, lambda text, row=row: template.format(prompt=text, answer=judged.completions[row]))
            if wanted[group]
            else records[group]
        )
    drawn = stage.draw(
        *encode_prompts(stage.setup, [asked[i] for i in stage.own_prompts]), jax.random.fold_in(stage.key, 3)
    )
    texts = [stage.setup.task.tokenizer.decode(ids) for ids in foreign_rows.sampled_of(drawn)[0]]
    rewards = own_rows.verdict_rewards(texts, np.repeat(is_right, size), verdicts=verdicts, paid=paid)
    usable = np.repeat(wanted[:, None], size, axis=1)
    hits = (rewards == np.float32(paid[0])).reshape(usable.shape)
    metrics = {"accuracy": float(hits[wanted].mean()), "of_right": float(is_right[wanted].mean())}
    result = RewardResult(rewards, {}, 0, 0, None)
    made = Judged(drawn, [record for record in asked for _ in range(size)], texts, result)
    return Candidates(made, usable, foreign=False, metrics=metrics)


def progress(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    outcome: float = 0.0,
    alpha: float = 1.0,
    force: str = "",
    best: float = 1.0,
) -> Candidates | None:
    """The same rows with another reward: what the answer has gained since a random moment at which it could have ended.

        R' = outcome R + alpha (R - R_cut),   R_cut: the reward of an answer that is forced after its first m tokens

    m is uniform from 0 to n - 1. Costs a rollout of as many rows. The metric regret is the mean of best - R_cut: with a
    uniform cut, the cumulative regret over the tokens, divided by their number.
    Source: MRT arXiv 2503.07572; the code's README (CMU-AIRe/MRT) has outcome 0 and alpha 1, as an advantage without
    another baseline; the paper adds alpha times the progress to the outcome.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      outcome: weight of the reward itself.
      alpha: weight of the progress.
      force: text that ends the thinking, put after the first m tokens.
      best: reward of the best policy, for the regret.
    """
    if not wanted.any():
        return None
    ids, _ = foreign_rows.sampled_of(judged.rollout)
    tokenizer, size = stage.setup.task.tokenizer, stage.group_size
    cuts = own_rows.random_cuts(jax.random.fold_in(stage.key, 2), np.array([len(row) for row in ids]))
    forced = list(tokenizer.encode_continuation(force)) if force else []
    begins = [[*row[:cut], *forced] for row, cut in zip(ids, cuts, strict=True)]
    stopped = _rewards_after(stage, judged, begins, jax.random.fold_in(stage.key, 3))
    rewards = judged.result.rewards
    gained = (outcome * rewards + alpha * (rewards - stopped)).astype(np.float32)
    kept = np.repeat(wanted, size)
    result = judged.result._replace(rewards=np.where(kept, gained, rewards))
    metrics = {"regret": float((best - stopped[kept]).mean()), "progress": float((rewards - stopped)[kept].mean())}
    return Candidates(judged._replace(result=result), kept.reshape(-1, size), foreign=False, metrics=metrics)


def guided_roll_outs(stage: Stage, judged: Judged, wanted: np.ndarray) -> Candidates | None:
    """The same rows, of which one token is trained on: its reward is what it is worth if a guide goes on after it.

        R = Q - V,   V: the reward if the guide goes on after m tokens,   Q: after m + 1, the row's own token included

    m is uniform over the row. The guide is the run's reference policy, its start unless a schedule moves it. Costs two
    rollouts of as many rows. Source: AggreVaTeD of RLGF, arXiv 2306.11816 (roll-in by the learner, roll-out by the
    guide); one sample of each value is our choice.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].

    Raises:
      ValueError: if the program has no reference to guide.
    """
    if not wanted.any():
        return None
    if stage.guide is None:
        raise ValueError("guided_roll_outs needs a reference policy: experiments.grpo and experiments.ppo have one")
    ids, _ = foreign_rows.sampled_of(judged.rollout)
    cuts = own_rows.random_cuts(jax.random.fold_in(stage.key, 2), np.array([len(row) for row in ids]))
    keys = [jax.random.fold_in(stage.key, fold) for fold in (3, 4)]
    before, after = (
        _rewards_after(
            stage, judged, [row[: cut + more] for row, cut in zip(ids, cuts, strict=True)], key, by_guide=True
        )
        for more, key in zip((0, 1), keys, strict=True)
    )
    ends = judged.rollout.finished & (cuts + 1 == [len(row) for row in ids])  # nothing comes after the end
    rewards = np.where(ends, judged.result.rewards, after) - before
    kept, mask = np.repeat(wanted, stage.group_size), judged.rollout.completion_mask
    trained = mask & (np.cumsum(mask, axis=1) - 1 == cuts[:, None])
    result = judged.result._replace(rewards=np.where(kept, rewards, judged.result.rewards).astype(np.float32))
    rollout = judged.rollout._replace(completion_mask=np.where(kept[:, None], trained, mask))
    metrics = {"value": float(before[kept].mean()), "advantage": float(rewards[kept].mean())}
    made = judged._replace(rollout=rollout, result=result)
    return Candidates(made, kept.reshape(-1, stage.group_size), foreign=False, metrics=metrics)


def step_completions(
    stage: Stage, judged: Judged, wanted: np.ndarray, *, separators: tuple[int, ...] = (), samples: int = 4
) -> Candidates | None:
    """The same rows, of which one state is trained on: its reward is the mean of `samples` answers that go on from it.

        V_MC(s) = 1/samples sum_k R(s, y_k),   y_k ~ reference(. | s),   s a random beginning of a step of the row

    The generator makes the states and the completer, the run's reference policy, goes on; an answer has as many tokens
    as any other. Targets of a critic: only the token after the state stays on the mask. Costs `samples` rollouts of as
    many rows. Source: arXiv 2412.18279 (the critic of Direct Advantage Policy Optimization).

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      separators: ids that end a step; none: the only state is the prompt.
      samples: completions of each state, 1 or more.

    Raises:
      ValueError: if samples is not above 0, or the program has no reference.
    """
    if samples < 1:
        raise ValueError(f"step_completions: samples={samples!r} must be 1 or more")
    if not wanted.any():
        return None
    if stage.guide is None:
        raise ValueError("step_completions needs a reference policy: experiments.grpo and experiments.ppo have one")
    ids, _ = foreign_rows.sampled_of(judged.rollout)
    cuts = own_rows.random_states(jax.random.fold_in(stage.key, 2), ids, separators)
    begins, mask = [row[:cut] for row, cut in zip(ids, cuts, strict=True)], judged.rollout.completion_mask
    drawn = [
        _rewards_after(
            stage, judged, begins, jax.random.fold_in(stage.key, 3 + k), by_guide=True, at_most=mask.shape[1]
        )
        for k in range(samples)
    ]
    kept, values = np.repeat(wanted, stage.group_size), np.mean(drawn, axis=0)
    trained = mask & (np.cumsum(mask, axis=1) - 1 == cuts[:, None])
    result = judged.result._replace(rewards=np.where(kept, values, judged.result.rewards).astype(np.float32))
    rollout = judged.rollout._replace(completion_mask=np.where(kept[:, None], trained, mask))
    metrics = {"value": float(values[kept].mean()), "inside": float((cuts[kept] > 0).mean())}
    made = judged._replace(rollout=rollout, result=result)
    return Candidates(made, kept.reshape(-1, stage.group_size), foreign=False, metrics=metrics)


def _rewards_after(
    stage: Stage,
    judged: Judged,
    begins: list[list[int]],
    key: jax.Array,
    *,
    by_guide: bool = False,
    at_most: int | None = None,
) -> np.ndarray:
    """float32 [B]: the rewards of answers that begin so, and go on as they are sampled; cut after at_most tokens."""
    drawn = stage.draw_each(judged.rollout, begins, key, by_guide=by_guide)
    ends, log_probs = foreign_rows.sampled_of(drawn)
    if at_most is not None:
        ends, log_probs = (
            [row[: at_most - len(begin)] for row, begin in zip(rows, begins, strict=True)] for rows in (ends, log_probs)
        )
    rollout = foreign_rows.lay_out(
        foreign_rows.prompts_of(judged.rollout),
        [[*begin, *end] for begin, end in zip(begins, ends, strict=True)],
        drawn.completion_mask.shape[1] + max(map(len, begins)),
        log_probs=[[0.0] * len(begin) + end for begin, end in zip(begins, log_probs, strict=True)],
        **stage.ends,
    )
    return stage.judge(rollout, stage.records(judged)).result.rewards
