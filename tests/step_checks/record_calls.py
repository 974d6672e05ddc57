"""Records what a program's compiled train step is called with, and what it gives."""

from typing import Any, NamedTuple

import jax
import numpy as np


class Call(NamedTuple):
    """One call: params before, the batch, further arguments, params after, and the metrics; copies on the host."""

    before: Any
    batch: Any
    more: tuple
    after: Any
    metrics: dict


def on_host(tree):
    """A copy: the buffers of a state are donated."""
    return jax.tree.map(lambda x: x if x is None else np.array(x), tree)


class Recorded:
    """A compiled step (state, batch, ...) -> (state, metrics) that keeps its calls."""

    def __init__(self, step):
        self._step, self.calls = step, []

    def __call__(self, state, batch, *more):
        before = on_host(state.params)
        host = jax.tree.map(np.array, batch), tuple(on_host(x) for x in more)
        state, metrics = self._step(state, batch, *more)
        self.calls.append(Call(before, *host, on_host(state.params), on_host(metrics)))
        return state, metrics

    def _cache_size(self) -> int:
        return self._step._cache_size()


def not_ahead(run, name, program):
    """In place of Run.ahead: nothing is compiled before it is called."""
    return lambda *args: None


def quiet(config):
    """No evaluations, no checkpoint before the end, nothing printed; a tiny model."""
    config.model.update(embed_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=16)
    config.eval.update(every=0)
    config.checkpoint.every = 1000
    config.log.update(progress=False, tensorboard=False)
    config.sft.steps = 0
    return config


def set_update(group, optimizer: dict, rate: dict) -> None:
    """Sets config.train (or config.sft) to the settings of forward.optimizer_of and forward.rate_of."""
    group.max_grad_norm = optimizer["max_norm"]
    group.optimizer.update(
        learning_rate=rate["peak"], warmup_steps=rate["warmup"], decay_steps=rate["decay"],
        final_fraction=rate["final"], weight_decay=optimizer["decay"],
        **{name: optimizer[name] for name in ("b1", "b2", "eps")},
    )  # fmt: skip


def prompts_of(batch, alphabet: str, limit: int) -> list[str]:
    """The prompts of a PreferenceBatch before it is packed, from its tokens; each has a BOS."""
    tokens, real = (np.asarray(x)[:, 0, :-limit] for x in (batch.batch.tokens, batch.batch.segment_ids))
    return ["".join(alphabet[i - 3] for i in row[seen > 0][1:]) for row, seen in zip(tokens, real, strict=True)]
