"""PPO and its relatives in environments: many runs at once, the whole of each one compiled program.

    python -m experiments.control_ppo --config=configs/control/environments.py:cartpole
    python -m experiments.control_ppo --config=configs/control/environments.py:cartpole --config.num_seeds=64 \
        --config.mesh=seeds:2

A call of the program is `log_every` updates (rollout, advantages, epochs of minibatches) of every run and an
evaluation; between calls the loop logs and saves. A run is a seed with a value of each number that is swept. The same
command resumes what was interrupted, bit for bit, where the environments are pure functions.
"""

import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.parts import common, processes
from experiments.parts.budgets import program_of, samples_per_step
from experiments.parts.control_setup import (
    NETWORKS,
    load_env,
    make_algorithm,
    make_network,
    num_updates,
    runs_of,
    with_values,
)
from experiments.report.render import EPISODES, episode_row
from rl_jax import control, envs
from rl_jax.core.binding import bind
from rl_jax.core.masked import all_reduce, empty_like, merge
from rl_jax.rollout.envs.episode import record_episode
from rl_jax.rollout.envs.steps import evaluate
from rl_jax.runs.logging import RunLogger, write_atomically
from rl_jax.runs.run_record import write_run_record
from rl_jax.training import checkpoint
from rl_jax.training.step import TrainState

# XLA on a CPU. Its thread pool: small matmuls gain nothing from it, and on two cores batched ones can wait for each
# other in it without an end. Its scheduler: in the default order a step of CartPole takes a tenth longer.
CPU_OPTIONS = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


class Program(NamedTuple):
    """The compiled parts of a training of L runs.

    init: () -> state. advance: (state) -> (state, metrics float32 [L] by name); donates the state.
    finals: (state) -> params, a pytree with L first.
    pure: whether a state holds its worlds; those of the host (gymnasium) are not in it.
    """

    init: Callable
    advance: Callable
    finals: Callable
    pure: bool = True


def make_run(config, *, parts: int = 1, axis_name: str | None = None, relabel=None) -> tuple[Callable, ...]:
    """(init(key, values) -> state, advance(state, values, count) -> (state, metrics), params) of a single run.

    parts: over how many devices its worlds are spread, along axis_name. relabel: of control.Algorithm. count: static.
    """
    if config.num_envs % parts:
        raise ValueError(f"num_envs={config.num_envs} do not divide over {parts} devices")
    env = load_env(config, config.num_envs // parts)
    runs = len(config.runs) or config.num_seeds * math.prod(len(values) for _, values in config.sweep)
    if not env.pure and (runs > 1 or config.mesh):
        raise ValueError(
            f"{config.env.name} lives on the host: it can be trained in one run, on one device, not {runs} runs"
        )
    judged = load_env(config, config.eval.num_episodes, fresh_starts=0) if config.eval.num_episodes else None
    settings = config.control.to_dict()
    total = num_updates(config) * settings["epochs"] * settings["minibatches"]
    num_values = make_algorithm(settings).objective.num_outputs()
    agent = make_network(config, env, num_values)

    def parts_of(values: dict[str, jax.Array]):
        found = with_values(settings, values)
        adam = dict(found["optimizer"])
        rate, final = adam.pop("learning_rate"), adam.pop("final_fraction")
        optimizer = optax.adam(optax.linear_schedule(rate, rate * final, total), **adam)
        make_update = bind(found["updater"] | NETWORKS[config.network.kind][1], control)
        algorithm = make_algorithm(found)._replace(relabel=relabel)
        return make_update(agent, env, algorithm, optimizer, num_steps=config.num_steps, axis_name=axis_name)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> control.ControlState:
        return parts_of(values)[0](key)

    def advance(state: control.ControlState, values: dict[str, jax.Array], count: int):
        _, update, policy_of = parts_of(values)

        def step(carry, _):
            state, metrics = update(carry[0])
            return (state, merge(carry[1], metrics)), None

        empty = empty_like(jax.eval_shape(update, state)[1])
        (state, metrics), _ = jax.lax.scan(step, (state, empty), None, count)
        if axis_name is not None:
            metrics = all_reduce(metrics, axis_name)
        metrics = {name: mean.value() for name, mean in metrics.items()}
        if judged is not None:
            memory = agent.initial_state(judged.num_envs)
            metrics |= judge(config, policy_of(state), agent.distribution, judged, state.train, memory)
        return state, metrics

    def params(state: control.ControlState):
        return control.unraveler(agent)(state.train.params)

    return init, advance, params


def judge(
    config, policy: Callable, distribution, env: envs.Vector, train: TrainState, memory: Any = ()
) -> dict[str, jax.Array]:
    """eval/return and eval/length, float32 [], of a policy as rollout.steps takes one, in the worlds of `env`."""
    key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 1), train.step)
    choice = dict(max_steps=config.eval.max_steps, greedy=config.eval.greedy, memory=memory)
    returns, lengths = evaluate(policy, distribution, env, key, **choice)
    return {"eval/return": jnp.mean(returns), "eval/length": jnp.mean(lengths.astype(jnp.float32))}


