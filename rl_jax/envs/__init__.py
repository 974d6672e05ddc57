"""Environments as pure functions: one small protocol (protocol), probes, and adapters of other libraries by name."""

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, Vector, scale_reward, time_limit, vectorize
from rl_jax.envs.registry import load, load_vector

__all__ = [
    "Box",
    "Discrete",
    "Environment",
    "Step",
    "Vector",
    "load",
    "load_vector",
    "scale_reward",
    "time_limit",
    "vectorize",
]
