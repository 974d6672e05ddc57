"""Imitation from observations: a row's distance to a demonstration by optimal transport, and stages of it.

by_transport  r_i = -scale sum_j T_ij C_ij,  T the Sinkhorn plan between both trajectories       2310.07433, 2412.04835
              gamma = alpha^(1/k), k grows with the longest increasing subsequence of argmin_j C_ij       (ADS)
by_stages     r = sum_i w_i P(stage i | s'),  stages by least variance within them               1612.06699
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations
from rl_jax.control.relabelling.base import flat
from rl_jax.rollout.envs.steps import Transitions


def sinkhorn(costs: chex.Array, *, temperature: float = 0.01, iterations: int = 100) -> chex.Array:
    """The plan T >= 0 of least sum T C - tau H(T) whose rows sum to 1 / N and columns to 1 / M: float [N, M].

    Args:
      costs: float [N, M].
      temperature: tau; small is nearer to the exact plan, and slower.
      iterations: of both sides.
    """
    chex.assert_rank(costs, 2)
    rows, columns = costs.shape

    def step(potentials, _):
        _, right = potentials
        left = -temperature * (jax.nn.logsumexp((right[None] - costs) / temperature, axis=1) + jnp.log(rows))
        right = -temperature * (jax.nn.logsumexp((left[:, None] - costs) / temperature, axis=0) + jnp.log(columns))
        return (left, right), None

    (left, right), _ = jax.lax.scan(step, (jnp.zeros(rows), jnp.zeros(columns)), None, iterations)
    return jnp.exp((left[:, None] + right[None] - costs) / temperature)


def euclidean(x: chex.Array, y: chex.Array) -> chex.Array:
    """|x_i - y_j|. float [N, D], [M, D] -> float [N, M]."""
    return jnp.linalg.norm(x[:, None] - y[None], axis=-1)


def cosine(x: chex.Array, y: chex.Array) -> chex.Array:
    """1 - cos(x_i, y_j), in [0, 2]. float [N, D], [M, D] -> float [N, M]."""
    # Inside the root, so that the gradient of a vector of zeros is 0, not nan.
    left, right = (z / jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(z), axis=1, keepdims=True), 1e-16)) for z in (x, y))
    return 1.0 - left @ right.T


DISTANCES = {"euclidean": euclidean, "cosine": cosine}


def step_costs(costs: chex.Array, *, temperature: float = 0.01, iterations: int = 100) -> chex.Array:
    """sum_j T_ij C_ij of the plan `sinkhorn`: each row's share of the transport cost, float [N].

    Args:
      costs: float [N, M].
      temperature: as for `sinkhorn`.
      iterations: as for `sinkhorn`.
    """
    return jnp.sum(sinkhorn(costs, temperature=temperature, iterations=iterations) * costs, axis=1)


def longest_increasing(values: chex.Array, live: chex.Array) -> chex.Array:
    """Length of the longest strictly increasing subsequence of the live values, int32 [].

    Args:
      values: int [T].
      live: bool [T].
    """
    chex.assert_equal_shape([values, live])

    def step(best: chex.Array, now):
        index, value, counts = now
        before = (values < value) & live & (jnp.arange(len(values)) < index)
        length = jnp.where(counts, 1 + jnp.max(jnp.where(before, best, 0)), 0)
        return best.at[index].set(length), None

    best, _ = jax.lax.scan(step, jnp.zeros(len(values), jnp.int32), (jnp.arange(len(values)), values, live))
    return jnp.max(best)


def progress_discount(horizon: chex.Array | float, alpha: float = 0.2) -> chex.Array:
    """gamma = alpha^(1/k), float []: what lies k steps ahead counts alpha. k = 20 of alpha = 0.2 gives 0.9227."""
    return jnp.float32(alpha) ** (1.0 / horizon)


def moved_horizon(
    horizon: chex.Array, costs: chex.Array, *, share: float = 0.9, quantile: float = 0.9, most: int = 5
) -> chex.Array:
    """k + 1 as often as the rows follow the first k steps of the demonstration in order, at most `most` times.

    They do if the `quantile` of the rows' longest increasing subsequences of argmin_j C_ij, over the first k rows and
    columns, is floor(share k) or more: a single demonstration follows itself for all k.

    Args:
      horizon: k, int [].
      costs: float [B, T, M].
      share: of the demonstration's own length.
      quantile: over the B rows.
      most: steps of k per call.
    """
    _, steps, columns = costs.shape

    def step(k: chex.Array, _):
        inside = jnp.arange(columns) < k
        nearest = jnp.argmin(jnp.where(inside[None, None], costs, jnp.inf), axis=2)
        lengths = jax.vmap(longest_increasing, in_axes=(0, None))(nearest, jnp.arange(steps) < k)
        # nearest: the rank of the quantile among B rows, so that one row is its own.
        score = jnp.quantile(lengths.astype(jnp.float32), quantile, method="nearest")
        follows = score >= jnp.floor(share * k)
        return jnp.where(follows, jnp.minimum(k + 1, min(steps, columns)), k), None

    return jax.lax.scan(step, horizon, None, most)[0]


class Followed(NamedTuple):
    """State of `by_transport`.

    Attributes:
      horizon: int32 []. k.
      cost: float32 []. Mean transport cost of the last batch.
    """

    horizon: chex.Array
    cost: chex.Array


def by_transport(
    *,
    observation_size: int,
    demos: str = "",
    indices: tuple[int, ...] = (),
    distance: str = "euclidean",
    temperature: float = 0.01,
    scale: float = 1.0,
    alpha: float = 0.2,
    begin_share: float = 0.2,
    adaptive: bool = True,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays each step minus its share of the transport cost to the last demonstration; ADS moves the discount.

    Each row of T steps is one trajectory: sample.num_steps should be the episodes' length. Source: arXiv 2310.07433
    (Sinkhorn 100 iterations, alpha = 0.2, k from 0.2 H); relabelling.aligned has the same cost between codes that are
    learned from preferences (RAPL, 2412.04835). Stand-in: vectors in place of video.

    Args:
      observation_size: numbers in an observation.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      indices: features that are compared; () is all.
      distance: "euclidean", or "cosine" (1 - cos).
      temperature: of Sinkhorn.
      scale: of the reward.
      alpha: gamma^k.
      begin_share: k at the start over the demonstration's length.
      adaptive: False keeps the config's discount.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the distance is unknown, the demonstration is of another size, or the environments are spread.
    """
    if distance not in DISTANCES or axis_name is not None:
        raise ValueError(f"by_transport: distance={distance!r} must be euclidean or cosine, and mesh without envs")
    shown = demonstrations.read(demos).trajectories()[-1]
    if shown.shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown.shape[1]} numbers, but {observation_size} here")
    chosen = jnp.asarray(indices or range(observation_size))
    target = jnp.asarray(shown)[:, chosen]

    def init() -> Followed:
        return Followed(jnp.int32(max(1, int(begin_share * len(target)))), jnp.float32(0.0))

    def apply(state: Followed, rows: Transitions) -> tuple[Followed, Transitions]:
        costs = jax.vmap(lambda x: DISTANCES[distance](x, target))(rows.next_observations[..., chosen])
        paid = jax.vmap(lambda c: step_costs(c, temperature=temperature))(costs)
        # Times T: a step's mean cost, whatever the length of the row.
        rewards = -scale * paid * costs.shape[1] + keep * rows.rewards
        moved = Followed(moved_horizon(state.horizon, costs), jnp.mean(jnp.sum(paid, axis=1)))
        return moved, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    def measure(state: Followed) -> dict[str, chex.Array]:
        return {"relabel/horizon": state.horizon.astype(jnp.float32), "relabel/cost": state.cost}

    def discount(state: Followed) -> chex.Array:
        return progress_discount(state.horizon.astype(jnp.float32), alpha)

    return Relabel(init, apply, measure=measure, discount=discount if adaptive else None)


