"""Agents with memory: rows are what steps are, torch's GRU and attention, and V' without a trace in the memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rl_jax.models.agents.distributions import categorical, tanh_gaussian
from rl_jax.models.agents.memory import make_gru_agent, make_transformer_agent

ROWS, LENGTH = 3, 11
BOUNDS = np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)
QUICK = {"xla_backend_optimization_level": 0}
AGENTS = {
    "gru": functools.partial(make_gru_agent, (4,), categorical(3), hidden=(8,), width=6, num_values=2),
    "gru on images": functools.partial(
        make_gru_agent, (4, 4, 2), tanh_gaussian(*BOUNDS), hidden=(), channels=2, width=5
    ),
    "transformer": functools.partial(
        make_transformer_agent, (4,), categorical(3), hidden=(8,), width=8, context=4, heads=2, layers=2, num_values=2
    ),
    "transformer, K > T": functools.partial(
        make_transformer_agent, (4,), tanh_gaussian(*BOUNDS), hidden=(), width=6, context=15, heads=3, actor_features=2
    ),
}
KINDS = ["gru", "transformer"]


def some_params(agent, seed=0):
    """Params of the agent's shapes, none of them where it would start."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(scale=0.5, size=s.shape), jnp.float32), shapes)


@functools.cache
def played(name):
    """(agent, params, a row's arguments (observations, state, first), next observations, what came of them).

    A row starts in the middle of an episode, in the state that 5 steps before have left. What came of it, [B, T, ...]:
    by "steps" (outputs, values, next values) and the state after them, by "unroll", "ahead" and "halves" (outputs).
    """
    agent = AGENTS[name]()
    shape, rng = (4, 4, 2) if "images" in name else (4,), np.random.default_rng(0)
    params = some_params(agent)
    before, observations, following = (
        jnp.asarray(rng.normal(size=(ROWS, n, *shape)), jnp.float32) for n in (5, LENGTH, LENGTH)
    )
    first = rng.random((ROWS, LENGTH)) < 0.25
    first[0], first[1, 0], first[2, 0] = False, True, False
    first = jnp.asarray(first)

    def steps(state, observations, following, first):
        def step(state, now):
            observation, following, first = now
            outputs, values, state = agent.step(params, observation, state, first)
            ahead = agent.step(params, following, state, jnp.zeros(ROWS, bool))[1]
            return state, (outputs, values, ahead)

        columns = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (observations, following, first))
        state, rows = jax.lax.scan(step, state, columns)
        return state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)

    def whole():
        none = jnp.zeros((ROWS, 5), bool)
        start, _ = steps(agent.initial_state(ROWS), before, before, none)
        after, by_steps = steps(start, observations, following, first)
        middle, _ = steps(start, observations[:, :4], following[:, :4], first[:, :4])
        halves = [
            agent.unroll(params, observations[:, part], state, first[:, part])[0]
            for part, state in ((slice(0, 4), start), (slice(4, LENGTH), middle))
        ]
        # Where no episode ends, what comes next is what the next column shows.
        shown = jnp.concatenate([observations[:, 1:], following[:, -1:]], axis=1)
        return start, after, {
            "steps": by_steps,
            "unroll": agent.unroll(params, observations, start, first),
            "ahead": agent.look_ahead(params, observations, start, first, following),
            "shown": agent.look_ahead(params, observations, start, first, shown),
            "halves": jnp.concatenate(halves, axis=1),
        }

    start, after, found = jax.jit(whole, compiler_options=QUICK)()
    return agent, params, (observations, start, first), after, jax.device_get(found)


def assert_close(left, right):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), left, right)


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_a_row_is_what_its_steps_are(name):
    found = played(name)[-1]
    assert_close(found["unroll"], found["steps"][:2])
    assert_close(found["halves"], found["steps"][0])  # and cut in two, going on with the state in between
    for x in found["unroll"]:
        assert np.abs(x[:, 1:] - x[:, :-1]).max() > 0.1  # it is not all the same


