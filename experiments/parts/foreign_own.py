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
    drawn = stage.draw_each(judged.rollout, begins, jax.random.fold_in(stage.key, 3))
    ends, log_probs = foreign_rows.sampled_of(drawn)
    rollout = foreign_rows.lay_out(
        foreign_rows.prompts_of(judged.rollout),
        [[*begin, *end] for begin, end in zip(begins, ends, strict=True)],
        drawn.completion_mask.shape[1] + max(map(len, begins)),
        log_probs=[[0.0] * len(begin) + end for begin, end in zip(begins, log_probs, strict=True)],
        **stage.ends,
    )
    stopped = stage.judge(rollout, stage.records(judged)).result.rewards
    rewards = judged.result.rewards
    gained = (outcome * rewards + alpha * (rewards - stopped)).astype(np.float32)
    kept = np.repeat(wanted, size)
    result = judged.result._replace(rewards=np.where(kept, gained, rewards))
    metrics = {"regret": float((best - stopped[kept]).mean()), "progress": float((rewards - stopped)[kept].mean())}
    return Candidates(judged._replace(result=result), kept.reshape(-1, size), foreign=False, metrics=metrics)
