"""vocabulary.py: full logits in numpy and torch, no [B, C, V] anywhere, and the losses that need it end to end."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rl_jax import dpo
from rl_jax.core.binding import bind
from rl_jax.core.types import Model, PreferenceBatch
from rl_jax.losses.preference import prompt_weights, score_maps
from rl_jax.training.scoring import make_score
from rl_jax.training.vocabulary import VocabularyScores, make_vocabulary_score, response_weights, sequence_kl
from tests.oracles import trl_preference
from tests.tiny import max_difference, token_batch

N, K, C = 2, 2, 7
BETA = 0.2


def _model(vocab_size=64, width=8):
    """The next token by the sum of the tokens so far: compiles in no time, and every logit depends on every param."""

    def init(key):
        keys = jax.random.split(key)
        shapes = {"embed": (vocab_size, width), "head": (width, vocab_size)}
        return {name: jax.random.normal(k, shapes[name]) for name, k in zip(shapes, keys, strict=True)}

    def apply(params, batch):
        return jnp.tanh(jnp.cumsum(params["embed"][batch.tokens] * batch.segment_ids[..., None], axis=1))

    return Model(init, apply, lambda params, hidden: hidden @ params["head"], None, None, None, vocab_size)


MODEL = _model()


@functools.cache
def _case():
    """Policy and reference params, and N * K rows."""
    params, ref_params = (MODEL.init(jax.random.key(seed)) for seed in (0, 1))
    return params, ref_params, token_batch([14, 11, 12, 9], 14)


@jax.jit
def _logits(params, batch):
    return MODEL.unembed(params, MODEL.apply(params, batch)[:, -C - 1 : -1])


def _plain(params, ref_params, batch):
    """The same from all logits at once."""
    log_pi, log_ref = (jax.nn.log_softmax(_logits(p, batch)) for p in (params, jax.lax.stop_gradient(ref_params)))
    picked, ref_picked = (
        jnp.take_along_axis(x, batch.tokens[:, -C:, None], axis=-1)[..., 0] for x in (log_pi, log_ref)
    )
    return VocabularyScores(
        picked,
        -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1),
        jnp.log(jnp.sum(jnp.exp(log_pi) ** 2, axis=-1)),
        ref_picked,
        jnp.sum(jnp.exp(log_ref) * (log_ref - log_pi), axis=-1),
    )


def _total(found):
    """A scalar that reads every entry of every array, each with a weight of its own."""
    return sum(
        jnp.sum(x * jnp.cos(i + jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)) for i, x in enumerate(found)
    )


def _value_and_gradients(score):
    params, ref_params, batch = _case()

    def total(params, ref_params):
        found = score(params, ref_params, batch)
        return _total(found), found

    return jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(params, ref_params)


@pytest.mark.slow
def test_chunks_are_the_whole():
    """Two slices of 4 columns, the last of them padding."""
    score = make_vocabulary_score(MODEL, completion_length=C, chunk=4)
    (gradient, ref_gradient), found = _value_and_gradients(score)
    (expected_gradient, _), expected = _value_and_gradients(_plain)
    for name, x, y in zip(VocabularyScores._fields, found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(expected_gradient))
    assert max_difference(gradient, expected_gradient) < 1e-5 * max(1.0, largest)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(ref_gradient)), "the reference gets a gradient"


def test_values_against_numpy():
    params, ref_params, batch = _case()
    found = jax.jit(make_vocabulary_score(MODEL, completion_length=C, chunk=4))(params, ref_params, batch)
    p, q = (np.exp(np.float64(_logits(x, batch))) for x in (params, ref_params))
    p, q = (x / x.sum(axis=-1, keepdims=True) for x in (p, q))
    tokens = np.asarray(batch.tokens)[:, -C:, None]
    np.testing.assert_allclose(found.log_probs, np.log(np.take_along_axis(p, tokens, -1))[..., 0], atol=2e-5)
    np.testing.assert_allclose(found.ref_log_probs, np.log(np.take_along_axis(q, tokens, -1))[..., 0], atol=2e-5)
    np.testing.assert_allclose(found.entropy, -(p * np.log(p)).sum(-1), atol=2e-5)
    np.testing.assert_allclose(found.log_sum_squares, np.log((p**2).sum(-1)), atol=2e-5)
    np.testing.assert_allclose(found.kl, (q * np.log(q / p)).sum(-1), atol=2e-5)
    assert np.all(found.kl > 0)


def test_without_a_reference_it_is_the_scorer():
    params, _, batch = _case()
    found = jax.jit(make_vocabulary_score(MODEL, completion_length=C))(params, None, batch)
    plain = jax.jit(make_score(MODEL, completion_length=C))(params, batch)
    assert found.kl is None and found.ref_log_probs is None
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found.scores(), plain)


def test_rows_without_a_prompt_are_refused():
    params, ref_params, batch = _case()
    with pytest.raises(ValueError, match="rows of 14 tokens leave no room for a prompt before 14"):
        make_vocabulary_score(MODEL, completion_length=14)(params, ref_params, batch)


# 4 rows, 40 columns, 32 of them completion, 512 tokens: [B, C, V] is 65536 numbers and the parameters are fewer.
def test_the_compiled_program_holds_no_logits_of_the_batch():
    """In the gradient, which holds what the forward does and more; the same model without slices is the yardstick."""
    model = _model(vocab_size=512)
    params = jax.eval_shape(model.init, jax.random.key(0))
    batch = token_batch([40] * 4, 40)
    compiled = []
    for chunk in (4, 32):
        score = make_vocabulary_score(model, completion_length=32, chunk=chunk)
        gradient = jax.grad(lambda params, *more, score=score: _total(score(params, *more)))
        compiled.append(jax.jit(gradient).lower(params, params, batch).compile())
    largest = []
    for program in compiled:
        shapes = re.findall(r"\b(?:f|bf|s|u|pred)\d*\[([\d,]*)\]", program.as_text())
        largest.append(max(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes))
    assert largest[0] < 4 * 32 * 512 <= largest[1]
    sliced, whole = (program.memory_analysis().temp_size_in_bytes for program in compiled)
    # Two models' logits, in float32, and their exponentials are gone but for one slice of eight.
    assert sliced < whole - 4 * (4 * 32 * 512)


# --- TDPO and WPO ----------------------------------------------------------------------------------------------------


def _mask():
    return np.arange(C) < np.array([[7, 4], [3, 5]])[:, :, None]


def _preferences(ref_log_probs):
    return PreferenceBatch(None, _mask(), np.ones((N, K), bool), np.float32([[1.0, 0.0]] * N), ref_log_probs)


def _ours(objective):
    """Value and gradient in the params: one forward gives the loss its scores, references and sums."""
    params, ref_params, batch = _case()
    score = make_vocabulary_score(MODEL, completion_length=C, chunk=4)

    def loss(params):
        found = score(params, ref_params, batch)
        refs = found.ref_log_probs.reshape(N, K, C)
        more = {
            "sequence_kl": sequence_kl(found.kl, _mask()),
            "response_weights": response_weights(found.log_probs, found.log_sum_squares, _mask()),
        }
        return dpo.loss(found.scores(), _preferences(refs), objective, more)[0].value()

    return jax.jit(jax.value_and_grad(loss))(params)


def _check_gradient(found, of, cotangent):
    """found: in the params; against a gradient in what of(params) answers, pulled back to them."""
    pulled = jax.jit(lambda p, g: jax.vjp(of, p)[1](g)[0])(_case()[0], jnp.float32(cotangent))
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(pulled))
    assert max_difference(found, pulled) < 2e-5 * max(1.0, largest)


def _tdpo(variant, alpha):
    """Token-level DPO from whole logits in torch, float64: (value, gradient in the policy's logits)."""
    params, ref_params, batch = _case()
    leaf = torch.tensor(np.float64(_logits(params, batch)), requires_grad=True)
    log_pi, log_ref = leaf.log_softmax(-1), torch.tensor(np.float64(_logits(ref_params, batch))).log_softmax(-1)
    tokens = torch.tensor(np.asarray(batch.tokens, np.int64)[:, -C:, None])
    mask = torch.tensor(_mask().reshape(N * K, C))
    ratios = ((log_pi - log_ref).gather(2, tokens)[..., 0] * mask).sum(1).reshape(N, K)
    kl = ((log_ref.exp() * (log_ref - log_pi)).sum(-1) * mask).sum(1).reshape(N, K)
    margin = ratios[:, 0] - ratios[:, 1]
    if variant == 1:
        margin = margin - (kl[:, 1] - kl[:, 0])
    else:
        margin = margin - alpha * (kl[:, 1] - kl[:, 0].detach())
    loss = -torch.nn.functional.logsigmoid(BETA * margin).mean()
    return loss.item(), torch.autograd.grad(loss, leaf)[0].numpy()


@pytest.mark.parametrize(
    "variant, settings", [(1, {"coef": 1.0, "stop_chosen": False}), (2, {"coef": 0.5, "stop_chosen": True})]
)
def test_tdpo_end_to_end(variant, settings):
    objective = dpo.Objective(beta=BETA, score_map=bind({"fn": "token_level", **settings}, score_maps))
    value, gradient = _ours(objective)
    expected, in_logits = _tdpo(variant, 0.5)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    _check_gradient(gradient, lambda params: _logits(params, _case()[2]), in_logits)


def test_wpo_end_to_end_is_trls():
    params, ref_params, batch = _case()
    value, gradient = _ours(dpo.Objective(beta=BETA, weight=prompt_weights.policy_likelihood))
    plain = jax.tree.map(lambda x: np.asarray(x).reshape(N, K, C), jax.jit(_plain)(params, ref_params, batch))
    expected, in_log_probs = trl_preference.dpo_loss(
        plain.log_probs, plain.ref_log_probs, _mask(), beta=BETA, log_sum_sq_probs=plain.log_sum_squares
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)

    def log_probs(params):
        return jnp.take_along_axis(jax.nn.log_softmax(_logits(params, batch)), batch.tokens[:, -C:, None], axis=-1)

    _check_gradient(gradient, log_probs, np.where(_mask(), in_log_probs, 0.0).reshape(N * K, C, 1))


def test_the_sums_of_a_response_without_tokens():
    nothing = np.zeros((1, 2, 3), bool)
    garbage = np.full((2, 3), np.nan, np.float32)
    np.testing.assert_array_equal(sequence_kl(garbage, nothing), [[0.0, 0.0]])
    np.testing.assert_array_equal(response_weights(garbage, garbage, nothing), [[1.0, 1.0]])
