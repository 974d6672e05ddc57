"""The kinds of config.foreign (experiments.parts.foreign_rows): (stage, judged, wanted, *, ...) -> Candidates or None.

`judged` are the step's rows, N groups of G; `wanted`, bool [N], are the groups that candidates are asked for. A kind of
your own is named by its import path. A kind is called in every step, also if no group is wanted.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts, encode_sft
from experiments.parts.foreign_stage import Candidates, Stage, put, rephrased
from experiments.parts.judging import Judged
from rl_jax.core.binding import bind
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.experience.prompt import info_of
from rl_jax.rewards.pool import RewardResult
from rl_jax.selection import critiques, foreign_rows
from rl_jax.training import distributed


def demonstrations(stage: Stage, judged: Judged, wanted: np.ndarray) -> Candidates | None:
    """The completions of the records, one per group, cut to the completion length.

    Source: LUFFY arXiv 2504.14945, HPT arXiv 2509.04419.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].

    Raises:
      ValueError: if the record of a wanted group has no completion.
    """
    if not wanted.any():
        return None
    records, own = stage.records(judged), stage.own_prompts
    _check_solutions(records, wanted)
    batch, mask = encode_sft(stage.setup, [records[i] for i in own])
    batch, mask = distributed.gather_rows((batch, mask), own, stage.num_groups)
    length = mask.shape[1]
    ids = [row[live].tolist() for row, live in zip(batch.tokens[:, -length:], mask, strict=True)]
    prompts = TokenBatch(*(x[:, :-length] for x in batch[:3]))
    return Candidates(stage.judge(foreign_rows.lay_out(prompts, ids, length, **stage.ends), records), wanted[:, None])


def _check_solutions(records: list[dict], wanted: np.ndarray) -> None:
    for record, asked in zip(records, wanted, strict=True):
        if asked and not record["completion"]:
            raise ValueError(
                f"the record of the prompt {record['prompt']!r:.80} has an empty field `completion`: give every "
                "training record its solution, or leave such records out"
            )


def hints(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    levels: Sequence[float] = (0.25, 0.5, 0.75),
    level: float | None = None,
    texts: str = "",
    style: str = "prefix",
    template: str = "{prompt}\n{hint}\n",
    train_on: str = "hinted",
    hint_in_loss: bool = True,
    until_right: bool = True,
    random_level: bool = False,
) -> Candidates | None:
    """Answers that were sampled with a hint: the first part of the record's completion, or a text from its info.

    Each level costs a rollout of the whole step, in a step in which a group still needs it. A prefix is cut in tokens,
    advice in characters. Source: GHPO arXiv 2507.10628, Scaf-GRPO arXiv 2510.19807, roll-in by a guide arXiv
    2306.11816.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      levels: shares of the solution, tried in this order.
      level: one share instead of them, which config.schedules can move.
      texts: a field of the record's info with a list of hints, weak to strong, which are then the levels, as advice.
        "": none.
      style: "prefix": the hint begins the answer, and the policy goes on from there. "advice": it is put into the
        prompt by `template`, and the policy answers in full.
      template: of a prompt with advice.
      train_on: "hinted": the prompt with its hint, as it was sampled. "original": the prompt without it; the answer
        then begins with the hint if style is "prefix".
      hint_in_loss: for "original" and "prefix": whether the hint's tokens are trained on.
      until_right: only groups with a right row are replaced, at the first level that gives one. False: all wanted
        groups, at the first level.
      random_level: whether a group gets a share drawn uniformly from 0 to the level (roll-in by a guide).

    Raises:
      ValueError: if style or train_on is unknown, a level is not from 0 to 1, a wanted record has no hint, or a prompt
        with its hint is too long.
    """
    for name, value, known in (("style", style, ("prefix", "advice")), ("train_on", train_on, ("hinted", "original"))):
        if value not in known:
            raise ValueError(f"{name}={value!r} is none of {', '.join(known)}")
    if not wanted.any():
        return None
    size, records = stage.group_size, stage.records(judged)
    if texts:
        style, ladder = "advice", list(range(max(len(info_of(record).get(texts, ())) for record in records)))
    else:
        _check_solutions(records, wanted)
        ladder = list(levels) if level is None else [level]
    left, reached, found = wanted.copy(), np.zeros(len(wanted)), None
    for index, share in enumerate(ladder):
        cut = np.asarray(jax.random.uniform(jax.random.fold_in(stage.key, 0), wanted.shape)) if random_level else 1.0
        shares = np.broadcast_to(share * cut, wanted.shape)
        given = [
            _hint(stage, *pair, texts, style) if asked else ""
            for *pair, asked in zip(records, shares, left, strict=True)
        ]
        key = jax.random.fold_in(stage.key, 2 + index)
        drawn = stage.draw(*_hinted_prompts(stage, records, given, style, template), key)
        begins = [ids if style == "prefix" else [] for ids in given]
        whole = _whole_answers(stage, judged, drawn, begins, uncut=train_on == "hinted")
        scored = stage.judge(whole, records)
        right = foreign_rows.right_rows(scored.result.rewards, size, above=stage.above) > 0
        solved = left & right if until_right else left.copy()
        if train_on == "hinted":
            scored = scored._replace(rollout=drawn)
        elif not hint_in_loss:
            scored = scored._replace(rollout=_without_loss(whole, begins, size))
        rows = (np.flatnonzero(solved)[:, None] * size + np.arange(size)).ravel()
        found = scored if found is None else put(found, scored, rows, rows, stage.ends["pad_id"])
        reached[solved] = (share + 1) / len(ladder) if texts else shares[solved]
        left &= ~solved
        if not left.any():
            break
    if found is None:
        raise ValueError(f"no record of the step has hints in its info field {texts!r}, or levels is empty")
    usable = np.repeat((wanted & ~left)[:, None], size, axis=1)
    return Candidates(found, usable, foreign=train_on == "original", levels=reached)


def _hint(stage: Stage, record: dict, share: float, texts: str, style: str) -> str | list[int]:
    """A group's hint: token ids if it begins the answer, else a text."""
    if texts:
        known = info_of(record).get(texts, ())
        return known[min(int(share), len(known) - 1)] if known else ""
    if style == "prefix":
        return foreign_rows.prefix(stage.setup.task.tokenizer.encode_continuation(record["completion"]), share)
    return "".join(foreign_rows.prefix(record["completion"], share))


