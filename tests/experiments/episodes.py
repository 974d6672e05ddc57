"""Made-up episodes of environments, and the folder of a run that has recorded them.

By hand: python -m tests.experiments.episodes FOLDER [ENVIRONMENT].
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from experiments.report import render
from rl_jax.runs.logging import RunLogger
from rl_jax.runs.run_record import write_run_record


def episode(observations, actions, rewards=None, *, terminated=True):
    """What record_episode gives, of [T + 1] observations and [T] actions."""
    observations, actions = np.asarray(observations, np.float32), np.asarray(actions)
    rewards = np.ones(len(actions), np.float32) if rewards is None else np.asarray(rewards, np.float32)
    return SimpleNamespace(
        observations=observations[:-1], last=observations[-1], actions=actions, rewards=rewards,
        length=np.int32(len(actions)), terminated=np.bool_(terminated), truncated=np.bool_(not terminated),
    )  # fmt: skip


def board(steps: int = 30) -> np.ndarray:
    """Observations of a game like Breakout: a paddle to and fro, a ball down and up, three rows of bricks."""
    found = np.zeros((steps + 1, 10, 10, 4))
    found[:, 1:4, :, 3] = 1
    for t in range(steps + 1):
        found[t, 9, abs(t % 18 - 9), 0] = 1
        found[t, 8 - abs(t % 8 - 4), abs((t + 3) % 18 - 9), 1] = 1
    found[steps // 2 :, 3, 4:6, 3] = 0
    return found


def rows(step: int = 400) -> dict[str, dict]:
    """Rows of episodes.jsonl by the name of the environment."""
    angle, place = np.linspace(np.pi, 0, 41), np.linspace(-1.1, 0.5, 41)
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros(41)
    made = {
        "gymnax/CartPole-v1": episode(np.stack([place, zero, 0.2 * sin, zero], 1), np.arange(40) % 2),
        "gymnax/Pendulum-v1": episode(np.stack([cos, sin, zero], 1), np.linspace(-2, 2, 40)[:, None], terminated=False),
        "gymnax/Acrobot-v1": episode(np.stack([cos, sin, cos, sin, zero, zero], 1), np.arange(40) % 3, -np.ones(40)),
        "gymnax/MountainCar-v0": episode(np.stack([place, zero], 1), np.arange(40) % 3, -np.ones(40)),
        "gymnax/Breakout-MinAtar": episode(board(), np.arange(30) % 3, np.arange(30) % 5 == 0),
        "probes/aim": episode([[1.0], [1.0]], np.array([[0.4]]), [-0.01]),
    }
    return {name: render.episode_row(found, step=step, env=name) for name, found in made.items()}


def write_control_run(workdir, *, seeds: int = 10, length: int = 30, name: str = "gymnax/CartPole-v1", sweep=()):
    """Writes the folder of a training in environments: its seeds get better, and two episodes are there."""
    config = {"seed": 0, "num_seeds": seeds, "env": {"name": name}, "sweep": sweep, "runs": []}
    write_run_record(workdir, config=config, command=["control"], task=name, algorithm="control.ppo")
    rng = np.random.default_rng(0)
    with RunLogger(workdir, total_steps=50 * length, progress=False, tensorboard=False) as log:
        log.rows(render.EPISODES, [rows(step=0)[name]])
        for row in range(1, length + 1):
            reached = 500 * (1 - np.exp(-4 * row / length * rng.uniform(0.8, 1.2, seeds * len(sweep or [0]))))
            metrics = {f"runs/{i}": value for i, value in enumerate(reached)} if len(reached) > 1 else {}
            metrics |= {"runs/worst": reached.min()} if len(reached) > 1 else {}
            metrics |= {"eval/return": reached.mean(), "episode/return": 0.9 * reached.mean(), "loss": 0.1 / row}
            metrics |= {"entropy": -0.01 * row, "clip/high": 0.1, "clip/low": 0.05, "grad_norm": 0.4, "kl/k3": 0.01}
            metrics |= {"env_steps": 51_200 * row, "nonfinite/skipped": 0, "value/explained_variance": 0.5}
            log.log(50 * row, metrics, {"train_s": 9.0 if row == 1 else 0.5, "env_steps_per_s": 1.0e6})
        log.rows(render.EPISODES, [rows(step=50 * length)[name]])
    return workdir


if __name__ == "__main__":
    write_control_run(Path(sys.argv[1]), name=sys.argv[2] if len(sys.argv) > 2 else "gymnax/CartPole-v1")
