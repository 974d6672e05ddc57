"""How many steps of Q-iteration on top of random play a world needs: the effective horizon."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, per_seed, seed_keys
from rl_jax.control import sqirl


def corridor(depth: int, actions: int, near: float, slip: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rewards [S, A], transitions [S, A, S] and start [S] of a way of `depth` steps whose end pays 1.

    One action goes on, all others end at once; at the start, one of them pays `near` there. Random play reaches the end
    from step j with probability A^(j - depth + 1), so a near reward between A^-i and A^-(i-1) hides the end from
    everybody who does not look depth - i + 1 steps ahead.

    Args:
      depth: D, steps to the end. S = D + 1, the last state is the end of the episode.
      actions: A, 3 or more.
      near: the reward at the start.
      slip: probability that the action is a random one.
    """
    rewards, moves = np.zeros((depth + 1, actions)), np.zeros((depth + 1, actions, depth + 1))
    moves[:, :, depth] = 1.0
    for state in range(depth - 1):
        moves[state, 1] = np.eye(depth + 1)[state + 1]
    rewards[depth - 1, 1], rewards[0, 0] = 1.0, near

    def slipped(x):
        return (1 - slip) * x + slip * x.mean(axis=1, keepdims=True)

    found = slipped(rewards), slipped(moves), np.eye(depth + 1)[0]
    return tuple(jnp.asarray(x, jnp.float32) for x in found)


def effective_horizon(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, int],
    depth: int,
    actions: int,
    slip: float,
    near: Mapping[str, float],
    episodes: int,
) -> Outcome:
    """SQIRL with several k in corridors that need several k. Source: arXiv 2312.08369 section 4.

    Metrics, one per corridor: the return of the policy found, as a share of the best.

    Args:
      seeds: of the episodes.
      arms: name -> k.
      depth: of every corridor, and its number of steps.
      actions: in every state.
      slip: probability that an action is a random one.
      near: corridor -> its reward at the start.
      episodes: per step and policy.
    """
    worlds = [corridor(depth, actions, paid, slip) for paid in near.values()]
    needed = [sqirl.steps_needed(*world, horizon=depth) for world in worlds]
    values = {}
    for arm, k in arms.items():

        def share(key, *world, k=k):
            best = jnp.argmax(sqirl.exact_values(*world[:2], horizon=depth, k=depth), axis=2)
            found = sqirl.sqirl(*world, key, horizon=depth, episodes=episodes, k=k)
            return sqirl.expected_return(found, *world) / sqirl.expected_return(best, *world)

        shares = jax.vmap(jax.vmap(share, (0, None, None, None)), (None, 0, 0, 0))
        found = jax.jit(shares)(seed_keys(seeds), *map(jnp.stack, zip(*worlds, strict=True)))
        values[arm] = per_seed(dict(zip(near, found, strict=True)))
    listed = ", ".join(f"{name} {k}" for name, k in zip(near, needed, strict=True))
    return Outcome(values, note=f"k that the exact tables need: {listed}")
