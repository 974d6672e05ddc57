"""losses/token_values.py: against loops in float64 over the model's tokens only, as LMRL-Gym's code gathers them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import token_values

RNG = np.random.default_rng(0)
K, B, C, V = 2, 3, 7, 5
MASK = np.array([[1, 1, 0, 0, 1, 1, 0], [0, 1, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]], bool)
Q, TARGET = RNG.normal(size=(K, B, C, V)), RNG.normal(size=(K, B, C))
VALUES, REWARDS, FINAL = RNG.normal(size=(B, C)), RNG.normal(size=(B, C)), np.array([0.7, 0.0, 0.3])
ACTIONS = RNG.integers(0, V, (B, C))


def loop_next(row):
    """{column: V of the next column of the model} of a row."""
    places = np.flatnonzero(MASK[row])
    return {int(t): VALUES[row, places[i + 1]] if i + 1 < len(places) else FINAL[row] for i, t in enumerate(places)}


def loop_returns(row, discount):
    found, after = {}, 0.0
    for t in reversed(np.flatnonzero(MASK[row])):
        after = REWARDS[row, t] + discount * after
        found[int(t)] = after
    return found


def loop(q, targets, weight, values=None, tau=0.95):
    """The loss of each token. targets: {column: y} of each row."""
    lost = np.zeros((B, C))
    for b in range(B):
        for t, y in targets[b].items():
            for k in range(K):
                row = q[k, b, t]
                entropy = np.log(np.sum(np.exp(row))) - row[ACTIONS[b, t]]
                lost[b, t] += 0.5 * (row[ACTIONS[b, t]] - y) ** 2 + weight * entropy
            if values is not None:
                slow = TARGET[:, b, t].min()
                lost[b, t] += 0.5 * (tau if slow >= values[b, t] else 1 - tau) * (slow - values[b, t]) ** 2
    return lost


def f32(x):
    return jnp.asarray(x, jnp.int32 if np.asarray(x).dtype.kind == "i" else jnp.float32)


def following():
    return token_values.next_values(f32(VALUES), f32(FINAL), jnp.asarray(MASK))


def ilql(q, values, **options):
    mask = jnp.asarray(MASK)
    return token_values.ilql(
        q, f32(ACTIONS), values, following(), f32(TARGET), f32(REWARDS), mask, discount=0.9, **options
    )


def test_the_next_state_is_that_before_the_models_next_token():
    found = np.asarray(following())
    for row in range(B):
        for t, value in loop_next(row).items():
            assert found[row, t] == pytest.approx(value, rel=1e-6)


def test_returns_to_go_are_discounted_by_the_models_tokens_only():
    found = np.asarray(token_values.returns_to_go(f32(REWARDS), jnp.asarray(MASK), discount=0.9))
    assert not found[~MASK].any()
    for row in range(B):
        for t, value in loop_returns(row, 0.9).items():
            assert found[row, t] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_losses_are_those_of_the_loops(weight):
    targets = [{t: REWARDS[b, t] + 0.9 * v for t, v in loop_next(b).items()} for b in range(B)]
    found = ilql(f32(Q), f32(VALUES), conservative=weight)
    np.testing.assert_allclose(found, loop(Q, targets, weight, VALUES), rtol=1e-5, atol=1e-6)
    returns = token_values.returns_to_go(f32(REWARDS), jnp.asarray(MASK), discount=0.9)
    found = token_values.monte_carlo(f32(Q), f32(ACTIONS), returns, jnp.asarray(MASK), conservative=weight)
    np.testing.assert_allclose(found, loop(Q, [loop_returns(b, 0.9) for b in range(B)], weight), rtol=1e-5, atol=1e-6)


def test_gradients_are_the_documented_ones():
    """dQ towards the target from either side, dV weighed by tau above and 1 - tau below; neither through the target."""
    weight, tau = 0.3, 0.8
    lost = jax.jit(jax.grad(lambda q, v: ilql(q, v, conservative=weight, expectile=tau).sum(), (0, 1)))
    by_q, by_v = map(np.asarray, lost(f32(Q), f32(VALUES)))
    signs = set()
    for b in range(B):
        for t, after in loop_next(b).items():
            for k in range(K):
                softmax = np.exp(Q[k, b, t]) / np.exp(Q[k, b, t]).sum()
                wanted = weight * softmax
                wanted[ACTIONS[b, t]] += Q[k, b, t, ACTIONS[b, t]] - (REWARDS[b, t] + 0.9 * after) - weight
                np.testing.assert_allclose(by_q[k, b, t], wanted, rtol=1e-4, atol=1e-5)
            d = TARGET[:, b, t].min() - VALUES[b, t]
            signs.add(np.sign(d))
            assert float(by_v[b, t]) == pytest.approx(-(tau if d >= 0 else 1 - tau) * d, rel=1e-4)
    assert signs == {-1.0, 1.0}
    assert not by_v[~MASK].any() and not by_q[:, ~MASK].any()


def test_what_the_model_did_not_say_is_read_by_no_loss_and_the_published_numbers():
    """nan in every array outside of the mask; discount .99, expectile .95, no conservative term by default."""
    mask, bad = jnp.asarray(MASK), lambda x: f32(np.where(MASK, x, np.nan))  # noqa: E731
    q = f32(np.where(MASK[None, :, :, None], Q, np.nan))
    target = f32(np.where(MASK[None], TARGET, np.nan))
    targets = [{t: REWARDS[b, t] + 0.99 * v for t, v in loop_next(b).items()} for b in range(B)]

    def both(q, v, rewards):
        found = token_values.ilql(q, f32(ACTIONS), v, bad(following()), target, rewards, mask)
        returns = token_values.returns_to_go(rewards, mask, discount=0.9)
        spoilt = jnp.where(mask, returns, jnp.nan)
        alone = token_values.monte_carlo(q, f32(ACTIONS), spoilt, mask)
        return jnp.sum(found) + jnp.sum(alone), (found, alone)

    slopes, (found, alone) = jax.grad(both, (0, 1), has_aux=True)(q, bad(VALUES), bad(REWARDS))
    np.testing.assert_allclose(found, loop(Q, targets, 0.0, VALUES), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(alone, loop(Q, [loop_returns(b, 0.9) for b in range(B)], 0.0), rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(x).all() for x in slopes)
    assert not np.asarray(slopes[1])[~MASK].any() and not np.asarray(slopes[0])[:, ~MASK].any()
    returns = bad(np.ones((B, C)))
    with jax.debug_nans(True):  # nothing is computed from them either
        assert np.isfinite(token_values.monte_carlo(q, f32(ACTIONS), returns, mask)).all()


def test_what_the_model_did_not_say_cannot_poison_a_loss():
    bad_q, bad_v = np.where(MASK[None, :, :, None], Q, np.inf), np.where(MASK, VALUES, np.nan)
    grads = jax.grad(lambda q, v: ilql(q, v, conservative=0.3).sum(), (0, 1))(f32(bad_q), f32(bad_v))
    assert all(np.isfinite(x).all() for x in grads)


def test_expectile_one_half_is_td_of_the_behaviour_and_a_high_one_the_best_action():
    """One state, two actions with returns 0 and 1, half of the data each: V is their expectile, Q their returns."""
    mask, actions = jnp.ones((2, 1), bool), jnp.array([[0], [1]])
    rewards, zeros = jnp.array([[0.0], [1.0]]), jnp.zeros((2, 1))

    def learned(tau):
        q, v = jnp.zeros(2), jnp.float32(0.0)

        def loss(q, v, slow):
            rows, values = jnp.broadcast_to(q, (1, 2, 1, 2)), jnp.broadcast_to(v, (2, 1))
            data = (zeros, slow[None, :, None], rewards, mask)
            return token_values.ilql(rows, actions, values, *data, expectile=tau).mean()

        step = jax.jit(jax.grad(loss, (0, 1)))
        for _ in range(400):
            by_q, by_v = step(q, v, q)
            q, v = q - 0.5 * by_q, v - 0.5 * by_v
        return np.asarray(q), float(v)

    q, value = learned(0.5)
    np.testing.assert_allclose(q, [0, 1], atol=1e-3)
    assert value == pytest.approx(0.5, abs=1e-3)
    assert learned(0.95)[1] == pytest.approx(0.95, abs=1e-3)
