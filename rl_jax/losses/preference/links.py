"""Slot 6: from a margin x, positive if the order is right, to a loss. Each is float [...] -> float [...].

`exo`, `saturating` and `discopop` do not push a pair that is far on the wrong side; `robust` has no lower bound.
"""

import math

import chex
import jax
import jax.numpy as jnp


def _two_sided(margins: chex.Array, right, wrong) -> chex.Array:
    """-right log sigma(x) - wrong log sigma(-x)."""
    return -right * jax.nn.log_sigmoid(margins) - wrong * jax.nn.log_sigmoid(-margins)


def logistic(margins: chex.Array, *, label_smoothing: float = 0.0) -> chex.Array:
    """l(x) = -(1 - eps) log sigma(x) - eps log sigma(-x), minimal at x = log((1 - eps) / eps).

    Args:
      margins: float [...], x.
      label_smoothing: eps, the assumed share of wrong labels; 0 is DPO (arXiv 2305.18290), > 0 is cDPO.
    """
    chex.assert_type(margins, float)
    return _two_sided(margins, 1.0 - label_smoothing, label_smoothing)


def robust(margins: chex.Array, *, flip_rate: float = 0.1) -> chex.Array:
    """rDPO: l(x) = [-(1 - eps) log sigma(x) + eps log sigma(-x)] / (1 - 2 eps), unbounded below.

    Unbiased: if a share eps of the labels is flipped, its mean is -log sigma(x) of the true label.
    Source: arXiv 2403.00409.

    Args:
      margins: float [...], x.
      flip_rate: eps, assumed known, in [0, 1/2).

    Raises:
      ValueError: if flip_rate is outside [0, 1/2).
    """
    chex.assert_type(margins, float)
    if not 0.0 <= flip_rate < 0.5:
        raise ValueError(
            f"robust: flip_rate must be in [0, 0.5), got {flip_rate}: at 0.5 the labels carry no information"
        )
    share = 1.0 - 2.0 * flip_rate
    return _two_sided(margins, (1.0 - flip_rate) / share, -flip_rate / share)


def soft_label(margins: chex.Array, *, label_probs: chex.Array) -> chex.Array:
    """l(x) = -p log sigma(x) - (1 - p) log sigma(-x), minimal at x = log(p / (1 - p)).

    Args:
      margins: float [N], x.
      label_probs: float [N], p, the probability that the first response is the better one: a judge's answer (DNO, arXiv
        2404.03715) or the share of annotators. 1 is DPO.
    """
    chex.assert_type(margins, float)
    chex.assert_equal_shape([margins, label_probs])
    label_probs = jax.lax.stop_gradient(label_probs)
    return _two_sided(margins, label_probs, 1.0 - label_probs)


def hinge(margins: chex.Array, *, margin: float = 1.0) -> chex.Array:
    """l(x) = max(0, margin - x). No gradient at x = margin.

    RSO's hinge-norm with beta = its gamma (arXiv 2309.06657 eq. 10); SLiC without a reference (eq. 9); SLiC-HF with
    beta = 1 and margin = its delta (arXiv 2305.10425).
    """
    chex.assert_type(margins, float)
    return jax.nn.relu(margin - margins)


def square(margins: chex.Array, *, target: float = 5.0) -> chex.Array:
    """l(x) = (x - target)^2.

    Args:
      margins: float [...], x.
      target: IPO 1 / (2 tau) with beta = 1 (arXiv 2310.12036 eq. 17; the default is tau = 0.1), INPO 1 / (2 eta), SPPO
        with hard labels 1 / (2 beta), and 0 for REBEL, whose target is the offset reward_gap.
    """
    chex.assert_type(margins, float)
    return jnp.square(margins - target)


def exo(margins: chex.Array, *, label_smoothing: float = 1e-3) -> chex.Array:
    """EXO of a pair: KL(p || (1 - eps, eps)) with p = (sigma(x), sigma(-x)), minimal at x = log((1 - eps) / eps).

    Source: arXiv 2402.00856 eq. 16.

    Args:
      margins: float [...], x.
      label_smoothing: eps in (0, 1).

    Raises:
      ValueError: if label_smoothing is outside (0, 1), since at 0 the KL is infinite.
    """
    chex.assert_type(margins, float)
    if not 0.0 < label_smoothing < 1.0:
        raise ValueError(f"exo: label_smoothing must be in (0, 1), got {label_smoothing}: use 1e-3 for hard labels")
    right = jax.nn.log_sigmoid(margins) - math.log1p(-label_smoothing)
    wrong = jax.nn.log_sigmoid(-margins) - math.log(label_smoothing)
    return jax.nn.sigmoid(margins) * right + jax.nn.sigmoid(-margins) * wrong


def saturating(margins: chex.Array) -> chex.Array:
    """l(x) = 1 - sigma(x): no pull far from 0 on either side. KTO (arXiv 2402.01306 eq. 7), APO (arXiv 2408.06266)."""
    chex.assert_type(margins, float)
    return jax.nn.sigmoid(-margins)


def discopop(margins: chex.Array, *, temperature: float = 0.05) -> chex.Array:
    """DiscoPOP: l(x) = -(1 - m) log sigma(x) + m exp(-x), m = sigma(x / temperature).

    Not monotone: at temperature 0.05 it has a local minimum at x = -0.12 and a local maximum at 0.07. m exp(-x) is
    computed as exp(log m - x): for x far below 0 the factors are 0 and infinity. Source: arXiv 2406.08414 eq. 5.
    """
    chex.assert_type(margins, float)
    ratio = margins / temperature
    logistic_part = -jax.nn.sigmoid(-ratio) * jax.nn.log_sigmoid(margins)
    return logistic_part + jnp.exp(jax.nn.log_sigmoid(ratio) - margins)


def exponential(margins: chex.Array) -> chex.Array:
    """l(x) = exp(-x), the convex link of boosting, one of the family of GPO (arXiv 2402.05749)."""
    chex.assert_type(margins, float)
    return jnp.exp(-margins)
