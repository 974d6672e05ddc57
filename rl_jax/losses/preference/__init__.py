"""Preference losses as slots: token weights and score maps, scales, offsets, comparators, links, weights, regularizers.

rl_jax.dpo puts them together; every function here is arithmetic on arrays. N prompts, K responses of each (the best one
first), C tokens a response.
"""
