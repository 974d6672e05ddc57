"""CLAM (arXiv 2401.00132): encoder and contrast by loops, crops, the partner's world, and what the code tells."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from configs.control import rewards
from experiments.parts import control_auxiliary, control_runs, control_setup
from rl_jax.control import auxiliary
from rl_jax.control.auxiliary import agent_modelling
from rl_jax.envs.worlds import partners
from rl_jax.losses import contrastive
from rl_jax.models.agents import distributions, windows
from rl_jax.models.agents.features import make_net

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def test_the_contrast_by_loops():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 4, 3)).astype(np.float32)
    apart = np.ones((4, 4), bool)
    apart[0, 2] = apart[2, 0] = False  # of one episode: no wrong answers for each other
    codes, expected = np.concatenate([left, right]), []
    for i in range(8):
        right_one = (i + 4) % 8
        others = [j for j in range(8) if j != i and (j == right_one or (j % 4 != i % 4 and apart[i % 4, j % 4]))]
        scores = codes @ codes[i] / 0.5
        expected.append(np.log(np.exp(scores[others]).sum()) - scores[right_one])
    found = jax.jit(functools.partial(contrastive.two_sided, temperature=0.5))(left, right, apart)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.slow
def test_the_encoder_by_loops_and_what_is_not_there():
    """Set Transformer's blocks for each head; the code has length 1, and frames of zeros before it change nothing."""
    net = windows.make_window_encoder(3, 4, width=4, heads=2)
    params = net.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.1, params)  # biases, too
    frames = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    frames[1, :2] = 0.0
    own = jax.tree.map(np.asarray, params)

    def layer(x, at):
        return x @ at["kernel"] + at["bias"]

    def block(at, query, seen):
        q, k, v = layer(query, at["q"]), layer(seen, at["k"]), layer(seen, at["v"])
        out = np.zeros_like(q)
        for h in (slice(0, 2), slice(2, 4)):
            weights = np.exp(q[:, h] @ k[:, h].T / 2.0)  # sqrt of the width, not of a head's
            out[:, h] = q[:, h] + weights / weights.sum(1, keepdims=True) @ v[:, h]
        return out + np.maximum(layer(out, at["out"]), 0.0)

    for row, first in enumerate((0, 2)):
        places = np.arange(4)[:, None] / np.array([1.0, 1.0, 10_000 ** (2 / 3)])
        x = (frames[row] + np.where(np.arange(3) % 2 == 0, np.sin(places), np.cos(places)))[first:]
        x = block(own["second"], *[block(own["first"], x, x)] * 2)
        code = layer(block(own["pool"], own["seed"], x)[0], own["code"])
        found = jax.jit(net.apply)(params, frames.reshape(2, -1))[row]
        np.testing.assert_allclose(found, code / np.linalg.norm(code), rtol=1e-4, atol=1e-5)


def test_crops_are_parts_of_what_was_seen_and_episodes_are_numbered():
    frames = np.zeros((300, 6, 1), np.float32)
    frames[:, 2:, 0] = [3, 4, 5, 6]
    crop = jax.jit(functools.partial(auxiliary.cropped, context=6, shortest=0.3, hidden_share=0.0))
    found = np.asarray(crop(frames.reshape(300, 6), jax.random.key(0)))
    kinds = {tuple(x) for x in found.astype(int)}
    wanted = {tuple([0] * a + list(range(a + 1, b + 1)) + [0] * (6 - b)) for a in range(2, 6) for b in range(a + 2, 7)}
    assert kinds == wanted
    done = jnp.asarray([[False, True, False, True], [False] * 4])
    assert auxiliary.episodes_of(done).tolist() == [[0, 0, 1, 1], [5, 5, 5, 5]]


def test_who_knows_the_partner_earns_its_share():
    """By simulation: the kind's action against the repetition of the last one, and their expectations."""
    env = partners.environment(kinds=3, share=0.7, limit=16)

    def play(key):
        state, _ = env.reset(key)

        def step(state, key):
            after, now = env.step(key, state, state[0].kind)  # beside the time
            return after, (now.reward, now.observation)

        return jax.lax.scan(step, state, jax.random.split(key, 15))[1]

    paid, seen = jax.jit(jax.vmap(play), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 400))
    np.testing.assert_allclose(np.mean(paid), 0.7, atol=0.02)
    theirs = np.argmax(np.asarray(seen)[..., :3], axis=-1)
    np.testing.assert_allclose(np.mean(theirs[:, 1:] == theirs[:, :-1]), 0.49 + 0.045, atol=0.02)
    with pytest.raises(ValueError, match="kinds=1 must be 2 or more"):
        partners.environment(kinds=1)


