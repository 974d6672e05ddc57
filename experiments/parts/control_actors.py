"""The actors of experiments.control_async, from its config; also what an actor's process runs.

python -m experiments.parts.control_actors SPEC.json WORKER        # started by the program, frames on its pipes
"""

import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts.control_setup import make_algorithm, make_network
from rl_jax import control, envs
from rl_jax.envs.host_worlds import load_host_env
from rl_jax.rollout.actors.acting import Acting, Inline, Remote, make_act
from rl_jax.rollout.actors.fleet import Fleet, Layout
from rl_jax.rollout.actors.stage import Stage
from rl_jax.rollout.actors.workers import ProcessWorker, ThreadWorker, serve

SPEC = "actors.json"  # in the workdir: what an actor's process needs of the config
KEY = 1 << 20  # of the seed, for what actors draw; the params have another


def make_env(config) -> Callable:
    """() -> one environment of config.env."""
    return functools.partial(load_host_env, **config.env.to_dict())


def layout_of(config) -> Layout:
    """Which worker steps which environment. Raises ValueError if they do not divide."""
    actors = config.actors
    return Layout(config.sample.num_envs, actors.block, actors.ring, actors.count).check()


def settings_of(config) -> dict:
    """The groups algorithm and train, as control_setup.make_algorithm takes them."""
    fixed = dict(kl_control=dict(fn=""), normalize_observations=False, normalize_rewards=False)
    # Above 1: the learner's log-probs are computed, because the actor's are of older weights.
    return {"algorithm": config.algorithm.to_dict() | fixed | {"actor_lag": 2}, "train": config.train.to_dict()}


def make_agent(config):
    """(agent, algorithm) of the environment's spaces. Raises ValueError if the network has a memory."""
    if config.network.kind != "mlp":
        raise ValueError(f"network.kind={config.network.kind!r}: actors keep no memory, set it to 'mlp'")
    env = make_env(config)()
    spaces = envs.Vector(None, None, None, 1, env.observation_space, env.action_space, pure=False)
    algorithm = make_algorithm(settings_of(config))
    fields = ConfigDict({"network": config.network.to_dict(), "env": {"frame_stack": 1}})
    return make_network(fields, spaces, algorithm.objective.num_outputs()), algorithm


def make_forward(config, agent) -> Callable:
    """The actors' compiled forward (acting.make_act)."""
    key = jax.random.fold_in(jax.random.key(config.seed), KEY)
    return make_act(agent, control.unraveler(agent), key, block=config.actors.block)


def make_stage(config, worker: int, act: Callable | None) -> Stage:
    """The stage of a worker; with `act`, one that has the policy."""
    if act is None:
        return Stage(make_env(config), config.seed)
    layout = layout_of(config)
    blocks = layout.blocks_of(worker, range(layout.ring))
    return Acting(make_env(config), config.seed, act, {block: layout.envs([block]) for block in blocks})


def make_actors(config, workdir: pathlib.Path, act: Callable):
    """The actors of a run, not started yet.

    Args:
      config: of the program.
      workdir: where a process finds its part of the config.
      act: of `make_forward`.

    Returns:
      (fleet, acting.Remote or acting.Inline).
    """
    inline = config.actors.inference == "inline"

    def start(worker: int):
        if config.actors.kind == "thread":
            return ThreadWorker(make_stage(config, worker, act if inline else None).handle)
        # On the CPU: the accelerator is the trainer's.
        command = [sys.executable, "-m", "experiments.parts.control_actors", str(workdir / SPEC), str(worker)]
        variables = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        return ProcessWorker(command, variables, config.actors.timeout_s)

    if config.actors.kind == "process":
        groups = ("env", "sample", "actors", "network", "algorithm", "train")
        spec = {name: config[name].to_dict() for name in groups} | {"seed": config.seed}
        (workdir / SPEC).write_text(json.dumps(spec))
    options = {name: config.actors[name] for name in ("timeout_s", "restarts")}
    fleet = Fleet(start, layout_of(config), no_actions(config), **options)
    return fleet, Inline(fleet) if inline else Remote(fleet, act)


def no_actions(config) -> np.ndarray:
    """No actions of the environment: [0, ...] of their type."""
    space = make_env(config)().action_space
    return np.zeros((0,), np.int32) if isinstance(space, envs.Discrete) else np.zeros((0, *space.shape), np.float32)


def main(spec: str, worker: str) -> None:
    """Answers the program's frames until it is gone. What a library prints goes to standard error."""
    write = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    config = ConfigDict(json.loads(pathlib.Path(spec).read_text()))
    inline = config.actors.inference == "inline"
    act = make_forward(config, make_agent(config)[0]) if inline else None
    serve(make_stage(config, int(worker), act).handle, sys.stdin.buffer, write)


if __name__ == "__main__":
    main(*sys.argv[1:])
