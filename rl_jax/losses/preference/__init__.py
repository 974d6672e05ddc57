"""Preference losses as slots: token weights and score maps, scales, offsets, comparators, links, weights, regularizers.

rl_jax.dpo combines them; every function here is arithmetic on arrays. N prompts, K responses per prompt (the best one
first), C tokens per response.
"""
