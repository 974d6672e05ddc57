"""SFT as the fitting of an implicit reward, for several f-divergences: (s [N, K], present [N, K], link) -> float [N].

Named in a config by its import path, "rl_jax.losses.preference.compare.demonstrations:imitation".
"""

import math
from collections.abc import Callable

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def _tangent_below(fn: Callable, floor: float, slope: float) -> Callable:
    """fn on rewards above `floor`, its tangent there (of this slope) on those below."""

    def continued(x: chex.Array) -> chex.Array:
        inside = jnp.maximum(x, floor)
        return fn(inside) + slope * (x - inside)

    return continued


# phi(x) = -f*(-x), f* the conjugate of the generator f, with phi(0) = 0 and phi'(0) = 1 (a constant added to x or f).
# Where phi would end (1 + x is 0 at -1, 2 - exp(-x) at -log 2) or overflow, its tangent goes on.
DIVERGENCES = {
    "total_variation": lambda x: x,  # f(t) = |t - 1| / 2 inside its bounds
    "pearson": lambda x: x - jnp.square(x) / 4.0,  # f(t) = (t - 1)^2
    "hellinger": _tangent_below(lambda x: x / (1.0 + x), -0.5, 4.0),  # f(t) = (sqrt t - 1)^2
    "reverse_kl": _tangent_below(lambda x: -jnp.expm1(-x), -5.0, math.exp(5.0)),  # f(t) = t log t
    "jensen_shannon": _tangent_below(  # f(t) = t log t - (t + 1) log((t + 1) / 2)
        lambda x: jnp.log(2.0 - jnp.exp(-x)), -0.5, math.exp(0.5) / (2.0 - math.exp(0.5))
    ),
}


def imitation(scores: chex.Array, present: chex.Array, link: Callable, *, divergence: str = "pearson") -> chex.Array:
    """SFT of an f-divergence: -phi_f(s) of the demonstration, s = beta log(pi / ref).

    Fitting the policy to demonstrations p is min_pi max_r  E_p[phi_f(r)] - E_pi[r] + beta KL(pi || ref), and the best
    policy of a reward satisfies r = beta log(pi / ref) + V(x). With V = 0 its last two terms cancel, so that what is
    left is E_p[phi_f(beta log(pi / ref))]. phi(x) = x, of the total variation, is SFT: the reference drops out of the
    gradient. Under any other the weight phi'(s) falls as the policy leaves the reference (at s = 2 it is 0 for
    Pearson), and at pi = ref all have beta times SFT's gradient.

    Derived here by the steps of the abstract of arXiv 2507.00018, with the functions phi of IQ-Learn (arXiv 2106.12142,
    table of f-divergences): the paper's own losses could not be read. V is held at 0: with one demonstration of a
    prompt, minimising over V(x) would make every one of them SFT again.

    Args:
      scores: float [N, K], with the score map `identity` and no offset; the first response is the demonstration.
      present: bool [N, K].
      link: unused.
      divergence: a name of DIVERGENCES.

    Returns:
      float [N], 0 where there is no demonstration.

    Raises:
      ValueError: if there is no such divergence.
    """
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present])
    if divergence not in DIVERGENCES:
        raise ValueError(f"imitation: divergence {divergence!r} is none of {', '.join(DIVERGENCES)}")
    first = zero_masked(scores[:, 0], present[:, 0])
    return zero_masked(-DIVERGENCES[divergence](first), present[:, 0])
