"""How a step of experiments.grpo_async trains on its parts: all of them at once, or each as soon as it is there.

flow.streaming=False   the batch is there, then the updates of experiments.grpo
flow.streaming=True    train.micro_batches parts of whole groups; the gradient of each is added when its groups have
                       ended, and one division by the totals ends the step (rl_jax.training.streaming)

A part is scored, gets its advantages and its gradient while groups of the same batch are still sampled. The sums are of
totals, so the step is that of the whole batch. What couples a batch is refused by name (parts.streaming.check).
"""

from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from experiments.parts import mirror, perception, policy, streaming
from experiments.parts.async_collect import AsyncCollector, join
from experiments.parts.clock import Clock
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import update
from experiments.parts.routers import make_router_metrics
from experiments.parts.run import Run
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup, model_config
from experiments.parts.training import jit_streaming_step, to_mesh
from rl_jax.core.types import Packed, Params, PolicyBatch, TokenBatch, TokenScores
from rl_jax.training.step import TrainState


class Part(NamedTuple):
    """Rows of a step, ready to be trained on.

    Attributes:
      collected: judged.
      rows: as the model reads them.
      scores: of the policy before the step, or None.
      batch: with advantages.
      earned: float32 [B]. The rewards after shaping and KL.
    """

    collected: Collected
    rows: TokenBatch | Packed
    scores: TokenScores | None
    batch: PolicyBatch
    earned: jax.Array


class AtOnce:
    """Trains on the whole batch, as experiments.grpo.

    Args:
      loop: checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      collect: of the run.

    Attributes:
      programs: with the train step that is used.
    """

    def __init__(
        self, loop: Run, setup: Setup, programs: policy.PolicyPrograms, packer: RolloutPacker, collect: AsyncCollector
    ):
        self._loop, self._setup, self._packer, self._collect = loop, setup, packer, collect
        self.programs, self._parts, self._rows, self._whole = programs, [], (), None
        self._routers = make_router_metrics(setup) if model_config(setup).num_experts else None

    def add(self, params: Params, clock: Clock, part: Part) -> None:
        """Takes a part of the step, when it is there.

        Args:
          params: of the policy.
          clock: gets the lap score_s.
          part: its rows.
        """
        clock.lap("score_s", part.batch)
        self._parts.append(part)

    def whole(self) -> tuple[Collected, TokenScores | None, PolicyBatch, jax.Array]:
        """(collected, scores, batch, earned) of all parts, in the order in which they came."""
        columns = Part(*zip(*self._parts, strict=True))
        self._parts, self._rows = [], columns.rows
        arrays = map(join, (columns.scores, columns.batch, columns.earned))
        self._whole = (self._collect.joined(columns.collected), *arrays)
        return self._whole

    def _routed(self, params: Params) -> dict[str, float]:
        """How the routers spread the rows of `whole`, as experiments.grpo logs it; {} of a model without experts."""
        if self._routers is None:
            return {}
        if len(self._rows) == 1:
            return self._routers(params, self._rows[0])
        return self._routers(params, to_mesh(self._setup, self._packer.to_score(self._whole[0].judged.rollout)))

    def __call__(self, state: TrainState, batch: PolicyBatch, key) -> tuple[TrainState, list[dict], dict[str, float]]:
        """(state, the metrics of each update, those of the packing and the routers).

        Args:
          state: before the updates.
          batch: of all parts.
          key: of the shuffles.
        """
        routed = self._routed(state.params)
        state, updates, packed = update(self._loop, self._setup, self.programs, self._packer, state, batch, key)
        return state, updates, packed | routed

    def views(self, params: Params) -> tuple:
        """What logged.look shows of the step: judged, batch, scores, and scores under the params after it."""
        collected, scores, batch, _ = self._whole
        return collected.judged, batch, scores, join([self.programs.on_host(params, rows) for rows in self._rows])


