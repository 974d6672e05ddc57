"""Continuous batching behind the call of engine.make_generate, so that an experiment can take either."""

import chex
import numpy as np

from rl_jax.core.types import Model, Params, Rollout
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.requests import as_rollout, requests_of
from rl_jax.rollout.lm.sampling import Sampling, check_counts


class ContinuousGenerate:
    """generate(params, tokens, prompt_mask, key, max_tokens=None) -> Rollout (numpy) of B x G rows; not to be jitted.

    The same rows as engine.make_generate's with the same key, up to float ties. prompt_length: the longest prompt,
    whatever the bucket. completion_length, group_size, sampling, eos_ids, pad_id: as there. slots and the other
    options: see continuous.Engine, which stands in `engine`. max_tokens: int [B x G], a limit for each row; None is
    completion_length for all.
    """

    def __init__(
        self,
        model: Model,
        *,
        prompt_length: int,
        completion_length: int,
        group_size: int = 1,
        sampling: Sampling = Sampling(),
        eos_ids: tuple[int, ...],
        pad_id: int = 0,
        slots: int,
        stop_strings: tuple[str, ...] = (),
        **options,
    ):
        check_counts(completion_length, group_size)
        self.engine = Engine(
            model,
            slots=slots,
            prompt_length=prompt_length,
            length=prompt_length + completion_length,
            sampling=sampling,
            eos_ids=eos_ids,
            **options,
        )
        self._completion_length, self._group_size, self._pad_id = completion_length, group_size, pad_id
        self._stop_strings, self._is_warm = stop_strings, False

    def __call__(
        self,
        params: Params,
        tokens: chex.Array,
        prompt_mask: chex.Array,
        key: chex.PRNGKey,
        max_tokens: np.ndarray | None = None,
    ) -> Rollout:
        """See the class. Raises ValueError for a prompt longer than prompt_length, or a row without a token."""
        if max_tokens is not None and np.max(max_tokens) > self._completion_length:
            raise ValueError(f"max_tokens={np.max(max_tokens)} is above completion_length={self._completion_length}")
        requests = requests_of(
            tokens,
            prompt_mask,
            group_size=self._group_size,
            max_tokens=self._completion_length if max_tokens is None else max_tokens,
            stop_strings=self._stop_strings,
        )
        if not self._is_warm:  # every program now, and none later, whatever the lengths
            self.engine.warm_up(params)
            self._is_warm = True
        try:
            self.engine.submit(requests, key)
            completions = self.engine.run(params)
        finally:  # an error, or a signal, leaves nothing behind for the next call
            self.engine.abort()
        return as_rollout(
            completions, tokens, prompt_mask, completion_length=self._completion_length, pad_id=self._pad_id
        )

    def _cache_size(self) -> int:
        """How many programs were compiled so far, under the name that a jitted function has it."""
        return self.engine.compile_count()
