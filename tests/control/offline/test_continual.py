"""Tasks one after the other: the losses and the choice of what is kept against numpy, and a run of two tasks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.control import offline as control_offline
from experiments.parts import continual_runs
from rl_jax.control.offline import continual
from rl_jax.control.offline import data as datasets
from rl_jax.control.transitions import Transitions
from rl_jax.losses import continual as losses
from tests.control.offline.worlds import QUICK, jitted

RNG = np.random.default_rng(0)


def arrays(*shapes):
    return [RNG.normal(size=shape).astype(np.float32) for shape in shapes]


def test_dual_cloning_clones_the_new_task_and_what_is_kept_of_the_old_ones():
    actions, wanted, replayed, stored = arrays((4, 2), (4, 2), (3, 4, 2), (3, 4, 2))
    loss = jitted(functools.partial(losses.dual_cloning, coef=0.5))
    for task in range(3):
        expected = ((actions - wanted) ** 2).mean(-1)
        for old in range(task):
            expected = expected + 0.5 / task * ((replayed[old] - stored[old]) ** 2).mean(-1)
        found = loss(actions, wanted, replayed, stored, np.arange(3) < task)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_gradients_are_those_of_the_actors_own_outputs_in_seen_tasks():
    actions, wanted, replayed, stored = arrays((4, 2), (4, 2), (3, 4, 2), (3, 4, 2))
    stored[2] = np.nan  # a task that has not come yet

    def total(*given):
        return jnp.sum(losses.dual_cloning(*given, np.arange(3) < 2, coef=0.5))

    own, mu, old, kept = jitted(jax.grad(total, argnums=(0, 1, 2, 3)))(actions, wanted, replayed, stored)
    np.testing.assert_allclose(own, actions - wanted, rtol=1e-5)  # 2 / A of A = 2
    np.testing.assert_allclose(old[:2], 0.25 * (replayed - stored)[:2], rtol=1e-5)
    assert not np.any(mu) and not np.any(kept) and not np.any(old[2])


def rows_of_a_line(length=6, episodes=2):
    """Episodes that move by 1 a step, the second .4 off: states [N, 1]."""
    places = np.concatenate([np.arange(length) + 0.4 * e for e in range(episodes)]).astype(np.float32)[:, None]
    ends = np.arange(len(places)) % length == length - 1
    zeros = np.zeros_like(places)
    steps = Transitions(places, zeros, zeros[:, 0], places + 1, np.zeros_like(ends), ends)
    return datasets.make_data(jax.tree.map(jnp.asarray, steps), discount=0.9)


def test_the_models_rollout_goes_on_from_the_nearest_state_of_the_data():
    """A model with an error of .25 a step: by itself it would be .5 off after two; the data's states are not."""
    data = rows_of_a_line()
    chosen = continual.select_by_model(
        lambda states: jnp.full_like(states, 2.0),
        lambda states, actions: states + actions + 0.25,
        data.steps.observations,
        jnp.array([0, 6]),
        horizon=3,
    )
    table, index = np.asarray(data.steps.observations), np.array([0, 6])
    for row in np.asarray(chosen):
        np.testing.assert_array_equal(row, index)
        index = np.argmin(np.abs(table[index] + 2.25 - table.T), axis=1)
    np.testing.assert_allclose(table[chosen, 0], [[0.0, 0.4], [2.4, 2.4], [4.4, 4.4]], rtol=1e-6)


def test_rollouts_start_where_episodes_do():
    found = continual.episode_starts(rows_of_a_line(episodes=3), jax.random.key(0), 40)
    assert set(found.tolist()) == {0, 6, 12}


def test_what_the_scores_say():
    scores, ended = np.float32([40, 60, 10]), np.float32([90, 70, 0])
    so_far, fallen, after = continual_runs.standing(scores, ended, jnp.int32(1), jnp.bool_(True))
    assert (so_far, fallen) == (50.0, 50.0) and after.tolist() == [90.0, 60.0, 0.0]
    assert continual_runs.standing(scores, ended, jnp.int32(0), jnp.bool_(False))[:2] == (40.0, 0.0)


def small(word="oer", **fields):
    config = configs.get_config(f"{word},smoke")
    config.network.hidden = (8,)
    config.continual.update(values=((-0.8, 0.0), (0.8, 0.0)), kept=6, horizon=3)
    config.train.update(total_steps=2 * 4 * 8, batch_size=8)
    config.dataset.update(num_envs=3, num_steps=20, returns=(-30.0, 0.0))
    config.eval.update(num_episodes=2, max_steps=3)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.slow
def test_a_run_keeps_steps_of_the_first_task_when_it_ends_and_never_reads_its_data_again():
    init, advance, _ = continual_runs.make_continual_run(small())

    first = jax.jit(lambda key: init(key, {}), compiler_options=QUICK)(jax.random.key(0))
    step = jax.jit(lambda state: advance(state, {}, 4), compiler_options=QUICK)
    second, early = step(first)
    last, late = step(second)
    assert (early["task"], late["task"]) == (0, 1) and not first.kept.observations.any()
    for task, state in enumerate((second, last)):
        table, kept = np.asarray(state.loaded.data.steps.observations[task]), np.asarray(state.kept.observations[task])
        assert kept.any() and all((row == table).all(-1).any() for row in kept)
        assert (np.abs(state.kept.actions[task]) <= 1).all()
    assert not second.kept.observations[1].any()
    np.testing.assert_array_equal(second.kept.observations[0], last.kept.observations[0])
    goals = np.asarray(first.loaded.data.steps.rewards)
    assert not np.allclose(goals[0], goals[1])
    assert early["eval/normalized"] == early["eval/task_0"] and early["eval/forgetting"] == 0
    np.testing.assert_allclose(late["eval/forgetting"], early["eval/task_0"] - late["eval/task_0"], atol=1e-4)
    np.testing.assert_allclose(last.ended, [early["eval/task_0"], late["eval/task_1"]], rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(continual__values=((0.0, 0.0),)), "a sequence has two tasks or more"),
        (dict(train__total_steps=3 * 4 * 8), "are 12 updates, which 2 tasks do not share evenly"),
        (dict(dataset__normalize_observations=True), "are of one task; leave them as is"),
        (dict(ope=dict(updates=1)), "ope: it is of one task"),
        (dict(online=dict(after=0.5)), "online: it is of one task"),
    ],
)
def test_refusals(fields, said):
    with pytest.raises(ValueError, match=said):
        continual_runs.make_continual_run(small(**fields))


def test_a_sequence_without_a_method_for_one_is_refused(tmp_path):
    config = small()
    with config.unlocked():
        config.algorithm.fn = "iql"
    with pytest.raises(ValueError, match="continual: algorithm.fn='iql' learns one task; oer or hypercrl or psec"):
        control_offline.run(config, tmp_path)


def test_words_that_do_not_go_together():
    with pytest.raises(ValueError, match="oer has tasks of pointmass, not of aim"):
        configs.get_config("aim,oer")
    with pytest.raises(ValueError, match="oer is of several tasks: leave out fqe"):
        configs.get_config("oer,fqe")
