"""control/replay_methods/planned.py (MuZero): its loss against numpy, its gradient by hand; what the replay keeps; from
every seed it learns a corridor, whose values are known, and goes on bit for bit from a checkpoint."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import envs
from rl_jax.control import off_policy, replay_methods, replay_types
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.replay_methods import planned
from rl_jax.envs.worlds import probes
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, latent_model
from rl_jax.training import checkpoint

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAMMA, N_STEP, UNROLL = 0.8, 3, 2
WINDOW = N_STEP + UNROLL + 1


def made(model, head=None, **fields):
    parts = replay_methods.ReplayParts(None, None, head or value_heads.scalar(), model=model)
    return replay_methods.muzero(parts, discount=GAMMA, steps=N_STEP, **(dict(unroll=UNROLL, simulations=4) | fields))


def line(states, actions, params):
    """s' = a s + b u in one dimension, a = params[1]."""
    return params[1] * states + 0.3 * actions[:, None]


# Everything is one number: s_0 = w o, s' = a s + .3 u, logits (0, c s), v = d s, r = e s'.
LINE = latent_model.LatentModel(
    init=lambda key: jnp.float32([0.7, 0.9, 0.4, 1.1, 0.6]),
    represent=lambda params, observations: params[0] * observations,
    step=lambda params, states, actions: (line(states, actions, params), params[4] * line(states, actions, params)),
    predict=lambda params, states: (
        jnp.concatenate([jnp.zeros_like(states), params[2] * states], axis=1),
        params[3] * states,
    ),
    num_actions=2,
)


@pytest.fixture(scope="module")
def batch():
    """64 windows with ends and cuts."""
    rng = np.random.default_rng(0)
    shape = (64, WINDOW)
    policies = rng.random(shape)
    rows = planned.SearchedSteps(
        observations=rng.normal(size=(*shape, 1)),
        actions=rng.integers(0, 2, shape).astype(np.int32),
        rewards=rng.normal(size=shape),
        terminated=rng.random(shape) < 0.15,
        truncated=rng.random(shape) < 0.1,
        search_policies=np.stack([policies, 1 - policies], axis=-1),
        search_values=rng.normal(size=shape),
    )
    rows = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else None), rows)
    return ReplayBatch(rows, jnp.where(rows.terminated, 0.0, GAMMA), jnp.ones(64), None)


def by_hand(params, rows, i):
    """The loss of row i, its positions one after the other."""
    w, a, c, d, e = (float(x) for x in params)
    state, ended, cut, total = w * float(rows.observations[i, 0, 0]), False, False, 0.0
    for k in range(UNROLL + 1):
        scale = 1.0 if k == 0 else 1.0 / UNROLL
        if k > 0:
            state = a * state + 0.3 * int(rows.actions[i, k - 1])
            if not cut:  # the reward of the step to here; 0 after the end
                u = 0.0 if ended else float(rows.rewards[i, k - 1])
                total += scale * (e * state - u) ** 2 / 2
            if not (ended or cut):
                ended = bool(rows.terminated[i, k - 1])
                cut = bool(rows.truncated[i, k - 1]) and not ended
        if cut:
            continue
        z, weight = 0.0, 1.0
        for j in range(k, k + N_STEP + 1):
            if ended:
                break
            if j == k + N_STEP or (rows.truncated[i, j] and not rows.terminated[i, j]):
                z += weight * float(rows.search_values[i, j])
                break
            z, weight = z + weight * float(rows.rewards[i, j]), weight * GAMMA
            if rows.terminated[i, j]:
                break
        total += scale * (d * state - z) ** 2 / 2
        if not ended:
            logits = np.array([0.0, c * state])
            log_probs = logits - np.log(np.sum(np.exp(logits)))
            total -= scale * np.sum(np.asarray(rows.search_policies[i, k]) * log_probs)
    return total


def test_the_loss_is_that_of_a_loop(batch):
    method = made(LINE)
    params = LINE.init(None)

    def total(params, searched):
        rows = batch.steps._replace(search_policies=searched[0], search_values=searched[1], rewards=searched[2])
        loss, errors, metrics = method.critic_loss({"critic": params}, {}, batch._replace(steps=rows), None)
        return jnp.sum(loss), (loss, errors, metrics)

    data = batch.steps.search_policies, batch.steps.search_values, batch.steps.rewards
    both = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True), compiler_options=QUICK)
    (slopes, stopped), (loss, errors, metrics) = both(params, data)
    host = jax.tree.map(np.asarray, batch.steps)
    np.testing.assert_allclose(loss, [by_hand(params, host, i) for i in range(64)], rtol=2e-5)
    assert errors.shape == (64,) and set(metrics) > {"value/error", "policy/cross_entropy"} and method.window == WINDOW
    assert slopes.all() and not any(slope.any() for slope in stopped), "what a search found is data"


