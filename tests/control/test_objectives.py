"""control/objectives.py and pareto_search.py: credit against loops, slopes against autodiff, archives and rounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import control, envs, ppo
from rl_jax.advantages import steps as step_advantages
from rl_jax.control import objectives, pareto_search
from rl_jax.control.vector import barrier
from rl_jax.core.masked import Mean
from rl_jax.core.types import StepInputs, TokenScores
from rl_jax.envs.worlds import treasure
from rl_jax.losses import value
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from rl_jax.rollout.envs.steps import Transitions, start
from rl_jax.stats import pareto

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAE = functools.partial(step_advantages.gae, discount=0.9, lam=0.8)
ALGORITHM = control.Algorithm(
    advantage=GAE,
    objective=control.Algorithm().objective._replace(value_loss=value.mse),
    epochs=2,
    minibatches=1,
    entropy_coef=0.0,
)


def agent_of(size=2, features=3):
    return make_agent((features,), categorical(3), num_values=size, hidden=(4,))


def rows_of(size=2, features=3, batch=2, steps=4):
    rng = np.random.default_rng(0)
    seen, following = (rng.normal(size=(batch, steps, features)).astype(np.float32) for _ in range(2))
    done = rng.uniform(size=(2, batch, steps)) < 0.3
    return Transitions(
        seen,
        following,
        rng.normal(size=(batch, steps, 3)).astype(np.float32),
        rng.integers(0, 3, size=(batch, steps)),
        rng.normal(size=(batch, steps, size)).astype(np.float32),
        done[0],
        done[1] & ~done[0],
    )


@pytest.mark.parametrize("coefs", [(0.3, 2.0), None])
def test_the_advantage_is_a_weighted_sum_of_those_of_each_objective(coefs):
    agent, rows, scales = agent_of(), rows_of(), jnp.array([2.0, 0.5])
    params = agent.init(jax.random.key(0))
    plain = ALGORITHM._replace(whiten=False)
    chosen = None if coefs is None else jnp.array(coefs)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def assigned(params):
        found = objectives.assign_objectives(agent, params, rows, lambda x: x, plain, chosen, scales)[0]
        values = [agent.value(params, x.reshape(8, 3)) for x in (rows.observations, rows.next_observations)]
        return found.returns, found.policy.advantages, values

    ours, advantage, known = jax.device_get(assigned(params))
    weights = rows.observations[..., -2:] if coefs is None else np.broadcast_to(np.float32(coefs), rows.rewards.shape)
    expected = np.zeros((2, 4))
    for k in range(2):
        values, following = (x[:, k].reshape(2, 4) for x in known)
        advantages, returns = GAE(rows.rewards[..., k] / scales[k], values, following, rows.terminated, rows.truncated)
        expected += weights[..., k] * np.asarray(advantages)
        np.testing.assert_allclose(ours[:, 0, k], np.ravel(returns), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage, expected.reshape(8, 1), rtol=1e-4, atol=1e-5)


def test_the_critics_losses_are_summed():
    rng = np.random.default_rng(1)
    values, returns, old = (rng.normal(size=(5, 1, 3)).astype(np.float32) for _ in range(3))
    scores = TokenScores(jnp.zeros((5, 1)), jnp.zeros((5, 1)))
    ones = jnp.ones((5, 1))
    policy = ppo.PolicyBatch(StepInputs(None, None), ones > 0, 0.0 * ones, 0.0 * ones, 0.0 * ones, None, extras={})
    total, metrics = objectives.objectives_loss(scores, values, ppo.PPOBatch(policy, old, returns), ALGORITHM)
    expected = 0.5 * np.square(values - returns).sum()
    assert metrics["value/loss"].total == pytest.approx(expected, rel=1e-5)
    assert total.value() == pytest.approx(0.5 * expected / 5, rel=1e-5)


def test_slopes_are_gradients_of_the_utilities():
    weights, ideal = jnp.array([0.2, 0.5, 0.3]), jnp.ones(3)
    utilities = {
        "linear": lambda j: weights @ j,
        "chebyshev": lambda j: -jnp.max(weights * (ideal - j)),
        "maxmin": jnp.min,
    }
    for found in np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32):
        for name, utility in utilities.items():
            ours = objectives.slope(name, found, weights, ideal)
            np.testing.assert_allclose(ours, jax.grad(utility)(found), rtol=1e-6, err_msg=name)


def test_the_mean_return_is_that_of_the_episodes_and_forgets():
    known = objectives.MeanReturns(jnp.zeros(2), jnp.float32(0.0))
    np.testing.assert_array_equal(known.value(), [0, 0])
    batches = [((6.0, 2.0), 2.0), ((0.0, 0.0), 0.0), ((1.0, 4.0), 1.0)]
    for totals, count in batches:
        metrics = {f"episode/objective_{k}": Mean(jnp.float32(x), jnp.float32(count)) for k, x in enumerate(totals)}
        known = objectives.remember(known, metrics, jnp.array([1.0, 2.0]), 0.5)
    np.testing.assert_allclose(known.value(), [(3 + 1) / 2, (0.5 + 2) / 2])  # half of two episodes, and one
    many = objectives.MeanReturns(jnp.array([[2.0, 4.0], [3.0, 9.0]]), jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(many.value(), [[1, 2], [1, 3]])


def run_of(make, env, updates, *, size, spread=3, **keywords):
    """(the last ControlState, its policy's outputs in its worlds, metrics by update), in one compiled program."""
    agent = make_agent((1,), categorical(spread), num_values=size, hidden=(4,))
    init, update, policy_of = make(agent, env, ALGORITHM, optax.adam(0.05), num_steps=1, **keywords)

    def whole(key):
        state, metrics = jax.lax.scan(lambda state, _: update(state), init(key), None, updates)
        return state, policy_of(state)(start(env, key))[0], metrics

    return jax.jit(whole, compiler_options=QUICK)(jax.random.key(0))


def test_with_one_objective_it_is_ppo():
    env = envs.vectorize(treasure.arms(rewards=((1.0,), (0.2,), (0.0,))), 8)
    ours = run_of(control.make_objectives_update, env, 3, size=1)
    plain = run_of(control.make_update, envs.scalarized(env), 3, size=1)
    np.testing.assert_allclose(ours[0].train.params, plain[0].train.params, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[2]["loss"].value(), plain[2]["loss"].value(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[2]["episode/return"].total, plain[2]["episode/return"].total)


@pytest.mark.slow
def test_maxmin_finds_the_arm_that_is_best_for_the_worst_off():
    """Arms pay (1, 0), (.6, .55), (0, 1): each objective alone, and the best for one, is another arm."""
    env = envs.vectorize(treasure.arms(), 64)
    state, outputs, _ = run_of(control.make_objectives_update, env, 120, size=2, utility="maxmin")
    assert int(jnp.argmax(outputs[0])) == 1
    assert float(jnp.min(state.train.trackers["objectives"].value())) > 0.45


def test_the_archive_is_the_front_of_all_policies_so_far():
    rng = np.random.default_rng(3)
    everything, archive = [], pareto_search.Archive(jnp.zeros((4, 1)), jnp.full((4, 2), -jnp.inf), jnp.zeros(4, bool))
    add = jax.jit(pareto_search.archived, compiler_options=QUICK)
    for turn in range(3):
        points = rng.normal(size=(3, 2)).astype(np.float32)
        everything += points.tolist()
        params = jnp.arange(3.0)[:, None] + 3 * turn
        archive = add(archive, params, jnp.asarray(points))
        kept = np.asarray(archive.kept)
        assert {*map(tuple, np.asarray(archive.points)[kept].tolist())} <= {*map(tuple, everything)}
        for row, point in zip(np.asarray(archive.params)[kept, 0], np.asarray(archive.points)[kept], strict=True):
            np.testing.assert_allclose(everything[int(row)], point)
    whole = np.asarray(everything)
    front = whole[pareto.front(whole)]
    assert len(front) > 4 or {*map(tuple, front.tolist())} == {*map(tuple, np.asarray(archive.points)[kept].tolist())}
    ends = np.asarray(archive.points)[kept].max(axis=0)
    np.testing.assert_allclose(ends, whole.max(axis=0))  # the ends are the least crowded: they are never dropped


def test_a_schedule_goes_on_and_adam_starts_again():
    """The first step of Adam is the learning rate of its time, whatever the gradient."""
    optimizer = optax.chain(optax.clip(9.0), optax.adam(optax.linear_schedule(0.1, 0.0, 10), b2=0.9, eps=0.0))
    params, slope = jnp.zeros(2), jnp.array([2.0, -0.5])
    old = optimizer.init(params)
    for _ in range(5):
        _, old = optimizer.update(slope, old)
    moved, new = optimizer.update(slope, pareto_search.restarted(optimizer.init(params), old))
    np.testing.assert_allclose(moved, [-0.05, 0.05], rtol=1e-5)
    assert (new[1][0].count, new[1][1].count) == (1, 6)


def sea_of(agent):
    """(init, update) of three policies in a small sea, whose first round ends with the first update."""
    env = envs.vectorize(treasure.environment(columns=2, limit=50), 4)
    keywords = dict(num_steps=1, parts=2, first=1, length=1, size=3, max_steps=2)
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.0, 10))
    return control.make_front_update(agent(env), env, ALGORITHM, optimizer, **keywords)[:2]


