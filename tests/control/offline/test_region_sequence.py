"""Regions as tokens (arXiv 2308.16379): the grid, which token reads what, the loss, and actions of two modes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.parts import offline_runs
from rl_jax.control.offline import recipe as recipes
from rl_jax.control.offline import sequence
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.recipe import Batch
from rl_jax.control.transitions import Transitions
from rl_jax.models.agents.offline_networks import bounded_normal
from rl_jax.models.agents.region_transformer import grid_cells, make_region_transformer
from tests.control.offline.worlds import jitted

LENGTH, CELLS = 3, 3
SIZES = dict(width=8, layers=1, heads=2, context=LENGTH)


def make(size=1, **fields):
    distribution = bounded_normal(-np.ones(size), np.ones(size))
    return make_region_transformer((2,), distribution, lambda actions: actions, size, **(SIZES | fields))


@functools.cache
def model():
    return make(size=2, cells=CELLS)


def two_modes(count=64):
    """Episodes of 4 steps; the actions are -.8 or .8, and nothing that is seen tells which."""
    rng = np.random.default_rng(0)
    seen = jnp.asarray(rng.normal(size=(count, 2)), jnp.float32)
    actions = jnp.asarray(rng.choice([-0.8, 0.8], (count, 1)), jnp.float32)
    done = jnp.arange(count) % 4 == 3
    rows = Transitions(seen, actions, jnp.ones(count), 0.5 * seen, done, jnp.zeros(count, bool))
    return make_data(rows, discount=0.9)


def windows(seed=0, size=2):
    """A Sequence-like batch of random windows, the second of which starts one step late."""
    rng = np.random.default_rng(seed)
    data = two_modes(2 * LENGTH)
    data = data._replace(
        steps=data.steps._replace(actions=jnp.asarray(rng.uniform(-1, 1, (2 * LENGTH, size)), jnp.float32)),
        to_go=jnp.asarray(rng.normal(size=2 * LENGTH), jnp.float32),
    )
    data = jax.tree.map(lambda x: x.reshape(2, LENGTH, *x.shape[1:]), data)
    return sequence.Windows(data, jnp.asarray([[True] * LENGTH, [False] + [True] * (LENGTH - 1)]))


def test_cells_of_a_grid():
    actions = np.array([[-1.0, -0.34], [-0.33, 0.0], [0.33, 0.34], [1.0, -7.0], [7.0, 0.99]], np.float32)
    expected = [[sum(a >= edge for edge in (-1 / 3, 1 / 3)) for a in row] for row in actions]
    np.testing.assert_array_equal(grid_cells(jnp.asarray(actions), 3), expected)
    assert not grid_cells(jnp.asarray(actions), 1).any()


def test_what_a_token_reads():
    """A region reads no action of its step, an action its step's region, the next state both; acting reads neither."""
    params = model().init(jax.random.key(0))
    both = jitted(lambda steps: (model().apply(params, steps), model().act(params, steps)))
    steps = sequence.sequence_of(model(), windows(), 1.0)
    last = steps.actions.at[:, -1]
    near = steps._replace(actions=last.set(jnp.array([0.5, 0.5])))
    same_cell, other_cell = near._replace(actions=last.set(0.9)), near._replace(actions=last.set(-0.9))
    (outputs, following, returns, logits), acted = both(near)
    (a, b, c, d), e = both(same_cell)
    for unmoved, was in ((a, outputs), (d, logits), (e, acted), (b[:, :-1], following[:, :-1])):
        np.testing.assert_allclose(unmoved, was, atol=1e-5)
    assert np.abs(b[:, -1] - following[:, -1]).max() > 1e-3 and np.abs(c[:, -1] - returns[:, -1]).max() > 1e-3
    (a, _, _, d), e = both(other_cell)
    np.testing.assert_allclose(d, logits, atol=1e-5)
    np.testing.assert_allclose(e, acted, atol=1e-5)
    np.testing.assert_allclose(a[:, :-1], outputs[:, :-1], atol=1e-5)
    assert np.abs(a[:, -1] - outputs[:, -1]).max() > 1e-3
    # The action is that of the likeliest cell: of an action in its middle.
    middle = (2 * jnp.argmax(logits[:, -1], axis=-1) + 1) / CELLS - 1.0
    np.testing.assert_allclose(both(near._replace(actions=last.set(middle)))[0][0][:, -1], acted, atol=1e-5)


