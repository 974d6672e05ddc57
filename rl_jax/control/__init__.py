"""PPO for environments, top to bottom: one update of an actor and a critic from T steps of B environments.

    o        <- (o - mean) / std of all observations so far (optional)                trackers.feature_moments
    A, G     = GAE(r, V, V'), truncated episodes bootstrapping with V'                advantages.steps.gae
    A        <- (A - mean) / std over the whole batch, once
    epochs x minibatches of single steps:
    loss     = max(-A r, -A clip(r, 1 - c, 1 + c)) + value_coef (V - G)^2 / 2 - entropy_coef H       ppo.loss

Every right-hand side is the function that also trains language models, on arrays [B, T], with one step in the place of
one token. REINFORCE, A2C, KL-penalised PPO, MDPO and V-trace are other choices of the same slots
(configs/control/environments.py).

`make_update` gives pure functions on a ControlState. They work under jit, lax.scan (a whole training run), lax.map or
vmap (seeds and hyper-parameters) and, with `axis_name`, under pmap or shard_map with the environments spread over
devices. Params are one flat vector: an optimizer then takes 3 loops instead of 40 for a tree of 12 leaves.
`make_trust_region_update` (TRPO) and `make_pathwise_update` (through the environment) give updates of the same form,
and so do `make_denoising_update`, for chains of denoising steps, and `make_semi_policy_update`, for noised samples that
won. `make_bilevel_update` learns the reward, too, from how the policy behaves that it trains. `make_objectives_update`
has a critic per objective, and `make_front_update` many policies for a front.
`off_policy.make_replay_update` learns from a replay instead: DQN, TD3, SAC and their kin.

Without a reward: reward_learning.py and cpl.py learn from preferences between segments (segments.py) a reward or the
policy; self_play.py pays an episode for being preferred to others.
"""

from rl_jax.control.algorithm import Algorithm, assign, loss, whitened
from rl_jax.control.bilevel_update import make_bilevel_update
from rl_jax.control.denoising import make_denoising_update
from rl_jax.control.objectives import make_objectives_update
from rl_jax.control.pareto_search import make_front_update
from rl_jax.control.pathwise import make_pathwise_update
from rl_jax.control.semi_policy import make_semi_policy_update
from rl_jax.control.sequences import by_rows
from rl_jax.control.trust_region import make_trust_region_update
from rl_jax.control.update import ControlState, make_update, normalizer, shuffled, unraveler

__all__ = [
    "Algorithm",
    "ControlState",
    "assign",
    "by_rows",
    "loss",
    "make_bilevel_update",
    "make_denoising_update",
    "make_front_update",
    "make_objectives_update",
    "make_pathwise_update",
    "make_semi_policy_update",
    "make_trust_region_update",
    "make_update",
    "normalizer",
    "shuffled",
    "unraveler",
    "whitened",
]
