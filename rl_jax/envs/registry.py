"""Environments by name: "probes/matching", "gymnax/CartPole-v1", "gymnasium/my_module:MyEnv-v0"."""

from rl_jax.binding import bind
from rl_jax.envs import probes
from rl_jax.envs.protocol import Environment, Vector, vectorize


def load(name: str, **keywords) -> Environment:
    """The environment of that name. keywords: its own (probes), or its parameters (gymnax).

    Raises ValueError for a name that no library here has, and ImportError that says what to install.
    """
    library, _, rest = name.partition("/")
    if library == "probes":
        return bind({"fn": rest, **keywords}, probes)()
    if library == "gymnax":
        from rl_jax.envs import from_gymnax

        return from_gymnax.make(rest, **keywords)
    if library == "gymnasium":
        raise ValueError(f"{name} lives on the host, as a vector only: use load_vector")
    raise ValueError(f"environment {name!r}: write probes/NAME, gymnax/NAME or gymnasium/NAME")


def load_vector(name: str, num_envs: int, **keywords) -> Vector:
    """num_envs copies of the environment of that name, which start again by themselves. Raises as `load`."""
    if name.startswith("gymnasium/"):
        from rl_jax.envs import from_gymnasium

        return from_gymnasium.make_vector(name.partition("/")[2], num_envs, **keywords)
    return vectorize(load(name, **keywords), num_envs)
