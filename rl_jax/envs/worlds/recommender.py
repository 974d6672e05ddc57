"""A recommender with two levels and a user who now and then wants something new (2306.01476).

    type h of the user, for the episode        P(h = 1) = .5: seeks what is new in most sessions
    intent z of the session                    P(z = 1 | h) = seek[h]
    click                                      P(click | new, z) = clicks_new[z], P(click | shown, z) = clicks_old[z]
    r = click + novelty 1[new] + diversity (topics shown / topics, at the end of a session)

Level 0 (agent 0) sees the type and sets a goal for each session; level 1 (agent 1) sees the goal and what was clicked
in the session, not the type, and recommends a topic at each of its steps. Both are paid r. The goal can tell the type:
the best of both is what one agent that sees all of that reaches, by a recursion over beliefs in z (`best`). A stand-in,
of the same shape: the paper has "diversity and novelty-related measurement in the reward function"; its formulas, and
its networks that infer the type from histories, were not read.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Agents, Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
SEEK, CLICKS_NEW, CLICKS_OLD = (0.2, 0.8), (0.2, 0.8), (0.6, 0.3)


class Session(NamedTuple):
    """State.

    Attributes:
      kind: int32 [], h.
      intent: int32 [], z of this session.
      goal: int32 [], set by level 0; 0 before that.
      session: int32 []. Sessions before this one.
      time: int32 []. Steps of this session; step 0 sets the goal.
      shown: bool [topics]; topic 0 is what the user always gets.
      counts: int32 [2, 2]. Steps of this session by (new, clicked).
    """

    kind: chex.Array
    intent: chex.Array
    goal: chex.Array
    session: chex.Array
    time: chex.Array
    shown: chex.Array
    counts: chex.Array


def environment(
    *, topics: int = 5, length: int = 4, sessions: int = 3, novelty: float = 0.1, diversity: float = 0.3
) -> Environment:
    """Episodes of `sessions` sessions, each one step for the goal (action 1 is goal 1) and `length` recommendations.

    Args:
      topics: actions of level 1, at least length + 1, so that there is always something new.
      length: recommendations of a session.
      sessions: of an episode.
      novelty: paid for a topic that is new in the session.
      diversity: paid at the end of a session for all topics.

    Raises:
      ValueError: if there are too few topics.
    """
    if topics <= length:
        raise ValueError(f"agents/recommender: topics={topics} must be more than length={length}")
    tables = [np.asarray(x, np.float32) for x in (SEEK, CLICKS_NEW, CLICKS_OLD)]

    def observe(state: Session) -> chex.Array:
        time, kind = jax.nn.one_hot(state.time, length + 1), jax.nn.one_hot(state.kind, 2)
        goal, counts = jax.nn.one_hot(state.goal, 2), state.counts.reshape(-1) / length
        seen = jnp.concatenate([goal, state.shown, counts])
        above = jnp.concatenate([time, kind, 0.0 * seen])
        below = jnp.concatenate([time, 0.0 * kind, seen])
        whole = jnp.concatenate([time, kind, seen, jax.nn.one_hot(state.intent, 2)])
        return jnp.stack([jnp.concatenate([x, whole]) for x in (above, below)])

    def begun(key: chex.PRNGKey, kind: chex.Array, session: chex.Array) -> Session:
        seeks = jax.random.bernoulli(key, jnp.asarray(tables[0])[kind])
        zero = jnp.int32(0)
        counts = jnp.zeros((2, 2), jnp.int32)
        return Session(kind, seeks.astype(jnp.int32), zero, session, zero, jnp.arange(topics) == 0, counts)

    def reset(key: chex.PRNGKey):
        kind_key, key = jax.random.split(key)
        state = begun(key, jax.random.bernoulli(kind_key).astype(jnp.int32), jnp.int32(0))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Session, action: chex.Array):
        chex.assert_shape(action, (2,))
        click_key, next_key = jax.random.split(key)
        first, topic = state.time == 0, action[1]
        new = ~state.shown[topic]
        new_odds, old_odds = (jnp.asarray(x)[state.intent] for x in tables[1:])
        clicked = jax.random.bernoulli(click_key, jnp.where(new, new_odds, old_odds))
        shown = jnp.where(first, state.shown, state.shown | (jnp.arange(topics) == topic))
        over = state.time == length
        paid = clicked + novelty * new + jnp.where(over, diversity * jnp.mean(shown), 0.0)
        paid = jnp.where(first, 0.0, paid)
        counts = state.counts.at[new.astype(int), clicked.astype(int)].add(jnp.where(first, 0, 1))
        goal = jnp.where(first, action[0] == 1, state.goal).astype(jnp.int32)
        kept = Session(state.kind, state.intent, goal, state.session, state.time + 1, shown, counts)
        fresh = begun(next_key, state.kind, state.session + 1)
        after = jax.tree.map(lambda x, y: jnp.where(over, x, y), fresh, kept)
        ended = over & (state.session == sessions - 1)
        return after, Step(observe(after), jnp.full(2, paid), ended, NO)

    own = length + 1 + 2 + 2 + topics + 4
    space = Box(np.zeros(2 * own + 2, np.float32), np.ones(2 * own + 2, np.float32))
    return Environment(reset, step, space, Discrete(topics), agents=Agents(2, own, True))


def best(kind: int, *, topics: int = 5, length: int = 4, novelty: float = 0.1, diversity: float = 0.3) -> float:
    """What a session with a user of this type is worth at best, z unknown but for its clicks.

        V(t, d, b) = max_new  p + novelty 1[new] + p V(t+1, d', b | click) + (1 - p) V(t+1, d', b | none),
        p = b P(click | new, 1) + (1 - b) P(click | new, 0),  V(length, d, b) = diversity d / topics

    Args:
      kind: h.
      topics: as in `environment`.
      length: as in `environment`.
      novelty: as in `environment`.
      diversity: as in `environment`.
    """

    def onward(time: int, shown: int, belief: float) -> float:
        if time == length:
            return diversity * shown / topics
        values = []
        for new, odds in ((0, CLICKS_OLD), (1, CLICKS_NEW)):
            click = belief * odds[1] + (1 - belief) * odds[0]
            yes = onward(time + 1, shown + new, belief * odds[1] / click)
            none = onward(time + 1, shown + new, belief * (1 - odds[1]) / (1 - click))
            values.append(click + novelty * new + click * yes + (1 - click) * none)
        return max(values)

    return onward(0, 1, SEEK[kind])
