"""Every policy loss with its gradient compared with the plain clipped surrogate in one run: time and temporary memory.

    python -m experiments.bench.losses                      # B=256, T=4096
    python -m experiments.bench.losses --rows=64 --only=gspo,cispo

A row is a surrogate or a KL estimator with its gradient, or a weight, which has no gradient and is computed once per
batch, whatever the number of epochs. "time" is the minimum over rounds in which the row takes turns with the clipped
surrogate (other work on the machine can only add time). "arrays" is the compiler's temporary memory in float32 arrays
[B, T]: a [B, T, T] would show as T of them.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_jax import token_weights
from rl_jax.core.binding import bind, public_functions, supply
from rl_jax.losses import aggregate, kl, policy

PLAIN = "clipped_surrogate"
# Coupled across the batch (a top-k, a quantile): up to twice the plain loss is allowed, otherwise 1.3 times.
COUPLED = {"high_entropy", "clip_cov", "top_covariance", "m2po"}
SPECS = {"gated": {"fn": "gated", "gate": "ppo_gate"}}  # arguments without a default


class Row(NamedTuple):
    """One line of the table.

    Attributes:
      kind: "surrogate", "kl" or "weight".
      name: of the function.
      seconds: of the row.
      plain_seconds: of the plain loss in the same rounds.
      arrays: temporaries, in [B, T] arrays.
    """

    kind: str
    name: str
    seconds: float
    plain_seconds: float
    arrays: float

    def ratio(self) -> float:
        """The row's time over the plain loss's."""
        return self.seconds / self.plain_seconds

    def limit(self) -> float:
        """The limit of the ratio."""
        return 2.0 if self.name in COUPLED else 1.3


def make_arrays(rows: int, length: int) -> dict[str, jax.Array]:
    """A ragged random batch: every array that a function can request by name, and the mask."""
    keys = jax.random.split(jax.random.key(0), 7)
    shape = (rows, length)
    log_probs = -jax.random.exponential(keys[0], shape)
    lengths = jax.random.randint(keys[1], (rows, 1), length // 4, length + 1)
    return {
        "log_probs": log_probs,
        "old_log_probs": log_probs + 0.2 * jax.random.normal(keys[2], shape),
        "behavior_log_probs": log_probs + 0.2 * jax.random.normal(keys[3], shape),
        "ref_log_probs": log_probs + 0.2 * jax.random.normal(keys[4], shape),
        "advantages": jnp.broadcast_to(jax.random.normal(keys[5], (rows, 1)), shape),
        "entropy": jax.random.exponential(keys[6], shape),
        "selected": log_probs < -3.0,
        "mask": jnp.arange(length)[None, :] < lengths,
    }


def losses() -> dict[tuple[str, str], Callable]:
    """(kind, name) -> a function of make_arrays' dict that returns the per-token loss or weight."""

    def surrogate(fn):
        def loss(arrays):
            names = ("log_probs", "old_log_probs", "advantages", "mask")
            return supply(fn, arrays)(*(arrays[name] for name in names)).loss

        return loss

    def estimator(fn):
        def loss(arrays):
            return supply(fn, arrays)(arrays["log_probs"], arrays["ref_log_probs"], arrays["mask"])

        return loss

    def weight(fn):
        def loss(arrays):
            return supply(fn, jax.lax.stop_gradient(arrays) | {"key": jax.random.key(0)})(arrays["mask"])

        return loss

    kinds = {"surrogate": (policy, surrogate), "kl": (kl, estimator), "weight": (token_weights, weight)}
    return {
        (kind, name): wrap(bind(SPECS.get(name, name), module))
        for kind, (module, wrap) in kinds.items()
        for name in public_functions(module)
    }


def compiled(loss: Callable, arrays: dict[str, jax.Array]):
    """Value and gradient with respect to the log-probs, compiled for these shapes."""

    def value(log_probs, rest):
        return aggregate.token_mean(loss(rest | {"log_probs": log_probs}), rest["mask"]).value()

    rest = {name: x for name, x in arrays.items() if name != "log_probs"}
    program = jax.jit(jax.value_and_grad(value)).lower(arrays["log_probs"], rest).compile()
    return program, (arrays["log_probs"], rest)


def seconds_of(program, arguments) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - start


def measure(arrays: dict[str, jax.Array], only: set[str], rounds: int) -> list[Row]:
    """The table's rows.

    Args:
      arrays: of make_arrays.
      only: names to measure; empty for all.
      rounds: calls of each program.
    """
    table = losses()
    plain, arguments = compiled(table["surrogate", PLAIN], arrays)
    array_bytes = arrays["log_probs"].size * 4
    result = []
    for (kind, name), loss in table.items():
        if only and name not in only:
            continue
        program, _ = compiled(loss, arrays)
        for warm in (plain, program):
            seconds_of(warm, arguments)
        turns = [(seconds_of(plain, arguments), seconds_of(program, arguments)) for _ in range(rounds)]
        plain_seconds, seconds = (min(column) for column in zip(*turns, strict=True))
        temporary = program.memory_analysis().temp_size_in_bytes / array_bytes
        result.append(Row(kind, name, seconds, plain_seconds, temporary))
    return result


def table(rows: list[Row]) -> str:
    """The rows as Markdown; the last column says whether the row is within its limit."""
    lines = ["| kind | name | time / plain | limit | temporaries, [B, T] arrays | |", "|---|---|---|---|---|---|"]
    for row in rows:
        verdict = "ok" if row.ratio() <= row.limit() else "slow"
        lines.append(f"| {row.kind} | {row.name} | {row.ratio():.2f} | {row.limit()} | {row.arrays:.1f} | {verdict} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="names, separated by commas")
    options = parser.parse_args(arguments)
    arrays = make_arrays(options.rows, options.length)
    only = set(filter(None, options.only.split(",")))
    print(table(measure(arrays, only, options.rounds)))


if __name__ == "__main__":
    main()
