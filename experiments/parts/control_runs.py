"""Training in environments as compiled programs: one run as pure functions, many runs over a mesh."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from experiments.parts import processes
from experiments.parts.control_agents import agent_metrics
from experiments.parts.control_auxiliary import with_auxiliary
from experiments.parts.control_objectives import front_metrics
from experiments.parts.control_relabel import make_relabel, refuse_two
from experiments.parts.control_setup import (
    NETWORKS,
    load_env,
    make_algorithm,
    make_network,
    num_updates,
    runs_of,
    settings_of,
    with_values,
)
from rl_jax import control, envs
from rl_jax.control.replay import cut_off
from rl_jax.control.replay_types import ReplayState
from rl_jax.core.binding import bind
from rl_jax.core.masked import all_reduce, empty_like, merge
from rl_jax.core.tracing import traced_once
from rl_jax.models.agents.windows import followed
from rl_jax.rollout.envs.steps import evaluate, success_rates
from rl_jax.training import distributed
from rl_jax.training.step import TrainState, unless_poisoned

# XLA options for a CPU. Thread pool off: small matmuls gain nothing from it, and on two cores batched ones can
# deadlock in it. Scheduler: with the default order a step of CartPole takes 10 % longer.
CPU_OPTIONS = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
# On two cores one thread is 1.1 to 2.7 times as fast as two at 256 rows and below, at 1,024 it is .75 times (LOG.md).
FEW_ROWS = 512


class Program(NamedTuple):
    """The compiled functions of a training of L runs.

    Attributes:
      init: (step=0) -> state; of another step with other random numbers, for envs that begin there (not by pmap).
      advance: state -> (state, metrics float32 [L] by name). Donates the state.
      finals: state -> params, a pytree with leading axis L.
      pure: whether the state contains the envs; envs on the host (gymnasium) are not in it.
      compile: (compilation.Ahead, state) -> None. Compiles `advance` before the first step.
    """

    init: Callable
    advance: Callable
    finals: Callable
    pure: bool = True
    compile: Callable = lambda ahead, state: None


def make_run(config, *, parts: int = 1, axis_name: str | None = None, relabel=None) -> tuple[Callable, ...]:
    """Makes the pure functions of a single run.

    Args:
      config: of the program.
      parts: number of devices that the run's envs are spread over.
      axis_name: mapped axis of these devices.
      relabel: of control.Algorithm.

    Returns:
      (init, advance, params): init(key, values) -> state; advance(state, values, count) -> (state, metrics), with a
      static number of updates `count`; params(state) -> the agent's params. values: the swept numbers by dotted name.

    Raises:
      ValueError: if the envs do not divide over the devices, or live on the host and there are several runs or devices.
    """
    if config.sample.num_envs % parts:
        raise ValueError(f"sample.num_envs={config.sample.num_envs} do not divide over {parts} devices")
    env = load_env(config, config.sample.num_envs // parts, learning=True)
    check_host(config, env)
    judged = load_env(config, config.eval.num_episodes, fresh_starts=0) if config.eval.num_episodes else None
    also = further_envs(config)
    settings = settings_of(config)
    refuse_two(settings["algorithm"], relabel)
    total = num_updates(config) * config.train.epochs * config.train.minibatches
    num_values = make_algorithm(settings).objective.num_outputs()
    agent = make_network(config, env, num_values)

    def parts_of(values: dict[str, jax.Array]):
        result = with_values(settings, values)
        adam = dict(result["train"]["optimizer"])
        rate, final = adam.pop("learning_rate"), adam.pop("final_fraction")
        optimizer = optax.adam(optax.linear_schedule(rate, rate * final, total), **adam)
        make_update = bind(result["algorithm"]["updater"] | NETWORKS[config.network.kind][1], control)
        named = make_relabel(result["algorithm"], env, agent, axis_name) if relabel is None else relabel
        found = with_auxiliary(config, result["algorithm"]["auxiliary"], agent, env)
        if config.network.kind == "windows":
            optimizer = followed(optimizer, control.unraveler(found.agent), config.network.slow_rate)
        algorithm = make_algorithm(result, updates=num_updates(config))
        algorithm = algorithm._replace(
            relabel=named, auxiliary=found.loss, auxiliary_extras=found.extras, anchors=found.anchors
        )
        sizes = dict(num_steps=config.sample.num_steps, axis_name=axis_name)
        return make_update(found.agent, env, algorithm, optimizer, **sizes)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> control.ControlState:
        return parts_of(values)[0](key)

    def advance(state: control.ControlState, values: dict[str, jax.Array], count: int):
        _, update, policy_of = parts_of(values)
        update = traced_once(update)

        def step(carry, _):
            state, metrics = update(carry[0])
            return (state, merge(carry[1], metrics)), None

        empty = empty_like(jax.eval_shape(update, state)[1])
        (after, metrics), _ = jax.lax.scan(step, (state, empty), None, count)
        state = after._replace(train=unless_poisoned(state.train, after.train))
        if axis_name is not None:
            metrics = all_reduce(metrics, axis_name)
        metrics = {name: mean.value() for name, mean in metrics.items()}
        metrics["nonfinite/skipped"] = state.train.skipped.astype(jnp.float32)  # those that were undone, too
        if judged is not None:
            memory = agent.initial_state(judged.num_envs)
            metrics |= judge(config, policy_of(state), agent.distribution, judged, state.train, memory)
            for name, other in also.items():
                found = judge(config, policy_of(state), agent.distribution, other, state.train, memory)
                metrics[f"eval/{name}"] = found["eval/return"]
        return state, metrics

    def params(state: control.ControlState):
        trained = with_auxiliary(config, settings["algorithm"]["auxiliary"], agent, env).agent
        unravel = control.unraveler(trained)
        return (jax.vmap(unravel) if state.train.params.ndim == 2 else unravel)(state.train.params)

    return init, advance, params


def further_envs(config) -> dict[str, envs.Vector]:
    """The envs of config.env.also: evaluations with other fields, whose return is the metric eval/NAME.

    Raises:
      ValueError: if a name is that of another metric, or the envs live on the host.
    """
    also = config.env.get("also", {})
    if also and envs.on_host(config.env.name):
        raise ValueError(f"env.also: {config.env.name} lives on the host, which has no further evaluations")
    if taken := sorted(set(also) & {"return", "length", "seconds"}):
        raise ValueError(f"env.also: eval/{taken[0]} is a metric of its own: name it otherwise")
    if not config.eval.num_episodes:
        return {}
    return {
        name: load_env(config, config.eval.num_episodes, fresh_starts=0, **fields.to_dict())
        for name, fields in also.items()
    }


def judge(
    config, policy: Callable, distribution, env: envs.Vector, train: TrainState, memory: Any = ()
) -> dict[str, jax.Array]:
    """Evaluates a policy.

    Args:
      config: its group `eval`.
      policy: as rollout.envs.steps takes it.
      distribution: of its actions.
      env: the envs to evaluate in.
      train: its rng and step seed the evaluation.
      memory: the policy's initial state.

    Returns:
      eval/return and eval/length, float32 []; of several objectives their sum, and control_objectives.front_metrics; of
      several agents their mean, and control_agents.agent_metrics; of tasks also eval/success, the mean over them.

    Raises:
      ValueError: if the tasks do not have equally many episodes.
    """
    key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 1), train.step)
    options = dict(max_steps=config.eval.max_steps, greedy=config.eval.greedy, memory=memory)
    returns, lengths, solved = evaluate(policy, distribution, env, key, **options)
    further = front_metrics(config, returns) if env.objectives else agent_metrics(env, returns)
    if env.tasks:
        if env.num_envs % len(env.tasks):
            raise ValueError(f"eval.num_episodes={env.num_envs} is no multiple of the {len(env.tasks)} tasks")
        rates = success_rates(env.tasks, solved, jnp.ones_like(solved))
        further |= {f"eval/{name}": rate.value() for name, rate in rates.items()}
    returns = jnp.sum(returns, axis=-1) if env.objectives else returns
    return {"eval/return": jnp.mean(returns), "eval/length": jnp.mean(lengths.astype(jnp.float32))} | further


def parse_mesh(text: str) -> dict[str, int]:
    """Parses "seeds:2,envs:4" into {"seeds": 2, "envs": 4}; "" is one device. Raises ValueError if it is malformed."""
    sizes = {"seeds": 1, "envs": 1}
    for part in filter(None, text.split(",")):
        name, _, size = part.strip().partition(":")
        if name not in sizes or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh {text!r}: {part!r} is not seeds:SIZE or envs:SIZE")
        sizes[name] = int(size)
    return sizes


def map_runs(fn: Callable, group: int) -> Callable:
    """Maps `fn` of one run over many: one after the other, or `group` at a time in lockstep."""

    def mapped(*args):
        if jax.tree.leaves(args)[0].shape[0] == 1:  # no loop: envs on the host cannot be mapped
            out = fn(*jax.tree.map(lambda x: x[0], args))
            return jax.tree.map(lambda x: x[None], out)
        return jax.lax.map(lambda args: fn(*args), args, batch_size=group if group > 1 else None)

    return mapped


def of_worlds(path) -> bool:
    """Whether the leaf of a state at this path exists once per env."""
    return any(getattr(key, "name", "") in ("worlds", "returns") for key in path)


def with_fresh_envs(state, other):
    """The state with the leaves of `other` that exist once per env; episodes in a replay end where they were left."""
    state = jax.tree_util.tree_map_with_path(lambda path, own, fresh: fresh if of_worlds(path) else own, state, other)
    if not isinstance(state, ReplayState):
        return state
    cut = cut_off
    for _ in range(state.written.ndim):  # runs, and devices of pmap
        cut = jax.vmap(cut)
    return state._replace(replay=cut(state.replay, state.written))


def state_specs(state: control.ControlState) -> control.ControlState:
    """Sharding of the leaves, L first: runs over "seeds", leaves that exist once per env also over "envs"."""

    def spec(path, _) -> PartitionSpec:
        per_env = of_worlds(path) or any(
            getattr(key, "name", "") == "replay" or getattr(key, "key", "") in ("kept", "taken") for key in path
        )
        return PartitionSpec("seeds", "envs") if per_env else PartitionSpec("seeds")

    return jax.tree_util.tree_map_with_path(spec, state)


def count_runs(config) -> int:
    """The number of the config's runs, without a device (control_setup.runs_of has their keys)."""
    return len(config.runs) or config.num_seeds * math.prod(len(values) for _, values in config.sweep)


