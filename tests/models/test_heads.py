"""models/heads.py: the value of a state comes from the hidden state before it, and nothing else changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models import heads
from rl_jax.models.perturbed import add_token_values
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding
from rl_jax.training.packing import arrange, pack
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, max_difference, random_params, token_batch

MODEL = make_transformer(CONFIG)
# Tiny programs that run once: what takes time is LLVM, and it has nothing to gain here.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
APPLY = quick_jit(MODEL.apply)
COMPLETION = 5


def critic_params(num_outputs, seed=0):
    """A policy's params with a head that is no longer at its start."""
    params = heads.add_value_head(MODEL, random_params(), num_outputs=num_outputs)
    rng = np.random.default_rng(seed)
    return params | {
        heads.NAME: jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params[heads.NAME])
    }


@pytest.mark.slow
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_each_column_reads_the_hidden_state_before_it(num_outputs):
    params, batch = critic_params(num_outputs), token_batch([9, 12, 7], 12)
    found = quick_jit(heads.make_predict(MODEL, completion_length=COMPLETION))(params, batch)
    hidden = np.asarray(APPLY(random_params(), batch), np.float64)
    head = jax.tree.map(np.asarray, params[heads.NAME])
    assert found.shape == (3, COMPLETION + 1, num_outputs) and found.dtype == jnp.float32
    for column in range(COMPLETION + 1):
        expected = hidden[:, 12 - COMPLETION - 1 + column] @ head["kernel"] + head["bias"]
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("add", ["value", "reward", "token_values"])
def test_a_head_is_as_wide_on_a_mesh_that_splits_tokens(add):
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:2,context:2"), jax.devices()[:4])
    model, key = sharding.model_on_mesh(MODEL, mesh), jax.random.key(0)
    params = jax.device_put(random_params(), sharding.tree_shardings(random_params(), mesh))
    if add == "value":
        head = heads.add_value_head(model, params)[heads.NAME]
    elif add == "reward":
        head = jax.eval_shape(lambda params: heads.add_reward_head(model, params, key), params)[heads.REWARD]
    else:
        head = jax.eval_shape(lambda params: add_token_values(model, params, key), params)["v"]["outside"]
    assert head["kernel"].shape == (CONFIG.embed_dim, 1)


def test_a_value_does_not_see_the_token_it_judges():
    """Changing completion token t changes the values from column t + 1 on, the one after the last token included."""
    params, batch = critic_params(1), token_batch([12, 12], 12)
    predict = quick_jit(heads.make_predict(MODEL, completion_length=COMPLETION))
    before = predict(params, batch)
    for t in range(COMPLETION):
        changed = batch._replace(tokens=batch.tokens.at[:, 12 - COMPLETION + t].add(1))
        moved = np.asarray(jnp.any(predict(params, changed) != before, axis=(0, 2)))
        assert moved.tolist() == [column > t for column in range(COMPLETION + 1)]


@pytest.mark.slow
def test_the_head_starts_at_0_and_can_leave_it():
    params, batch = heads.add_value_head(MODEL, random_params(), num_outputs=2), token_batch([12, 8], 12)
    predict = heads.make_predict(MODEL, completion_length=COMPLETION)
    np.testing.assert_array_equal(quick_jit(predict)(params, batch), 0.0)
    gradient = quick_jit(jax.grad(lambda p: jnp.sum(predict(p, batch))))(params)[heads.NAME]
    np.testing.assert_allclose(gradient["bias"], [12, 12])
    assert (np.abs(np.asarray(gradient["kernel"])) > 0).all()


def test_the_policy_is_what_it_was():
    plain = random_params()
    params = heads.add_value_head(MODEL, plain)
    assert max_difference(heads.without_value_head(params), plain) == 0.0 and heads.NAME not in plain
    assert set(params) == {*plain, heads.NAME}
    assert {x.shape for x in jax.tree.leaves(params[heads.NAME])} == {(CONFIG.embed_dim, 1), (1,)}
    batch = token_batch([12, 8], 12)
    score = quick_jit(make_score(MODEL, completion_length=COMPLETION))
    assert max_difference(score(params, batch), score(plain, batch)) == 0.0


