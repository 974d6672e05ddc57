"""Rewards learned online from an annotator that labels a few observations of each batch, later.

    r' = keep r + coef y(s') / N(s')^power,  N: visits of s' in this episode             ONI 2410.23022
    y    the label of s' in a table, 0 if it has none ("retrieval"); 1 if sigma(net) > 1/2 ("classifier"); sigma(net)
         fitted to which of two is better ("ranking")

Stand-in: the annotator is a function, not a language model; it answers `delay` batches later, as a server would.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import potentials
from rl_jax.control.relabelling.base import PerEnv, begin, descend, flat
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions

KINDS = ("retrieval", "classifier", "ranking")


class Annotations(NamedTuple):
    """State of `by_annotator`.

    Attributes:
      asked: float32 [delay + 1, n, D]. Observations sent to the annotator, newest last.
      batches: int32 []. Batches so far.
      labels: float32 [C]. The table of "retrieval"; 0 if there is no label.
      learned: of the network; () for "retrieval".
      key: for what is sent.
      visits: PerEnv of float32 [B, C].
      labelled: float32 []. Share of the table that has a label of 1.
    """

    asked: chex.Array
    batches: chex.Array
    labels: chex.Array
    learned: Any
    key: chex.PRNGKey
    visits: PerEnv
    labelled: chex.Array


def visits_in_episode(before: chex.Array, places: chex.Array, done: chex.Array) -> tuple[chex.Array, chex.Array]:
    """How often each place was visited in the episode, with this visit.

    Args:
      before: float [B, C], of the running episodes.
      places: int [B, T].
      done: bool [B, T]. An episode's end clears its counts.

    Returns:
      (counts after the rows [B, C], N float32 [B, T]).
    """
    chex.assert_equal_shape([places, done])

    def step(counts: chex.Array, now):
        place, over = now
        counts = counts + jax.nn.one_hot(place, counts.shape[1])
        seen = jnp.take_along_axis(counts, place[:, None], axis=1)[:, 0]
        return jnp.where(over[:, None], 0.0, counts), seen

    last, seen = jax.lax.scan(step, before, (places.T, done.T))
    return last, seen.T


def by_annotator(
    *,
    num_envs: int,
    observation_size: int,
    make_net: Callable,
    annotator: Mapping | str,
    kind: str = "retrieval",
    per_batch: int = 16,
    delay: int = 1,
    power: float = 0.5,
    hidden: tuple[int, ...] = (32,),
    learning_rate: float = 3e-3,
    steps: int = 4,
    coef: float = 0.1,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """An intrinsic reward from few labels. Observations are one-hot: their index stands for the caption.

    Source: arXiv 2410.23022 (its power of the episodic count is unsure).

    Args:
      num_envs: B.
      observation_size: C.
      make_net: models.agents.features.make_net.
      annotator: a function of relabelling.potentials, or "module:function": observations [N, C] -> scores [N]. A label
        is 1 if the score is above 1 / 2; of two observations the one with the higher score is better.
      kind: "retrieval", "classifier" or "ranking".
      per_batch: observations sent per batch.
      delay: batches until the answer.
      power: of the episodic count; 0 does not count.
      hidden: widths of the network.
      learning_rate: of Adam.
      steps: per batch.
      coef: weight of the learned reward.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the kind is unknown, or the environments are spread over devices.
    """
    if kind not in KINDS or per_batch < 2 or delay < 0:
        raise ValueError(
            f"by_annotator: kind={kind!r} must be one of {', '.join(KINDS)}, per_batch={per_batch} 2 or more, "
            f"delay={delay} 0 or more"
        )
    if axis_name is not None:
        raise ValueError("by_annotator keeps its labels on one device: set mesh without envs")
    score = bind(annotator, potentials)

    def fit(learned: Any, rows: chex.Array, values: chex.Array) -> Any:
        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            logits = net.apply(params, rows)[:, 0]
            return classified(logits, values) if kind == "classifier" else ranked(logits, values, key)

        return descend(loss_fn, learned, optimizer, steps=steps)

    net, optimizer = make_net(observation_size, 1, hidden=hidden), optax.adam(learning_rate)

    def init(key: chex.PRNGKey) -> Annotations:
        net_key, fit_key, key = jax.random.split(key, 3)
        learned = () if kind == "retrieval" else begin(net.init(net_key), optimizer, fit_key)
        asked, counts = jnp.zeros((delay + 1, per_batch, observation_size)), jnp.zeros((num_envs, observation_size))
        return Annotations(
            asked, jnp.int32(0), jnp.zeros(observation_size), learned, key, PerEnv(counts), jnp.float32(0.0)
        )

    def apply(state: Annotations, rows: Transitions) -> tuple[Annotations, Transitions]:
        seen = flat(rows.next_observations)
        places = jnp.argmax(rows.next_observations, axis=-1)
        counts, times = visits_in_episode(state.visits.worlds, places, rows.terminated | rows.truncated)
        if kind == "retrieval":
            value = state.labels[places]
        else:
            value = jax.nn.sigmoid(net.apply(state.learned.params, seen)[:, 0]).reshape(places.shape)
            value = (value > 0.5).astype(jnp.float32) if kind == "classifier" else value
        rewards = keep * rows.rewards + coef * value / times**power
        key, used = jax.random.split(state.key)
        sent = seen[jax.random.choice(used, len(seen), (per_batch,), replace=False)]
        asked = jnp.concatenate([state.asked[1:], sent[None]])
        labels, learned = _answered(state, asked, score, kind, delay, fit)
        moved = Annotations(asked, state.batches + 1, labels, learned, key, PerEnv(counts), jnp.mean(labels))
        return moved, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    return Relabel(init, apply, seeded=True, measure=lambda state: {"relabel/labelled": state.labelled})


def classified(logits: chex.Array, scores: chex.Array) -> chex.Array:
    """Binary cross-entropy of logits [N] with the label 1 for scores above 1 / 2, float []."""
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, (scores > 0.5).astype(jnp.float32)))


def ranked(logits: chex.Array, scores: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """Bradley-Terry on random pairs, -log sigma(f_better - f_worse), float []; equal scores say nothing."""
    other = jax.random.permutation(key, len(scores))
    better = jnp.sign(scores - scores[other])
    return jnp.mean(jnp.where(better != 0, jax.nn.softplus(-better * (logits - logits[other])), 0.0))


def _answered(
    state: Annotations, asked: chex.Array, score: Callable, kind: str, delay: int, fit: Callable
) -> tuple[chex.Array, Any]:
    """(the table, the network) after the answer to the oldest batch that was sent."""
    rows, arrived = asked[0], state.batches >= delay
    values = score(rows)
    told = state.labels.at[jnp.argmax(rows, axis=1)].set((values > 0.5).astype(jnp.float32))
    labels = jnp.where(arrived, told, state.labels)
    if kind == "retrieval":
        return labels, ()
    learned = fit(state.learned, rows, values)
    kept = jax.tree.map(lambda new, old: jnp.where(arrived, new, old), learned[:2], state.learned[:2])
    return labels, learned._replace(params=kept[0], optimizer=kept[1])