def check_host(config, env: envs.Vector) -> None:
    """Raises ValueError if the env lives on the host and there are several runs, or a mesh."""
    runs = count_runs(config)
    if env.pure or (runs == 1 and not config.mesh):
        return
    remedies = ["set --config.num_seeds=1"] * (config.num_seeds > 1)
    remedies += ["give each swept value a run of its own"] * bool(config.sweep or config.runs)
    remedies += [f"leave out mesh={config.mesh!r}"] * bool(config.mesh)
    raise ValueError(
        f"{config.env.name} lives on the host: it can be trained in one run, on one device, not {runs} run"
        f"{'s' * (runs > 1)}{' on a mesh' if config.mesh else ''}: {', '.join(remedies)}"
    )


def few_rows(config) -> bool:
    """Whether a gradient step of a device's runs reads less than FEW_ROWS rows: one thread passes none of them on."""
    if "replay" in config:
        rows = config.replay.batch_size
    elif "sample" in config:
        rows = config.sample.num_envs * config.sample.num_steps // config.train.minibatches
    else:  # offline data: a row may be a window of many steps
        return False
    return rows * min(config.group, count_runs(config)) < FEW_ROWS


def make_program(config, make_run: Callable = make_run) -> Program:
    """The programs of all runs, spread over the mesh by jit or by pmap.

    Args:
      config: of the program.
      make_run: makes a single run.

    Raises:
      ValueError: if the runs do not divide over the mesh, config.spread is unknown, or there are several processes and
        the envs live on the host, spread is pmap, or a process has no device on the mesh.
    """
    sizes, hosted = parse_mesh(config.mesh), envs.on_host(config.env.name)
    if config.mesh or not hosted:  # envs on the host take no mesh: several processes are what is wrong with them
        processes.simulate_devices(math.prod(sizes.values()), independent=sizes["envs"] == 1)
        if math.prod(sizes.values()) == 1 and few_rows(config):
            processes.one_thread()
    if hosted:
        processes.one_process(f"env.name={config.env.name!r}, which lives on the host,", processes.ALONE)
    keys, values = runs_of(config)
    if len(keys) % sizes["seeds"]:
        raise ValueError(f"{len(keys)} runs do not divide over seeds:{sizes['seeds']}")
    if config.spread not in ("jit", "pmap"):
        raise ValueError(f"spread={config.spread!r} is neither 'jit' nor 'pmap'")
    if config.spread == "pmap":
        processes.one_process("spread='pmap'", "set --config.spread=jit")
    parts = sizes["envs"]
    init, advance, params = make_run(config, parts=parts, axis_name="envs" if parts > 1 else None)
    init = map_runs(init, config.group)
    chunk = map_runs(functools.partial(advance, count=config.log_every), config.group)
    if config.spread == "pmap":
        return _pmap_program(sizes, keys, values, init, chunk, map_runs(params, 1))
    # Shapes of one part are computed outside of the mesh, without an axis name.
    shapes = jax.eval_shape(map_runs(make_run(config, parts=parts)[0], 1) if parts > 1 else init, keys, values)
    program = _jit_program(sizes, keys, values, init, chunk, map_runs(params, 1), state_specs(shapes))
    return program._replace(pure=load_env(config, 1).pure)


