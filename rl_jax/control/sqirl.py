"""SQIRL: shallow Q-iteration on top of random play, step by step; and how many of its iterations a finite MDP needs.

For t = 0 ... T-1: m episodes that follow the greedy actions found so far before step t, and random actions from t on;

    Q^1_j(s, a)   = mean of the rewards from step j on, over the visits of (s, a) at j
    Q^i_j(s, a)   = mean of r + max_a' Q^(i-1)_(j+1)(s', a'), over the same visits            i = 2 ... k
    pi_t(s)       = argmax_a Q^k_t(s, a)

So exploring is random play, and only k steps are looked ahead: an MDP is solved if acting greedily on Q^k of its random
policy is optimal, and by how small a k tells how hard it is. Regression here is a table's mean; the paper's is any.
Sources: arXiv 2312.08369 (SQIRL); the deterministic case: arXiv 2304.09853 (GORP).
"""

import functools

import chex
import jax
import jax.numpy as jnp


def sqirl(
    rewards: chex.Array,
    transition_probs: chex.Array,
    start_probs: chex.Array,
    key: chex.PRNGKey,
    *,
    horizon: int,
    episodes: int,
    k: int,
) -> chex.Array:
    """The policy that SQIRL finds from samples: int32 [T, S].

    An action that no episode tried has the value 0.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S], rows of sum 1.
      start_probs: float [S].
      key: typed PRNG key.
      horizon: T, steps of an episode.
      episodes: m, per step t; T m in all.
      k: values are looked up after so many steps; 1 is greedy on the values of random play.

    Raises:
      ValueError: if k is below 1.
    """
    chex.assert_rank([rewards, transition_probs, start_probs], [2, 3, 1])
    chex.assert_shape(transition_probs, (*rewards.shape, rewards.shape[0]))
    if k < 1:
        raise ValueError(f"k={k} must be 1 or more")
    policy = jnp.zeros((horizon, rewards.shape[0]), jnp.int32)
    for t in range(horizon):
        model = rewards, transition_probs, start_probs
        steps = _play(*model, policy, t, jax.random.fold_in(key, t), episodes)
        policy = policy.at[t].set(jnp.argmax(_fitted(*steps, rewards.shape, t, k), axis=1))
    return policy


@functools.partial(jax.jit, static_argnames=("horizon", "k"))
def exact_values(rewards: chex.Array, transition_probs: chex.Array, *, horizon: int, k: int) -> chex.Array:
    """Q^k of the equations above without samples: float [T, S, A]. k of horizon or more is the optimal Q.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S].
      horizon: T.
      k: 1 is the value of an action and random play after it.
    """
    chex.assert_rank([rewards, transition_probs], [2, 3])

    def backed_up(values: chex.Array) -> chex.Array:
        """r + E V of the next step: [T, S] -> [T, S, A]. After the last step there is nothing."""
        following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
        return jnp.broadcast_to(rewards, (horizon, *rewards.shape)) + jnp.einsum(
            "sau,tu->tsa", transition_probs, following
        )

    q = backed_up(jnp.zeros((horizon, rewards.shape[0])))
    for _ in range(horizon - 1):
        q = backed_up(jnp.mean(q, axis=2))
    for _ in range(k - 1):
        q = backed_up(jnp.max(q, axis=2))
    return q


@jax.jit
def expected_return(
    policy: chex.Array, rewards: chex.Array, transition_probs: chex.Array, start_probs: chex.Array
) -> chex.Array:
    """The sum of rewards that a policy int32 [T, S] expects: float []."""
    chex.assert_rank([policy, rewards, transition_probs, start_probs], [2, 2, 3, 1])
    rows = jnp.arange(rewards.shape[0])

    def step(carry, actions):
        chances, total = carry
        total += jnp.dot(chances, rewards[rows, actions])
        return (chances @ transition_probs[rows, actions], total), None

    return jax.lax.scan(step, (start_probs, jnp.float32(0.0)), policy)[0][1]


def steps_needed(
    rewards: chex.Array, transition_probs: chex.Array, start_probs: chex.Array, *, horizon: int, tolerance: float = 1e-5
) -> int:
    """The least k for which every policy that is greedy on Q^k is optimal. k = T always is.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S].
      start_probs: float [S].
      horizon: T.
      tolerance: of values that count as equal. Of tied actions the worst one is taken.
    """
    optimal = exact_values(rewards, transition_probs, horizon=horizon, k=horizon)
    world = rewards, transition_probs, start_probs
    best = expected_return(jnp.argmax(optimal, axis=2), *world)
    for k in range(1, horizon):
        q = exact_values(rewards, transition_probs, horizon=horizon, k=k)
        tied = q >= jnp.max(q, axis=2, keepdims=True) - tolerance
        worst = jnp.argmin(jnp.where(tied, optimal, jnp.inf), axis=2)
        if float(expected_return(worst, *world)) >= float(best) - tolerance * horizon:
            return k
    return horizon


def _play(rewards, transition_probs, start_probs, policy, first_random: int, key: chex.PRNGKey, episodes: int):
    """m episodes, random from a step on: (states [T + 1, m], actions [T, m], rewards [T, m])."""
    start_key, key = jax.random.split(key)
    rewards, cumulative = jnp.asarray(rewards), jnp.cumsum(transition_probs, axis=2)
    num_states, num_actions = rewards.shape

    def step(states, now):
        index, key = now
        action_key, state_key = jax.random.split(key)
        random = jax.random.randint(action_key, (episodes,), 0, num_actions)
        actions = jnp.where(index < first_random, policy[index, states], random)
        drawn = jax.random.uniform(state_key, (episodes, 1))
        following = jnp.minimum(jnp.sum(cumulative[states, actions] <= drawn, axis=1), num_states - 1)
        return following, (states, actions, rewards[states, actions])

    states = jax.random.choice(start_key, num_states, (episodes,), p=start_probs)
    steps = jnp.arange(len(policy)), jax.random.split(key, len(policy))
    last, (states, actions, paid) = jax.lax.scan(step, states, steps)
    return jnp.concatenate([states, last[None]]), actions, paid


def _fitted(states, actions, paid, shape: tuple[int, int], t: int, k: int) -> chex.Array:
    """Q^k_t [S, A] from the episodes, of steps t and later only."""
    horizon = len(actions)
    first = min(t + k, horizon) - 1  # where values of random play are read: nothing follows the last step

    def mean(step: int, targets: chex.Array) -> chex.Array:
        sums = jnp.zeros(shape).at[states[step], actions[step]].add(targets)
        visits = jnp.zeros(shape).at[states[step], actions[step]].add(1.0)
        return sums / jnp.maximum(visits, 1.0)

    q = mean(first, jnp.sum(paid[first:], axis=0))
    for step in range(first - 1, t - 1, -1):
        q = mean(step, paid[step] + jnp.max(q, axis=1)[states[step + 1]])
    return q
