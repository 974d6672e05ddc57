"""rl_jax: policy optimization in JAX. Losses are arithmetic on arrays; start reading at `rl_jax/grpo.py`."""

__version__ = "0.1.0"
