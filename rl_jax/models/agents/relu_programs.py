"""The best binary action of a ReLU network Q(s, a) as a mixed-integer program. Source: SEQUOIA, arXiv 2503.01919.

    max_a Q(s, a)   subject to   low <= C a <= high,   a in {0, 1}^n

Each unit of a hidden layer is written with two numbers x, y >= 0 and a switch z in {0, 1},

    x - y = W x_before + b,    x <= M+ (1 - z),    y <= M- z        so that x = max(W x_before + b, 0)

M+ and M- are the largest values that the unit can have on either side: of the first layer by linear programs over the
feasible a in [0, 1]^n, of later ones by interval arithmetic. The paper's code has 1e5 for all: a solver that takes
z = 1e-6 for 0 then lets .1 through. The solver is HiGHS (scipy.optimize.milp), on the host. The paper's is Gurobi.
"""

import collections
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from rl_jax.core.types import Params

Layers = list[tuple[np.ndarray, np.ndarray]]  # (kernel [in, out], bias [out]) of each layer, the head last


class Feasible(NamedTuple):
    """Which binary actions there are: low <= C a <= high.

    Attributes:
      matrix: C, float [m, n].
      low: float [m].
      high: float [m].
    """

    matrix: np.ndarray
    low: np.ndarray
    high: np.ndarray


def exactly(size: int, budget: int) -> Feasible:
    """Actions of n = `size` arms of which exactly `budget` are pulled."""
    return Feasible(np.ones((1, size)), np.array([float(budget)]), np.array([float(budget)]))


def layers_of(params: Params) -> list[Layers]:
    """The layers of each member of a value_networks.Critic of an mlp: K lists. params: leaves [K, ...]."""
    names = sorted((name for name in params if name != "head"), key=lambda name: int(name.split("_")[-1]))
    members = len(params["head"]["bias"])
    kernels = [(np.asarray(params[name]["kernel"]), np.asarray(params[name]["bias"])) for name in (*names, "head")]
    return [[(w[k].astype(float), b[k].astype(float)) for w, b in kernels] for k in range(members)]


class _Program:
    """A program that grows: bounds and kinds of its variables, rows of its constraints."""

    def __init__(self, size: int):
        self.low, self.high, self.whole, self.gain = [0.0] * size, [1.0] * size, [1] * size, [0.0] * size
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def variable(self, high: float, *, whole: bool = False) -> int:
        self.low.append(0.0)
        self.high.append(high)
        self.whole.append(int(whole))
        self.gain.append(0.0)
        return len(self.low) - 1

    def solved(self) -> np.ndarray:
        matrix = np.zeros((len(self.rows), len(self.low)))
        for row, (entries, _, _) in enumerate(self.rows):
            matrix[row, list(entries)] = list(entries.values())
        limits = scipy.optimize.LinearConstraint(matrix, [r[1] for r in self.rows], [r[2] for r in self.rows])
        found = scipy.optimize.milp(
            -np.array(self.gain),
            constraints=limits,
            integrality=np.array(self.whole),
            bounds=scipy.optimize.Bounds(self.low, self.high),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            raise RuntimeError(f"the integer program has no answer: {found.message}")
        return found.x


def first_bounds(members: list[Layers], feasible: Feasible) -> list[tuple[np.ndarray, np.ndarray]]:
    """(least, largest) of 2 W_a a over the feasible a in [0, 1]^n, for the first layer of each member.

    Args:
      members: as at `best_action`; its networks' states play no part here.
      feasible: the actions.

    Raises:
      RuntimeError: if no action is feasible.
    """
    size = feasible.matrix.shape[1]
    found = []
    for layers in members:
        weights = 2.0 * layers[0][0][-size:].T
        found.append((-_largest(-weights, feasible), _largest(weights, feasible)))
    return found


def _largest(weights: np.ndarray, feasible: Feasible) -> np.ndarray:
    """max w . a over the feasible a in [0, 1]^n for each row w of weights [m, n]: float [m]."""
    (matrix, low, high), size = feasible, weights.shape[1]
    if matrix.shape[0] == 1 and (matrix == 1.0).all() and low[0] == high[0] == round(low[0]) and 0 <= low[0] <= size:
        return np.sort(weights, axis=1)[:, size - int(low[0]) :].sum(1)  # of `exactly`: the sum of the largest
    rows, limits = np.concatenate([matrix, -matrix]), np.concatenate([high, -low])
    rows, limits = rows[np.isfinite(limits)], limits[np.isfinite(limits)]
    solved = [scipy.optimize.linprog(-w, rows, limits, bounds=(0.0, 1.0)) for w in weights]
    if any(result.fun is None for result in solved):
        raise RuntimeError(f"no action is feasible: {solved[0].message}")
    return -np.array([result.fun for result in solved])


def best_action(
    members: list[Layers],
    observation: np.ndarray,
    feasible: Feasible,
    bounds: list[tuple[np.ndarray, np.ndarray]] | None = None,
) -> np.ndarray:
    """argmax over feasible a of the members' mean Q(s, a), float32 [n] of 0 and 1.

    Args:
      members: the layers of each network, which reads (s, 2 a - 1) as value_networks.make_q_function does with the
        bounds 0 and 1, and has one output.
      observation: s, float [D].
      feasible: the actions.
      bounds: `first_bounds`, which are the same for all observations; None computes them.

    Raises:
      ValueError: if the network does not read D + n numbers or has several outputs.
      RuntimeError: if no action is feasible.
    """
    size, seen = feasible.matrix.shape[1], observation.size
    shapes = members[0][0][0].shape[0], members[0][-1][0].shape[1]
    if shapes != (seen + size, 1):
        raise ValueError(f"the network reads {shapes[0]} numbers and has {shapes[1]} outputs, not {seen + size} and 1")
    program = _Program(size)
    for row, low, high in zip(feasible.matrix, feasible.low, feasible.high, strict=True):
        program.rows.append(({i: float(w) for i, w in enumerate(row)}, float(low), float(high)))
    bounds = first_bounds(members, feasible) if bounds is None else bounds
    for layers, ends in zip(members, bounds, strict=True):
        _write(program, layers, observation.reshape(-1).astype(float), ends, size, 1.0 / len(members))
    return np.round(program.solved()[:size]).astype(np.float32)


def _write(program: _Program, layers: Layers, observation: np.ndarray, ends, size: int, weight: float) -> None:
    """Adds one network and `weight` times its output to the program. ends: its `first_bounds`."""
    first, bias = layers[0]
    acting = first[len(observation) :]
    bias = bias + observation @ first[: len(observation)] - acting.sum(0)  # it reads 2 a - 1
    before, kernel = list(range(size)), 2.0 * acting
    low, high = ends[0] + bias, ends[1] + bias
    for following, next_bias in layers[1:]:
        units = []
        for unit in range(len(bias)):
            above, below = max(high[unit], 0.0), max(-low[unit], 0.0)
            x, y, z = program.variable(above), program.variable(below), program.variable(1.0, whole=True)
            entries = {i: -float(w) for i, w in zip(before, kernel[:, unit], strict=True)}
            program.rows.append((entries | {x: 1.0, y: -1.0}, float(bias[unit]), float(bias[unit])))
            program.rows.append(({x: 1.0, z: above}, -np.inf, above))
            program.rows.append(({y: 1.0, z: -below}, -np.inf, 0.0))
            units.append(x)
        before, kernel, bias = units, following, next_bias
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)
        ends = np.minimum(kernel, 0.0).T @ high + np.maximum(kernel, 0.0).T @ low, np.maximum(kernel, 0.0).T @ high
        low, high = ends[0] + bias, ends[1] + np.minimum(kernel, 0.0).T @ low + bias
    for i, w in zip(before, kernel[:, 0], strict=True):
        program.gain[i] += weight * float(w)


