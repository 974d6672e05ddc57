"""Deep CFR over latent strategies: networks in place of the tables of rl_jax.selection.latent_strategies.solve.

    for t = 1 .. T, for each player p:
      `traversals` walks of the game: p tries all its strategies, chance and the others are sampled; at each I of p
          r_t(I, k) = v(I, k) - sum_j sigma_t(I, j) v(I, j)   -> memory of p, at each I of others  sigma_t(I) -> memory
      theta_p from new:  min  mean of t (r - D(I, k | theta_p))^2  over p's memory          the advantages
      sigma_{t+1}(I, .) ~ max(D(I, . | theta_p), 0); the largest D alone if none is above 0
    the average policy:  min  mean of t (sigma - Pi(I, k | theta))^2  over the other memory

A strategy k does action a with the chance M[k, a], so v(I, k) = sum_a M[k, a] v(I, a). The expectation of r_t, summed
over visits, is the counterfactual regret of a round of CFR. Memories are reservoirs. Networks are small: an MLP of what
the player knows. Traversals are on the host, fits are one compiled program each.

Source: Deep CFR, arXiv 1811.00164 (algorithms 1 and 2), as LSPO (arXiv 2502.04686) uses it; its sizes are not known.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.core.masked import Mean
from rl_jax.selection.latent_strategies import Chance, Solution, infosets

Params = list[tuple[chex.Array, chex.Array]]


class Memory(NamedTuple):
    """Samples to fit, N of them.

    Attributes:
      inputs: float32 [N, F], what the player knew.
      targets: float32 [N, K].
      valid: bool [N, K], strategies that there are.
      weights: float32 [N], t.
    """

    inputs: chex.Array
    targets: chex.Array
    valid: chex.Array
    weights: chex.Array


def init(key: chex.PRNGKey, sizes: Sequence[int]) -> Params:
    """An MLP's params, He-normal weights and zero biases; the last layer's weights are 0, so it begins with 0.

    Args:
      key: of the weights.
      sizes: F, hidden widths, K.
    """
    params = []
    for index, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False)):
        scale = 0.0 if index == len(sizes) - 2 else (2.0 / inputs) ** 0.5
        weights = scale * jax.random.normal(jax.random.fold_in(key, index), (inputs, outputs))
        params.append((weights, jnp.zeros(outputs)))
    return params


def apply(params: Params, inputs: chex.Array) -> chex.Array:
    """The MLP with relus between its layers: float [N, F] -> float [N, K]."""
    for weights, bias in params[:-1]:
        inputs = jax.nn.relu(inputs @ weights + bias[None])
    weights, bias = params[-1]
    return inputs @ weights + bias[None]


def fit_loss(outputs: chex.Array, batch: Memory) -> Mean:
    """sum_n t_n sum_k (y_nk - outputs_nk)^2 over the strategies that there are, divided by sum_n t_n.

    Args:
      outputs: float [N, K], of the network.
      batch: N samples.
    """
    chex.assert_equal_shape([outputs, batch.targets, batch.valid])
    errors = jnp.where(batch.valid, batch.targets - outputs, 0.0) ** 2
    return Mean(jnp.sum(batch.weights * errors.sum(axis=1)), jnp.sum(batch.weights))


@functools.partial(jax.jit, static_argnames=("sizes", "updates", "batch_size", "learning_rate"))
def fit(
    memory: Memory,
    count: chex.Array,
    key: chex.PRNGKey,
    *,
    sizes: tuple[int, ...],
    updates: int,
    batch_size: int,
    learning_rate: float,
) -> Params:
    """A network from new: `updates` steps of Adam with clipped gradients on random batches of the memory.

    Args:
      memory: of any capacity; equal capacities share one program.
      count: int32 [], samples in it, the first ones; at least 1.
      key: of the params and the batches.
      sizes: as of `init`.
      updates: steps.
      batch_size: samples a step, drawn with replacement.
      learning_rate: of Adam; it falls to 0 linearly.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(learning_rate, 0.0, updates))
    )
    first = init(key, sizes)

    def step(carry, number):
        params, state = carry
        rows = jax.random.randint(jax.random.fold_in(key, number + len(sizes)), (batch_size,), 0, count)
        batch = jax.tree.map(lambda x: x[rows], memory)
        grads = jax.grad(lambda p: fit_loss(apply(p, batch.inputs), batch).value())(params)
        changes, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, changes), state), None

    return jax.lax.scan(step, (first, optimizer.init(first)), jnp.arange(updates))[0][0]


class Reservoir:
    """A uniform sample of all that was added, at most `capacity` of it. dice: numpy's Generator."""

    def __init__(self, capacity: int, inputs: int, outputs: int, dice: np.random.Generator):
        self.seen, self._capacity, self._dice = 0, capacity, dice
        self.memory = Memory(
            np.zeros((capacity, inputs), np.float32),
            np.zeros((capacity, outputs), np.float32),
            np.zeros((capacity, outputs), bool),
            np.zeros(capacity, np.float32),
        )

    def add(self, inputs: np.ndarray, targets: np.ndarray, weight: float) -> None:
        """inputs: [F]. targets: [k], k at most K. The n-th sample takes a place with the chance capacity / n."""
        place = self.seen if self.seen < self._capacity else int(self._dice.integers(self.seen + 1))
        self.seen += 1
        if place < self._capacity:
            row = np.zeros(self.memory.targets.shape[1], np.float32)
            row[: len(targets)] = targets
            columns = (inputs, row, np.arange(len(row)) < len(targets), weight)
            for whole, own in zip(self.memory, columns, strict=True):
                whole[place] = own

    @property
    def count(self) -> int:
        """Samples in it."""
        return min(self.seen, self._capacity)


