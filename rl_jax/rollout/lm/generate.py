"""Continuous batching with the signature of engine.make_generate, so that an experiment can use either."""

import chex
import numpy as np

from rl_jax.core.types import Model, Params, Rollout
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.requests import as_rollout, requests_of
from rl_jax.rollout.lm.sampling import Sampling, check_counts


class ContinuousGenerate:
    """generate(params, tokens, prompt_mask, key, max_tokens=None) -> Rollout (numpy) of B x G rows; not to be jitted.

    The same rows as engine.make_generate with the same key, up to float ties. max_tokens: int [B x G], a limit per row;
    None is completion_length for all. The attribute `engine` is the continuous.Engine.

    Args:
      model: with extend and decode.
      prompt_length: the longest prompt, in any bucket.
      completion_length: as in `engine.make_generate`.
      group_size: as in `engine.make_generate`.
      sampling: as in `engine.make_generate`.
      eos_ids: as in `engine.make_generate`.
      pad_id: as in `engine.make_generate`.
      slots: see continuous.Engine.
      stop_strings: texts that end a row; they need decode_text among the options.
      **options: see continuous.Engine.
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
        """See the class.

        Raises:
          ValueError: if a prompt is longer than prompt_length, or a row has no token.
        """
        if max_tokens is not None and np.max(max_tokens) > self._completion_length:
            raise ValueError(f"max_tokens={np.max(max_tokens)} is above completion_length={self._completion_length}")
        requests = requests_of(
            tokens,
            prompt_mask,
            group_size=self._group_size,
            max_tokens=self._completion_length if max_tokens is None else max_tokens,
            stop_strings=self._stop_strings,
        )
        if not self._is_warm:  # compiles every program now, and none later for any lengths
            self.engine.warm_up(params)
            self._is_warm = True
        try:
            self.engine.submit(requests, key)
            completions = self.engine.run(params)
        finally:  # after an error or a signal, nothing is left for the next call
            self.engine.abort()
        return as_rollout(
            completions, tokens, prompt_mask, completion_length=self._completion_length, pad_id=self._pad_id
        )

    def _cache_size(self) -> int:
        """Number of programs compiled so far, under the name that jitted functions use."""
        return self.engine.compile_count()
