"""Gradients through the solution of an inner problem: theta*(phi) = argmin_theta L(theta, phi), J(theta*(phi), phi).

    dJ / dphi = d_phi J - (d_phi d_theta L)^T (d_theta^2 L)^-1 d_theta J            implicit function theorem

PARL (2308.02585): phi is a reward, L the policy's loss under it, J the preference loss on the policy's own
trajectories. BARFI (2310.19007): r_phi = phi_1 r_p + phi_2 r_aux, J is minus the return of r_p alone. The bandits here
have exact expectations; control.bilevel_update trains with both in environments.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

METHODS = ("cg", "neumann", "identity")


def hypergradient(
    outer: Callable,
    inner: Callable,
    theta: Any,
    phi: Any,
    *,
    method: str = "cg",
    iterations: int = 50,
    rate: float = 0.1,
    damping: float = 0.0,
) -> Any:
    """dJ / dphi at a solution theta of the inner problem, a pytree like phi.

    Source: arXiv 2308.02585, 2310.19007; Lorraine et al., 2020 for the Neumann series.

    Args:
      outer: (theta, phi) -> float [], J.
      inner: (theta, phi) -> float [], L; theta should be a minimum of it.
      theta: pytree.
      phi: pytree.
      method: how H^-1 v is found: "cg" (conjugate gradients), "neumann" (rate sum_k (1 - rate H)^k v, for rate below 2
        over the largest curvature) or "identity" (H = 1 / rate, one step of the inner problem).
      iterations: of "cg" and "neumann".
      rate: of "neumann" and "identity".
      damping: added to the curvature.

    Raises:
      ValueError: if the method is unknown.
    """
    flat, unravel = ravel_pytree(theta)

    def slope(x: chex.Array, phi: Any) -> chex.Array:
        return jax.grad(lambda x: inner(unravel(x), phi))(x)

    def curve(v: chex.Array) -> chex.Array:
        return jax.jvp(lambda x: slope(x, phi), (flat,), (v,))[1] + damping * v

    pull, direct = jax.grad(lambda x, phi: outer(unravel(x), phi), argnums=(0, 1))(flat, phi)
    if method == "cg":
        solved = jax.scipy.sparse.linalg.cg(curve, pull, maxiter=iterations, tol=1e-8)[0]
    elif method == "neumann":
        term, _ = jax.lax.scan(
            lambda c, _: ((c[0] - rate * curve(c[0]), c[1] + c[0]), None), (pull, 0 * pull), None, iterations
        )
        solved = rate * term[1]
    elif method == "identity":
        solved = rate * pull
    else:
        raise ValueError(f"hypergradient: method={method!r} is none of {', '.join(METHODS)}")
    through = jax.vjp(lambda phi: slope(flat, phi), phi)[1](solved)[0]
    return jax.tree.map(lambda a, b: a - b, direct, through)


def soft_bandit(rewards: chex.Array, *, entropy_coef: float) -> Callable:
    """The inner problem of a policy over A arms with an entropy bonus and a small pull to 0: (logits, rewards) -> L.

    L = -E_pi[r] - tau H(pi) + 5e-4 |theta|^2; its solution is nearly softmax(r / tau). rewards: float [A], for the
    number of arms.
    """

    def loss(logits: chex.Array, rewards: chex.Array) -> chex.Array:
        log_probs = jax.nn.log_softmax(logits)
        probs = jnp.exp(log_probs)
        entropy = -jnp.sum(probs * log_probs)
        return -jnp.sum(probs * rewards) - entropy_coef * entropy + 5e-4 * jnp.sum(jnp.square(logits))

    chex.assert_rank(rewards, 1)
    return loss


def solved(inner: Callable, theta: chex.Array, phi: Any, *, rate: float = 1.0, steps: int = 500) -> chex.Array:
    """theta after `steps` of gradient descent on the inner problem."""
    slope = jax.grad(inner)
    return jax.lax.scan(lambda x, _: (x - rate * slope(x, phi), None), theta, None, steps)[0]


def mixed_reward(weights: chex.Array, primary: chex.Array, auxiliary: chex.Array) -> chex.Array:
    """BARFI's phi_1 r_p + phi_2 r_aux. weights: float [2]; rewards: float [...] each."""
    chex.assert_equal_shape([primary, auxiliary])
    return weights[0] * primary + weights[1] * auxiliary


def preference_outer(labels: chex.Array) -> Callable:
    """PARL's J(logits, rewards): the expected negative log-likelihood of labels on pairs that the policy draws.

    J = sum_ij pi_i pi_j (-y_ij log sigma(r_i - r_j) - y_ji log sigma(r_j - r_i)) / 2: it depends on r directly and
    through the policy, which r has trained. labels: y_ij, the probability that i is preferred to j, float [A, A].
    """

    def outer(logits: chex.Array, rewards: chex.Array) -> chex.Array:
        probs = jax.nn.softmax(logits)
        gaps = rewards[:, None] - rewards[None]
        nll = -labels * jax.nn.log_sigmoid(gaps) - labels.T * jax.nn.log_sigmoid(-gaps)
        return 0.5 * jnp.sum(probs[:, None] * probs[None] * nll)

    return outer
