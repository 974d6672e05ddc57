"""models/moe.py: the experts against a loop, the balance loss against `transformers`, statistics, replay, a mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer import moe
from rl_jax.models.transformer.blocks import ACTIVATIONS
from rl_jax.models.transformer.model import TransformerConfig, make_routed_apply, make_transformer
from rl_jax.training.sharding import make_mesh, parse_mesh, tree_shardings
from tests.tiny import CONFIG, max_difference, token_batch

MOE = TransformerConfig(
    vocab_size=64, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=16, qk_norm=True,
    num_experts=4, experts_per_token=2,
)  # fmt: skip
BATCH = token_batch([8, 5, 3], 8)
REAL = np.asarray(BATCH.segment_ids) > 0


@functools.cache
def model_and_params():
    model = make_transformer(MOE)
    params = jax.jit(model.init)(jax.random.key(0))
    params["layers"]["experts"]["router"]["kernel"] *= 3.0  # a router of a mind
    return model, params


@functools.cache
def routed():
    """(params, chosen or None) -> ((loss, (hidden, stats)), gradients), compiled once for each kind of argument."""
    apply = make_routed_apply(MOE)

    def loss(params, chosen):
        hidden, stats = apply(params, BATCH, chosen)
        return jnp.sum(jnp.where(jnp.array(REAL)[..., None], jnp.sin(hidden), 0.0)) / REAL.sum(), (hidden, stats)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.slow
@pytest.mark.parametrize("norm_topk_prob", [True, False])
def test_experts_equal_a_loop_over_the_tokens(norm_topk_prob):
    config = dataclasses.replace(MOE, norm_topk_prob=norm_topk_prob)
    experts = moe.Experts(config, ACTIVATIONS["silu"], jax.nn.initializers.normal(0.3))
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(experts.init, jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda leaf: 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), shapes)
    expected, picks = np.zeros_like(x), []
    for n, row in enumerate(x):
        scores = row @ params["router"]["kernel"]
        probs = np.exp(scores) / np.exp(scores).sum()
        best = np.argsort(-probs)[:2]
        picks.append(best)
        scale = probs[best].sum() if norm_topk_prob else 1.0
        for e in best:
            gate = row @ params["gate"][e]
            hidden = gate / (1 + np.exp(-gate)) * (row @ params["up"][e])
            expected[n] += probs[e] / scale * (hidden @ params["down"][e])
    y, routing = experts.apply({"params": params}, x)
    np.testing.assert_array_equal(routing.chosen, picks)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.slow
def test_the_balance_loss_equals_that_of_transformers():
    import torch
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    logits = np.random.default_rng(0).standard_normal((2, REAL.size, 4)).astype(np.float32)
    probs = jax.nn.softmax(jnp.array(logits), axis=-1)
    chosen = jax.lax.top_k(probs, 2)[1]
    layers = [moe.router_stats(moe.Routing(chosen[i], probs[i]), jnp.array(REAL)) for i in range(2)]
    stats = jax.tree.map(lambda *x: jnp.stack(x), *layers)._replace(tokens=jnp.float32(REAL.sum()))
    expected = load_balancing_loss_func(tuple(map(torch.tensor, logits)), 4, 2, torch.tensor(REAL).long())
    loss = moe.load_balancing_loss(stats)
    np.testing.assert_allclose(loss.value(), expected.item(), rtol=1e-6)
    assert loss.count == REAL.sum()


@pytest.mark.slow
def test_statistics_count_real_tokens_and_sum_over_micro_batches():
    (_, (hidden, stats)), _ = routed()(model_and_params()[1], None)
    model, params = model_and_params()
    np.testing.assert_allclose(hidden, model.apply(params, BATCH), atol=1e-6)
    assert stats.chosen.shape == (2, 3, 8, 2) and stats.chosen.dtype == jnp.int32 and stats.tokens == REAL.sum()
    np.testing.assert_array_equal(stats.assignments.sum(1), [2 * REAL.sum()] * 2)
    np.testing.assert_allclose(stats.probs.sum(1), [REAL.sum()] * 2, rtol=1e-6)
    for layer in range(2):
        counts = np.bincount(np.asarray(stats.chosen)[layer][REAL].reshape(-1), minlength=4)
        np.testing.assert_array_equal(stats.assignments[layer], counts)
    metrics = {name: float(mean.value()) for name, mean in moe.router_metrics(stats).items()}
    load = np.asarray(stats.assignments) / (2 * REAL.sum() / 4)
    assert metrics["router/max_load"] == pytest.approx(load.max())
    assert metrics["router/min_load"] == pytest.approx(load.min())
    assert metrics["router/balance_loss"] > 2.0  # k where the load is even


@pytest.mark.slow
def test_replaying_the_own_choice_changes_nothing_and_another_choice_does():
    params = model_and_params()[1]
    (value, (hidden, stats)), gradients = routed()(params, None)
    (again, (replayed, same)), same_gradients = routed()(params, stats.chosen)
    np.testing.assert_allclose(replayed, hidden, atol=1e-6)
    assert max_difference(gradients, same_gradients) < 1e-5 and value == pytest.approx(float(again), abs=1e-4)
    np.testing.assert_array_equal(same.chosen, stats.chosen)
    router = np.asarray(gradients["layers"]["experts"]["router"]["kernel"])
    assert np.max(np.abs(router)) > 1e-3, "the router must learn through the weights"
    other = (stats.chosen + 1) % 4
    (_, (changed, used)), changed_gradients = routed()(params, other)
    np.testing.assert_array_equal(used.chosen, other)
    assert np.max(np.abs(changed - hidden)[REAL]) > 0.1
    assert np.max(np.abs(changed_gradients["layers"]["experts"]["router"]["kernel"])) > 1e-3


@pytest.mark.slow
def test_a_mesh_changes_nothing():
    params = model_and_params()[1]
    mesh = make_mesh(parse_mesh("fsdp:2,tensor:2"))
    placed = jax.device_put(params, tree_shardings(params, mesh))
    assert {s.data.shape for s in placed["layers"]["experts"]["up"].addressable_shards} == {(2, 4, 16, 8)}
    assert {s.data.shape for s in placed["layers"]["experts"]["down"].addressable_shards} == {(2, 4, 8, 16)}
    (_, (hidden, stats)), gradients = routed()(params, None)
    (_, (sharded, also)), sharded_gradients = routed()(placed, None)
    np.testing.assert_allclose(sharded, hidden, atol=1e-5)
    np.testing.assert_array_equal(also.chosen, stats.chosen)
    assert max_difference(gradients, sharded_gradients) < 1e-5


def test_what_has_no_experts_has_no_routing():
    with pytest.raises(ValueError, match="needs a model with experts: num_experts is 0"):
        make_routed_apply(CONFIG)
    with pytest.raises(AssertionError):
        jax.eval_shape(make_routed_apply(MOE), model_and_params()[1], BATCH, jnp.zeros((2, 3, 8, 1), jnp.int32))