def test_the_loss_of_the_regions():
    params, batch = model().init(jax.random.key(0)), Batch(windows(), {}, jax.random.key(1))
    terms = jitted(lambda params: sequence.region_terms(model(), params, batch, 2.0))
    action, rest, region = terms(params)
    steps = sequence.sequence_of(model(), batch.data, 2.0)
    outputs, following, returns, logits = map(np.asarray, jitted(model().apply)(params, steps))
    data, mask = jax.device_get(batch.data)
    expected = np.zeros(3)
    for n in range(2):
        for t in range(LENGTH):
            if not mask[n, t]:
                continue
            for i, cell in enumerate(np.minimum(np.floor((data.steps.actions[n, t] + 1) / 2 * CELLS), CELLS - 1)):
                shares = np.exp(logits[n, t, i] - logits[n, t, i].max())
                expected[2] -= np.log(shares[int(cell)] / shares.sum())
            expected[0] += np.mean((np.tanh(outputs[n, t, :2]) - data.steps.actions[n, t]) ** 2)
            expected[1] += np.mean((following[n, t] - data.steps.next_observations[n, t]) ** 2)
            expected[1] += (returns[n, t] - (data.to_go[n, t] - data.steps.rewards[n, t]) / 2.0) ** 2
    np.testing.assert_allclose([action.total, rest.total, region.total], expected, rtol=1e-5)
    assert action.count == rest.count == region.count == 5.0


def test_one_cell_has_no_loss_and_bad_choices_are_refused():
    one = make(size=2, cells=1)
    params, batch = one.init(jax.random.key(0)), Batch(windows(), {}, jax.random.key(1))
    assert jitted(lambda params: sequence.region_terms(one, params, batch, 1.0)[2].value())(params) == 0.0
    with pytest.raises(ValueError, match="sequence.cells=0 must be 1 or more"):
        make(cells=0)
    with pytest.raises(ValueError, match="width=8 does not divide into sequence.heads=3"):
        make(heads=3)
    with pytest.raises(ValueError, match="region_dt is for continuous actions, cartpole has a finite set"):
        configs.get_config("cartpole,region_dt")
    config = configs.get_config("gridworld,mo_dt,smoke")
    config.algorithm.fn = "region_dt"
    with pytest.raises(ValueError, match="has regions of continuous actions"):
        offline_runs.make_offline_run(config)[0](jax.random.key(0), {})


@pytest.mark.slow
def test_of_two_modes_one_is_taken_and_not_their_mean():
    """On 3 of 3 seeds; without the region's loss a cell without data is chosen, and without regions the mean, 0."""
    data, own = two_modes(1000), make(cells=CELLS)
    sample = functools.partial(sequence.sample_windows, context=LENGTH)

    def run(key):
        begin, fit = recipes.make_fit(sequence.region_dt(own), 1e-2, batch_size=32, sample=sample)
        state, metrics = fit(begin(own.init(key), key), data, 100)
        steps = sequence.sequence_of(own, sample(data, key, 16), 1.0)
        return jnp.abs(own.distribution.mode(own.act(state.params, steps))), metrics

    chosen, metrics = jitted(jax.vmap(run))(jax.random.split(jax.random.key(0), 3))
    assert (np.abs(chosen - 0.8) < 0.2).all(), chosen
    # A coin is log 2 nats; without its region an action's error is .64.
    assert (metrics["loss/region"] < 1.0).all() and (metrics["loss/action"] < 0.1).all(), metrics
