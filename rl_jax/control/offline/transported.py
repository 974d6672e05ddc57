"""Preferences of one task from those of another, by a Gromov-Wasserstein coupling of their trajectories (PEARL).

    D_ik   = sqrt( mean_t |x_i,t - x_k,t|^2 )                             within a task, time by time
    T      = argmin sum_ijkl (D_ik - D'_jl)^2 T_ij T_kl                   rows sum to 1 / M, columns to 1 / N
    p_jl   = N^2 sum_ik T_ij T_kl p(i > k)                                the target's labels, in [0, 1]

Only distances within each task are compared, so the tasks may differ in what is observed. Source: arXiv 2306.03615
(cross-task preference alignment). The paper could not be read: the distance between trajectories is a choice made here.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.offline import data as datasets
from rl_jax.control.relabelling.base import begin, descend
from rl_jax.control.relabelling.transport import sinkhorn
from rl_jax.control.segments import over_leading, preference_probs, segment_sums
from rl_jax.losses.reward_model.gaussian import gaussian_pairs


def trajectory_distances(steps: chex.Array) -> chex.Array:
    """The root of the mean squared distance between steps at the same time, float [M, M].

    Args:
      steps: float [M, K, D], M trajectories of K steps.
    """
    chex.assert_rank(steps, 3)
    flat = steps.reshape(len(steps), -1)
    gaps = jnp.sum(jnp.square(flat[:, None] - flat[None]), axis=-1) / steps.shape[1]
    return jnp.sqrt(gaps)


def coupling_cost(plan: chex.Array, source: chex.Array, target: chex.Array) -> chex.Array:
    """L_ij = sum_kl (D_ik - D'_jl)^2 T_kl, float [M, N]; the objective is sum_ij L_ij T_ij, its gradient 2 L.

    With the square expanded it costs O(M^2 N + M N^2).

    Args:
      plan: T, float [M, N].
      source: D, float [M, M], symmetric.
      target: D', float [N, N], symmetric.
    """
    chex.assert_rank([plan, source, target], 2)
    rows, columns = jnp.sum(plan, axis=1), jnp.sum(plan, axis=0)
    of_source, of_target = jnp.square(source) @ rows, jnp.square(target) @ columns
    return of_source[:, None] + of_target[None] - 2.0 * source @ plan @ target


def gromov_wasserstein(
    key: chex.PRNGKey,
    source: chex.Array,
    target: chex.Array,
    *,
    starts: int = 8,
    steps: int = 50,
    temperature: float = 0.1,
    iterations: int = 30,
) -> tuple[chex.Array, chex.Array]:
    """A coupling of two sets by the distances within each, and its objective sum_ij L_ij T_ij.

    Proximal steps T <- argmin <2 L(T), T'> + tau KL(T' | T), each by Sinkhorn's iterations, from several starts; the
    best end is returned. Not convex: with few starts it may be a local minimum. A set that is a reordering of the other
    gives that permutation / M. Source: arXiv 1901.06003 (proximal steps); arXiv 2306.03615 does not say which solver.

    Args:
      key: for the starts: the product of the marginals times e^z, z standard normal; the first has z = 0.
      source: D, float [M, M], symmetric.
      target: D', float [N, N], symmetric.
      starts: number of them.
      steps: proximal steps.
      temperature: tau, in units of the objective of the product of the marginals.
      iterations: of Sinkhorn per step.

    Returns:
      (T float [M, N], objective float []).
    """
    chex.assert_rank([source, target], 2)
    chex.assert_type([source, target], float)
    size = (len(source), len(target))
    # Not coupling_cost of a constant plan: XLA's sum of a product with a constant matrix is wrong on CPUs (jax 0.10.2).
    product = jnp.mean(jnp.square(source)) + jnp.mean(jnp.square(target)) - 2.0 * jnp.mean(source) * jnp.mean(target)
    scale = temperature * jnp.maximum(product, 1e-8)

    def solve(noise: chex.Array) -> tuple[chex.Array, chex.Array]:
        def step(plan: chex.Array, _):
            costs = 2.0 * coupling_cost(plan, source, target) / scale - jnp.log(jnp.maximum(plan, 1e-30))
            return sinkhorn(costs, temperature=1.0, iterations=iterations), None

        first = sinkhorn(-noise, temperature=1.0, iterations=iterations)
        plan = jax.lax.scan(step, first, None, steps)[0]
        return plan, jnp.sum(coupling_cost(plan, source, target) * plan)

    noise = jax.random.normal(key, (starts, *size)).at[0].set(0.0)
    plans, values = jax.vmap(solve)(noise)
    best = jnp.argmin(values)
    return plans[best], values[best]


def transported_labels(plan: chex.Array, labels: chex.Array) -> chex.Array:
    """p_jl = N^2 sum_ik T_ij T_kl p_ik: float [N, N], in [0, 1], with p_jl + p_lj = 1 if the labels have it.

    Source: arXiv 2306.03615. Normalised by N^2, so that the weights of each pair sum to 1.

    Args:
      plan: T, float [M, N], columns sum to 1 / N.
      labels: p(i > k) of the source, float [M, M]; 1 / 2 for equally good ones.
    """
    chex.assert_rank([plan, labels], 2)
    weights = plan / jnp.sum(plan, axis=0, keepdims=True)
    return weights.T @ labels @ weights


class SegmentSet(NamedTuple):
    """M segments of one task.

    Attributes:
      observations: float32 [M, K, D].
      actions: float32 [M, K, A], as the reward reads them.
      mask: bool [M, K].
      sums: float32 [M]. Of the environment's rewards; only an annotator may read them.
    """

    observations: chex.Array
    actions: chex.Array
    mask: chex.Array
    sums: chex.Array

    def distances(self) -> chex.Array:
        """`trajectory_distances` of the segments' steps (s, a), float32 [M, M]; masked steps are zeros."""
        steps = jnp.concatenate([self.observations, self.actions], axis=-1)
        return trajectory_distances(jnp.where(self.mask[..., None], steps, 0.0))


