"""Streaming accumulation: what couples a batch is refused by name; the rest is the step on all rows."""

import pytest

from configs.methods import _start
from experiments.parts import streaming
from experiments.tools import methods

# Advantages, weights and losses that need the whole batch, by what shows it.
COUPLED = {
    "adaptive_entropy": "algorithm.trackers.entropy",
    "clip_cov": "token_weight='clip_cov'",
    "flash_reinforce": "advantage='batch_centered'",
    "m2po": "surrogate, kl, aggregate='rl_jax.losses.policy.stale:m2po'",
}
FREE = ["grpo", "decoupled_ppo", "cispo"]


def config_of(key):
    config = methods.load(key)
    config.train.update(epochs=1, minibatches=1)
    return config


@pytest.mark.parametrize("key", FREE)
def test_methods_whose_groups_stand_alone(key):
    streaming.check(config_of(key))


@pytest.mark.parametrize("key", COUPLED)
def test_methods_that_couple_a_batch_are_refused_by_name(key):
    with pytest.raises(ValueError, match=COUPLED[key]):
        streaming.check(config_of(key))


def test_several_updates_are_refused():
    with pytest.raises(ValueError, match="train.minibatches=4: it sees the whole batch"):
        streaming.check(_start.grpo("grpo", None))


def whole_batch_std(rewards):
    return rewards / rewards.std()


def test_a_function_of_ones_own_is_tried_too():
    config = config_of("grpo")
    config.algorithm.advantage = dict(fn=f"{__name__}:whole_batch_std")
    with pytest.raises(ValueError, match="whole_batch_std.*changes with the groups beside it"):
        streaming.check(config)
