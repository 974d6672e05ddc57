"""Students of tabular rewards, and the teacher that needs no target: REINFORCE with a table of logits.

    student   theta(s_t, .) += rate / n sum_t G_t (1[a_t] - pi(. | s_t)),  G_t = sum_k gamma^k r'_{t+k}    reinforce
    table     r' = R(s, a), designed by control.reward_design                                         table_teacher
    ExploRS   r' = r + phi(s, a) + lambda / sqrt((lambda / B)^2 + N(s'))                               self_teacher
              phi(s, .) += rate sum_t pi(a_t | s_t) (G_t - V(s_t)) (1[a_t] - pi(. | s_t)),   V(s) -> G, of the given r

n is the number of steps. ExploRS pays what the student has seen to succeed, and for exploring until it succeeds; its
phi climbs I(R) of the adaptive teacher with the student's own returns in the place of the target's advantages. Sources:
arXiv 2503.21949; ExploRS, NeurIPS 2022 and machine-teaching-group/neurips2022_exploration-guided-reward-shaping
(tabular; read from the code). Departs: N counts up to the batch before, not to the step before; phi is updated on the
batch that the student learns from, not on buffers of earlier episodes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums
from rl_jax.control import vector


class Tables(NamedTuple):
    """A finite MDP. rewards float32 [S, A]; transition_probs float32 [S, A, S]; start_probs float32 [S]."""

    rewards: chex.Array
    transition_probs: chex.Array
    start_probs: chex.Array


class Episodes(NamedTuple):
    """E episodes of at most T steps.

    Attributes:
      states: int32 [E, T].
      actions: int32 [E, T].
      following: int32 [E, T]; S after the last step of an episode that ended.
      mask: bool [E, T]. The steps before the end.
    """

    states: chex.Array
    actions: chex.Array
    following: chex.Array
    mask: chex.Array


class TabularTeacher(NamedTuple):
    """What pays a student.

    Attributes:
      pay: (state, Episodes) -> r', float32 [E, T].
      learn: (state, Episodes, logits float32 [S, A] of the student that acted) -> state.
    """

    pay: Callable
    learn: Callable


def sample_episodes(key: chex.PRNGKey, logits: chex.Array, tables: Tables, *, count: int, length: int) -> Episodes:
    """`count` episodes of softmax(logits), cut off after `length` steps.

    Args:
      key: typed PRNG key.
      logits: float32 [S, A].
      tables: the MDP.
      count: E.
      length: T.
    """
    chex.assert_equal_shape([logits, tables.rewards])
    states = logits.shape[0]
    ending = jnp.maximum(1.0 - jnp.sum(tables.transition_probs, axis=-1, keepdims=True), 0.0)
    moves = jnp.log(jnp.concatenate([tables.transition_probs, ending], axis=-1))
    start_key, act_key, move_key = jax.random.split(key, 3)
    first = jax.random.categorical(start_key, jnp.log(tables.start_probs), shape=(count,))
    noise = (
        jax.random.gumbel(act_key, (length, count, logits.shape[1])),
        jax.random.gumbel(move_key, (length, count, states + 1)),
    )

    def step(carry, drawn):
        state, alive = carry
        action = jnp.argmax(logits[state] + drawn[0], axis=-1)
        following = jnp.argmax(moves[state, action] + drawn[1], axis=-1)
        going = alive & (following < states)
        return (jnp.where(going, following, state), going), Episodes(state, action, following, alive)

    _, rows = jax.lax.scan(step, (first, jnp.ones(count, bool)), noise)
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)


def returns_of(rewards: chex.Array, mask: chex.Array, *, discount: float) -> chex.Array:
    """G_t = sum_k gamma^k r_{t+k} of the steps under the mask, float32 [E, T]; 0 elsewhere.

    Args:
      rewards: float32 [E, T].
      mask: bool [E, T].
      discount: gamma.
    """
    chex.assert_equal_shape([rewards, mask])
    chex.assert_type(mask, bool)
    paid = jnp.where(mask, rewards, 0.0)
    return jnp.where(mask, backward_sums(paid, jnp.full_like(paid, discount)), 0.0)


def scores(logits: chex.Array, episodes: Episodes, weights: chex.Array) -> chex.Array:
    """sum_t w_t (1[a_t] - pi(. | s_t)) in the rows of the states, float32 [S, A]: sum_t w_t dlog pi / dtheta.

    Args:
      logits: float32 [S, A].
      episodes: E episodes.
      weights: float32 [E, T], 0 outside of the mask.
    """
    probs = jax.nn.softmax(logits, axis=-1)
    each = jax.nn.one_hot(episodes.actions, logits.shape[1]) - probs[episodes.states]
    return jnp.zeros_like(logits).at[episodes.states].add(weights[..., None] * each)


def reinforce(
    logits: chex.Array, episodes: Episodes, rewards: chex.Array, *, discount: float, rate: float
) -> chex.Array:
    """The student's logits after a step of REINFORCE, float32 [S, A].

    Args:
      logits: float32 [S, A].
      episodes: sampled with them.
      rewards: float32 [E, T], the teacher's.
      discount: gamma.
      rate: of the step, on the mean over steps.
    """
    chex.assert_equal_shape([rewards, episodes.mask])
    gains = returns_of(rewards, episodes.mask, discount=discount)
    return logits + rate * scores(logits, episodes, gains) / jnp.sum(episodes.mask)


def start_value(logits: chex.Array, tables: Tables, *, discount: float) -> chex.Array:
    """J = sum_s mu_0(s) V^pi(s) of softmax(logits), exactly, float32 []."""
    probs, start = tables.transition_probs, tables.start_probs
    return vector.returns(logits, tables.rewards[..., None], probs, start, discount=discount)[0]


def table_teacher() -> TabularTeacher:
    """Pays R(s, a); its state is R, float32 [S, A]. The given rewards are the student without a teacher."""
    return TabularTeacher(
        lambda rewards, episodes: rewards[episodes.states, episodes.actions], lambda rewards, episodes, logits: rewards
    )


class SelfShaping(NamedTuple):
    """State of `self_teacher`. phi: float32 [S, A]. values: float32 [S], V. visits: float32 [S], N."""

    phi: chex.Array
    values: chex.Array
    visits: chex.Array


def blank_shaping(states: int, actions: int) -> SelfShaping:
    """The SelfShaping of a teacher that has seen nothing."""
    return SelfShaping(jnp.zeros((states, actions)), jnp.zeros(states), jnp.zeros(states))


def self_teacher(
    tables: Tables,
    *,
    discount: float,
    rate: float = 0.01,
    value_rate: float = 0.01,
    bonus: float = 1.0,
    largest: float = 1.0,
) -> TabularTeacher:
    """ExploRS: needs no target, learns from the student's own episodes.

    Args:
      tables: the MDP with the given rewards; of it only the rewards of visited steps are read.
      discount: gamma of G.
      rate: of phi, on sums over steps; 0 with bonus alone is ExploB.
      value_rate: of V, on means over steps.
      bonus: lambda; 0 is the published SelfRS, without exploration.
      largest: B, the bonus of a state that was never visited.

    Raises:
      ValueError: if a number is negative or `largest` is 0.
    """
    if min(rate, value_rate, bonus) < 0.0 or largest <= 0.0:
        raise ValueError(
            f"rate={rate}, value_rate={value_rate} and bonus={bonus} must be 0 or more, largest={largest} above 0"
        )
    num_states = len(tables.start_probs)

    def pay(state: SelfShaping, episodes: Episodes) -> chex.Array:
        own = tables.rewards[episodes.states, episodes.actions] + state.phi[episodes.states, episodes.actions]
        seen = state.visits[jnp.minimum(episodes.following, num_states - 1)]
        explored = bonus / jnp.sqrt(jnp.square(bonus / largest) + seen) if bonus else jnp.zeros_like(seen)
        return own + jnp.where(episodes.following < num_states, explored, 0.0)

    def learn(state: SelfShaping, episodes: Episodes, logits: chex.Array) -> SelfShaping:
        paid = tables.rewards[episodes.states, episodes.actions]
        gains = returns_of(paid, episodes.mask, discount=discount)
        ahead = jnp.where(episodes.mask, gains - state.values[episodes.states], 0.0)
        chosen = jax.nn.softmax(logits, axis=-1)[episodes.states, episodes.actions]
        phi = state.phi + rate * scores(logits, episodes, chosen * ahead)
        moved = jnp.zeros(num_states).at[episodes.states].add(ahead) / jnp.sum(episodes.mask)
        visits = state.visits.at[episodes.states].add(episodes.mask.astype(jnp.float32))
        return SelfShaping(phi, state.values + value_rate * moved, visits)

    return TabularTeacher(pay, learn)


def make_lesson(
    tables: Tables,
    teacher: TabularTeacher,
    *,
    updates: int,
    count: int,
    length: int,
    discount: float,
    rate: float,
) -> Callable:
    """Builds a pure function of `updates` updates of a student.

    Args:
      tables: the MDP with the given rewards, by which the student is judged.
      teacher: pays it.
      updates: number of batches.
      count: episodes per batch.
      length: steps per episode at most.
      discount: gamma.
      rate: of the student.

    Returns:
      lesson(key, logits float32 [S, A], teacher's state) -> (logits, teacher's state, steps int32 [updates] of each
      batch, J float32 [updates] after it).
    """

    def lesson(key: chex.PRNGKey, logits: chex.Array, state: Any):
        def update(carry, key: chex.PRNGKey):
            logits, state = carry
            episodes = sample_episodes(key, logits, tables, count=count, length=length)
            after = reinforce(logits, episodes, teacher.pay(state, episodes), discount=discount, rate=rate)
            state = teacher.learn(state, episodes, logits)
            steps = jnp.sum(episodes.mask).astype(jnp.int32)
            return (after, state), (steps, start_value(after, tables, discount=discount))

        (logits, state), (steps, values) = jax.lax.scan(update, (logits, state), jax.random.split(key, updates))
        return logits, state, steps, values

    return lesson
