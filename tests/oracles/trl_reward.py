"""TRL 1.16.0: `RewardTrainer.compute_loss`, on numpy arrays.

The method of the installed class is called on a namespace that holds its settings, with a model that gives the rewards;
chosen ones come first, then rejected ones. Answers are (value, gradient [N, 2]) in float64.

    value, gradient = trl_reward.reward_loss(rewards, margins=margins, center_rewards_coefficient=0.01)
"""

import collections
import types

import numpy as np
import torch

from tests.oracles.arrays import tensor, value_and_gradient
from tests.oracles.trl import _accelerator, _package

RewardTrainer = _package.load("trl.trainer.reward_trainer").RewardTrainer


def reward_loss(rewards, *, margins=None, center_rewards_coefficient=None):
    """RewardTrainer's loss. rewards: [N, 2], the chosen one first. margins: [N] or None."""
    rewards = np.asarray(rewards, np.float64)
    inputs = {"attention_mask": torch.ones(2 * len(rewards), 1)}
    if margins is not None:
        inputs["margin"] = tensor(margins)
    trainer = types.SimpleNamespace(
        args=types.SimpleNamespace(center_rewards_coefficient=center_rewards_coefficient),
        accelerator=types.SimpleNamespace(**vars(_accelerator()) | {"gather_for_metrics": lambda x: x}),
        _metrics={"train": collections.defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )

    def loss(stacked):
        class Model:
            training = True

            def __call__(self, **_):
                return types.SimpleNamespace(logits=stacked.T.reshape(-1, 1))

        trainer.model = Model()
        return RewardTrainer.compute_loss(trainer, trainer.model, dict(inputs))

    return value_and_gradient(loss, rewards)
