"""What one accelerator gives: train MFU, decode against bandwidth, prefill, memory. Point by point to a file.

    python -m experiments.bench.device --to=device.jsonl                  # the moment a GPU or TPU is there
    python -m experiments.bench.device --models=1b --seconds=300 --to=device.jsonl
    python -m experiments.bench.device --models=toy --to=/tmp/toy.jsonl   # a laptop: seconds

Shapes: 1b is Llama 3.2 1B, whole; 8b has the widths of Llama 3.1 8B and 4 of its 32 layers, as the state of all of them
is 128 GB. bfloat16 over float32 masters with AdamW. First the rates beside which all else is read: a bfloat16 product
and reading memory. Then a train step for each remat, attention and head chunk, prefill, and decode at 1 to 512 rows.

Every point is a line of the file as soon as it is measured; points that the file has of this kind of device are left
out, so the same command goes on after an interruption. A point that does not fit or does not compile is a line with
"error". New points begin until --seconds are over. mfu is of the device's stated peak (experiments.parts.peaks), share
of the product's measured rate; both count model FLOPs (experiments.parts.meter), not those of rematerialisation.
"""

import argparse
import functools
import gc
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.parts import meter, peaks
from experiments.plan import hlo
from rl_jax import sft
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.config import ATTENTIONS, REMAT_POLICIES, TransformerConfig
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training.scoring import make_score
from rl_jax.training.step import init_state, make_train_step


class Shape(NamedTuple):
    """A model, and the rows that it is measured on.

    Attributes:
      model: its sizes.
      prompt: tokens of a prompt.
      completion: tokens of a completion.
      rows: of a train step.
      decode_rows: of each decode point.
      chunks: of the head's logits.
    """

    model: TransformerConfig
    prompt: int
    completion: int
    rows: int
    decode_rows: tuple[int, ...]
    chunks: tuple[int, ...]


_LLAMA = functools.partial(TransformerConfig, vocab_size=128_256, dtype="bfloat16", rope_theta=500_000.0)
_MANY = (1, 8, 32, 128, 512)
SHAPES = {
    "1b": Shape(
        _LLAMA(embed_dim=2048, num_layers=16, num_heads=32, num_kv_heads=8, head_dim=64, mlp_dim=8192),
        *(1024, 1024, 8, _MANY, (256, 1024)),
    ),
    "8b": Shape(
        _LLAMA(
            embed_dim=4096, num_layers=4, num_heads=32, num_kv_heads=8, head_dim=128, mlp_dim=14336, tied_head=False
        ),
        *(1024, 1024, 8, _MANY, (256, 1024)),
    ),
    "toy": Shape(
        TransformerConfig(
            vocab_size=256, embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, mlp_dim=64
        ),
        *(8, 8, 2, (1,), (8,)),
    ),
}
REMATS = ("full", "dots", "none")
NAMES = ("point", "model", "attention", "remat", "chunk", "rows")  # of a point's key


class Point(NamedTuple):
    """One measurement.

    Attributes:
      key: what it is; the same in every run of this program.
      measure: (rates of the device) -> the figures.
    """

    key: dict[str, Any]
    measure: Callable[[dict[str, float]], dict[str, float]]


def points(models: tuple[str, ...], attentions: tuple[str, ...], remats: tuple[str, ...]) -> Iterator[Point]:
    """All points, the cheap and the telling ones first."""
    for name in models:
        shape = SHAPES[name]
        for attention in attentions:
            for remat in remats:
                for chunk in shape.chunks:
                    key = {"point": "train", "model": name, "attention": attention, "remat": remat, "chunk": chunk}
                    yield Point(key, functools.partial(train, shape, attention, remat, chunk))
        yield Point({"point": "prefill", "model": name}, functools.partial(prefill, shape))
        for rows in shape.decode_rows:
            yield Point({"point": "decode", "model": name, "rows": rows}, functools.partial(decode, shape, rows))


