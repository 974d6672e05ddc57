"""The probe of rl_jax.testing as the configs of GRPO's and PPO's methods build it."""

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import actor_critic, policy, trackers
from rl_jax.testing import probes


class Prompts:
    """Stands in for a task where only its number of prompts counts."""

    def __init__(self, count: int):
        self.count = count

    def data_source(self, split: str) -> range:
        return range(self.count)


def counted(batch, rows: int):
    """The PolicyBatch with batch_rows, the rows of one update, which experiments.parts.policy.minibatches adds."""
    live = batch.completion_mask.shape[:1]
    return batch._replace(extras=batch.extras | {"batch_rows": jnp.full(live, float(rows))})


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
    return found._replace(estimator=actor_critic.make_estimator(config), critic=actor_critic.make_objective(config))


def memory_of(config: ConfigDict) -> probes.Memory:
    """The trackers of the config, by place."""
    made = trackers.make_trackers(config, Prompts(len(probes.ANSWERS)))
    prompts = np.repeat(probes.PROMPTS, probes.GROUP_SIZE)
    rows = len(prompts) // config.train.minibatches

    def observe(states, rewards, metrics):
        """As in experiments.parts.trackers.observe, which works on the host."""
        kl, entropy = metrics["kl/k1"], metrics["entropy"]
        count = jnp.float32(len(rewards))
        of_prompts = (prompts, rewards, jnp.zeros_like(rewards))
        baseline = of_prompts if hasattr(states.get("baseline"), "values") else (rewards,)
        seen = {"baseline": baseline, "reward_kl": (kl, count), "loss_kl": (kl, count), "entropy": (entropy,)}
        return {
            place: made[place].update(state, *seen[place]) if place in seen else state
            for place, state in states.items()
        }

    return probes.Memory(
        init=lambda: trackers.init(made),
        see_rewards=lambda states, rewards: trackers.see_rewards(made, states, rewards),
        known=lambda states: trackers.known(config, states, {"prompt_ids": prompts}),
        weigh=lambda batch, states: counted(trackers.weigh(batch, states), rows),
        observe=observe,
    )
