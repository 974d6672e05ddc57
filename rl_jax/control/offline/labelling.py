"""What is done to a dataset before a method learns from it: missing actions and missing rewards are filled in.

ss_orl   a few episodes have actions, the others only observations and rewards: an inverse model a = g(s, s') is
         cloned on the former and labels the latter                                            arXiv 2210.06518
BT       rewards are unknown, pairs of segments are labelled: a reward by Bradley-Terry replaces them
                                                                                 arXiv 1706.03741, 2411.05273
unsure   the same of pairs of states, that a judge of pictures labels or says that it is unsure  arXiv 2411.05273
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control import segments
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.in_sample import bc
from rl_jax.control.offline.recipe import make_fit
from rl_jax.core.types import StepInputs


def hide_actions(data: datasets.OfflineData, key: chex.PRNGKey, *, share: float, lowest: float) -> datasets.OfflineData:
    """Marks the actions of all but some episodes as unknown; the marked ones are zeros.

    Known are those of a share of the episodes, drawn from the worst: each episode whose return is among the `lowest`
    of all is known with probability share / lowest. Source: arXiv 2210.06518 section 5: 10 % from the lowest half.

    Args:
      data: of N steps.
      key: for the draw.
      share: of the episodes, above 0; 1 hides nothing.
      lowest: at least `share`.
    """
    first = data.time == 0
    returns = jnp.where(first, data.to_go, jnp.nan)
    limit = jnp.nanquantile(returns, lowest)
    drawn = jax.random.uniform(key, (len(first),)) < share / lowest
    start = jnp.arange(len(first)) - data.time  # of each step's episode
    known = (drawn & (data.to_go <= limit))[start]
    known = known | (share >= 1.0)
    # One episode at least: the worst.
    worst = jnp.nanargmin(returns)
    known = known | (~jnp.any(known) & (start == worst))
    actions = data.steps.actions
    mask = known.reshape(known.shape + (1,) * (actions.ndim - 1))
    return data._replace(
        steps=data.steps._replace(actions=jnp.where(mask, actions, jnp.zeros_like(actions))), labelled=known
    )


def both_observations(data: datasets.OfflineData) -> datasets.OfflineData:
    """The data with (s, s') in the place of s, flat float32 [N, 2 D], as an inverse model reads them."""
    steps = data.steps
    count = len(steps.rewards)
    pair = [x.reshape(count, -1).astype(jnp.float32) for x in (steps.observations, steps.next_observations)]
    return data._replace(steps=steps._replace(observations=jnp.concatenate(pair, axis=-1)))


def only_labelled(data: datasets.OfflineData, key: chex.PRNGKey, size: int) -> datasets.OfflineData:
    """`size` of the steps whose action is known, with replacement."""
    by_label = data._replace(source=data.labelled.astype(jnp.int32))
    return datasets.sample_mixed(by_label, key, size, (0.0, 1.0))


def fill_actions(
    networks, data: datasets.OfflineData, key: chex.PRNGKey, *, updates: int, batch_size: int, learning_rate: float
) -> tuple[datasets.OfflineData, chex.Array]:
    """Actions of an inverse model where they are unknown.

    The model has the form of a policy: -log g(a | s, s') on the known ones, its likeliest action on the others. Source:
    arXiv 2210.06518, facebookresearch/ssorl; there s_{t-1} is an input, too, and the model is chosen by validation.

    Args:
      networks: OfflineNetworks for observations [2 D].
      data: of `hide_actions`.
      key: for the weights and the minibatches.
      updates: number of minibatches.
      batch_size: steps per update.
      learning_rate: Adam's.

    Returns:
      (OfflineData with all actions, the mean log-prob of the known ones float32 []).
    """
    both = both_observations(data)
    init_key, fit_key = jax.random.split(key)
    begin, fit = make_fit(bc(networks), learning_rate, batch_size=batch_size, sample=only_labelled)
    state, metrics = fit(begin(networks.init(init_key), fit_key), both, updates)
    chosen = networks.distribution.mode(networks.policy(state.params, both.steps.observations))
    mask = data.labelled.reshape(data.labelled.shape + (1,) * (chosen.ndim - 1))
    actions = jnp.where(mask, data.steps.actions, chosen.astype(data.steps.actions.dtype))
    return data._replace(steps=data.steps._replace(actions=actions)), metrics["policy/log_prob"]


def segment_pairs(
    data: datasets.OfflineData, encode: Callable, key: chex.PRNGKey, *, length: int, count: int, beta: float
) -> segments.SegmentPairs:
    """Labelled pairs of segments of the data: the last `length` steps up to every length-th step.

    Args:
      data: of N steps.
      encode: actions -> float32 [..., A].
      key: for the pairs and labels.
      length: of a segment, in steps; it stays in its episode.
      count: of pairs.
      beta: rationality of the annotator, per unit of the sum of rewards.
    """
    ends = jnp.arange(length - 1, len(data.time), length)
    rows, mask = datasets.windows(data, ends, length)
    sums = segments.segment_sums(rows.steps.rewards, mask)
    steps = StepInputs(rows.steps.observations, encode(rows.steps.actions))
    return segments.SegmentPairs(steps, mask, segments.labelled_pairs(key, sums, count=count, beta=beta))


def judged(scores: chex.Array, *, margin: float | chex.Array) -> chex.Array:
    """The label of a judge with scores: 0 if the first is better, 1 if the second is, -1 if it is unsure: int32 [M].

        0 if s_1 - s_2 >= margin,  1 if s_2 - s_1 >= margin and not 0,  else -1

    Args:
      scores: float [M, 2], of both states of each pair.
      margin: smallest difference that the judge is sure of, 0 or more.
    """
    chex.assert_shape(scores, (None, 2))
    gaps = scores[:, 0] - scores[:, 1]
    return jnp.where(gaps >= margin, 0, jnp.where(-gaps >= margin, 1, -1)).astype(jnp.int32)


def kept_pairs(pairs: chex.Array, labels: chex.Array) -> tuple[chex.Array, chex.Array]:
    """The pairs that a judge is sure of, the better one first.

    Source: arXiv 2411.05273 and its code (vsreyas/RL-VLM-F): a label is 0, 1 or -1, and -1 is not learned from. The
    places of the unsure pairs repeat the sure ones, so that the shape is the same whatever the judge says; if it is
    unsure of all, they stay as they are.

    Args:
      pairs: int32 [M, 2].
      labels: int32 [M]: 0 the first is better, 1 the second, -1 unsure.

    Returns:
      (int32 [M, 2], share of the pairs with a label, float32 []).
    """
    chex.assert_shape(pairs, (len(labels), 2))
    chex.assert_type([pairs, labels], int)
    sure = labels >= 0
    better_first = jnp.where((labels == 1)[:, None], pairs[:, ::-1], pairs)
    order = jnp.argsort(~sure, stable=True)  # the sure ones first
    kept = jnp.where(jnp.any(sure), jnp.sum(sure), len(labels))
    return better_first[order[jnp.arange(len(labels)) % kept]], jnp.mean(sure.astype(jnp.float32))


def with_rewards(data: datasets.OfflineData, rewards: chex.Array, *, discount: float) -> datasets.OfflineData:
    """The data with other rewards, and the returns that follow from them. rewards: float32 [N]."""
    steps = data.steps._replace(rewards=jax.lax.stop_gradient(rewards))
    return datasets.make_data(
        steps, discount=discount, source=data.source, behaviour=data.behaviour, labelled=data.labelled
    )