def segment_set(data: datasets.OfflineData, encode, key: chex.PRNGKey, *, length: int, count: int) -> SegmentSet:
    """`count` random segments of the data, all different: the last `length` steps up to every length-th step.

    Args:
      data: of N steps.
      encode: actions -> float32 [..., A].
      key: for the choice.
      length: K.
      count: M.

    Raises:
      ValueError: if the data have fewer segments.
    """
    ends = jnp.arange(length - 1, len(data.time), length)
    if len(ends) < count:
        raise ValueError(f"the data have {len(ends)} segments of {length} steps, fewer than {count}")
    rows, mask = datasets.windows(data, jax.random.permutation(key, ends)[:count], length)
    observations = rows.steps.observations.reshape(count, length, -1).astype(jnp.float32)
    return SegmentSet(observations, encode(rows.steps.actions), mask, segment_sums(rows.steps.rewards, mask))


def all_labels(sums: chex.Array, *, beta: float) -> chex.Array:
    """p(i > k) of every two segments by an annotator of rationality beta: float [M] -> float [M, M]."""
    chex.assert_rank(sums, 1)
    size = (len(sums), len(sums))
    pairs = jnp.stack([jnp.broadcast_to(sums[:, None], size), jnp.broadcast_to(sums[None], size)], axis=-1)
    return preference_probs(pairs, beta=beta)


def learn_gaussian_reward(
    network,
    key: chex.PRNGKey,
    segments: SegmentSet,
    labels: chex.Array,
    *,
    updates: int,
    learning_rate: float,
    batch_size: int = 64,
    **loss,
) -> tuple[Any, chex.Array]:
    """Fits a reward N(mu, sigma^2) to soft labels of pairs, by `gaussian_pairs` and Adam.

    Args:
      network: of two members, mu and log sigma, as reward_learning.learn_reward takes it.
      key: for the weights, the minibatches and the noise.
      segments: of the target task; its sums are not read.
      labels: p(i > k), float [M, M].
      updates: number of minibatches.
      learning_rate: of Adam.
      batch_size: pairs per minibatch.
      loss: keywords of `gaussian_pairs`.

    Returns:
      (params, mean sigma over the segments' steps float32 []).
    """
    chex.assert_shape(labels, (len(segments.sums),) * 2)
    init_key, fit_key = jax.random.split(key)
    optimizer = optax.adam(learning_rate)

    def outputs(params: Any, index: chex.Array) -> tuple[chex.Array, chex.Array]:
        seen, acted = segments.observations[index], segments.actions[index]
        return gaussian_of(over_leading(lambda o, a: network.apply(params, o, a), seen.ndim - 1, seen, acted))

    def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
        first_key, gap_key, noise_key = jax.random.split(key, 3)
        first = jax.random.randint(first_key, (batch_size,), 0, len(labels))
        second = (first + jax.random.randint(gap_key, (batch_size,), 1, len(labels))) % len(labels)
        index = jnp.stack([first, second], axis=1)
        own = labels[first, second]
        return gaussian_pairs(*outputs(params, index), segments.mask[index], own, noise_key, **loss).value()

    params = descend(loss_fn, begin(network.init(init_key), optimizer, fit_key), optimizer, steps=updates).params
    log_stds = outputs(params, jnp.arange(len(labels)))[1]
    return params, jnp.sum(jnp.exp(log_stds) * segments.mask) / jnp.sum(segments.mask)


def gaussian_of(outputs: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(mu, log sigma) of a network's two outputs, float [..., 2] -> float [...] each; log sigma is cut to [-5, 2]."""
    return outputs[..., 0], jnp.clip(outputs[..., 1], -5.0, 2.0)
