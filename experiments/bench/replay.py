"""Environment steps per second of SAC and DQN, learning included, compared with other libraries in one run.

    python -m experiments.bench.replay                                                # ours, 1 and 64 seeds
    python -m experiments.bench.replay --peer sb3=PYTHON --peer sbx=PYTHON            # PYTHON: one that has the peer
    python -m experiments.bench.replay --work=defaults --peer sb3=PYTHON              # Stable-Baselines3's own numbers
    python -m experiments.bench.replay --method=sac --hidden=256,256 --batch_size=256 --peer sbx=PYTHON

--work=zoo: SAC on Pendulum, networks 64x64, 128 draws: 1 environment, a gradient step per step. DQN on CartPole, RL
Baselines3 Zoo's numbers with 8 environments, 256x256, 64 draws: 128 gradient steps every 32 steps of each. Both are
configs/control/replay.py's `pendulum,sac` and `cartpole` (with the plain target, which both peers have).
--work=defaults: what Stable-Baselines3 does unless it is told otherwise, in the same environments, one of each. SAC:
256x256, 256 draws, a gradient step per step. DQN: 64x64, 32 draws, a gradient step every 4 steps, a copy every 10,000.

Each side is a process of its own, which compiles once and then takes turns with all the others. A turn trains each seed
for `steps` environment steps, after the same random ones.

One JSON line per method and number of seeds. `steps_per_s` is a side's median over the rounds, of all its seeds
together. A peer trains one seed at a time, so it is measured with one; `ratio` is ours over that. `return` is the mean
over the seeds of the episodes in the last tenth; a peer's model learns on from turn to turn, since a new one would be
compiled anew. `compile_s` is reported separately.
"""

import argparse
import json
import os
import pathlib
import sys

from experiments.bench import control, turns
from experiments.bench.grpo import named_peers

SCRIPT = pathlib.Path(__file__).parent / "peers" / "baselines_replay.py"
PEERS = {"sb3": SCRIPT, "sbx": SCRIPT}
METHODS = {"sac": "pendulum,sac", "dqn": "cartpole,dqn"}
# Changes of a config: of Stable-Baselines3 2.9.2, the defaults of SAC and DQN and of their MlpPolicy. Its replay has a
# million steps, of which a turn fills --steps.
WORKS = {
    "zoo": {"sac": {}, "dqn": {}},
    "defaults": {
        "sac": {
            "replay": {"capacity": 1_000_000, "warmup": 100, "batch_size": 256},
            "network": {"hidden": (256, 256)},
            "train": {"optimizer": {"learning_rate": 3e-4}, "actor_optimizer": {"learning_rate": 3e-4}},
        },
        "dqn": {
            "sample": {"num_envs": 1, "num_steps": 4},
            "replay": {"capacity": 1_000_000, "warmup": 100, "batch_size": 32},
            "network": {"hidden": (64, 64)},
            "algorithm": {"target_every": 2500, "exploration": {"initial": 1.0, "final": 0.05, "fraction": 0.1}},
            "train": {"gradient_steps": 1, "optimizer": {"learning_rate": 1e-4}},
        },
    },
}


