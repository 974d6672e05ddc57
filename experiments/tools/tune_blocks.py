"""Times the splash kernel at a grid of block sizes, and writes the table from which a model takes them.

    python -m experiments.tools.tune_blocks --to=blocks.jsonl                     # on a TPU; goes on where it stopped
    python -m experiments.tools.tune_blocks --to=blocks.jsonl --write             # the table's entries, of that file
    python -m experiments.tools.tune_blocks --to=sizes.jsonl --compile=v5e:2x2    # which sizes compile; needs no TPU
    python -m experiments.tools.tune_blocks --check=v5e:2x2,v5p:2x2x1,v6e:2x2     # whether the table's entries do
    python -m experiments.tools.tune_blocks --to=/tmp/toy.jsonl --shapes=toy      # a laptop: seconds, interpreted

Causal rows, bfloat16. The kernel's three passes have blocks of their own, so each is tuned by itself beside the default
of the others: the forward, the gradient of keys and values, that of queries (the last two as forward and backward
together). Then the three best are timed together beside the default, and only if they are faster do they become an
entry. Every point is a line of the file as soon as it is measured, with "error" where it does not fit (as
experiments.bench.device does). --compile and --check use the TPU compiler (.[tpu]), which says what fits into on-chip
memory and not what is fast.
"""

import argparse
import functools
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.device import Point, lines, measure, seconds_of
from rl_jax.core.axis_table import AXES
from rl_jax.models.transformer import splash_blocks
from rl_jax.models.transformer.splash import splash_attend
from rl_jax.models.transformer.splash_blocks import DEFAULT, LANES, Blocks, Entry, check, fit
from rl_jax.runs.logging import write_atomically


class Shape(NamedTuple):
    """Rows of one layer's attention on one device.

    Attributes:
      rows: number of rows.
      heads: of queries.
      kv_heads: of keys.
      head_dim: of each.
      lengths: of the rows, tokens.
      sizes: of a block, tokens.
      dtype: of queries, keys and values.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"


SHAPES = {
    "128": Shape(2, 8, 2, 128, (2048, 4096, 8192, 16384), (256, 512, 1024, 2048)),
    "256": Shape(2, 4, 1, 256, (2048, 4096, 8192), (256, 512, 1024, 2048)),
    "toy": Shape(1, 1, 1, 128, (128,), (128,), "float32"),
}
PASSES = {"forward": ("q", "kv", "kv_compute"), "dkv": ("q_dkv", "kv_dkv", "kv_dkv_compute"), "dq": ("q_dq", "kv_dq")}
NAMES = ("point", "head_dim", "length", "dtype", *Blocks._fields)
REPEATS = 5


def sizes_of(shape: Shape, length: int, name: str) -> list[Blocks]:
    """The default for rows of a length, with every valid choice of one pass's sizes in its place.

    Args:
      shape: with the sizes to choose from.
      length: tokens of a row.
      name: of PASSES.
    """
    start, found = fit(DEFAULT, queries=length, keys=length), []
    for chosen in itertools.product(shape.sizes, repeat=len(PASSES[name])):
        blocks = start._replace(**dict(zip(PASSES[name], chosen, strict=True)))
        try:
            check(blocks, queries=length, keys=length)
        except ValueError:
            continue
        found.append(blocks)
    return found


def points(shapes: list[Shape], file: pathlib.Path, device: str, run) -> Iterator[Point]:
    """The points: each pass's sizes, and then the best of each together beside the default.

    Args:
      shapes: to measure.
      file: of the points, in which the best are looked up.
      device: its kind.
      run: (shape, length, blocks, name of the pass or "whole") -> figures.
    """
    for shape in shapes:
        for length in shape.lengths:
            for name in PASSES:
                for blocks in sizes_of(shape, length, name):
                    yield _point(name, shape, length, blocks, run)
            default = fit(DEFAULT, queries=length, keys=length)
            yield _point("whole", shape, length, default, run)
            best = chosen(lines(file), device, shape.head_dim, length, shape.dtype)
            if best not in (None, default):
                yield _point("whole", shape, length, best, run)


def _point(name: str, shape: Shape, length: int, blocks: Blocks, run) -> Point:
    key = {"point": name, "head_dim": shape.head_dim, "length": length, "dtype": shape.dtype, **blocks._asdict()}
    return Point(key, lambda rates: run(shape, length, blocks, name))


def chosen(rows: list[dict[str, Any]], device: str, head_dim: int, length: int, dtype: str) -> Blocks | None:
    """The fastest sizes of each pass; None if a pass has no point that was timed.

    Args:
      rows: lines of a file of points.
      device: the kind of device.
      head_dim: of the points.
      length: of their rows.
      dtype: of theirs.
    """
    found: dict[str, int] = {}
    for name, fields in PASSES.items():
        timed = "forward_s" if name == "forward" else "step_s"
        here = [row for row in rows if _is_of(row, name, device, head_dim, length, dtype) and timed in row]
        if not here:
            return None
        best = min(here, key=lambda row, timed=timed: row[timed])
        found |= {field: best[field] for field in fields}
    return Blocks(**found)


def _is_of(row: dict[str, Any], name: str, device: str, head_dim: int, length: int, dtype: str) -> bool:
    wanted = {"point": name, "device": device, "head_dim": head_dim, "length": length, "dtype": dtype}
    return all(row.get(field) == value for field, value in wanted.items())


# --- What is done at a point -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _calls(shape: Shape, blocks: Blocks | None, *, interpret: bool):
    """(forward, forward and backward) of (q, k, v, segment ids)."""
    attend = functools.partial(splash_attend, scale=shape.head_dim**-0.5, blocks=blocks, interpret=interpret)

    def total(q, k, v, ids):
        return jnp.sum(attend(q, k, v, ids).astype(jnp.float32))

    return jax.jit(attend), jax.jit(jax.value_and_grad(total, (0, 1, 2)))


def _shapes(shape: Shape, length: int) -> list[tuple[tuple[int, ...], str]]:
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    arrays = [((shape.rows, length, count, shape.head_dim), shape.dtype) for count in heads]
    return [*arrays, ((shape.rows, length), "int32")]


def timed(shape: Shape, length: int, blocks: Blocks, name: str) -> dict[str, float]:
    """The median seconds of a forward (`forward_s`), and of a forward and a backward (`step_s`) if the pass has one."""
    rng = np.random.default_rng(0)
    *arrays, (ids, kind) = _shapes(shape, length)
    values = [jax.device_put(rng.normal(size=size).astype(jnp.dtype(dtype))) for size, dtype in arrays]
    values.append(jnp.ones(ids, kind))
    forward, both = _calls(shape, blocks, interpret=jax.default_backend() != "tpu")
    found = {}
    if name in ("forward", "whole"):
        found["forward_s"] = seconds_of(lambda: forward(*values), REPEATS)
    if name != "forward":
        found["step_s"] = seconds_of(lambda: both(*values), REPEATS)
    return found


def compiled(device, shape: Shape, length: int, blocks: Blocks | None, name: str = "whole") -> dict[str, float]:
    """Compiles a forward and a backward for a described device; raises if that fails. blocks: None is the table's."""
    mesh = jax.sharding.Mesh(np.array([device]).reshape((1,) * len(AXES)), AXES)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(size, dtype, sharding=whole) for size, dtype in _shapes(shape, length)]
    forward, both = _calls(shape, blocks, interpret=False)
    with jax.set_mesh(mesh):
        call = forward if name == "forward" else both
        memory = call.lower(*arguments).compile().memory_analysis()
    return {"temporary_bytes": float(memory.temp_size_in_bytes)}