def matched(advantages: np.ndarray) -> np.ndarray:
    """Regret matching, float [k] of sum 1: in proportion to what is above 0, else the largest alone."""
    up = np.maximum(advantages, 0.0)
    return up / up.sum() if up.sum() > 0 else np.eye(len(up))[int(np.argmax(advantages))]


def traverse(
    root: Any,
    player: int,
    strategy: Mapping[str, np.ndarray],
    effects: Mapping[str, np.ndarray],
    dice: np.random.Generator,
    own: Callable[[str, np.ndarray], None],
    others: Callable[[str, np.ndarray], None],
) -> None:
    """One walk of the game (external sampling).

    Args:
      root: of the game.
      player: whose strategies are all tried.
      strategy: infoset -> sigma_t, float [K].
      effects: infoset -> M, float [K, A].
      dice: of chance and of the other players.
      own: gets (infoset, r_t [K]) of each information set of the player that is met.
      others: gets (infoset, sigma_t [K]) of the others'.
    """

    def walk(node: Any) -> float:
        """What side 0 gets, the mean over the player's own choices."""
        if isinstance(node, int | float):
            return node
        if isinstance(node, Chance):
            return walk(node.children[_drawn(node.probs, dice)])
        sigma, table = strategy[node.infoset], effects[node.infoset]
        if node.player != player:
            others(node.infoset, sigma)
            return walk(node.children[_drawn(table[_drawn(sigma, dice)], dice)])
        values = table @ np.asarray([walk(child) for child in node.children])
        mean = float(sigma @ values)
        own(node.infoset, node.sign * (values - mean))
        return mean

    walk(root)


def _drawn(probs: Sequence[float], dice: np.random.Generator) -> int:
    left = dice.random()
    for index, share in enumerate(probs):
        left -= share
        if left < 0:
            return index
    return int(np.argmax(probs))  # what rounding leaves


def solve(
    root: Any,
    effects: Mapping[str, np.ndarray],
    *,
    features: Callable[[str], np.ndarray],
    rounds: int = 20,
    traversals: int = 60,
    updates: int = 150,
    batch_size: int = 128,
    hidden: Sequence[int] = (64,),
    capacity: int = 20_000,
    learning_rate: float = 1e-2,
    most: int = 0,
    seed: int = 0,
) -> Solution:
    """Deep CFR. The regrets are the advantage networks', a mean per visit; the policy is the average one's network.

    Args:
      root: of the game, a Chance or a Decision.
      effects: infoset -> M, float [K, A], for every information set.
      features: infoset -> what the player knows, float [F].
      rounds: T.
      traversals: of each player in a round.
      updates: steps of each fit.
      batch_size: samples of a step.
      hidden: widths of the networks.
      capacity: of each memory.
      learning_rate: of the fits.
      most: outputs of the networks; 0: the largest K. Games of equal `most` share their programs.
      seed: of all chance.

    Raises:
      ValueError: if an information set has no M, one of another number of actions, or more than `most` strategies.
    """
    sets = infosets(root)
    most = _outputs(sets, effects, most)
    inputs = np.stack([np.asarray(features(name), np.float32) for name in sets])
    row = {name: index for index, name in enumerate(sets)}
    sizes = (inputs.shape[1], *hidden, most)
    dice, key = np.random.default_rng(seed), jax.random.key(seed)
    players = sorted({player for player, _ in sets.values()})
    memories = {player: Reservoir(capacity, sizes[0], sizes[-1], dice) for player in (*players, -1)}
    options = dict(sizes=sizes, updates=updates, batch_size=batch_size, learning_rate=learning_rate)

    def fitted(player: int, number: int) -> np.ndarray:
        """The outputs of a network that was fitted to a memory, for all information sets, [I, K]."""
        kept = memories[player]
        of_fit = jax.random.fold_in(jax.random.fold_in(key, number), player + 1)
        return np.asarray(apply(fit(kept.memory, np.int32(kept.count), of_fit, **options), inputs))

    strategy = {name: np.full(len(effects[name]), 1 / len(effects[name])) for name in sets}
    regrets = {name: np.zeros(len(effects[name])) for name in sets}
    for number in range(1, rounds + 1):

        def keep(player: int, name: str, target: np.ndarray, weight: float = number) -> None:
            memories[player].add(inputs[row[name]], target, weight)

        for player in players:
            for _ in range(traversals):
                own, others = functools.partial(keep, player), functools.partial(keep, -1)
                traverse(root, player, strategy, effects, dice, own, others)
            found = fitted(player, number)
            for name, (owner, _) in sets.items():
                if owner == player:
                    regrets[name] = found[row[name], : len(effects[name])].astype(float)
        strategy = {name: matched(values) for name, values in regrets.items()}
    return Solution(regrets, _shares(fitted(-1, rounds + 1), effects, row))


def _outputs(sets: Mapping[str, Any], effects: Mapping[str, np.ndarray], most: int) -> int:
    """Outputs of the networks; raises ValueError if an information set does not fit."""
    for name, (_, count) in sets.items():
        if name not in effects or effects[name].shape[1] != count:
            raise ValueError(f"the information set {name!r} needs effects of its {count} actions")
    largest = max(len(effects[name]) for name in sets)
    if most and most < largest:
        raise ValueError(f"most={most} is less than the {largest} strategies of an information set")
    return most or largest


def _shares(found: np.ndarray, effects: Mapping[str, np.ndarray], row: Mapping[str, int]) -> dict[str, np.ndarray]:
    """infoset -> probabilities, of a network's outputs [I, K]: what is above 0, of sum 1; even if nothing is."""
    policy = {}
    for name, index in row.items():
        up = np.maximum(found[index, : len(effects[name])].astype(float), 0.0)
        policy[name] = up / up.sum() if up.sum() > 0 else np.full(len(up), 1 / len(up))
    return policy
