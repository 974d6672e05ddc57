"""NLPO's mask: which tokens are in the nucleus, and that sampling and scoring stay inside the same one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models import nucleus
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training.scoring import make_score

V = 11


def reference(logits, top_p, min_tokens, always):
    """learned_top_p of RL4LMs, row by row."""
    kept = np.zeros(len(logits), bool)
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    order, mass = np.argsort(-probs, kind="stable"), 0.0
    for rank, token in enumerate(order):
        kept[token] = mass <= top_p or rank < min_tokens
        mass += probs[token]
    kept[list(always)] = True
    return kept


@pytest.mark.parametrize(
    ("top_p", "min_tokens", "always"), [(0.9, 1, ()), (0.3, 4, ()), (0.5, 1, (2, 7)), (1.0, 1, ())]
)
def test_the_nucleus_is_that_of_the_code(top_p, min_tokens, always):
    logits = np.random.default_rng(0).normal(size=(50, V)).astype(np.float32) * 2
    found = nucleus.in_nucleus(logits, top_p=top_p, min_tokens=min_tokens, always=always)
    np.testing.assert_array_equal(found, [reference(row, top_p, min_tokens, always) for row in logits])


def test_what_is_no_nucleus_is_refused():
    with pytest.raises(ValueError, match="top_p=0 must be above 0"):
        nucleus.in_nucleus(jnp.zeros((1, V)), top_p=0)


@pytest.mark.slow
def test_sampling_and_scoring_stay_inside_the_same_nucleus():
    """What was drawn is scored as it was drawn, and against the whole vocabulary by hand."""
    config = TransformerConfig(
        vocab_size=V, embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=16
    )
    model = make_transformer(config)
    policy, mask = (model.init(jax.random.key(i)) for i in (0, 1))
    policy, mask = (jax.tree.map(lambda x: 3 * x, params) for params in (policy, mask))
    given = dict(top_p=0.5, min_tokens=1, always=(2,))
    generate = make_generate(nucleus.make_masked(model, **given), completion_length=5, group_size=4, eos_ids=(2,))
    prompts, live = jnp.full((4, 3), 5), jnp.ones((4, 3), bool)
    rollout = jax.jit(generate)({"policy": policy, "reference": mask}, prompts, live, jax.random.key(3))
    allowed = jax.jit(nucleus.make_allowed(model, completion_length=5, chunk=2, **given))(mask, rollout.batch)
    batch = rollout.batch._replace(allowed=allowed)
    seen = np.asarray(rollout.completion_mask)

    score = jax.jit(make_score(model, completion_length=5, chunk=2))
    found = score(policy, batch)
    np.testing.assert_allclose(found.log_probs[seen], rollout.sampled_log_probs[seen], atol=1e-4)
    logits, of_mask = (model.unembed(p, model.apply(p, rollout.batch)[:, -6:-1]) for p in (policy, mask))
    inside = np.array([[reference(np.asarray(x), 0.5, 1, (2,)) for x in row] for row in of_mask])
    exact = jax.nn.log_softmax(jnp.where(inside, logits, -jnp.inf), axis=-1)
    tokens = rollout.batch.tokens[:, -5:]
    np.testing.assert_allclose(
        found.log_probs[seen], jnp.take_along_axis(exact, tokens[..., None], axis=-1)[..., 0][seen], atol=1e-4
    )
    probs = np.exp(exact)
    np.testing.assert_allclose(found.entropy[seen], -np.where(inside, probs * exact, 0).sum(axis=-1)[seen], atol=1e-4)
    assert not inside.all() and np.abs(score(policy, rollout.batch).log_probs - found.log_probs)[seen].max() > 0.1

    def loss(params, batch):
        return jnp.sum(jnp.where(seen, make_score(model, completion_length=5, chunk=2)(params, batch).log_probs, 0.0))

    gradient = jax.grad(loss)(policy, batch)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    everything = rollout.batch._replace(allowed=jnp.full_like(allowed, 255))
    plain, whole = jax.grad(loss)(policy, rollout.batch), jax.grad(loss)(policy, everything)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), plain, whole)


def test_a_batch_has_no_mask_by_default():
    assert TokenBatch(*[np.zeros((1, 2), np.int32)] * 3).allowed is None
