"""The actor of a chain of denoising steps: a correction of the pretrained model's prediction.

    mean of a = gain_t u_theta(x, prompt, t),      gain_t = push_t / std_t, from the observation

so the parameters are those of a network that predicts the noise or the velocity, as a real one does, and how far a
change of them moves a step depends on t as it does there (rl_jax.envs.worlds.denoising). The critic reads the same.
"""

import chex

from rl_jax.core.types import Params
from rl_jax.models.agents.actor_critic import Agent, make_agent
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.scoring import predict_steps

READ, GAIN = 5, 5  # x, the prompt's direction and the time are read; the gain comes after them


def make_denoiser(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
) -> Agent:
    """An Agent for the observations of worlds.denoising, close to the pretrained model at the start.

    Args:
      observation_shape: (9,).
      distribution: unit_gaussian.
      num_values: K.
      hidden: widths of the layers.
      activation: as of make_agent.

    Raises:
      ValueError: if the observations have another shape, or the distribution is another.
    """
    if tuple(observation_shape) != (9,) or distribution.num_outputs != 2:
        raise ValueError(
            f"a denoiser is for probes/denoise and network.distribution='unit_gaussian', not for observations of shape "
            f"{tuple(observation_shape)} and {distribution.num_outputs} outputs"
        )
    inner = make_agent((READ,), distribution, num_values=num_values, hidden=hidden, activation=activation)

    def policy(params: Params, observations: chex.Array) -> chex.Array:
        return inner.policy(params, observations[:, :READ]) * observations[:, GAIN, None]

    def value(params: Params, observations: chex.Array) -> chex.Array:
        return inner.value(params, observations[:, :READ])

    predict, predict_ahead = predict_steps(policy, value, distribution)
    return inner._replace(policy=policy, value=value, predict=predict, predict_ahead=predict_ahead)
