"""MuJoCo playground's environments in our protocol (the optional extra `playground`)."""

from rl_jax.envs.adapters.adapting import check_name, from_brax_interface
from rl_jax.envs.protocol import Environment

try:
    from mujoco_playground import dm_control_suite, registry
    from mujoco_playground._src import mjx_env
except ImportError as error:
    raise ImportError("MuJoCo playground environments need the extra: pip install -e '.[playground]'") from error


def make(name: str, *, impl: str = "jax", observation: str = "state", **overrides) -> Environment:
    """mujoco_playground.registry.load(name), without its wrappers.

    Robots and hands need a model collection that the library would download; they are refused until it is on disk. A
    state of MJX takes kilobytes: for many environments see load_vector's fresh_starts.

    Args:
      name: registered with playground.
      impl: of MJX, "jax" or "warp", which needs an NVIDIA GPU.
      observation: which entry to observe, if observations are a dictionary.
      **overrides: fields of the environment's config, such as episode_length, its time limit (truncation), and
        action_repeat, how many steps of theirs are one of ours (both count theirs).

    Returns:
      Environment.

    Raises:
      ValueError: if the name, a field or the entry is unknown, or the models are missing.
    """
    check_name("mujoco_playground", name, registry.ALL_ENVS)
    if name not in dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
        raise ValueError(
            f"playground/{name} needs the models of mujoco_menagerie: clone them to {mjx_env.MENAGERIE_PATH}, or load "
            f"the environment once with mujoco_playground itself, which downloads them"
        )
    settings = registry.get_default_config(name)
    if "impl" in settings:
        overrides["impl"] = impl
    unknown = sorted(set(overrides) - set(settings))
    if unknown:
        raise ValueError(f"playground/{name} has no field {unknown}; it has: {', '.join(sorted(settings))}")
    env = registry.load(name, config_overrides=overrides)
    length = overrides.get("episode_length", settings.episode_length)
    repeat = overrides.get("action_repeat", settings.get("action_repeat", 1))
    return from_brax_interface(f"playground/{name}", env, length, observation, repeat)
