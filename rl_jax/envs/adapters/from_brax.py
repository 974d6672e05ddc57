"""brax's environments in our protocol (the optional extra `brax`)."""

from rl_jax.envs.adapters.adapting import check_name, construct, from_brax_interface
from rl_jax.envs.protocol import Environment

try:
    import brax.envs
except ImportError as error:
    raise ImportError("brax environments need the extra: pip install 'rl_jax[brax]'") from error


def make(name: str, *, episode_length: int = 1000, observation: str = "state", **keywords) -> Environment:
    """brax.envs.get_environment(name, **keywords), without its wrappers.

    episode_length: of brax.envs.create, its time limit, which is truncation. observation: which entry is observed,
    where they are a dictionary. keywords: the environment's own, such as backend="spring".
    A state of the physics takes kilobytes: for many worlds see load_vector's fresh_starts.
    Raises ValueError for an unknown name, keyword or entry.
    """
    check_name("brax", name, brax.envs._envs)
    env = construct(f"brax/{name}", lambda **given: brax.envs.get_environment(name, **given), **keywords)
    return from_brax_interface(f"brax/{name}", env, episode_length, observation)