def test_the_head_counts_in_float32_whatever_the_model_does():
    rough = MODEL._replace(apply=lambda params, batch: MODEL.apply(params, batch).astype(jnp.bfloat16))
    params, batch = critic_params(1), token_batch([12], 12)
    found = quick_jit(heads.make_predict(rough, completion_length=COMPLETION))(params, batch)
    hidden = np.asarray(APPLY(params, batch).astype(jnp.bfloat16)[:, -COMPLETION - 1 :].astype(jnp.float32), np.float64)
    expected = hidden @ params[heads.NAME]["kernel"] + params[heads.NAME]["bias"]
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_rows_without_a_prompt_are_refused():
    predict = heads.make_predict(MODEL, completion_length=12)
    with pytest.raises(ValueError, match="rows of 12 tokens leave no room for a prompt before 12 completion tokens"):
        predict(critic_params(1), token_batch([12], 12))
    with pytest.raises(AssertionError):
        predict(critic_params(1), jax.tree.map(lambda x: x[0], token_batch([14], 14)))


# --- A reward head ---------------------------------------------------------------------------------------------------


PREDICT_LAST = quick_jit(heads.make_predict_last(MODEL))
HIDDEN_LAST = quick_jit(heads.make_hidden_last(MODEL))


def reward_params(num_outputs, seed=0):
    return heads.add_reward_head(MODEL, random_params(), jax.random.key(seed), num_outputs=num_outputs)


def by_hand(params, batch, row, column):
    """The head on the hidden state of one column, in numpy."""
    hidden = np.asarray(APPLY(random_params(), batch), np.float64)[row, column]
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params[heads.REWARD])
    return hidden @ head["kernel"] + head["bias"]


@pytest.mark.parametrize("left", [True, False])
def test_a_reward_is_read_at_the_last_real_token(left):
    """Padded on either side, and whatever stands in the padding."""
    lengths, params = [9, 12, 3], reward_params(2)
    batch = token_batch(lengths, 12, left=left)
    found = PREDICT_LAST(params, batch)
    assert found.shape == (3, 2) and found.dtype == jnp.float32
    for row, length in enumerate(lengths):
        last = 11 if left else length - 1
        np.testing.assert_allclose(found[row], by_hand(params, batch, row, last), rtol=1e-4, atol=1e-5)
    dirty = batch._replace(tokens=jnp.where(batch.segment_ids == 0, 5, batch.tokens))
    np.testing.assert_allclose(PREDICT_LAST(params, dirty), found, atol=1e-5)
    head = params[heads.REWARD]  # what the layer reads
    np.testing.assert_allclose(HIDDEN_LAST(params, dirty) @ head["kernel"], found - head["bias"][None], atol=1e-5)


