"""Rewards that look at a picture of each state through an encoder of images.

by_image_goal    r = 1 - |alpha proj_L(s) + (1 - alpha) s - g|^2 / 2, s of the image, g of a text     2310.12921
by_image_stages  r = sum_{g > 1} 2^(g-1) R_g / sum_{g > 1} 2^(g-1),
                 R_g = -(1/n) sum_{i chosen for g} (a_i - mu_i)^2 / sigma_i                           1612.06699

The program makes the encoder, because recipes know no models: make_encoder(folder, picture) gives

    images(observations float [N, D]) -> float [N, E], of length 1
    activations(observations float [N, D], first_layer) -> float [N, F], of the layers from first_layer on
    texts(tuple of texts) -> float numpy [K, E], of length 1
    shown(observations, first_layer) -> the same of numpy as numpy, at once and not inside a program that is traced
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations, similarity
from rl_jax.control.relabelling.base import flat, mean_of
from rl_jax.control.relabelling.transport import segmented
from rl_jax.rollout.envs.steps import Transitions


def by_image_goal(
    *,
    make_encoder: Callable,
    encoder: str,
    picture: Mapping | str,
    goal: str | Sequence[str],
    baseline: str | Sequence[str],
    alpha: float = 0.5,
    scale: float = 1.0,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays for how well the picture of s' fits a text: r = scale similarity.goal_baseline(s, g, b) + keep r.

    Source: arXiv 2310.12921 (VLM-RM), with any folder of CLIP. `relabel/similarity` is the mean of the similarity.

    Args:
      make_encoder: see the head of the module.
      encoder: folder of a CLIP (models.hf.clip_folder).
      picture: a function of envs.pictures, or "module:function", with its keywords.
      goal: g, a text that describes the goal, or several, whose mean is taken.
      baseline: b, a text, or several, that describes the environment whatever happens in it.
      alpha: from 0 (the cosine of s and g) to 1 (only what lies along the line through b and g).
      scale: of the reward.
      keep: weight of the environment's own reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if a text is empty, or both are the same.
    """
    given = [(x,) if isinstance(x, str) else tuple(x) for x in (goal, baseline)]
    if not all(given) or not all(text.strip() for texts in given for text in texts):
        raise ValueError(f"by_image_goal: goal={goal!r} and baseline={baseline!r} must be texts: set both")
    if given[0] == given[1]:
        raise ValueError(f"by_image_goal: goal and baseline are both {goal!r}, so there is no line through them")
    eyes = make_encoder(encoder, picture)
    end, start = (jnp.asarray(eyes.texts(texts).mean(axis=0)) for texts in given)

    def apply(state: chex.Array, rows: Transitions) -> tuple[chex.Array, Transitions]:
        found = similarity.goal_baseline(eyes.images(flat(rows.next_observations)), end, start, alpha)
        paid = scale * found.reshape(rows.rewards.shape) + keep * rows.rewards
        return mean_of(found, axis_name), rows._replace(rewards=jax.lax.stop_gradient(paid))

    return Relabel(lambda: jnp.float32(0.0), apply, measure=lambda state: {"relabel/similarity": state})


class Stages(NamedTuple):
    """What a stage looks like, for each of S stages.

    Attributes:
      chosen: int [S, n], the features that tell it from the others.
      means: mu, float [S, n], of features that are normalised.
      deviations: sigma, float [S, n].
      center: float [S, n], subtracted from the features.
      spread: float [S, n], divided by.
    """

    chosen: np.ndarray
    means: np.ndarray
    deviations: np.ndarray
    center: np.ndarray
    spread: np.ndarray


