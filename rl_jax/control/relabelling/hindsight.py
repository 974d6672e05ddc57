"""Curiosity in hindsight: a bonus for what the agent cannot predict, but not for noise.

    z = G(s, a, s', eps);  L_rec = |R(s, a, z) - w(s')|^2;  L_inv = g(z_i, b_i) - log mean_j exp g(z_j, b_i), b = (s, a)
    b(s, a, s') = L_rec + lam L_inv                                          2211.10515

G and R make L_rec + lam L_inv small, the critic g makes L_inv large: z may say what chance decided, and nothing that
(s, a) decides. Without z it is the prediction error, which noise keeps high.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling.base import Learned, action_features, begin, descend, features_of, flat, mean_of
from rl_jax.control.relabelling.novelty import with_bonus
from rl_jax.core.vectors import unit
from rl_jax.rollout.envs.steps import Transitions

EPS = 1e-8  # of the squares of lengths


def invariance(scores: chex.Array) -> chex.Array:
    """g(z_i, b_i) - log mean_j exp g(z_j, b_i), float [N]: a bound on what z knows of b; 0 for any g that ignores z.

    Args:
      scores: g(z_j, b_i), float [N, N], row i, column j.
    """
    chex.assert_rank(scores, 2)
    return jnp.diagonal(scores) - (jax.nn.logsumexp(scores, axis=1) - jnp.log(len(scores)))


class Hindsight(NamedTuple):
    """State of `by_hindsight`.

    Attributes:
      target: params of the fixed map w, or of the slow encoder.
      learned: of G, R and g.
      bonus: float32 []. Mean bonus of the last batch.
    """

    target: Any
    learned: Learned
    bonus: chex.Array


def by_hindsight(
    *,
    observation_size: int,
    distribution,
    make_net: Callable,
    hindsight: int = 8,
    noise: int = 4,
    features: int = 0,
    hidden: tuple[int, ...] = (64,),
    invariance_coef: float = 1.0,
    learning_rate: float = 3e-3,
    steps: int = 4,
    coef: float = 1.0,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """BYOL-Hindsight's bonus on a fixed w; hindsight = 0 is the prediction error.

    Source: arXiv 2211.10515. Departs: the target w is a fixed random map (or the observation itself), in place of
    bootstrapped latents, which `by_bootstrap` has; the contrast of a row is with 64 rows of its batch.

    Args:
      observation_size: numbers in an observation.
      distribution: of the policy's actions.
      make_net: models.agents.features.make_net.
      hindsight: size of z; 0 leaves it out.
      noise: size of eps.
      features: outputs of w; 0 takes the observation.
      hidden: widths of all networks.
      invariance_coef: lam.
      learning_rate: of Adam.
      steps: per batch.
      coef: weight of the bonus.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.
    """
    optimizer, width = optax.adam(learning_rate), features or observation_size
    pair = observation_size + action_features(distribution)
    target_net = make_net(observation_size, features or 1, hidden=hidden)
    nets = {
        "generate": make_net(pair + width + noise, hindsight or 1, hidden=hidden),
        "reconstruct": make_net(pair + hindsight, width, hidden=hidden),
        "critic": make_net(pair + hindsight, 1, hidden=hidden),
    }

    def init(key: chex.PRNGKey) -> Hindsight:
        keys = jax.random.split(key, 5)
        params = {name: net.init(k) for (name, net), k in zip(nets.items(), keys[2:], strict=True)}
        return Hindsight(target_net.init(keys[0]), begin(params, optimizer, keys[1]), jnp.float32(0.0))

    def parts(params: Any, key: chex.PRNGKey, x: chex.Array, w: chex.Array) -> tuple[chex.Array, chex.Array]:
        again, inv = reconstructed(nets, params, key, x, w, hindsight=hindsight, noise=noise)
        return jnp.mean(jnp.square(again - w), axis=1), inv

    def apply(state: Hindsight, rows: Transitions) -> tuple[Hindsight, Transitions]:
        x, following = features_of(rows, distribution), flat(rows.next_observations)
        w = target_net.apply(state.target, following) if features else following

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            rec, inv = parts(params, key, x, w)
            return jnp.mean(rec + invariance_coef * inv)

        rec, inv = parts(state.learned.params, jax.random.fold_in(state.learned.key, 1), x, w)
        bonus = jnp.maximum(rec + invariance_coef * inv, 0.0)
        learned = descend(loss_fn, state.learned, optimizer, steps=steps, axis_name=axis_name)
        return Hindsight(state.target, learned, mean_of(bonus, axis_name)), with_bonus(rows, bonus, coef, keep)

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/bonus": state.bonus})


def reconstructed(
    nets: dict[str, Any], params: Any, key: chex.PRNGKey, x: chex.Array, w: chex.Array, *, hindsight: int, noise: int
) -> tuple[chex.Array, chex.Array]:
    """(R(b, z), L_inv [N]); the critic's gradient is turned round, so that one step serves both.

    Args:
      nets: "generate", "reconstruct" and "critic".
      params: theirs.
      key: for eps and the groups.
      x: b = (s, a), float [N, D].
      w: what is reconstructed, float [N, W].
      hindsight: size of z; 0 leaves it out.
      noise: size of eps.
    """
    eps_key, order_key = jax.random.split(key)
    if not hindsight:
        return nets["reconstruct"].apply(params["reconstruct"], x), jnp.zeros(len(x))
    eps = jax.random.normal(eps_key, (len(x), noise))
    z = nets["generate"].apply(params["generate"], jnp.concatenate([x, w, eps], axis=1))
    again = nets["reconstruct"].apply(params["reconstruct"], jnp.concatenate([x, z], axis=1))
    critic = jax.tree.map(_turned, params["critic"])
    # Groups of rows: all pairs inside each.
    size = next(n for n in range(min(64, len(x)), 0, -1) if len(x) % n == 0)
    order = jax.random.permutation(order_key, len(x))

    def contrast(x: chex.Array, z: chex.Array) -> chex.Array:
        both = (jnp.repeat(x, size, axis=0), jnp.tile(z, (size, 1)))
        return invariance(nets["critic"].apply(critic, jnp.concatenate(both, axis=1)).reshape(size, size))

    grouped = jax.vmap(contrast)(x[order].reshape(-1, size, x.shape[1]), z[order].reshape(-1, size, hindsight))
    return again, jnp.zeros(len(x)).at[order].set(grouped.reshape(-1))


def by_bootstrap(
    *,
    observation_size: int,
    distribution,
    make_net: Callable,
    hindsight: int = 8,
    noise: int = 4,
    latent: int = 16,
    hidden: tuple[int, ...] = (64,),
    invariance_coef: float = 1.0,
    target_rate: float = 0.01,
    learning_rate: float = 3e-3,
    steps: int = 4,
    coef: float = 1.0,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """BYOL-Hindsight's bonus on bootstrapped latents; hindsight = 0 is BYOL-Explore's.

        b = (f(s), a),   w = unit(f_slow(s')),   L_rec = |unit(R(b, z)) - sg(w)|^2,   f_slow += rate (f - f_slow)

    f is trained by what is reconstructed from it, and by L_inv; no gradient reaches f_slow.

    Source: arXiv 2211.10515 on BYOL-Explore, arXiv 2206.08332. Departs: b is of one observation, in place of recurrent
    networks, and one step is looked ahead; the reward is not normalised and clipped here (the program's
    normalize_rewards scales it); the contrast of a row is with 64 rows of its batch.

    Args:
      observation_size: numbers in an observation.
      distribution: of the policy's actions.
      make_net: models.agents.features.make_net.
      hindsight: size of z; 0 leaves it out.
      noise: size of eps.
      latent: outputs of f.
      hidden: widths of all networks.
      invariance_coef: lam.
      target_rate: of f_slow, per batch.
      learning_rate: of Adam.
      steps: per batch.
      coef: weight of the bonus.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.
    """
    optimizer, pair = optax.adam(learning_rate), latent + action_features(distribution)
    nets = {
        "encode": make_net(observation_size, latent, hidden=hidden),
        "generate": make_net(pair + latent + noise, hindsight or 1, hidden=hidden),
        "reconstruct": make_net(pair + hindsight, latent, hidden=hidden),
        "critic": make_net(pair + hindsight, 1, hidden=hidden),
    }

    def init(key: chex.PRNGKey) -> Hindsight:
        keys = jax.random.split(key, 5)
        params = {name: net.init(k) for (name, net), k in zip(nets.items(), keys[1:], strict=True)}
        slow = jax.tree.map(jnp.copy, params["encode"])
        return Hindsight(slow, begin(params, optimizer, keys[0]), jnp.float32(0.0))

    def apply(state: Hindsight, rows: Transitions) -> tuple[Hindsight, Transitions]:
        x = features_of(rows, distribution)
        seen, action = x[:, :observation_size], x[:, observation_size:]
        w = unit(nets["encode"].apply(state.target, flat(rows.next_observations)), EPS)

        def each(params: Any, key: chex.PRNGKey) -> chex.Array:
            known = jnp.concatenate([nets["encode"].apply(params["encode"], seen), action], axis=1)
            again, inv = reconstructed(nets, params, key, known, w, hindsight=hindsight, noise=noise)
            return jnp.sum(jnp.square(unit(again, EPS) - w), axis=1) + invariance_coef * inv

        bonus = jnp.maximum(each(state.learned.params, jax.random.fold_in(state.learned.key, 1)), 0.0)

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            return jnp.mean(each(params, key))

        learned = descend(loss_fn, state.learned, optimizer, steps=steps, axis_name=axis_name)
        slow = jax.tree.map(lambda old, new: old + target_rate * (new - old), state.target, learned.params["encode"])
        return Hindsight(slow, learned, mean_of(bonus, axis_name)), with_bonus(rows, bonus, coef, keep)

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/bonus": state.bonus})


@jax.custom_vjp
def _turned(x: chex.Array) -> chex.Array:
    """x, whose gradient has the other sign."""
    return x


_turned.defvjp(lambda x: (x, None), lambda _, grad: (-grad,))