@pytest.mark.slow
def test_a_response_is_worth_the_same_in_a_wider_row():
    params = reward_params(1)
    narrow, wide = (token_batch([9, 7], width) for width in (9, 14))
    np.testing.assert_allclose(PREDICT_LAST(params, narrow), PREDICT_LAST(params, wide), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rewards_of_steps_are_read_at_their_columns():
    params, batch = reward_params(2), token_batch([12, 12], 12)
    columns = jnp.array([[3, 7, 11], [5, -1, -1]])
    predict = quick_jit(heads.make_predict_at(MODEL))
    found = predict(params, batch, columns)
    assert found.shape == (2, 3, 2)
    for row, step in ((0, 0), (0, 1), (0, 2), (1, 0)):
        expected = by_hand(params, batch, row, int(columns[row, step]))
        np.testing.assert_allclose(found[row, step], expected, rtol=1e-4, atol=1e-5)
    # A step does not see what comes behind it.
    changed = batch._replace(tokens=batch.tokens.at[:, 8:].add(1))
    moved = np.asarray(jnp.any(predict(params, changed, columns) != found, axis=2))
    np.testing.assert_array_equal(moved, [[False, False, True], [False, False, False]])


def test_members_of_a_reward_head_differ_by_their_draw():
    params = reward_params(4)
    kernel = np.asarray(params[heads.REWARD]["kernel"])
    assert kernel.shape == (CONFIG.embed_dim, 4) and np.unique(kernel[0]).size == 4
    many = np.asarray(reward_params(500)[heads.REWARD]["kernel"])
    assert many.std() == pytest.approx(1 / np.sqrt(CONFIG.embed_dim + 1), rel=0.05)
    assert not np.array_equal(kernel, reward_params(4, seed=1)[heads.REWARD]["kernel"])
    assert max_difference(heads.without_head(params), random_params()) == 0.0


def deep_params(layers, activation, num_outputs=2):
    key, more = jax.random.key(3), dict(num_outputs=num_outputs, layers=layers, activation=activation)
    return heads.add_reward_head(MODEL, random_params(), key, **more)


@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_a_head_of_three_layers_is_what_numpy_makes_of_the_hidden_state(activation):
    """As a reward of a whole row, and as a value at each token once it is a critic's."""
    params, batch = deep_params(3, activation), token_batch([9, 12], 12)
    rng = np.random.default_rng(1)  # biases that are not 0
    params[heads.REWARD] = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype("f4"), params[heads.REWARD])
    head = jax.tree.map(lambda x: np.asarray(x, np.float64), params[heads.REWARD])
    f = {"tanh": np.tanh, "silu": lambda x: x / (1 + np.exp(-x))}[activation]

    def outputs(hidden):
        for kernel, bias in zip(head[activation]["kernel"], head[activation]["bias"], strict=True):
            hidden = f(hidden @ kernel + bias)
        return hidden @ head["kernel"] + head["bias"]

    hidden = np.asarray(APPLY(random_params(), batch), np.float64)
    last = np.asarray(batch.segment_ids != 0).shape[1] - 1 - np.argmax(np.asarray(batch.segment_ids != 0)[:, ::-1], 1)
    expected = outputs(hidden[np.arange(2), last])
    np.testing.assert_allclose(PREDICT_LAST(params, batch), expected, rtol=1e-4, atol=1e-4)
    critic = random_params() | {heads.NAME: params[heads.REWARD]}
    found = quick_jit(heads.make_predict(MODEL, completion_length=COMPLETION))(critic, batch)
    np.testing.assert_allclose(found, outputs(hidden[:, -COMPLETION - 1 :]), rtol=1e-4, atol=1e-4)


def test_more_layers_leave_the_linear_one_as_it_is_drawn():
    plain, deep = deep_params(1, "none")[heads.REWARD], deep_params(3, "tanh")[heads.REWARD]
    assert set(plain) == {"kernel", "bias"}, "a checkpoint of before there were layers"
    np.testing.assert_array_equal(plain["kernel"], deep["kernel"])
    drawn, width = np.asarray(deep["tanh"]["kernel"]), CONFIG.embed_dim
    assert drawn.shape == (2, width, width) and drawn.std() == pytest.approx(1 / np.sqrt(width + 1), rel=0.1)
    assert not np.any(np.asarray(deep["tanh"]["bias"])) and not np.array_equal(drawn[0], drawn[1])
    with pytest.raises(ValueError, match="0 layers: it has at least 1"):
        deep_params(0, "silu")
    with pytest.raises(ValueError, match="'relu' of a reward head is none of none, tanh, silu"):
        deep_params(2, "relu")


