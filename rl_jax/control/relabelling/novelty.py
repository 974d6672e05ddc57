"""Exploration: a bonus for what has rarely been seen, r' = keep r + coef b.

by_distillation  b(s') = |f(s') - mu(s')|^2 / d,  f fitted to mu(s') + sigma eps         RND 1810.12894, RDD 2505.11044
by_elliptical    b(s, a) = sqrt(phi^T (lam I + sum phi phi^T)^-1 phi)                    Contrastive UCB 2207.14800
by_archive       b = mean distance to the k nearest ends of earlier episodes             2203.01027 (novelty search)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling.base import Learned, action_features, begin, descend, features_of, flat, mean_of
from rl_jax.core.vectors import unit
from rl_jax.rollout.envs.steps import Transitions


def distillation_loss(predicted: chex.Array, target: chex.Array, noise: chex.Array, sigma: float) -> chex.Array:
    """mean_n |f - (mu + sigma eps)|^2 / 2, float []. A table with rate 1 / n is the running mean of its samples.

    Args:
      predicted: f, float [N, d], differentiated.
      target: mu, float [N, d].
      noise: eps, standard normal [N, d], fresh in every update.
      sigma: 0 is RND.
    """
    chex.assert_equal_shape([predicted, target, noise])
    return 0.5 * jnp.mean(jnp.sum(jnp.square(predicted - target - sigma * noise), axis=1))


def distance(predicted: chex.Array, target: chex.Array) -> chex.Array:
    """|f - mu|^2 / d, float [N]: to the mean, not to a sample. Of a running mean of n samples E = sigma^2 / n."""
    chex.assert_equal_shape([predicted, target])
    return jnp.mean(jnp.square(predicted - target), axis=1)


class Distilled(NamedTuple):
    """State of `by_distillation`.

    Attributes:
      target: params of the frozen network.
      learned: of the predictor.
      bonus: float32 []. Mean bonus of the last batch.
    """

    target: Any
    learned: Learned
    bonus: chex.Array


def by_distillation(
    *,
    observation_size: int,
    make_net: Callable,
    sigma: float = 0.0,
    features: int = 32,
    hidden: tuple[int, ...] = (64,),
    learning_rate: float = 1e-3,
    steps: int = 4,
    coef: float = 1.0,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """Random network distillation; sigma > 0 is random distribution distillation, whose targets are samples.

    The bonus of a batch is measured before the predictor learns from it. Source: arXiv 1810.12894; 2505.11044 (from a
    summary: d = 64 and sigma = 1 there). Departs: no scale by the bonus's running deviation (normalize_rewards does).

    Args:
      observation_size: numbers in an observation.
      make_net: models.agents.features.make_net.
      sigma: of the target's samples; 0 is RND.
      features: d.
      hidden: widths of both networks.
      learning_rate: of the predictor (Adam).
      steps: of the predictor per batch.
      coef: weight of the bonus.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.
    """
    net, optimizer = make_net(observation_size, features, hidden=hidden), optax.adam(learning_rate)

    def init(key: chex.PRNGKey) -> Distilled:
        target_key, net_key, key = jax.random.split(key, 3)
        return Distilled(net.init(target_key), begin(net.init(net_key), optimizer, key), jnp.float32(0.0))

    def apply(state: Distilled, rows: Transitions) -> tuple[Distilled, Transitions]:
        seen = flat(rows.next_observations)
        target = net.apply(state.target, seen)
        bonus = distance(net.apply(state.learned.params, seen), target)

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            noise = jax.random.normal(key, target.shape)
            return distillation_loss(net.apply(params, seen), target, noise, sigma)

        learned = descend(loss_fn, state.learned, optimizer, steps=steps, axis_name=axis_name)
        return Distilled(state.target, learned, mean_of(bonus, axis_name)), with_bonus(rows, bonus, coef, keep)

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/bonus": state.bonus})


def with_bonus(rows: Transitions, bonus: chex.Array, coef: float, keep: float) -> Transitions:
    """The rows with keep r + coef b. bonus: float [B T]."""
    bonus = jax.lax.stop_gradient(bonus).reshape(rows.rewards.shape)
    return rows._replace(rewards=keep * rows.rewards + coef * bonus)


def elliptical_bonus(features: chex.Array, gram: chex.Array, ridge: float | chex.Array) -> chex.Array:
    """sqrt(phi^T (lam I + G)^-1 phi), float [N]: 1 / sqrt(lam + n) for one-hot phi, seen n times.

    Args:
      features: phi, float [N, k].
      gram: G = sum phi phi^T of what was seen, float [k, k].
      ridge: lam.
    """
    chex.assert_rank([features, gram], 2)
    solved = jnp.linalg.solve(ridge * jnp.eye(len(gram)) + gram, features.T)
    return jnp.sqrt(jnp.maximum(jnp.sum(features.T * solved, axis=0), 0.0))


def contrastive_loss(left: chex.Array, right: chex.Array, other: chex.Array) -> chex.Array:
    """Binary cross-entropy of true against random next states, scores phi(s, a) . psi(s'): float [].

    Source: arXiv 2207.14800 section 3: at the optimum the score is the log of P(s' | s, a) over the marginal of s'.

    Args:
      left: phi, float [N, k].
      right: psi of the next state, float [N, k].
      other: psi of another row's next state, float [N, k].
    """
    chex.assert_equal_shape([left, right, other])
    true, false = (jnp.sum(left * x, axis=1) for x in (right, other))
    return jnp.mean(jax.nn.softplus(-true) + jax.nn.softplus(false))


class Ellipsoid(NamedTuple):
    """State of `by_elliptical`.

    Attributes:
      learned: of phi and psi; () for features = 0.
      inputs: float32 [Q, D]. The last (s, a).
      size: int32 []. How many of them there are.
      gram: float32 [k, k]. Of all that was seen, for features = 0; else unused.
      bonus: float32 []. Mean bonus of the last batch.
    """

    learned: Any
    inputs: chex.Array
    size: chex.Array
    gram: chex.Array
    bonus: chex.Array


def by_elliptical(
    *,
    observation_size: int,
    distribution,
    make_net: Callable,
    features: int = 0,
    memory: int = 1024,
    hidden: tuple[int, ...] = (64,),
    learning_rate: float = 1e-3,
    steps: int = 4,
    ridge: float = 1.0,
    coef: float = 1.0,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """The bonus of upper confidence bounds in a low-rank MDP; features > 0 learns phi by contrasting next states.

    features = 0: phi is the outer product of observation and action, and G counts all steps: 1 / sqrt(lam + n) in a
    finite MDP with one-hot observations. Source: arXiv 2207.14800. Departs with features > 0: phi and psi are networks
    scaled to unit length, and G is taken over the last `memory` steps with the newest phi.

    Args:
      observation_size: numbers in an observation.
      distribution: of the policy's actions.
      make_net: models.agents.features.make_net.
      features: k; 0 takes the outer product.
      memory: steps that G is over, for features > 0.
      hidden: widths of phi and psi.
      learning_rate: of Adam.
      steps: of the contrast per batch.
      ridge: lam.
      coef: weight of the bonus.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if features > 0 and the environments are spread over devices: G is one device's.
    """
    if features and axis_name is not None:
        raise ValueError("by_elliptical with features > 0 keeps its steps on one device: set mesh without envs")
    optimizer, action_size = optax.adam(learning_rate), action_features(distribution)
    inputs = observation_size + action_size
    left = make_net(inputs, features or 1, hidden=hidden)
    right = make_net(observation_size, features or 1, hidden=hidden)
    width = features or observation_size * action_size

    def phi(learned: Any, x: chex.Array) -> chex.Array:
        if features:
            return unit(left.apply(learned.params["left"], x), 1e-4)
        state, action = x[:, :observation_size], x[:, observation_size:]
        return (state[:, :, None] * action[:, None, :]).reshape(len(x), -1)

    def init(key: chex.PRNGKey) -> Ellipsoid:
        keys = jax.random.split(key, 3)
        nets = {"left": left.init(keys[0]), "right": right.init(keys[1])}
        learned = begin(nets, optimizer, keys[2]) if features else ()
        kept = jnp.zeros((memory if features else 1, inputs))
        return Ellipsoid(learned, kept, jnp.int32(0), jnp.zeros((width, width)), jnp.float32(0.0))

    def apply(state: Ellipsoid, rows: Transitions) -> tuple[Ellipsoid, Transitions]:
        x, following = features_of(rows, distribution), flat(rows.next_observations)
        if not features:
            seen = phi((), x)
            bonus = elliptical_bonus(seen, state.gram, ridge)
            gram = seen.T @ seen
            gram = state.gram + (gram if axis_name is None else jax.lax.psum(gram, axis_name))
            moved = state._replace(gram=gram, bonus=mean_of(bonus, axis_name))
            return moved, with_bonus(rows, bonus, coef, keep)
        live = (jnp.arange(memory) >= memory - state.size).astype(x.dtype)
        past = phi(state.learned, state.inputs) * live[:, None]
        bonus = elliptical_bonus(phi(state.learned, x), past.T @ past, ridge)

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            of_left = unit(left.apply(params["left"], x), 1e-4)
            score = of_left * jnp.sqrt(features)  # so that the scores reach +- sqrt(k)
            psi = right.apply(params["right"], following)
            return contrastive_loss(score, psi, psi[jax.random.permutation(key, len(psi))])

        learned = descend(loss_fn, state.learned, optimizer, steps=steps)
        kept = jnp.concatenate([state.inputs, x])[-memory:]
        size = jnp.minimum(state.size + len(x), memory).astype(jnp.int32)
        moved = Ellipsoid(learned, kept, size, state.gram, jnp.mean(bonus))
        return moved, with_bonus(rows, bonus, coef, keep)

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/bonus": state.bonus})


def nearest_distance(points: chex.Array, archive: chex.Array, live: chex.Array, neighbours: int) -> chex.Array:
    """Mean distance to the k nearest live entries of an archive, float [N]; over fewer if there are fewer; 0 for none.

    Args:
      points: float [N, D].
      archive: float [Q, D].
      live: bool [Q].
      neighbours: k.
    """
    chex.assert_rank([points, archive, live], [2, 2, 1])
    gaps = jnp.linalg.norm(points[:, None] - archive[None], axis=-1)
    nearest = jnp.sort(jnp.where(live[None], gaps, jnp.inf), axis=1)[:, :neighbours]
    found = jnp.isfinite(nearest)
    return jnp.sum(jnp.where(found, nearest, 0.0), axis=1) / jnp.maximum(jnp.sum(found, axis=1), 1)


class Archive(NamedTuple):
    """State of `by_archive`.

    Attributes:
      learned: of the autoencoder; () without one.
      ends: float32 [Q, D]. The last observations of earlier episodes, newest last.
      size: int32 []. How many of them there are.
      updates: int32 []. Batches so far.
      rewarded: bool []. Whether the environment has paid anything since the last change of phase.
      novelty: float32 []. Mean novelty of the last batch's episodes.
    """

    learned: Any
    ends: chex.Array
    size: chex.Array
    updates: chex.Array
    rewarded: chex.Array
    novelty: chex.Array


def by_archive(
    *,
    observation_size: int,
    make_net: Callable,
    neighbours: int = 15,
    memory: int = 512,
    latent: int = 0,
    hidden: tuple[int, ...] = (64,),
    learning_rate: float = 1e-3,
    period: int = 0,
    coef: float = 1.0,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Novelty search: an episode is paid at its end for ending where few have ended before.

    Source: arXiv 2203.01027. latent > 0 is its TAXONS: distances between latents of an autoencoder that is trained on
    all observations. period > 0 is its SERENE in outline: after every `period` updates with a reward the next `period`
    pay the environment's reward only, and without any reward the search goes on. Departs: a policy gradient in place of
    a population, emitters are the same policy; control.quality_diversity has both.

    Args:
      observation_size: numbers in an observation.
      make_net: models.agents.features.make_net.
      neighbours: k.
      memory: Q, episodes in the archive.
      latent: size of the autoencoder's latent; 0 compares observations.
      hidden: widths of the autoencoder.
      learning_rate: of Adam.
      period: updates per phase; 0 has one phase.
      coef: weight of the novelty.
      keep: weight of the environment's reward in the phase of novelty.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the environments are spread over devices: the archive is one device's.
    """
    if axis_name is not None:
        raise ValueError("by_archive keeps its episodes on one device: set mesh without envs")
    optimizer = optax.adam(learning_rate)
    encode, decode = (
        make_net(*sizes, hidden=hidden) for sizes in ((observation_size, latent or 1), (latent or 1, observation_size))
    )

    def init(key: chex.PRNGKey) -> Archive:
        keys = jax.random.split(key, 3)
        nets = {"encode": encode.init(keys[0]), "decode": decode.init(keys[1])}
        learned = begin(nets, optimizer, keys[2]) if latent else ()
        zero = jnp.int32(0)
        return Archive(
            learned, jnp.zeros((memory, observation_size)), zero, zero + 0, jnp.bool_(False), jnp.float32(0.0)
        )

    def describe(learned: Any, x: chex.Array) -> chex.Array:
        return encode.apply(learned.params["encode"], x) if latent else x

    def apply(state: Archive, rows: Transitions) -> tuple[Archive, Transitions]:
        ends, done = flat(rows.next_observations), (rows.terminated | rows.truncated).reshape(-1)
        live = jnp.arange(memory) >= memory - state.size
        novelty = nearest_distance(*(describe(state.learned, x) for x in (ends, state.ends)), live, neighbours)
        novelty = jnp.where(done, novelty, 0.0)
        learned = state.learned
        if latent:

            def loss_fn(params: Any, _) -> chex.Array:
                again = decode.apply(params["decode"], encode.apply(params["encode"], ends))
                return jnp.mean(jnp.sum(jnp.square(again - ends), axis=1))

            learned = descend(loss_fn, learned, optimizer, steps=1)
        kept, size = push_rows(state.ends, state.size, ends, done)
        exploit = (state.updates // period % 2 == 1) & state.rewarded if period else jnp.bool_(False)
        rewarded = state.rewarded | jnp.any(rows.rewards > 0)
        # A phase of novelty that follows starts to look for rewards anew.
        ending = exploit & ((state.updates + 1) % period == 0) if period else exploit
        searched = with_bonus(rows, novelty, coef, keep)
        paid = jnp.where(exploit, rows.rewards, searched.rewards)
        mean = jnp.sum(novelty) / jnp.maximum(jnp.sum(done), 1)
        moved = Archive(learned, kept, size, state.updates + 1, rewarded & ~ending, mean)
        return moved, rows._replace(rewards=paid)

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/novelty": state.novelty})


def push_rows(
    queue: chex.Array, size: chex.Array, values: chex.Array, live: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Appends the live rows to a queue whose last `size` places are taken; the oldest are dropped.

    Args:
      queue: float [Q, D].
      size: int [].
      values: float [N, D].
      live: bool [N].

    Returns:
      (queue float [Q, D], size int32 []).
    """
    taken = jnp.concatenate([jnp.arange(len(queue)) >= len(queue) - size, live])
    order = jnp.argsort(taken, stable=True)  # empty places go to the front
    joined = jnp.concatenate([queue, values])[order][-len(queue) :]
    return joined, jnp.minimum(size + jnp.sum(live), len(queue)).astype(jnp.int32)
