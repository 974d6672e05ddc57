"""control/relabelling/images.py: VLM-RM against its published projection, and stages of features that were planted."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.control import relabelling
from rl_jax.control.relabelling import images
from rl_jax.core.vectors import unit
from tests.control.relabelling.rows import random_rows, walk

VECTORS = {"goal": [0.6, 0.8, 0.0], "other goal": [0.0, 0.6, 0.8], "baseline": [1.0, 0.0, 0.0]}


def make_encoder(folder, picture):
    """An encoder whose code of an observation is its first three numbers, and whose texts are VECTORS."""
    assert (folder, picture) == ("FOLDER", "PICTURE")
    return types.SimpleNamespace(
        images=lambda x: unit(x[:, :3], 1e-16),
        activations=lambda x, first_layer: x[:, first_layer:],
        texts=lambda texts: np.array([VECTORS[text] for text in texts], np.float32),
        shown=lambda x, first_layer: np.asarray(x)[:, first_layer:],
    )


SEES = dict(make_encoder=make_encoder, encoder="FOLDER", picture="PICTURE")


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("goals", [("goal",), ("goal", "other goal")])
def test_the_reward_is_that_of_the_published_projection(alpha, goals):
    """y = 1 - |(s - g) P|^2 / 2, P = alpha d d' / |d|^2 + (1 - alpha) I, d = g - b (vlmrm/reward/rewards.py)."""
    rows = random_rows()
    goal = np.mean([VECTORS[name] for name in goals], axis=0)
    along = goal - VECTORS["baseline"]
    projection = alpha * np.outer(along, along) / (along @ along) + (1 - alpha) * np.eye(3)
    state = np.asarray(rows.next_observations, np.float64)[..., :3]
    state = state / np.linalg.norm(state, axis=-1, keepdims=True)
    expected = 1 - 0.5 * np.sum(((state - goal) @ projection) ** 2, axis=-1)
    made = relabelling.by_image_goal(
        **SEES, goal=goals[0] if len(goals) == 1 else goals, baseline="baseline", alpha=alpha, scale=2.0, keep=0.5
    )
    state, found = jax.jit(made.apply)(made.begin(None), rows)
    np.testing.assert_allclose(found.rewards, 2.0 * expected + 0.5 * np.asarray(rows.rewards), atol=1e-5)
    np.testing.assert_allclose(made.measure(state)["relabel/similarity"], expected.mean(), atol=1e-5)
    if alpha == 0.0 and len(goals) == 1:
        np.testing.assert_allclose(expected, (rows.next_observations[..., :3] @ goal) / np.linalg.norm(
            rows.next_observations[..., :3], axis=-1), atol=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (dict(goal="", baseline="baseline"), "goal='' and baseline='baseline' must be texts"),
        (dict(goal="goal", baseline=()), "must be texts"),
        (dict(goal="goal", baseline="goal"), "goal and baseline are both 'goal'"),
    ],
)
def test_texts_that_say_nothing_are_refused(texts, said):
    with pytest.raises(ValueError, match=said):
        relabelling.by_image_goal(**SEES, **texts)


def planted(seed=0, steps=12, width=40):
    """A demonstration of two stages: feature 7 is low, then high; 21 the same with noise; 30 is constant."""
    rng = np.random.default_rng(seed)
    found = 0.3 * rng.normal(size=(steps, width))
    found[:, 7] = 5.0 * (np.arange(steps) >= steps // 2) + 0.01 * rng.normal(size=steps)
    found[:, 21] = 4.0 * (np.arange(steps) >= steps // 2) + 0.3 * rng.normal(size=steps)
    found[:, 30] = 2.0
    return found.astype(np.float32)


def test_the_features_that_tell_stages_apart_are_chosen():
    shown = [planted(0), planted(1)]
    stages = images.select(shown, 2, features=2, contrast=5.0, width=0.1)
    assert stages.chosen.tolist() == [[7, 21], [7, 21]]
    every = images.select(shown, 2, features=99, contrast=5.0, width=0.1)
    assert every.chosen.shape == (2, 39) and 30 not in every.chosen  # it never changes
    scaled = (np.concatenate(shown) - np.concatenate(shown).mean(0)) / np.maximum(np.concatenate(shown).std(0), 1e-9)
    first = np.tile(np.arange(12) < 6, 2)
    for stage, inside in enumerate((first, ~first)):
        apart = np.abs(scaled[inside].mean(0) - scaled[~inside].mean(0))
        z = 5.0 * apart - scaled[inside].std(0) - scaled[~inside].std(0)
        z[30] = -np.inf
        np.testing.assert_array_equal(every.chosen[stage], np.argsort(-z, kind="stable")[:39])
        np.testing.assert_allclose(stages.means[stage], scaled[inside].mean(0)[[7, 21]], rtol=1e-4)
        np.testing.assert_allclose(stages.deviations[stage], np.maximum(scaled[inside].std(0), 0.1)[[7, 21]], rtol=1e-4)
        expected = -np.mean((scaled[:, [7, 21]] - stages.means[stage]) ** 2 / stages.deviations[stage], axis=1)
        found = images.stage_rewards(jnp.asarray(np.concatenate(shown)), stages)[:, stage]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="stages=1: it takes 2 or more"):
        images.select(shown, 1, features=2, contrast=5.0, width=0.1)
    with pytest.raises(ValueError, match="no feature of the demonstrations changes"):
        images.select([np.ones((4, 3))], 2, features=2, contrast=5.0, width=0.1)


def test_what_looks_like_the_end_of_a_demonstration_pays_most(tmp_path):
    """Three stages weigh 0, 1 and 2 thirds; noise in other features changes little, as they are not chosen."""
    path = tmp_path / "episodes.jsonl"
    seen = np.repeat(np.eye(4), 3, axis=0).tolist()
    row = {"observations": {"shape": [4], "values": seen}, "actions": [0] * 11, "rewards": [0.0] * 11}
    path.write_text(json.dumps(row) + "\n")
    made = relabelling.by_image_stages(**SEES, demos=str(path), last=1, stages=4, features=1, width=0.1)
    state, found = made.apply(made.begin(None), walk([0, 1, 2, 3, 2], 4))
    paid = np.asarray(found.rewards)[0]
    assert paid[2] == paid.max() > paid[1] == paid[3] > paid[0]
    shown = np.asarray(seen[1:])
    stages = images.select([shown], 4, features=1, contrast=5.0, width=0.1)
    each = np.asarray(images.stage_rewards(jnp.eye(4)[jnp.array([1, 2, 3, 2])], stages))
    np.testing.assert_allclose(paid, each[:, 1:] @ (np.array([2, 4, 8]) / 14), rtol=1e-5)
    np.testing.assert_allclose(made.measure(state)["relabel/stages"], paid.mean(), rtol=1e-5)
