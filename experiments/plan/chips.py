"""The peaks of the chips that can be planned for, with the source of each figure."""

from typing import NamedTuple


class Chip(NamedTuple):
    """One chip's limits.

    Attributes:
      flops: bfloat16 FLOP/s of the matrix units.
      bytes: of HBM.
      bandwidth: HBM bytes/s.
      links: bytes/s sent to other chips of the slice, over all links together.
      source: the page with the figures.
    """

    flops: float
    bytes: float
    bandwidth: float
    links: float
    source: str


_DOCS = "cloud.google.com/tpu/docs"
# The docs give interconnect in Gbit/s per chip, one way: v5e's 1,600 are half of its "bidirectional 400 GBps".
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1228e9, 2400e9 / 8, f"{_DOCS}/v4"),
    "v5e": Chip(197e12, 16 * 2**30, 819e9, 1600e9 / 8, f"{_DOCS}/v5e"),
    "v5p": Chip(459e12, 95 * 2**30, 2765e9, 4800e9 / 8, f"{_DOCS}/v5p"),
    "v6e": Chip(918e12, 32 * 2**30, 1640e9, 3584e9 / 8, f"{_DOCS}/v6e"),
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
