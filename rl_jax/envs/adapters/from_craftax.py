"""Craftax and Craftax-Classic in our protocol (the optional extra `craftax`), symbolic or in pixels."""

import chex
import jax.numpy as jnp

from rl_jax.envs.adapters.adapting import box, check_name, with_fields
from rl_jax.envs.protocol import Discrete, Environment, Step, time_limit

try:
    from craftax.craftax_env import make_craftax_env_from_name
except ImportError as error:
    raise ImportError("craftax environments need the extra: pip install -e '.[craftax]'") from error

NAMES = [f"Craftax-{version}{kind}-v1" for version in ("", "Classic-") for kind in ("Symbolic", "Pixels")]
NEVER = 2**31 - 1


def make(name: str, **params) -> Environment:
    """Craftax of this name without its automatic reset; its time limit is a truncation.

    A state takes tens of kilobytes and longer to make than a step: for many environments see load_vector's
    fresh_starts.

    Args:
      name: one of NAMES.
      **params: fields of its EnvParams to set, such as max_timesteps.

    Returns:
      Environment.

    Raises:
      ValueError: if the name or a field is unknown.
    """
    check_name("craftax", name, NAMES)
    env = make_craftax_env_from_name(name, auto_reset=False)
    settings = with_fields(name, env.default_params, params)
    limit = settings.max_timesteps
    settings = settings.replace(max_timesteps=NEVER)  # else it ends an episode there as if the player had died

    def reset(key: chex.PRNGKey):
        observation, state = env.reset_env(key, settings)
        return state, jnp.asarray(observation, jnp.float32)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        observation, state, reward, done, _ = env.step_env(key, state, action, settings)
        terminated = jnp.asarray(done, bool)
        reward = jnp.asarray(reward, jnp.float32)
        return state, Step(jnp.asarray(observation, jnp.float32), reward, terminated, jnp.zeros_like(terminated))

    seen = env.observation_space(settings)
    actions = Discrete(int(env.action_space(settings).n))
    return time_limit(Environment(reset, step, box(seen.low, seen.high, seen.shape), actions), limit)