def make_recorder(config) -> Callable:
    """(state of all runs, updates) -> [an episode of the first run's newest policy, as a row of episodes.jsonl], or []
    where nothing is evaluated."""
    if not config.eval.num_episodes:
        return lambda state, step: []
    env = load_env(config, 1, fresh_starts=0)
    algorithm = make_algorithm(config.control.to_dict())._replace(minibatches=1)
    agent = make_network(config, env, algorithm.objective.num_outputs())
    keywords = NETWORKS[config.network.kind][1]
    policy_of = control.make_update(agent, env, algorithm, optax.identity(), num_steps=1, **keywords)[2]

    def record(train: TrainState):
        state = control.ControlState(train, (), ())
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 2), train.step)
        memory = agent.initial_state(1)
        choice = dict(max_steps=config.eval.max_steps, greedy=config.eval.greedy, memory=memory)
        return record_episode(policy_of(state), agent.distribution, env, key, **choice)

    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None  # compiled sooner
    compiled = jax.jit(record, compiler_options=options)
    first = (0, 0) if config.spread == "pmap" else 0

    def recorded(state: control.ControlState, step: int) -> list[dict[str, Any]]:
        episode = compiled(jax.tree.map(lambda x: x[first], state.train))
        return [episode_row(jax.device_get(episode), step=step, env=config.env.name)]

    return recorded


def parse_mesh(text: str) -> dict[str, int]:
    """ "seeds:2,envs:4" -> {"seeds": 2, "envs": 4}; "" is one device. Raises ValueError for anything else."""
    sizes = {"seeds": 1, "envs": 1}
    for part in filter(None, text.split(",")):
        name, _, size = part.strip().partition(":")
        if name not in sizes or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh {text!r}: {part!r} is not seeds:SIZE or envs:SIZE")
        sizes[name] = int(size)
    return sizes


def over_runs(fn: Callable, group: int) -> Callable:
    """`fn` of one run as a function of many, one after the other or `group` in lockstep."""

    def mapped(*args):
        if jax.tree.leaves(args)[0].shape[0] == 1:  # no loop: also for worlds on the host, which cannot be mapped
            out = fn(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], out)
        return jax.lax.map(lambda args: fn(*args), args, batch_size=group if group > 1 else None)

    return mapped


def of_worlds(path) -> bool:
    """Whether the leaf of a state at this path is there once for each world."""
    return any(getattr(key, "name", "") in ("worlds", "returns") for key in path)


def with_worlds_of(state, other):
    """The state with what the other has for each of its worlds."""
    return jax.tree_util.tree_map_with_path(lambda path, own, fresh: fresh if of_worlds(path) else own, state, other)


def state_specs(state: control.ControlState) -> control.ControlState:
    """Where each leaf with L first belongs: runs over "seeds", and what there is once for each world over "envs"."""

    def spec(path, _) -> PartitionSpec:
        return PartitionSpec("seeds", "envs") if of_worlds(path) else PartitionSpec("seeds")

    return jax.tree_util.tree_map_with_path(spec, state)


def make_program(config, make_run: Callable = make_run) -> Program:
    """The programs of all runs, over the mesh by jit or by pmap. make_run: what makes a single one."""
    sizes = parse_mesh(config.mesh)
    processes.simulate_devices(math.prod(sizes.values()))
    keys, values = runs_of(config)
    if len(keys) % sizes["seeds"]:
        raise ValueError(f"{len(keys)} runs do not divide over seeds:{sizes['seeds']}")
    if config.spread not in ("jit", "pmap"):
        raise ValueError(f"spread={config.spread!r} is neither 'jit' nor 'pmap'")
    parts = sizes["envs"]
    init, advance, params = make_run(config, parts=parts, axis_name="envs" if parts > 1 else None)
    init = over_runs(init, config.group)
    chunk = over_runs(functools.partial(advance, count=config.log_every), config.group)
    if config.spread == "pmap":
        return _pmap_program(sizes, keys, values, init, chunk, over_runs(params, 1))
    # The shapes of one part are asked for where no axis has a name.
    shapes = jax.eval_shape(over_runs(make_run(config, parts=parts)[0], 1) if parts > 1 else init, keys, values)
    program = _jit_program(sizes, keys, values, init, chunk, over_runs(params, 1), state_specs(shapes))
    return program._replace(pure=load_env(config, 1).pure)