@pytest.mark.slow
def test_the_code_tells_partners_apart():
    """Partners of one kind get codes that are alike, those of other kinds do not: their cosines differ by .6.

    With the second parts of other partners in place of the right ones nothing is told apart.
    """
    context, count = 8, 32
    encoder = windows.make_window_encoder(3, context, width=16, heads=2)
    made = auxiliary.agent_model(width=16, context=context, make_net=make_net, code=16, hidden_share=0.0)

    def seen(key):
        kind_key, coin_key, other_key = jax.random.split(key, 3)
        kinds = jax.random.randint(kind_key, (count,), 0, 3)
        lost = jax.random.uniform(coin_key, (count, context)) > 0.8
        others = (kinds[:, None] + jax.random.randint(other_key, (count, context), 1, 3)) % 3
        shown = jnp.where(lost, others, kinds[:, None])
        return kinds, jax.nn.one_hot(shown, 3).reshape(count, -1)

    def loss(learned, key):
        _, frames = seen(key)
        features = functools.partial(encoder.apply, learned["window"])
        extras = {"episode": jnp.arange(count)[:, None]}
        return made.loss(learned["auxiliary"], features, frames, None, None, key, extras)

    optimizer = optax.adam(3e-3)

    def train():
        def step(carry, key):
            learned, state = carry
            moves, state = optimizer.update(jax.grad(loss)(learned, key), state)
            return (jax.tree.map(jnp.add, learned, moves), state), None

        keys = jax.random.split(jax.random.key(0), 2)
        learned = {"window": encoder.init(keys[0]), "auxiliary": made.init(keys[1])}
        begun = (learned, optimizer.init(learned))
        learned = jax.lax.scan(step, begun, jax.random.split(jax.random.key(1), 150))[0][0]
        kinds, frames = seen(jax.random.key(2))
        codes = encoder.apply(learned["window"], frames)
        alike, same = codes @ codes.T, kinds[:, None] == kinds[None]
        same_kind = jnp.sum(jnp.where(same, alike, 0.0)) / jnp.sum(same)
        return same_kind - jnp.sum(jnp.where(same, 0.0, alike)) / jnp.sum(~same)

    apart = float(jax.jit(train, compiler_options=QUICK)())
    assert apart > 0.4, apart


def test_the_copy_that_is_read_follows_each_gradient_step():
    params = {"actor": np.float32([1.0]), "slow_window": np.float32([0.0, 4.0]), "window": np.float32([2.0, 2.0])}
    flat, unravel = ravel_pytree(params)
    optimizer = windows.followed(optax.sgd(0.5), unravel, 0.25)
    moves, _ = optimizer.update(jnp.full(5, 2.0), optimizer.init(flat), flat)
    moved = unravel(flat + moves)
    np.testing.assert_allclose(moved["actor"], [0.0])
    np.testing.assert_allclose(moved["window"], [1.0, 1.0])
    np.testing.assert_allclose(moved["slow_window"], [0.25, 3.25])  # a quarter of the way to the newest


@pytest.mark.slow
def test_what_is_read_is_the_copy():
    agent = windows.make_window_agent((6,), distributions.categorical(2), hidden=(3,), context=2, width=2, heads=1)
    params, seen = agent.init(jax.random.key(0)), np.arange(1.0, 7.0, dtype=np.float32)[None]
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.all(x == y)), params["window"], params["slow_window"]))
    shifted = jax.tree.map(lambda x: x + 0.3, params["window"])
    before = jax.jit(agent.policy)(params, seen)
    np.testing.assert_array_equal(jax.jit(agent.policy)(params | {"window": shifted}, seen), before)
    assert np.any(jax.jit(agent.policy)(params | {"slow_window": shifted}, seen) != before)


def test_normalised_observations_are_refused():
    """A frame that is not there is zeros, and less the running mean it would be there."""
    config = rewards.get_config("clam,smoke")
    config.algorithm.normalize_observations = True
    with pytest.raises(ValueError, match="network.kind='windows' reads plain observations: set algorithm.normalize_"):
        control_setup.make_network(config, control_setup.load_env(config, 2), 1)


@pytest.mark.slow
def test_the_program_teaches_the_code_by_the_contrast_alone():
    config = rewards.get_config("clam,smoke")
    config.sample.update(num_envs=2, num_steps=8)
    config.network.update(hidden=(4,), width=4, heads=2)
    config.eval.num_episodes = 0
    env = control_setup.load_env(config, 2)
    agent = control_setup.make_network(config, env, 1)
    found = control_auxiliary.with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, env)
    seen = np.random.default_rng(0).normal(size=(3, 96)).astype(np.float32)

    def slopes_of(key):
        params = found.agent.init(key)
        return jax.grad(lambda p: found.agent.policy(p, seen).sum() + found.agent.value(p, seen).sum())(params)

    slopes = jax.jit(slopes_of, compiler_options=QUICK)(jax.random.key(0))
    assert all(np.all(x == 0) for x in jax.tree.leaves((slopes["window"], slopes["slow_window"])))
    assert all(np.any(x != 0) for x in jax.tree.leaves(slopes["actor"]))
    config.train.update(epochs=1, minibatches=1)
    init, advance, params_of = control_runs.make_run(config)

    def learn(key):
        state = init(key, {})
        after, metrics = advance(state, {}, 1)
        return params_of(state), params_of(after), metrics["auxiliary"]

    before, after, contrast = jax.jit(learn, compiler_options=QUICK)(jax.random.key(0))
    assert contrast.shape == ()
    for new, old, slow in zip(
        *map(jax.tree.leaves, (after["window"], before["window"], after["slow_window"])), strict=True
    ):
        np.testing.assert_allclose(slow, 0.99 * old + 0.01 * new, atol=1e-6)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(jax.tree.map(jnp.subtract, after, before))) > 1e-3
    with pytest.raises(ValueError, match="env.frame_stack=8"):
        windows.make_window_agent((97,), agent.distribution, context=8)
    assert agent_modelling.episodes_of(jnp.zeros((2, 3), bool)).tolist() == [[0, 0, 0], [4, 4, 4]]
