"""TAXONS and STAX: novelty search and SERENE whose descriptors are learned. Source: arXiv 2203.01027, GPaolo/STAX.

    z, x'       of an autoencoder of what the last observation x of an episode looks like
    novelty     mean distance of z to its k nearest, as in control.quality_diversity
    surprise    mean_d (x_d - x'_d)^2: what the autoencoder has rarely seen
    explore     as novelty search; a coin decides in each generation whether the most novel or most surprising live on
    train       after chunks 1, 3, 6, 10, ... of exploration, on the last observations of the archive, the population,
                its last children and the rewarded: up to 100 epochs, until the error of a fifth held out has been above
                its least in four epochs in a row; the weights and Adam's state go on from where they were

TAXONS explores only (there in arXiv 1909.05508); STAX gives every other chunk to SERENE's emitters. A Search keeps
observations, not z: after a training every z is the new one's. Departs: fully connected layers with linear codes in
place of convolutions with SELU; an emitter's record of novelty keeps the units of the autoencoder that it was found
with, as in the public code, though all else is measured anew.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control import quality_diversity as qd

CRITERIA = ("novelty", "surprise")


class Weights(NamedTuple):
    """State of an Autoencoder.

    Attributes:
      params: {"encode", "decode"}.
      optimizer: its state.
    """

    params: Any
    optimizer: Any


class Autoencoder(NamedTuple):
    """Pure functions of observations float32 [N, D] and what is learned of them.

    Attributes:
      init: (key) -> Weights.
      encode: (Weights, observations) -> z float32 [N, F].
      surprise: (Weights, observations) -> float32 [N].
      epoch: (Weights, observations, index int32 [S, B]) -> Weights after one step for each row of the index; entries
        below 0 count for nothing, a row of such entries is no step.
      batch_size: B.
      epochs: at most, of a training.
    """

    init: Callable
    encode: Callable
    surprise: Callable
    epoch: Callable
    batch_size: int
    epochs: int


def make_autoencoder(
    observation_size: int,
    *,
    make_net: Callable,
    view: Callable = lambda observations: observations,
    view_size: int | None = None,
    latent: int = 10,
    hidden: tuple[int, ...] = (64,),
    learning_rate: float = 1e-3,
    batch_size: int = 128,
    epochs: int = 100,
) -> Autoencoder:
    """An Autoencoder.

    Args:
      observation_size: D.
      make_net: models.agents.features.make_net.
      view: observations float32 [N, D] -> what is encoded, float32 [N, view_size].
      view_size: of it; None: D.
      latent: F; 10 published.
      hidden: widths of the encoder's layers; the decoder has them the other way around.
      learning_rate: of Adam; 1e-3 published.
      batch_size: 128 published.
      epochs: 100 published.
    """
    seen, optimizer = view_size or observation_size, optax.adam(learning_rate)
    down = make_net(seen, latent, hidden=tuple(hidden))
    up = make_net(latent, seen, hidden=tuple(reversed(hidden)))

    def init(key: chex.PRNGKey) -> Weights:
        down_key, up_key = jax.random.split(key)
        params = {"encode": down.init(down_key), "decode": up.init(up_key)}
        return Weights(params, optimizer.init(params))

    def encode(weights: Weights, observations: chex.Array) -> chex.Array:
        chex.assert_shape(observations, (None, observation_size))
        return down.apply(weights.params["encode"], view(observations))

    def errors(params: Any, observations: chex.Array) -> chex.Array:
        chex.assert_shape(observations, (None, observation_size))
        x = view(observations)
        return jnp.mean(jnp.square(up.apply(params["decode"], down.apply(params["encode"], x)) - x), axis=1)

    def epoch(weights: Weights, observations: chex.Array, index: chex.Array) -> Weights:
        def loss(params: Any, row: chex.Array) -> chex.Array:
            live = row >= 0
            each = errors(params, observations[jnp.maximum(row, 0)])
            return jnp.sum(jnp.where(live, each, 0.0)) / jnp.maximum(jnp.sum(live), 1)

        def step(weights: Weights, row: chex.Array):
            updates, moved = optimizer.update(jax.grad(loss)(weights.params, row), weights.optimizer, weights.params)
            after = Weights(optax.apply_updates(weights.params, updates), moved)
            return jax.tree.map(lambda new, old: jnp.where(jnp.any(row >= 0), new, old), after, weights), None

        return jax.lax.scan(step, weights, index)[0]

    surprise = jax.jit(lambda weights, observations: errors(weights.params, observations))
    return Autoencoder(init, jax.jit(encode), surprise, jax.jit(epoch), batch_size, epochs)


def batches(count: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """A permutation of 0 .. count - 1 in rows: int32 [a power of 2, size], -1 behind its end."""
    rows = 1 << max(-(-count // size) - 1, 0).bit_length()
    index = np.full(rows * size, -1, np.int32)
    index[:count] = rng.permutation(count)
    return index.reshape(rows, size)


def train(
    autoencoder: Autoencoder, weights: Weights, observations: np.ndarray, rng: np.random.Generator
) -> tuple[Weights, list[float]]:
    """A training on observations float32 [N, D], a fifth of them held out: (weights, their error after each epoch)."""
    shuffled = observations[rng.permutation(len(observations))]
    held = max(len(shuffled) // 5, 1)
    told, own = qd.padded(shuffled[:held]), jnp.asarray(qd.padded(shuffled[held:]))
    least, above, found = np.inf, 0, []
    for _ in range(autoencoder.epochs):
        weights = autoencoder.epoch(weights, own, batches(len(shuffled) - held, autoencoder.batch_size, rng))
        found.append(float(np.mean(autoencoder.surprise(weights, told)[:held])))
        above = 0 if found[-1] <= least else above + 1
        least = min(least, found[-1])
        if above == 4:
            break
    return weights, found


def run(
    evaluate: qd.Evaluate,
    size: int,
    autoencoder: Autoencoder,
    *,
    budget: int,
    seed: int,
    numbers: qd.Numbers,
    emitters: bool = False,
    criteria: tuple[str, ...] = CRITERIA,
    trained: bool = True,
) -> tuple[qd.Search, Weights]:
    """TAXONS, or with emitters STAX.

    Args:
      evaluate: genomes float32 [N, P] -> (last observations [N, D], rewards [N]).
      size: P.
      autoencoder: of the observations.
      budget: evaluations in all; the last generation or step may go over it.
      seed: of everything; exploration, emitters and the autoencoder draw from streams of their own.
      numbers: of the search.
      emitters: whether rewards are exploited.
      criteria: of which each generation draws one; ("novelty",) is TAXO-N, ("surprise",) TAXO-S.
      trained: False: the autoencoder stays as it was made; with ("novelty",) that is NT.

    Returns:
      (the Search, whose descriptors are the observations; the autoencoder's Weights).

    Raises:
      ValueError: if there is no criterion, or an unknown one.
    """
    if not criteria or not set(criteria) <= set(CRITERIA):
        raise ValueError(f"taxons: criteria={criteria} must be of {', '.join(CRITERIA)}, one or more")
    exploring, exploiting, training = (np.random.default_rng([seed, stream]) for stream in (0, 1, 2))
    weights = autoencoder.init(jax.random.key(seed))
    chunks, interval = 0, 1

    def measured(by: Callable, observations: np.ndarray) -> np.ndarray:
        return np.asarray(by(weights, qd.padded(observations)))[: len(observations)]

    describe, surprises = (functools.partial(measured, by) for by in (autoencoder.encode, autoencoder.surprise))
    kinds = {
        "novelty": qd.by_novelty(numbers, describe),
        "surprise": lambda both, reference, rng: surprises(both.descriptors),
    }

    def merits(both: qd.Members, reference: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return kinds[criteria[rng.integers(len(criteria))]](both, reference, rng)

    search = qd.begin(evaluate, size, numbers, exploring)

    def generation() -> None:
        qd.explore(search, evaluate, numbers, exploring, merits=merits)

    def emit(left: int) -> None:
        qd.exploit(search, evaluate, numbers, exploiting, budget=left, describe=describe)

    def after() -> None:
        nonlocal weights, chunks, interval
        chunks += 1
        if not trained or chunks < interval:
            return
        groups = (search.population, search.born, search.rewarded)
        seen = np.concatenate([search.archive, *(group.descriptors for group in groups)])
        weights, _ = train(autoencoder, weights, seen, training)
        chunks, interval = 0, interval + 1

    qd.alternate(search, numbers, budget, generation, emit if emitters else None, after)
    return search, weights
