"""bq_nco: parts of the data's tours, the gap to the shortest tours, what it learns, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.control import offline as control_offline
from experiments.parts import control_setup, offline_data, tour_runs
from rl_jax.control.offline import recipe as recipes
from rl_jax.control.offline.recipe import Batch
from rl_jax.control.offline.tours import bq_nco
from rl_jax.envs.worlds import salesman
from rl_jax.models.agents.distributions import categorical
from tests.control.offline.worlds import jitted, keys

CITIES, UPDATES = 6, 250


def small(**fields):
    """Tours of 6 cities; fields as dataset__num_envs."""
    config = configs.get_config("salesman,bq_nco")
    config.env.cities, config.tours = CITIES, dict(cities=(CITIES, 8), smallest=2, beam=1)
    config.dataset.update(num_envs=150, num_steps=11)  # two tours and a step of a third
    config.sequence.update(width=16, layers=1, heads=2)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@functools.cache
def loaded():
    config = small()
    networks = offline_data.make_offline_networks(config, control_setup.load_env(config, 1))
    return networks, jitted(offline_data.make_loader(config, networks, 1.0))(jax.random.key(0))


def test_a_batch_is_of_parts_of_whole_tours():
    """Sizes are uniform from the smallest to the whole; the action is the first of a shortest way."""
    sample = tour_runs.make_sample(150, 11, smallest=2)
    batch = jitted(sample, static_argnums=2)(loaded()[1].data, jax.random.key(1), 512)
    rows = np.asarray(batch.steps.observations[:, 2:]).reshape(512, -1, 3)
    counts = np.bincount(rows[:, :, 2].sum(1).astype(int), minlength=CITIES)
    assert counts.sum() == 512 and not counts[:2].any() and (counts[2:] > 90).all()
    closed = np.abs(batch.steps.observations[:, :2]).sum(1) < 1e-6  # whole tours end where they begin
    np.testing.assert_array_equal(closed, rows[:, :, 2].sum(1) == CITIES - 1)

    def first_step(observation, action):
        """(the shortest way, the shortest one that begins with the action)."""
        own = observation[2:].reshape(-1, 3)
        places, left, end = own[:, :2], own[:, 2] > 0.5, observation[:2]
        rest = left & (jnp.arange(len(left)) != action)
        best = salesman.shortest_path(jnp.zeros(2), places, left, end)[0]
        return best, jnp.linalg.norm(places[action]) + salesman.shortest_path(places[action], places, rest, end)[0]

    best, taken = jitted(jax.vmap(first_step))(batch.steps.observations, batch.steps.actions)
    np.testing.assert_allclose(taken, best, rtol=1e-4)


def test_the_loss_is_the_cross_entropy_to_the_next_city():
    logits, actions = np.array([[1.0, 0.5, -1e9], [0.0, 2.0, 1.0]], np.float32), np.array([0, 2])
    nets = small_nets(logits)
    data = loaded()[1].data
    data = data._replace(steps=data.steps._replace(observations=jnp.zeros((2, 3)), actions=jnp.asarray(actions)))
    loss, metrics = bq_nco(nets).loss({"policy": jnp.float32(1.0)}, Batch(data, {}, None))
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(loss.value(), -log_probs[[0, 1], actions].mean(), rtol=1e-6)
    assert metrics["policy/agreement"].value() == 0.5


def small_nets(logits):
    class Nets:
        distribution = categorical(logits.shape[1])

        @staticmethod
        def policy(params, observations):
            return params["policy"] * logits

    return Nets


def test_the_gap_is_that_of_enumeration():
    """Of always going to the nearest city, on the same instances; as many beams as there are tours find the best."""
    config, key = small(eval__num_episodes=8, tours__cities=(5,), tours__beam=24), jax.random.key(2)

    def nearest(seen):
        return jnp.where(seen[:, 4::3] > 0.5, -jnp.arange(4.0)[None], -1e9)

    found = jitted(lambda key: tour_runs.gaps(config, nearest, key))(key)
    cities = jax.vmap(salesman.environment(cities=5).reset)(jax.random.split(key, 8))[0][0]
    lengths = [
        salesman.length(own, salesman.nearest_tour(own)) / salesman.best_tour(own)[0] for own in np.asarray(cities)
    ]
    assert found["eval/gap_5"] == pytest.approx(100 * (np.mean(lengths) - 1.0), rel=1e-3) and found["eval/gap_5"] > 1.0
    assert found["eval/beam_5"] == pytest.approx(0.0, abs=1e-4)


@functools.cache
def learned():
    """{name: gaps [SEEDS, 2]}, percent: of untrained networks, and after UPDATES updates."""
    config, (networks, own) = small(), loaded()
    method = tour_runs.tour_method(config, networks, config.algorithm.to_dict())
    model = tour_runs.make_model(config)

    def one(key):
        init_key, fit_key, eval_key = jax.random.split(key, 3)
        options = dict(batch_size=64, sample=method.sample)
        begin, fit = recipes.make_fit(method.recipe, 1e-2, **options)
        state = begin(model.init(init_key), fit_key)
        later, _ = fit(state, own.data, UPDATES)

        def gaps(params):
            return tour_runs.gaps(config, lambda seen: model.policy(params, seen), eval_key)

        return jax.lax.map(gaps, jax.tree.map(lambda *x: jnp.stack(x), state.params, later.params))

    return jax.device_get(jitted(jax.vmap(one))(keys()))


@pytest.mark.slow
def test_it_learns_tours_also_of_more_cities_than_it_saw():
    """On 3 of 3 seeds; going to the nearest city is about 5 and 9 percent longer than the shortest tour."""
    for size, bound in ((CITIES, 4.0), (8, 8.0)):
        before, after = learned()[f"eval/gap_{size}"].T
        assert (before > 10.0).all() and (after < bound).all(), (size, before, after)


def test_a_run_measures_the_gap_at_each_size():
    """Traced only: what the program compiles."""
    init, advance, params = tour_runs.make_tour_run(configs.get_config("salesman,bq_nco,smoke"))
    state = jax.eval_shape(lambda key: init(key, {}), jax.random.key(0))
    after, metrics = jax.eval_shape(lambda state: advance(state, {}, 2), state)
    assert set(params(state)) == {"policy"} and jax.tree.structure(after) == jax.tree.structure(state)
    assert {"eval/gap_5", "eval/beam_5", "eval/normalized", "eval/return", "policy/agreement"} <= set(metrics)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(env__name="probes/gridworld"), "env.name='probes/gridworld': algorithm.fn='bq_nco' is of tours"),
        (dict(online={}), "bq_nco' imitates optimal tours: leave out online"),
        (dict(dataset__behaviours=("medium",)), r"it needs dataset.behaviours=\('expert',\)"),
        (dict(dataset__path="somewhere"), "it needs .* dataset.path=''"),
        (dict(dataset__mixing=(1.0,)), r"it needs .* dataset.mixing=\(\)"),
        (dict(dataset__normalize_observations=True), "dataset.normalize_observations=False"),
        (dict(dataset__num_steps=4), "dataset.num_steps=4 has no whole tour of env.cities=6"),
        (dict(tours__smallest=6), "tours.smallest=6 must be from 1 to below env.cities=6"),
        (dict(tours__cities=(6, 17)), r"tours.cities=\(6, 17\) must be from 3 to 16"),
        (dict(tours__beam=0), "tours.beam=0 must be 1, none, or more"),
        (dict(env__frame_stack=2), "reads observations as they are: leave out env.features and env.frame_stack"),
        (dict(sequence__heads=3), "sequence.width=16 does not divide into sequence.heads=3"),
    ],
)
def test_refusals(fields, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        control_offline.run(small(**fields), tmp_path)


def test_cities_are_named(tmp_path):
    config = small()
    del config.env["cities"]
    with pytest.raises(ValueError, match="imitates optimal tours of env.cities cities: set it"):
        control_offline.run(config, tmp_path)


@pytest.mark.parametrize("words", ["gridworld,bq_nco", "salesman,bq_nco,online", "bq_nco,preferred", "bq_nco,fqe"])
def test_words_that_do_not_go_together(words):
    with pytest.raises(ValueError, match="bq_nco imitates shortest tours: it goes with salesman only"):
        configs.get_config(words)
