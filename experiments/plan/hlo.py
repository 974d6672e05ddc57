"""The collectives of a compiled program, read from its HLO text: how many bytes over which axes of the mesh.

XLA reports them nowhere else. A loop's body occurs once in the text, so its collectives are multiplied by the number of
iterations: the known_trip_count of the text, or else the constant in its condition. All branches of a conditional
count. A collective that XLA splits into a chain of a start, steps and a done occurs in each of them under the chain's
id: it is counted once per loop.

The TPU compiler writes some reduce-scatters as a fusion of an all-reduce and a slice, named all-reduce-scatter: its
emitter, named in the same text, is a reduce-scatter's. (Over many chips at once it has none: an explicit
jax.lax.psum_scatter over all of v5e:8x8 is an all-reduce, and then a slice.)
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_WIDTHS |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_OPERATION = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|called_computations|true_computation|false_computation)=\{?%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_LOOP = re.compile(r" while\(.*?condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_TRIPS = re.compile(r"\bknown_trip_count\W+n\W+(\d+)")
_END = re.compile(r"\}(, execution_thread=\S+)?$")
_INSTRUCTION = re.compile(r"  (ROOT )?%?[\w.\-]+ = ")
# An asynchronous collective is a pair of operations, or a fusion in pieces that are chained. An `async_collective_name`
# is the name of a start that XLA took back: that collective is synchronous.
_ASYNCHRONOUS = re.compile(r"frontend_attributes=\{[^}]*\bchain_id=\"?(\w+)")
_SCATTER = "all-reduce-scatter"  # a computation's name


class Collective(NamedTuple):
    """A collective of a program.

    Attributes:
      kind: one of KINDS.
      axes: of the mesh that it runs over.
      bytes: sent by one chip, over all `times` together.
      times: how often it runs.
      synchronous: whether the chip does nothing else meanwhile.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: float
    times: int
    synchronous: bool = True


def collectives(text: str, mesh: Mapping[str, int]) -> list[Collective]:
    """The collectives of an SPMD program.

    Args:
      text: the HLO.
      mesh: axis -> size, in the order of the mesh; its flat order numbers the devices.

    Raises:
      ValueError: if part of the text cannot be read, so that its collectives would go uncounted.
    """
    computations, entry = _computations(text)
    result: dict[tuple, Collective] = {}

    def visit(name: str, turns: int, loop: str, seen: frozenset):
        for line in computations.get(name, ()):
            operation = _OPERATION.search(line)
            if operation:
                _add(result, line, operation, turns, loop, mesh, scattered=name.startswith(_SCATTER))
            looped = _LOOP.search(line)
            if looped:
                condition, body = looped.groups()
                for part, missing in (("body", body), ("condition", condition)):
                    if missing not in computations:
                        raise ValueError(
                            f"the HLO has no computation {missing!r}, which is the {part} of a loop: {line[:200]}"
                        )
                visit(body, turns * _turns(line, computations[condition]), body, seen)
                continue
            branches = re.findall(r"[\w.\-]+", " ".join(_BRANCHES.findall(line)))
            for called in _CALLED.findall(line) + branches:
                if called not in seen:
                    visit(called, turns, loop, seen | {called})

    visit(entry, 1, entry, frozenset({entry}))
    return list(result.values())


def peak_bytes(memory: Any, platform: str) -> int:
    """The most bytes that a program holds at once, its arguments included.

    On a TPU temp_size_in_bytes is too large: 10.8 GiB for an 8B step whose allocations end at 7.6. The compiler's own
    peak is what decides whether it refuses a program. Elsewhere temporaries are one allocation of that size.

    Args:
      memory: of jax.stages.Compiled.memory_analysis.
      platform: of the devices.
    """
    if platform == "tpu" and memory.peak_memory_in_bytes:
        return memory.peak_memory_in_bytes
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + fresh + memory.temp_size_in_bytes


