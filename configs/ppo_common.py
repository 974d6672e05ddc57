"""What PPO's configs have that GRPO's have not: a critic, with its defaults. See experiments.ppo."""

from ml_collections import ConfigDict

from configs import common


def critic(**changes) -> ConfigDict:
    """config.critic: how values are learned and turned into advantages. The policy's side is config.algorithm."""
    fields = dict(
        init_from="",  # a run to start from: a reward model, or a policy
        shared=False,  # a value head on the policy's trunk; False: a separate network, from the same params
        warmup_steps=0,  # the first steps train the critic alone (unless it is shared)
        offline=False,  # the others the policy alone, on the reference's answers
        # From token rewards to advantages and returns (rl_jax.advantages.tokens).
        advantage=dict(fn="gae", discount=1.0, lam=0.95),
        whiten=True,
        bootstrap_truncated=False,
        # The loss (rl_jax.losses.value).
        loss=dict(fn="clipped", value_clip=0.2),
        support=dict(low=-1.0, high=1.0, num_bins=101, padding=3),  # read by the categorical losses only
        target_rate=0.1,  # of the slow copy of critics of turns, per step; others have none
        replay=dict(steps=50, batches=0),  # of critics of turns: minibatches of turns of earlier steps, per step
        value_coef=0.1,  # weight of the value loss if the trunk is shared
        epochs=1,  # passes over a step's rows per pass of the policy; all but the last come before it
        micro_batches=1,
        max_grad_norm=1.0,
        optimizer=common.optimizer(learning_rate=1e-3),
    )
    unknown = sorted(set(changes) - set(fields))
    if unknown:
        raise ValueError(f"unknown fields {unknown}; the fields are {', '.join(fields)}")
    return ConfigDict(fields | changes)


def with_critic(config: ConfigDict, **changes) -> ConfigDict:
    """Turns a config of experiments.grpo into one of experiments.ppo. changes: as for `critic`.

    The advantages are then those of critic.advantage, so algorithm.advantage goes.
    """
    config.program = "ppo"
    del config.algorithm["advantage"]
    config.critic = critic(**changes)
    return config