def _jit_program(sizes, keys, values, init, chunk, params, specs) -> Program:
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 2)
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    runs = PartitionSpec("seeds")

    def mapped(fn, in_specs, out_specs, **more):
        if mesh.size > 1:
            fn = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(fn, compiler_options=options, **more)

    keys, values = jax.device_put((keys, values), NamedSharding(mesh, runs))
    start = mapped(init, (runs, runs), specs)
    advance = mapped(chunk, (specs, runs), (specs, runs), donate_argnums=0)
    finals = mapped(params, (specs,), runs)
    return Program(lambda: start(keys, values), lambda state: advance(state, values), finals)


def _pmap_program(sizes, keys, values, init, chunk, params) -> Program:
    """The same parts by pmap, the state with devices first; either the runs are dealt out to them or the worlds."""
    count = math.prod(sizes.values())
    if min(sizes.values()) > 1:
        raise ValueError("pmap has one axis: seeds or envs, not both; use spread='jit'")

    def deal(x):
        return x.reshape(count, -1, *x.shape[1:]) if sizes["envs"] == 1 else jnp.stack([x] * count)

    def gather(tree):
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]) if sizes["envs"] == 1 else x[0], tree)

    keys, values = jax.tree.map(deal, (keys, values))
    start, finals = jax.pmap(init, axis_name="envs"), jax.pmap(params, axis_name="envs")
    advance = jax.pmap(chunk, axis_name="envs", donate_argnums=0)

    def step(state):
        state, metrics = advance(state, values)
        return state, gather(metrics)

    return Program(lambda: start(keys, values), step, lambda state: gather(finals(state)))


def row_of(metrics: dict[str, np.ndarray]) -> dict[str, float]:
    """A row of metrics: the means over the runs, and of the evaluated return the least and each run's own."""
    row = {name: float(np.mean(x)) for name, x in metrics.items()}
    shown = metrics["eval/return" if "eval/return" in metrics else "episode/return"]
    if len(shown) > 1:
        row["runs/worst"] = float(np.min(shown))
        row |= {f"runs/{i}": float(x) for i, x in enumerate(shown[:64])}
    return row


def run(config, workdir: pathlib.Path, make_run: Callable = make_run, record: Callable = make_recorder) -> None:
    """The whole of it: compile, restore if there is something, loop, save. make_run, record: another method's."""
    stop = checkpoint.StopSignal()
    updates = num_updates(config)
    program, recorded = make_program(config, make_run), record(config)
    write_run_record(
        workdir,
        config=config.to_dict(),
        command=[sys.executable, *sys.argv],
        task=config.env.name,
        algorithm=program_of(config),
        devices=[str(device) for device in jax.devices()],
    )
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", **config.checkpoint.to_dict())
    state, step, metrics = program.init(), 0, {}
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore({"state": state}, in_place=program.pure)
        restored, step, metrics = items["state"], host["step"], host["metrics"]
        # Worlds of the host were reset with this process: what the old ones showed last is not where they stand.
        state = restored if program.pure else with_worlds_of(restored, state)
    log = RunLogger(workdir, total_steps=updates, resume_step=step or None, **common.log_options(config))
    steps_a_call = config.log_every * samples_per_step(config)
    with checkpoints, log:
        if step == 0:
            log.rows(EPISODES, recorded(state, step))
        while step < updates and not stop.received:
            step += config.log_every
            clock = common.Clock()
            state, measured = program.advance(state)
            measured = jax.device_get(measured)
            clock.lap("train_s")
            metrics = {name: x.tolist() for name, x in measured.items()}
            seconds = clock.totals(0)["train_s"]
            done = steps_a_call * len(measured["loss"])
            env_steps = {"env_steps": step * samples_per_step(config)}  # of one run
            row = row_of(measured) | env_steps
            log.log(step, row, {"train_s": seconds, "env_steps_per_s": done / seconds})
            if config.runs:
                log.rows("runs", [metrics | {"step": step}])
            due = checkpoints.due(step) or step == updates
            if due:
                log.rows(EPISODES, recorded(state, step))
            if due or stop.received:
                checkpoints.save(step, {"state": state}, {"step": step, "metrics": metrics}, row)
    if step == updates:
        final = {"step": step, "params_sha256": checkpoint.checksum(program.finals(state)), "metrics": metrics}
        write_atomically(workdir / "final.json", (json.dumps(final) + "\n").encode())
        shown = metrics["eval/return" if "eval/return" in metrics else "episode/return"]
        print(f"{len(shown)} runs, mean return of each: {' '.join(f'{x:.1f}' for x in shown)}")


def run_own(config, workdir: pathlib.Path) -> None:
    """`run`. Raises ValueError for a config of another program, which has more groups than are read here."""
    if program_of(config) != "control_ppo":
        raise ValueError(f"this config is for python -m experiments.{program_of(config)}")
    run(config, workdir)


if __name__ == "__main__":
    common.main(run_own)