def by_axes(sent: list[Collective]) -> dict[str, float]:
    """Bytes that a chip sends, by "kind over axes"; largest first."""
    totals: dict[str, float] = {}
    for one in sent:
        name = f"{one.kind} over {'+'.join(one.axes) or 'nothing'}"
        totals[name] = totals.get(name, 0.0) + one.bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """({name: its instructions, one a line}, the entry's name).

    A kernel's metadata holds newlines, so an instruction can go on in lines that begin anyhow, with "}}" for example: a
    computation ends at a line that is nothing but its brace.
    """
    result, entry, current = {}, "", None
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$", line)
        if head:
            current = result.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif _END.match(line):
            current = None
        elif current is None:
            if _OPERATION.search(line):
                raise ValueError(f"line {number} of the HLO is a collective outside of every computation: {line[:200]}")
        elif _INSTRUCTION.match(line) or not current:
            current.append(line)
        else:
            current[-1] += line
    if current is not None:
        raise ValueError(f"the HLO ends inside the computation {list(result)[-1]!r}: it was cut off")
    if not entry:
        raise ValueError("the HLO has no ENTRY computation: it was cut off, or is no HLO")
    return result, entry


def _turns(loop: str, condition: list[str]) -> int:
    """Iterations of a loop; 1 if the number depends on data. loop: its line."""
    known = _TRIPS.search(loop)
    if known:
        return int(known[1])
    constants = [int(n) for line in condition for n in re.findall(r"= [su]32\[\]\S* constant\((\d+)\)", line)]
    return max(constants, default=1) or 1  # one that counts down compares with 0


def _results(shapes: str) -> str:
    """The shapes of what a start makes, of its shape: (operand, result), each a tuple if there are several."""
    depth, places = 0, []
    for place, letter in enumerate(shapes):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 1:
            places.append(place)
    return shapes[places[0] : places[1] if len(places) > 1 else None] if places else shapes


def _add(
    result: dict, line: str, operation: re.Match, turns: int, loop: str, mesh: Mapping[str, int], *, scattered: bool
) -> None:
    """Adds the collective of a line. scattered: whether an all-reduce is the first half of a reduce-scatter."""
    shapes, kind, start = operation.groups()
    if start and kind in ("all-gather", "reduce-scatter"):  # an all-reduce's start has the shape of its result
        shapes = _results(shapes)
    sizes = [_num_bytes(*shape) for shape in _SHAPE.findall(shapes)]
    size = sum(sizes)
    if start and kind == "collective-permute":  # (what is sent, what comes, two counters), of several arrays
        size = sum(size for size in sizes if size > 4) / 2
    groups = device_groups(line, math.prod(mesh.values()))
    members = len(groups[0]) if groups else 1
    if members == 1:  # a device alone sends nothing
        return
    if scattered and kind == "all-reduce":
        kind, size = "reduce-scatter", size / members
    sent = {
        "all-gather": size * (members - 1) / members,
        "all-reduce": 2 * size * (members - 1) / members,
        "reduce-scatter": size * (members - 1),  # the text has the shape of the part that is left
        "all-to-all": size * (members - 1) / members,
        "collective-permute": size,
    }[kind]
    chained = _ASYNCHRONOUS.search(line)
    key = (loop, kind, chained[1] if chained else line)  # not the channel: jax gives all of a shard_map's one
    synchronous = not (start or chained)
    result[key] = Collective(kind, _axes(groups, mesh), sent * turns, turns, synchronous)


def _num_bytes(kind: str, shape: str) -> int:
    return _WIDTHS.get(kind, 4) * math.prod(int(n) for n in shape.split(",") if n)


def device_groups(line: str, num_devices: int) -> list[list[int]]:
    """The groups of devices that communicate, from any of HLO's notations."""
    named = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^)]*)\))? \{([^}]*)\}", line)
    if named:
        sizes = {name: int(n) for name, n in re.findall(r"'(\w+)'=(\d+)", named[1])}
        ids = np.arange(num_devices).reshape(tuple(sizes.values()))
        inside = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", named[3])]
        outside = [i for i in range(len(sizes)) if i not in inside]
        members = math.prod(ids.shape[i] for i in inside)
        return ids.transpose(outside + inside).reshape(-1, members).tolist()
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if iota:
        ids = np.arange(num_devices).reshape([int(n) for n in iota[3].split(",")])
        if iota[4]:
            ids = ids.transpose([int(n) for n in iota[4].split(",")])
        return ids.reshape(int(iota[1]), int(iota[2])).tolist()
    listed = re.search(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}", line)
    if listed:
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])]
    return [list(range(num_devices))]


def _axes(groups: list[list[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which the members of a group differ."""
    differ: set[str] = set()
    for group in groups:
        places = np.array(np.unravel_index(np.array(group), tuple(mesh.values())))
        differ |= {axis for axis, row in zip(mesh, places, strict=True) if np.ptp(row)}
    return tuple(axis for axis in mesh if axis in differ)