def seconds_of(call: Callable, repeats: int) -> float:
    """The median time of a call, after one that compiles."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def device_rates(size: int, megabytes: int) -> dict[str, float]:
    """FLOP/s of a bfloat16 product [size, size] x [size, size], and bytes/s at which an array is summed."""
    x, product = jnp.ones((size, size), jnp.bfloat16), jax.jit(jnp.matmul)
    array, total = jnp.ones(megabytes * 2**18, jnp.float32), jax.jit(jnp.sum)
    return {
        "matmul_flops_per_s": 2.0 * size**3 / seconds_of(lambda: product(x, x), 11),
        "read_bytes_per_s": array.nbytes / seconds_of(lambda: total(array), 11),
    }


def rows_of(shape: Shape, rows: int) -> tuple[TokenBatch, np.ndarray]:
    """(full rows, their completion mask)."""
    length = shape.prompt + shape.completion
    tokens = np.random.default_rng(0).integers(0, shape.model.vocab_size, (rows, length), dtype=np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
    return TokenBatch(tokens, positions, np.ones_like(tokens)), np.ones((rows, shape.completion), bool)


def train(shape: Shape, attention: str, remat: str, chunk: int, rates: dict[str, float]) -> dict[str, float]:
    """One train step: forward, backward, AdamW."""
    config = TransformerConfig(**vars(shape.model) | {"attention": attention, "remat": remat})
    model, optimizer = make_transformer(config), optax.adamw(1e-6)
    score = make_score(model, completion_length=shape.completion, chunk=chunk)

    def loss(params, batch):
        return sft.loss(score(params, batch[0]), batch[1])

    batch = rows_of(shape, shape.rows)
    tokens, pairs, scored = meter.work_of(batch, (0,) * config.num_layers)
    step = jax.jit(make_train_step(loss, optimizer, max_grad_norm=1.0), donate_argnums=0)
    state = jax.jit(lambda key: init_state(model.init(key), optimizer, key))(jax.random.key(0))
    batch = jax.device_put(batch)
    start = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    result = {"compile_s": time.perf_counter() - start, **_planned(compiled)}
    held = [state]

    def call():
        held[0], metrics = compiled(held[0], batch)
        return metrics

    seconds = seconds_of(call, 5)
    rate = meter.train_flops(config, tokens=tokens, pairs=pairs, scored=scored) / seconds
    result |= {"step_s": seconds, "tokens_per_s": tokens / seconds, "flops_per_s": rate}
    result["share_of_matmul"] = rate / rates["matmul_flops_per_s"]
    if peak := peaks.peak_flops(jax.devices()[0].device_kind):
        result["mfu"] = rate / peak
    return result | _allocated()


def prefill(shape: Shape, rates: dict[str, float]) -> dict[str, float]:
    """Prompts per second until their first token, as prompt tokens."""
    seconds = _generate_s(shape, shape.rows, 1)
    return {"seconds": seconds, "tokens_per_s": shape.rows * shape.prompt / seconds} | _allocated()


def decode(shape: Shape, rows: int, rates: dict[str, float]) -> dict[str, float]:
    """One decode step: the difference of a long and a short completion, over their steps.

    share_of_bandwidth is the time to read bfloat16 weights and the whole cache once, at the measured rate, over it.

    Raises:
      RuntimeError: if the long one was not slower, so that nothing can be said.
    """
    m, (few, many) = shape.model, (2, shape.completion)
    short_s, long_s = (_generate_s(shape, rows, length) for length in (few, many))
    if long_s <= short_s:
        raise RuntimeError(f"{many} tokens took {long_s:.3g} s and {few} took {short_s:.3g} s: too short to measure")
    step_s = (long_s - short_s) / (many - few)
    weights = 2.0 * (meter.body_weights(m) + m.embed_dim * m.vocab_size)
    cache = 2.0 * 2 * m.num_layers * m.num_kv_heads * m.head_dim * rows * (shape.prompt + many)
    least = (weights + cache) / rates["read_bytes_per_s"]
    return {
        "step_s": step_s,
        "tokens_per_s": rows / step_s,
        "read_bytes": weights + cache,
        "share_of_bandwidth": least / step_s,
        **_allocated(),
    }


def _generate_s(shape: Shape, rows: int, completion: int) -> float:
    """Seconds of one rollout of `rows` rows that all go to the end."""
    model = make_transformer(TransformerConfig(**vars(shape.model) | {"param_dtype": shape.model.dtype}))
    generate = jax.jit(
        make_generate(model, completion_length=completion, group_size=1, sampling=Sampling(), eos_ids=())
    )
    params = jax.jit(model.init)(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, shape.model.vocab_size, (rows, shape.prompt), dtype=np.int32)
    prompts, real = jax.device_put((tokens, np.ones(tokens.shape, bool)))
    return seconds_of(lambda: generate(params, prompts, real, jax.random.key(1)).sampled_log_probs, 3)


def _planned(compiled) -> dict[str, float]:
    """The compiler's own count of a program's memory, where the backend has one."""
    found = compiled.memory_analysis()
    return {} if found is None else {"compiler_bytes": float(hlo.peak_bytes(found, jax.default_backend()))}


def _allocated() -> dict[str, float]:
    """The allocator's peak since the process began, where the backend tells."""
    stats = jax.devices()[0].memory_stats() or {}
    return {name: float(stats[name]) for name in ("peak_bytes_in_use", "bytes_limit") if name in stats}


