"""Extragradient: look ahead one step, then update from the original point with the gradient found there."""

from collections.abc import Callable

import optax

from rl_jax.core.types import Params


def extragradient_step(
    gradient: Callable, optimizer: optax.GradientTransformation, params: Params, opt_state: optax.OptState
) -> tuple[Params, optax.OptState]:
    """EGPO: half = theta - step g(theta; theta), theta' = theta - step g(theta; half).

    In a two-player cyclic game its last iterate converges; plain self-play, g(theta; theta), cycles. Source: arXiv
    2503.08942.

    Args:
      gradient: (params, opponent) -> gradient at params of a loss whose opponent (who samples, or is judged against) is
        the policy with the params `opponent`, a constant.
      optimizer: any; the state after the trial step is discarded.
      params: theta.
      opt_state: of the optimizer at theta.

    Returns:
      (params, opt_state) after the real step.
    """
    updates, _ = optimizer.update(gradient(params, params), opt_state, params)
    half = optax.apply_updates(params, updates)
    updates, opt_state = optimizer.update(gradient(params, half), opt_state, params)
    return optax.apply_updates(params, updates), opt_state
