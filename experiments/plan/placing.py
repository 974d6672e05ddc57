"""experiments.plan --placement: the calls of a config's step, and the best placements in words."""

import json
import math
import pathlib

import jax
import numpy as np

from experiments.plan import chips, placement, programs
from experiments.plan.costs import Call, Model, Seat, Work
from experiments.plan.placement import Plan, Problem
from rl_jax.models.hf import loading
from rl_jax.models.transformer.config import RECOMPUTES_ALL


def read_lengths(path: pathlib.Path) -> np.ndarray:
    """Lengths of completions: a JSON list of numbers, or a run's folder, whose metrics.jsonl has their mean per step.

    Raises:
      ValueError: if there are none.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines] if path.is_dir() else json.loads("\n".join(lines))
        found = [row["completion_length"] for row in rows if "completion_length" in row] if path.is_dir() else rows
        lengths = np.asarray(found, float)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"--lengths={path}: {error}: give a JSON list of lengths, or the folder of a run") from error
    if lengths.ndim != 1 or not len(lengths) or not (lengths > 0).all():
        raise ValueError(f"--lengths={path}: it has no lengths above 0")
    return np.maximum(np.rint(lengths), 1).astype(int)


def step_of(config, model, params: float) -> tuple[list[Call], list[Model]]:
    """The calls of a step of experiments.grpo or experiments.ppo, and their models, all of the config's size.

    Args:
      config: of the run.
      model: TransformerConfig.
      params: number of its parameters.
    """
    sizes = dict(params=params, layers=model.num_layers, width=model.embed_dim, kv_heads=model.num_kv_heads)
    sizes |= dict(kv_width=model.num_kv_heads * model.head_dim, remat=config.model.remat in RECOMPUTES_ALL)
    with_critic = "critic" in config
    calls = [Call("actor_generate", "actor", "generate")]
    calls += [Call(f"{name}_score", name, "score", ("actor_generate",)) for name in ("actor", "reference")]
    calls += [Call("critic_score", "critic", "score", ("actor_generate",))] if with_critic else []
    scored = tuple(call.name for call in calls if call.kind == "score")
    calls += [Call(f"{name}_train", name, "train", scored) for name in ("actor", *["critic"] * with_critic)]
    return calls, [Model(name, **sizes) for name in ("actor", "reference", *["critic"] * with_critic)]


def describe(task: Problem, title: str, plan: Plan, seconds: float, note: str) -> list[str]:
    """A plan in words, with the share of time that its devices work."""
    loads = placement.busy(task, plan)
    lines = [f"{title}: {seconds:.3g} s per step; devices work {loads.mean() / seconds:.0%} of it ({note})"]
    for call in task.calls:
        seat, one = plan[call.name], task.cost(call, plan[call.name])
        mesh = mesh_of(call.kind, seat)
        last = seat.start + seat.count - 1
        way = f" + {way:.2g} s for the weights" if (way := placement.moved(task, plan, call)) else ""
        held = (one.held + one.used) / 2**30
        where = f"  {call.name:16} devices {seat.start:>3}-{last:<3} {mesh:18}"
        lines.append(f"{where} {one.seconds:8.3g} s{way}, {held:.1f} GiB")
    if any(seat.context > 1 for seat in plan.values()):
        why = f"rows of {task.work.longest} tokens are too long for a chip, or too few"
        lines.append(f"  {why}: --config.model.attention=ring")
    return lines


def mesh_of(kind: str, seat: Seat) -> str:
    """The mesh of a call of that kind on a seat, as --config.mesh takes it."""
    mesh = f"{'data' if kind == 'generate' else 'fsdp'}:{seat.replicas}"
    return mesh + f",context:{seat.context}" * (seat.context > 1) + f",tensor:{seat.tensor}"


def as_flags(task: Problem, plan: Plan) -> list[str]:
    """The flags with which experiments.plan compiles a plan that samples and trains on devices of their own.

    [] if generation and training share devices, or leave some of the slice unused.
    """
    sampler, trainer = plan["actor_generate"], plan["actor_train"]
    if sampler.overlaps(trainer) or sampler.count + trainer.count != task.devices:
        return []
    meshes = f"--config.mesh={mesh_of('train', trainer)} --config.rollout.mesh={mesh_of('generate', sampler)}"
    return [f"compiled by the same command with {meshes} --config.rollout.devices=separate, without --placement"]


def balance(task: Problem, plan: Plan) -> str:
    """Which side a step waits for, in an overlapped plan."""
    sides = {True: 0.0, False: 0.0}
    loads = placement.busy(task, plan)
    sampled = {d for c in task.calls if c.kind == "generate" for d in _devices(plan[c.name])}
    trained = {d for c in task.calls if c.kind == "train" for d in _devices(plan[c.name])}
    for samples, own in ((True, sampled), (False, trained - sampled)):
        sides[samples] = float(max((loads[d] for d in own), default=0.0))
    if not sides[False]:
        return f"balance: generation and training share all {len(sampled)} devices"
    slow, fast = ("generation", "training") if sides[True] > sides[False] else ("training", "generation")
    idle = 1.0 - min(sides.values()) / max(sides.values())
    return (
        f"balance: generation on {len(sampled)} devices takes {sides[True]:.3g} s, training on {len(trained)} takes "
        f"{sides[False]:.3g} s; {fast} waits for {slow} {idle:.0%} of a step"
    )


def _devices(seat: Seat) -> range:
    return range(seat.start, seat.start + seat.count)


def report(task: Problem) -> str:
    """The three answers in words."""
    spread = np.quantile(task.work.lengths, (0.5, 0.9, 1.0)).astype(int)
    lengths = " / ".join(map(str, spread))
    lines = [
        f"{task.work.rows} rows of {task.work.prompt} + {lengths} tokens (median, 90 %, longest) on "
        f"{task.devices} devices"
    ]
    plan, seconds, how = placement.search(task, placement.one_by_one)
    lines += describe(task, "one by one", plan, seconds, how)
    blocks = [(placement.by_stages(task, plan), i, plan) for i, plan in enumerate(placement.colocations(task))]
    if blocks and min(block[0] for block in blocks) < math.inf:
        seconds, _, plan = min(blocks, key=lambda x: x[:2])
        lines += describe(task, "co-located", plan, seconds, f"{len(blocks)} plans")
    plan, seconds, how = placement.search(task, placement.overlapped)
    lines += [*describe(task, "overlapped", plan, seconds, how), balance(task, plan), *as_flags(task, plan)]
    return "\n".join(lines)


def run(config, topology: str, lengths: str | None) -> None:
    """Plans and prints. lengths: see `read_lengths`; None: all completions are as long as they may be."""
    model = programs.model_config(config)
    params = float(sum(x.size for x in jax.tree.leaves(loading.param_shapes(model))))
    longest = config.rollout.completion_length
    observed = np.array([longest]) if lengths is None else np.minimum(read_lengths(pathlib.Path(lengths)), longest)
    work = Work(
        rows=config.sample.prompts_per_step * config.sample.group_size,
        prompt=max(config.rollout.prompt_buckets),
        lengths=observed,
        micro_batches=config.train.micro_batches * config.train.minibatches,
    )
    devices = math.prod(int(size) for size in topology.partition(":")[2].split("x"))
    task = placement.problem(*step_of(config, model, params), work, devices, chips.chip_of(topology))
    print(f"{config.model.path or config.name}: {params / 1e9:.2f}B parameters on {topology}")
    print(report(task))