def test_the_gradient_is_halved_at_the_start_of_each_step():
    """Of v_0 + v_1 + v_2 = d (w o + a w o + a^2 w o), actions 0: by w a half and a quarter of its later parts."""
    params, x = LINE.init(None), jnp.ones((1, 1))
    actions = jnp.zeros((1, 2), jnp.int32)
    slopes = jax.grad(lambda params: jnp.sum(planned.unrolled(LINE, params, x, actions)[1]))(params)
    w, a, _, d, _ = (float(x) for x in params)
    np.testing.assert_allclose(slopes[0], d * (1 + a / 2 + a * a / 4), rtol=1e-6)
    np.testing.assert_allclose(slopes[1], d * (w + a * w + a * w / 2), rtol=1e-6)
    np.testing.assert_allclose(slopes[3], w * (1 + a + a * a), rtol=1e-6)


def test_a_head_of_atoms_goes_with_it_and_wrong_numbers_do_not(batch):
    head = value_heads.categorical(low=-2.0, high=2.0, num_atoms=5)
    model = latent_model.make_latent_model((1,), 2, head.num_outputs, width=3, hidden=(4,))
    method = made(model, head)
    params = method.init(jax.random.key(0))
    loss, _, _ = jax.eval_shape(method.critic_loss, params, {}, batch, jax.random.key(0))
    assert loss.shape == (64,)
    states = model.represent(params["critic"], jnp.ones((2, 1)))
    assert states.shape == (2, 3) and (jnp.min(states, axis=1) == 0).all() and (jnp.max(states, axis=1) == 1).all()
    with pytest.raises(ValueError, match="search='minimax' is none of gumbel, puct"):
        made(LINE, search="minimax")
    with pytest.raises(ValueError, match="simulations=0 and unroll=2 must be 1 or more"):
        made(LINE, simulations=0)
    with pytest.raises(ValueError, match="4 warm-up steps of each environment must be at least the 6 of a draw"):
        replay_types.check(replay_types.ReplaySettings(16, 4, 8, steps=N_STEP), 4, method)


LENGTH = 3  # of the corridor: 1 at its end, 12 steps at most


@functools.cache
def corridor():
    """(the model, init and update of three seeds, compiled once) of MuZero in the corridor."""
    env = envs.vectorize(probes.corridor(length=LENGTH), 8)
    model = latent_model.make_latent_model((LENGTH + 1,), 2, 1, width=6, hidden=(16,))
    law = exploration.exploring(exploration.searched(2), exploration.uniform_actions(exploration.greedy(2), None, None))
    settings = replay_types.ReplaySettings(
        slots=128, warmup=8, batch_size=32, steps=N_STEP, discount=GAMMA, gradient_steps=2
    )
    adam = {"critic": optax.adam(0.01)}
    init, update, _ = off_policy.make_replay_update(made(model), law, env, settings, adam, num_steps=1)

    def updates(state):
        return jax.lax.scan(lambda state, _: (update(state)[0], None), state, None, 100)[0]

    return model, *(jax.jit(functools.partial(jax.lax.map, fn), compiler_options=QUICK) for fn in (init, updates))


@pytest.mark.slow
def test_it_learns_the_corridor_from_every_seed_and_resumes_bit_for_bit(tmp_path):
    model, init, updates = corridor()
    state = init(jax.random.split(jax.random.key(0), 3))
    rows = state.replay.rows
    policies = np.asarray(rows.search_policies)[:, :, :8]
    np.testing.assert_allclose(policies.sum(axis=-1), 1.0, rtol=1e-5)
    assert np.asarray(rows.search_values)[:, :, :8].any() and set(np.unique(rows.actions)) == {0, 1}
    half = updates(state)
    manager = checkpoint.Checkpointer(tmp_path, every=1)
    manager.save(1, {"state": half}, {})
    whole = updates(half)
    restored = manager.restore({"state": half}, 1)[0]["state"]
    manager.close()
    again = updates(restored)
    for x, y in zip(*(jax.tree.leaves(state) for state in (whole, again)), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)

    unravel = replay_types.unravelers(made(model))["critic"]
    right = jnp.ones((LENGTH, UNROLL), jnp.int32)
    expected = np.zeros((LENGTH, UNROLL + 1))
    for place in range(LENGTH):  # GAMMA ** (steps to the end - 1), and 0 from the end on
        for k in range(min(UNROLL + 1, LENGTH - place)):
            expected[place, k] = GAMMA ** (LENGTH - 1 - place - k)
    for seed in range(3):
        params = unravel(whole.train.params["critic"][seed])
        logits, values, rewards = planned.unrolled(model, params, jnp.eye(LENGTH, LENGTH + 1), right)
        np.testing.assert_allclose(values[..., 0], expected, atol=0.1)
        np.testing.assert_allclose(rewards[..., 0], expected[:, :-1] == 1, atol=0.1)
        assert (jax.nn.softmax(logits[:, 0])[:, 1] > 0.9).all(), "the policy has learned what the searches found"