@pytest.mark.parametrize("name", AGENTS)
def test_a_value_ahead_is_that_of_the_memory_up_to_it(name):
    """Also at the last step of an episode; and nothing of it is left in the rows."""
    _, _, (_, _, first), _, found = played(name)
    assert_close(found["ahead"], found["steps"])
    values, ahead, goes_on = found["shown"][1], found["shown"][2], ~np.asarray(first)[:, 1:]
    assert_close(ahead[:, :-1][goes_on], values[:, 1:][goes_on])
    assert np.abs(ahead[:, :-1] - values[:, 1:])[~goes_on].max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_knows_nothing_of_the_one_before(kind):
    agent, params, (observations, start, first), _, _ = played(kind)
    first = first.at[:, 6].set(True)

    def later(before, start):
        rows = jnp.concatenate([before, observations[:, 6:]], axis=1)
        outputs, values = (x[:, 6:] for x in agent.unroll(params, rows, start, first))
        return jnp.sum(jnp.square(outputs)) + jnp.sum(jnp.square(values)), outputs

    def whole(before, start):
        gradients, outputs = jax.grad(later, (0, 1), has_aux=True, allow_int=True)(before, start)
        return gradients, outputs, agent.unroll(params, observations[:, 6:], agent.initial_state(ROWS), first[:, 6:])[0]

    gradients, outputs, alone = jax.jit(whole, compiler_options=QUICK)(observations[:, :6], start)
    assert not any(np.any(x) for x in jax.tree.leaves(gradients) if x.dtype == jnp.float32)
    assert_close(outputs, alone)


def test_images_and_what_only_the_critic_sees():
    _, params, _, _, _ = played("transformer, K > T")
    shapes = [params[name]["memory"]["embed"]["kernel"].shape for name in ("actor", "critic")]
    assert shapes == [(2, 6), (4, 6)]
    assert played("gru on images")[1]["actor"]["torso"]["conv"]["kernel"].shape == (18, 2)


def numpy_gru(params, x):
    """The outputs [T, width] of a GRU from x [T, D], gate by gate, in float64."""
    params = jax.tree.map(lambda x: np.asarray(x, float), params)
    w, b, u, c = (params[part][name] for part in ("input", "state") for name in ("kernel", "bias"))
    size, h, found = len(c), np.zeros(len(c)), []
    for now in np.asarray(x, float):
        r = 1 / (1 + np.exp(-(now @ w[:, :size] + b[:size] + h @ u[:, :size])))
        z = 1 / (1 + np.exp(-(now @ w[:, size : 2 * size] + b[size : 2 * size] + h @ u[:, size : 2 * size])))
        n = np.tanh(now @ w[:, 2 * size :] + b[2 * size :] + r * (h @ u[:, 2 * size :] + c))
        h = (1 - z) * n + z * h
        found.append(h)
    return np.stack(found)


def test_the_gru_is_a_loop_in_numpy_and_torchs():
    """torch: gates r, z, n; r behind the matmul; z keeps the old state; its second bias is ours for n, and 0 else."""
    agent = make_gru_agent((4,), categorical(3), hidden=(), width=6)
    params, x = some_params(agent), jax.random.normal(jax.random.key(0), (2, 9, 4))
    memory, head = params["actor"]["memory"], params["actor"]["head"]
    kernel, bias = np.asarray(head["kernel"]), np.asarray(head["bias"])
    outputs, _ = jax.jit(agent.unroll)(params, x, agent.initial_state(2), jnp.zeros((2, 9), bool))
    by_loop = np.stack([numpy_gru(memory, row) for row in x]) @ kernel + bias
    np.testing.assert_allclose(outputs, by_loop, rtol=1e-4, atol=1e-5)
    peer = torch.nn.GRU(4, 6, batch_first=True)
    state_bias = np.concatenate([np.zeros(12, np.float32), memory["state"]["bias"]])
    with torch.no_grad():
        peer.weight_ih_l0.copy_(torch.tensor(np.asarray(memory["input"]["kernel"]).T))
        peer.weight_hh_l0.copy_(torch.tensor(np.asarray(memory["state"]["kernel"]).T))
        peer.bias_ih_l0.copy_(torch.tensor(np.asarray(memory["input"]["bias"])))
        peer.bias_hh_l0.copy_(torch.tensor(state_bias))
        by_torch = peer(torch.tensor(np.asarray(x)))[0].numpy() @ kernel + bias
    np.testing.assert_allclose(outputs, by_torch, rtol=1e-4, atol=1e-5)


