"""Runs whose sampler and trainer have devices of their own: the way of the weights, and which side waits.

    --config.mesh=fsdp:32 --config.rollout.mesh=data:4,tensor:8 --config.rollout.devices=separate     # of one slice
    --sampler_topology=v5e:4x4 --sampler_mesh=data:2,tensor:8    # --role=trainer and --role=sampler, a slice each

Separate devices of a run are paired (rl_jax.training.resharding.twins): the trainer's devices lay the weights out as
the sampler will have them (the program `move`), and each sends its part to its twin. Between the processes of
experiments.grpo_async weights go through the hosts: each value leaves the trainer once, and a host of the sampler reads
what its own devices need (experiments.parts.async_shards). Processes hand over the weights as they are trained, and
rollouts on separate devices round them first.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.parts import async_check, async_roles, policy, policy_steps
from experiments.parts.setup import Setup
from experiments.plan import programs
from experiments.plan.chips import Chip
from experiments.plan.runs import sampled_prompts

GIB = 2.0**30
LINKS, HOSTS = "links", "network"  # what the weights go over


class Sampler(NamedTuple):
    """The slice of the process that samples.

    Attributes:
      topology: as of --topology.
      mesh: its --config.mesh.
    """

    topology: str
    mesh: str


def sampler_of(config, topology: str | None, mesh: str | None) -> Sampler | None:
    """The sampler that --sampler_topology and --sampler_mesh describe; None without them.

    Raises:
      ValueError: if only one of them is given, or a run with this config cannot be two processes.
    """
    if not topology and not mesh:
        return None
    if not topology or not mesh:
        raise ValueError(
            "--sampler_topology and --sampler_mesh go together: the sampler's slice, and its --config.mesh"
        )
    if config.get("program") != "grpo_async":
        raise ValueError(
            f"--sampler_topology={topology}: only experiments.grpo_async has a process that samples (--role), and this "
            f"config is of experiments.{config.get('program')}. Start from configs/plans.py:8b,async, or give the "
            "rollouts devices of the same slice: --config.rollout.mesh=MESH --config.rollout.devices=separate"
        )
    if config.rollout.mesh:
        raise ValueError(
            f"--sampler_mesh={mesh}: each process has one mesh; leave out --config.rollout.mesh={config.rollout.mesh}"
        )
    if config.flow.samplers > 1:
        raise ValueError(f"flow.samplers={config.flow.samplers}: one sampler is planned, so set it to 1")
    async_roles.check_two(async_check.checked(config))
    return Sampler(topology, mesh)


def config_of(config, sampler: Sampler):
    """The config of the process that samples."""
    theirs = config.copy_and_resolve_references()
    theirs.mesh = sampler.mesh
    return theirs


def is_apart(config, sampler: Sampler | None) -> bool:
    """Whether the run samples on devices that do not train."""
    return sampler is not None or bool(config.rollout.mesh and config.rollout.devices == "separate")


def host_of(devices: Sequence, chip: Chip) -> dict[Any, int]:
    """The host of each of a slice's devices: the same one, if it can have as many chips.

    A described slice has a process for each 2 x 2 chips, also where one host has 8 of them.

    Args:
      devices: all of the slice's.
      chip: theirs.
    """
    return {device: 0 if len(devices) <= chip.host else device.process_index for device in devices}


def hosts(devices: Sequence, chip: Chip) -> int:
    """The number of hosts of these devices, all of a slice."""
    return len(set(host_of(devices, chip).values()))


def transfer(setup: Setup, theirs: Setup, chips: tuple[Chip, Chip], figures: dict[str, Any]) -> dict[str, Any]:
    """The weights on their way from the trainer to the sampler, once per step, in the form of a program's figures.

        seconds = max(bytes that leave a chip / rate of the trainer's, bytes that enter a chip / rate of the sampler's)

    The rate is that of the links between chips, or of the data center's network, a chip's share of it; what the hosts
    themselves take (their memory, a disk, the way to their chips) is not counted.

    Args:
      setup: of the trainer.
      theirs: of the sampler: its mesh, and the weights as they will lie there.
      chips: the trainer's and the sampler's.
      figures: of the programs that are planned.

    Returns:
      Among others "peak_bytes" of a chip of the sampler: that of decode (only the weights, if it is not planned) and,
      in experiments.grpo_async, the new weights beside the old ones; "trainer_peak_bytes": the train state and, over
      links, what `move` takes beside it.
    """
    way = LINKS if setup.rollout else HOSTS
    shapes, shardings = theirs.param_shapes, theirs.param_shardings
    if way == LINKS:
        sent, entered = _over_links(shapes, shardings, programs.twins(setup)[1]), _share(shapes, shardings)
    else:
        sent = _total(shapes) / setup.mesh.size
        entered = _read_by_hosts(shapes, shardings, host_of(theirs.mesh.devices.ravel(), chips[1])) / theirs.mesh.size
    rates = [chip.links if way == LINKS else chip.network for chip in chips]
    seconds = max(sent / rates[0], entered / rates[1])
    state = _share(setup.param_shapes, setup.param_shardings) + programs.optimizer_bytes(setup)
    moving = figures.get("move", {}).get("peak_bytes", 0.0) if way == LINKS else 0.0
    weights = _share(shapes, shardings)
    decoding = figures.get("decode", {}).get("peak_bytes", weights)
    beside = weights if "flow" in setup.config else 0.0
    return {
        "way": way,
        "dtypes": _by_dtype(shapes),
        "argument_bytes": weights,
        "peak_bytes": decoding + beside,
        "trainer_peak_bytes": state + moving,
        "sent_bytes": {f"copy over {way}": sent},
        "synchronous_bytes": {},
        "received_bytes": entered,
        "step_s": seconds,
        "mfu": 0.0,
    }


def is_overlapped(config) -> bool:
    """Whether rows are sampled while others are trained on."""
    return "flow" in config and config.flow.eta > 0


def balance(config, figures: dict[str, Any]) -> dict[str, Any] | None:
    """The least time of each side per step, and which one waits; None if a program of a step is not planned or refused.

        sampler = decode x turns + weights,   trainer = score x passes + train x updates + move + weights

    A rollout takes several turns if fewer rows are sampled at once than a step has (rollout.engine.slots). Both sides
    have the weights' way: a trainer hands them over before it goes on, and a sampler fetches them before it does,
    unless flow.schedule is free. A side waits (longest - its own) / longest of a step where they overlap, and for all
    that the other one does where they take turns.

    Args:
      config: of the run.
      figures: of its programs and the transfer.
    """
    passes = policy_steps.needs_scores(config) + policy.needs_ref_log_probs(config)
    if is_overlapped(config) and config.flow.measure and not policy_steps.needs_scores(config):
        passes += 1
    updates = config.train.epochs * config.train.minibatches
    times = {"train": updates, "move": 1} | ({"score": passes} if passes else {})
    times |= {"critic": updates * config.critic.epochs} if "critic" in figures else {}
    used = [name for name in (*times, "decode", "transfer") if name != "move" or name in figures]
    if any("step_s" not in figures.get(name, {}) for name in used):
        return None
    trainer = sum(figures[name]["step_s"] * count for name, count in times.items() if name in figures)
    turns = config.sample.prompts_per_step / sampled_prompts(config)
    way, decode = figures["transfer"]["step_s"], figures["decode"]["step_s"] * turns
    sides = {"sampler_s": decode, "trainer_s": trainer}
    if is_overlapped(config):
        fetches = max(decode, way) if config.flow.schedule == "free" else decode + way
        sides = {"sampler_s": fetches, "trainer_s": trainer + way}
        step = max(sides.values())
    else:
        step = decode + trainer + way
    waits = {name.removesuffix("_s"): 1.0 - seconds / step for name, seconds in sides.items()}
    return sides | {
        "score_passes": passes,
        "overlapped": is_overlapped(config),
        "step_s": step,
        "ratio": sides["sampler_s"] / sides["trainer_s"],
        "waits": waits,
    }


def report(result: dict[str, Any]) -> list[str]:
    """What a plan says of the transfer and of the balance, in words; [] for a run whose sides share their devices."""
    if "sampler" not in result:
        return []
    one, side = result["programs"]["transfer"], result["sampler"]
    kinds = ", ".join(f"{size / 1e9:.3g} GB of {name}" for name, size in one["dtypes"].items())
    over = {LINKS: "from device to device", HOSTS: "through the hosts, over the data center's network"}[one["way"]]
    sent = sum(one["sent_bytes"].values())
    lines = [
        f"transfer {kinds}, {over}: {sent / 1e9:.3g} GB leave a chip of the trainer, "
        f"{one['received_bytes'] / 1e9:.3g} GB enter one of the sampler, which keeps "
        f"{one['argument_bytes'] / GIB:.2f} GiB; at least {one['step_s']:.3g} s",
        f"        peak meanwhile {_peak(one['trainer_peak_bytes'], result['chip_bytes'])} of the trainer, "
        f"{_peak(one['peak_bytes'], side['chip_bytes'])} of the sampler",
    ]
    if found := result.get("balance"):
        waits = found["waits"]
        slow, fast = sorted(waits, key=waits.get)
        said = (
            f"the {fast} waits for the {slow} {waits[fast]:.0%} of a step"
            if found["overlapped"]
            else f"they take turns: the sampler waits {waits['sampler']:.0%} of a step, the trainer "
            f"{waits['trainer']:.0%}"
        )
        lines.append(
            f"balance a step takes the sampler at least {found['sampler_s']:.3g} s and the trainer "
            f"{found['trainer_s']:.3g} s, {found['ratio']:.2f} : 1; {said}"
        )
    if side["topology"] and max(side["hosts"], side["trainer_hosts"]) > 1:
        lines.append(
            f"note    the trainer's slice has {side['trainer_hosts']} hosts and the sampler's {side['hosts']}, but "
            "experiments.grpo_async runs each side in one process, which sees the chips of one host: this is what the "
            "devices would do, not a run that can be started today"
        )
    return lines


def _peak(size: float, limit: float) -> str:
    return f"{size / GIB:.2f} GiB per chip{' (does NOT fit)' if size > limit else ''}"


def _total(shapes) -> float:
    return float(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes)))


def _share(shapes, shardings) -> float:
    return programs.tree_bytes(shapes, shardings)


def _by_dtype(shapes) -> dict[str, float]:
    found: dict[str, float] = {}
    for x in jax.tree.leaves(shapes):
        found[x.dtype.name] = found.get(x.dtype.name, 0.0) + x.size * x.dtype.itemsize
    return found


def _over_links(shapes, shardings, pairs: dict) -> float:
    """Bytes that the busiest device of the trainer sends: its part, to each of its twins. pairs: as of `twins`."""
    _, counts = np.unique([device.id for device in pairs.values()], return_counts=True)
    return _share(shapes, shardings) * int(counts.max())


def _read_by_hosts(shapes, shardings, host: dict[Any, int]) -> float:
    """Bytes that all hosts of the sampler read: each box of an array once per host. host: as of `host_of`."""
    total = 0.0
    for x, sharding in zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True):
        boxes = {
            (host[device], *((part.start, part.stop) for part in index))
            for device, index in sharding.devices_indices_map(x.shape).items()
        }
        total += len(boxes) * math.prod(sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return total
