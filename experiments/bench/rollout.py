"""Continuous batching compared with static lockstep batches, on heavy-tailed completion lengths. Prints one JSON line.

    python -m experiments.bench.rollout                          # 128 requests over 32 slots, 64 + 256 tokens
    python -m experiments.bench.rollout --requests=32            # one batch: what compaction alone gives
    python -m experiments.bench.rollout --devices=8 --mesh=data:8
    python -m experiments.bench.rollout --peer tunix=PYTHON --peer trl=PYTHON   # their rollouts, too

Lengths are set by each request's max_tokens, the same list for every engine: 4 of 5 are uniform up to a quarter of the
maximum, the others uniform from there to the maximum. The engines take turns, and each tokens/s is of the median round.
ratio_cpu compares processor time, which other programs on the machine disturb less.

All engines use the same random numbers for a request, so their tokens are compared. If two programs round a logit
differently and the uniform number falls between two tokens, a row continues with the neighbouring token. Such rows are
counted as tied; any other difference ends the run. "bandwidth_share" is the time to read the parameters and the cache
once at the measured rate, over the time of a decode step. A peer's rollouts are those of its GRPO steps in
experiments.bench.grpo, three shapes of 4 prompts x 8, compared with ours there.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import grpo
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.continuous import Engine
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.programs import empty_rows
from rl_jax.rollout.lm.requests import requests_of
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding


class Workload(NamedTuple):
    """What every engine samples. eos ends nothing.

    Attributes:
      prompts: int32 [N / G, P], full rows.
      max_tokens: int32 [N].
      key: row i of batch b of `slots` rows uses fold_in(fold_in(key, b), i).
      group_size: completions per prompt, G.
      slots: rows per batch.
      completion_length: the longest completion.
      sampling: temperature and truncation.
    """

    prompts: np.ndarray
    max_tokens: np.ndarray
    key: jax.Array
    group_size: int
    slots: int
    completion_length: int
    sampling: Sampling

    def batches(self) -> list[tuple[np.ndarray, np.ndarray, jax.Array]]:
        """(prompts [slots / G, P], max_tokens [slots], key) of each batch of `slots` rows."""
        per = self.slots // self.group_size
        count = len(self.max_tokens) // self.slots
        return [
            (
                self.prompts[i * per : (i + 1) * per],
                self.max_tokens[i * self.slots : (i + 1) * self.slots],
                jax.random.fold_in(self.key, i),
            )
            for i in range(count)
        ]


class Peer(NamedTuple):
    """A row of the result.

    Attributes:
      name: of the engine.
      run: () -> the completions, a list of N int arrays; called once before it is timed.
      details: further fields of the row.
    """

    name: str
    run: Callable[[], list[np.ndarray]]
    details: dict[str, Any]


def heavy_tailed(number: int, longest: int, seed: int) -> np.ndarray:
    """Lengths, int32 [number]: 4 of 5 uniform in 1..longest/4, the others uniform from there to `longest`."""
    rng = np.random.default_rng(seed)
    short = rng.integers(1, longest // 4 + 1, number)
    long = rng.integers(longest // 4, longest + 1, number)
    return np.where(rng.uniform(size=number) < 0.8, short, long).astype(np.int32)


def lockstep(model, params, work: Workload, rows_sharding) -> Peer:
    """Static batches: each runs until its longest row has ended."""
    generate = jax.jit(
        make_generate(
            model,
            completion_length=work.completion_length,
            group_size=work.group_size,
            sampling=work.sampling,
            eos_ids=(),
        )
    )

    def run():
        result = []
        for prompts, max_tokens, key in work.batches():
            arrays = prompts, np.ones(prompts.shape, bool), max_tokens
            if rows_sharding is not None and len(prompts) % rows_sharding.mesh.size == 0:
                arrays = jax.device_put(arrays, rows_sharding)
            rollout = generate(params, arrays[0], arrays[1], key, arrays[2])
            tokens = np.asarray(rollout.batch.tokens[:, prompts.shape[1] :])
            result += [row[:n] for row, n in zip(tokens, max_tokens, strict=True)]
        return result

    steps = sum(int(max_tokens.max()) for _, max_tokens, _ in work.batches())
    return Peer("lockstep", run, {"decode_steps": steps - len(work.batches())})


def continuous(engine: Engine, params, work: Workload) -> Peer:
    """All requests in one queue."""
    engine.warm_up(params)

    def run():
        for number, (prompts, max_tokens, key) in enumerate(work.batches()):
            mask = np.ones(prompts.shape, bool)
            requests = requests_of(prompts, mask, group_size=work.group_size, max_tokens=max_tokens)
            engine.submit(
                [r._replace(index=number * work.slots + r.index, seed=r.index) for r in requests], key
            )
        return [completion.tokens for completion in engine.run(params)]

    return Peer("continuous", run, {"sizes": list(engine.sizes), "programs": engine.compile_count()})


def compare(actual: list[np.ndarray], expected: list[np.ndarray]) -> dict[str, int]:
    """Counts the rows that are equal and those that differ by a neighbouring token.

    Raises:
      AssertionError: if a row differs otherwise.
    """
    equal = tied = 0
    for row, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        different = np.flatnonzero(ours != theirs) if len(ours) == len(theirs) else np.array([-1])
        if not len(different):
            equal += 1
        elif different[0] >= 0 and abs(int(ours[different[0]]) - int(theirs[different[0]])) == 1:
            tied += 1
        else:
            raise AssertionError(f"row {row}: the same request has different tokens from column {different[0]} on")
    return {"rows_equal": equal, "rows_tied": tied}


def race(peers: list[Peer], tokens: int, rounds: int) -> list[dict]:
    """Times the peers in turns, and compares the tokens of each with the first's.

    Args:
      peers: the engines.
      tokens: of one run.
      rounds: runs of each peer.

    Returns:
      One dict per peer, with its seconds and tokens/s.
    """
    outputs = [peer.run() for peer in peers]
    seconds, cpu_seconds = [[] for _ in peers], [[] for _ in peers]
    for _ in range(rounds):
        for number, peer in enumerate(peers):
            start, cpu_start = time.perf_counter(), time.process_time()
            peer.run()
            seconds[number].append(time.perf_counter() - start)
            cpu_seconds[number].append(time.process_time() - cpu_start)
    return [
        {
            "name": peer.name,
            "seconds": round(statistics.median(times), 4),
            "seconds_min": round(min(times), 4),
            "cpu_seconds": round(min(cpu_times), 4),
            "tokens_per_s": round(tokens / statistics.median(times), 1),
            **peer.details,
            **compare(output, outputs[0]),
        }
        for peer, times, cpu_times, output in zip(peers, seconds, cpu_seconds, outputs, strict=True)
    ]


def best_seconds(call: Callable, repeats: int) -> float:
    """The minimum time of one call; other work on the machine can only add time."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


