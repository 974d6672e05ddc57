"""The full KL beside the whole head, its gradient at the old policy, and mirror descent's optimum in a table."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import TokenBatch
from rl_jax.losses import policy
from rl_jax.training.full_kl import make_full_kl
from tests.losses.test_one_token import Table


def test_the_kl_is_that_of_the_whole_vocabulary():
    """In chunks that do not divide the columns, with a temperature; no gradient at the old policy, none into it."""
    params, old = (jax.random.normal(jax.random.key(i), (5, 5)) for i in (0, 1))
    tokens = jax.random.randint(jax.random.key(2), (3, 8), 0, 5)
    batch = TokenBatch(tokens, tokens, tokens)
    kl = jax.jit(make_full_kl(Table, completion_length=5, chunk=2, temperature=0.7))

    def whole(params, old):
        log_pi, log_old = (jax.nn.log_softmax(x[tokens[:, 2:7]] / 0.7) for x in (params, old))
        return jnp.sum(jnp.exp(log_pi) * (log_pi - log_old), axis=-1)

    np.testing.assert_allclose(kl(params, old, batch), whole(params, old), rtol=1e-5)
    ours, theirs = (jax.grad(lambda p, f=f: jnp.sum(jnp.sin(f(p))))(params) for f in (
        lambda p: kl(p, old, batch), lambda p: whole(p, old)
    ))  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    at_old, into_old = jax.grad(lambda p, o: jnp.sum(kl(p, o, batch)), argnums=(0, 1))(old, old)
    np.testing.assert_allclose(at_old, 0.0, atol=1e-6)
    np.testing.assert_array_equal(into_old, 0.0)


def test_the_optimum_is_the_old_policy_times_the_exponential_of_the_advantage():
    """pi_old exp(t A) / Z: many updates on the same actions, each as often as the old policy takes it."""
    old = jnp.zeros((2, 4)).at[0].set(jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1])))
    advantages, step_size = jnp.array([[-1.0], [0.5], [2.0], [0.0]]), 0.6
    tokens = jnp.array([[0, action] for action in range(4)])
    batch, mask = TokenBatch(tokens, tokens, tokens), jnp.ones((4, 1), bool)
    kl, weights = make_full_kl(Table, completion_length=1), jnp.exp(old[0])[:, None]
    old_log_probs = jax.nn.log_softmax(old[0])[:, None]

    def loss(params):
        log_probs = jax.nn.log_softmax(params[0])[:, None]
        pushed = policy.importance_sampling(log_probs, old_log_probs, advantages, mask).loss
        return jnp.sum(weights * pushed) + kl(params, old, batch)[0, 0] / step_size

    params = jax.lax.fori_loop(0, 400, lambda _, p: p - 0.5 * jax.grad(loss)(p), old)
    expected = jax.nn.softmax(old[0] + step_size * advantages[:, 0])
    np.testing.assert_allclose(jax.nn.softmax(params[0]), expected, atol=1e-4)
    first = jax.grad(loss)(old)[0]
    np.testing.assert_allclose(first, -weights[:, 0] * (advantages - jnp.sum(weights * advantages))[:, 0], atol=1e-6)
