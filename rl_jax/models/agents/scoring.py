"""What learning sees of an agent: log-probs, entropies and values of given steps. `core.types.Score` says why.

    score(params, inputs)                              -> TokenScores [n, T]
    predict(params, inputs)                            -> (TokenScores [n, T], values float32 [n, T, K])
    predict_ahead(params, inputs, next_observations)   -> (TokenScores, values, next_values float32 [n, T, K])

inputs is StepInputs of n single steps, T = 1, or SequenceInputs of n rows of T steps. A step is in the place of a
token. Every agent has `predict` and `predict_ahead`; both run its networks once. An agent of another kind (one that
denoises in several turns, say) brings its own pair, and control.loss takes its scores and values unchanged.
"""

from collections.abc import Callable

import chex
import jax

from rl_jax.core.types import Params, Score, SequenceInputs, StepInputs, TokenScores
from rl_jax.models.agents.distributions import Distribution


def make_score(agent) -> Score:
    """The scores of agent.predict without its values: score(params, inputs) -> TokenScores [n, T]."""
    return lambda params, inputs: agent.predict(params, inputs)[0]


def predict_steps(policy: Callable, value: Callable, distribution: Distribution) -> tuple[Callable, Callable]:
    """(predict, predict_ahead) of two networks that read single steps.

    Args:
      policy: (params, observations [n, ...]) -> float32 [n, distribution.num_outputs].
      value: (params, observations [n, ...]) -> float32 [n, K].
      distribution: of the actions.

    Returns:
      Two functions of StepInputs, with T = 1.
    """

    def predict(params: Params, inputs: StepInputs):
        outputs, values = policy(params, inputs.observations), value(params, inputs.observations)
        scores = _scores(distribution, outputs, inputs.actions)
        return jax.tree.map(lambda x: x[:, None], scores), values[:, None]

    def predict_ahead(params: Params, inputs: StepInputs, next_observations: chex.Array):
        # Computed even if no episode was cut off, when a state's V' is just V of the next column.
        return *predict(params, inputs), value(params, next_observations)[:, None]

    return predict, predict_ahead


def predict_rows(unroll: Callable, look_ahead: Callable, distribution: Distribution) -> tuple[Callable, Callable]:
    """(predict, predict_ahead) of networks with memory, which read rows of T steps.

    Args:
      unroll: of MemoryAgent.
      look_ahead: of MemoryAgent.
      distribution: of the actions.

    Returns:
      Two functions of SequenceInputs.
    """

    def predict(params: Params, inputs: SequenceInputs):
        outputs, values = unroll(params, inputs.observations, inputs.memory, inputs.first)
        return _scores(distribution, outputs, inputs.actions), values

    def predict_ahead(params: Params, inputs: SequenceInputs, next_observations: chex.Array):
        outputs, *values = look_ahead(params, inputs.observations, inputs.memory, inputs.first, next_observations)
        return _scores(distribution, outputs, inputs.actions), *values

    return predict, predict_ahead


def _scores(distribution: Distribution, outputs: chex.Array, actions: chex.Array) -> TokenScores:
    return TokenScores(distribution.log_prob(outputs, actions), distribution.entropy(outputs))
