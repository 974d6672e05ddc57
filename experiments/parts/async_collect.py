"""The rows of a step of an asynchronous run: the groups that Flow hands over, judged as those of experiments.grpo."""

import jax
import numpy as np

from experiments.parts import policy
from experiments.parts.async_flow import Flow
from experiments.parts.async_groups import GroupRows
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts
from experiments.parts.judging import Judged, judge
from experiments.parts.sample_groups import Collected, Collector, Samplers
from experiments.parts.setup import Setup
from rl_jax.core.binding import needs
from rl_jax.core.types import Params, TokenScores
from rl_jax.experience import lag
from rl_jax.rollout.lm.requests import as_rollout


class Taking:
    """The prompts of the groups that a step takes, in the place of the stream's next batch.

    Args:
      flow: hands over groups.
    """

    def __init__(self, flow: Flow):
        self._flow, self.groups = flow, []

    def __next__(self) -> list[dict]:
        self.groups: list[GroupRows] = self._flow.take()
        return [group.record for group in self.groups]

    def __getattr__(self, name: str):
        return getattr(self._flow.prompts, name)


class AsyncCollector(Collector):
    """A Collector whose samples were begun before the step.

    Args:
      setup: of the run.
      rewards: as in Collector.
      flow: hands over groups.
    """

    def __init__(self, setup: Setup, rewards, flow: Flow):
        super().__init__(setup, rewards, Taking(flow), Samplers(flow))
        self._flow, self._with_versions = flow, asks_versions(setup.config) or flow.rule.bound > 0

    def __call__(self, params: Params, key: jax.Array, clock: Clock, reference: Params | None = None) -> Collected:
        """As Collector, with the metrics of lag and flow."""
        collected = super().__call__(params, key, clock, reference)
        rollout, metrics = collected.judged.rollout, self._flow.metrics()
        if rollout.versions is not None:
            lags = np.where(rollout.completion_mask, self._flow.counters.version - rollout.versions, 0)
            collected = collected._replace(named=collected.named | {"lags": lags.astype(np.int32)})
        if self._flow.rule.bound:
            found = (self._flow.counters.version, rollout.versions, rollout.completion_mask)
            metrics |= lag.lag_metrics(*found, bound=self._flow.rule.bound)
        return collected._replace(metrics=collected.metrics | metrics)

    def gaps(self, collected: Collected, scores: TokenScores | None) -> dict[str, float]:
        """The sampler's gap and effective sample size by lag; {} without scores, or if nothing can be stale."""
        if scores is None or not self._flow.rule.bound:
            return {}
        rollout = collected.judged.rollout
        arrays = (rollout.versions, rollout.completion_mask, np.asarray(scores.log_probs), rollout.sampled_log_probs)
        return lag.gaps_by_lag(self._flow.counters.version, *arrays, bound=self._flow.rule.bound)

    def _sample(self, generate, records, params, key, own_prompts, clock: Clock) -> Judged:
        setup, settings = self._setup, self._setup.config.rollout
        rollout = as_rollout(
            [row for group in self._prompts.groups for row in group.rows],
            *encode_prompts(setup, records),
            completion_length=settings.completion_length,
            pad_id=setup.task.tokenizer.pad_id,
            with_versions=self._with_versions,
        )
        clock.lap("rollout_s")
        judged = judge(setup, self._rewards, rollout, records, own_prompts, setup.config.sample.prompts_per_step)
        clock.lap("reward_s")
        return judged


def asks_versions(config) -> bool:
    """Whether a choice of config.algorithm asks for versions, or for the lags that are made of them."""
    rule, objective = policy.make_credit(config), policy.make_objective(config)
    chosen = (*rule, *objective)
    return any(needs(fn) & {"versions", "lags"} for fn in chosen if callable(fn))
