"""The peaks of the chips that can be planned for, with the source of each figure."""

import math
from typing import NamedTuple


class Chip(NamedTuple):
    """One chip's limits.

    Attributes:
      flops: bfloat16 FLOP/s of the matrix units.
      bytes: of HBM.
      bandwidth: HBM bytes/s.
      links: bytes/s sent to other chips of the slice, over all links together.
      source: the page with the figures.
      network: bytes/s sent to other slices, a chip's share of its host's; inf where the page does not say.
      host: chips that one host can have.
    """

    flops: float
    bytes: float
    bandwidth: float
    links: float
    source: str
    network: float = math.inf
    host: int = 4


_DOCS = "cloud.google.com/tpu/docs"
# The docs give interconnect in Gbit/s per chip, one way: v5e's 1,600 are half of its "bidirectional 400 GBps". Of the
# data center's network they give v5p's 50 Gbit/s per chip, and 6.4 and 25.6 Tbit/s per pod of 256 chips of v5e and v6e.
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1228e9, 2400e9 / 8, f"{_DOCS}/v4"),
    "v5e": Chip(197e12, 16 * 2**30, 819e9, 1600e9 / 8, f"{_DOCS}/v5e", 25e9 / 8, 8),
    "v5p": Chip(459e12, 95 * 2**30, 2765e9, 4800e9 / 8, f"{_DOCS}/v5p", 50e9 / 8),
    "v6e": Chip(918e12, 32 * 2**30, 1640e9, 3584e9 / 8, f"{_DOCS}/v6e", 100e9 / 8, 8),
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology's name, "v5e:4x4".

    Raises:
      ValueError: if the chip is unknown; the message lists the known ones.
    """
    name = topology.partition(":")[0]
    if name not in CHIPS:
        raise ValueError(f"topology {topology!r}: {name!r} is none of {', '.join(CHIPS)}")
    return CHIPS[name]


def part_of(topology: str, count: int) -> str:
    """The slice of `count` chips that is left if a slice is halved, each time where it is longest.

        "v5e:8x8", 32 -> "v5e:4x8"

    Raises:
      ValueError: if halving does not give that many.
    """
    chip, _, shape = topology.partition(":")
    sizes = sorted(int(size) for size in shape.split("x"))
    while math.prod(sizes) > count and sizes[-1] % 2 == 0:
        sizes = sorted([*sizes[:-1], sizes[-1] // 2])
    if math.prod(sizes) != count:
        raise ValueError(f"{topology} cannot be halved into a part of {count} chips")
    return f"{chip}:{'x'.join(map(str, sizes[::-1] if 1 in sizes else sizes))}"  # the compiler knows 2x2x1, no 1x2x2