def select(trajectories: Sequence[np.ndarray], stages: int, *, features: int, contrast: float, width: float) -> Stages:
    """Cuts demonstrations into stages, and chooses for each the features that tell it from the others.

        z_i = contrast |mu_i+ - mu_i-| - (sigma_i+ + sigma_i-)        the n features with the highest z

    over the steps of the stage (+) and all others (-), of features with mean 0 and deviation 1 over all of them.
    Source: arXiv 1612.06699 section 2.2, equation 1, with contrast 5 and n = 32. Choices made here: a feature that
    never changes is not chosen, and a deviation is `width` at least.

    Args:
      trajectories: float [T_e, F] each.
      stages: S, 2 or more.
      features: n; all that change, if there are fewer.
      contrast: alpha of the paper.
      width: smallest deviation of a feature.

    Raises:
      ValueError: if there are fewer than 2 stages, more stages than steps, or no feature that changes.
    """
    if stages < 2:
        raise ValueError(f"stages={stages}: it takes 2 or more to tell one from the others")
    every = np.concatenate(trajectories)
    center, spread = every.mean(axis=0), every.std(axis=0)
    changing = spread > 1e-6 * np.maximum(np.abs(center), 1.0)
    count = min(features, int(changing.sum()))
    if count < 1:
        raise ValueError("no feature of the demonstrations changes: is the picture that of this environment?")
    spread = np.where(changing, spread, 1.0)
    stage_of = []
    for steps in trajectories:
        cuts = segmented(np.asarray(steps, np.float64), stages)
        stage_of.append(np.repeat(np.arange(stages), np.diff(cuts)))
    owner, scaled = np.concatenate(stage_of), (every - center) / spread
    found = []
    for stage in range(stages):
        inside, outside = scaled[owner == stage], scaled[owner != stage]
        apart = contrast * np.abs(inside.mean(0) - outside.mean(0)) - (inside.std(0) + outside.std(0))
        chosen = np.argsort(-np.where(changing, apart, -np.inf), kind="stable")[:count]
        mean, deviation = inside.mean(0)[chosen], np.maximum(inside.std(0)[chosen], width)
        found.append((chosen, mean, deviation, center[chosen], spread[chosen]))
    return Stages(*(np.stack(parts) for parts in zip(*found, strict=True)))


def stage_rewards(features: chex.Array, stages: Stages) -> chex.Array:
    """R_g = -(1/n) sum_i (a_i - mu_i)^2 / sigma_i over the features chosen for stage g: float [N, S], 0 at most.

    Source: arXiv 1612.06699 equation 2, with the minus of the log-probability that its text says it is.

    Args:
      features: float [N, F].
      stages: of `select`.
    """
    chex.assert_rank(features, 2)
    center, spread, means, deviations = (
        jnp.asarray(x, features.dtype)[None] for x in (stages.center, stages.spread, stages.means, stages.deviations)
    )
    scaled = (features[:, stages.chosen] - center) / spread
    return -jnp.mean(jnp.square(scaled - means) / deviations, axis=2)


def by_image_stages(
    *,
    make_encoder: Callable,
    encoder: str,
    picture: Mapping | str,
    demos: str = "",
    last: int = 8,
    stages: int = 2,
    features: int = 32,
    contrast: float = 5.0,
    width: float = 0.1,
    first_layer: int = 0,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays for looking like the later stages of demonstrations: r = sum_{g>1} 2^(g-1) R_g / sum_{g>1} 2^(g-1) + keep r.

    Stages are cut from each demonstration (transport.segmented, by least variance in place of least deviation), each
    has its own features (`select`) and reward (`stage_rewards`). Source: arXiv 1612.06699 sections 2.1 and 2.2. How
    stages are added up is in an appendix that could not be read; the powers of two, without the first stage, are
    recalled, and dividing by their sum is a choice. Departs: the layers of a CLIP in place of Inception's, and PPO.

    Args:
      make_encoder: see the head of the module.
      encoder: folder of a CLIP.
      picture: as for `by_image_goal`.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      last: episodes of it.
      stages: S.
      features: n per stage.
      contrast: alpha of the paper.
      width: smallest deviation of a normalised feature.
      first_layer: activations are those of this layer and all after it.
      keep: weight of the environment's own reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: as for `select` and demonstrations.read.
    """
    shown = demonstrations.read(demos, last=last).trajectories()
    eyes = make_encoder(encoder, picture)

    every = eyes.shown(np.concatenate(shown), first_layer)
    seen = np.split(every, np.cumsum([len(steps) for steps in shown])[:-1])
    found = select(seen, stages, features=features, contrast=contrast, width=width)
    weights = 2.0 ** jnp.arange(1, stages)
    weights = weights / jnp.sum(weights)

    def look(rows: Transitions) -> chex.Array:
        return eyes.activations(flat(rows.next_observations), first_layer)

    def apply(state: chex.Array, rows: Transitions) -> tuple[chex.Array, Transitions]:
        paid = stage_rewards(look(rows), found)[:, 1:] @ weights
        rewards = paid.reshape(rows.rewards.shape) + keep * rows.rewards
        return mean_of(paid, axis_name), rows._replace(rewards=jax.lax.stop_gradient(rewards))

    return Relabel(lambda: jnp.float32(0.0), apply, measure=lambda state: {"relabel/stages": state})
