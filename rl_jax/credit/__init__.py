"""From rewards to advantages and token weights: shaping, KL in the reward, process rewards, ensembles of judges."""

from rl_jax.credit.rule import CreditRule, Earned, assign, token_advantages, token_rewards, weigh

__all__ = ["CreditRule", "Earned", "assign", "token_advantages", "token_rewards", "weigh"]
