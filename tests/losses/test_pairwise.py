"""P3O's two surrogates: groups of two by hand, both signs, shifts of rewards, and what a parted pair learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.parts import check_groups
from experiments.tools import methods
from rl_jax.losses.policy import pairwise

MASK = jnp.array([[True, True, False], [True, True, True]] * 2)
OLD = jnp.full(MASK.shape, -1.0)
REWARDS = jnp.array([1.0, 0.0, 0.25, 0.75])  # the gaps of the two pairs: 1 and -.5
VARIANTS = {"separate": pairwise.separate, "joint": pairwise.joint}
each_variant = pytest.mark.parametrize("fn", VARIANTS.values(), ids=VARIANTS)


def loss(fn, moved, rewards=REWARDS, **keywords):
    """The mean over pairs; moved: float [4], the rows' log ratios, on their first tokens."""
    log_probs = OLD.at[:, 0].add(jnp.asarray(moved, jnp.float32))
    advantages = jnp.where(MASK, rewards[:, None], jnp.nan)
    found = fn(log_probs, OLD, advantages, MASK, group_size=2, **keywords)
    return jnp.mean(jnp.sum(found.loss, axis=1) / jnp.sum(MASK, axis=1))


@each_variant
def test_the_first_gradient_is_the_pairwise_policy_gradient(fn):
    """At the old policy: -(R_1 - R_2) grad log(pi_1 / pi_2) / 2 of a pair, on 2 pairs; for either sign of the gap."""
    found = jax.grad(functools.partial(loss, fn))(jnp.zeros(4))
    np.testing.assert_allclose(found, np.array([-1.0, 1.0, 0.5, -0.5]) / 4, rtol=1e-6)


@each_variant
def test_only_differences_of_rewards_count(fn):
    moved = jnp.array([0.1, -0.3, 0.05, 0.4])
    both = jax.value_and_grad(functools.partial(loss, fn))
    np.testing.assert_allclose(both(moved)[0], both(moved, rewards=REWARDS + 7.0)[0], rtol=1e-5)
    np.testing.assert_allclose(both(moved)[1], both(moved, rewards=REWARDS + 7.0)[1], rtol=1e-5)


# The log ratios of the first pair, whose first answer is the better one; which of the two have a gradient in V1 and V2.
PARTED = [
    ((0.1, -0.05), (True, True), (True, True)),  # within all bounds
    ((0.15, -0.15), (True, True), (False, False)),  # .3 apart: only the joint clip sees it
    ((0.3, 0.2), (False, True), (True, True)),  # moved together: only the separate clip sees it
    ((-0.5, 0.5), (True, True), (True, True)),  # parted the wrong way: no clip
    ((0.5, -0.5), (False, False), (False, False)),
]


@pytest.mark.parametrize(("moved", "apart", "jointly"), PARTED)
def test_what_each_clip_stops(moved, apart, jointly):
    moved = jnp.array([*moved, 0.0, 0.0])
    for fn, expected in ((pairwise.separate, apart), (pairwise.joint, jointly)):
        found = np.asarray(jax.grad(functools.partial(loss, fn))(moved))
        assert tuple(found[:2] != 0) == expected, (fn.__name__, found)
        assert np.all(found[2:] != 0)


def test_weights_are_data_within_their_bounds():
    """The other answer's ratio weighs a pair, at most max_weight, and has no gradient of its own."""
    for other, weight in ((-0.1, np.exp(-0.1)), (9.0, 10.0), (-9.0, 0.1)):
        found = jax.grad(functools.partial(loss, pairwise.separate))(jnp.array([0.0, other, 0.0, 0.0]))
        np.testing.assert_allclose(found[0], -weight / 4, rtol=1e-5)
    for both, weight in ((0.05, np.exp(0.1)), (9.0, 10.0), (-9.0, 0.1)):
        found = jax.grad(functools.partial(loss, pairwise.joint))(jnp.array([both, both, 0.0, 0.0]))
        np.testing.assert_allclose(found[:2], [-weight / 4, weight / 4], rtol=1e-5)


