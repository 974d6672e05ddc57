"""PSEC: the composed layers against numpy and `models.lora`, what each stage learns, and a run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import offline as configs
from experiments.parts import skill_runs
from rl_jax.control.offline import bc, psec, skills
from rl_jax.control.offline.data import make_data
from rl_jax.control.offline.recipe import Batch, make_fit
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds.pointmass import controller
from rl_jax.models import lora
from rl_jax.models.agents.offline_networks import layers_of, make_networks
from rl_jax.models.agents.skills import composed_linear, make_skill_networks
from tests.control.offline.worlds import QUICK, jitted

K, RANK, SCALE, HIDDEN = 2, 3, 2.0, (32,)
GOALS = ((0.0, 0.0), (0.8, 0.0), (0.0, 0.8), (0.8, 0.8))
SINGLE = make_networks((4,), low=np.full(2, -1.0), high=np.full(2, 1.0), hidden=HIDDEN)
NETS = make_skill_networks((4,), SINGLE, skills=K, rank=RANK, scale=SCALE, hidden=HIDDEN)
RECIPE = psec(NETS, base=bc)


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@functools.cache
def trained_ish():
    """Params whose adapters are not 0."""
    params = jitted(NETS.init)(jax.random.key(0))
    assert not np.any(params["policy"]["skills"]["b"])  # a new skill is the base
    own = params["policy"]["skills"]
    moved = {"a": own["a"], "b": jnp.asarray(arrays(own["b"].shape)[0])}
    return params | {"policy": params["policy"] | {"skills": moved}}


def test_a_composed_layer_against_loops():
    x, kernel, bias, a, b, coefs = arrays((5, 4), (4, 3), (3,), (K, 4, RANK), (K, RANK, 3), (5, K))
    found = jitted(composed_linear)(x, {"kernel": kernel, "bias": bias}, a, b, coefs)
    for n in range(5):  # the weights of a state make the matrix of that state
        whole = kernel + sum(coefs[n, k] * a[k] @ b[k] for k in range(K))
        np.testing.assert_allclose(found[n], x[n] @ whole + bias, rtol=1e-4, atol=1e-5)


def test_one_hot_is_the_single_adapter_and_zero_the_base():
    params, observations = trained_ish(), arrays((5, 4))[0]
    policy, composed = params["policy"], jitted(NETS.composed)
    base = jitted(SINGLE.policy)({"policy": policy["base"]}, observations)
    np.testing.assert_allclose(composed(policy, observations, jnp.zeros((5, K))), base, rtol=1e-5, atol=1e-5)
    sizes, config = (4, *HIDDEN, 4), lora.LoraConfig(rank=RANK, alpha=SCALE * RANK, targets="layer")
    layers = {f"layer_{i}": layer for i, layer in enumerate(layers_of(policy["base"], sizes))}
    for k in range(K):
        a, b = policy["skills"]["a"][k], policy["skills"]["b"][k]
        adapters = {
            "layer_0": {"a": a[: 4 * RANK].reshape(4, RANK), "b": b[: 32 * RANK].reshape(RANK, 32)},
            "layer_1": {"a": a[4 * RANK :].reshape(32, RANK), "b": b[32 * RANK :].reshape(RANK, 4)},
        }
        merged = lora.merge(config, layers, adapters)
        (kernel, bias), (last, offset) = [
            (np.asarray(merged[name]["kernel"]), np.asarray(merged[name]["bias"])) for name in ("layer_0", "layer_1")
        ]
        expected = np.maximum(observations @ kernel + bias, 0.0) @ last + offset
        found = composed(policy, observations, jnp.broadcast_to(jnp.eye(K)[k], (5, K)))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
        assert np.abs(np.asarray(found) - base).max() > 0.1


def data_of(count=64):
    """The expert's steps of each of GOALS, [4, count]."""
    observations = jax.random.uniform(jax.random.key(11), (count, 4), minval=-1.0, maxval=1.0)
    none = jnp.zeros(count, bool)

    def one(goal):
        actions = controller(observations, goal=goal)
        return make_data(Transitions(observations, actions, none * 0.0, observations, none, none), discount=0.9)

    return jax.tree.map(lambda *x: jnp.stack(x), *[one(goal) for goal in GOALS])


