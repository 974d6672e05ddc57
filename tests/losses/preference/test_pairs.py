"""losses/preference/compare/pairs.py: signs, weights, absent sides, and AOT's sort by its partners."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses.preference import compare, links
from tests.numpy_loops.preference import logistic, sigmoid

partial = functools.partial
S = np.array([[1.0, -0.5, 0.3], [-2.0, 0.7, 0.1]], np.float32)
ALL = np.ones((2, 3), bool)
PAIR, BOTH = S[:, :2], ALL[:, :2]
HERE = np.array([[True, True, False], [True, False, True]])
REWARDS = np.array([[3.0, 2.0, 1.0], [0.2, 0.1, 0.0]], np.float32)


def test_pairs_and_the_first_pair_of_more():
    expected = [logistic(1.5), logistic(-2.7)]
    np.testing.assert_allclose(compare.pairs(PAIR, BOTH, links.logistic), expected, rtol=1e-6)
    np.testing.assert_allclose(compare.first_pair(S, ALL, links.logistic), expected, rtol=1e-6)
    np.testing.assert_allclose(compare.first_pair(S, HERE, links.logistic), [expected[0], 0.0], rtol=1e-6)
    with pytest.raises(AssertionError):
        compare.pairs(S, ALL, links.logistic)
    with pytest.raises(AssertionError):
        compare.first_pair(S[:, :1], ALL[:, :1], links.logistic)


def test_anchored_ranks_the_first_above_the_anchor_and_the_others_below():
    """The anchor is on the scale of u: beta times it is compared with s."""
    anchor, beta = np.array([0.4, -1.0], np.float32), 0.5
    fn = partial(compare.anchored, beta=beta, rewards=REWARDS, desirable_weight=2.0, undesirable_weight=0.25)
    expected = []
    for n in range(2):
        z = beta * float(anchor[n])
        total = 2.0 * sigmoid(-(S[n, 0] - z))
        total += sum(0.25 * sigmoid(-(z - S[n, k])) for k in (1, 2) if HERE[n, k])
        expected.append(total)
    np.testing.assert_allclose(fn(S, HERE, links.saturating, anchor=anchor), expected, rtol=1e-6)
    same = fn(S, HERE, links.saturating, anchor=np.full(2, 0.3, np.float32))
    np.testing.assert_allclose(fn(S, HERE, links.saturating, anchor=0.3), same, rtol=1e-6)


def test_one_response_goes_by_its_label():
    """A label in the middle of the two is no praise."""
    scores, labels = np.array([[0.3], [0.3], [0.3]], np.float32), np.array([[1.0], [0.0], [0.5]], np.float32)
    fn = partial(compare.anchored, beta=0.5, anchor=0.2, rewards=labels)
    found = fn(scores, np.ones((3, 1), bool), links.logistic)
    np.testing.assert_allclose(found, [logistic(0.2), logistic(-0.2), logistic(-0.2)], rtol=1e-6)


def test_nca_of_a_list():
    """The repulsion is the mean over the responses that are there."""
    expected = [
        logistic(1.0) + (logistic(-1.0) + logistic(0.5)) / 2,
        logistic(-2.0) + (logistic(2.0) + logistic(-0.1)) / 2,
    ]
    np.testing.assert_allclose(compare.nca(S, HERE, links.logistic), expected, rtol=1e-6)
    assert math.isclose(
        compare.nca(np.zeros((1, 2), np.float32), ALL[:1, :2], links.logistic)[0], 2 * math.log(2), rel_tol=1e-6
    )


def test_nca_has_its_optimum_at_log_2():
    slope = jax.grad(lambda s: compare.nca(s, BOTH[:1], links.logistic)[0])
    np.testing.assert_allclose(slope(jnp.array([[math.log(2), 0.0]])), [[0.0, 0.25]], atol=1e-7)
    np.testing.assert_allclose(slope(jnp.array([[0.0, 1.0]]))[0], [-0.25, 0.5 * sigmoid(1.0)], rtol=1e-6)


def test_apo_down_lowers_both():
    slope = jax.grad(lambda s: compare.apo_down(s, BOTH[:1], links.saturating)[0])(jnp.array([[0.2, -0.4]]))

    def bell(x):
        return sigmoid(x) * sigmoid(-x)

    np.testing.assert_allclose(slope, [[bell(0.2) - bell(0.6), bell(0.6)]], rtol=1e-5)


def _ranks(x):
    return np.argsort(np.argsort(x))


@pytest.mark.parametrize("link", [links.logistic, partial(links.logistic, label_smoothing=0.1), links.hinge])
def test_partners_give_the_sorted_losses_row_by_row(link):
    """Over the rows: value and gradient of the loss with jnp.sort in it, which no micro-batch could compute."""
    rng = np.random.default_rng(0)
    policy, ref = (rng.normal(size=(7, 2)).astype(np.float32) for _ in range(2))
    beta, present = 0.6, np.ones((7, 2), bool)

    def paired(policy):
        margins = jnp.sort(policy[:, 0] - policy[:, 1]) - jnp.sort(ref[:, 0] - ref[:, 1])
        return link(beta * margins).sum()

    def unpaired(policy):
        a = policy - ref
        return link(beta * (jnp.sort(a[:, 0]) - jnp.sort(a[:, 1]))).sum()

    partners = ref[np.argsort(ref[:, 0] - ref[:, 1])[_ranks(policy[:, 0] - policy[:, 1])]] - ref
    found = jax.value_and_grad(
        lambda x: compare.sorted_pairs(beta * (x - ref), present, link, partners=partners, beta=beta).sum()
    )(policy)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), found, jax.value_and_grad(paired)(policy))

    a = policy - ref
    partners = np.stack([np.sort(a[:, 1])[_ranks(a[:, 0])], np.sort(a[:, 0])[_ranks(a[:, 1])]], axis=1)
    found = jax.value_and_grad(
        lambda x: compare.sorted_unpaired(beta * (x - ref), present, link, partners=partners, beta=beta).sum()
    )(policy)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6), found, jax.value_and_grad(unpaired)(policy))


def test_partners_are_data():
    for fn in (compare.sorted_pairs, compare.sorted_unpaired):
        slope = jax.grad(lambda x, fn=fn: fn(PAIR, BOTH, links.logistic, partners=x, beta=0.5).sum())(PAIR)
        np.testing.assert_array_equal(slope, np.zeros_like(PAIR))


def test_half_a_pair_is_nothing():
    present = np.array([[True, False], [False, True]])
    more = {"partners": np.zeros((2, 2), np.float32), "beta": 0.5}
    for fn in (compare.pairs, partial(compare.sorted_pairs, **more), partial(compare.sorted_unpaired, **more)):
        np.testing.assert_array_equal(fn(PAIR, present, links.logistic), [0.0, 0.0])
    np.testing.assert_allclose(compare.apo_down(PAIR, present, links.saturating), [sigmoid(1.0), 0.0], rtol=1e-6)
