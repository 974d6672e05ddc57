"""Losses are arithmetic on arrays: log-probs, advantages and a mask go in, per-token values come out."""

from rl_jax.losses import aggregate as aggregate
from rl_jax.losses import kl as kl
from rl_jax.losses import policy as policy
from rl_jax.losses import preference as preference
from rl_jax.losses import reward_model as reward_model
from rl_jax.losses import value as value
