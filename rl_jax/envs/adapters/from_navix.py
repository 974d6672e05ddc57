"""navix's grid environments in our protocol (the optional extra `navix`)."""

import chex
import jax.numpy as jnp

from rl_jax.envs.adapters.adapting import box, check_name, construct
from rl_jax.envs.protocol import Discrete, Environment, Step

try:
    import navix
except ImportError as error:
    raise ImportError("navix environments need the extra: pip install -e '.[navix]'") from error

OBSERVATIONS = ("symbolic", "categorical", "symbolic_first_person", "categorical_first_person")


def make(name: str, *, observation: str = "symbolic", **keywords) -> Environment:
    """navix.make(name, **keywords) without its automatic reset; its max_steps is a truncation.

    Args:
      name: registered with navix.
      observation: one of OBSERVATIONS, functions of navix.observations: float32 [height, width, channels], the ids of
        the contents of each cell (categorical: one channel; symbolic: kind, colour, state).
      **keywords: of navix.make, such as max_steps.

    Returns:
      Environment.

    Raises:
      ValueError: if the name, observation or a keyword is unknown.
    """
    check_name("navix", name, navix.registry())
    if observation not in OBSERVATIONS:
        raise ValueError(f"navix/{name}: observation={observation!r} is none of {', '.join(OBSERVATIONS)}")
    function = getattr(navix.observations, observation)
    env = construct(f"navix/{name}", lambda **given: navix.make(name, observation_fn=function, **given), **keywords)
    shape = env.observation_space.shape
    shape = (*shape, 1) if len(shape) == 2 else shape

    def observe(timestep) -> chex.Array:
        return jnp.asarray(timestep.observation, jnp.float32).reshape(shape)

    def reset(key: chex.PRNGKey):
        timestep = env.reset(key)
        # The images of the tiles, used only by rgb, would be most of the state.
        timestep = timestep.replace(state=timestep.state.replace(cache=None))
        return timestep, observe(timestep)

    def step(key: chex.PRNGKey, timestep, action: chex.Array):
        # Not env.step, which resets automatically and under vmap would sample a start at each step.
        timestep = env._step(timestep, action)
        reward = jnp.asarray(timestep.reward, jnp.float32).reshape(())
        return timestep, Step(observe(timestep), reward, timestep.is_termination(), timestep.is_truncation())

    # Bytes; navix's own bounds do not cover the player.
    return Environment(reset, step, box(0.0, 255.0, shape), Discrete(int(env.action_space.n)))
