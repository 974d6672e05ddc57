"""brax's environments in our protocol (the optional extra `brax`)."""

from rl_jax.envs.adapters.adapting import check_name, construct, from_brax_interface
from rl_jax.envs.protocol import Environment

try:
    import brax.envs
except ImportError as error:
    raise ImportError("brax environments need the extra: pip install -e '.[brax]'") from error


def make(name: str, *, episode_length: int = 1000, observation: str = "state", **keywords) -> Environment:
    """brax.envs.get_environment(name, **keywords), without its wrappers.

    A physics state takes kilobytes: for many environments see load_vector's fresh_starts.

    Args:
      name: registered with brax.
      episode_length: time limit (truncation), as in brax.envs.create.
      observation: which entry to observe, if observations are a dictionary.
      **keywords: of the environment, such as backend="spring".

    Returns:
      Environment.

    Raises:
      ValueError: if the name, a keyword or the entry is unknown.
    """
    check_name("brax", name, brax.envs._envs)
    env = construct(f"brax/{name}", lambda **given: brax.envs.get_environment(name, **given), **keywords)
    return from_brax_interface(f"brax/{name}", env, episode_length, observation)