def segmented(features: np.ndarray, stages: int) -> list[int]:
    """Where a trajectory is cut into stages of least variance within them: stages + 1 indices from 0 to T.

    Source: arXiv 1612.06699 section III-A, by dynamic programming in place of its recursive search.

    Args:
      features: float [T, D].
      stages: number of stages, T at most.

    Raises:
      ValueError: if there are more stages than steps.
    """
    steps = len(features)
    if not 1 <= stages <= steps:
        raise ValueError(f"segmented: {stages} stages of {steps} steps: each stage needs a step")
    sums, squares = (
        np.cumsum(np.concatenate([np.zeros((1, features.shape[1])), x]), 0) for x in (features, features**2)
    )

    def spread(start: int, stop: int) -> float:
        total = sums[stop] - sums[start]
        return float(np.sum(squares[stop] - squares[start] - total**2 / (stop - start)))

    best = np.full((stages + 1, steps + 1), np.inf)
    cut = np.zeros((stages + 1, steps + 1), int)
    best[0, 0] = 0.0
    for stage in range(1, stages + 1):
        for stop in range(stage, steps + 1):
            found = [best[stage - 1, start] + spread(start, stop) for start in range(stage - 1, stop)]
            cut[stage, stop] = stage - 1 + int(np.argmin(found))
            best[stage, stop] = min(found)
    cuts = [steps]
    for stage in range(stages, 0, -1):
        cuts.append(int(cut[stage, cuts[-1]]))
    return cuts[::-1]