@functools.cache
def stages():
    """[(params when the stage begins, when it ends, the error of its policy on its own task)] of the four."""
    begin, fit = make_fit(RECIPE, 1e-2, batch_size=64, sample=skills.sample_present)
    data, wanted = data_of(), [controller(data_of().steps.observations[0], goal=goal) for goal in GOALS]

    @jitted
    def stage(train, task):
        train = skill_runs.renewed(train, task, NETS.init, begin)
        after, _ = fit(train, skills.SkillTasks(data, task), 400)
        policy, observations = after.params["policy"], data.steps.observations[0]

        def error(number):
            coefs = skills.stage_coefs(NETS.weights(policy, observations), number)
            actions = SINGLE.distribution.mode(NETS.composed(policy, observations, coefs))
            return jnp.mean(jnp.abs(actions - jnp.stack(wanted)[task]))

        return after, jax.lax.map(error, jnp.arange(K + 2))

    train, found = begin(NETS.init(jax.random.key(10)), jax.random.key(12)), []
    for task in range(K + 2):
        before = train
        train, errors = stage(train, jnp.int32(task))
        found.append(jax.device_get((before.params["policy"], train.params["policy"], errors)))
    return found


@pytest.mark.slow
def test_a_stage_moves_its_own_params_only():
    def moved(before, after):
        same = jax.tree.map(lambda x, y: np.array_equal(x, y), before, after)
        rows = [not np.array_equal(before["skills"]["b"][k], after["skills"]["b"][k]) for k in range(K)]
        assert [not np.array_equal(before["skills"]["a"][k], after["skills"]["a"][k]) for k in range(K)] == rows
        return [not same["base"], *rows, not same["weights"]]

    found = [moved(before, after) for before, after, _ in stages()]
    np.testing.assert_array_equal(found, np.eye(K + 2, dtype=bool))


@pytest.mark.slow
def test_the_composition_does_what_no_skill_does_alone():
    errors = np.stack([row[2] for row in stages()])
    assert (np.diag(errors)[:-1] < 0.2).all(), errors
    assert errors[-1, -1] < 0.7 * errors[-1, :-1].min(), errors


def test_the_first_stage_is_the_base_method():
    params, data = trained_ish(), jax.tree.map(lambda x: x[0], data_of())
    batch = Batch(skills.SkillTasks(data, jnp.int32(0)), {}, jax.random.key(0))
    found = jitted(lambda *args: RECIPE.loss(*args)[0].value())(params, batch)
    plain = jitted(lambda *args: bc(SINGLE).loss(*args)[0].value())
    expected = plain({"policy": params["policy"]["base"]}, batch._replace(data=data))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def small(values=GOALS[:3]):
    config = configs.get_config("psec,smoke")
    config.network.hidden = (4,)
    config.continual["values"] = values
    config.train.update(total_steps=len(values) * 4 * 8, batch_size=8)
    config.dataset.update(num_envs=3, num_steps=5, returns=(-30.0, 0.0))
    config.eval.update(num_episodes=2, max_steps=3)
    return config


@pytest.mark.slow
def test_a_run_of_a_base_and_a_skill_and_a_new_task():
    init, advance, _ = skill_runs.make_skill_run(small())

    first = jax.jit(lambda key: init(key, {}), compiler_options=QUICK)(jax.random.key(0))
    step = jax.jit(lambda state: advance(state, {}, 4), compiler_options=QUICK)
    rows, states = [], [first]
    for _ in range(3):
        state, metrics = step(states[-1])
        rows.append(metrics)
        states.append(state)
    assert [row["task"] for row in rows] == [0, 1, 2] and all(np.isfinite(x) for row in rows for x in row.values())
    # The new task's policy is none of those that it is measured against, and these are as their stages left them.
    assert len({float(rows[2][name]) for name in ("eval/normalized", "eval/single_0", "eval/single_1")}) == 3
    own = [state.train.params["policy"] for state in states]
    np.testing.assert_array_equal(own[1]["base"], own[3]["base"])
    np.testing.assert_array_equal(own[2]["skills"]["b"], own[3]["skills"]["b"])
    assert np.any(own[2]["skills"]["b"]) and not np.array_equal(own[2]["weights"], own[3]["weights"])


def test_a_run_without_a_skill_is_refused():
    with pytest.raises(ValueError, match="psec has a base, skills and a new task"):
        skill_runs.make_skill_run(small(GOALS[:2]))
