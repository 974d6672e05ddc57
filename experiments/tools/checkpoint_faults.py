"""Damages the newest of two checkpoints in many ways and restores it: is a fault ever loaded without a word?

    python -m experiments.tools.checkpoint_faults --faults=700 --seed=0

A fault is one of: a flipped bit, a truncated file, a zeroed block, a deleted file, two files swapped. Restores are of
the whole checkpoint, of all of it in place, and of the params alone, in turn. Prints how many faults were harmless (the
newest checkpoint was read, rightly), fell back to the one before and said so, stopped with the folder's name, and were
silently wrong. Exits with 1 if one was silently wrong or stopped unclearly.
"""

import argparse
import collections
import contextlib
import io
import logging as builtin_logging
import pathlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from rl_jax.training import checkpoint

KINDS = ("bit", "truncate", "zero", "delete", "swap")
MODES = ("whole", "in place", "params")
HARMLESS, FELL_BACK, STOPPED = "harmless", "fell back and said so", "stopped clearly"
UNCLEAR, WRONG = "stopped unclearly", "silently wrong"
BEFORE, NEWEST = 2, 4
BLOCK = 64  # bytes at most that are zeroed
OPTIONS = dict(every=1, keep=2, keep_best=1, best_metric="score")


class Fault(NamedTuple):
    """What was done.

    Attributes:
      kind: of KINDS.
      what: in words, with the file.
    """

    kind: str
    what: str


def contents(step: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """(items, host, metrics) of a small run's step: float32, bfloat16, int32, a key; every step has its own."""
    keys = jax.random.split(jax.random.key(step), 3)
    params = {
        "w": jax.random.normal(keys[0], (48, 40)),
        "layers": [{"b": jax.random.normal(keys[1], (7,)).astype(jnp.bfloat16)}],
    }
    rest = {"mu": params["w"] * 0.1, "count": jnp.arange(step, step + 5), "rng": keys[2]}
    host = {"step": step, "done": False, "data": {"position": 16 * step, "order": [step, 3, 1]}}
    return {"params": params, "rest": rest}, host, {"score": float(step)}


def save(folder: pathlib.Path) -> None:
    """Writes the two checkpoints."""
    with checkpoint.Checkpointer(folder, **OPTIONS) as checkpoints:
        for step in (BEFORE, NEWEST):
            items, host, metrics = contents(step)
            checkpoints.save(step, items, host, metrics)


def damage(folder: pathlib.Path, draws: np.random.Generator) -> Fault:
    """Damages a file of the newest checkpoint (two, if they are swapped). Half of the files are drawn by their size."""
    step = folder / str(NEWEST)
    files = sorted(path for path in step.rglob("*") if path.is_file())
    sizes = np.array([path.stat().st_size for path in files], float)
    path = files[draws.choice(len(files), p=sizes / sizes.sum() if draws.random() < 0.5 else None)]
    kind, name = KINDS[draws.integers(len(KINDS))], path.relative_to(step)
    content = bytearray(path.read_bytes())
    if kind == "delete" or not content:
        path.unlink()
        return Fault("delete", f"{name} deleted")
    if kind == "swap":
        return _swap(folder, path, files, draws)
    at = int(draws.integers(len(content)))
    if kind == "bit":
        bit = int(draws.integers(8))
        content[at] ^= 1 << bit
        path.write_bytes(content)
        return Fault(kind, f"{name}: bit {bit} of byte {at} flipped")
    if kind == "truncate":
        path.write_bytes(content[:at])
        return Fault(kind, f"{name}: cut to {at} of {len(content)} bytes")
    content[at : at + BLOCK] = bytes(len(content[at : at + BLOCK]))
    path.write_bytes(content)
    return Fault(kind, f"{name}: bytes {at} to {min(at + BLOCK, len(content))} zeroed")


def _swap(folder: pathlib.Path, path: pathlib.Path, files: Sequence[pathlib.Path], draws) -> Fault:
    """Swaps a file with its namesake of the step before, if there is one and a coin says so, or with a neighbour."""
    other = folder / str(BEFORE) / path.relative_to(folder / str(NEWEST))
    if not other.is_file() or draws.random() < 0.5:
        other = files[draws.integers(len(files))]
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)
    return Fault("swap", f"{path.relative_to(folder)} and {other.relative_to(folder)} swapped")


def outcome(folder: pathlib.Path, mode: str) -> tuple[str, str]:
    """Restores what is in `folder`: (one of the outcomes above, what was said or found)."""
    said = io.StringIO()
    like = contents(0)[0]
    like = {"params": like["params"]} if mode == "params" else like
    with contextlib.redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with checkpoint.Checkpointer(folder, **OPTIONS) as checkpoints:
                items, host = checkpoints.restore(like, in_place=mode == "in place")
                best = checkpoints.best_step()
        except Exception as error:
            return (STOPPED if str(folder) in str(error) else UNCLEAR), f"{type(error).__name__}: {error}"
    step = host.get("step")
    if step not in (BEFORE, NEWEST):
        return WRONG, f"host {host}"
    expected, expected_host, _ = contents(step)
    expected = {name: expected[name] for name in items}
    if host != expected_host or checkpoint.checksum(items) != checkpoint.checksum(expected):
        return WRONG, f"the arrays or the host of step {step} are not those that were saved"
    if best != NEWEST and not any("not ranked" in str(warning.message) for warning in warned):
        return WRONG, f"step {best} passes for the best"
    if step == NEWEST:
        return HARMLESS, said.getvalue()
    return (FELL_BACK if "is damaged" in said.getvalue() else WRONG), said.getvalue()


def run(faults: int, seed: int, folder: pathlib.Path, say=lambda line: None) -> dict[str, collections.Counter]:
    """kind of fault -> how often each outcome came.

    Args:
      faults: how many.
      seed: of the faults.
      folder: to work in.
      say: is told each fault that was silently wrong or stopped unclearly.
    """
    draws, whole, broken = np.random.default_rng(seed), folder / "whole", folder / "broken"
    save(whole)
    result = {kind: collections.Counter() for kind in KINDS}
    for number in range(faults):
        shutil.copytree(whole, broken)
        fault = damage(broken, draws)
        found, said = outcome(broken, MODES[number % len(MODES)])
        result[fault.kind][found] += 1
        if found in (UNCLEAR, WRONG):
            say(f"fault {number} ({MODES[number % len(MODES)]}), {fault.what}: {found}: {said[:500]}")
        shutil.rmtree(broken)
    return result


def table(counts: dict[str, collections.Counter]) -> str:
    """The counts as a Markdown table, a row per kind of fault and one for all."""
    ends = (HARMLESS, FELL_BACK, STOPPED, UNCLEAR, WRONG)
    rows = counts | {"all": sum(counts.values(), collections.Counter())}
    lines = [f"| fault | {' | '.join(ends)} |", "|---" * (len(ends) + 1) + "|"]
    lines += [f"| {kind} | {' | '.join(str(count[end]) for end in ends)} |" for kind, count in rows.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=700, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    options = parser.parse_args(arguments)
    logging.set_verbosity(logging.ERROR)
    builtin_logging.getLogger("asyncio").setLevel(builtin_logging.CRITICAL)  # orbax leaves failed reads behind
    with tempfile.TemporaryDirectory(prefix="checkpoint-faults-") as folder:
        counts = run(options.faults, options.seed, pathlib.Path(folder), lambda line: print(line, flush=True))
    print(table(counts))
    return int(any(count[end] for count in counts.values() for end in (UNCLEAR, WRONG)))


if __name__ == "__main__":
    sys.exit(main())
