"""The memory of a training forward and its gradient besides params and gradient: the compiler's count of temporaries.

    python -m experiments.bench.memory                # vocabulary 152k, rows of 4096 tokens
    python -m experiments.bench.memory --rows=8 --group=8 --layers=4 --width=1024

The first line is the naive program: log_softmax over [B, T, V]. The others are rl_jax.training.scoring on padded rows,
on packed ones, and on rows that hold the prompt of a group once (rl_jax.training.packing). Completions are
heavy-tailed, longest x ((i + 1) / n)^3: most end by a quarter of the longest. Nothing is allocated: shapes are lowered
and compiled.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Model, Packed, TokenBatch
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.engine import prompt_batch
from rl_jax.training.packing import occupancy, pack
from rl_jax.training.scoring import make_score

LIMIT = 0.15  # for the padded rows, as a fraction of the naive temporaries


class Line(NamedTuple):
    """One line of the table.

    Attributes:
      name: of the program.
      rows: of the body's forward.
      length: columns of the body's forward.
      occupancy: fraction of real tokens in these rows x columns.
      temporary_bytes: by the compiler.
    """

    name: str
    rows: int
    length: int
    occupancy: float
    temporary_bytes: int


def ragged_batch(rows: int, group: int, prompt: int, completion: int) -> tuple[TokenBatch, np.ndarray]:
    """(TokenBatch [B, P + C], completion mask [B, C]): groups of equal prompts, completions of heavy-tailed lengths."""
    lengths = np.ceil(completion * (np.arange(1, rows + 1) / rows) ** 3).astype(int)
    lengths = np.random.default_rng(0).permutation(lengths)
    tokens = np.broadcast_to(np.arange(rows, dtype=np.int32)[:, None] // group, (rows, prompt + completion))
    real = np.arange(prompt + completion) < prompt + lengths[:, None]
    return jax.tree.map(np.asarray, prompt_batch(jnp.asarray(tokens), jnp.asarray(real))), real[:, prompt:]


def naive_score(model: Model, completion: int) -> Callable:
    """(params, TokenBatch) -> (log_probs, entropy) by log_softmax of every column's logits."""

    def score(params, batch):
        log_probs = jax.nn.log_softmax(model.unembed(params, model.apply(params, batch)), axis=-1)
        picked = jnp.take_along_axis(log_probs[:, :-1], batch.tokens[:, 1:, None], axis=-1)[..., 0]
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)[:, :-1]
        return picked[:, -completion:], entropy[:, -completion:]

    return score


def temporary_bytes(score: Callable, params: Any, batch: TokenBatch | Packed) -> int:
    """The temporaries of d/dparams of a sum that depends on every log-prob and every entropy. params: shapes."""

    def total(params, batch):
        log_probs, entropy = score(params, batch)[:2]
        return jnp.sum(jnp.square(log_probs)) + jnp.sum(jnp.square(entropy))

    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    return jax.jit(jax.grad(total)).lower(params, batch).compile().memory_analysis().temp_size_in_bytes


def measure(config: TransformerConfig, options: argparse.Namespace) -> list[Line]:
    """The table's lines, the naive one first. options: rows, group, prompt, length, chunk."""
    model = make_transformer(config)
    params = jax.eval_shape(model.init, jax.random.key(0))
    completion = options.length - options.prompt
    padded, mask = ragged_batch(options.rows, options.group, options.prompt, completion)
    ours = make_score(model, completion_length=completion, chunk=options.chunk)
    packing = {"row_length": options.length}
    cases = {
        "naive log_softmax [B, T, V]": (naive_score(model, completion), padded),
        "ours, padded rows": (ours, padded),
        "ours, packed rows": (ours, pack(padded, mask, share_prefix=False, **packing)),
        "ours, shared prefix": (ours, pack(padded, mask, share_prefix=True, **packing)),
    }
    result = []
    for name, (score, batch) in cases.items():
        tokens = batch.rows.tokens[0] if isinstance(batch, Packed) else batch.tokens
        result.append(Line(name, *tokens.shape, occupancy(batch), temporary_bytes(score, params, batch)))
    return result


def table(lines: list[Line], title: str) -> str:
    """The lines as Markdown, each with its fraction of the first line's temporaries."""
    text = [title, "", "| program | rows x T | columns in use | temporaries, MiB | of naive |", "|---|---|---|---|---|"]
    for line in lines:
        share = line.temporary_bytes / lines[0].temporary_bytes
        size = f"{line.rows} x {line.length}"
        text.append(
            f"| {line.name} | {size} | {line.occupancy:.0%} | {line.temporary_bytes / 2**20:.0f} | {share:.1%} |"
        )
    return "\n".join(text)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=152_064)
    parser.add_argument("--rows", type=int, default=8, help="B")
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--length", type=int, default=4096, help="T, the prompt plus the longest completion")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=32, help="columns whose logits are computed at a time")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--remat", default="full")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args(arguments)
    config = TransformerConfig(
        vocab_size=options.vocab,
        embed_dim=options.width,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.heads,
        head_dim=options.width // options.heads,
        mlp_dim=3 * options.width,
        remat=options.remat,
        dtype=options.dtype,
    )
    lines = measure(config, options)
    title = (
        f"Vocabulary {options.vocab}, {options.rows} rows of {options.prompt} + {options.length - options.prompt} "
        f"tokens, groups of {options.group}, chunks of {options.chunk} columns, "
        f"{options.layers} layers of {options.width}, {options.heads} heads, {options.dtype}, remat {options.remat}"
    )
    print(table(lines, title))
    share = lines[1].temporary_bytes / lines[0].temporary_bytes
    print(f"\npadded rows take {share:.1%} of the naive temporaries; the limit is {LIMIT:.0%}: "
          f"{'ok' if share <= LIMIT else 'TOO MUCH'}\n")  # fmt: skip
    print(json.dumps({"bench": "memory", "options": vars(options), "lines": [line._asdict() for line in lines]}))


if __name__ == "__main__":
    main()