def make_search(feasible: Feasible, *, kept: int = 4) -> Callable:
    """(params, observations [N, *shape]) -> best actions float32 [N, n], callable in a compiled program.

    The programs are solved on the host (jax.pure_callback), each state of a network once: the answers of the last
    `kept` networks are remembered, so rows that repeat and a slow copy that stands still cost nothing. Slow beside an
    enumeration of few actions; it is for sets too large for that. Mapped runs (vmap) are solved one after the other.

    Args:
      feasible: the actions.
      kept: networks whose answers are remembered.
    """
    size = feasible.matrix.shape[1]
    answers: collections.OrderedDict[bytes, tuple[list, list, dict[bytes, np.ndarray]]] = collections.OrderedDict()

    def solved(params: Params, observations: np.ndarray) -> np.ndarray:
        params, observations = jax.tree.map(np.asarray, params), np.asarray(observations)
        network = b"".join(leaf.tobytes() for leaf in jax.tree.leaves(params))
        if network not in answers:
            members = layers_of(params)
            answers[network] = members, first_bounds(members, feasible), {}
        answers.move_to_end(network)
        while len(answers) > kept:
            answers.popitem(last=False)
        members, bounds, known = answers[network]
        found = np.zeros((len(observations), size), np.float32)
        for i, observation in enumerate(observations):
            state = observation.tobytes()
            if state not in known:
                known[state] = best_action(members, observation, feasible, bounds)
            found[i] = known[state]
        return found

    def search(params: Params, observations: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((len(observations), size), jnp.float32)
        return jax.pure_callback(solved, shape, params, observations, vmap_method="sequential")

    return search


def make_enumeration(apply: Callable, vectors: np.ndarray) -> Callable:
    """(params, observations [N, *shape]) -> best actions float32 [N, n], by Q of every action.

    Args:
      apply: of a value_networks.Critic of (s, a) with one output.
      vectors: the feasible actions, float32 [A, n].
    """
    count = len(vectors)

    def search(params: Params, observations: jax.Array) -> jax.Array:
        tiled = jnp.repeat(observations, count, axis=0)
        values = apply(params, tiled, jnp.tile(jnp.asarray(vectors), (len(observations), 1)))
        values = jnp.mean(values[..., 0], axis=0).reshape(len(observations), count)
        return jnp.asarray(vectors)[jnp.argmax(values, axis=1)]

    return search
