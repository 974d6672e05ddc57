"""Networks as pure functions over params."""

from rl_jax.models.hf.loading import load, save_hf
from rl_jax.models.transformer.model import make_transformer

__all__ = ["load", "make_transformer", "save_hf"]
