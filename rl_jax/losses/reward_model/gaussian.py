"""A reward with uncertainty, fitted to labels that may be wrong: Bradley-Terry on means and on samples (PEARL).

    r_t ~ N(mu_t, sigma_t^2),  r_t = mu_t + sigma_t e_t,  e_t standard normal
    L     = CE(p, sigma(mu_1 - mu_2)) + lambda E_e CE(p, sigma(r_1 - r_2)) + alpha max(0, eta - h)
    h     = mean_t log(sigma_t) + log(2 pi e) / 2,  the entropy: sigma does not vanish where labels are wrong

mu_i and r_i without t are sums over segment i. Source: arXiv 2306.03615 equations 7 and 8 (robust reward learning), as
another program that cites them has them; the paper itself could not be read, and lambda, alpha and eta are choices.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.masked import Mean, masked_mean, zero_masked
from rl_jax.losses.preference import links


def gaussian_pairs(
    means: chex.Array,
    log_stds: chex.Array,
    mask: chex.Array,
    label_probs: chex.Array,
    key: chex.PRNGKey,
    *,
    samples: int = 5,
    sample_coef: float = 0.3,
    entropy_coef: float = 0.1,
    floor: float = 0.0,
) -> Mean:
    """L of n pairs, undivided: Mean over the pairs; the entropy is the mean over all steps under the mask.

    Args:
      means: mu, float [n, 2, K], differentiated.
      log_stds: log sigma, float [n, 2, K], differentiated.
      mask: bool [n, 2, K].
      label_probs: p, float [n], data: how likely the first is preferred.
      key: for e.
      samples: of e per pair.
      sample_coef: lambda.
      entropy_coef: alpha.
      floor: eta, in nats per step.
    """
    chex.assert_rank(means, 3)
    chex.assert_equal_shape([means, log_stds, mask])
    chex.assert_shape(label_probs, means.shape[:1])
    means, log_stds = zero_masked(means, mask), zero_masked(log_stds, mask)
    noise = jax.random.normal(key, (samples, *means.shape)) * jnp.broadcast_to(mask, (samples, *means.shape))

    def crossed(rewards: chex.Array) -> chex.Array:
        sums = jnp.sum(rewards, axis=-1)
        return links.soft_label(sums[:, 0] - sums[:, 1], label_probs=label_probs)

    sampled = jax.vmap(lambda e: crossed(means + jnp.exp(log_stds) * e))(noise)
    entropy = masked_mean(log_stds + 0.5 * np.log(2.0 * np.pi * np.e), mask).value()
    each = crossed(means) + sample_coef * jnp.mean(sampled, axis=0)
    lacking = entropy_coef * jnp.maximum(floor - entropy, 0.0)
    return Mean(jnp.sum(each) + lacking * len(each), jnp.float32(len(each)))
