"""losses/policy/stale.py: closed forms, laws, and what age does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import policy
from rl_jax.losses.policy import stale
from rl_jax.testing.batches import ragged_batch
from rl_jax.testing.laws import check_surrogate
from tests.numpy_loops import weighted as loops

BATCH = ragged_batch(3)
MASK = BATCH.mask
LAGS = np.where(MASK, np.arange(MASK.shape[1]) % 4, 0).astype(np.int32)
MU = BATCH.ref_log_probs


def interpolated(log_probs=BATCH.log_probs, lags=LAGS, mask=MASK, **keywords):
    arrays = (log_probs, np.full_like(MU, np.nan), BATCH.advantages, mask)
    return stale.interpolated(*arrays, behavior_log_probs=MU, lags=lags, **keywords)


def near(log_probs=BATCH.log_probs, mask=MASK, **keywords):
    arrays = (log_probs, np.full_like(MU, np.nan), BATCH.advantages, mask)
    return stale.near_sampler(*arrays, behavior_log_probs=MU, **keywords)


def gradient(fn):
    return np.asarray(jax.grad(lambda x: jnp.sum(fn(x).loss))(BATCH.log_probs))


def test_share_of_the_way():
    found = stale.proximal_share(np.int32([[-1, 0, 1, 2, 4, 100]]))
    np.testing.assert_allclose(found, [[0, 0, 0, 0.5, 0.75, 0.99]], rtol=1e-6)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_young_token_is_clipped_about_its_sampler(lag):
    found = interpolated(lags=np.full_like(LAGS, lag))
    expected = policy.clipped_surrogate(BATCH.log_probs, MU, BATCH.advantages, MASK)
    for name, value in expected._asdict().items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-6, err_msg=name)


def test_an_old_token_is_weighed_and_not_clipped():
    """prox goes to pi: the ratio to 1, the weight to pi / mu, and no token is lost to the clip."""
    found = interpolated(lags=np.where(MASK, 10**6, 0).astype(np.int32))
    np.testing.assert_allclose(np.asarray(found.ratio)[MASK], 1.0, rtol=1e-5)
    assert not np.asarray(found.clipped_low | found.clipped_high).any()
    weight = np.exp(np.where(MASK, BATCH.log_probs - MU, 0))
    expected = np.where(MASK, -BATCH.advantages * weight, 0)
    np.testing.assert_allclose(found.loss, expected, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(
        gradient(functools.partial(interpolated, lags=np.full_like(LAGS, 10**6))), expected, rtol=2e-5, atol=1e-7
    )


def test_the_cap_drops_tokens():
    free, capped = interpolated(), interpolated(cap=1.0)
    moved = np.asarray(stale.proximal_share(LAGS)) * np.where(MASK, BATCH.log_probs - MU, 0)
    dropped = np.exp(moved.astype(np.float32)) > 1
    assert dropped.any() and not dropped[MASK].all()
    np.testing.assert_array_equal(capped.loss, np.where(dropped, 0, free.loss))


def test_the_proximal_policy_is_data():
    """The gradient is that of decoupled PPO about a prox that does not move."""
    moved = np.asarray(stale.proximal_share(LAGS)) * np.where(MASK, BATCH.log_probs - MU, 0)

    def decoupled(log_probs):
        out = policy.clipped_surrogate(log_probs, MU + moved, BATCH.advantages, MASK)
        return out._replace(loss=out.loss * np.exp(moved))

    np.testing.assert_allclose(gradient(interpolated), gradient(decoupled), rtol=1e-5, atol=1e-8)


def test_near_the_sampler():
    log_probs, mu = BATCH.log_probs - 1.0, MU - 1.0
    bounds = dict(divergence_low=0.02, divergence_high=0.02, log_ratio_coef=0.0)
    out = stale.near_sampler(log_probs, MU, BATCH.advantages, MASK, behavior_log_probs=mu, **bounds)
    p, moved = np.exp(log_probs), np.exp(log_probs) - np.exp(mu)
    kept = MASK & ~((BATCH.advantages > 0) & (moved > 0.02)) & ~((BATCH.advantages < 0) & (moved < -0.02))
    assert (MASK & ~kept).any() and (MASK & kept).any()
    np.testing.assert_allclose(out.loss, np.where(kept, -BATCH.advantages * p / np.exp(mu), 0), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(out.clipped_low | out.clipped_high), MASK & ~kept)


def test_a_token_that_its_sampler_could_hardly_draw_is_dropped():
    """r = p / mu is above float32, and mu below it: p - mu is p all the same, and the loss that of the penalty."""
    log_probs, mu, mask = np.float32([[-0.1]]), np.float32([[-120.0]]), np.ones((1, 1), bool)

    def loss(x):
        return stale.near_sampler(x, x, np.float32([[1.0]]), mask, behavior_log_probs=mu).loss[0, 0]

    value, slope = jax.value_and_grad(loss)(log_probs)
    np.testing.assert_allclose([value, slope[0, 0]], [1e-3 * 119.9**2, 2e-3 * 119.9], rtol=1e-5)


def test_the_penalty_draws_back_what_the_bound_has_dropped():
    on, off = (gradient(functools.partial(near, log_ratio_coef=coef)) for coef in (0.1, 0.0))
    np.testing.assert_allclose(on - off, np.where(MASK, 0.2 * (BATCH.log_probs - MU), 0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("fn", [interpolated, near])
def test_padding_is_not_looked_at(fn):
    hidden = np.where(MASK, BATCH.log_probs, np.nan)
    for value in jax.tree.leaves(fn(hidden)):
        assert np.isfinite(np.asarray(value, float)).all()
    np.testing.assert_array_equal(np.where(MASK, 0, fn(hidden).loss), 0)
    np.testing.assert_array_equal(fn(hidden).loss, fn().loss)


def test_the_published_bounds_and_that_there_is_no_cap():
    """.2 on either side by default, of the probability for one and of the ratio for the other."""
    mask, mu = np.ones((1, 4), bool), np.log(np.float32([[0.3, 0.3, 0.6, 0.6]]))
    log_probs = np.log(np.float32([[0.49, 0.51, 0.41, 0.39]]))
    advantages = np.float32([[1.0, 1.0, -1.0, -1.0]])
    out = stale.near_sampler(log_probs, mu, advantages, mask, behavior_log_probs=mu)
    np.testing.assert_array_equal(out.clipped_high, [[False, True, False, False]])
    np.testing.assert_array_equal(out.clipped_low, [[False, False, False, True]])
    log_probs = np.log(np.float32([[0.3 * 1.19, 0.3 * 1.21, 0.6 * 0.81, 0.6 * 0.79]]))
    young, old = np.ones((1, 4), np.int32), np.full((1, 4), 2, np.int32)
    out = stale.interpolated(log_probs, mu, advantages, mask, behavior_log_probs=mu, lags=young)
    np.testing.assert_array_equal(out.clipped_high, [[False, True, False, False]])
    np.testing.assert_array_equal(out.clipped_low, [[False, False, False, True]])
    far = stale.interpolated(mu + 8.0, mu, -np.abs(advantages), mask, behavior_log_probs=mu, lags=old)
    np.testing.assert_allclose(far.loss, np.full((1, 4), np.exp(8.0)), rtol=1e-5)  # prox / mu of pi / prox


@pytest.mark.parametrize("fn", [stale.interpolated, stale.near_sampler])
def test_what_is_data_has_no_gradient_and_padding_is_read_in_no_array(fn):
    more = dict(lags=LAGS) if fn is stale.interpolated else {}
    hidden = [np.where(MASK, x, np.nan).astype(np.float32) for x in (BATCH.log_probs, BATCH.advantages, MU)]

    def total(part):
        def summed(log_probs, advantages, behavior):
            found = fn(log_probs, np.full_like(MU, np.nan), advantages, MASK, behavior_log_probs=behavior, **more)
            return jnp.sum(getattr(found, part))

        return summed

    of = jax.grad(total("loss"), argnums=(0, 1, 2))(*hidden)
    assert np.isfinite(of[0]).all() and not np.asarray(of[0])[~MASK].any()
    assert not np.asarray(of[1]).any()
    if fn is stale.interpolated:
        assert not np.asarray(of[2]).any()
    assert not np.asarray(jax.grad(total("ratio"))(*hidden)).any()


# Masks that are found again at each update.


def value_and_slope(surrogate, log_probs, *data):
    """(Surrogate, gradient [B, T] of the sum of its losses)."""
    return surrogate(log_probs, *data), jax.grad(lambda x: jnp.sum(surrogate(x, *data).loss))(log_probs)


def is_the_loop(found, slope, expected, mask):
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slope, expected.gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.ratio, expected.ratio, rtol=1e-5)
    np.testing.assert_array_equal(found.clipped_low, expected.low)
    np.testing.assert_array_equal(found.clipped_high, expected.high)
    assert not np.asarray(found.loss)[~mask].any() and not np.asarray(slope)[~mask].any()


@pytest.mark.parametrize("threshold", [0.01, 0.04, 0.1, 100.0])
def test_m2po_and_its_gradient_are_the_loop(threshold):
    for seed in range(4):
        batch = ragged_batch(seed)
        mu, nothing = batch.ref_log_probs, np.full_like(batch.old_log_probs, np.nan)
        expected = loops.m2po(batch.log_probs, mu, batch.advantages, batch.mask, threshold)
        chosen = functools.partial(stale.m2po, behavior_log_probs=mu, threshold=threshold)
        found = value_and_slope(chosen, batch.log_probs, nothing, batch.advantages, batch.mask)
        is_the_loop(*found, expected, batch.mask)
        assert (expected.low.any() and expected.high.any()) == (threshold < 1)


def one_row(moves, advantages, **keywords):
    moves, advantages = (jnp.asarray([x], jnp.float32) for x in (moves, advantages))
    mu, mask = jnp.full_like(moves, -2.0), jnp.ones(moves.shape, bool)
    return stale.m2po(mu + moves, mu * jnp.nan, advantages, mask, behavior_log_probs=mu, **keywords)


def test_m2po_by_hand():
    """Only tokens of T are counted and dropped, by both signs; .04 is the published threshold."""
    moves = [0.1, 0.3, 3.0, -3.0, -0.1, -0.3, -3.0, 3.0, 3.0]
    advantages = [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 0.0]
    out = one_row(moves, advantages)  # squares .01, .01, .09, .09, 9, 9: a third would fit, but equals go together
    np.testing.assert_array_equal(out.clipped_high, [[0, 1, 1, 0, 0, 0, 0, 0, 0]])
    np.testing.assert_array_equal(out.clipped_low, [[0, 0, 0, 0, 0, 1, 1, 0, 0]])
    kept = np.float32([1, 0, 0, 1, 1, 0, 0, 1, 1])
    np.testing.assert_allclose(out.loss, [-kept * advantages * np.exp(moves)], rtol=1e-5)
    # The mean with .0001 and .0001 is just below .04, or just above. A far token outside of T changes nothing.
    for square, drops in ((0.1197, False), (0.1199, True)):
        out = one_row([1e-2, -1e-2, np.sqrt(square), -5.0], [2.0, -0.5, 1.0, 1.0])
        np.testing.assert_array_equal(out.clipped_high, [[False, False, drops, False]])
        assert not out.clipped_low.any()
    np.testing.assert_array_equal(one_row([0.5, -0.4], [1.0, -1.0]).loss, 0)  # none of T is below the threshold
    np.testing.assert_allclose(one_row([0.5, -0.4], [-1.0, 1.0]).loss, [[np.exp(0.5), -np.exp(-0.4)]], rtol=1e-6)


def test_a_ratio_beyond_float32_is_dropped_without_a_nan():
    def loss(moves):
        return jnp.sum(one_row(moves, [1.0, 1.0]).loss)

    np.testing.assert_allclose(jax.grad(loss)(jnp.float32([90.0, 0.1])), [0.0, -np.exp(0.1)], rtol=1e-5)


@pytest.mark.parametrize("inner", ["clipped_surrogate", "reinforce"])
def test_opsm_and_its_gradient_are_the_loop(inner):
    dropped = []
    for seed, delta in ((0, 1e-4), (1, 0.02), (2, -0.02), (3, 1e-4)):
        batch = ragged_batch(seed)
        arrays, mu = (*batch[:3], batch.mask), batch.ref_log_probs
        plain, slope = value_and_slope(getattr(policy, inner), *arrays)
        base = loops.Result(*map(np.asarray, (plain.loss, slope, *plain[1:])))
        expected = loops.opsm(batch.log_probs, mu, batch.advantages, batch.mask, base, delta)
        chosen = functools.partial(stale.opsm, behavior_log_probs=mu, delta=delta, surrogate=inner)
        is_the_loop(*value_and_slope(chosen, *arrays), expected, batch.mask)
        down = batch.mask & (batch.advantages < 0) & (base.gradient != 0)
        dropped.extend(expected.gradient[down] == 0)
    assert any(dropped) and not all(dropped)


def test_opsm_asks_the_current_policy():
    """At the first update nothing has moved. Later the rows with A < 0 that have become less likely are left alone."""
    mu, mask = jnp.full((3, 2), -1.0), jnp.ones((3, 2), bool)
    advantages = jnp.asarray([[-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])

    chosen = functools.partial(stale.opsm, behavior_log_probs=mu)
    first, slope = value_and_slope(chosen, mu, mu, advantages, mask)
    np.testing.assert_array_equal(slope, -advantages)
    assert not first.clipped_low.any()
    moves = np.float32([[-3e-4, 8e-5], [-3e-4, 1.2e-4], [-0.1, -0.1]])  # means -1.1e-4 and -9e-5: 1e-4 is slime's
    later, slope = value_and_slope(chosen, mu + moves, mu, advantages, mask)
    np.testing.assert_array_equal(later.clipped_low, [[True] * 2, [False] * 2, [False] * 2])
    np.testing.assert_allclose(slope, -np.asarray(advantages) * np.exp(moves) * [[0], [1], [1]], rtol=1e-4)


def test_a_row_that_opsm_leaves_alone_may_overflow():
    """Less likely than its sampler made it, and far likelier than an old policy that numerics or age have moved."""
    log_probs, mask = jnp.full((2, 1), -1.0), np.ones((2, 1), bool)
    old, mu = jnp.asarray([[-100.0], [-1.0]]), jnp.asarray([[-0.5], [-1.0]])
    fn = functools.partial(stale.opsm, behavior_log_probs=mu)
    out, slope = value_and_slope(fn, log_probs, old, -jnp.ones((2, 1)), mask)
    np.testing.assert_array_equal(out.loss, [[0.0], [1.0]])
    np.testing.assert_array_equal(slope, [[0.0], [1.0]])
    np.testing.assert_array_equal(out.clipped_low, [[True], [False]])


MASKED = [stale.m2po, stale.opsm]


@pytest.mark.parametrize("fn", MASKED)
def test_on_policy_nothing_is_masked(fn):
    """With mu = pi (= pi_old for opsm) both are GRPO without a clip: -A, with the gradient -A."""
    arrays = (BATCH.log_probs, BATCH.log_probs, BATCH.advantages, MASK)
    out, slope = value_and_slope(functools.partial(fn, behavior_log_probs=BATCH.log_probs), *arrays)
    expected = np.where(MASK, -BATCH.advantages, 0)
    np.testing.assert_allclose(out.loss, expected, rtol=1e-6)
    assert not (out.clipped_low | out.clipped_high).any()
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


@pytest.mark.parametrize("fn", MASKED)
def test_the_masks_keep_the_laws(fn):
    """Padding, order of rows, devices, jit, data. m2po's mean is over the rows of a call, and so over a micro-batch."""
    check_surrogate(fn, except_for=["micro_batches_change_nothing"] if fn is stale.m2po else [])


@pytest.mark.parametrize("fn", MASKED)
def test_the_sampler_is_data_and_its_padding_is_not_read(fn):
    hidden = [np.where(MASK, x, np.nan).astype(np.float32) for x in (BATCH.log_probs, BATCH.advantages, MU)]
    old = np.where(MASK, BATCH.old_log_probs, np.nan)

    def total(log_probs, advantages, behavior):
        return jnp.sum(fn(log_probs, old, advantages, MASK, behavior_log_probs=behavior).loss)

    of = jax.grad(total, argnums=(0, 1, 2))(*hidden)
    assert np.isfinite(of[0]).all() and not np.asarray(of[0])[~MASK].any() and np.asarray(of[0]).any()
    assert not np.asarray(of[1]).any() and not np.asarray(of[2]).any()
    with pytest.raises(AssertionError):
        fn(BATCH.log_probs, BATCH.old_log_probs, BATCH.advantages, MASK, behavior_log_probs=MU[:, :1])
