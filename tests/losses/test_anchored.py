"""losses/contrastive.py follow and anchored (iSogCLR, arXiv 2305.11965): a second, scalar writing of the recursion."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import auxiliary
from rl_jax.losses import contrastive
from rl_jax.models.agents.features import make_net

RHO, RATE, MOMENTUM, ETA = 0.3, 0.8, 0.9, 0.05


def by_hand(scores, s, u, tau, first):
    """One batch of B anchors with two views each, anchor by anchor: losses [B] and the recursion's new numbers."""
    size = len(s)
    losses, new = [], []
    for i in range(size):
        averages, slopes, total = [], [], 0.0
        for row, partner in ((i, size + i), (size + i, i)):
            others = [scores[row, j] for j in range(2 * size) if j % size != i]
            powers = [np.exp(h / tau[i]) for h in others]
            g = np.mean(powers)
            average = g if first else (1 - RATE) * s[i] + RATE * g
            weighted = sum(p * h for p, h in zip(powers, others, strict=True)) / (average * len(others))
            averages.append(average)
            slopes.append(np.log(average) + RHO - weighted / tau[i])
            total += weighted - scores[row, partner]
        slope = np.clip(np.mean(slopes), -3, 3)
        slope = (1 - MOMENTUM) * u[i] + MOMENTUM * slope
        new.append((np.mean(averages), slope, np.clip(tau[i] - ETA * slope, 0.05, 1.0)))
        losses.append(total)
    return np.array(losses), *np.array(new).T


def test_two_batches_are_the_recursion_of_the_paper():
    rng = np.random.default_rng(0)
    size, kept = 3, contrastive.new_anchors(5, tau=0.3)
    s, u, tau = np.zeros(size), np.zeros(size), np.full(size, 0.3)
    slots = jnp.asarray([4, 0, 2] * 2)
    negatives = slots[:, None] != slots[None, :]
    follow = jax.jit(
        lambda kept, x: contrastive.follow(
            kept, slots, x, negatives, rho=RHO, rate=RATE, momentum=MOMENTUM, step_size=ETA
        )
    )
    loss = jax.jit(contrastive.anchored)
    own = np.array([4, 0, 2])
    for batch in range(2):
        scores = rng.uniform(-1, 1, (6, 6)).astype(np.float32)
        losses, s, u, tau = by_hand(scores, s, u, tau, first=batch == 0)
        kept, used, average = follow(kept, scores)
        positives = np.array([scores[i, (i + 3) % 6] for i in range(6)])
        found = np.asarray(loss(scores, positives, negatives, used, average))
        np.testing.assert_allclose(found[:3] + found[3:], losses, rtol=1e-4)
        for mine, theirs in ((kept.average, s), (kept.slope, u), (kept.tau, tau)):
            np.testing.assert_allclose(np.asarray(mine)[own], theirs, rtol=1e-4)
    assert np.ptp(np.asarray(kept.tau)[own]) > 0.01
    np.testing.assert_array_equal(kept.seen, [True, False, True, False, True])
    np.testing.assert_allclose(np.asarray(kept.tau)[[1, 3]], 0.3, rtol=1e-6)


def test_an_average_of_this_batch_alone_has_the_exact_gradient():
    """rate 1: the gradient of tau log mean exp(h / tau) + tau rho, by autodiff of the dual itself."""
    scores = np.random.default_rng(1).uniform(-1, 1, (1, 4)).astype(np.float32)
    negatives, tau = jnp.ones((1, 4), bool), jnp.array([0.2])
    kept = contrastive.new_anchors(1, tau=0.2)

    def loss(scores):
        average = contrastive.follow(kept, jnp.array([0]), scores, negatives, rho=RHO, rate=1.0)[2]
        return contrastive.anchored(scores, jnp.zeros(1), negatives, tau, jax.lax.stop_gradient(average))[0]

    slope, dual = jax.jit(
        lambda x: (jax.grad(loss)(x), jax.grad(lambda x: contrastive.robust_value(x[0], 0.2, RHO))(x))
    )(scores)
    np.testing.assert_allclose(slope, dual, rtol=1e-5)


