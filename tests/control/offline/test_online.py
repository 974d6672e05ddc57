"""First offline, then online: the rows that a batch is drawn from, and a run of both phases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.parts import online_runs
from rl_jax.control.offline import data as datasets
from rl_jax.control.transitions import Transitions
from tests.control.offline.worlds import QUICK


def growing(filled):
    """10 rows, the first 4 recorded; a row's reward is its number."""
    count = np.arange(10.0, dtype=np.float32)
    no = np.zeros(10, bool)
    steps = jax.tree.map(jnp.asarray, Transitions(count[:, None], count[:, None], count, count[:, None], no, no))
    return online_runs.Growing(datasets.make_data(steps, discount=0.9), jnp.int32(filled))


@pytest.mark.parametrize(("filled", "mixing", "wanted"), [(4, 0.5, 0.0), (6, 0.5, 0.5), (6, -1.0, 1 / 3)])
def test_a_batch_has_its_share_of_online_steps_and_none_of_what_is_not_there(filled, mixing, wanted):
    sample = online_runs.make_sample(4, mixing)
    drawn = jax.jit(lambda key: sample(growing(filled), key, 2000), compiler_options=QUICK)(jax.random.key(0))
    rows = np.asarray(drawn.steps.rewards)
    assert abs((rows >= 4).mean() - wanted) < 0.04 and rows.max() < filled
    counts = np.bincount(rows.astype(int), minlength=10)
    assert (np.abs(counts[:4] - 2000 * (1 - wanted) / 4) < 90).all()


def test_steps_stand_behind_those_there_are():
    given = growing(6)
    fresh = jax.tree.map(lambda x: x[:2] * 0 - 1, given.data.steps)
    found = online_runs.appended(given.data._replace(source=jnp.arange(10)), fresh, given.filled)
    assert found.steps.rewards.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 8, 9]
    assert found.source.tolist() == [0, 1, 2, 3, 4, 5, 9, 9, 8, 9]


def small(**fields):
    config = configs.get_config("pointmass,iql,online,smoke")
    config.network.hidden = (4,)
    config.dataset.update(num_envs=3, num_steps=6, returns=(-30.0, 0.0))
    config.eval.update(num_episodes=2, max_steps=3)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.slow
def test_a_run_reads_the_data_alone_and_then_acts(monkeypatch):
    monkeypatch.setattr(online_runs.control_runs, "judge", lambda *args: {"eval/return": jnp.float32(-15.0)})
    init, advance, _ = online_runs.make_online_run(small())
    first = jax.jit(lambda key: init(key, {}), compiler_options=QUICK)(jax.random.key(0))
    step = jax.jit(lambda state: advance(state, {}, 4), compiler_options=QUICK)
    second, early = step(first)
    last, late = step(second)
    assert (early["online/steps"], late["online/steps"]) == (0, 4) and first.filled == 18
    before, after = (np.asarray(state.loaded.data.steps.observations) for state in (second, last))
    np.testing.assert_array_equal(before[:18], after[:18])
    assert not before[18:].any() and after[18:].any(axis=-1).all()
    data = last.loaded.data
    assert set(data.source[18:].tolist()) == {3} and set(data.source[:18].tolist()) == {0, 1, 2}
    # Two environments, two steps each, as they follow each other: s' of the first is s of the second.
    np.testing.assert_array_equal(data.steps.next_observations[18::2], data.steps.observations[19::2])
    assert early["eval/normalized"] == 50.0
    assert np.isfinite([early["loss"], late["loss"]]).all()
    assert all(x.size for x in jax.tree.leaves(last)), "an array without elements cannot be saved"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(algorithm=configs.METHODS["bc"]), "algorithm.fn must be one of iql, xql, dual, cql"),
        (dict(dataset__mixing=(0.5, 0.3, 0.2)), "not 'iql', with dataset.mixing="),
        (dict(ope=dict(fn="fqe")), "without groups labels and ope"),
        (dict(online__after=0.01), "are 0 in steps of log_every=4"),
        (dict(online__every=3), "online.every=3 divide log_every=4"),
        (dict(online__after=1.0), "online.after=1.0 must be between 0 and 1"),
    ],
)
def test_refusals(fields, said):
    config = small()
    with config.unlocked():
        for name, value in fields.items():
            if name in ("algorithm", "ope"):
                config[name] = value
            else:
                config.update_from_flattened_dict({name.replace("__", "."): value})
    with pytest.raises(ValueError, match=said):
        online_runs.make_online_run(config)