def measure(
    file: pathlib.Path,
    todo: Iterator[Point],
    rates: dict[str, float],
    seconds: float,
    *,
    names: tuple[str, ...] = NAMES,
    device: str = "",
) -> list[dict]:
    """Measures the points that the file lacks for this kind of device, and appends each at once.

    Args:
      file: JSON lines; may be there already.
      todo: in this order.
      rates: of device_rates.
      seconds: no point begins after them.
      names: of a point's key, in whatever file.
      device: the kind of device; "" is that of jax's first one.

    Returns:
      The lines that were appended.
    """
    kind = {"device": device or jax.devices()[0].device_kind}
    done, made, start = _keys(file, (*names, "device")), [], time.monotonic()
    for point in todo:
        if json.dumps(point.key | kind, sort_keys=True) in done:
            continue
        if time.monotonic() - start > seconds:
            print(f"{seconds:.0f} s are over: the same command goes on with the other points", flush=True)
            break
        try:
            found = point.measure(rates)
        except Exception as error:  # noqa: BLE001 - out of memory, or a kernel that the device lacks: the next point
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        gc.collect()  # what the point held on the device
        made.append(point.key | kind | found)
        _append(file, made[-1])
    return made


def lines(file: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of a file of points; a killed run may have left half a line, which is left out."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def _keys(file: pathlib.Path, names: tuple[str, ...]) -> set[str]:
    """The keys of the points that a file has. A point without a device is of the head before it (older files)."""
    found, kind = set(), jax.devices()[0].device_kind
    for row in lines(file):
        kind = row.get("kind", kind)
        row = {"device": kind} | row
        found.add(json.dumps({n: row[n] for n in names if n in row}, sort_keys=True))
    return found


def _append(file: pathlib.Path, row: dict[str, Any]) -> None:
    kept = {name: float(f"{x:.5g}") if isinstance(x, float) else x for name, x in row.items()}
    with open(file, "a+b") as out:
        out.seek(0, 2)
        if out.tell() and (out.seek(-1, 2), out.read(1))[1] != b"\n":
            out.write(b"\n")
        out.write((json.dumps(kept) + "\n").encode())
    print(json.dumps(kept), flush=True)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    kernel = {"tpu": "splash,", "gpu": "cudnn,"}.get(jax.default_backend(), "")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=pathlib.Path, required=True, help="JSON lines, one per point")
    parser.add_argument("--models", default="1b,8b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--attention", default=f"{kernel}dot_product")
    parser.add_argument("--remat", default=",".join(REMATS))
    parser.add_argument("--seconds", type=float, default=540.0, help="no point begins after them")
    options = parser.parse_args(arguments)
    chosen = []
    for name, known in (("models", SHAPES), ("attention", ATTENTIONS), ("remat", REMAT_POLICIES)):
        text = getattr(options, name)
        chosen.append(tuple(text.split(",")))
        if unknown := sorted(set(chosen[-1]) - set(known)):
            parser.error(f"--{name}={text}: {', '.join(unknown)} is none of {', '.join(known)}")
    models, attentions, remats = chosen
    small = set(models) == {"toy"}
    rates = device_rates(*(256, 4) if small else (8192, 4096))
    device = jax.devices()[0]
    head = {"point": "device", "kind": device.device_kind, "jax": jax.__version__, **rates}
    head["peak_flops_per_s"] = peaks.peak_flops(device.device_kind)
    _append(options.to, head)
    measure(options.to, points(models, attentions, remats), rates, options.seconds)


if __name__ == "__main__":
    main()