def described(topology: str):
    """The first device of a slice that is described. Raises RuntimeError without the TPU compiler."""
    jax.config.update("jax_platforms", "cpu")  # no TPU is searched for
    from experiments.plan.cli import described_devices  # it sets what libtpu reads, and is slow to import

    return described_devices(topology)[0]


def failures(device) -> tuple[int, list[str]]:
    """(entries of the table for a described device, what does not compile of them, one line each).

    An entry is compiled for its shortest row and, if it has one, for its longest.
    """
    kind = splash_blocks.KINDS.get(device.device_kind, device.device_kind)
    entries, wrong = [entry for entry in splash_blocks.table() if entry.device == kind], []
    for entry in entries:
        for length in sorted({entry.shortest, (entry.longest or entry.shortest) // LANES * LANES}):
            shape = Shape(1, 2, 1, entry.head_dim, (length,), (), entry.dtype)
            try:
                compiled(device, shape, length, None)
            except Exception as error:  # noqa: BLE001 - the compiler's own kinds of error; the next entry
                wrong.append(
                    f"{kind}, head_dim {entry.head_dim}, {length} tokens: {' '.join(str(error).split())[:300]}"
                )
    return len(entries), wrong


# --- The table -------------------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """The best sizes beside the default, timed whole at one length.

    Attributes:
      key: (device, head dimension, dtype) as an Entry has them.
      length: of the rows, tokens.
      following: the next length that was measured; None for the last one.
      best: the sizes.
      gain: how many times as fast as the default; 0 if they do not fit, 1 if they are the default.
    """

    key: tuple[str, int, str]
    length: int
    following: int | None
    best: Blocks
    gain: float


def races(rows: list[dict[str, Any]]) -> list[Race]:
    """What a file of points decides: a race for each length at which both the best sizes and the default were tried.

    Args:
      rows: its lines.
    """
    whole = [row for row in rows if row.get("point") == "whole" and ("step_s" in row or "error" in row)]
    found = []
    for device, head_dim, dtype in sorted({(row["device"], row["head_dim"], row["dtype"]) for row in whole}):
        here = [row for row in whole if (row["device"], row["head_dim"], row["dtype"]) == (device, head_dim, dtype)]
        lengths = sorted({row["length"] for row in here})
        key = (splash_blocks.KINDS.get(device, device), head_dim + -head_dim % LANES, dtype)
        for length, following in itertools.zip_longest(lengths, lengths[1:]):
            step_s = {_blocks(row): row.get("step_s", math.inf) for row in here if row["length"] == length}
            best = chosen(rows, device, head_dim, length, dtype)
            default = fit(DEFAULT, queries=length, keys=length)
            if best in step_s and step_s.get(default, math.inf) < math.inf:
                found.append(Race(key, length, following, best, step_s[default] / step_s[best]))
    return found


def entries_of(decided: list[Race], source: str) -> list[Entry]:
    """The table's entries: for each length whose best sizes beat the default.

    An entry is for rows from its length up to the next one that was measured, the last one for all longer rows.

    Args:
      decided: as of `races`.
      source: what the entries say of where they are from.
    """
    found = []
    for race in decided:
        if race.gain <= 1.0:
            continue
        end = None if race.following is None else race.following - 1
        said = f"{source}: {race.gain:.2f} times as fast as {DEFAULT.q} at {race.length}"
        found.append(Entry(*race.key, race.length, end, race.best, said, True))
    return found


def _blocks(row: dict[str, Any]) -> Blocks:
    return Blocks(*(row[name] for name in Blocks._fields))


def merged(old: list[Entry], new: list[Entry], decided: list[Race]) -> list[Entry]:
    """The new entries, and the old ones that nothing was measured against.

    An old entry goes if there is a new one of its device, head dimension and dtype, or if the default won a race at a
    length that it is for.

    Args:
      old: of the table.
      new: as of `entries_of`.
      decided: as of `races`, of which the new ones are.
    """
    won, lost = {entry[:3] for entry in new}, [race for race in decided if race.gain <= 1.0]
    beaten = lambda entry: any(race.key == entry[:3] and entry.covers(race.length) for race in lost)  # noqa: E731
    kept = [entry for entry in old if entry[:3] not in won and not beaten(entry)]
    return sorted([*kept, *new], key=lambda entry: entry[:4])


def write(entries: list[Entry], path: pathlib.Path) -> None:
    """Writes a table."""
    rows = [entry._asdict() | {"blocks": entry.blocks._asdict()} for entry in entries]
    write_atomically(path, (json.dumps(rows, indent=1) + "\n").encode())
    splash_blocks.table.cache_clear()
    splash_blocks.table(path)  # refuses what it would refuse later


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=pathlib.Path, help="JSON lines, one per point")
    parser.add_argument("--shapes", default="128", help=f"of {', '.join(SHAPES)}: head dimensions")
    parser.add_argument("--seconds", type=float, default=1e9, help="no point begins after them")
    parser.add_argument("--write", action="store_true", help="only write the entries of the file into the table")
    parser.add_argument("--table", type=pathlib.Path, default=splash_blocks.FILE)
    parser.add_argument(
        "--compile", metavar="TOPOLOGY", help="compile the points for this slice instead of timing them"
    )
    parser.add_argument("--check", metavar="TOPOLOGIES", help="only compile the table's entries for these slices")
    options = parser.parse_args(arguments)
    if options.check:
        sys.exit(_checked(options.check.split(",")))
    names = options.shapes.split(",")
    if unknown := sorted(set(names) - set(SHAPES)):
        parser.error(f"--shapes={options.shapes}: {', '.join(unknown)} is none of {', '.join(SHAPES)}")
    if options.to is None:
        parser.error("--to=FILE is missing: where the points go")
    if options.write:
        _written(options.to, options.table)
        return
    shapes = [SHAPES[name] for name in names]
    if options.compile:
        device = described(options.compile)
        kind, run = device.device_kind, functools.partial(compiled, device)
    else:
        kind, run = jax.devices()[0].device_kind, timed
        if jax.default_backend() != "tpu" and names != ["toy"]:
            parser.error("there is no TPU here: --shapes=toy tries the script, --compile=v5e:2x2 compiles the points")
    todo = points(shapes, options.to, kind, run)
    measure(options.to, todo, {}, options.seconds, names=NAMES, device=kind)


def _written(file: pathlib.Path, path: pathlib.Path) -> None:
    """Writes the entries of a file of points into a table, and prints what changed."""
    decided, old = races(lines(file)), list(splash_blocks.table(path))
    new = entries_of(decided, f"experiments.tools.tune_blocks, {file.name}")
    entries = merged(old, new, decided)
    write(entries, path)
    gone = len(old) + len(new) - len(entries)
    print(f"{len(new)} entries of {file} are in {path}; {gone} of before are not: measured again")


def _checked(topologies: list[str]) -> int:
    """Prints what compiles. Returns the exit status."""
    status = 0
    for topology in topologies:
        count, wrong = failures(described(topology))
        print(f"{topology}: {count - len(wrong)} of {count} entries compile", *wrong, sep="\n  ")
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    main()
