"""config.foreign: rows in a step's groups that the policy did not sample for their prompt, put there after judging.

    --config.foreign="{'hints': {'fn': 'hints', 'at_most': 0, 'replace': 'group'}}"

Each entry is NAME -> dict(fn=one of the kinds, or "module:function", **keywords); entries act in the order of their
names. A kind (experiments.parts.foreign_kinds) makes candidates: demonstrations (the records' completions), hints (the
beginning of a solution is given), refinements (own answers with a critique), replay (own right answers of earlier
steps). What every entry may say:

    at_most, above       for groups in which at most this many rows have a reward above `above`; G: for every group
    share                for this share of these groups, drawn at random
    warmup_steps         not in the first steps
    count, replace       how many rows of the group they replace, and which: "worst", "last" or "group": all of them, if
                         there is a candidate for each, or all that the kind makes; else the group stays
    only_right           whether candidates that are wrong are left out
    rest                 "drop": no loss on the other rows of the group. "keep": they stay
    behavior             behaviour log-probs: "own", those of the policy before the updates, so that behaviour weights
                         are 1; "drawn", those the tokens were drawn with, where they are known

Groups keep their size and completions their width. A candidate is judged as an answer to the prompt that it is trained
on. Rows of a group that is trained on its hinted prompt were sampled for that prompt: they are not foreign.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import schedules
from experiments.parts.foreign_rule import Rule, rule_and_kind
from experiments.parts.foreign_stage import Candidates, Stage, put
from experiments.parts.judging import Judged
from experiments.parts.sampler import make_sampler
from experiments.parts.setup import Setup, sampling_of
from rl_jax.core.types import Rollout, TokenScores
from rl_jax.experience import PromptMemory
from rl_jax.selection import foreign_rows


class Memory:
    """What foreign rows keep from step to step, as JSON values.

    Attributes:
      step: int. Steps collected so far.
      answers: PromptMemory of right answers, each a dict of token ids and what came with them.
    """

    def __init__(self):
        self.step, self.answers = 0, PromptMemory()

    def state(self) -> dict:
        """A JSON value."""
        return {"step": self.step, "answers": self.answers.state()}

    def restore(self, state: dict) -> None:
        """Continues from a state."""
        self.step = state["step"]
        self.answers.restore(state["answers"])


class WithMemory:
    """Batches of prompts whose position, saved with every checkpoint, includes a Memory."""

    def __init__(self, prompts: Iterator[list[dict]], memory: Memory):
        self._prompts, self.memory = prompts, memory

    def __iter__(self) -> "WithMemory":
        return self

    def __next__(self) -> list[dict]:
        return next(self._prompts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompts, name)

    def get_state(self) -> dict:
        """A JSON value."""
        return {"prompts": self._prompts.get_state(), "foreign": self.memory.state()}

    def set_state(self, state: dict) -> None:
        """Continues from a state."""
        self._prompts.set_state(state["prompts"])
        self.memory.restore(state["foreign"])


def remembering(config: ConfigDict, prompts: Iterator[list[dict]]) -> Iterator[list[dict]]:
    """The batches of prompts, with a Memory if config.foreign needs one."""
    return WithMemory(prompts, Memory()) if config.foreign else prompts


class ForeignRows:
    """Puts foreign rows into the groups of each step.

    Args:
      setup: of the run.
      score: as experiments.parts.judging.judge takes it.
      memory: of the run.
      generate: compiled (params, tokens, prompt_mask, key) -> Rollout.
    """

    def __init__(self, setup: Setup, score: Any, memory: Memory, generate: Callable):
        self._setup, self._score, self._memory, self._generate = setup, score, memory, generate
        self._single = functools.cache(functools.partial(single_sampler, setup))

    def unused(self, collected):
        """A step's rows (Collected) as `__call__` returns them if it replaces none: for compiling ahead."""
        rollout = collected.judged.rollout
        none = np.zeros(len(rollout.completion_mask), bool)
        return collected._replace(judged=collected.judged._replace(rollout=rollout._replace(foreign=none)))

    def __call__(self, collected, params, key: jax.Array, clock, guide=None):
        """A step's rows (Collected) with foreign ones in their groups.

        Args:
          collected: the step's rows, all sampled by the policy.
          params: of the policy, in the rollouts' layout.
          key: of the step's rollouts.
          clock: gets the laps rollout_s and reward_s.
          guide: params of the reference, in the rollouts' layout; None if no kind asks for them.
        """
        memory, config = self._memory, self._setup.config
        memory.step += 1
        judged = sampled = self.unused(collected).judged
        size, before = config.sample.group_size, judged.result.rewards
        now = schedules.with_values(config, schedules.at(config, memory.step))
        metrics = {"foreign/sampled_reward": float(before.mean())}
        for index, (name, spec) in enumerate(now.foreign.items()):
            rule, kind = rule_and_kind(spec)
            stage = Stage(
                self._setup,
                self._score,
                self._generate,
                params,
                jax.random.fold_in(key, 2**20 + index),
                clock,
                memory,
                rule.above,
                sampled,
                np.zeros(2, int),
                self._single,
                guide,
            )
            wanted = (foreign_rows.right_rows(judged.result.rewards, size, above=rule.above) <= rule.at_most) & (
                memory.step > rule.warmup_steps
            )
            if rule.share < 1:
                wanted &= np.asarray(jax.random.uniform(jax.random.fold_in(stage.key, 1), wanted.shape)) < rule.share
            try:
                found = kind(stage, judged, wanted)
            except ValueError as error:
                raise ValueError(f"foreign.{name}: {error}") from error
            judged, placed = put_candidates(judged, found, rule, size, self._setup.task.tokenizer.pad_id)
            metrics[f"foreign/{name}/rows"] = len(placed)
            for what, count in zip(("timeouts", "errors"), stage.failures, strict=True):
                metrics[f"foreign/{name}/{what}"] = int(count)
            if len(placed):
                metrics[f"foreign/{name}/reward"] = float(judged.result.rewards[placed].mean())
                metrics |= {f"foreign/{name}/{key}": number for key, number in found.metrics.items()}
                if found.levels is not None:
                    metrics[f"foreign/{name}/level"] = float(found.levels[placed // size].mean())
        rescued = foreign_rows.right_rows(before, size) == 0
        rescued &= foreign_rows.right_rows(judged.result.rewards, size) > 0
        metrics |= {"foreign/rescued": float(rescued.mean()), "foreign/rows": int(judged.rollout.foreign.sum())}
        return collected._replace(judged=judged, metrics=collected.metrics | metrics)


def make(setup: Setup, score: Any, prompts: Iterator[list[dict]], generate: Callable) -> ForeignRows | None:
    """The ForeignRows of a run; None if config.foreign is empty."""
    return ForeignRows(setup, score, prompts.memory, generate) if setup.config.foreign else None


def single_sampler(setup: Setup) -> Callable:
    """Compiled (params, tokens, prompt_mask, key) -> Rollout, of one row for each of a step's rows."""
    config, tokenizer = setup.config, setup.task.tokenizer
    return make_sampler(
        setup,
        config.sample.prompts_per_step * config.sample.group_size,
        completion_length=config.rollout.completion_length,
        group_size=1,
        sampling=sampling_of(config.rollout),
        eos_ids=tokenizer.eos_ids,
        pad_id=tokenizer.pad_id,
    )


def with_behavior(rollout: Rollout, before: TokenScores | None) -> Rollout:
    """The rollout with the policy's own log-probs where nobody knows with which ones a token was drawn."""
    return rollout if rollout.foreign is None else foreign_rows.with_own_log_probs(rollout, before.log_probs)


def put_candidates(
    judged: Judged, found: Candidates | None, rule: Rule, size: int, pad_id: int
) -> tuple[Judged, np.ndarray]:
    """The step's rows with candidates in the place of some.

    Args:
      judged: N groups of `size` rows, with rollout.foreign.
      found: candidates, K per group, or None.
      rule: says how many go where.
      size: G.
      pad_id: of prompts that become wider.

    Returns:
      (Judged, int [n]: the rows that are candidates now).
    """
    if found is None or not found.usable.any():
        return judged, np.zeros(0, int)
    each = found.usable.shape[1]
    rewards = found.judged.result.rewards.reshape(-1, each)
    usable = found.usable & (rewards > rule.above) if rule.only_right else found.usable
    targets, sources, dropped = [], [], []
    for group in np.flatnonzero(usable.any(axis=1)):
        first = group * size
        own = slice(first, first + size)
        places = foreign_rows.slots(
            judged.result.rewards[own], judged.rollout.foreign[own], count=rule.count, replace=rule.replace
        )
        if rule.replace == "group":  # rows that are compared with each other: all of them or none
            chosen = np.flatnonzero(usable[group])
            if len(chosen) < min(each, len(places)):
                continue
        else:
            chosen = foreign_rows.best(rewards[group], usable[group], rule.count)
        count = min(len(places), len(chosen))
        targets += (first + places[:count]).tolist()
        sources += (group * each + chosen[:count]).tolist()
        if rule.rest == "drop" and count:
            dropped += [row for row in range(first, first + size) if row not in set(first + places[:count])]
    if not targets:
        return judged, np.zeros(0, int)
    source = found.judged
    if found.foreign and rule.behavior == "own":
        unknown = np.where(source.rollout.completion_mask, foreign_rows.UNKNOWN, 0.0).astype(np.float32)
        source = source._replace(rollout=source.rollout._replace(sampled_log_probs=unknown, raw_log_probs=unknown))
    judged = put(judged, source, np.array(targets), np.array(sources), pad_id)
    mask, foreign = judged.rollout.completion_mask.copy(), judged.rollout.foreign.copy()
    mask[dropped], foreign[targets] = False, found.foreign
    return judged._replace(rollout=judged.rollout._replace(completion_mask=mask, foreign=foreign)), np.array(targets)
