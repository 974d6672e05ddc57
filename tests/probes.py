"""The probe of rl_jax.testing as the configs of GRPO's and PPO's methods build it."""

import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments import ppo
from experiments.parts import policy, trackers
from rl_jax.testing import probes


def of_config(config: ConfigDict) -> probes.Probe:
    """The probe that trains by a method's own config, whose completion_length becomes the probe's."""
    config.rollout.completion_length = probes.LENGTH
    training = probes.Training(
        epochs=config.train.epochs,
        minibatches=config.train.minibatches,
        max_grad_norm=config.train.max_grad_norm,
        dynamic_sampling=config.sample.dynamic_sampling.max_batches > 1,
    )
    found = probes.Probe(policy.make_objective(config), policy.make_credit(config), training, memory_of(config))
    if "critic" not in config:
        return found
    return found._replace(estimator=ppo.make_estimator(config), critic=ppo.make_objective(config))


def memory_of(config: ConfigDict) -> probes.Memory:
    """The trackers of the config, by place."""
    made = trackers.make_trackers(config)

    def observe(states, rewards, metrics):
        """As in experiments.parts.trackers.observe, which works on the host."""
        kl, entropy = metrics["kl/k1"], metrics["entropy"]
        count = jnp.float32(len(rewards))
        seen = {"baseline": (rewards,), "reward_kl": (kl, count), "loss_kl": (kl, count), "entropy": (entropy,)}
        return {
            place: made[place].update(state, *seen[place]) if place in seen else state
            for place, state in states.items()
        }

    return probes.Memory(
        init=lambda: trackers.init(made),
        see_rewards=lambda states, rewards: trackers.see_rewards(made, states, rewards),
        known=lambda states: trackers.known(config, states),
        weigh=trackers.weigh,
        observe=observe,
    )