def test_a_deep_head_learns_a_preference_that_no_linear_one_can():
    """On a frozen trunk: of two features, what counts is whether they are of one sign (exclusive or). Three seeds."""
    model = MODEL._replace(apply=lambda params, batch: params["table"][batch.tokens])
    table = np.zeros((4, 16), np.float32)
    table[:, :2] = [[1, 1], [-1, -1], [1, -1], [-1, 1]]
    one = jnp.ones((4, 1), jnp.int32)
    batch, better, worse = TokenBatch(jnp.arange(4)[:, None], 0 * one, one), [0, 0, 1, 1], [2, 3, 2, 3]
    read = heads.make_predict_last(model)

    def accuracy(seed, layers, activation):
        def loss(head):
            rewards = read({"table": table, heads.REWARD: head}, batch)[:, 0]
            gaps = rewards[jnp.array(better)] - rewards[jnp.array(worse)]
            return -jnp.mean(jax.nn.log_sigmoid(gaps)), gaps

        def step(head, _):
            gradient = jax.grad(loss, has_aux=True)(head)[0]
            return jax.tree.map(lambda x, g: x - 0.5 * g, head, gradient), None

        more = dict(layers=layers, activation=activation)
        start = heads.add_reward_head(model, {"table": table}, jax.random.key(seed), **more)[heads.REWARD]
        return jnp.mean(loss(jax.lax.scan(step, start, length=400)[0])[1] > 0.1)

    for activation, low, high in (("silu", 1.0, 1.0), ("none", 0.0, 0.75)):
        found = quick_jit(jax.vmap(lambda seed, a=activation: accuracy(seed, 2, a)))(jnp.arange(3))
        assert np.all((np.asarray(found) >= low) & (np.asarray(found) <= high)), (activation, found)


# --- Packed rows -----------------------------------------------------------------------------------------------------

PACKED = [dict(share_prefix=False), dict(share_prefix=True), dict(share_prefix=True, num_parts=4, num_micro_batches=2)]
packed_in_each_way = pytest.mark.parametrize("settings", PACKED, ids=["packed", "shared_prefix", "parts"])


def completions(lengths=(5, 2, 5, 0, 1, 4, 3, 5), width=4):
    """(TokenBatch [8, 9], completion mask [8, 5]): two prompts with four completions each."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, CONFIG.vocab_size, (8, width + COMPLETION)).astype(np.int32)
    tokens[:, :width] = np.repeat(tokens[::4, :width], 4, axis=0)
    real = np.ones(tokens.shape, bool)
    real[:4, 0] = False  # the first prompt is shorter
    real[:, width:] = np.arange(COMPLETION) < np.array(lengths)[:, None]
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0) * real
    return TokenBatch(tokens, positions.astype(np.int32), real.astype(np.int32)), real[:, width:]


def rows_by_part(num_parts=1, num_micro_batches=1, **_):
    """The order of the rows in `pack`'s parts: part s holds rows of micro-batch s % M."""
    shape = (num_parts // num_micro_batches, -1, num_micro_batches)
    return np.arange(8).reshape(shape).transpose(0, 2, 1).ravel()


@functools.cache
def _compiled(predict):
    def loss(params, weights, *inputs):
        outputs = predict(params, *inputs)
        return jnp.sum(jnp.where(weights[..., None] != 0, outputs * weights[..., None], 0.0)), outputs

    return quick_jit(jax.value_and_grad(loss, has_aux=True))


def value_and_gradient(predict, params, weights, *inputs):
    """(outputs, gradient of their weighted sum). The same `predict` and shapes are the same program."""
    (_, outputs), gradient = _compiled(predict)(params, weights, *inputs)
    return np.asarray(outputs), gradient


VALUES, REWARDS = heads.make_predict(MODEL, completion_length=COMPLETION), heads.make_predict_last(MODEL)
HIDDEN = quick_jit(heads.make_hidden_last(MODEL))


def assert_alike(padded, packed, weights):
    """Outputs that have a weight, and all gradients, to the precision of float32."""
    np.testing.assert_allclose(packed[0][weights != 0], padded[0][weights != 0], rtol=1e-4, atol=1e-5)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(padded[1]))
    assert largest > 0.1 and max_difference(padded[1], packed[1]) < 1e-5 * largest