class AsTheyCome(AtOnce):
    """Adds each part's gradient when it is there, and divides at the end.

    Args:
      state: of the run; its shardings are read.
      *fixed: arguments of AtOnce.
    """

    def __init__(self, state: TrainState, *fixed):
        super().__init__(*fixed)
        loss_fn = policy.make_loss(self._setup, policy.make_scorer(self._setup))
        self._step = jit_streaming_step(self._setup, self._setup.config.train, loss_fn, state)
        self.programs, self._sums, self._trained = self.programs._replace(train_step=self), None, []

    def _cache_size(self) -> int:
        return sum(program._cache_size() for program in self._step)

    def add(self, params: Params, clock: Clock, part: Part) -> None:
        """As AtOnce, and adds the part's gradient. It is on its way when this returns: the sampler goes on."""
        super().add(params, clock, part)
        (batch,) = policy.minibatches(self._setup.config, part.batch, None)
        rows = to_mesh(self._setup, self._packer.to_train(batch, 1))
        self._trained.append(rows)
        if self._sums is None:
            self._sums = self._step.begin(params, rows)
        self._sums = self._step.add(params, self._sums, rows)

    def __call__(self, state: TrainState, batch: PolicyBatch, key) -> tuple[TrainState, list[dict], dict[str, float]]:
        """As AtOnce; one update, and the packing of the last part.

        Its FLOPs are not counted: the seconds of the parts' gradients, which run beside the sampler, are not known.
        """
        routed = self._routed(state.params)
        state, metrics = self._step.apply(state, self._sums)
        self._sums, metrics = None, jax.device_get(metrics)
        parts, self._trained = self._trained, []
        self._loop.check_finite(state, parts, counts=False)
        return state, [metrics], self._packer.metrics(parts[-1]) | routed


def make_learner(
    loop: Run,
    setup: Setup,
    programs: policy.PolicyPrograms,
    packer: RolloutPacker,
    collect: AsyncCollector,
    state: TrainState,
) -> AtOnce:
    """What trains, by config.flow.streaming. The arguments are those of AtOnce and AsTheyCome."""
    fixed = (loop, setup, programs, packer, collect)
    return AsTheyCome(state, *fixed) if setup.config.flow.streaming else AtOnce(*fixed)


def problems(config: ConfigDict) -> list[str]:
    """Why the groups of this config cannot be trained as they come, as sentences with the remedy; [] if they can."""
    sample, parts = config.sample, config.train.micro_batches
    found = {
        f"train.micro_batches={parts}: it is the number of parts, from 2 up and a divisor of "
        f"sample.prompts_per_step={sample.prompts_per_step}: groups are not split": (
            parts < 2 or sample.prompts_per_step % parts != 0
        ),
        f"score.micro_batches={policy.score_micro_batches(config)}: each part is scored by itself: set it to 1": (
            policy.score_micro_batches(config) > 1
        ),
        f"rollout.prompt_buckets={tuple(config.rollout.prompt_buckets)}: parts are of one width: keep the largest": (
            len(config.rollout.prompt_buckets) > 1
        ),
        f"sample.prompts={sample.prompts.fn!r}: it learns from whole batches: take 'shuffled'": (
            sample.prompts.fn != "shuffled"
        ),
        "sample.memory.on=True: it learns from whole batches: set it to False": bool(sample.memory.on),
        f"judge={sorted(config.judge)}: judges see the whole batch: take reward.terms": bool(config.judge),
        f"algorithm.mirror_step={config.algorithm.mirror_step}: it is of several updates: set it to 0": mirror.is_on(
            config
        ),
        "algorithm.perception: its tokens are drawn for the whole batch: set its coefficients to 0": perception.is_on(
            config
        ),
    }
    reasons = [reason for reason, is_wrong in found.items() if is_wrong]
    coupled = streaming.structure(config) + streaming.couplings(config)
    reasons += [f"{reason}; choose another, or set flow.streaming=False" for reason in coupled]
    return [f"flow.streaming=True trains groups as they come: {reason}" for reason in reasons]
