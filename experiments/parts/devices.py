"""The devices of a run: whether those that were asked for are there, and what they are, in words."""

import collections
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import jax

EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # platform -> our extra with its jax


def check(platforms: str | None = None, find: Callable[[], Any] = jax.devices) -> None:
    """Checks that the devices asked for (JAX_PLATFORMS) are there. On a CPU it leaves jax unstarted.

    Args:
      platforms: as in JAX_PLATFORMS, "cuda"; None: jax's own setting.
      find: starts jax, and raises if there are no such devices.

    Raises:
      ValueError: if they are not; says what to do.
    """
    asked = jax.config.jax_platforms if platforms is None else platforms
    if not asked or asked == "cpu":  # simulated devices are set before jax starts
        return
    try:
        find()
    except Exception as error:  # jax's own: RuntimeError, AssertionError
        reason = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        extra = next((EXTRAS[name] for name in asked.split(",") if name in EXTRAS), "")
        install = f", or install jax for it: pip install -e '.[{extra}]'" if extra else ""
        raise ValueError(
            f"JAX_PLATFORMS={asked}: jax cannot start on such a device here ({reason:.160}). Unset JAX_PLATFORMS to "
            f"use what is here, set JAX_PLATFORMS=cpu{install}"
        ) from None


def describe(devices: Iterable[jax.Device]) -> str:
    """Kind, number and memory of some devices: "8 x NVIDIA H100 80GB HBM3 (gpu), 79.1 GiB each"."""
    devices = list(devices)
    kinds = collections.Counter(_kind(device) for device in devices)
    parts = [f"{count} x {kind}" for kind, count in kinds.items()]
    processes = len({device.process_index for device in devices})
    spread = f" in {processes} processes" if processes > 1 else ""
    if all(device.platform == "cpu" for device in devices):
        return f"{', '.join(parts)}{spread}{_of_host()}"
    mine = next((device for device in devices if device.process_index == jax.process_index()), devices[0])
    limit = ((mine.memory_stats() if mine.process_index == jax.process_index() else None) or {}).get("bytes_limit")
    return f"{', '.join(parts)}{spread}{f', {limit / 2**30:.1f} GiB each' if limit else ''}"


def _kind(device: jax.Device) -> str:
    kind = device.device_kind
    return kind if kind.lower() == device.platform else f"{kind} ({device.platform})"


def _of_host() -> str:
    """The host's memory in words: ", 15.6 GiB of memory (9.8 free)". Nothing where the system does not say."""
    try:
        lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free = f" ({kilobytes['MemAvailable'] / 2**20:.1f} free)"
        return f", {kilobytes['MemTotal'] / 2**20:.1f} GiB of memory{free}"
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB of memory"
    except (ValueError, OSError, AttributeError):
        return ""
