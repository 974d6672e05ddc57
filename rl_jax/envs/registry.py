"""Environments by name: "probes/matching", "gymnax/CartPole-v1", "brax/ant", "gymnasium/my_module:MyEnv-v0"."""

import importlib

from rl_jax.core.binding import bind
from rl_jax.envs.protocol import Environment, Vector, vectorize
from rl_jax.envs.starts import vectorize_keeping
from rl_jax.envs.worlds import objectives, probes, teams

# Each is rl_jax.envs.adapters.from_NAME, which imports the library. Its environments are pure functions, or live on
# the host.
PURE = ("gymnax", "brax", "playground", "jumanji", "craftax", "navix")
HOSTED = ("gymnasium", "envpool", "host", "metaworld")
OWN = {"probes": probes, "objectives": objectives, "agents": teams}  # of ours, by the functions of a module


def load(name: str, **keywords) -> Environment:
    """The environment of this name.

    Args:
      name: LIBRARY/NAME.
      **keywords: of the environment, or of its adapter's `make`.

    Returns:
      Environment.

    Raises:
      ValueError: if the name is unknown, or the environment lives on the host (use load_vector).
      ImportError: if the library is not installed; the message says what to install.
    """
    library, _, rest = name.partition("/")
    if library in OWN:
        return bind({"fn": rest, **keywords}, OWN[library])()
    if library in PURE:
        return _adapter(library).make(rest, **keywords)
    if library in HOSTED:
        raise ValueError(f"{name} runs on the host and only as a vector of environments: use load_vector")
    known = ", ".join(f"{library}/NAME" for library in (*OWN, *PURE, *HOSTED))
    raise ValueError(f"env.name={name!r} is none of {known}")


def load_vector(name: str, num_envs: int, *, fresh_starts: int | None = None, **keywords) -> Vector:
    """num_envs copies of an environment, with automatic reset.

    Args:
      name: LIBRARY/NAME.
      num_envs: B.
      fresh_starts: None samples a separate start for each step of each environment before a rollout
        (protocol.vectorize). A number is for states that are large or slow to make: each environment keeps its next
        start, and this many of them are resampled at each step (starts.vectorize_keeping). Environments on the host
        ignore it.
      **keywords: as for `load`.

    Returns:
      Vector.

    Raises:
      ValueError: if the name is unknown.
      ImportError: as `load`.
    """
    library, _, rest = name.partition("/")
    if on_host(name):
        return _adapter(library).make_vector(rest, num_envs, **keywords)
    env = load(name, **keywords)
    return vectorize(env, num_envs) if fresh_starts is None else vectorize_keeping(env, num_envs, fresh=fresh_starts)


def on_host(name: str) -> bool:
    """Whether the environment of this name lives on the host; nothing is loaded."""
    return name.partition("/")[0] in HOSTED


def _adapter(library: str):
    return importlib.import_module(f"rl_jax.envs.adapters.from_{library}")