def read_bandwidth(megabytes: int = 128) -> float:
    """Bytes/s at which one device sums an array larger than any cache."""
    array, total = jnp.ones(megabytes * 2**18, jnp.float32), jax.jit(jnp.sum)
    return array.nbytes / best_seconds(lambda: total(array), 5)


def profile(engine: Engine, params, prompt_length: int, prefill_rows: int, repeats: int) -> dict:
    """Decode by number of rows, and prefill: tokens/s and the fraction of the bandwidth limit."""
    bandwidth = read_bandwidth()
    store = [engine.programs.init_store(prefill_rows, prompt_length, params)]
    params = engine.programs.unstack(params) if engine.programs.unstack else params
    params_bytes = sum(x.nbytes for x in jax.tree.leaves(params))
    steps = max(1, min(32, engine.length - prompt_length - 1))
    decode = {}
    for size in engine.sizes:
        rows = empty_rows(size, 4, np.zeros(2, np.uint32))
        rows.live[:], rows.positions[:], rows.limits[:] = True, prompt_length, steps
        cell = [engine.programs.init_state(size, params)]

        def call(rows=rows, cell=cell):
            cell[0], drawn, _ = engine.programs.decode_steps(params, cell[0], rows, np.int32(0))
            return drawn

        seconds = best_seconds(call, repeats) / steps
        limit = (params_bytes + sum(x.nbytes for x in jax.tree.leaves(cell[0]))) / bandwidth
        decode[size] = {
            "ms_per_step": round(seconds * 1e3, 3),
            "tokens_per_s": round(size / seconds, 1),
            "bandwidth_share": round(limit / seconds, 3),
        }
    zeros, every = np.zeros(prefill_rows, np.int32), np.arange(prefill_rows, dtype=np.int32)
    tokens, lengths = np.zeros((prefill_rows, prompt_length), np.int32), np.full(prefill_rows, prompt_length, np.int32)

    def prefill():
        store[0] = engine.programs.prefill(params, store[0], every, every, tokens, zeros, lengths)
        return store[0]

    prefill_rate = prefill_rows * prompt_length / best_seconds(prefill, repeats)
    return {
        "decode": decode,
        "prefill_tokens_per_s": round(prefill_rate, 1),
        "read_gb_per_s": round(bandwidth / 1e9, 2),
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    work = dict(requests=128, slots=32, group=8, plen=64, clen=256, rounds=3, seed=0, devices=1)
    engine = dict(chunk=64, steps=64, refill=0, prefill_rows=4, min_slots=4)
    for name, default in (grpo.MODELS["tiny"] | work | engine).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--mesh", default="", help="devices, as in data:8; rows are split over data and fsdp")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, see experiments.bench.grpo")
    options = parser.parse_args(arguments)
    if options.slots % options.group or options.requests % options.slots:
        parser.error("--slots must be a multiple of --group, and --requests of --slots")
    return options


