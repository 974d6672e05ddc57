"""Rewards learned from preferences of two kinds: by the segments' rewards, and by their regret."""

import functools
from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import optax

from experiments.studies.base import Outcome, per_seed, seed_keys
from rl_jax.control import reward_learning, segments, tabular
from rl_jax.core.types import StepInputs
from rl_jax.training.step import init_state


def make_walks(
    key: chex.PRNGKey, *, states: int, actions: int, outcomes: int, segment: int, walks: int
) -> tuple[chex.Array, ...]:
    """A random MDP and random walks in it, of uniform actions from uniform states.

    Args:
      key: of the seed.
      states: S.
      actions: A.
      outcomes: states to which an action may lead.
      segment: steps of a walk, K.
      walks: their number, N.

    Returns:
      (rewards [S, A], transition probabilities [S, A, S], states int [N, K], actions int [N, K]).
    """
    key_r, key_to, key_p, key_start, key_act, key_move = jax.random.split(key, 6)
    rewards = jax.random.normal(key_r, (states, actions))
    order = jnp.argsort(jax.random.uniform(key_to, (states, actions, states)), axis=2)
    weights = jnp.where(order < outcomes, jax.random.exponential(key_p, order.shape), 0.0)
    probs = weights / jnp.sum(weights, axis=2, keepdims=True)
    chosen = jax.random.randint(key_act, (segment, walks), 0, actions)

    def move(at, step):
        action, key = step
        return jax.random.categorical(key, jnp.log(probs[at, action]), axis=-1), at

    start = jax.random.randint(key_start, (walks,), 0, states)
    _, at = jax.lax.scan(move, start, (chosen, jax.random.split(key_move, segment)))
    return rewards, probs, at.T, chosen.T


def expected_return(policy: chex.Array, rewards: chex.Array, probs: chex.Array, discount: float) -> chex.Array:
    """The discounted return from a uniform start. policy: probabilities [S, A]; float [S, A], [S, A, S] -> float []."""
    moves, paid = jnp.einsum("sa,sat->st", policy, probs), jnp.sum(policy * rewards, axis=1)
    return jnp.mean(jnp.linalg.solve(jnp.eye(len(paid)) - discount * moves, paid))


def preference_models(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping[str, str]],
    states: int,
    actions: int,
    outcomes: int,
    discount: float,
    segment: int,
    walks: int,
    pairs: int,
    learning_rate: float,
    steps: int,
    temperature: float,
    horizon: int,
) -> Outcome:
    """Random MDPs whose reward is learned from labelled pairs of segments; then the best policy of what was learned.

    Each action leads to one of a few states. Segments are random walks from random states; a label prefers the one
    whose true score is higher, without errors. Metric: return, of the learned reward's greedy policy under the true
    reward, 0 for the uniform policy's and 1 for the best one's, from a uniform start. Source: arXiv 2206.02231.

    Args:
      seeds: of the MDPs, walks and labels.
      arms: name -> labels and model, each "regret" or "partial": who judges, and what is assumed of it.
      states: S.
      actions: A.
      outcomes: states to which an action may lead.
      discount: gamma.
      segment: steps of a segment.
      walks: number of segments.
      pairs: number of labelled pairs.
      learning_rate: of Adam.
      steps: of the fit.
      temperature: of the soft values through which regret is differentiated.
      horizon: iterations of value iteration.
    """

    world = dict(states=states, actions=actions, outcomes=outcomes, segment=segment, walks=walks)

    def study(labels, model, key):
        rewards, probs, at, chosen = make_walks(key, **world)
        exact = functools.partial(tabular.advantages, transition_probs=probs, discount=discount, iterations=horizon)
        soft = functools.partial(exact, temperature=temperature)
        # Keys 0 to 5 made the MDP and its walks.
        judged = exact(rewards) if labels == "regret" else rewards
        mask = jnp.ones(at.shape, bool)
        scores = segments.segment_sums(judged[at, chosen], mask)
        drawn = segments.labelled_pairs(jax.random.fold_in(key, 6), scores, count=pairs, beta=float("inf"))
        data = segments.SegmentPairs(StepInputs(jax.nn.one_hot(at, states), chosen), mask, drawn)
        loss = functools.partial(reward_learning.table_loss, soft if model == "regret" else lambda table: table)
        optimizer = optax.adam(learning_rate)
        start = init_state(jnp.zeros((states, actions)), optimizer, jax.random.fold_in(key, 7))
        learned = segments.make_fit(loss, optimizer, batch_size=64)(start, data, steps)[0].params

        def value(table):
            q = tabular.solve(table, probs, discount=discount, iterations=horizon)[0]
            greedy = jax.nn.one_hot(jnp.argmax(q, axis=1), actions)
            return expected_return(greedy, rewards, probs, discount)

        random = expected_return(jnp.full((states, actions), 1.0 / actions), rewards, probs, discount)
        return {"return": (value(learned) - random) / (value(rewards) - random)}

    return Outcome(
        {
            arm: per_seed(jax.jit(jax.vmap(functools.partial(study, spec["labels"], spec["model"])))(seed_keys(seeds)))
            for arm, spec in arms.items()
        }
    )
