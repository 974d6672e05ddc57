"""Which programs a config's run has, and their plans at the config's size."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts.setup import Setup
from experiments.plan import flops, pairs, programs
from rl_jax.models.transformer.config import RECOMPUTES_ALL

UPDATES = ("train", "critic", "sft")


def model_flops(name: str, plain: Setup, rows: int) -> float:
    """The FLOPs of an update on `rows` rows: a forward, and twice as many backward; with adapters as many.

    The products that give the gradient of weights are half of the backward's: frozen weights have none.

    Args:
      name: in UPDATES.
      plain: of the run, with attention that can be counted.
      rows: of the update.
    """
    kind = programs.predict if name == "critic" else programs_of(plain.config)["score"]
    forward = kind(plain, rows, micro_batches=1)  # those of the score are of a step's rows, not of these
    passes = 2 if plain.merged else 3
    return passes * flops.count(forward.jaxpr(plain.mesh), while_turns=forward.while_turns)


def moved_bytes(name: str, setup: Setup, planned: programs.Planned, micro_batches: int) -> float:
    """A lower bound of a chip's reads and writes: weights per pass, optimizer state each way, the cache per step.

    A decode step reads the whole cache, empty columns too (rl_jax.models.transformer.decoding.attend_cache).
    """
    config, width = setup.config, jnp.dtype(setup.config.model.dtype).itemsize
    if name == "move":  # from where the training has them to where the sampler wants them
        (lying,), shardings = planned.arguments, jax.tree.leaves(programs.sampling(setup).param_shardings)
        return programs.tree_bytes(lying, [x.sharding for x in lying]) + programs.tree_bytes(lying, shardings)
    size = sum(x.size * min(x.dtype.itemsize, width) for x in jax.tree.leaves(setup.param_shapes))
    weights = size / setup.mesh.shape["tensor"]  # gathered over fsdp: a chip reads them all
    if name == "score":
        return weights
    if name in UPDATES:
        state = programs.tree_bytes(planned.arguments[0], jax.tree.map(lambda x: x.sharding, planned.arguments[0]))
        passes = 4 if config.model.remat in RECOMPUTES_ALL else 3
        return passes * micro_batches * weights + 2 * state
    return config.rollout.completion_length * (weights + programs.cache_bytes(setup, planned.arguments[1].shape[0]))


class Kind(NamedTuple):
    """What runs of a kind have in common.

    Attributes:
      programs: name -> what makes its plan from (setup, rows, micro_batches).
      step_rows: config -> (rows of a step, rows of an update).
    """

    programs: dict[str, Callable[..., programs.Planned]]
    step_rows: Callable


def _rows_of_samples(config) -> tuple[int, int]:
    rows = config.sample.prompts_per_step * config.sample.group_size
    return rows, rows // config.train.minibatches


def _rows_of_pairs(config) -> tuple[int, int]:
    return (config.train.batch_size * config.algorithm.responses,) * 2


SAMPLED = Kind({"train": programs.train, "score": programs.score, "decode": programs.decode}, _rows_of_samples)
PAIRED = Kind({"train": pairs.train, "score": pairs.score}, _rows_of_pairs)
KINDS = {**dict.fromkeys(("grpo", "ppo", "grpo_async", "agents"), SAMPLED), "dpo": PAIRED}


def kind_of(config) -> Kind:
    """The kind of the config's run, with a critic's program if it has one, and the move to rollout.mesh.

    Raises:
      ValueError: if there are no plans of runs of its program.
    """
    if config.program not in KINDS:
        raise ValueError(f"experiments.plan plans no runs of {config.program}: it knows {', '.join(KINDS)}")
    kind = KINDS[config.program]
    critic = {"critic": programs.critic} if "critic" in config and not config.critic.shared else {}
    moved = {"move": programs.move} if "decode" in kind.programs and config.rollout.mesh else {}
    return kind._replace(programs=kind.programs | critic | moved)


def programs_of(config) -> dict[str, Callable[..., programs.Planned]]:
    """Name -> what makes its plan from (setup, rows, micro_batches), for the programs of the config's run.

    Raises:
      ValueError: if there are no plans of runs of its program.
    """
    return kind_of(config).programs


def step_rows(config) -> tuple[int, int]:
    """(rows of a step, rows of an update)."""
    return kind_of(config).step_rows(config)


def update_rows(name: str, config) -> int:
    """Rows of an update of that name."""
    return config.sft.batch_size if name == "sft" else step_rows(config)[1]


def make_planned(name: str, setup: Setup, micro_batches: int | None = None) -> programs.Planned:
    """The program of that name at the config's size, `sft` of its warm start. micro_batches: overrides the config's."""
    known, rows = programs_of(setup.config), step_rows(setup.config)[0]
    known |= {"sft": programs.sft} if "sft" in setup.config else {}
    if name not in known:
        raise ValueError(f"--programs={name}: a run of {setup.config.program} has {', '.join(known)}")
    if name in UPDATES:
        return known[name](setup, update_rows(name, setup.config), micro_batches)
    return known[name](setup, sampled_prompts(setup.config) if name == "decode" else rows)


def sampled_prompts(config) -> int:
    """Prompts whose rows are sampled at once: those of a step, or as many as the continuous engine has slots for."""
    engine, sample = config.rollout.engine, config.sample
    slots = engine.slots if engine.name == "continuous" else 0
    return min(slots // sample.group_size or sample.prompts_per_step, sample.prompts_per_step)
