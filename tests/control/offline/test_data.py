"""Offline data on the device, and the fit: returns, windows, mixtures, target networks, a delayed policy."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.recipe import Recipe, make_fit, mean
from rl_jax.control.transitions import Transitions
from tests.control.offline.worlds import jitted


def data(**fields):
    """8 steps in episodes of 3, 4 and 1 steps; rewards 0 .. 7."""
    count = np.arange(8)
    steps = Transitions(
        jnp.asarray(count[:, None], jnp.float32), jnp.zeros(8, jnp.int32), jnp.asarray(count, jnp.float32),
        jnp.asarray(count[:, None] + 1, jnp.float32), jnp.asarray(count == 2), jnp.asarray(np.isin(count, (6, 7))),
    )  # fmt: skip
    return made(steps, fields)


@jitted
def made(steps, fields):
    return datasets.make_data(steps, discount=0.5, **fields)


@jitted
def mixed(data, shares):
    return datasets.sample_mixed(data, jax.random.key(0), 4000, shares)


def test_returns_and_times_stop_at_episodes_ends():
    found = data()
    assert found.episode.tolist() == [0, 0, 0, 1, 1, 1, 1, 2] and found.time.tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert found.to_go.tolist() == [3, 3, 2, 18, 15, 11, 6, 7]
    np.testing.assert_allclose(found.returns[:3], [0 + 0.5 * (1 + 0.5 * 2), 2.0, 2.0])
    assert datasets.mean_episode_return(found) == (3 + 18 + 7) / 3


def test_windows_stay_in_their_episode():
    rows, mask = jitted(lambda data, ends: datasets.windows(data, ends, 3))(data(), jnp.array([1, 5, 7]))
    assert mask.tolist() == [[False, True, True], [True, True, True], [False, False, True]]
    assert np.asarray(rows.steps.rewards)[np.asarray(mask)].tolist() == [0, 1, 3, 4, 5, 7]


def test_a_batch_has_its_shares_of_the_sources():
    source = jnp.array([0, 0, 0, 0, 0, 0, 1, 1])
    for shares, wanted in (((0.5, 0.5), 0.5), ((1.0, 0.0), 0.0), ((0.0, 1.0), 1.0), ((0.2, 0.4, 0.4), 2 / 3)):
        batch = mixed(data(source=source), shares)
        assert abs(float(batch.source.mean()) - wanted) < 0.04
    counts = np.bincount(np.asarray(batch.time[batch.source == 0] + 10 * batch.episode[batch.source == 0]))
    assert (counts[counts > 0] > 150).all()  # of 1333 in six steps


def test_every_step_of_a_large_mixture_can_be_drawn():
    """In float32, a running sum of these weights leaves out over half of the second source's steps."""
    first, second, draws = 1_000_000, 2_000_000, 1_000_000
    count = jnp.arange(first + second)
    rows = datasets.OfflineData(*[count] * 8)._replace(source=(count >= first).astype(jnp.int32))
    drawn = jitted(lambda key: datasets.sample_mixed(rows, key, draws, (0.9, 0.1)).episode)(jax.random.key(0))
    drawn = np.asarray(drawn)
    of_second = drawn[drawn >= first]
    assert abs(len(of_second) / draws - 0.1) < 2e-3
    wanted = second * -np.expm1(-len(of_second) / second)  # different ones, of as many draws with replacement
    assert abs(len(np.unique(of_second)) / wanted - 1) < 5e-3


def test_normalised_observations():
    found = data()
    by = jitted(datasets.moments)(found.steps.observations)
    steps = jitted(datasets.normalize_steps)(found.steps, by)
    np.testing.assert_allclose([steps.observations.mean(), steps.observations.std()], [0, 1], atol=1e-3)
    np.testing.assert_allclose(steps.next_observations - steps.observations, 1 / by.std[0], rtol=1e-4)


def test_targets_follow_and_the_delayed_network_waits():
    """p' = p - rate sign(gradient) (Adam's first steps); targets t' = t + .5 (p' - t) at every second update."""

    def loss(params, batch):
        return mean(params["q"] * jnp.ones(4) + params["policy"]), {}

    begin, fit = make_fit(Recipe(loss, ("policy", "q"), ("q",), ("policy",), 2, 0.5), 0.1, batch_size=4)
    state = begin({"policy": jnp.float32(0), "q": jnp.float32(0), "value": jnp.float32(9)}, jax.random.key(0))
    assert set(state.params) == {"policy", "q"}
    seen = []
    step, rows = jitted(lambda state, rows: fit(state, rows, 1)[0]), data()
    for _ in range(4):
        state = step(state, rows)
        seen.append([float(x) for x in (state.params["q"], state.params["policy"], state.trackers["targets"]["q"])])
    wanted = [[-0.1, 0, 0], [-0.2, -0.1, -0.1], [-0.3, -0.1, -0.1], [-0.4, -0.2, -0.25]]
    np.testing.assert_allclose(seen, wanted, atol=1e-5)
    counts = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state) if "count" in str(path[-1])]
    assert sorted(int(x) for x in counts) == [2, 4]  # Adam's corrections of the policy count its own updates
