"""What a DPO policy says about single tokens: its implicit advantages and values (arXiv 2404.12358)."""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def implicit_credit(log_ratios: chex.Array, mask: chex.Array, *, beta: float) -> tuple[chex.Array, chex.Array]:
    """The credit of each token, and how the value has changed up to it.

        credit_t = beta log(pi / ref)(a_t | s_t) = Q*(s_t, a_t) - V*(s_t) = r(s_t, a_t) + V*(s_{t+1}) - V*(s_t)
        gain_t   = sum_{u <= t} credit_u,   V*(s_{t+1}) - V*(s_0) while there is no reward before the end

    Over a whole response gain is r - V*(s_0), so that differences between responses to one prompt are those of their
    rewards: DPO's implicit reward, telescoped.

    Args:
      log_ratios: float [B, C], log pi - log ref of the tokens.
      mask: bool [B, C].
      beta: of the run.

    Returns:
      (credit float [B, C], 0 outside the mask; gain float [B, C]).
    """
    chex.assert_rank([log_ratios, mask], 2)
    chex.assert_equal_shape([log_ratios, mask])
    credit = beta * zero_masked(log_ratios, mask)
    return credit, jnp.cumsum(credit, axis=1)
