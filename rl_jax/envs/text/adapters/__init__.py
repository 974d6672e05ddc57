"""Environments of text of other libraries, each an extra (pyproject.toml). A config names one by its path.

config.agent.env = dict(fn="rl_jax.envs.text.adapters.reasoning:ReasoningGym", tasks=("chain_sum",))
"""
