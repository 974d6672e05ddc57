"""losses/planning.py: targets against a loop over the pseudocode and by hand, the loss against numpy, its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import planning

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
GAMMA, N_STEP, UNROLL = 0.8, 2, 3


def targets_of(rewards, terminated, truncated, values, absorbing=True):
    fn = jax.jit(
        lambda *x: planning.plan_targets(*x, discount=GAMMA, steps=N_STEP, unroll=UNROLL, absorbing=absorbing),
        compiler_options=QUICK,
    )
    rows = (jnp.asarray(rewards, jnp.float32), jnp.asarray(terminated), jnp.asarray(truncated))
    return jax.tree.map(np.asarray, fn(*rows, jnp.asarray(values, jnp.float32)))


def looped(rewards, terminated, truncated, values, absorbing):
    """One row, position by position: (z, masks, u) as the pseudocode makes them, and our rule of cut episodes."""
    done = [i for i in range(len(rewards)) if terminated[i] or truncated[i]]
    end = done[0] if done else len(rewards)  # the last step of the episode
    cut = bool(done) and not terminated[end]
    z, known, u, paid, policy = [], [], [], [], []
    for k in range(UNROLL + 1):
        total, i = 0.0, 0
        while i < N_STEP and k + i <= end and not (cut and k + i == end):
            total += GAMMA**i * rewards[k + i]
            i += 1
        if k + i <= end:
            total += GAMMA**i * values[k + i]
        alive, after = k <= end, absorbing and not cut and k > end
        z.append(total if alive else 0.0)
        known.append(alive or after)
        policy.append(alive)
        u.append(rewards[k] if alive else 0.0)
        paid.append(alive or after)
    return z, known, u[:-1], paid[:-1], policy


@pytest.mark.parametrize("absorbing", [True, False])
def test_targets_are_those_of_a_loop(absorbing):
    rng = np.random.default_rng(0)
    shape = (200, UNROLL + N_STEP + 2)
    rows = rng.normal(size=shape), rng.random(shape) < 0.15, rng.random(shape) < 0.15, rng.normal(size=shape)
    found = targets_of(*rows, absorbing=absorbing)
    expected = [np.array(x) for x in zip(*(looped(*row, absorbing) for row in zip(*rows, strict=True)), strict=True)]
    for own, other in zip(found, expected, strict=True):
        assert own.shape == other.shape
        np.testing.assert_allclose(own, other, atol=1e-6)
    assert 0 < found.policy_mask.mean() < found.value_mask.mean() + (not absorbing) and not found.value_mask.all()


def test_targets_by_hand():
    """Rewards 1, 2, 4, ..; searched values 10, 20, ..; an end, a cut, and neither."""
    rewards, values = np.tile(2.0 ** np.arange(6), (3, 1)), np.tile(10.0 * np.arange(1, 7), (3, 1))
    ended = np.zeros((3, 6), bool)
    terminated, truncated = ended.copy(), ended.copy()
    terminated[1, 1] = truncated[2, 1] = True
    found = targets_of(rewards, terminated, truncated, values)
    whole = [1 + 0.8 * 2 + 0.64 * 30, 2 + 0.8 * 4 + 0.64 * 40, 4 + 0.8 * 8 + 0.64 * 50, 8 + 0.8 * 16 + 0.64 * 60]
    np.testing.assert_allclose(found.values[0], whole, rtol=1e-6)
    np.testing.assert_allclose(found.values[1], [1 + 0.8 * 2, 2, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(found.values[2], [1 + 0.8 * 20, 20, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(found.rewards, [[1, 2, 4], [1, 2, 0], [1, 2, 0]])
    np.testing.assert_array_equal(found.value_mask, [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    np.testing.assert_array_equal(found.reward_mask, [[1, 1, 1], [1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(found.policy_mask, [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])


def test_the_loss_is_a_sum_over_positions_and_its_gradients_are_those_of_the_pseudocode():
    rng = np.random.default_rng(1)
    policy, value, reward = (rng.normal(size=(4, UNROLL + 1 - last)) for last in (0, 0, 1))
    masks = [rng.random(x.shape) < 0.7 for x in (value, reward, policy)]
    targets = planning.PlanTargets(value, jnp.asarray(masks[0]), reward, jnp.asarray(masks[1]), jnp.asarray(masks[2]))
    expected = np.zeros(4)
    for row in range(4):
        for k in range(UNROLL + 1):
            scale = 1.0 if k == 0 else 1.0 / UNROLL
            expected[row] += scale * policy[row, k] * masks[2][row, k]
            expected[row] += scale * 0.25 * value[row, k] * masks[0][row, k]
            if k > 0:
                expected[row] += scale * 3.0 * reward[row, k - 1] * masks[1][row, k - 1]

    def loss(policy, value, reward):
        return planning.unrolled_loss(policy, value, reward, targets, value_coef=0.25, reward_coef=3.0)

    arrays = [jnp.asarray(x, jnp.float32) for x in (policy, value, reward)]
    np.testing.assert_allclose(loss(*arrays), expected, rtol=1e-5)
    slopes = jax.grad(lambda *x: jnp.sum(loss(*x)), argnums=(0, 1, 2))(*arrays)
    scales = np.array([1.0] + [1.0 / UNROLL] * UNROLL)
    np.testing.assert_allclose(slopes[0], scales * masks[2], rtol=1e-6)
    np.testing.assert_allclose(slopes[1], 0.25 * scales * masks[0], rtol=1e-6)
    np.testing.assert_allclose(slopes[2], 3.0 * scales[1:] * masks[1], rtol=1e-6)
    # What is masked may be anything, and has no gradient.
    broken = [jnp.where(mask, x, jnp.inf) for x, mask in zip(arrays, (masks[2], *masks[:2]), strict=True)]
    np.testing.assert_allclose(loss(*broken), expected, rtol=1e-5)


def test_targets_are_data_and_the_gradient_is_scaled():
    rows, flags = jnp.ones((2, 6)), jnp.zeros((2, 6), bool)

    def total(rewards, values):
        found = planning.plan_targets(rewards, flags, flags, values, discount=GAMMA, steps=N_STEP, unroll=UNROLL)
        return jnp.sum(found.values) + jnp.sum(found.rewards)

    for slope in jax.grad(total, argnums=(0, 1))(rows, rows):
        assert not slope.any()
    value, slope = jax.value_and_grad(lambda x: planning.scale_gradient(x * x, 0.5))(3.0)
    assert (value, slope) == (9.0, 3.0)
    with pytest.raises(ValueError, match="rows of 5 steps: unroll=3 and steps=2 must be 1 or more, and need 6"):
        planning.plan_targets(rows[:, :5], *(2 * (flags[:, :5],)), rows[:, :5], discount=GAMMA, steps=2, unroll=3)
