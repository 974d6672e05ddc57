"""Kills the trainer, policy workers and actors of a control run; the rest must end as one process that was left alone.

    python -m experiments.tools.control_kills --kills=20

Two runs of experiments.control.asynchronous at its smallest size, counted: one process; and a trainer, policy workers
and actors as processes of their own over the network (loopback, with a token), each killed by SIGKILL in turn, at
drawn moments, and started again by the same call. Their logs and final.json must be equal in every byte. The
processes are forks of this one, which has imported everything and started nothing. The last line is JSON; the exit
code is 1 if a file differs.
"""

import argparse
import contextlib
import functools
import itertools
import json
import pathlib
import random
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from configs.control import asynchronous as control_config
from experiments.control import asynchronous as control_async
from experiments.parts import control_roles
from experiments.parts.async_links import Secrets, make_link, make_server
from experiments.tools import chaos
from experiments.tools.async_kills import LIMIT_S, killed_on_the_way
from experiments.tools.kills import Fork
from rl_jax.training import compilation

UPDATES, EVERY = 24, 2  # of a run, and from checkpoint to checkpoint


def config_of(policies: int, actors: int, updates: int = UPDATES):
    """The smallest run."""
    config = control_config.get_config("smoke")
    config.train.total_steps = updates * config.sample.num_envs * config.sample.num_steps
    config.checkpoint.every, config.eval.every = EVERY, 0
    config.actors.update(policies=policies, count=actors)
    return config.lock()


def quiet_port() -> int:
    """A free port below those that the system hands out: nobody takes it while its process is away."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return probe.getsockname()[1]


class Sides:
    """The processes of a run.

    Args:
      folder: for what they print.
      workdir: of the run.
      config: of the run.
      token: of its links; None draws one.
      ports: of the trainer and of each policy worker; None takes free ones.
    """

    def __init__(self, folder: pathlib.Path, workdir: pathlib.Path, config, token: str | None = None, ports=None):
        self._folder, self.workdir, self._config = folder, workdir, config
        self._secrets = Secrets(token or secrets.token_urlsafe(32))
        self._ports = ports or [quiet_port() for _ in range(1 + config.actors.policies)]

    def to_json(self) -> str:
        """For another process, which starts some of them."""
        config = self._config.to_dict()
        return json.dumps([str(self._folder), str(self.workdir), config, self._secrets.token, self._ports])

    @classmethod
    def of_json(cls, text: str) -> "Sides":
        """Those of `to_json`."""
        folder, workdir, config, token, ports = json.loads(text)
        return cls(pathlib.Path(folder), pathlib.Path(workdir), ConfigDict(config), token, ports)

    def names(self) -> list[str]:
        """The processes of a run with roles."""
        actors, policies = range(self._config.actors.count), range(self._config.actors.policies)
        workers = [f"policy {policy}" for policy in policies]
        return ["trainer 0", *workers, *(f"actor {policy} {actor}" for policy in policies for actor in actors)]

    def start(self, name: str) -> Fork:
        """Starts "both", "trainer 0", "policy I" or "actor I J"."""
        role, *which = name.split()
        call = functools.partial(getattr(self, f"_{role}"), *map(int, which))
        return Fork(call, self._folder / f"{self.workdir.name}_{name.replace(' ', '_')}.txt")

    def _both(self) -> None:
        control_async.run(self._config, self.workdir)

    def _trainer(self, _: int) -> None:
        self.run_trainer()

    def run_trainer(self, around: Callable = lambda link: link) -> None:
        """Runs the trainer in this process. around: what is made of its link."""
        keep = control_roles.keep_of(self._config)
        link = make_link("trainer", self.workdir, self._at(0), self._secrets, keep=keep)
        control_async.run(self._config, self.workdir, link=around(link))

    def _policy(self, index: int) -> None:
        check = functools.partial(control_roles.differences, control_roles.shared(self._config))
        link = make_link("sampler", self.workdir, self._at(0), self._secrets)
        server = make_server(self._at(1 + index), self._secrets, check)
        control_async.run_policy(self._config, self.workdir, link, index=index, server=server)

    def _actor(self, policy: int, index: int) -> None:
        control_async.run_actor(self._config, self._at(1 + policy), self._secrets, index=index)

    def _at(self, place: int) -> str:
        return f"grpc://127.0.0.1:{self._ports[place]}"


def to_the_end(sides: Sides, kills: int, updates: int, seed: int) -> list[str]:
    """Runs the processes to their end, and kills one after the other. Returns which were killed."""
    names, order = sides.names(), itertools.cycle(sides.names()[::-1])
    draw = random.Random(seed)
    return killed_on_the_way(sides, names, lambda: next(order), draw, kills, rows=updates - 2, pause_s=0.05)


def check(kills: int, folder: pathlib.Path, seed: int, *, policies: int, actors: int, updates: int) -> dict:
    """Both runs. Returns who was killed, the files of the undisturbed run, and the names of those that differ."""
    folder.mkdir(parents=True)
    config = config_of(policies, actors, updates)
    if status := Sides(folder, folder / "one", config).start("both").wait(LIMIT_S):
        raise RuntimeError(f"the run of one process ended with status {status}: see {folder}")
    killed = to_the_end(Sides(folder, folder / "roles", config), kills, updates, seed)
    expected, found = chaos.results_of(folder / "one"), chaos.results_of(folder / "roles")
    differ = sorted(file for file in expected | found if expected.get(file) != found.get(file))
    return {"killed": killed, "files": sorted(expected), "differ": differ}


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of all processes together, in turn")
    parser.add_argument("--policies", type=int, default=2, help="policy workers")
    parser.add_argument("--actors", type=int, default=2, help="actors of each")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of each run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    sizes = dict(policies=options.policies, actors=options.actors, updates=options.updates)
    with tempfile.TemporaryDirectory(prefix="rl_jax-control-kills-") as folder:
        if not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(pathlib.Path(folder) / "xla")
        found = check(options.kills, pathlib.Path(folder) / "runs", options.seed, **sizes)
    print("roles: " + (f"DIFFERS in {', '.join(found['differ'])}" if found["differ"] else "equal to one process"))
    print(f"killed: {', '.join(found['killed'])}")
    print(json.dumps({"tool": "control_kills", "options": vars(options), **found}))
    return 1 if found["differ"] or "final.json" not in found["files"] else 0


if __name__ == "__main__":
    sys.exit(main())
