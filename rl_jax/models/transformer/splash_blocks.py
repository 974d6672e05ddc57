"""Block sizes of the TPU's splash kernel, from a table that `python -m experiments.tools.tune_blocks` writes.

    lookup("TPU v5 lite", head_dim=128, length=8192, dtype="bfloat16")

The kernel works on a block of queries and a block of keys at a time: larger ones are read less often and need more
on-chip memory, and a causal mask skips less. An entry of splash_blocks.json is for a kind of device, a head dimension,
a dtype and a range of row lengths, and says where its sizes are from and whether they were timed. Without an entry
every block is of `DEFAULT` tokens, which is also MaxText's default on every TPU.
"""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax

LANES = 128  # the kernel's tile size: rows, heads and blocks are multiples of it
FILE = pathlib.Path(__file__).with_name("splash_blocks.json")
KINDS = {"TPU v5e": "TPU v5 lite", "TPU v5p": "TPU v5", "TPU v6e": "TPU v6 lite"}  # libtpu has used either name


class Blocks(NamedTuple):
    """Tokens of each block, as jax.experimental.pallas.ops.tpu.splash_attention's BlockSizes names them.

    Attributes:
      q: queries, forward.
      kv: keys that are in on-chip memory, forward.
      kv_compute: keys that a product is with, of those; divides kv.
      q_dkv: queries, for the gradient of keys and values.
      kv_dkv: keys, for it.
      kv_dkv_compute: divides kv_dkv.
      q_dq: queries, for their gradient.
      kv_dq: keys, for it.
    """

    q: int
    kv: int
    kv_compute: int
    q_dkv: int
    kv_dkv: int
    kv_dkv_compute: int
    q_dq: int
    kv_dq: int


DEFAULT = Blocks(*(512,) * 8)
PARTS = {"kv_compute": "kv", "kv_dkv_compute": "kv_dkv"}  # a block that is a part of another one


class Entry(NamedTuple):
    """A line of the table.

    Attributes:
      device: jax.Device.device_kind.
      head_dim: filled up to a multiple of 128, as the kernel has it.
      dtype: of queries, keys and values.
      shortest: the shortest row that it is for, tokens.
      longest: the longest row, tokens; None is any.
      blocks: the sizes.
      source: where they are from.
      timed: whether they were timed by tune_blocks on such a device.
    """

    device: str
    head_dim: int
    dtype: str
    shortest: int
    longest: int | None
    blocks: Blocks
    source: str
    timed: bool

    def covers(self, length: int) -> bool:
        """Whether it is for rows of this length."""
        return self.shortest <= length and (self.longest is None or length <= self.longest)


@functools.cache
def table(path: pathlib.Path = FILE) -> tuple[Entry, ...]:
    """The entries of a table.

    Raises:
      ValueError: if the file is no table, a size is not a multiple of 128 or a part divides its block not, or two
        entries are for the same rows.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        entries = tuple(Entry(**row | {"blocks": Blocks(**row["blocks"])}) for row in rows)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is no table of block sizes: {error!r}") from error
    for i, entry in enumerate(entries):
        check(entry.blocks, queries=0, keys=0)
        for other in entries[:i]:
            same = other[:3] == entry[:3]
            if same and (entry.covers(other.shortest) or other.covers(entry.shortest)):
                raise ValueError(f"{path}: two entries are for {entry.device}, {entry.shortest} tokens")
    return entries


def lookup(device: str, *, head_dim: int, length: int, dtype: str, entries: Sequence[Entry] | None = None) -> Blocks:
    """The block sizes for rows of this length; DEFAULT if the table has none. `fit` makes them divide the row.

    Args:
      device: jax.Device.device_kind.
      head_dim: of the model; the kernel fills it up to a multiple of 128.
      length: tokens of a row.
      dtype: of queries, keys and values.
      entries: of `table`; None: of the package's own.
    """
    key = (KINDS.get(device, device), head_dim + -head_dim % LANES, dtype)
    for entry in table() if entries is None else entries:
        if entry[:3] == key and entry.covers(length):
            return entry.blocks
    return DEFAULT


def fit(blocks: Blocks, *, queries: int, keys: int) -> Blocks:
    """The sizes, each made the largest multiple of 128 that is no larger and divides what it is a block of.

    Args:
      blocks: sizes.
      queries: tokens of a row on one device, a multiple of 128.
      keys: tokens of a row, a multiple of 128.
    """
    found = {}
    for name, size in blocks._asdict().items():
        whole = found[PARTS[name]] if name in PARTS else queries if name.startswith("q") else keys
        found[name] = next(n for n in range(min(size, whole) // LANES * LANES, 0, -LANES) if whole % n == 0)
    return Blocks(**found)


def check(blocks: Blocks, *, queries: int, keys: int) -> None:
    """Checks sizes that somebody gave.

    Args:
      blocks: sizes.
      queries: tokens of a row on one device; 0 is any.
      keys: tokens of a row; 0 is any.

    Raises:
      ValueError: if a size is not a multiple of 128, or does not divide what it is a block of; names it.
    """
    for name, size in blocks._asdict().items():
        whole = getattr(blocks, PARTS[name]) if name in PARTS else queries if name.startswith("q") else keys
        if size < LANES or size % LANES:
            raise ValueError(f"block {name}={size} is not a multiple of {LANES}")
        if whole % size:
            raise ValueError(f"block {name}={size} does not divide the {whole} tokens that it is a block of")


def device_kind() -> str:
    """The kind of the present mesh's devices, which may be described only; without a mesh, of jax's first device."""
    described = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if described is None else described.device_kind
