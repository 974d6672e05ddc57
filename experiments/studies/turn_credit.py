"""Credit over turns in a maze: a tabular policy over its places, trained with the functions of rl_jax.advantages."""

import itertools
import math
from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, seed_keys
from rl_jax import advantages
from rl_jax.core.binding import bind, supply
from rl_jax.envs.text.maze import MOVES, distances, make_maze

REACHED = 0.8


def maze_steps(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    turns: Sequence[int],
    size: int,
    price: float,
    noise: float,
    groups: int,
    group_size: int,
    steps: int,
    learning_rate: float,
) -> Outcome:
    """How many updates each credit needs until the goal is reached with probability .8, exactly.

    The goal is turns / 2 steps away, and an episode has that many turns, of one token each. All arms have the same
    optimiser (Adam) and sample as many episodes. Metrics: log_steps_T, the natural log of the number of updates, that
    of `steps` if it was not reached; success_T, the probability at the end; both once more as "..._noisy".

    Args:
      seeds: of the maze and the episodes.
      arms: name -> the advantage, as config.algorithm.advantage.
      turns: T, even.
      size: of the maze.
      price: of a step that does not reach the goal.
      noise: standard deviation of what the noisy runs add to the reward of each turn.
      groups: of episodes, per update.
      group_size: G.
      steps: updates.
      learning_rate: of Adam.
    """
    values: dict[str, dict[str, np.ndarray]] = {name: {} for name in arms}
    curves: dict[str, dict[str, list]] = {}
    for most, sigma in itertools.product(turns, (0.0, noise)):
        kind = f"{most}_noisy" if sigma else f"{most}"
        worlds = [_world(size, seed, most // 2) for seed in seeds]
        tables = tuple(jnp.stack(parts) for parts in zip(*worlds, strict=True))
        for name, spec in arms.items():
            advantage = bind(spec, advantages, group_size=group_size)

            def train(key, table, start, goal, most=most, advantage=advantage, sigma=sigma):
                optimizer = optax.adam(learning_rate)

                def update(carry, step_key):
                    logits, state = carry
                    rows = _play(step_key, logits, table, start, goal, most, groups * group_size, price)
                    noisy = sigma * _noise(step_key, rows["turn_rewards"].shape)
                    rows["turn_rewards"] += jnp.where(rows["turns"] >= 0, noisy, 0.0)
                    gradient = jax.grad(_loss)(logits, rows, _advantages(rows, advantage))
                    change, state = optimizer.update(gradient, state)
                    logits = optax.apply_updates(logits, change)
                    return (logits, state), _success(logits, table, start, goal, most)

                logits = jnp.zeros((table.shape[0], len(MOVES)))
                begin = (logits, optimizer.init(logits))
                return jax.lax.scan(update, begin, jax.random.split(key, steps))[1]

            success = np.asarray(jax.jit(jax.vmap(train))(seed_keys(seeds), *tables), np.float64)
            reached = success >= REACHED
            first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, steps)
            values[name] |= {f"log_steps_{kind}": np.log(first), f"success_{kind}": success[:, -1]}
            every = max(steps // 50, 1)
            line = [(step + 1, float(success[:, step].mean())) for step in range(0, steps, every)]
            curves.setdefault(f"success, {kind.replace('_', ' turns, ')}", {})[name] = line
    return Outcome(values, curves, f"a policy that walks at random succeeds with {_chance(seeds, size, turns)}")


def _world(size: int, seed: int, distance: int) -> tuple[chex.Array, chex.Array, chex.Array]:
    """(place after each move int [S, 4], start, goal) of the seed's maze; the goal is `distance` away."""
    opened = make_maze(size, seed)
    places = sorted(opened)
    number = {place: k for k, place in enumerate(places)}
    table = np.array(
        [
            [number[(p[0] + dx, p[1] + dy)] if m in opened[p] else number[p] for m, (dx, dy) in MOVES.items()]
            for p in places
        ]
    )
    pairs = [(start, goal) for goal in places for start, far in distances(opened, goal).items() if far == distance]
    if not pairs:
        raise ValueError(f"the maze of size {size} and seed {seed} has no two places {distance} steps apart")
    start, goal = pairs[seed % len(pairs)]
    return jnp.asarray(table), jnp.asarray(number[start]), jnp.asarray(number[goal])


def _play(key, logits, table, start, goal, most: int, rows: int, price: float) -> dict[str, chex.Array]:
    """Episodes as arrays [rows, most]: turns, states, actions, turn_rewards."""

    def step(carry, now):
        place, alive = carry
        turn, step_key = now
        action = jax.random.categorical(step_key, logits[place])
        after = table[place, action]
        there = after == goal
        seen = (
            jnp.where(alive, turn, -1),
            place,
            action,
            jnp.where(alive, jnp.where(there, 1.0, -price), 0.0),
        )
        return (after, alive & ~there), seen

    begin = jnp.full(rows, start), jnp.ones(rows, bool)
    _, seen = jax.lax.scan(step, begin, (jnp.arange(most), jax.random.split(key, most)))
    number, states, actions, rewards = (x.T for x in seen)
    return {"turns": number, "state_keys": states, "actions": actions, "turn_rewards": rewards}


def _noise(key, shape: tuple[int, int]) -> chex.Array:
    """Normal, float [rows, most], of a key that `_play` has not: its turns have those of fold_in 0 to most - 1."""
    return jax.random.normal(jax.random.fold_in(key, shape[1]), shape)


def _advantages(rows: Mapping[str, chex.Array], advantage) -> chex.Array:
    rewards = jnp.sum(rows["turn_rewards"], axis=1)
    found = supply(advantage, rows)(rewards)
    return jax.lax.stop_gradient(jnp.where(rows["turns"] >= 0, found, 0.0))


def _loss(logits: chex.Array, rows: Mapping[str, chex.Array], credit: chex.Array) -> chex.Array:
    log_probs = jax.nn.log_softmax(logits)[rows["state_keys"], rows["actions"]]
    return -jnp.sum(credit * log_probs) / credit.shape[0]


def _success(logits, table, start, goal, most: int) -> chex.Array:
    """The probability of reaching the goal within `most` turns, exactly."""
    probs = jax.nn.softmax(logits)
    chance = jnp.zeros(table.shape[0]).at[start].set(1.0)
    for _ in range(most):
        moved = jnp.zeros_like(chance).at[table].add(chance[:, None] * probs)
        stay = chance[goal]
        moved = moved - jnp.zeros_like(chance).at[table[goal]].add(stay * probs[goal])
        chance = moved.at[goal].add(stay)
    return chance[goal]


def _chance(seeds: Sequence[int], size: int, turns: Sequence[int]) -> str:
    found = []
    for most in turns:
        each = [
            float(_success(jnp.zeros((size * size, 4)), *_world(size, seed, most // 2), most)) for seed in seeds[:3]
        ]
        found.append(f"{math.fsum(each) / len(each):.2f} at {most} turns")
    return ", ".join(found)
