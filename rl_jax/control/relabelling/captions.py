"""Captions of observations and what has been answered about them: the state of `captioned.by_captions`.

A caption is a text that is made on the host. Here it is a hash, a place in a table, features, and an observation that
has it, of which the text is made again to ask about it: all of it is in arrays that a checkpoint has.
"""

from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import io_callback

from rl_jax.control.relabelling.base import PerEnv
from rl_jax.rollout.envs.steps import Transitions

MEASURED = ("relabel/captions", "relabel/labelled", "relabel/waiting", "relabel/paid")


class Annotator(Protocol):
    """Who is asked, on the host. Both functions return at once, unless it is told to wait."""

    def read(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(hashes of the captions uint32 [N], none of them 0, features of the captions float32 [N, W])."""

    def answers(self, questions: np.ndarray, waiting: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """What has been answered.

        Args:
          questions: uint32 [Q, k], hashes of one caption or of two.
          waiting: bool [Q], those that were sent and have no answer.
          examples: float32 [Q, k, D], an observation with each of these captions, which a process that was started
            again may not have read.

        Returns:
          float32 [Q]: a label, 0 or 1, or which of two is better, 0 the first, 1 the second, .5 neither; nan: not yet.
        """


class Captions(NamedTuple):
    """State of `by_captions`; C captions fit in, and Q questions.

    Attributes:
      hashes: uint32 [C], 0 for a free place.
      seen: int32 [C]. When a caption was last seen, in steps of the run.
      features: float32 [C, W].
      examples: float32 [C, D]. An observation that has the caption.
      questions: int32 [Q, k]. Places of the captions that are asked about.
      sent: bool [Q].
      answers: float32 [Q]; nan without an answer.
      next: int32 []. Questions so far, of "ranking".
      learned: of the network; () for "retrieval".
      scale: Moments of the network's outputs, of "ranking"; else ().
      key: for pairs.
      steps: int32 []. Steps of the run so far.
      visits: PerEnv of float32 [B, C + 1]; the last one is for captions that did not fit in.
      measured: {name: float32 []}.
    """

    hashes: chex.Array
    seen: chex.Array
    features: chex.Array
    examples: chex.Array
    questions: chex.Array
    sent: chex.Array
    answers: chex.Array
    next: chex.Array
    learned: Any
    scale: Any
    key: chex.PRNGKey
    steps: chex.Array
    visits: PerEnv
    measured: dict[str, chex.Array]


def blank(
    num_envs: int, captions: int, questions: int, each: int, width: int, observation_size: int, key: chex.PRNGKey
) -> Captions:
    """The state before the first step, without a network.

    Args:
      num_envs: B.
      captions: C.
      questions: Q; question i is about caption i until it is drawn.
      each: k, captions per question.
      width: W.
      observation_size: D.
      key: for pairs.
    """
    zero = jnp.int32(0)
    return Captions(
        hashes=jnp.zeros(captions, jnp.uint32),
        seen=jnp.zeros(captions, jnp.int32),
        features=jnp.zeros((captions, width)),
        examples=jnp.zeros((captions, observation_size)),
        questions=jnp.tile(jnp.arange(questions, dtype=jnp.int32)[:, None] % captions, (1, each)),
        sent=jnp.zeros(questions, bool),
        answers=jnp.full(questions, jnp.nan),
        next=zero,
        learned=(),
        scale=(),
        key=key,
        steps=zero + 0,  # a buffer of its own: donated states share none
        visits=PerEnv(jnp.zeros((num_envs, captions + 1))),
        measured={name: jnp.float32(0.0) for name in MEASURED},
    )


def placed(hashes: chex.Array, found: chex.Array) -> tuple[chex.Array, chex.Array]:
    """A table with new hashes in its free places, and where each hash is.

    Args:
      hashes: uint32 [C], 0 for a free place; those taken are the first ones.
      found: uint32 [N], none of them 0.

    Returns:
      (the table uint32 [C], places int32 [N]; C for those that did not fit in).
    """
    chex.assert_rank([hashes, found], 1)
    size, taken = len(hashes), jnp.sum(hashes > 0)
    old = jnp.any(found[:, None] == hashes[None], axis=1)
    # Each new one once, in the order of their numbers.
    new = jnp.unique(jnp.where(old, 0, found), size=size + 1, fill_value=0)
    at = jnp.where(new > 0, taken + jnp.cumsum(new > 0) - 1, size)
    hashes = hashes.at[at].set(new, mode="drop")
    same = found[:, None] == hashes[None]
    return hashes, jnp.where(jnp.any(same, axis=1), jnp.argmax(same, axis=1), size).astype(jnp.int32)


def newest(seen: chex.Array, open_: chex.Array, room: chex.Array, limit: int) -> chex.Array:
    """The `room` open captions that were seen last, bool [C]; `limit` of them at most.

    Args:
      seen: int32 [C], when.
      open_: bool [C].
      room: int [].
      limit: static.
    """
    chex.assert_equal_shape([seen, open_])
    order = jnp.argsort(jnp.where(open_, -seen, 1), stable=True)
    rank = jnp.zeros(len(seen), jnp.int32).at[order].set(jnp.arange(len(seen), dtype=jnp.int32))
    return open_ & (rank < jnp.minimum(room, limit))


def answer_loss(logits: chex.Array, answers: chex.Array) -> chex.Array:
    """Cross-entropy of logits [Q] with answers in [0, 1], over those that are not nan: float []; 0 without any."""
    chex.assert_equal_shape([logits, answers])
    known = ~jnp.isnan(answers)
    losses = optax.sigmoid_binary_cross_entropy(jnp.where(known, logits, 0.0), jnp.where(known, answers, 0.0))
    return jnp.sum(jnp.where(known, losses, 0.0)) / jnp.maximum(jnp.sum(known), 1)


def waiting(state: Captions) -> chex.Array:
    """bool [Q]: which questions were sent and have no answer."""
    return state.sent & jnp.isnan(state.answers)


def noticed(state: Captions, beside: Annotator, rows: Transitions) -> tuple[Captions, chex.Array]:
    """(the state with the captions of these steps' next observations, their places int32 [B, T])."""
    shape, width = rows.rewards.shape, state.features.shape[1]
    seen = rows.next_observations.reshape(shape[0] * shape[1], -1).astype(jnp.float32)
    found = jax.ShapeDtypeStruct(seen.shape[:1], jnp.uint32), jax.ShapeDtypeStruct((len(seen), width), jnp.float32)
    hashes, features = io_callback(lambda x: beside.read(np.asarray(x)), found, seen, ordered=True)
    hashes, places = placed(state.hashes, hashes)
    times = jnp.tile(state.steps + 1 + jnp.arange(shape[1], dtype=jnp.int32)[None], (shape[0], 1)).reshape(-1)
    # Of several rows with a caption the first: to write all of them would leave open which, number by number.
    first = jnp.full(len(hashes), len(seen)).at[places].min(jnp.arange(len(seen)), mode="drop")
    state = state._replace(
        hashes=hashes,
        seen=state.seen.at[places].max(times, mode="drop"),
        features=state.features.at[places].set(features, mode="drop"),
        examples=jnp.where((first < len(seen))[:, None], seen[jnp.minimum(first, len(seen) - 1)], state.examples),
        steps=state.steps + shape[1],
    )
    return state, places.reshape(shape)


def asked_captions(state: Captions, _, limit: int) -> Captions:
    """Sends the newest captions that were not sent yet."""
    room = limit - jnp.sum(waiting(state))
    return state._replace(sent=state.sent | newest(state.seen, (state.hashes > 0) & ~state.sent, room, limit))


def drawn_pairs(state: Captions, key: chex.PRNGKey, limit: int) -> Captions:
    """Sends random pairs of different captions, in place of the oldest questions that have an answer."""
    size, known = len(state.sent), jnp.sum(state.hashes > 0)
    keys = jax.random.split(key)
    first = jax.random.randint(keys[0], (limit,), 0, jnp.maximum(known, 1))
    other = first + 1 + jax.random.randint(keys[1], (limit,), 0, jnp.maximum(known - 1, 1))
    drawn = jnp.stack([first, other % jnp.maximum(known, 1)], axis=1).astype(jnp.int32)
    at = (state.next + jnp.arange(limit)) % size
    room = limit - jnp.sum(waiting(state))
    free = (jnp.arange(limit) < room) & (known > 1) & ~waiting(state)[at]
    at = jnp.where(free, at, size)
    return state._replace(
        questions=state.questions.at[at].set(drawn, mode="drop"),
        sent=state.sent.at[at].set(True, mode="drop"),
        answers=state.answers.at[at].set(jnp.nan, mode="drop"),
        # To the place after the last one, or on by one if a question is in the way.
        next=(state.next + jnp.max(jnp.where(free, jnp.arange(1, limit + 1), (room > 0) * 1))) % size,
    )


def answered(beside: Annotator, state: Captions) -> tuple[Captions, chex.Array]:
    """(the state with the answers that there are by now, whether there are new ones, bool [])."""
    result = jax.ShapeDtypeStruct(state.answers.shape, jnp.float32)
    call = lambda *told: beside.answers(*(np.asarray(x) for x in told))  # noqa: E731
    asked = state.hashes[state.questions], waiting(state), state.examples[state.questions]
    told = io_callback(call, result, *asked, ordered=True)
    arrived = waiting(state) & ~jnp.isnan(told)
    return state._replace(answers=jnp.where(arrived, told, state.answers)), jnp.any(arrived)


def counted(state: Captions, value: chex.Array) -> dict[str, chex.Array]:
    """The metrics MEASURED: captions, answers, questions that wait, the share of steps that are paid (value [B, T])."""
    known = jnp.sum(state.hashes > 0).astype(jnp.float32)
    labelled = jnp.sum(~jnp.isnan(state.answers)).astype(jnp.float32)
    found = known, labelled, jnp.sum(waiting(state)).astype(jnp.float32), jnp.mean((value != 0.0).astype(jnp.float32))
    return dict(zip(MEASURED, found, strict=True))
