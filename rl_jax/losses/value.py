"""Value losses: per-token losses [B, T] of a critic's predictions against returns. A config names one of these.

All take (predictions, returns, mask, *, ...) in this order. A scalar critic predicts values [B, T]. A categorical
critic predicts logits [B, T, K] over the bins of a `Support`; its loss asks for `support` by name, as a clipped one
asks for `old_values`.
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


class ValueLoss(NamedTuple):
    """A per-token loss and the tokens whose clip is active.

    Attributes:
      loss: float [B, T], to minimise; 0 outside the mask.
      clipped: bool [B, T]. Tokens whose gradient the clip removed.
    """

    loss: chex.Array
    clipped: chex.Array


class Support(NamedTuple):
    """K bins of equal width: K - 2 padding bins cover the returns [low, high], and padding more lie beyond each end.

    Without padding, a target near an end loses the mass beyond it and its decoded value is pulled inwards: with 4 bins
    over [-1, 1] a return of 1 is decoded as .65. With 3 bins of padding and HL-Gauss's sigma of .75 bins, an end is 4
    sigma away from the border, and the bias is about 1e-4 bins.

    Attributes:
      low: lowest expected return, in the reward's units.
      high: highest expected return, in the reward's units.
      num_bins: K.
      padding: bins beyond each end.
    """

    low: float
    high: float
    num_bins: int = 101
    padding: int = 3

    def width(self) -> float:
        """The width of a bin.

        Raises:
          ValueError: if no bins are left between low and high, or high <= low.
        """
        inside = self.num_bins - 2 * self.padding
        if self.padding < 0 or inside < 1 or not self.low < self.high:
            raise ValueError(
                f"{self} has no bins between low and high: low must be below high, and num_bins above 2 * padding"
            )
        return (self.high - self.low) / inside

    def edges(self) -> chex.Array:
        """float [K + 1]: the edges of the bins, including those of the padding."""
        beyond = self.padding * self.width()
        return jnp.linspace(self.low - beyond, self.high + beyond, self.num_bins + 1)

    def centres(self) -> chex.Array:
        """float [K]: the centres of the bins, i.e. the value of each bin."""
        half = 0.5 * self.width()
        return self.edges()[:-1] + half

    def mean(self, logits: chex.Array) -> chex.Array:
        """sum_i softmax(logits)_i centre_i, the value that the logits encode. float [..., K] -> float [...]."""
        chex.assert_axis_dimension(logits, -1, self.num_bins)
        centres = jnp.broadcast_to(self.centres().astype(logits.dtype), logits.shape)
        return jnp.sum(jax.nn.softmax(logits, axis=-1) * centres, axis=-1)  # not a matmul: those round on TPUs


def mse(values: chex.Array, returns: chex.Array, mask: chex.Array) -> ValueLoss:
    """(v - R)^2 / 2. dl/dv = v - R.

    Args:
      values: float [B, T], differentiated.
      returns: float [B, T], data: gradients are stopped here.
      mask: bool [B, T].
    """
    error = _error(values, returns, mask)
    return ValueLoss(0.5 * jnp.square(error), jnp.zeros_like(mask))


def clipped(
    values: chex.Array, returns: chex.Array, mask: chex.Array, *, old_values: chex.Array, value_clip: float = 0.2
) -> ValueLoss:
    """PPO's clipped value loss.

        l = max((v - R)^2, (clip(v, v_old - value_clip, v_old + value_clip) - R)^2) / 2

    dl/dv = v - R, but 0 if v has left the clip range and is nearer to R than the range's border (the border's error is
    larger). Source: OpenAI baselines' ppo2, arXiv 2005.12729 section 3.

    Args:
      values: float [B, T], differentiated.
      returns: float [B, T], data: gradients are stopped here.
      mask: bool [B, T].
      old_values: float [B, T] of the critic before this batch's updates; gradients are stopped here.
      value_clip: in the reward's units. 0.2 in OpenAI's PPO, 0.5 in verl and OpenRLHF.
    """
    error = _error(values, returns, mask)
    chex.assert_equal_shape([values, old_values])
    old_values = jax.lax.stop_gradient(zero_masked(old_values, mask))
    bounded = jnp.clip(zero_masked(values, mask), old_values - value_clip, old_values + value_clip)
    bounded_error = _error(bounded, returns, mask)
    loss = 0.5 * jnp.maximum(jnp.square(error), jnp.square(bounded_error))
    return ValueLoss(loss, jnp.square(bounded_error) > jnp.square(error))


def huber(values: chex.Array, returns: chex.Array, mask: chex.Array, *, delta: float = 10.0) -> ValueLoss:
    """Huber loss, e = v - R. dl/dv = clip(e, -delta, delta).

        l = e^2 / 2 if |e| <= delta, delta (|e| - delta / 2) otherwise

    Args:
      values: float [B, T], differentiated.
      returns: float [B, T], data: gradients are stopped here.
      mask: bool [B, T].
      delta: in the reward's units; 10 is AReaL's. An outlier keeps a gradient, so nothing counts as clipped.
    """
    error = _error(values, returns, mask)
    bounded = jnp.clip(error, -delta, delta)
    # c (e - c / 2) is both branches at once, and has no |e| to differentiate at 0.
    return ValueLoss(bounded * (error - 0.5 * bounded), jnp.zeros_like(mask))


def hl_gauss(
    logits: chex.Array, returns: chex.Array, mask: chex.Array, *, support: Support, sigma_ratio: float = 0.75
) -> ValueLoss:
    """Cross-entropy to a Gaussian around the return, binned.

        l = -sum_i p_i log softmax(logits)_i, p_i = [Phi((e_{i+1} - R) / s) - Phi((e_i - R) / s)] / Z

    e are the edges of `support`, Z makes the p_i sum to 1, s = sigma_ratio * the width of a bin. dl/dlogits =
    softmax(logits) - p. Source: arXiv 2403.03950 section 3.1 (HL-Gauss of Imani and White, 2018).

    Args:
      logits: float [B, T, K], differentiated.
      returns: float [B, T], data: gradients are stopped here. Clipped to the outer edges.
      mask: bool [B, T].
      support: the bins.
      sigma_ratio: .75 spreads a return over about 6 bins.
    """
    returns = _returns(logits, returns, mask, support)
    edges = support.edges().astype(returns.dtype)
    centre = jnp.clip(returns, edges[0], edges[-1])  # far outside, every Phi would be 0 or 1, and Z would be 0
    sigma = sigma_ratio * support.width()
    cdf = jax.scipy.special.erf((edges[None, None, :] - centre[:, :, None]) / (sigma * math.sqrt(2)))  # 2 Phi - 1
    target = jnp.diff(cdf, axis=-1) / (cdf[..., -1:] - cdf[..., :1])
    return _cross_entropy(logits, target, mask)


def two_hot(logits: chex.Array, returns: chex.Array, mask: chex.Array, *, support: Support) -> ValueLoss:
    """Cross-entropy to the two bins whose centres enclose R, weighted so that sum_i p_i centre_i = R.

        l = -sum_i p_i log softmax(logits)_i

    dl/dlogits = softmax(logits) - p. Source: arXiv 1911.08265 appendix F (MuZero), arXiv 2403.03950 section 3.1.

    Args:
      logits: float [B, T, K], differentiated.
      returns: float [B, T], data: gradients are stopped here. Clipped to the outer centres.
      mask: bool [B, T].
      support: the bins.
    """
    returns = _returns(logits, returns, mask, support)
    centres = support.centres().astype(returns.dtype)
    place = (jnp.clip(returns, centres[0], centres[-1]) - centres[0]) / support.width()
    bins = jnp.arange(support.num_bins, dtype=returns.dtype)
    target = jnp.maximum(1.0 - jnp.abs(place[:, :, None] - bins[None, None, :]), 0.0)
    return _cross_entropy(logits, target, mask)


def _error(values: chex.Array, returns: chex.Array, mask: chex.Array) -> chex.Array:
    """v - R on the mask and 0 outside; only v is differentiated. float [B, T] x2, bool [B, T] -> float [B, T]."""
    chex.assert_rank(mask, 2)
    chex.assert_type([values, returns, mask], [float, float, bool])
    chex.assert_equal_shape([values, returns, mask])
    return zero_masked(values, mask) - jax.lax.stop_gradient(zero_masked(returns, mask))


def _returns(logits: chex.Array, returns: chex.Array, mask: chex.Array, support: Support) -> chex.Array:
    """The returns as data, 0 outside the mask, after checking all shapes."""
    chex.assert_rank(mask, 2)
    chex.assert_type([logits, returns, mask], [float, float, bool])
    chex.assert_shape(logits, (*mask.shape, support.num_bins))
    chex.assert_equal_shape([returns, mask])
    return jax.lax.stop_gradient(zero_masked(returns, mask))


def _cross_entropy(logits: chex.Array, target: chex.Array, mask: chex.Array) -> ValueLoss:
    """-sum_i p_i log softmax(logits)_i on the mask. logits, target: float [B, T, K]. mask: bool [B, T]."""
    live = zero_masked(logits, jnp.broadcast_to(mask[:, :, None], logits.shape))
    loss = -jnp.sum(target * jax.nn.log_softmax(live, axis=-1), axis=-1)
    return ValueLoss(zero_masked(loss, mask), jnp.zeros_like(mask))