def sea_agent(env):
    return make_agent(env.observation_space.shape, categorical(4), num_values=2, hidden=(4,))


def test_updates_draw_from_other_keys_than_the_first_params():
    key = jax.random.key(0)
    began = jax.jit(sea_of(sea_agent)[0], compiler_options=QUICK)(key)
    drawn = {tuple(jax.random.key_data(jax.random.fold_in(began.train.rng, m)).tolist()) for m in range(3)}
    for first in (key, jax.random.split(key)[0]):
        assert not drawn & {tuple(x) for x in jax.random.key_data(jax.random.split(first, 3)).tolist()}


@pytest.mark.slow
def test_a_round_starts_with_new_episodes_and_optimizers():
    init, update = sea_of(sea_agent)
    state = jax.jit(lambda key: update(init(key))[0], compiler_options=QUICK)(jax.random.key(0))
    assert not state.worlds.episode_length.any() and not state.worlds.episode_return.any()
    adam, schedule = state.train.opt_state
    assert not adam.count.any() and set(schedule.count.tolist()) == {int(state.train.step)} == {2}


def test_bounds_lie_below_the_start_whatever_its_sign():
    found = pareto_search.bounds_of(jnp.array([10.0, -10.0, 0.0]), 0.9)
    np.testing.assert_allclose(found, [9.0, -11.0, 0.0])


