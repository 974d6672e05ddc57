"""Environments as pure functions: a small protocol, probe environments, and adapters for other libraries, by name."""

from rl_jax.envs.objectives import conditioned, scalarized
from rl_jax.envs.protocol import (
    Agents,
    Box,
    Discrete,
    Environment,
    Joint,
    Step,
    Vector,
    time_limit,
    vectorize,
)
from rl_jax.envs.registry import load, load_vector, on_host
from rl_jax.envs.wrappers import frame_stack, select_features

__all__ = [
    "Agents",
    "Box",
    "Discrete",
    "Environment",
    "Joint",
    "Step",
    "Vector",
    "conditioned",
    "frame_stack",
    "load",
    "load_vector",
    "on_host",
    "scalarized",
    "select_features",
    "time_limit",
    "vectorize",
]