def torch_transformer(params, x, first, context, heads):
    """The same network over whole rows [B, T] from an empty memory: one mask, torch's attention and its layer norm."""

    def linear(x, p):
        return x @ torch.tensor(np.asarray(p["kernel"])) + torch.tensor(np.asarray(p["bias"]))

    rows, length = first.shape
    episode = np.cumsum(first, axis=1)
    distance = np.arange(length)[:, None] - np.arange(length)[None, :]
    seen = (episode[:, :, None] == episode[:, None, :]) & (distance >= 0) & (distance < context)
    x = linear(torch.tensor(np.asarray(x)), params["embed"])
    width = x.shape[-1]
    for name in sorted(n for n in params if n.startswith("block")):
        block = params[name]
        normed = torch.nn.functional.layer_norm(x, (width,))
        q, k, v = (linear(normed, block[n]).reshape(rows, length, heads, -1).transpose(1, 2) for n in "qkv")
        table = np.asarray(block["distance"])[:, np.clip(distance, 0, context - 1)]
        bias = torch.tensor(np.where(seen[:, None], table[None], -np.inf).astype(np.float32))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + linear(y.transpose(1, 2).reshape(rows, length, width), block["out"])
        hidden = linear(torch.nn.functional.layer_norm(x, (width,)), block["up"])
        x = x + linear(torch.nn.functional.gelu(hidden, approximate="tanh"), block["down"])
    return torch.nn.functional.layer_norm(x, (width,)).numpy()


def test_the_transformer_is_torchs_attention_over_a_window():
    agent = make_transformer_agent((4,), categorical(3), hidden=(), width=8, context=4, heads=2, layers=2)
    params, x = some_params(agent), jax.random.normal(jax.random.key(1), (3, LENGTH, 4))
    first = np.random.default_rng(1).random((3, LENGTH)) < 0.2
    head = params["critic"]["head"]
    expected = torch_transformer(params["critic"]["memory"], x, first, 4, 2) @ np.asarray(head["kernel"])
    _, values = jax.jit(agent.unroll)(params, x, agent.initial_state(3), jnp.asarray(first))
    np.testing.assert_allclose(values, expected + np.asarray(head["bias"]), rtol=1e-4, atol=1e-5)


def test_one_layer_sees_k_steps_and_no_more():
    agent = make_transformer_agent((4,), categorical(2), hidden=(), width=6, context=4, heads=2)
    params = some_params(agent)
    x = jax.random.normal(jax.random.key(1), (1, LENGTH, 4))
    start, first = agent.initial_state(1), jnp.zeros((1, LENGTH), bool)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(jnp.square(agent.unroll(params, x, start, first)[1][:, 8]))))(x)
    np.testing.assert_array_equal(np.abs(gradient[0]).max(axis=1) > 0, [5 <= t <= 8 for t in range(LENGTH)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_actor_and_critic_share_nothing_and_start_as_ppo_does(kind):
    agent = AGENTS[kind](**({"layers": 1} if kind == "transformer" else {}))

    def whole(key):
        params = agent.init(key)
        x, first, start = jax.random.normal(key, (2, 5, 4)), jnp.zeros((2, 5), bool), agent.initial_state(2)
        gradient = jax.grad(lambda p: jnp.sum(jnp.square(agent.unroll(p, x, start, first)[0])))(params)
        return agent.unroll(params, x, start, first), gradient

    (outputs, values), gradient = jax.jit(whole, compiler_options=QUICK)(jax.random.key(0))
    assert np.abs(outputs).max() < 0.1 < np.abs(values).max() and values.shape == (2, 5, 2)
    assert not any(np.any(x) for x in jax.tree.leaves(gradient["critic"]))
    assert all(np.any(x) for x in jax.tree.leaves(gradient["actor"]))


def test_refusals():
    with pytest.raises(ValueError, match="width=6 does not divide into heads=4"):
        make_transformer_agent((4,), categorical(2), width=6)
    with pytest.raises(ValueError, match="context=1"):
        make_transformer_agent((4,), categorical(2), context=1)
    with pytest.raises(ValueError, match="tanh, relu, silu"):
        make_gru_agent((4,), categorical(2), activation="tahn")
    agent = make_gru_agent((4,), categorical(2))
    with pytest.raises(AssertionError):
        agent.step(some_params(agent), jnp.zeros((2, 4)), agent.initial_state(2), jnp.zeros(2))
