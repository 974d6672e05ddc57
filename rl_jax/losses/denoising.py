"""Losses of denoising steps. A step is x' = mean + std e, and everything here is in units of std.

    a = (x' - mean of the pretrained model) / std,   m = (mean of the model - mean of the pretrained model) / std
    log p(x') = -mean_d (a - m)^2 / 2 + const

Log-probs are means over coordinates, not sums, as in the code of DDPO, D3PO and Flow-GRPO: clips and weights keep their
size for images of any number of pixels.
"""

import chex
import jax
import jax.numpy as jnp


def step_log_prob(actions: chex.Array, means: chex.Array) -> chex.Array:
    """-mean_d (a - m)^2 / 2, the log-prob per coordinate up to a constant: float [...] of [..., D]."""
    chex.assert_equal_shape([actions, means])
    return -0.5 * jnp.mean(jnp.square(actions - means), axis=-1)


def clipped(ratios: chex.Array, advantages: chex.Array, *, clip: float | chex.Array) -> chex.Array:
    """max(-A r, -A clip(r, 1 - c, 1 + c)), float [...]. Source: DDPO, arXiv 2305.13301.

    Args:
      ratios: r of a step, float [...].
      advantages: A, float [...].
      clip: c.
    """
    chex.assert_equal_shape([ratios, advantages])
    return jnp.maximum(-advantages * ratios, -advantages * jnp.clip(ratios, 1.0 - clip, 1.0 + clip))


def normalized_ratio(actions: chex.Array, means: chex.Array, old_means: chex.Array, std: chex.Array) -> chex.Array:
    """GRPO-Guard's ratio: no mean bias, and the same spread at every step. float [...] of [..., D].

        r = exp( std (log p - log p_old + mean_d (m - m_old)^2 / 2) ) = exp( std mean_d (m - m_old) (a - m_old) )

    The log-ratio of two Gaussians is negative in the mean, by its KL, and scales with 1 / std: a plain clip is
    one-sided and binds at the last steps only. Source: arXiv 2510.22319 eq. 8 and its code in yifan123/flow_grpo.

    Args:
      actions: a.
      means: m, differentiated.
      old_means: m_old, of the model that sampled.
      std: of x', sigma_t sqrt(dt), float [...].
    """
    chex.assert_equal_shape([actions, means, old_means])
    bias = 0.5 * jnp.mean(jnp.square(means - old_means), axis=-1)
    gap = step_log_prob(actions, means) - step_log_prob(actions, old_means)
    return jnp.exp((gap + bias) * std)


def preferred(gaps: chex.Array, signs: chex.Array, *, beta: float | chex.Array, clip: float | chex.Array) -> chex.Array:
    """D3PO's loss of one step of two chains, float [...].

        -log sigmoid( beta sum_i s_i log clip(exp(d_i), 1 - c, 1 + c) )

    The clip makes the gradient 0 outside of it; c = inf is DPO with single steps in the place of answers. A tie, s = 0,
    is a constant. Source: arXiv 2311.13231; yk7333/d3po, train_d3po.py.

    Args:
      gaps: d, log p - log p_ref, float [..., 2].
      signs: 1 for the chain that is preferred, -1 for the other, 0 for both in a tie; float [..., 2].
      beta: scale.
      clip: c.
    """
    chex.assert_equal_shape([gaps, signs])
    inside = jnp.log(jnp.clip(jnp.exp(gaps), jnp.maximum(1.0 - clip, 1e-30), 1.0 + clip))
    return -jax.nn.log_sigmoid(beta * jnp.sum(signs * inside, axis=-1))


def prediction_error(actions: chex.Array, means: chex.Array, gains: chex.Array) -> chex.Array:
    """mean_d (e - e_hat)^2 of a prediction of the noise, from the units of steps: float [...] of [..., D].

        mean_d ((a - m) / gain)^2,      a = gain (e - e_pretrained),   m = gain (e_hat - e_pretrained)

    Args:
      actions: a, of Environment.noised.
      means: m, of the model.
      gains: push / std, which takes the noise to the step's own units, float [...].
    """
    chex.assert_equal_shape([actions, means])
    chex.assert_shape(gains, actions.shape[:-1])
    return jnp.mean(jnp.square((actions - means) / gains[..., None]), axis=-1)


def anchored_signs(errors: chex.Array, ref_errors: chex.Array) -> chex.Array:
    """SePPO's criterion: whether samples of a reference are losers, from how well both models predict the winners.

        sign( err_ref(x_w) - err(x_w) ):     1, a loser: the model is the better one at the winner;   -1, a winner

    0 if they are equal, as at a checkpoint that is still the model. Nothing flows through it. Source: arXiv 2410.05255.

    Args:
      errors: of the model at the winners, float [...].
      ref_errors: of the reference there, float [...].
    """
    chex.assert_equal_shape([errors, ref_errors])
    return jax.lax.stop_gradient(jnp.sign(ref_errors - errors))


def semi_policy(
    errors: chex.Array, ref_errors: chex.Array, signs: chex.Array, *, beta: float | chex.Array
) -> chex.Array:
    """SePPO's loss of winners and of samples of a reference, float [...].

        -log sigmoid( -beta ( (err_w - err_ref_w) - s (err_r - err_ref_r) ) )

    With s = 1 it is Diffusion-DPO (arXiv 2311.12908) with the reference's own sample as the loser, as SPIN-Diffusion
    has it; with s = -1 both samples are winners. beta stands for beta T omega of the equation; Diffusion-DPO's code has
    half of its beta there. Source: arXiv 2410.05255.

    Args:
      errors: of the model at a winner and at a sample of the reference, float [..., 2], differentiated.
      ref_errors: of the reference at the same, float [..., 2].
      signs: s, of anchored_signs, float [...].
      beta: scale.
    """
    chex.assert_equal_shape([errors, ref_errors])
    chex.assert_shape(signs, errors.shape[:-1])
    gaps = errors - ref_errors
    return -jax.nn.log_sigmoid(-beta * (gaps[..., 0] - signs * gaps[..., 1]))
