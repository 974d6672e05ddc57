"""Imitation of optimal solutions, each part of which is an instance of its own: BQ-NCO (arXiv 2301.03313)."""

import jax.numpy as jnp

from rl_jax.control.offline.recipe import Batch, Recipe, mean, total


def bq_nco(nets) -> Recipe:
    """-log pi(k | here, what is left, the destination), k the next city of the shortest way through what is left.

    Source: arXiv 2301.03313, naver/bq-nco: cross-entropy on random parts of optimal tours.

    Args:
      nets: `policy` and `distribution`, as models.agents.offline_networks.OfflineNetworks; params {"policy"}.
    """

    def loss(params, batch: Batch):
        steps = batch.data.steps
        outputs = nets.policy(params, steps.observations)
        log_probs = nets.distribution.log_prob(outputs, steps.actions)
        agrees = (nets.distribution.mode(outputs) == steps.actions).astype(jnp.float32)
        return total(-log_probs), {"policy/log_prob": mean(log_probs), "policy/agreement": mean(agrees)}

    return Recipe(loss, ("policy",))