def test_a_row_without_negatives_moves_nothing():
    """Row 1 of three has none: its anchor stays as it is, seen before or not; the others move as without it."""
    kept = contrastive.new_anchors(3, tau=0.2)._replace(average=jnp.float32([0, 2, 0]), slope=jnp.float32([0, 0.5, 0]))
    scores, slots = np.random.default_rng(2).uniform(-1, 1, (3, 4)).astype(np.float32), jnp.arange(3)
    negatives = jnp.array([True, False, True])[:, None] & jnp.ones((3, 4), bool)

    @jax.jit
    def step(kept, scores):
        def loss(x):
            return jnp.sum(contrastive.anchored(x, jnp.zeros(3), negatives, used, average))

        after, used, average = contrastive.follow(kept, slots, scores, negatives, rho=RHO)
        return after, average, jax.value_and_grad(loss)(scores)

    for seen in (False, True):
        after, average, (value, slope) = step(kept._replace(seen=jnp.array([False, seen, False])), scores)
        np.testing.assert_array_equal(after.seen, [True, seen, True])
        np.testing.assert_allclose([x[1] for x in after[:3]], [2.0, 0.5, 0.2], rtol=1e-6)
        np.testing.assert_allclose(after.average[::2], np.mean(np.exp(scores[::2] / 0.2), axis=1), rtol=1e-5)
        assert np.isfinite(value) and np.isfinite(average).all() and not np.asarray(slope)[1].any()
        np.testing.assert_allclose(np.asarray(slope)[::2].sum(axis=1), 1.0, rtol=1e-5)


def test_rows_of_one_observation_are_one_anchor_and_not_each_others_negatives():
    slots = jax.jit(lambda x: auxiliary.slots_of(x, 4096, 0.1))(np.eye(12)[[0, 3, 0, 7]])
    assert slots[0] == slots[2] and len(set(slots.tolist())) == 3
    made = auxiliary.anchors(width=4, make_net=make_net, slots=64, rows=4)
    seen = np.eye(12, dtype=np.float32)[[0, 3, 0, 7, 7]]

    @jax.jit
    def train(key, seen):
        params, features = made.init(key), lambda x: jnp.tanh(x @ jnp.ones((12, 4)))
        kept, remembered = made.observe(params, features, seen, key, made.begin())
        return kept, remembered, *jax.value_and_grad(made.loss)(params, features, seen, None, None, key, remembered)

    kept, remembered, value, slope = train(jax.random.key(0), seen)
    assert int(kept.seen.sum()) == 3 and remembered["anchors"].shape == (5, 2, 2)
    assert np.isfinite(value) and any(float(jnp.abs(x).max()) > 0 for x in jax.tree.leaves(slope))
    kept, _, value, slope = train(jax.random.key(0), np.zeros_like(seen))  # all are one: no negatives
    assert not kept.seen.any() and all(np.isfinite(x).all() for x in jax.tree.leaves((kept, value, slope)))


def test_the_published_numbers_bind_where_slopes_and_temperatures_are_large():
    """One row for each anchor, seen before: .8, .9, 1e-3, tau in [.05, 1], slopes in [-3, 3]; one has one negative."""
    tau, before = np.array([0.05, 0.05, 1.0, 1.0, 0.3]), np.array([1e9, 0.0, 0.0, 1e9, 2.0])
    slope = np.array([0.5, -0.5, -0.2, 0.1, 0.0])
    scores = np.float32([[1, 1, 0.9], [1, 1, 1], [9, 9, 0], [0, 0.5, 1], [0.2, 0.4, 7]])
    negatives = np.ones((5, 3), bool)
    negatives[4, 1:] = False
    kept = contrastive.Anchors(*map(jnp.float32, (before, slope, tau)), jnp.ones(5, bool))
    assert (np.asarray(contrastive.new_anchors(2).tau) == np.float32(0.07)).all()

    expected = np.zeros((3, 5))
    for i in range(5):
        own = scores[i, negatives[i]].astype(float)
        powers = np.exp(own / tau[i])
        average = 0.2 * before[i] + 0.8 * powers.mean()
        raw = np.log(average) + RHO - (powers / (average * len(own)) * own).sum() / tau[i]
        moved = 0.1 * slope[i] + 0.9 * np.clip(raw, -3, 3)
        expected[:, i] = average, moved, np.clip(tau[i] - 1e-3 * moved, 0.05, 1.0)
    hidden = np.where(negatives, scores, 50.0).astype(np.float32)
    whole = jax.jit(functools.partial(contrastive.follow, rho=RHO))(kept, np.arange(5), hidden, negatives)[0]
    np.testing.assert_allclose(np.stack(whole[:3]), expected, rtol=1e-4)
    # Spread over devices, each with some of the rows: all anchors are everywhere.
    order = np.array([[0, 2, 4], [1, 3, 3]])  # of 3 two rows: their mean is each one's
    each = jax.vmap(
        lambda slots, x, y: contrastive.follow(kept, slots, x, y, rho=RHO, axis_name="devices")[0],
        axis_name="devices",
    )
    parts = jax.jit(each)(order, hidden[order], negatives[order])
    for both, one in zip(parts[:3], whole[:3], strict=True):
        np.testing.assert_allclose(both, np.stack([one, one]), rtol=1e-5)