@pytest.mark.parametrize("far", [0.01, -0.01], ids=["beyond", "within"])
def test_the_ratios_and_flags_are_those_of_rows(far):
    """Just beyond the published bounds, .2, the better answer's is clipped_high and the worse one's clipped_low."""
    high, low, half = np.log(1.2 + far), np.log(0.8 - far), 0.1 + far / 2
    cases = [(pairwise.separate, (high, low)), (pairwise.joint, (half, -half))]
    for fn, (up, down) in cases:
        moved = np.float32([up, down, down, up])  # of the second pair, the last is the better one
        log_probs = jnp.where(MASK, OLD.at[:, 0].add(moved), jnp.nan)
        call = jax.jit(functools.partial(fn, group_size=2))
        found = call(log_probs, OLD, jnp.where(MASK, REWARDS[:, None], jnp.nan), MASK)
        np.testing.assert_allclose(found.ratio, np.where(MASK, np.exp(moved)[:, None], 1.0), rtol=1e-5)
        np.testing.assert_array_equal(found.clipped_high, MASK & (moved > 0)[:, None] & (far > 0))
        np.testing.assert_array_equal(found.clipped_low, MASK & (moved < 0)[:, None] & (far > 0))
        away = call(OLD.at[:, 0].add(-moved), OLD, jnp.where(MASK, REWARDS[:, None], 0.0), MASK)
        assert not np.any(away.clipped_low | away.clipped_high)  # where it has moved back nothing is clipped


def by_loops(name, ratios, scores, low, high, bound):
    """l_i of each row of one group, from its ratios p and advantages A."""
    losses = []
    for p_i, a_i, i in zip(ratios, scores, range(len(ratios)), strict=True):
        terms = []
        for p_j, a_j, j in zip(ratios, scores, range(len(ratios)), strict=True):
            if i == j:
                continue
            if name == "separate":
                q = (a_i - a_j) * min(max(p_j, 1 / bound), bound)
                terms.append(max(-q * p_i, -q * min(max(p_i, 1 - low), 1 + high)))
            else:
                q, d = (a_i - a_j) * min(max(p_i * p_j, 1 / bound), bound), np.log(p_i / p_j)
                terms.append(0.5 * max(-q * d, -q * min(max(d, -low), low)))
        losses.append(np.mean(terms))
    return losses


@each_variant
def test_groups_of_three_are_the_mean_over_the_other_two(fn):
    """Two groups with ragged rows, ratios on both sides of all bounds, equal advantages, nan behind the mask."""
    rng = np.random.default_rng(0)
    mask = np.arange(4) < np.array([4, 1, 2, 3, 4, 2])[:, None]
    moved, old = 0.3 * rng.normal(size=(6, 4)), -rng.uniform(0.5, 2, (6, 4))
    scores = np.array([1.0, -0.5, 0.25, 0.5, 0.5, -1.0])
    hidden = [np.float32(np.where(mask, x, np.nan)) for x in (old + moved, old, scores[:, None] + 0 * old)]
    limits = dict(clip_low=0.1, clip_high=0.15) if fn is pairwise.separate else dict(clip=0.1)
    found = fn(*hidden, mask, group_size=3, max_weight=1.2, **limits)
    ratios = np.exp(np.where(mask, moved, 0).sum(axis=1))
    expected = [
        by_loops(fn.__name__, ratios[rows], scores[rows], 0.1, 0.15, 1.2) for rows in (slice(0, 3), slice(3, 6))
    ]
    np.testing.assert_allclose(found.loss, np.where(mask, np.reshape(expected, (6, 1)), 0), rtol=1e-4, atol=1e-6)
    assert (ratios > 1.2).any() and (ratios < 1 / 1.2).any()

    def total(part):
        return lambda *x: jnp.sum(getattr(fn(*x, mask, group_size=3, **limits), part))

    of = jax.grad(total("loss"), argnums=(0, 1, 2))(*hidden)
    assert np.isfinite(of[0]).all() and np.asarray(of[0])[mask].any() and not np.asarray(of[0])[~mask].any()
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
    assert not np.asarray(jax.grad(total("ratio"))(*hidden)).any()
    fn(*hidden, mask, group_size=3, max_weight=1.0)  # the smallest that is allowed


@each_variant
def test_what_is_refused(fn):
    for keywords, match in (({"max_weight": 0.5}, "max_weight=0.5"),):
        with pytest.raises(ValueError, match=match):
            loss(fn, jnp.zeros(4), **keywords)
    for size in (1, 3):
        with pytest.raises(ValueError, match=f"group_size={size}"):
            fn(OLD, OLD, OLD, MASK, group_size=size)


@pytest.mark.parametrize(
    ("group", "field", "value"),
    [("train", "minibatches", 2), ("train", "micro_batches", 2), ("packing", "mode", "packed")],
)
def test_an_update_must_keep_the_pairs_together(group, field, value):
    config = methods.load("p3o")
    check_groups.check(config)
    config[group][field] = value
    with pytest.raises(ValueError, match=f"{group}.{field}={value!r} parts the rows of a group"):
        check_groups.check(config)
