"""The rows of a step of an asynchronous run: the groups that Flow hands over, judged as those of experiments.grpo."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import policy
from experiments.parts.async_flow import Flow, part_of
from experiments.parts.async_groups import GroupRows
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts
from experiments.parts.judging import judge
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import score
from experiments.parts.prompts import feedback_of
from experiments.parts.sample_groups import Collected, join_rows
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.binding import needs
from rl_jax.core.types import Packed, Params, TokenBatch, TokenScores
from rl_jax.experience import lag
from rl_jax.rollout.lm.requests import as_rollout
from rl_jax.training import balance, sharding


class Scoring(NamedTuple):
    """What scores a step's rows before its updates (policy_steps.score).

    Attributes:
      config: of the run.
      programs: compiled functions.
      params: of the policy.
      ref_params: of the reference, or None.
      looks: whether the step's group view will show the scores.
    """

    config: ConfigDict
    programs: policy.PolicyPrograms
    params: Params
    ref_params: Params | None
    looks: bool

    def __call__(self, rows: TokenBatch | Packed) -> tuple[TokenScores | None, jax.Array | None]:
        """(the policy's TokenScores, the reference's log-probs float32 [B, C]) of these rows; see `score`."""
        return score(self.config, self.programs, rows, self.params, self.ref_params, looks=self.looks)


class AsyncCollector:
    """What sample_groups.Collector is to experiments.grpo; its samples were begun before the step.

    Args:
      setup: of the run.
      rewards: scores the rows.
      packer: of the run.
      flow: hands over groups.
    """

    def __init__(self, setup: Setup, rewards, packer: RolloutPacker, flow: Flow):
        self._setup, self._rewards, self._packer, self._flow = setup, rewards, packer, flow
        self._with_versions = asks_versions(setup.config) or flow.rule.bound > 0
        self._ranks = ranks_of(setup) if setup.config.flow.get("balance") else 0
        self._heaviest: list[float] = []

    def __call__(
        self, clock: Clock, scoring: Scoring
    ) -> Iterator[tuple[Collected, TokenBatch | Packed, TokenScores | None, jax.Array | None]]:
        """The step's rows, judged, as the model reads them, and what `scoring` gives for them.

        All at once, or with flow.streaming part by part, each as soon as it is there.

        Args:
          clock: gets the laps rollout_s and reward_s.
          scoring: of the step.
        """
        for groups in self._flow.parts():
            collected = self._judged(self._arranged(groups), clock)
            rows = to_mesh(self._setup, self._packer.to_score(collected.judged.rollout))
            yield collected, rows, *scoring(rows)

    def _arranged(self, groups: Sequence[GroupRows]) -> list[GroupRows]:
        """The groups of a part; with flow.balance in an order in which each device's rows have as many tokens."""
        if not self._ranks:
            return list(groups)
        found, heaviest = by_tokens(groups, self._ranks)
        self._heaviest.append(heaviest)
        return found

    def _judged(self, groups: Sequence[GroupRows], clock: Clock) -> Collected:
        setup, settings, prompts = self._setup, self._setup.config.rollout, self._flow.prompts
        records = [group.record for group in groups]
        rollout = as_rollout(
            [row for group in groups for row in group.rows],
            *encode_prompts(setup, records),
            completion_length=settings.completion_length,
            pad_id=setup.task.tokenizer.pad_id,
            with_versions=self._with_versions,
        )
        clock.lap("rollout_s")
        judged = judge(setup, self._rewards, rollout, records)
        clock.lap("reward_s")
        named = prompts.recall(judged.records)
        prompts.feedback(feedback_of([judged], setup.config.sample.group_size))
        if (versions := judged.rollout.versions) is not None:
            lags = np.where(judged.rollout.completion_mask, self._flow.counters.version - versions, 0)
            named |= {"lags": lags.astype(np.int32)}
        return Collected(judged, None, {}, named=named)

    def joined(self, parts: Sequence[Collected]) -> Collected:
        """The whole step, with the metrics of its prompts, of lag and of flow. Judges that learn do so."""
        judged = parts[0].judged
        if len(parts) > 1:
            judged = join_rows([part.judged for part in parts], self._setup.task.tokenizer.pad_id)
            counts = {name: sum(getattr(part.judged.result, name) for part in parts) for name in COUNTS}
            judged = judged._replace(result=judged.result._replace(**counts))
        metrics, rollout = self._flow.prompts.metrics() | self._flow.metrics(), judged.rollout
        if self._flow.rule.bound:
            found = (self._flow.counters.version, rollout.versions, rollout.completion_mask)
            metrics |= lag.lag_metrics(*found, bound=self._flow.rule.bound)
        if self._heaviest:
            metrics["flow/heaviest_rank"], self._heaviest = max(self._heaviest), []
        metrics |= self._rewards.learn(judged) if self._rewards else {}
        return Collected(judged, None, metrics, named=join([part.named for part in parts]))

    def gaps(self, collected: Collected, scores: TokenScores | None) -> dict[str, float]:
        """The sampler's gap and effective sample size by lag; {} without scores, or if nothing can be stale."""
        if scores is None or not self._flow.rule.bound:
            return {}
        rollout = collected.judged.rollout
        arrays = (rollout.versions, rollout.completion_mask, np.asarray(scores.log_probs), rollout.sampled_log_probs)
        return lag.gaps_by_lag(self._flow.counters.version, *arrays, bound=self._flow.rule.bound)


COUNTS = ("num_timeouts", "num_errors")


def ranks_of(setup: Setup) -> int:
    """The devices among which the rows of a part are split.

    Raises:
      ValueError: if they cannot have equal numbers of whole groups.
    """
    ranks, groups = sharding.row_shards(setup.mesh), part_of(setup.config)
    if groups % ranks:
        raise ValueError(
            f"flow.balance=True: the {groups} groups of a part (sample.prompts_per_step / train.micro_batches) are not "
            f"a multiple of the {ranks} devices among which mesh={setup.config.mesh!r} splits rows: set it to False"
        )
    return ranks


def by_tokens(groups: Sequence[GroupRows], ranks: int) -> tuple[list[GroupRows], float]:
    """(the groups of each rank one after the other, tokens of the heaviest rank over the mean of all)."""
    size, counts = len(groups[0].rows), [len(row.request.prompt) + len(row.tokens) for g in groups for row in g.rows]
    found = balance.by_rank(counts, ranks, len(counts) // ranks, group=size)
    heaviest = np.asarray(counts)[found[0]].sum() * ranks / max(sum(counts), 1)
    return [groups[row // size] for rows in found for row in rows[::size]], float(heaviest)


def join(parts: Sequence):
    """Trees of rows as one, on the host; a single one as it is."""
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *rows: np.concatenate(rows), *parts)


def asks_versions(config) -> bool:
    """Whether a choice of config.algorithm asks for versions, or for the lags that are made of them."""
    rule, objective = policy.make_credit(config), policy.make_objective(config)
    chosen = (*rule, *objective)
    return any(needs(fn) & {"versions", "lags"} for fn in chosen if callable(fn))
