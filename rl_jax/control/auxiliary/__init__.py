"""Auxiliary losses on the actor's representation z = features(o), by name: config.algorithm.auxiliary.

temporal   info_nce(G(z_t, a_t) W z_{t+1}^T)                           TACO 2306.13229 with K = 1 and nothing else
taco       info_nce(G(z_t, u_t, ..., u_{t+K-1}) W z_{t+K}^T) + CURL + rewards           TACO 2306.13229
agent_model    two_sided of two parts of a window of observations                  CLAM 2401.00132
views      info_nce or robust on two masked views of each observation     iSogCLR 2305.11965
anchors    anchored on two masked views: a moving average and a tau for each observation      iSogCLR 2305.11965
reward_and_state    cross entropy of the reward's sign and the square of the state, from z     Lucy-SKG 2305.15801
reward_sequence_and_state    the same, as its code has it: an LSTM over 20 z, and a bottleneck of 16 numbers
rep_mtl    the same and the next state, with the entropy and the alignment of what they ask of z    Rep-MTL 2507.21049
"""

from rl_jax.control.auxiliary.agent_modelling import agent_model, cropped, episodes_of
from rl_jax.control.auxiliary.base import Auxiliary
from rl_jax.control.auxiliary.masked_views import anchors, slots_of, two_views, views
from rl_jax.control.auxiliary.predictions import reward_and_state, temporal
from rl_jax.control.auxiliary.reward_sequences import reward_sequence_and_state, steps_behind
from rl_jax.control.auxiliary.several_steps import steps_ahead, taco
from rl_jax.control.auxiliary.shared_tasks import rep_mtl

__all__ = ["Auxiliary", "anchors", "reward_and_state", "slots_of", "steps_ahead", "taco", "temporal", "two_views"]
__all__ += ["reward_sequence_and_state", "steps_behind"]
__all__ += ["agent_model", "cropped", "episodes_of", "rep_mtl", "views"]
