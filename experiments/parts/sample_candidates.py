"""Candidates: the responses to a step's prompts that preferences are made of, set by config.sample."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from experiments.parts import processes, quantized
from experiments.parts.clock import Clock
from experiments.parts.encoding import encode_prompts, encode_sft, pad_prompts
from experiments.parts.judging import Judged, judge
from experiments.parts.prompts import feedback_of
from experiments.parts.rewards import Rewards
from experiments.parts.sample_groups import join_rows
from experiments.parts.sampler import make_sampler, say_engine
from experiments.parts.setup import Setup, sampling_of
from rl_jax.core.types import Params, Rollout, TokenBatch
from rl_jax.experience import PromptStream
from rl_jax.models.mixture import make_mixture
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import sharding

POLICY, REFERENCE, DATA = range(3)


class Candidates(NamedTuple):
    """Responses to a step's prompts, as arrays on the host: N prompts, G candidates each.

    Attributes:
      batch: TokenBatch of [N, G, P + C].
      completion_mask: bool [N, G, C].
      rewards: float32 [N, G].
      origin: int32 [N, G]. POLICY (or a mixture with it), REFERENCE or DATA: where each comes from.
      opponents: float32 [N, M]. Rewards of the samples that the candidates are compared with.
    """

    batch: TokenBatch
    completion_mask: np.ndarray
    rewards: np.ndarray
    origin: np.ndarray
    opponents: np.ndarray


class Drawer(NamedTuple):
    """Samples from a mixture of two sets of params.

    Attributes:
      generate: compiled (*params, tokens, prompt_mask, key) -> Rollout.
      params: (policy, reference) -> the params that `generate` takes.
    """

    generate: Callable
    params: Callable

    def __call__(self, policy: Params, reference: Params, *rest) -> Rollout:
        """generate(*params(policy, reference), tokens, prompt_mask, key)."""
        return self.generate(*self.params(policy, reference), *rest)


def make_drawer(setup: Setup, *, share: float, group_size: int) -> Drawer:
    """The Drawer of policy^(1 - share) reference^share.

    Args:
      setup: of the run.
      share: weight of the reference. Only 0 and 1 support engines other than lockstep.
      group_size: samples per prompt.

    Raises:
      ValueError: if a mixture is to be sampled on rollout.mesh.
    """
    tokenizer, settings = setup.task.tokenizer, setup.config.rollout
    options = dict(
        completion_length=settings.completion_length,
        group_size=group_size,
        sampling=sampling_of(settings),
        eos_ids=tokenizer.eos_ids,
        pad_id=tokenizer.pad_id,
    )
    if share in (0.0, 1.0):
        generate = make_sampler(setup, setup.config.sample.prompts_per_batch, **options)
        return Drawer(generate, lambda policy, reference: (reference if share else policy,))
    if setup.rollout:
        raise ValueError(f"a share of {share} samples from two models on the training mesh: leave rollout.mesh empty")
    if any(quantized.kinds(setup.config)):
        raise ValueError(f"a share of {share} samples from two models: leave rollout.weights and rollout.cache empty")
    mixed = make_generate(make_mixture(setup.model, share), **options)
    attached = setup.attached or (lambda params: params)
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    params = setup.param_shardings
    generate = jax.jit(
        lambda policy, reference, *rest: mixed({"policy": attached(policy), "reference": attached(reference)}, *rest),
        in_shardings=(params, params, rows, rows, everywhere),
        out_shardings=rows,
    )
    return Drawer(generate, lambda policy, reference: (policy, reference))


def make_judge(setup: Setup, rewards: Rewards) -> Callable:
    """Makes judge(Rows) -> RewardResult: the config's reward.

    Given pairs (sample.data="pairs") are already ordered and nothing is judged: every sample gets the reward 1 of a
    chosen response, so that none counts as worse.
    """
    if setup.config.sample.data == "pairs":
        return lambda rows: RewardResult(np.ones(len(rows.records), np.float32), {}, 0, 0, None)
    return rewards


class Source:
    """Samples and judges the candidates of a step.

    Each process samples and judges its own prompts; all get the whole step.

    Args:
      setup: of the run.
      judge_texts: from make_judge. Judges that learn do so on each step's first samples.
      prompts: endless batches of this process's records; told what became of them after each step.
    """

    def __init__(self, setup: Setup, judge_texts: Callable, prompts: PromptStream):
        """Makes the samplers."""
        self._setup, self._judge, self._prompts = setup, judge_texts, prompts
        self._learned: dict[str, float] = {}
        settings = self._settings = setup.config.sample
        self._draw = make_drawer(setup, share=settings.share, group_size=settings.group_size)
        others = settings.opponents
        self._draw_others = (
            make_drawer(setup, share=others.share, group_size=others.samples) if others.samples else None
        )
        self._own = processes.rows_here(setup.mesh, settings.prompts_per_batch)

    def __call__(
        self, policy: Params, reference: Params, key: jax.Array, clock: Clock, *, learn: bool = True
    ) -> tuple[Candidates, Judged]:
        """Samples and judges one step's candidates.

        Args:
          policy: params.
          reference: params.
          key: a typed key.
          clock: gets the laps rollout_s and reward_s.
          learn: whether judges that learn do so now: once per step.

        Returns:
          (the candidates, the judged samples of the first batch).
        """
        parts, judged = [], []
        for index in range(self._settings.prompts_per_step // self._settings.prompts_per_batch):
            part, samples = self._batch(policy, reference, jax.random.fold_in(key, index), clock)
            parts.append(part)
            judged.append(samples)
        self._prompts.feedback(feedback_of(judged, self._settings.group_size))
        pad_id = self._setup.task.tokenizer.pad_id
        if learn and isinstance(self._judge, Rewards):
            self._learned = self._judge.learn(judged[0] if len(judged) == 1 else join_rows(judged, pad_id))
        return join(parts, pad_id), judged[0]

    def metrics(self) -> dict[str, float]:
        """Those of the prompts (PromptStream.metrics), and of the judges that have learned in this step."""
        return self._prompts.metrics() | self._learned

    def compile_ahead(self, ahead: Callable, policy: Params, reference: Params, key: jax.Array) -> Candidates | None:
        """Compiles what a call runs, by running it on the next prompts, which remain the next ones.

        Args:
          ahead: Run.ahead.
          policy: params.
          reference: params.
          key: a typed key.

        Returns:
          What the call would return, with zeros in place of samples; None if the engine is not a single program.
        """
        if self._setup.config.rollout.engine.name != "lockstep":
            say_engine(self._setup.config, ahead)
            return None
        position, draw, draw_others = self._prompts.get_state(), self._draw, self._draw_others
        self._draw = draw._replace(generate=ahead("generate", draw.generate))
        if draw_others is not None:
            self._draw_others = draw_others._replace(generate=ahead("generate opponents", draw_others.generate))
        try:
            candidates, _ = self(policy, reference, key, Clock(), learn=False)
        finally:
            self._draw, self._draw_others = draw, draw_others
            self._prompts.set_state(position)
        return candidates

    def _batch(self, policy: Params, reference: Params, key, clock: Clock) -> tuple[Candidates, Judged]:
        settings, own = self._settings, next(self._prompts)
        encoded = processes.own_to_mesh(self._setup.mesh, encode_prompts(self._setup, own))
        judged = self._judged(self._draw(policy, reference, *encoded, key), own, clock)
        records, count = judged.records[:: settings.group_size], settings.prompts_per_batch
        parts = [self._candidates(judged, count, settings.share)]
        opponents = np.zeros((count, 0), np.float32)
        if self._draw_others is not None:
            drawn = self._draw_others(policy, reference, *encoded, jax.random.fold_in(key, 1))
            others = self._candidates(self._judged(drawn, own, clock), count, settings.opponents.share)
            opponents = others.rewards
            parts += [others] if settings.opponents.candidates else []
        if settings.data:
            parts.append(self._of_data(records, encoded[0].shape[1]))
        joined = jax.tree.map(lambda *xs: np.concatenate(xs, axis=1), *parts)
        return joined._replace(opponents=opponents), judged

    def _judged(self, rollout: Rollout, records: list[dict], clock: Clock) -> Judged:
        clock.lap("rollout_s", rollout)
        judged = judge(self._setup, self._judge, rollout, records, self._own, self._settings.prompts_per_batch)
        clock.lap("reward_s")
        return judged

    def _candidates(self, judged: Judged, count: int, share: float) -> Candidates:
        if judged.rollout.token_rewards is not None:
            raise ValueError("config.judge has a judge of tokens; preferences compare whole responses: use one of rows")
        rollout = judged.rollout
        rewards = judged.result.rewards - self._settings.missing_eos_penalty * rollout.truncated
        origin = REFERENCE if share == 1.0 else POLICY
        return _grouped(rollout.batch, rollout.completion_mask, rewards, count, origin)

    def _of_data(self, records: list[dict], width: int) -> Candidates:
        """The records' own responses, on prompts as wide as the sampled ones.

        They are not judged: the first of a pair has reward 1 and the second 0, a completion has 0.
        """
        texts = [record.get("responses") or [record["completion"]] for record in records]
        rows = [
            record | {"completion": text}  # a chat's messages are in the record
            for record, responses in zip(records, texts, strict=True)
            for text in responses
        ]
        batch, mask = encode_sft(self._setup, rows)
        cut = batch.tokens.shape[1] - mask.shape[1] - width
        batch = TokenBatch(*(x[:, cut:] for x in batch[:3]))
        rewards = [float(k == 0 < len(responses) - 1) for responses in texts for k in range(len(responses))]
        return _grouped(batch, mask, np.array(rewards), len(records), DATA)


def _grouped(batch: TokenBatch, mask, rewards, count: int, origin: int) -> Candidates:
    """Rows, sorted by prompt, as Candidates of `count` prompts."""

    def group(x):
        return np.asarray(x).reshape(count, -1, *x.shape[1:])

    batch = TokenBatch(*(group(x) for x in batch[:3]))
    rewards = group(rewards).astype(np.float32)
    return Candidates(
        batch, group(mask), rewards, np.full(rewards.shape, origin, np.int32), np.zeros((count, 0), np.float32)
    )


def join(parts: list[Candidates], pad_id: int) -> Candidates:
    """Concatenates the prompts of `parts`; prompts of different buckets are left-padded to the widest."""
    width = max(part.batch.tokens.shape[2] for part in parts)

    def widen(part: Candidates) -> Candidates:
        return part._replace(batch=pad_prompts(part.batch, width, pad_id))

    return jax.tree.map(lambda *xs: np.concatenate(xs), *map(widen, parts))
