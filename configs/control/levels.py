"""Published returns for the environments of configs/control/environments.py. See experiments.tools.control_levels."""

from typing import NamedTuple


class Level(NamedTuple):
    """A published return.

    Attributes:
      word: argument of configs/control/environments.py.
      name: of the environment.
      level: the return.
      of: "seeds": each seed has to reach it (a threshold at which the environment counts as solved). "mean": the mean
        has to reach it, as published.
      source: who published it, where, and for what.
    """

    word: str
    name: str
    level: float
    of: str
    source: str


THRESHOLD = "gymnasium's reward_threshold (gymnasium/envs/__init__.py), a mean of 100 episodes"
LEVELS = (
    Level("cartpole", "CartPole-v1", 475.0, "seeds", THRESHOLD),
    Level("acrobot", "Acrobot-v1", -100.0, "seeds", THRESHOLD),
    Level("mountain_car", "MountainCar-v0", -110.0, "seeds", THRESHOLD),
    Level(
        "pendulum",
        "Pendulum-v1",
        -172.225,
        "mean",
        "RL Baselines3 Zoo, benchmark.md: its PPO after 100k steps, the mode of one trained agent over 750 episodes, "
        "whose standard deviation is 104",
    ),
    Level(
        "breakout",
        "Breakout-MinAtar",
        24.0,
        "mean",
        "purejaxrl's PPO after 2M of its 10M steps, read off docs/minatar_plot_seconds.png (19 to 27 about there)",
    ),
)
