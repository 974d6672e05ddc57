"""Off-policy imitation: a discriminator of the replay's steps and demonstrated ones pays every step that is drawn.

    D loss:  BCE(D(s, a ~ replay), 0) + BCE(D(s, a ~ expert), U(.7, 1.2)) - c H(D)
             + 10 mean max(|grad f(x^)| - 1, 0)^2,  x^ between both                 D = sigma(f)
    reward:  r(s, a) = -log(1 - D(s, a)) of the newest D, for each of the n steps of a return

The rewards of a replayed step are computed anew at each draw ("historical patching"), never stored. Every layer below
the head is divided by its spectral norm. Source: arXiv 2006.16785 and its code (lionelblonde/liayn-pytorch).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.relabelling.base import Learned, begin, descend, mean_of
from rl_jax.control.relabelling.imitation import make_objective


class Adversary(NamedTuple):
    """A judge of steps that changes beside the policy: it learns, or follows a plan (control.curricula).

    Attributes:
      init: (key) -> its state.
      fit: (state, observations [N, ...], actions [N, ...] of the policy) -> (state, {name: float []}).
      pay: (state, observations [N, ...], actions [N, ...]) -> rewards float32 [N].
    """

    init: Callable
    fit: Callable
    pay: Callable


class AdversaryState(NamedTuple):
    """State of `discriminator`.

    Attributes:
      learned: params, optimizer and key.
      expert: float32 [M, D + A], the demonstrated steps.
    """

    learned: Learned
    expert: chex.Array


def spectrally_normalized(params: dict[str, Any], *, iterations: int = 10) -> dict[str, Any]:
    """The params with the kernel of each layer but "head" divided by its largest singular value.

        v <- W^T u / |W^T u|,  u <- W v / |W v|,  sigma = u . W v;  no gradient through u and v

    Departs: torch keeps u between steps and iterates once; here every call begins with a vector of ones.

    Args:
      params: {layer: {"kernel": float [D, E], ...}}.
      iterations: of the power method.
    """

    def divided(layer: dict[str, chex.Array]) -> dict[str, chex.Array]:
        kernel = layer["kernel"]
        chex.assert_rank(kernel, 2)
        fixed = jax.lax.stop_gradient(kernel)

        def once(_, carry):
            v = _unit(fixed.T @ carry[0])
            return _unit(fixed @ v), v

        begun = (jnp.ones(len(kernel)) / jnp.sqrt(float(len(kernel))), jnp.zeros(kernel.shape[1]))
        u, v = jax.lax.fori_loop(0, iterations, once, begun)
        return layer | {"kernel": kernel / jnp.maximum(u @ kernel @ v, 1e-12)}

    return {name: layer if name == "head" else divided(layer) for name, layer in params.items()}


def _unit(x: chex.Array) -> chex.Array:
    return x / jnp.maximum(jnp.linalg.norm(x), 1e-12)


def discriminator(
    net,
    demonstrated: Callable,
    *,
    penalty_coef: float = 10.0,
    label_low: float = 0.7,
    label_high: float = 1.2,
    entropy_coef: float = 0.001,
    learning_rate: float = 5e-4,
    steps: int = 1,
    batch_size: int = 64,
    spectral: bool = True,
    clip: float = 5.0,
    axis_name=None,
) -> Adversary:
    """The Adversary of LIAYN. Source: arXiv 2006.16785, the numbers are those of its code.

    Departs: no absorbing states, which matter in tasks that end early; the policy's side of a batch is one draw for
    all `steps`.

    Args:
      net: models.agents.features.Net of D + A numbers and one output.
      demonstrated: (key) -> (observations float [M, D], actions float [M, A] in the environment's units).
      penalty_coef: of the gradient penalty.
      label_low: smallest label of the expert.
      label_high: largest.
      entropy_coef: weight of D's entropy.
      learning_rate: of Adam.
      steps: of D in each fit.
      batch_size: rows of each side in each of these.
      spectral: whether the layers are normalised.
      clip: observations are clipped to this size.
      axis_name: mapped axis over which the environments are spread.
    """
    optimizer = optax.adam(learning_rate)

    def score(params, x: chex.Array) -> chex.Array:
        return net.apply(spectrally_normalized(params) if spectral else params, x)[:, 0]

    def features(observations: chex.Array, actions: chex.Array) -> chex.Array:
        seen = jnp.clip(observations.reshape(len(observations), -1), -clip, clip)
        return jnp.concatenate([seen, actions.reshape(len(actions), -1)], axis=1)

    objective = make_objective(
        score,
        batch_size=batch_size,
        labels=(label_low, label_high),
        penalty=penalty_coef,
        entropy_coef=entropy_coef,
    )

    def init(key: chex.PRNGKey) -> AdversaryState:
        net_key, shown_key, key = jax.random.split(key, 3)
        return AdversaryState(begin(net.init(net_key), optimizer, key), features(*demonstrated(shown_key)))

    def fit(state: AdversaryState, observations: chex.Array, actions: chex.Array):
        x = features(observations, actions)
        loss_fn = objective(x, state.expert)
        learned = descend(loss_fn, state.learned, optimizer, steps=steps, axis_name=axis_name)
        sides = {"imitation/own": x, "imitation/expert": state.expert}
        means = {name: mean_of(jax.nn.sigmoid(score(learned.params, rows))) for name, rows in sides.items()}
        return AdversaryState(learned, state.expert), means

    def pay(state: AdversaryState, observations: chex.Array, actions: chex.Array) -> chex.Array:
        return jax.lax.stop_gradient(jax.nn.softplus(score(state.learned.params, features(observations, actions))))

    return Adversary(init, fit, pay)
