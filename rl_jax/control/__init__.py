"""PPO where it grew up, top to bottom: one update of an actor and a critic from T steps of B environments.

    o        <- (o - mean) / std of all observations so far, where wanted             trackers.feature_moments
    A, G     = GAE(r, V, V'), truncated episodes going on with V'                     advantages.steps.gae
    A        <- (A - mean) / std over the whole batch, once
    epochs x minibatches of single steps:
    loss     = max(-A r, -A clip(r, 1 - c, 1 + c)) + value_coef (V - G)^2 / 2 - entropy_coef H       ppo.loss

Every right-hand side is the function that trains language models, on arrays [B, T]; a step stands where a token does.
REINFORCE, A2C, KL-penalised PPO, MDPO and V-trace are other choices of the same slots
(configs/control/environments.py).

`make_update` gives pure functions on a ControlState: they go through jit, lax.scan (the whole of a training), lax.map
or vmap (seeds and hyper-parameters) and, with `axis_name`, through pmap or shard_map with the worlds spread over
devices. Params travel as one vector: an optimizer then takes 3 loops where a tree of 12 leaves took 40.
`make_trust_region_update` (TRPO) and `make_pathwise_update` (through the environment) are updates of the same shape.
"""

from rl_jax.control.algorithm import Algorithm, Steps, assign, minibatch_loss, whitened
from rl_jax.control.pathwise import make_pathwise_update
from rl_jax.control.sequences import by_rows
from rl_jax.control.trust_region import make_trust_region_update
from rl_jax.control.update import ControlState, make_update, shuffled, unraveler

__all__ = [
    "Algorithm",
    "ControlState",
    "Steps",
    "assign",
    "by_rows",
    "make_pathwise_update",
    "make_trust_region_update",
    "make_update",
    "minibatch_loss",
    "shuffled",
    "unraveler",
    "whitened",
]