def _hinted_prompts(
    stage: Stage, records: list[dict], given: list, style: str, template: str
) -> tuple[np.ndarray, np.ndarray]:
    """This process's prompts with their hints: tokens int32 [n, P], mask bool [n, P]."""
    own = stage.own_prompts
    if style == "prefix":
        tokens, mask = encode_prompts(stage.setup, [records[i] for i in own])
        return stage.encode(
            [row[live].tolist() + list(given[i]) for i, row, live in zip(own, tokens, mask, strict=True)]
        )
    asked = [
        rephrased(records[i], lambda text, i=i: template.format(prompt=text, hint=given[i])) if given[i] else records[i]
        for i in own
    ]
    return encode_prompts(stage.setup, asked)


def _whole_answers(stage: Stage, judged: Judged, drawn: Rollout, begins: list[list[int]], *, uncut: bool) -> Rollout:
    """The original prompts with their hints' ids and what was sampled after them; uncut: wider than C if need be."""
    ids, log_probs = foreign_rows.sampled_of(drawn)
    before = [begins[row // stage.group_size] for row in range(len(ids))]
    length = drawn.completion_mask.shape[1] + (max(map(len, begins)) if uncut else 0)
    return foreign_rows.lay_out(
        foreign_rows.prompts_of(judged.rollout),
        [[*hint, *row] for hint, row in zip(before, ids, strict=True)],
        length,
        log_probs=[[foreign_rows.UNKNOWN] * len(hint) + row for hint, row in zip(before, log_probs, strict=True)],
        **stage.ends,
    )


def _without_loss(rollout: Rollout, begins: list[list[int]], size: int) -> Rollout:
    """The rollout with its hints' tokens outside the loss."""
    lengths = np.repeat([len(ids) for ids in begins], size)
    mask = rollout.completion_mask & (np.arange(rollout.completion_mask.shape[1])[None] >= lengths[:, None])
    return rollout._replace(completion_mask=mask, sampled_log_probs=np.where(mask, rollout.sampled_log_probs, 0.0))


def refinements(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    critique: Any = "right_answer",
    template: str = "{prompt}\n\nYour answer was:\n{answer}\n\n{critique}\nAnswer again:\n",
) -> Candidates | None:
    """New answers, one after each answer and a critique of it; trained on as answers to the prompt alone.

    Source: arXiv 2506.03106; zhangxy-2019/critique-GRPO takes the first right one of a group, else the best.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      critique: (answer, info, right) -> text, one of rl_jax.selection.critiques.
      template: of the prompt, with the places prompt, answer and critique.
    """
    if not wanted.any():
        return None
    size, records, say = stage.group_size, stage.records(judged), bind(critique, critiques)
    asked = []
    for row in (stage.own_prompts[:, None] * size + np.arange(size)).ravel():
        record, answer = records[row // size], judged.completions[row]
        if wanted[row // size]:
            said = say(answer, info_of(record), bool(judged.result.rewards[row] > stage.above))
            words = dict(answer=answer, critique=said)
            record = rephrased(record, lambda text, words=words: template.format(prompt=text, **words))
        asked.append(record)
    drawn = stage.draw_rows(*encode_prompts(stage.setup, asked), jax.random.fold_in(stage.key, 2))
    rollout = _whole_answers(stage, judged, drawn, [[]] * len(records), uncut=False)
    return Candidates(stage.judge(rollout, records), np.repeat(wanted[:, None], size, axis=1))


def replay(stage: Stage, judged: Judged, wanted: np.ndarray, *, size: int = 8) -> Candidates | None:
    """Own right answers to the same prompt from earlier steps, with their rewards and log-probs of then; newest first.

    Every step's right answers are remembered, and are in the checkpoint. Source: arXiv 2505.16282 (its buffer of 8).

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      size: answers kept per prompt; the oldest go first.
    """
    records = stage.records(judged)
    kept = [stage.memory.answers.get(record["id"])["successes"][::-1] for record in records]
    usable = np.array(
        [[asked and i < len(rows) for i in range(size)] for rows, asked in zip(kept, wanted, strict=True)]
    )
    found = None
    if usable.any():
        blank = dict(tokens=[stage.setup.task.tokenizer.eos_id], log_probs=[0.0], reward=0.0, text="")
        rows = [row for some in kept for row in (some + [blank] * size)[:size]]
        prompts = foreign_rows.prompts_of(judged.rollout)
        rollout = foreign_rows.lay_out(
            TokenBatch(*(np.repeat(x[:: stage.group_size], size, axis=0) for x in prompts[:3])),
            [row["tokens"] for row in rows],
            judged.rollout.completion_mask.shape[1],
            log_probs=[row["log_probs"] for row in rows],
            **stage.ends,
        )
        rollout = stage.stopped(rollout)  # an answer that ended at a stop string has no EOS
        result = RewardResult(np.array([row["reward"] for row in rows], np.float32), {}, 0, 0, None)
        repeated = [record for record in records for _ in range(size)]
        found = Candidates(Judged(rollout, repeated, [row["text"] for row in rows], result), usable)
    _remember(stage, size)
    return found


def _remember(stage: Stage, size: int) -> None:
    """Adds the right answers that the policy gave to the prompts themselves, without a hint, to the memory."""
    judged = stage.sampled
    ids, log_probs = foreign_rows.sampled_of(judged.rollout)
    for row in np.flatnonzero(judged.result.rewards > stage.above):
        reward = float(judged.result.rewards[row])
        answer = dict(tokens=ids[row], log_probs=log_probs[row], reward=reward, text=judged.completions[row])
        stage.memory.answers.add_success(judged.records[row]["id"], answer, keep=size)
