"""GRPO learns, and only from the reward: the loop of experiments.grpo on a reward for writing sevens, in seconds.

The policy starts from random params, so a seven comes up now and then (about one token in sixteen). The share of
completions with a seven must rise by MARGIN; under an advantage of the wrong sign, or rewards dealt out at random to
the wrong completions, it must not rise by half of that.
"""

import json

import numpy as np
import pytest

from experiments import grpo
from rl_jax import advantages
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.experiments.small import has_a_seven, kept_signals, no_evaluations, reward  # noqa: F401  a fixture

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_signals", "no_evaluations")]

MARGIN = 0.5
STEPS = 40


def against(rewards, *, group_size):
    """The advantage's sign turned round."""
    return -advantages.group_relative(rewards, group_size=group_size)


def gain(tmp_path, seed, **choices) -> float:
    """The mean reward of the last ten steps less that of the first two."""
    config = small_config(
        tmp_path,
        reward__function=reward(has_a_seven),
        seed=seed,
        train__steps=STEPS,
        sample__group_size=8,
        train__optimizer__learning_rate=5e-3,
        eval__every=1000,
        checkpoint__every=1000,
    )
    with config.unlocked():
        for name, choice in choices.items():
            config.algorithm[name] = choice
    grpo.run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows[1:]]
    return float(np.mean(rewards[-10:]) - np.mean(rewards[:2]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reward_rises(tmp_path, seed):
    found = gain(tmp_path, seed)
    assert found > MARGIN


@pytest.mark.parametrize("seed", [0, 1])
def test_shuffled_rewards_teach_nothing(tmp_path, seed):
    found = gain(tmp_path, seed, shaping=dict(fn="shuffled"))
    assert found < MARGIN / 2


def test_the_wrong_sign_does_not_learn(tmp_path):
    found = gain(tmp_path, 0, advantage=dict(fn=against))
    assert found < 0.0
