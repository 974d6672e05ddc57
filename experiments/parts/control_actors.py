"""The actors of experiments.control.asynchronous, from its config; also what an actor's process runs.

python -m experiments.parts.control_actors SPEC.json        # started by the program, frames on its pipes
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
from rl_jax.flow.requests import RequestServer
from rl_jax.rollout.actors.acting import Acting, Inline, Remote, make_act
from rl_jax.rollout.actors.fleet import Fleet, Layout
from rl_jax.rollout.actors.sampler import Sampler, Segment, versions_behind
from rl_jax.rollout.actors.stage import Stage
from rl_jax.rollout.actors.workers import ProcessWorker, RemoteWorker, ThreadWorker, serve
from rl_jax.runs.logging import read_jsonl

SPEC = "actors.json"  # in the workdir: what an actor's process needs of the config
KEY = 1 << 20  # of the seed, for what actors draw; the params have another


def make_env(config) -> Callable:
    """() -> one environment of config.env."""
    return functools.partial(load_host_env, **config.env.to_dict())


def layout_of(config) -> Layout:
    """Which worker steps which environment. Raises ValueError if they do not divide."""
    actors = config.actors
    whole = Layout(config.sample.num_envs, actors.block, actors.ring, actors.count, (0, actors.policies)).check()
    return whole._replace(share=(0, 1))


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


def make_stage(config, act: Callable | None = None) -> Stage:
    """The stage of a worker; one that has the policy, if each actor has it. act: of `make_forward`, made if None."""
    if config.actors.inference != "inline":
        return Stage(make_env(config), config.seed)
    act = act or make_forward(config, make_agent(config)[0])
    return Acting(make_env(config), config.seed, act, config.actors.block)


def make_actors(config, workdir: pathlib.Path, act: Callable, *, share=(0, 1), server: RequestServer | None = None):
    """The actors of a run, not started yet.

    Args:
      config: of the program.
      workdir: where a process finds its part of the config.
      act: of `make_forward`.
      share: (i, N), of N policy workers this is i.
      server: where actors come to that somebody else starts; None starts them here.

    Returns:
      (fleet, acting.Remote or acting.Inline).
    """

    def start(worker: int):
        if server is not None:
            return RemoteWorker(server.connection(str(worker), config.flow.timeout_s))
        if config.actors.kind == "thread":
            return ThreadWorker(make_stage(config, act).handle)
        # On the CPU: the accelerator is the trainer's.
        command = [sys.executable, "-m", "experiments.parts.control_actors", str(workdir / SPEC)]
        variables = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        return ProcessWorker(command, variables, config.actors.timeout_s)

    if config.actors.kind == "process" and server is None:
        groups = ("env", "sample", "actors", "network", "algorithm", "train")
        spec = {name: config[name].to_dict() for name in groups} | {"seed": config.seed}
        (workdir / SPEC).write_text(json.dumps(spec))
    options = {name: config.actors[name] for name in ("timeout_s", "restarts")}
    fleet = Fleet(start, layout_of(config)._replace(share=share), no_actions(config), **options)
    return fleet, Inline(fleet) if config.actors.inference == "inline" else Remote(fleet, act)


def no_actions(config) -> np.ndarray:
    """No actions of the environment: [0, ...] of their type."""
    space = make_env(config)().action_space
    return np.zeros((0,), np.int32) if isinstance(space, envs.Discrete) else np.zeros((0, *space.shape), np.float32)


class OwnSegments:
    """Segments of actors that this process has: what Feed takes them from in a run without roles.

    Args:
      config: of the program.
      workdir: of the run.
      act: of `make_forward`.
      total: number of segments.
      recorded: versions of a free run that is done again, by segment.

    Attributes:
      kept: versions that a checkpoint has: the newest, and those before it that may still act.
      notes: whether the versions that act are written to schedule.jsonl.
    """

    def __init__(self, config, workdir: pathlib.Path, act: Callable, total: int, recorded: dict | None = None):
        self._fleet, self._acting = make_actors(config, workdir, act)
        self._sample, self._flow, self._total, self._recorded = config.sample, config.flow, total, recorded
        self._sampler, self.notes = None, config.flow.schedule == "free" or recorded is not None
        self.kept = kept_versions(config)
        if recorded is not None:
            self.kept = 1 + max((number - 1 - versions[0] for number, versions in recorded.items()), default=0)

    def begin(self, step: int, weights: dict[int, np.ndarray], episodes: list) -> None:
        """Samples on after `step` updates. weights: by version. episodes: where the environments are."""
        self._fleet.ledger.set_state(episodes, self._fleet.empty.dtype)
        delay = None if self._flow.schedule == "free" else self._flow.delay
        schedule = dict(delay=delay, recorded=self._recorded, ahead=self._flow.ahead)
        numbers = dict(num_steps=self._sample.num_steps, first=step + 1, total=self._total)
        self._sampler = Sampler(self._acting, self._fleet.ledger, **schedule, **numbers)
        for version, params in weights.items():
            self._sampler.publish(version, params)
        self._sampler.__enter__()

    def take(self) -> Segment:
        """The next segment."""
        return self._sampler.take()

    def publish(self, version: int, params: np.ndarray) -> None:
        """Gives the actors a version."""
        self._sampler.publish(version, params)

    def settle(self) -> None:
        """A checkpoint is saved now. Nothing to do: what was sampled ahead is sampled again."""

    def close(self, error: type[BaseException] | None = None) -> None:
        """Ends the sampling and the actors, also after an error."""
        if self._sampler is not None:
            self._sampler.__exit__()
        self._fleet.close()


def kept_versions(config) -> int:
    """How many versions may act in the next segment or be the newest."""
    if config.flow.schedule == "free":
        return 1
    return 1 + versions_behind(config.sample.num_steps, config.flow.delay)


def read_schedule(folder: pathlib.Path) -> dict[int, list[int]]:
    """The versions that acted in a run, by segment. Raises ValueError if the folder has none."""
    path = folder / "schedule.jsonl"
    if not path.exists():
        raise ValueError(f"--replay={folder}: it has no {path.name}; name the workdir of a run with flow.schedule=free")
    return {row["segment"]: row["versions"] for row in read_jsonl(path)}


def main(spec: str) -> None:
    """Answers the program's frames until it is gone. What a library prints goes to standard error."""
    write = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    config = ConfigDict(json.loads(pathlib.Path(spec).read_text()))
    serve(make_stage(config).handle, sys.stdin.buffer, write)


if __name__ == "__main__":
    main(*sys.argv[1:])