def peer_rollouts(options: argparse.Namespace) -> dict:
    """Shape -> completion tokens/s of every side's rollouts, and ours over each peer's; {} without peers."""
    peers, found = dict(peer.split("=", 1) for peer in options.peer), {}
    for shape in ("uniform", "ragged", "long_prompt") if peers else ():
        work = grpo.make_work(shape, grpo.MODELS["tiny"], prompts=4, group_size=8, steps=8, beta=0.04)
        result = grpo.measure(work, peers, rounds=1, warmup=3)
        tokens = np.mean([sum(row) for row in work["lengths"]])
        rates = {name: round(tokens / side["rollout_s"], 1) for name, side in result["sides"].items()}
        found[shape] = {"tokens_per_s": rates, "ratio": result["rollout_ratio"]}
    return found


def measure(options: argparse.Namespace) -> dict:
    """The whole result."""
    config = TransformerConfig(
        vocab_size=options.vocab, embed_dim=options.d, num_layers=options.layers, num_heads=options.heads,
        num_kv_heads=options.kv, head_dim=options.head_dim, mlp_dim=options.ff,
    )  # fmt: skip
    model = make_transformer(config)
    params, rows_sharding = jax.jit(model.init)(jax.random.key(options.seed)), None
    if options.mesh:
        mesh = sharding.make_mesh(sharding.parse_mesh(options.mesh))
        rows_sharding = sharding.batch_sharding(mesh)
        params = jax.device_put(params, sharding.tree_shardings(params, mesh))
    rng = np.random.default_rng(options.seed)
    sampling = Sampling(temperature=options.temperature)
    work = Workload(
        prompts=rng.integers(0, options.vocab, (options.requests // options.group, options.plen)).astype(np.int32),
        max_tokens=heavy_tailed(options.requests, options.clen, options.seed),
        key=jax.random.key(options.seed),
        group_size=options.group,
        slots=options.slots,
        completion_length=options.clen,
        sampling=sampling,
    )
    sizes = [options.slots]
    while sizes[-1] % 2 == 0 and sizes[-1] > options.min_slots:
        sizes.append(sizes[-1] // 2)
    engine = Engine(
        model, slots=options.slots, sizes=tuple(sizes), prompt_length=options.plen, length=options.plen + options.clen,
        sampling=sampling, eos_ids=(), chunk=options.chunk, steps=options.steps, refill=options.refill,
        prefill_rows=options.prefill_rows, stored_prompts=max(8, options.prefill_rows), rows_sharding=rows_sharding,
    )  # fmt: skip
    tokens = int(work.max_tokens.sum())
    peers = [lockstep(model, params, work, rows_sharding), continuous(engine, params, work)]
    rows = race(peers, tokens, options.rounds)
    recompiled = engine.compile_count() - peers[1].details["programs"]
    return {
        "bench": "rollout",
        "flags": vars(options),
        "params_M": round(sum(x.size for x in jax.tree.leaves(params)) / 1e6, 3),
        "tokens": tokens,
        "longest": int(work.max_tokens.max()),
        "ended_by_a_quarter": round(float(np.mean(work.max_tokens <= options.clen // 4)), 3),
        "rows": rows,
        "ratio": round(rows[0]["seconds"] / rows[1]["seconds"], 3),
        "ratio_cpu": round(rows[0]["cpu_seconds"] / rows[1]["cpu_seconds"], 3),
        "recompiled": recompiled,
        "peers": peer_rollouts(options),
        **profile(engine, params, engine.prompt_length, options.prefill_rows, options.rounds),
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    options = parse(arguments)
    if options.devices > 1:
        jax.config.update("jax_num_cpu_devices", options.devices)
    print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
