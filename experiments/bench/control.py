"""Environment steps per second, learning included, compared with other libraries in one run: one JSON line per size.

    python -m experiments.bench.control                                     # ours, 1, 16, 64 and 256 seeds
    python -m experiments.bench.control --peer purejaxrl=FOLDER --seeds=1,16
    python -m experiments.bench.control --peer sb3 --peer rejax --seeds=1 --steps=50000

CartPole with purejaxrl's default settings: 4 environments, 128 steps, 4 epochs of 4 minibatches, two tanh layers of 64
for the actor and for the critic, a learning rate decayed from 2.5e-4 to 0. FOLDER holds purejaxrl's ppo.py and
wrappers.py; rejax and sb3 (Stable-Baselines3) are imported. Each side of each size is a process of its own, which
compiles once and then takes turns with all the others. A turn trains each seed for `steps` environment steps.

`steps_per_s` is a side's median over the rounds, of all its seeds together; `ratio` is ours over the peer's; `return`
is the mean over the seeds at the end of training; `compile_s` is reported separately. Ours uses as many simulated
devices as there are cores, if the seeds divide over them; `--devices=1` uses one.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

from experiments.bench import control_peers, turns


def ours(seeds: int, steps: int, devices: int):
    """(compile seconds, function that trains all seeds and returns their final returns [seeds], steps per seed)."""
    from configs.control import environments as configs
    from experiments.parts import control_runs, control_setup

    config = configs.get_config("cartpole")
    config.num_seeds = seeds
    config.sample.update(num_envs=4, num_steps=128)
    config.algorithm.update(entropy_coef=0.01, normalize_rewards=False)
    config.train.optimizer.learning_rate = 2.5e-4
    config.eval.num_episodes = 0
    config.log_every = config.checkpoint.every = max(steps // (10 * 512), 1)  # a tenth
    config.train.total_steps = min(10 * config.log_every * 512, steps)
    if devices > 1 and seeds % devices == 0:
        config.mesh = f"seeds:{devices}"
    updates = control_setup.num_updates(config)
    seconds, train = trainer(lambda: control_runs.make_program(config), updates // config.log_every)
    return seconds, train, updates * 512


def trainer(make_program: Callable, calls: int):
    """(compile seconds, function that trains all seeds and returns their final returns [seeds]).

    Args:
      make_program: () -> control_runs.Program.
      calls: of its `advance` in one training.
    """
    start = time.perf_counter()
    program = make_program()

    def train() -> np.ndarray:
        state = program.init()
        for _ in range(calls):
            state, metrics = program.advance(state)
            jax.block_until_ready(state)  # keep simulated devices from running ahead
        return np.asarray(metrics["episode/return"])

    state = jax.block_until_ready(program.advance(program.init())[0])
    compiled = time.perf_counter()
    jax.block_until_ready(program.advance(state))
    running = time.perf_counter() - compiled
    return compiled - start - running, train


def worker(options) -> None:
    """One side: compiles, reports that, then trains once per line on standard input."""
    if options.side == "ours":
        seconds, train, steps = ours(options.seeds, options.steps, options.devices)
    else:
        name, _, folder = options.side.partition("=")
        seconds, train, steps = control_peers.PEERS[name](folder, options.seeds, options.steps)
    turns.serve(seconds, train, options.seeds * steps)


def command_of(side: str, seeds: int, options) -> list[str]:
    """The command of a side's process."""
    own = [f"--side={side}", f"--seeds={seeds}", f"--steps={options.steps}", f"--devices={options.devices}"]
    return [sys.executable, "-m", "experiments.bench.control", *own]


def measure(sizes: list[int], options) -> list[dict]:
    """The sides' results for each number of seeds, and the ratios; every side takes a turn in every round."""
    names = ["ours", *options.peer]
    sides = {(n, name): turns.Side(command_of(name, n, options)) for n in sizes for name in names}
    results = turns.take_turns(sides, options.rounds)
    rows = []
    for seeds in sizes:
        result = {name.partition("=")[0]: results[seeds, name] for name in names}
        row = {"seeds": seeds, "steps_a_seed": options.steps, **result}
        for name in list(result)[1:]:
            row[f"ratio_{name}"] = round(result["ours"]["steps_per_s"] / result[name]["steps_per_s"], 3)
        rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Parses the command line and prints one line per number of seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1,16,64,256")
    parser.add_argument("--steps", type=int, default=500_000, help="environment steps per seed and turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=os.cpu_count())
    parser.add_argument("--peer", action="append", default=[], help="purejaxrl=FOLDER of its ppo.py, rejax, or sb3")
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for peer in options.peer:
        name, _, folder = peer.partition("=")
        if name not in control_peers.PEERS:
            parser.error(f"--peer={peer}: expected one of {', '.join(control_peers.PEERS)}")
        if name == "purejaxrl" and not os.path.isfile(os.path.join(folder, "ppo.py")):
            parser.error(f"--peer={peer}: expected purejaxrl=FOLDER with its ppo.py")
    if options.side:
        options.seeds = int(options.seeds)
        worker(options)
        return
    for row in measure(list(map(int, options.seeds.split(","))), options):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
