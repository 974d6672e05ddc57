"""Actor and critic for control: two networks without a shared trunk, as pure functions on flat batches of observations.

Each is a torso and a linear head; weights are orthogonal as in PPO's implementations (sqrt 2 inside, .01 on the policy,
1 on the value).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax

from rl_jax.core.types import Params
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.scoring import predict_steps
from rl_jax.models.agents.torso import dense, linear, make_torso


class Agent(NamedTuple):
    """A policy and a critic.

    Attributes:
      init: (key) -> params {"actor", "critic"}.
      policy: (params, observations [N, ...]) -> float32 [N, distribution.num_outputs].
      value: (params, observations [N, ...]) -> float32 [N, K], the outputs of a value head (losses.value).
      distribution: of the actions.
      predict: (params, StepInputs [N]) -> (TokenScores [N, 1], values [N, 1, K]); see agents.scoring.
      predict_ahead: (params, StepInputs, next_observations [N, ...]) -> (TokenScores, values, next_values [N, 1, K]).
      initial_state: (B) -> (), because there is no memory (agents.memory.MemoryAgent has one).
    """

    init: Callable
    policy: Callable
    value: Callable
    distribution: Distribution
    predict: Callable
    predict_ahead: Callable
    initial_state: Callable = lambda rows: ()


def make_agent(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    channels: int = 16,
    actor_features: int = 0,
) -> Agent:
    """An Agent of two networks of the same kind.

    Args:
      observation_shape: (D,) or (H, W, C). The latter adds a 3 x 3 convolution with `channels` outputs in front, or is
        flattened if channels is 0.
      distribution: of the actions.
      num_values: K.
      hidden: widths of the layers.
      activation: one of ACTIVATIONS.
      channels: outputs of the convolution.
      actor_features: how many of the D features the actor sees, the first ones; 0 is all. The critic sees all of them:
        it may use privileged inputs (a simulator's true state), since it is not needed when the policy acts. Source:
        asymmetric actor-critic, arXiv 1710.06542; arXiv 2311.13081.

    Raises:
      ValueError: if the activation is unknown, the shape is neither of the two, or there are fewer features than asked
        for.
    """
    layers = dict(hidden=hidden, activation=activation, channels=channels)
    actor = make_torso(observation_shape, features=actor_features, **layers)
    critic = make_torso(observation_shape, **layers)

    def init_network(key: chex.PRNGKey, torso, outputs: int, scale: float) -> dict[str, Any]:
        params, head_key = torso.init(key)
        return params | {"head": dense(head_key, torso.size, outputs, scale)}

    def init(key: chex.PRNGKey) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {
            "actor": init_network(actor_key, actor, distribution.num_outputs, 0.01),
            "critic": init_network(critic_key, critic, num_values, 1.0),
        }

    def policy(params: Params, observations: chex.Array) -> chex.Array:
        return linear(actor.apply(params["actor"], observations), params["actor"]["head"])

    def value(params: Params, observations: chex.Array) -> chex.Array:
        return linear(critic.apply(params["critic"], observations), params["critic"]["head"])

    return Agent(init, policy, value, distribution, *predict_steps(policy, value, distribution))