def _jit_program(sizes, keys, values, init, chunk, params, specs) -> Program:
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 2)
    processes.check_mesh(mesh)
    options = CPU_OPTIONS if jax.default_backend() == "cpu" else None
    runs = PartitionSpec("seeds")

    def mapped(fn, in_specs, out_specs, **more):
        if mesh.size > 1:
            fn = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return jax.jit(fn, compiler_options=options, **more)

    keys, values = distributed.place((keys, values), NamedSharding(mesh, runs))
    start = mapped(init, (runs, runs), specs)
    advance = mapped(chunk, (specs, runs), (specs, runs), donate_argnums=0)
    finals = mapped(params, (specs,), runs)

    def compile_ahead(ahead: Callable, state) -> None:
        ahead("advance", advance)(state, values)

    def begin(step: int = 0):
        return start(jax.vmap(lambda key: jax.random.fold_in(key, step))(keys) if step else keys, values)

    return Program(begin, lambda state: advance(state, values), finals, compile=compile_ahead)


def _pmap_program(sizes, keys, values, init, chunk, params) -> Program:
    """The Program by pmap, its state with devices first; either the runs or the envs are split over the devices."""
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
    """One row of metrics: means over the runs, the worst evaluated return, and each run's own (the first 64)."""
    row = {name: float(np.mean(x)) for name, x in metrics.items()}
    shown = metrics["eval/return" if "eval/return" in metrics else "episode/return"]
    if len(shown) > 1:
        row["runs/worst"] = float(np.min(shown))
        row |= {f"runs/{i}": float(x) for i, x in enumerate(shown[:64])}
    return row