def by_stages(
    *, observation_size: int, demos: str = "", last: int = 1, stages: int = 3, width: float = 0.1, keep: float = 0.0
) -> Relabel:
    """Pays for the later stages of the demonstrations: r = sum_i (i / S) P(stage i | s') + keep r.

    Stages are cut from each demonstration (`segmented`); the classifier is Gaussian, one mean per stage and a deviation
    per feature, `width` at least. Source: arXiv 1612.06699 (perceptual rewards). Stand-in: vectors in place of the
    features of a vision network; all features, none selected.

    Args:
      observation_size: numbers in an observation.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      last: episodes of it.
      stages: S.
      width: smallest deviation of a feature.
      keep: weight of the environment's reward.

    Raises:
      ValueError: if the demonstrations are of another size.
    """
    shown = demonstrations.read(demos, last=last).trajectories()
    if shown[0].shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown[0].shape[1]} numbers, but {observation_size} here")
    classify = stage_classifier(shown, stages, width)
    weights = jnp.arange(1, stages + 1) / stages

    def apply(state: tuple, rows: Transitions) -> tuple[tuple, Transitions]:
        paid = (classify(flat(rows.next_observations)) @ weights).reshape(rows.rewards.shape)
        return state, rows._replace(rewards=paid + keep * rows.rewards)

    return Relabel(lambda: (), apply)


def stage_classifier(trajectories: list[np.ndarray], stages: int, width: float) -> Callable:
    """float [N, D] -> P(stage | features) float [N, S], from trajectories float [T_e, D]."""
    parts: list[list[np.ndarray]] = [[] for _ in range(stages)]
    for features in trajectories:
        cuts = segmented(features, stages)
        for stage in range(stages):
            parts[stage].append(features[cuts[stage] : cuts[stage + 1]])
    groups = [np.concatenate(part) for part in parts]
    means = jnp.asarray(np.stack([group.mean(0) for group in groups]))
    within = np.concatenate([group - group.mean(0) for group in groups])
    deviations = jnp.asarray(np.maximum(within.std(0), width))

    def classify(x: chex.Array) -> chex.Array:
        gaps = (x[:, None] - means[None]) / deviations[None, None]
        return jax.nn.softmax(-0.5 * jnp.sum(jnp.square(gaps), axis=-1), axis=1)

    return classify
