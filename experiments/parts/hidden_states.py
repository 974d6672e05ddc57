"""Hidden states of texts under a finished run: what its head reads."""

import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from experiments.parts.judges.base import run_of, setup_of
from experiments.parts.judges.trained import RewardModel
from rl_jax.core.types import TokenBatch
from rl_jax.models.heads import make_hidden_last

Embed = Callable[[Sequence[str], Sequence[str]], np.ndarray]


def make_embed(folder: str, model: RewardModel) -> Embed:
    """Makes embed(prompts, responses) -> float32 [N, D]: a run's hidden states at the last token of each row."""
    setup, params = run_of(setup_of(pathlib.Path(folder), ""), pathlib.Path(folder))
    read, size = jax.jit(make_hidden_last(setup.model)), setup.config.eval.batch_size

    def embed(prompts: Sequence[str], responses: Sequence[str]) -> np.ndarray:
        rows, parts = model.encode(prompts, responses), []
        for start in range(0, len(prompts), size):
            chosen = np.resize(np.arange(start, min(start + size, len(prompts))), size)
            part = TokenBatch(*(None if x is None else x[chosen] for x in rows))
            parts.append(np.asarray(read(params, part)))
        return np.concatenate(parts)[: len(prompts)]

    return embed
