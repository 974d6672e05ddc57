"""Rewards that a language model gives to captions, while the policy trains: it answers beside the run, when it can.

    r' = keep r + coef y(c) / N(c)^power,   c: the caption of s', N: its visits in this episode      ONI 2410.23022
    retrieval    y = the label of c, 1 or 0; 0 until there is one
    classifier   y = 1[sigma(net(c)) > threshold],  net fitted to the labels by cross-entropy
    ranking      y = z 1[z > floor],  z = (net(c) - mean) / std over all steps so far,  net fitted by Bradley-Terry to
                 which of two captions is better: -log sigma(net(c_better) - net(c_worse)), ties count half each way

Captions are made on the host from observations, and known here by their hashes. Each update sends the newest captions
that were not sent yet (ranking: random pairs of those that there are), as long as fewer than `limit` wait for an
answer. What has been answered so far comes back in the same call; nobody waits, unless the annotator is told to.
Everything is in the state, an observation of each caption in place of its text. A run whose annotator waits, and
answers a question as it did before, resumes bit for bit.

`annotated.by_annotator` is the same without texts: a function of one-hot observations.
"""

from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling.annotated import KINDS, visits_in_episode
from rl_jax.control.relabelling.base import PerEnv, begin, descend
from rl_jax.control.relabelling.captions import (
    Captions,
    answer_loss,
    answered,
    asked_captions,
    blank,
    counted,
    drawn_pairs,
    noticed,
)
from rl_jax.core.trackers import feature_moments
from rl_jax.rollout.envs.steps import Transitions

_MOMENTS = feature_moments(shape=())


def by_captions(
    *,
    num_envs: int,
    observation_size: int,
    make_net: Callable,
    make_annotator: Callable,
    annotator: Mapping,
    kind: str = "retrieval",
    captions: int = 512,
    pairs: int = 256,
    limit: int = 16,
    power: float = 3.0,
    threshold: float = 0.5,
    floor: float = -0.5,
    hidden: tuple[int, ...] = (32,),
    learning_rate: float = 1e-3,
    steps: int = 32,
    coef: float = 0.4,
    keep: float = 1.0,
    axis_name=None,
) -> Relabel:
    """An intrinsic reward from a language model beside the run.

    Source: arXiv 2410.23022 and its code (facebookresearch/oni, appo/llm_annotator.py, learner.py, rlaif/): newest
    first, power 3, 32 gradient steps when labels arrive, threshold .5 and floor -.5 are its; 100 captions are sent at a
    time there. The paper's text was not read beyond its abstract. Departs: what a net reads of a caption are its words,
    counted, in place of a convolution over characters; a gradient step is on all answers in place of 256; pairs are of
    distinct captions; a net pays nothing before its first answers; PPO, not APPO.

    Args:
      num_envs: B.
      observation_size: D, numbers of a flat observation.
      make_net: models.agents.features.make_net.
      make_annotator: (annotator, pairs: bool) -> (an Annotator, W).
      annotator: who is asked what, in words of the program.
      kind: "retrieval", "classifier" or "ranking".
      captions: C. Captions that do not fit in are never sent and pay nothing.
      pairs: Q of "ranking": the newest are learned from.
      limit: questions that wait for an answer at most.
      power: of the episodic count; 0 does not count.
      threshold: probability from which on "classifier" pays 1.
      floor: of z, below which "ranking" pays nothing.
      hidden: widths of the network.
      learning_rate: of Adam.
      steps: gradient steps per update with new answers.
      coef: weight of the learned reward.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread. The host is called in order: one device, no mesh.

    Raises:
      ValueError: if the kind is unknown, a number is out of its range, or the environments are spread over devices.
    """
    if kind not in KINDS or min(captions, limit, steps) < 1 or pairs < limit:
        raise ValueError(
            f"by_captions: kind={kind!r} must be one of {', '.join(KINDS)}, captions={captions}, limit={limit} and "
            f"steps={steps} 1 or more, pairs={pairs} limit or more"
        )
    if axis_name is not None:
        raise ValueError("by_captions keeps its captions on one device: set mesh without envs")
    beside, width = make_annotator(annotator, kind == "ranking")
    net, optimizer = make_net(width, 1, hidden=hidden), optax.adam(learning_rate)
    ask, size = (drawn_pairs, pairs) if kind == "ranking" else (asked_captions, captions)
    fitted, valued = _retrieval() if kind == "retrieval" else _learned(kind, net, optimizer, steps, threshold, floor)

    def init(key: chex.PRNGKey) -> Captions:
        net_key, fit_key, key = jax.random.split(key, 3)
        state = blank(num_envs, captions, size, 1 + (kind == "ranking"), width, observation_size, key)
        if kind == "retrieval":
            return state
        scale = _MOMENTS.init() if kind == "ranking" else ()
        return state._replace(learned=begin(net.init(net_key), optimizer, fit_key), scale=scale)

    def apply(state: Captions, rows: Transitions) -> tuple[Captions, Transitions]:
        state, places = noticed(state, beside, rows)
        key, used = jax.random.split(state.key)
        state, arrived = answered(beside, ask(state._replace(key=key), used, limit))
        state = state._replace(learned=fitted(state, arrived))
        counts, times = visits_in_episode(state.visits.worlds, places, rows.terminated | rows.truncated)
        value, scale = valued(state, places)
        state = state._replace(visits=PerEnv(counts), scale=scale, measured=counted(state, value))
        rewards = keep * rows.rewards + coef * value / times**power
        return state, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    return Relabel(init, apply, seeded=True, measure=lambda state: state.measured)


def _retrieval() -> tuple[Callable, Callable]:
    """(fitted, valued) as `_learned` makes them, of the labels themselves."""

    def valued(state: Captions, places: chex.Array) -> tuple[chex.Array, Any]:
        return _at((state.answers > 0.5).astype(jnp.float32), places), ()

    return lambda state, arrived: (), valued


def _learned(
    kind: str, net: Any, optimizer: optax.GradientTransformation, steps: int, threshold: float, floor: float
) -> tuple[Callable, Callable]:
    """(fitted, valued) of "classifier" or "ranking".

    fitted(state, whether there are new answers) -> the Learned after an update of the network.
    valued(state, places int [B, T]) -> (y float [B, T], the scale after these steps).
    """

    def fitted(state: Captions, arrived: chex.Array) -> Any:
        def loss_fn(params: Any, _) -> chex.Array:
            values = net.apply(params, state.features)[:, 0][state.questions]
            return answer_loss(values[:, 1] - values[:, 0] if kind == "ranking" else values[:, 0], state.answers)

        fit = lambda learned: descend(loss_fn, learned, optimizer, steps=steps)  # noqa: E731
        return jax.lax.cond(arrived, fit, lambda learned: learned, state.learned)

    def valued(state: Captions, places: chex.Array) -> tuple[chex.Array, Any]:
        outputs = _at(net.apply(state.learned.params, state.features)[:, 0], places)
        paid = jnp.any(~jnp.isnan(state.answers)) & (places < len(state.hashes))
        if kind == "classifier":
            return (paid & (jax.nn.sigmoid(outputs) > threshold)).astype(jnp.float32), ()
        scale = _MOMENTS.update(state.scale, outputs)
        z = (outputs - scale.mean) / scale.std()
        return jnp.where(paid & (z > floor), z, 0.0), scale

    return fitted, valued


def _at(values: chex.Array, places: chex.Array) -> chex.Array:
    """values [C] at places int [...]; 0 for captions that did not fit in."""
    return values.at[places].get(mode="fill", fill_value=0.0)
