"""Weak scaling over real processes: the time of a GRPO update at a constant number of rows per process. One JSON line.

    python -m experiments.bench.processes --counts=1,2

Each process has one core and one device, and all processes share one batch. A second process adds one sum of the
gradients over loopback (gloo) per update. A ratio of 1 is perfect scaling. The counts take turns, --rounds times, and
`step_s` is the minimum of the rounds' medians, since other work on the machine can only add time.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.parts import processes
from rl_jax import grpo
from rl_jax.core.types import PolicyBatch, TokenBatch
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.training import distributed, sharding
from rl_jax.training.scoring import make_score
from rl_jax.training.step import init_state, make_train_step

MODEL = dict(vocab_size=512, embed_dim=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, mlp_dim=256)
PROMPT, LENGTH = 16, 48
LIMIT_S = 300.0


def own_rows(rows: int, process: int) -> PolicyBatch:
    """A process's part of a batch: random tokens, random advantages."""
    rng = np.random.default_rng(process)
    shape = (rows, PROMPT + LENGTH)
    tokens = rng.integers(0, MODEL["vocab_size"], shape, dtype=np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    log_probs = np.full((rows, LENGTH), -np.log(MODEL["vocab_size"]), np.float32)
    advantages = np.broadcast_to(rng.standard_normal((rows, 1), np.float32), log_probs.shape)
    return PolicyBatch(
        batch=TokenBatch(tokens, positions, np.ones(shape, np.int32)),
        completion_mask=np.ones((rows, LENGTH), bool),
        advantages=advantages,
        old_log_probs=None,
        behavior_log_probs=log_probs,
        ref_log_probs=log_probs,
    )


def time_updates(rows: int, steps: int) -> float:
    """Median seconds of an update; run by every process of a measurement."""
    mesh = sharding.make_mesh(sharding.parse_mesh(f"data:{jax.device_count()}"))
    model, optimizer = make_transformer(TransformerConfig(**MODEL)), optax.adamw(1e-4)
    score = make_score(model, completion_length=LENGTH)
    everywhere = sharding.replicated(mesh)

    def loss_fn(params, batch):
        return grpo.loss(score(params, batch.batch), batch, grpo.Objective())

    def start():
        return init_state(model.init(jax.random.key(0)), optimizer, jax.random.key(1))

    state = jax.jit(start, out_shardings=everywhere)()
    step = jax.jit(
        make_train_step(loss_fn, optimizer),
        donate_argnums=0,
        in_shardings=(everywhere, sharding.batch_sharding(mesh)),
        out_shardings=everywhere,
    )
    batch = processes.own_to_mesh(mesh, own_rows(rows, jax.process_index()))
    seconds = []
    for _ in range(steps + 2):  # the first two compile and connect
        begin = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - begin)
    assert jnp.isfinite(metrics["loss"])
    return statistics.median(seconds[2:])


def measure(count: int, rows: int, steps: int) -> float:
    """Seconds of an update of `count` processes with `rows` rows each.

    Raises:
      RuntimeError: if a process fails; the message has its log.
    """
    command = [sys.executable, "-m", "experiments.bench.processes", "--child", f"--rows={rows}", f"--steps={steps}"]
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder) / f"log_{i}.txt" for i in range(count)]
        started = processes.start_locally(command, count, logs)
        try:
            statuses = [process.wait(LIMIT_S) for process in started]
        finally:
            for process in started:
                process.kill()
        if any(statuses):
            raise RuntimeError(f"exit statuses {statuses}; the first process printed:\n{logs[0].read_text()[-3000:]}")
        return json.loads(logs[0].read_text().strip().splitlines()[-1])["step_s"]


def measure_processes(counts=(1, 2), *, rows: int = 16, steps: int = 20, rounds: int = 3) -> list[dict]:
    """Measures each count.

    Args:
      counts: numbers of processes.
      rows: per process.
      steps: timed updates.
      rounds: turns of each count.

    Returns:
      One dict per count: processes, rows (of all processes), step_s, and ratio (step_s over that of the first count).
    """
    result = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            result[count].append(measure(count, rows, steps))
    best = {count: min(seconds) for count, seconds in result.items()}
    return [
        {"processes": count, "rows": count * rows, "step_s": seconds, "ratio": seconds / best[counts[0]]}
        for count, seconds in best.items()
    ]


def _child(options) -> None:
    if hasattr(os, "sched_setaffinity"):  # one core each: a single process must not use the second one's core
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[options.process_id % len(cores)]})
    if options.num_processes > 1:
        distributed.start(options.coordinator, options.num_processes, options.process_id)
    jax.config.update("jax_num_cpu_devices", 1)
    seconds = time_updates(options.rows, options.steps)
    print(json.dumps({"step_s": seconds}), flush=True)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="1,2", help="numbers of processes")
    parser.add_argument("--rows", type=int, default=16, help="rows per process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    for name, value in (("num_processes", 1), ("process_id", 0)):
        parser.add_argument(f"--{name}", type=int, default=value, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return _child(options)
    counts = [int(count) for count in options.counts.split(",")]
    lines = measure_processes(counts, rows=options.rows, steps=options.steps, rounds=options.rounds)
    for line in lines:
        print("{processes} processes, {rows} rows: {step_s:.4f} s per update, {ratio:.2f} x one process".format(**line))
    print(json.dumps({"bench": "processes", "options": vars(options), "lines": lines}))


if __name__ == "__main__":
    main()
