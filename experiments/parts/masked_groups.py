"""The answers of one step of experiments.masked_diffusion: sampled, judged, with hints where all are wrong."""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts
from experiments.parts.judging import Judged, judge, judged_metrics
from experiments.parts.masked_lm import jit_sampler
from experiments.parts.prompts import feedback_of, success_of
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.types import Params
from rl_jax.experience import PromptStream
from rl_jax.selection import inpainting


class Answers(NamedTuple):
    """The rows of one step.

    Attributes:
      judged: Judged of B rows.
      hinted: bool [B, C]. Tokens that a hint gave.
      metrics: of the rows.
    """

    judged: Judged
    hinted: np.ndarray
    metrics: dict[str, float]


class Collector:
    """Samples the rows of each step.

    Args:
      setup: of the run.
      score: Rows -> RewardResult (rewards.make_rewards).
      prompts: their stream.
    """

    def __init__(self, setup: Setup, score: Callable, prompts: PromptStream):
        self._setup, self._score, self._prompts = setup, score, prompts
        self._generate = jit_sampler(setup)

    def __call__(self, params: Params, key: jax.Array, step: int, clock: Clock) -> Answers:
        """The rows of one step.

        Args:
          params: of the sampler.
          key: a typed key.
          step: its number; seeds the hints.
          clock: its laps are rollout_s and reward_s.
        """
        config = self._setup.config
        group_size, records = config.sample.group_size, next(self._prompts)
        shape = (len(records) * group_size, config.rollout.completion_length)
        given = np.full(shape, self._setup.task.tokenizer.mask_id, np.int32)
        judged = self._sample(records, params, key, given, clock)
        self._prompts.feedback(feedback_of([judged], group_size))
        hopeless = inpainting.hopeless_groups(success_of(judged, group_size), group_size)
        metrics = {"group/all_wrong": float(hopeless.mean())} | self._prompts.metrics()
        hinted = np.zeros(shape, bool)
        if config.hints.on and hopeless.any():
            rng = np.random.default_rng([config.seed, step])
            given = self._hints(judged.records, hopeless, rng)
            # The rows sample from fold_in(key, i): this is the first number that no row has.
            again = self._sample(records, params, jax.random.fold_in(key, len(given)), given, clock, hopeless)
            wrong, success = np.flatnonzero(np.repeat(hopeless, group_size)), np.zeros(len(given), np.float32)
            success[wrong] = success_of(again, group_size)
            pairs = inpainting.replacements(success, hopeless, group_size, config.hints.replaced, rng)
            rows, sources = ([pair[side] for pair in pairs] for side in (0, 1))
            judged = replaced(judged, again, rows, np.searchsorted(wrong, sources))
            hinted[rows] = given[sources] != self._setup.task.tokenizer.mask_id
            rescued = len({row // group_size for row, _ in pairs})
            metrics |= {"hints/rescued": rescued / hopeless.sum(), "hints/rows": len(pairs) / len(hinted)}
        return Answers(judged, hinted, metrics | judged_metrics(judged, group_size))

    def _sample(
        self, records, params, key, given: np.ndarray, clock: Clock, wanted: np.ndarray | None = None
    ) -> Judged:
        """Answers to all records, of which those to the wanted ones (bool [B / G]; None: all) are judged."""
        prompts = to_mesh(self._setup, encode_prompts(self._setup, records))
        rollout = self._generate(params, *prompts, key, to_mesh(self._setup, given))
        clock.lap("rollout_s", rollout)
        if wanted is not None:
            rows = np.repeat(wanted, self._setup.config.sample.group_size)
            rollout = jax.tree.map(lambda x: np.asarray(x)[rows], rollout)
            records = list(itertools.compress(records, wanted))
        judged = judge(self._setup, self._score, rollout, records)
        clock.lap("reward_s")
        return judged

    def _hints(self, records: list[dict], hopeless: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What is given to each row, int32 [B, C]: chunks of the reference answer in the hopeless groups.

        Raises:
          ValueError: if a record has no reference answer.
        """
        config, tokenizer = self._setup.config, self._setup.task.tokenizer
        settings, length, size = config.hints, config.rollout.completion_length, config.sample.group_size
        result = np.full((len(records), length), tokenizer.mask_id, np.int32)
        for group in np.flatnonzero(hopeless):
            record = records[group * size]
            if not record.get("completion"):
                raise ValueError(
                    f"hints.on: the record of prompt {record['prompt']!r:.80} has no completion to take a hint from; "
                    "set hints.on=False or give the task's records reference answers"
                )
            reference = np.array(tokenizer.encode_continuation(record["completion"], eos=True))
            for row in range(group * size, (group + 1) * size):
                share = rng.uniform(settings.low, settings.high)
                sizes = dict(min_chunk=settings.min_chunk, max_chunk=settings.max_chunk)
                result[row] = inpainting.hint(reference, share, length, mask_id=tokenizer.mask_id, rng=rng, **sizes)
        return result


def replaced(judged: Judged, by: Judged, rows: Sequence[int], sources: Sequence[int]) -> Judged:
    """`judged` with the given rows, their texts and rewards, from the rows `sources` of `by`. Both count as judged."""

    def put(old, new):
        old = np.array(old)
        old[np.array(rows, int)] = np.asarray(new)[np.array(sources, int)]
        return old

    completions = list(judged.completions)
    for row, source in zip(rows, sources, strict=True):
        completions[row] = by.completions[source]
    result, other = judged.result, by.result
    names = sorted(set(result.components) | set(other.components))  # 0 where all rows failed, as in RewardResult
    columns = [
        {name: part.components.get(name, np.zeros_like(part.rewards)) for name in names} for part in (result, other)
    ]
    result = result._replace(
        rewards=put(result.rewards, other.rewards),
        components={name: put(columns[0][name], columns[1][name]) for name in names},
        num_timeouts=result.num_timeouts + other.num_timeouts,
        num_errors=result.num_errors + other.num_errors,
        failed=None if result.failed is None or other.failed is None else put(result.failed, other.failed),
    )
    rollout = jax.tree.map(put, judged.rollout, by.rollout)
    return judged._replace(rollout=rollout, completions=completions, result=result)
