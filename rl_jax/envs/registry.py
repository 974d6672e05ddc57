"""Environments by name: "probes/matching", "gymnax/CartPole-v1", "brax/ant", "gymnasium/my_module:MyEnv-v0"."""

import importlib

from rl_jax.core.binding import bind
from rl_jax.envs.protocol import Environment, Vector, vectorize
from rl_jax.envs.starts import vectorize_keeping
from rl_jax.envs.worlds import probes

# Each is rl_jax.envs.from_NAME, which imports the library; its environments are pure functions, or live on the host.
PURE = ("gymnax", "brax", "playground", "jumanji", "craftax", "navix")
HOSTED = ("gymnasium", "envpool")


def load(name: str, **keywords) -> Environment:
    """The environment of that name. keywords: its own, or those of its adapter's `make`.

    Raises ValueError for a name that no library here has, and ImportError that says what to install.
    """
    library, _, rest = name.partition("/")
    if library == "probes":
        return bind({"fn": rest, **keywords}, probes)()
    if library in PURE:
        return _adapter(library).make(rest, **keywords)
    if library in HOSTED:
        raise ValueError(f"{name} lives on the host, as a vector only: use load_vector")
    known = ", ".join(f"{library}/NAME" for library in ("probes", *PURE, *HOSTED))
    raise ValueError(f"environment {name!r} is none of {known}")


def load_vector(name: str, num_envs: int, *, fresh_starts: int | None = None, **keywords) -> Vector:
    """num_envs copies of the environment of that name, which start again by themselves. Raises as `load`.

    fresh_starts: None, each step of each world has a start of its own, drawn before a rollout (protocol.vectorize). A
        number, for states that are large or dear to make: each world keeps its next start, and so many of these are
        drawn anew at each step (starts.vectorize_keeping). Worlds of the host draw theirs as they please.
    """
    library, _, rest = name.partition("/")
    if library in HOSTED:
        return _adapter(library).make_vector(rest, num_envs, **keywords)
    env = load(name, **keywords)
    return vectorize(env, num_envs) if fresh_starts is None else vectorize_keeping(env, num_envs, fresh=fresh_starts)


def _adapter(library: str):
    return importlib.import_module(f"rl_jax.envs.adapters.from_{library}")