@pytest.mark.slow
@packed_in_each_way
def test_values_of_packed_rows_are_those_of_padded_ones(settings):
    """Before each completion token and after the last; 0 where no token is left."""
    batch, mask = completions()
    order = arrange(batch, mask, **settings)
    rows = pack(*jax.tree.map(lambda x: x[order], (batch, mask)), **settings)
    order = order[rows_by_part(**settings)]
    batch, mask = jax.tree.map(lambda x: x[order], (batch, mask))
    there = np.concatenate([mask.any(axis=1, keepdims=True), mask], axis=1)
    weights = np.where(there, np.random.default_rng(1).normal(size=there.shape), 0).astype(np.float32)
    params = critic_params(3)
    padded = value_and_gradient(VALUES, params, weights, batch)
    packed = value_and_gradient(VALUES, params, weights, rows)
    assert there[:, -1].sum() == 3 and (padded[0][weights != 0] != 0).all()
    assert_alike(padded, packed, weights)
    assert packed[0].shape == (8, COMPLETION + 1, 3) and not packed[0][~there].any()


@pytest.mark.slow
@packed_in_each_way
def test_rewards_of_packed_rows_are_those_of_padded_ones(settings):
    batch, mask = completions()
    rows, order = pack(batch, mask, **settings), rows_by_part(**settings)
    batch, mask = jax.tree.map(lambda x: x[order], (batch, mask))
    weights = np.where(mask.any(axis=1), np.random.default_rng(1).normal(size=8), 0).astype(np.float32)
    params = reward_params(2)
    padded = value_and_gradient(REWARDS, params, weights, batch)
    assert_alike(padded, value_and_gradient(REWARDS, params, weights, rows), weights)
    np.testing.assert_allclose(HIDDEN(params, rows)[weights != 0], HIDDEN(params, batch)[weights != 0], atol=1e-4)


@pytest.mark.slow
def test_rewards_of_packed_steps_are_read_at_their_columns():
    batch, mask = completions()
    columns = [[4, 6, 8], [5, -1, -1], [8, -1, -1], [-1] * 3, [4, -1, -1], [4, 7, -1], [6, -1, -1], [5, 8, -1]]
    columns = np.array(columns)
    weights = np.where(columns >= 0, np.random.default_rng(1).normal(size=columns.shape), 0).astype(np.float32)
    predict, params = heads.make_predict_at(MODEL), reward_params(2)
    padded = value_and_gradient(predict, params, weights, batch, columns)
    places = np.where(columns < 0, -1, columns - 4 + 1)
    packed = value_and_gradient(predict, params, weights, pack(batch, mask, share_prefix=True), places)
    assert_alike(padded, packed, weights)


def test_several_value_heads_have_layers_of_their_own_and_lie_side_by_side():
    """Equal values at the start and unlike heads: of linear heads that begin with 0 the smallest would be any."""
    params = heads.add_value_heads(MODEL, random_params(), jax.random.key(3), members=2, num_outputs=3)
    batch, predict = token_batch([9, 12], 12), heads.make_predict(MODEL, completion_length=COMPLETION)
    assert not np.asarray(predict(params, batch)).any()
    own = dict(params[heads.NAME][heads.MEMBERS])
    first, second = np.asarray(own["silu"]["kernel"])
    assert np.abs(first - second).max() > 0.1 and abs(first.std() * first.shape[-1] ** 0.5 - 1) < 0.2
    rng = np.random.default_rng(0)
    own = jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)) / 4, own)
    found = predict(params | {heads.NAME: {heads.MEMBERS: own}}, batch)
    hidden = np.asarray(APPLY(random_params(), batch), np.float64)[:, 12 - COMPLETION - 1 :]
    for member in range(2):
        x = hidden
        for layer in range(2):
            x = x @ own["silu"]["kernel"][member, layer] + own["silu"]["bias"][member, layer]
            x = x / (1 + np.exp(-x))
        expected = x @ own["kernel"][member] + own["bias"][member]
        np.testing.assert_allclose(found[:, :, 3 * member : 3 * member + 3], expected, rtol=1e-4, atol=1e-5)