def make_config(method: str, *, steps: int, work: str = "zoo", hidden: str = "", batch_size: int = 0):
    """The config that every side trains by.

    Args:
      method: a key of METHODS.
      steps: environment steps of a seed, after the warm-up.
      work: a key of WORKS.
      hidden: sizes of the hidden layers, "256,256"; "": the config's.
      batch_size: draws per gradient step; 0: the config's.
    """
    from configs.control import replay as configs

    config = configs.get_config(METHODS[method])
    if method == "dqn":
        config.algorithm.method.double = False
    config.update(WORKS[work][method])
    if hidden:
        config.network.hidden = tuple(map(int, hidden.split(",")))
    if batch_size:
        config.replay.batch_size = batch_size
    config.eval.num_episodes = 0
    size = config.sample.num_envs * config.sample.num_steps
    config.log_every = config.checkpoint.every = max(steps // (10 * size), 1)  # a tenth
    config.train.total_steps = min(10, max(steps // size, 1)) * config.log_every * size
    return config


def ours(config, seeds: int, devices: int):
    """(compile seconds, function that trains all seeds and returns their final returns [seeds], steps per seed)."""
    from experiments.parts import control_runs, control_setup, replay_runs

    config.num_seeds = seeds
    if devices > 1 and seeds % devices == 0:
        config.mesh = f"seeds:{devices}"
    updates = control_setup.num_updates(config)

    def make_program():
        return control_runs.make_program(config, replay_runs.make_replay_run)

    seconds, train = control.trainer(make_program, updates // config.log_every)
    return seconds, train, config.train.total_steps


def work_of(config, method: str) -> dict:
    """What a peer needs to do the same."""
    sample, replay, algorithm, train = config.sample, config.replay, config.algorithm, config.train
    return {
        "method": method,
        "steps": train.total_steps,
        "hidden": list(config.network.hidden),
        "envs": sample.num_envs,
        "every": sample.num_steps,
        "gradient_steps": train.gradient_steps,
        "batch_size": replay.batch_size,
        "capacity": replay.capacity,
        "warmup": replay.warmup,
        "rate": train.optimizer.learning_rate,
        "discount": algorithm.discount,
        "tau": algorithm.tau,
        # Ours counts gradient steps, theirs steps of the environments.
        "target_every": algorithm.target_every * sample.num_envs * sample.num_steps // train.gradient_steps,
        "exploration": algorithm.exploration.to_dict(),
    }


def configured(method: str, options):
    """`make_config` of a method by the command line."""
    given = dict(steps=options.steps, work=options.work, hidden=options.hidden, batch_size=options.batch_size)
    return make_config(method, **given)


def measure(method: str, sizes: list[int], peers: dict[str, str], options) -> list[dict]:
    """A row for each number of seeds; every side takes a turn in every round. peers: name -> Python."""
    config = configured(method, options)
    own = [f"--method={method}", f"--work={options.work}", f"--steps={options.steps}", f"--devices={options.devices}"]
    own += [f"--hidden={options.hidden}", f"--batch_size={options.batch_size}"]
    command = [sys.executable, "-m", "experiments.bench.replay", *own]
    sides = {seeds: turns.Side([*command, f"--side={seeds}"]) for seeds in sizes}
    work = json.dumps(work_of(config, method))
    sides |= {name: turns.Side([python, str(PEERS[name]), name, work]) for name, python in peers.items()}
    results = turns.take_turns(sides, options.rounds)
    rows = []
    for seeds in sizes:
        row = {"method": method, "work": options.work, "seeds": seeds}
        row |= {"steps_a_seed": config.train.total_steps, "ours": results[seeds]}
        row |= {name: results[name] for name in peers}
        ratios = {name: results[seeds]["steps_per_s"] / results[name]["steps_per_s"] for name in peers}
        rows.append(row | {f"ratio_{name}": round(x, 3) for name, x in ratios.items()})
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Parses the command line and prints one line per method and number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="sac,dqn")
    parser.add_argument("--work", default="zoo", choices=tuple(WORKS))
    parser.add_argument("--seeds", default="1,64")
    parser.add_argument("--steps", type=int, default=10_240, help="environment steps per seed and turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=os.cpu_count())
    parser.add_argument("--hidden", default="", help="sizes of the hidden layers; empty: the config's")
    parser.add_argument("--batch_size", type=int, default=0, help="draws per gradient step; 0: the config's")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, NAME one of sb3, sbx")
    parser.add_argument("--side", type=int, default=0, help=argparse.SUPPRESS)  # train so many seeds of ours
    options = parser.parse_args(arguments)
    peers = named_peers(parser, options.peer, PEERS)
    methods = options.method.split(",")
    if unknown := set(methods) - set(METHODS):
        parser.error(f"--method: {sorted(unknown)} is none of {', '.join(METHODS)}")
    if options.side:
        config = configured(*methods, options)
        seconds, train, steps = ours(config, options.side, options.devices)
        turns.serve(seconds, train, options.side * steps)
        return
    for method in methods:
        for row in measure(method, list(map(int, options.seeds.split(","))), peers, options):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
