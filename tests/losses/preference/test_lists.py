"""losses/preference/compare/lists.py against loops in float64, against rax, and in the limits where it is DPO."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rax

from rl_jax.losses.preference import compare, links
from tests.numpy_loops import lists as reference

N, K = 6, 5
# name -> (comparator's keywords, link, reference's keywords)
CASES = {
    "softmax": (compare.softmax, {}, links.logistic, reference.softmax),
    "plackett_luce": (compare.plackett_luce, {}, links.logistic, reference.plackett_luce),
    "all_pairs": (compare.all_pairs, {}, links.logistic, reference.all_pairs),
    "all_pairs-mean": (
        compare.all_pairs,
        {"reduce": "mean"},
        links.logistic,
        functools.partial(reference.all_pairs, reduce="mean"),
    ),
    "all_pairs-hinge": (compare.all_pairs, {}, links.hinge, reference.hinge_pairs),
    "lambda_pairs": (compare.lambda_pairs, {}, links.logistic, reference.lambda_pairs),
    "label_softmax": (compare.label_softmax, {}, links.logistic, reference.label_softmax),
    "point_square": (compare.point_square, {}, links.logistic, reference.point_square),
    "point_logistic": (compare.point_logistic, {}, links.logistic, reference.point_logistic),
    "pro": (compare.pro, {}, links.logistic, reference.pro),
    "rrhf": (compare.rrhf, {}, links.logistic, reference.rrhf),
    "info_nca": (
        compare.info_nca,
        {"temperature": 0.5},
        links.logistic,
        functools.partial(reference.info_nca, temperature=0.5),
    ),
}


def _batch(seed=0, ties=True):
    """Ragged lists: from two to K responses, rewards in [0, 1] best first, with ties the first two of them equal."""
    rng = np.random.default_rng(seed)
    scores = np.float32(rng.normal(size=(N, K)))
    rewards = np.float32(-np.sort(-rng.random((N, K)), axis=1))
    if ties:
        rewards[:, 1] = rewards[:, 0]
    present = np.arange(K) < np.array([5, 2, 3, 5, 4, 3])[:, None]
    return scores, rewards, present


def _losses(compared, keywords, link, scores, rewards, present):
    return compared(scores, present, link, rewards=rewards, **keywords)


def _value_and_gradient(compared, keywords, link, scores, rewards, present):
    words = tuple((name, x) for name, x in keywords.items() if not isinstance(x, np.ndarray))
    arrays = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    gradient, losses = _gradient(compared, words, link, jnp.asarray(scores), rewards, present, arrays)
    return np.asarray(losses), np.asarray(gradient)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient(compared, words, link, scores, rewards, present, arrays):
    """Compiled once for a method and a shape."""

    def total(scores):
        losses = _losses(compared, dict(words) | arrays, link, scores, rewards, present)
        return jnp.sum(losses), losses

    return jax.grad(total, has_aux=True)(scores)


@pytest.mark.parametrize("name", CASES)
def test_matches_the_loop(name):
    compared, keywords, link, expected = CASES[name]
    scores, rewards, present = _batch()
    losses, gradient = _value_and_gradient(compared, keywords, link, scores, rewards, present)
    np.testing.assert_allclose(losses, expected(scores, rewards, present), rtol=2e-5, atol=1e-6)
    assert np.any(losses)
    slope = reference.numeric_gradient(lambda x: expected(x, rewards, present), scores)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=2e-5)
    assert np.all(gradient[~present] == 0)


def test_brain_matches_its_importance_weights():
    scores, rewards, present = _batch()
    ratios = np.float32(np.random.default_rng(2).normal(size=(N, K)))
    settings = {"prior_log_ratios": ratios, "temperature": 0.5}
    losses, gradient = _value_and_gradient(compare.brain, settings, links.logistic, scores, rewards, present)
    expected = functools.partial(reference.brain, rewards=rewards, present=present, **settings)
    np.testing.assert_allclose(losses, expected(scores), rtol=2e-5)
    np.testing.assert_allclose(gradient, reference.numeric_gradient(expected, scores), rtol=1e-4, atol=2e-5)
    # Where the policy's weights are the targets already there is nothing to learn.
    at_target = np.float32(rewards / 0.5 + ratios)
    gradient = _value_and_gradient(compare.brain, settings, links.logistic, at_target, rewards, present)[1]
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


RAX = {
    "softmax": lambda s, r, w: rax.softmax_loss(s, jax.nn.one_hot(jnp.zeros(N, int), K), where=w, reduce_fn=None),
    "plackett_luce": lambda s, r, w: rax.listmle_loss(
        s, jnp.broadcast_to(-jnp.arange(K, dtype=jnp.float32)[None], s.shape), where=w, reduce_fn=None
    ),
    "label_softmax": lambda s, r, w: rax.softmax_loss(
        s, r / jnp.sum(jnp.where(w, r, 0.0), axis=1, keepdims=True), where=w, reduce_fn=None
    ),
    "all_pairs": lambda s, r, w: _each(rax.pairwise_logistic_loss, s, r, w),
    "all_pairs-hinge": lambda s, r, w: _each(rax.pairwise_hinge_loss, s, r, w),
    # rax multiplies by the length of the list and takes log2 in the discount.
    "lambda_pairs": lambda s, r, w: (
        _each(functools.partial(rax.pairwise_logistic_loss, lambdaweight_fn=rax.dcg_lambdaweight), s, r, w)
        / (K * np.float32(np.log(2.0)))
    ),
    "point_square": lambda s, r, w: _each(rax.pointwise_mse_loss, s, r, w),
    "point_logistic": lambda s, r, w: _each(rax.pointwise_sigmoid_loss, s, r, w),
}


def _each(loss, scores, rewards, present):
    return jax.vmap(lambda s, r, w: loss(s, r, where=w, reduce_fn=jnp.sum))(scores, rewards, present)


@pytest.mark.parametrize("name", RAX)
def test_matches_rax(name):
    compared, keywords, link, _ = CASES[name]
    # What rax takes is an order there, or one best response: it has no ties.
    scores, rewards, present = _batch(3, ties=name not in ("softmax", "plackett_luce"))
    losses, gradient = _value_and_gradient(compared, keywords, link, scores, rewards, present)

    def theirs(scores):
        losses = RAX[name](scores, jnp.asarray(rewards), jnp.asarray(present))
        return jnp.sum(losses), losses

    expected, their_losses = jax.jit(jax.grad(theirs, has_aux=True))(jnp.asarray(scores))
    np.testing.assert_allclose(losses, their_losses, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "plackett_luce", "all_pairs", "all_pairs-mean"])
def test_two_responses_are_dpo(name):
    compared, keywords, link, _ = CASES[name]
    scores, present = np.float32([[0.5, -1.0], [2.0, 3.0]]), np.ones((2, 2), bool)
    ordered = np.float32([[1.0, 0.0]] * 2)
    dpo = compare.pairs(scores, present, links.logistic)
    np.testing.assert_allclose(_losses(compared, keywords, link, scores, ordered, present), dpo, rtol=1e-6)


def test_further_limits():
    scores, present = np.float32([[0.5, -1.0], [2.0, 3.0]]), np.ones((2, 2), bool)
    dpo = np.asarray(compare.pairs(scores, present, links.logistic))
    ordered = np.float32([[1.0, 0.0]] * 2)
    # |2^1 - 2^0| |1/ln 2 - 1/ln 3|, the atlas's .532456.
    listed = compare.lambda_pairs(scores, present, links.logistic, rewards=ordered)
    np.testing.assert_allclose(listed, 0.532456 * dpo, rtol=2e-6)
    certain = compare.info_nca(scores, present, links.logistic, rewards=1000.0 * ordered)
    np.testing.assert_allclose(certain, dpo, rtol=1e-6)
    np.testing.assert_allclose(compare.label_softmax(scores, present, links.logistic, rewards=ordered), dpo, rtol=1e-6)
    # PRO of two: -log sigma((s_1 - s_2) T)
    graded = compare.pro(scores, present, links.logistic, rewards=2.5 * ordered)
    np.testing.assert_allclose(graded, compare.pairs(2.5 * scores, present, links.logistic), rtol=1e-6)
    right = compare.rrhf(np.float32([[3.0, 1.0, 0.0]]), np.ones((1, 3), bool), None, rewards=np.float32([[3, 2, 1]]))
    assert float(right[0]) == 0.0
    # At the reference, s = 0: log K, the atlas's smoke value.
    zeros, ranked = np.zeros((1, 4), np.float32), np.float32([[3, 2, 1, 0]])
    np.testing.assert_allclose(compare.softmax(zeros, np.ones((1, 4), bool), None, rewards=ranked), np.log(4))


def test_equal_rewards_say_nothing():
    scores, _, present = _batch()
    tied = np.full((N, K), 0.5, np.float32)
    silent = compare.all_pairs, compare.lambda_pairs, compare.rrhf, compare.softmax, compare.plackett_luce
    for compared in silent:
        losses, gradient = _value_and_gradient(compared, {}, links.logistic, scores, tied, present)
        assert not losses.any() and not gradient.any()


def test_solutions_are_right_or_wrong():
    """Rewards 1, 1, 0, 0: both right ones are chosen ahead of both wrong ones, by PL; the first alone, by softmax."""
    scores, rewards = np.float32([[0.3, -0.8, 1.1, 0.2]]), np.float32([[1, 1, 0, 0]])
    e = np.exp(np.float64(scores[0]))
    present = np.ones((1, 4), bool)
    ranked = compare.plackett_luce(scores, present, None, rewards=rewards)
    expected = -sum(np.log(e[k] / (e[k] + e[2] + e[3])) for k in (0, 1))
    np.testing.assert_allclose(ranked, [expected], rtol=1e-6)
    first = compare.softmax(scores, present, None, rewards=rewards)
    np.testing.assert_allclose(first, [-np.log(e[0] / (e[0] + e[2] + e[3]))], rtol=1e-6)


@pytest.mark.parametrize("compared", [compare.all_pairs, compare.lambda_pairs])
def test_a_link_sees_only_what_is_compared(compared):
    """exp(-x) of the pair the wrong way round, and of two equal rewards, overflows: inf times 0 in the gradient."""
    scores, rewards = np.float32([[200.0, 0.0, -200.0]]), np.float32([[1.0, 0.5, 0.5]])
    found = _value_and_gradient(compared, {}, links.exponential, scores, rewards, np.ones((1, 3), bool))
    assert np.isfinite(found[0]).all() and np.isfinite(found[1]).all()


def test_bad_arguments():
    one = np.zeros((2, 1), np.float32)
    with pytest.raises(ValueError, match="two or more responses per prompt, got 1"):
        compare.softmax(one, np.ones((2, 1), bool), links.logistic, rewards=one)
    scores, rewards, present = _batch()
    with pytest.raises(ValueError, match="reduce='max'"):
        compare.all_pairs(scores, present, links.logistic, rewards=rewards, reduce="max")
    with pytest.raises(AssertionError):
        compare.pro(scores, present, links.logistic, rewards=rewards[:, :2])


def test_a_prompt_whose_labels_are_all_zero_loses_nothing():
    scores, present = jnp.array([[0.5, -1.0]]), jnp.ones((1, 2), bool)
    for labels in (jnp.zeros((1, 2)), jnp.array([[0.25, 0.25]])):
        found = compare.label_softmax(scores, present, links.logistic, rewards=labels)
        expected = -np.asarray(jax.nn.log_softmax(scores, axis=1)).mean() if labels.any() else 0.0
        np.testing.assert_allclose(found, [expected], rtol=1e-6)
