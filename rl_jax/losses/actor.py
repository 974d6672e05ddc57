"""Losses of actors that a critic teaches, and of SAC's temperature; arrays [N], one entry per state."""

import chex
import jax
import jax.numpy as jnp


def deterministic(values: chex.Array) -> chex.Array:
    """-Q(s, pi(s)), float [N]: DDPG's and TD3's actor. values: float [N], differentiated through the action."""
    return -values


def soft(log_probs: chex.Array, values: chex.Array, temperature: chex.Array) -> chex.Array:
    """alpha log pi(a|s) - Q(s, a), a sampled from pi by reparametrisation: SAC's actor. float [N].

    Args:
      log_probs: float [N], differentiated.
      values: float [N], differentiated through the action.
      temperature: alpha, float [] or [N]; data.

    Source: arXiv 1812.05905 equation 9.
    """
    chex.assert_equal_shape([log_probs, values])
    return jax.lax.stop_gradient(temperature) * log_probs - values


def soft_discrete(log_probs: chex.Array, values: chex.Array, temperature: chex.Array) -> chex.Array:
    """sum_a pi(a|s) (alpha log pi(a|s) - Q(s, a)), float [N]: the same over all of A actions.

    Args:
      log_probs: float [N, A], differentiated.
      values: float [N, A]; data.
      temperature: alpha, float []; data.

    Source: arXiv 1910.07207.
    """
    chex.assert_equal_shape([log_probs, values])
    values, temperature = jax.lax.stop_gradient((values, temperature))
    return jnp.sum(jnp.exp(log_probs) * (temperature * log_probs - values), axis=-1)


def soft_value(log_probs: chex.Array, values: chex.Array, temperature: chex.Array) -> chex.Array:
    """V(s) = sum_a pi(a|s) (Q(s, a) - alpha log pi(a|s)), float [N]. log_probs, values: float [N, A]."""
    chex.assert_equal_shape([log_probs, values])
    return jnp.sum(jnp.exp(log_probs) * (values - temperature * log_probs), axis=-1)


def temperature(log_temperature: chex.Array, entropies: chex.Array, target: float) -> chex.Array:
    """log alpha (H - target), float [N]: alpha falls where the policy is more random than the target asks for.

    Args:
      log_temperature: float [] or [N], differentiated.
      entropies: float [N], or -log pi(a|s), its sample; data.
      target: in nats.

    Source: arXiv 1812.05905 section 5; by log alpha, as in its authors' code.
    """
    return log_temperature * jax.lax.stop_gradient(entropies - target)
