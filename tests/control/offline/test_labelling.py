"""Missing actions and rewards of a dataset: what is hidden, what is filled in, and what is learned from it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import control_setup, offline_labels, offline_runs
from rl_jax.control.offline import labelling
from rl_jax.control.offline.data import make_data
from rl_jax.control.transitions import Transitions
from tests.control.offline.worlds import jitted, small, world


@functools.cache
def steps(episodes=20, length=4):
    """Episodes whose return is their number; each action is 1."""
    count = episodes * length
    done = jnp.arange(count) % length == length - 1
    rewards = jnp.repeat(jnp.arange(episodes, dtype=jnp.float32), length) / length
    observations = jnp.arange(count, dtype=jnp.float32)[:, None]
    rows = Transitions(observations, jnp.ones((count, 1)), rewards, observations + 1, done, jnp.zeros(count, bool))
    return jitted(lambda rows: make_data(rows, discount=0.9))(rows)


@jitted
def hidden_of(data, key, share, lowest):
    return labelling.hide_actions(data, key, share=share, lowest=lowest)


def hide(*args):
    return hidden_of(steps(), *args)


def test_whole_episodes_from_the_worst_are_known():
    hidden = hide(jax.random.key(1), 0.2, 0.5)
    known = np.asarray(hidden.labelled).reshape(20, 4)
    assert (known.all(1) == known.any(1)).all() and not known[10:].any() and 0 < known.any(1).sum() < 9
    np.testing.assert_array_equal(hidden.steps.actions[:, 0], known.reshape(-1).astype(np.float32))
    few = hide(jax.random.key(1), 1e-9, 0.5)
    assert np.asarray(few.labelled).reshape(20, 4).any(1).tolist() == [True] + [False] * 19  # one at least


def test_a_share_of_one_hides_nothing_and_fills_nothing_in():
    same = hide(jax.random.key(0), 1.0, 1.0)
    assert same.labelled.all() and (same.steps.actions == 1.0).all()
    config = small("pointmass,iql")
    assert offline_labels.make_labels(config, None, None) is offline_labels.nothing


def test_a_batch_of_labelled_steps():
    hidden = hide(jax.random.key(1), 0.2, 0.5)
    assert jitted(lambda data, key: labelling.only_labelled(data, key, 64))(hidden, jax.random.key(0)).labelled.all()


@pytest.mark.slow
def test_an_inverse_model_and_a_learned_reward_know_the_world():
    """pointmass: the action is a linear function of (s, s'), the reward one of s'; both come back from a part."""
    _, networks, loaded, _ = world("pointmass")
    data = jax.tree.map(lambda x: x[0], loaded.data)
    env = control_setup.load_env(small("pointmass,bc"), 1)
    config = small("pointmass,iql,ss_orl", train__batch_size=64)
    config.labels.update(updates=500, learning_rate=3e-3)
    filled, metrics = jitted(offline_labels.make_labels(config, networks, env))(data, jax.random.key(0))
    unknown = ~np.asarray(filled.labelled)
    error = np.abs(np.asarray(filled.steps.actions - data.steps.actions))
    assert 0.5 < unknown.mean() < 1.0 and error[unknown].mean() < 0.15 and (error[~unknown] == 0).all()
    config = small("pointmass,iql,preferred")
    config.labels.update(updates=300, learning_rate=3e-3, members=2)
    learned, metrics = jitted(offline_labels.make_labels(config, networks, env))(data, jax.random.key(0))
    assert metrics["reward/accuracy"] > 0.9
    assert np.corrcoef(learned.steps.rewards, data.steps.rewards)[0, 1] > 0.9
    assert learned.time.tolist() == data.time.tolist()


@functools.cache
def final(words):
    """eval/normalized of 3 seeds after 500 updates."""
    config = small(words, num_seeds=3, train__batch_size=64)
    config.train.optimizer.learning_rate = config.labels.learning_rate = 3e-3
    init, advance, _ = offline_runs.make_offline_run(config)
    run = jitted(lambda *args: jax.lax.map(lambda own: advance(init(*own), own[1], 500)[1], args))
    return np.asarray(run(*control_setup.runs_of(config))["eval/normalized"])


@pytest.mark.slow
def test_actions_of_a_tenth_of_the_episodes_are_enough():
    """iql with filled-in actions is far above iql of the labelled episodes alone, which are among the worst half."""
    assert (final("pointmass,iql,ss_orl") > 70).all() and (final("pointmass,iql,labelled_only") < 60).all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(labels__share=0.7), "labels.share=0.7 must be above 0 and at most labels.lowest=0.5"),
        (dict(labels__missing="states"), "labels.missing='states' is none of '', 'actions', 'rewards', 'preferences'"),
    ],
)
def test_refusals(fields, said):
    with pytest.raises(ValueError, match=said):
        offline_runs.make_offline_run(small("pointmass,iql,ss_orl", **fields))


def test_a_judge_that_is_unsure_of_some_pairs():
    """Scores 0, 1, .9: the pair of the last two is within the margin, and its place repeats a sure one."""
    pairs = jnp.array([[0, 1], [1, 2], [2, 0], [2, 1]], jnp.int32)
    scores = jnp.array([0.0, 1.0, 0.9])[pairs]
    labels = labelling.judged(scores, margin=0.2)
    assert labels.tolist() == [1, -1, 0, -1]
    kept, sure = labelling.kept_pairs(pairs, labels)
    assert kept.tolist() == [[1, 0], [2, 0], [1, 0], [2, 0]] and sure == 0.5
    assert labelling.judged(scores, margin=0.0).tolist() == [1, 0, 0, 1]
    same, none = labelling.kept_pairs(pairs, jnp.full(4, -1))
    assert same.tolist() == pairs.tolist() and none == 0.0