def test_the_barriers_slope_pulls_back_outside_of_the_bound():
    slope = jax.grad(lambda j: barrier(j, jnp.array([0.0, 0.5]), jnp.int32(0)))
    np.testing.assert_allclose(slope(jnp.array([0.3, 1.0])), [1.0, 0.05 / 0.5], rtol=1e-5)
    assert slope(jnp.array([0.3, 0.4]))[1] > 10.0


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(utility="best"), "utility='best' is none of linear"),
        (dict(weights=(1.0,)), r"weights=\(1.0,\) must be 2 numbers"),
        (dict(axis_name="envs"), "mesh=seeds:N"),
        (dict(algorithm=ALGORITHM._replace(normalize_rewards=True)), "know no normalize_rewards=True"),
        (dict(algorithm=ALGORITHM._replace(minibatches=3)), "do not divide into 3"),
        (dict(env="probes/matching"), "vector of rewards"),
        (dict(parts=5, size=4), "size=4 must be 6 or more"),
        (dict(parts=0, size=4), "updater.parts=0 must be 1 or more"),
        (dict(scales=(1.0, 0.0)), r"updater.scales=\(1.0, 0.0\) must be above 0"),
        (dict(scales=(-1.0, 1.0), size=6), r"updater.scales=\(-1.0, 1.0\) must be above 0"),
        (dict(algorithm=ALGORITHM._replace(normalize_observations=True), size=6), "read plain observations"),
    ],
)
def test_what_has_no_meaning_is_refused(fields, message):
    fields = dict(fields)
    env = envs.load_vector(fields.pop("env", "objectives/arms"), 8)
    make = control.make_front_update if "size" in fields else control.make_objectives_update
    with pytest.raises(ValueError, match=message):
        make(agent_of(features=1), env, fields.pop("algorithm", ALGORITHM), optax.sgd(0.1), num_steps=1, **fields)
