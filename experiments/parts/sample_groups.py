"""The rollouts of one training step: sampled, judged, and sampled again while groups have no signal (DAPO).

Dynamic sampling (arXiv 2503.14476) drops groups whose rewards are all equal, unless they are of one row, and samples
further prompts until a step has prompts_per_step groups, or max_batches were sampled. Missing groups are then filled up
with dropped ones, which add nothing to the loss but keep the shapes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import action_mask, foreign_rows, processes, rollout_mesh, windows
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts, pad_prompts
from experiments.parts.judging import Judged, joined_columns, judge
from experiments.parts.prompts import feedback_of
from experiments.parts.revisits import Revisits
from experiments.parts.rewards import Rewards
from experiments.parts.sampler import say_engine
from experiments.parts.setup import Setup
from rl_jax.core.types import Params, Rollout
from rl_jax.experience import PromptStream
from rl_jax.rewards.pool import RewardResult


class Collected(NamedTuple):
    """A step's rows.

    Attributes:
      judged: Judged of B rows, prompts x G.
      greedy_rewards: float32 [B]. Reward of the greedy completion of each row's prompt, or None.
      metrics: of the sampling itself.
      greedy_lengths: int [B]. Tokens of the greedy completions, or None.
      greedy_truncated: bool [B]. Whether they were truncated, or None.
      named: arrays [B] by name (rl_jax.core.names): what was known of the rows' prompts before this step.
    """

    judged: Judged
    greedy_rewards: np.ndarray | None
    metrics: dict[str, float]
    greedy_lengths: np.ndarray | None = None
    greedy_truncated: np.ndarray | None = None
    named: dict[str, np.ndarray] = {}


class Samplers(NamedTuple):
    """The compiled samplers of a run.

    Attributes:
      generate: (params, tokens, prompt_mask, key) -> Rollout.
      greedy: the same with one row per prompt, or None.
      references: the same with sample.references rows per prompt, or None.
    """

    generate: Callable
    greedy: Callable | None = None
    references: Callable | None = None


class Collector:
    """Samples and judges the rows of a step.

    Args:
      setup: of the run.
      rewards: scores the rows.
      prompts: endless batches of this process's records; told what became of them after each step.
      samplers: has `generate`, compiled (params, tokens, prompt_mask, key) -> Rollout; `greedy`, the same with one row
        per prompt, or None; and `references`, the same with sample.references rows, or None.
    """

    def __init__(
        self,
        setup: Setup,
        rewards: Rewards,
        prompts: PromptStream,
        samplers: Any,
    ):
        self._setup, self._rewards, self._prompts = setup, rewards, prompts
        self._samplers = Samplers(samplers.generate, samplers.greedy, samplers.references)
        self._revisits = Revisits(setup, samplers.on_host) if setup.config.sample.memory.last else None
        self._foreign = foreign_rows.make(setup, rewards, prompts, samplers.generate)
        self._windows = windows.Windows(setup, rewards, prompts) if setup.config.rollout.window else None

    def __call__(self, params: Params, key: jax.Array, clock: Clock, reference: Params | None = None) -> Collected:
        """Samples prompts and completions and judges them until the step is full. Judges that learn do so then.

        Each process samples, encodes and judges its own rows; all return the whole step.

        Args:
          params: of the policy. They are resharded here if rollouts have another layout.
          key: a typed key.
          clock: gets the laps reshard_s, rollout_s and reward_s.
          reference: params of the reference policy, read if there are samples of it.
        """
        if isinstance(self._rewards, Rewards):
            self._rewards.see(params)
        placed = rollout_mesh.for_sampler(self._setup.rollout, params, clock)  # another copy, freed on return
        placed = self._with_mask(placed, reference)
        measure = self._revisits and functools.partial(self._revisits, params)
        collected = self._collect(self._samplers, placed, key, clock, reference, measure)
        if self._foreign:
            guide = None if reference is None else rollout_mesh.for_sampler(self._setup.rollout, reference, clock)
            collected = self._foreign(collected, placed, key, clock, guide)
        learned = self._rewards.learn(collected.judged) if self._rewards else {}
        return collected._replace(metrics=collected.metrics | learned) if learned else collected

    def compile_ahead(self, ahead: Callable, params: Params, key: jax.Array) -> Collected | None:
        """Compiles what a call runs, by running it on the next prompts, which remain the next ones.

        Args:
          ahead: Run.ahead.
          params: of the policy.
          key: a typed key.

        Returns:
          What the call would return, with zeros in place of samples; None if the engine is not a single program.
        """
        if self._setup.config.rollout.engine.name != "lockstep":
            say_engine(self._setup.config, ahead)
            return None
        position, clock = self._prompts.get_state(), Clock()
        named = self._samplers._asdict()
        samplers = Samplers(**{name: sampler and ahead(name, sampler) for name, sampler in named.items()})
        if isinstance(self._rewards, Rewards):
            self._rewards.see(params)
        params = rollout_mesh.for_sampler(self._setup.rollout, params, clock)
        collected = self._collect(samplers, self._with_mask(params, params), key, clock, params)
        self._prompts.set_state(position)
        return self._foreign.unused(collected) if self._foreign else collected

    def _collect(
        self,
        samplers: "Samplers",
        params: Params,
        key,
        clock: Clock,
        reference: Params | None,
        measure: Callable | None = None,
    ) -> Collected:
        if self._windows is not None:
            return self._next_windows(samplers.generate, params, key, clock)
        sample = self._setup.config.sample
        size, num_groups, max_batches = sample.group_size, sample.prompts_per_step, sample.dynamic_sampling.max_batches
        own_prompts = processes.rows_here(self._setup.mesh, num_groups)
        taught, idle, sampled, failures = [], [], [], np.zeros(2, int)
        while len(sampled) < max_batches and len(taught) < num_groups:
            batch_key = jax.random.fold_in(key, len(sampled)) if sampled else key
            judged = self._sample(samplers.generate, next(self._prompts), params, batch_key, own_prompts, clock)
            sampled.append(judged)
            failures += (judged.result.num_timeouts, judged.result.num_errors)
            if max_batches == 1:
                groups = [judged]
                break
            for group, differs in zip(_split(judged, size), _differ(judged.result, size), strict=True):
                (taught if differs else idle).append(group)
        else:
            groups = (taught + idle)[:num_groups]
        judged = groups[0] if len(groups) == 1 else join_rows(groups, self._setup.task.tokenizer.pad_id)
        counts = {"num_timeouts": int(failures[0]), "num_errors": int(failures[1])}  # including those of dropped groups
        judged = judged._replace(result=judged.result._replace(**counts))
        of_greedy, records = (None, None, None), [judged.records[i * size] for i in own_prompts]
        if samplers.greedy is not None:
            best = self._sample(samplers.greedy, records, params, key, own_prompts, clock)
            lengths = best.rollout.completion_mask.sum(axis=1)
            of_greedy = [np.repeat(x, size) for x in (best.result.rewards, lengths, best.rollout.truncated)]
        named = self._prompts.recall(judged.records)
        if samplers.references is not None:
            reference = rollout_mesh.for_sampler(self._setup.rollout, reference, clock)
            key = jax.random.fold_in(key, max_batches)  # no batch of samples has this one
            drawn = self._sample(samplers.references, records, reference, key, own_prompts, clock)
            named["reference_rewards"] = np.repeat(drawn.result.rewards.reshape(num_groups, -1), size, axis=0)
        if self._revisits is not None:
            last = self._prompts.last_visits(judged.records)
            named["divergence"] = measure(judged.rollout, last) if measure else np.zeros(len(last), np.float32)
        self._prompts.feedback(feedback_of(sampled, size, newest=self._revisits is not None))
        metrics = self._prompts.metrics()
        if samplers.references is not None:
            metrics["reward/references"] = float(named["reference_rewards"].mean())
        if max_batches > 1:
            dropped = len(idle) / (len(idle) + len(taught))
            metrics |= {"sampling/batches": len(sampled), "sampling/dropped": dropped}
        return Collected(judged, of_greedy[0], metrics, *of_greedy[1:], named)

    def _with_mask(self, params: Params, carried: Any) -> Params:
        """What the sampler takes: the params, with those of the mask policy if there is an action mask."""
        masked = action_mask.is_on(self._setup.config)
        return {"policy": params, "mask": action_mask.mask_of(carried)} if masked else params

    def _next_windows(self, generate: Callable, params: Params, key, clock: Clock) -> Collected:
        """The step's rows if an answer takes several steps. Its prompt is reported on when the answer is over."""
        judged, over, metrics = self._windows(generate, params, key, clock)
        named = self._prompts.recall(judged.records)
        if over.any():
            self._prompts.feedback(feedback_of([windows.kept(judged, over)], 1))
        return Collected(judged, None, metrics | self._prompts.metrics(), named=named)

    def _sample(
        self, generate: Callable, records: list[dict], params: Params, key, own_prompts: np.ndarray, clock: Clock
    ) -> Judged:
        """The judged samples of the records, from one call of `generate`."""
        setup = self._setup
        encoded = processes.own_to_mesh(setup.mesh, encode_prompts(setup, records))
        rollout = generate(params, *encoded, key)
        clock.lap("rollout_s", rollout)
        judged = judge(setup, self._rewards, rollout, records, own_prompts, setup.config.sample.prompts_per_step)
        clock.lap("reward_s")
        return judged


