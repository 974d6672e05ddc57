"""PPO with a critic (arXiv 1707.06347, 1909.08593) on generated arithmetic, from the same warm start as GRPO.

    python -m experiments.ppo --config=configs/tasks/arithmetic_ppo.py --workdir=runs/arithmetic_ppo

The task, model and warm start of configs/tasks/arithmetic.py. Instead of comparing 8 answers to a problem with each
other, a critic predicts the expected reward after each token. Arguments: `smoke` (seconds, for CI), `hl_gauss` and
`mse` (the critic's loss, see configs/papers/hl_gauss.py), `shared` (the critic is a head on the policy).
"""

from configs import common, ppo_common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "hl_gauss", "mse", "shared"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "arithmetic_ppo"
    # Two epochs of two minibatches: the critic needs more updates than GRPO's one per step.
    config.train.update(epochs=2, minibatches=2)
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.01)
    if "smoke" not in words:
        config.train.steps = 100
        config.train.optimizer.decay_steps = 4 * 100 - 10  # updates
        config.eval.every = 25
    ppo_common.with_critic(
        config,
        warmup_steps=10,
        support=dict(low=-0.5, high=1.0, num_bins=51, padding=3),
        optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10),
    )
    if "hl_gauss" in words:
        config.critic.loss = dict(fn="hl_gauss")
    if "mse" in words:
        config.critic.loss = dict(fn="mse")
    if "shared" in words:
        config.critic.update(shared=True, warmup_steps=0)
    if "smoke" in words and not config.critic.shared:
        config.critic.warmup_steps = 1
    return config