def _differ(result: RewardResult, size: int) -> np.ndarray:
    """bool [groups]: whether the rewards of a group's rows differ. A row whose verifier failed says nothing.

    A group of one row says something even so: what it is compared with is not in its group.
    """
    failed = np.zeros(len(result.rewards), bool) if result.failed is None else result.failed
    if size == 1:
        return ~failed
    rewards = np.ma.array(result.rewards, mask=failed).reshape(-1, size)
    return np.ma.ptp(rewards, axis=1).filled(0.0) > 0


def _split(judged: Judged, size: int) -> list[Judged]:
    """One Judged per group of `size` rows."""
    parts = []
    for start in range(0, len(judged.records), size):
        rows = slice(start, start + size)
        result = judged.result
        parts.append(
            Judged(
                rollout=jax.tree.map(lambda x, rows=rows: x[rows], judged.rollout),
                records=judged.records[rows],
                completions=judged.completions[rows],
                result=result._replace(
                    rewards=result.rewards[rows],
                    components={name: column[rows] for name, column in result.components.items()},
                    failed=None if result.failed is None else result.failed[rows],
                ),
            )
        )
    return parts


def join_rows(parts: list[Judged], pad_id: int) -> Judged:
    """Concatenates the rows of `parts`; prompts of different buckets are left-padded to the widest."""
    width = max(part.rollout.batch.tokens.shape[1] for part in parts)

    def widen(rollout: Rollout) -> Rollout:
        return rollout._replace(batch=pad_prompts(rollout.batch, width, pad_id))

    results = [part.result for part in parts]
    columns = joined_columns(results)
    return Judged(
        rollout=jax.tree.map(lambda *xs: np.concatenate(xs), *(widen(part.rollout) for part in parts)),
        records=[record for part in parts for record in part.records],
        completions=[text for part in parts for text in part.completions],
        result=results[0]._replace(
            rewards=columns.pop("reward"),
            components=dict(sorted(columns.items())),
            first_error=next((result.first_error for result in results if result.first_error), None),
            failed=None if results[0].failed is None else np.concatenate([result.failed for result in results]),
        ),
    )
