"""models/perturbed.py: logits are log pi_beta + beta min_k Q_k, in a forward and with caches, and begin as pi_beta."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.perturbed import add_token_values, make_perturbed, make_token_values
from rl_jax.models.transformer.model import make_transformer
from tests import tiny

CONFIG = dataclasses.replace(tiny.CONFIG, num_layers=1)
MODEL, BATCH = make_transformer(CONFIG), tiny.token_batch([6, 4], 6)

READ = jax.jit(make_token_values(MODEL, completion_length=3))


@pytest.fixture(scope="module")
def params():
    """Values whose heads are not 0, on other params than the policy's."""
    values = add_token_values(MODEL, tiny.random_params(CONFIG, seed=1), jax.random.key(0))
    for head in (values["q"], values["v"]):
        head["outside"]["kernel"] = 0.3 * jax.random.normal(jax.random.key(2), head["outside"]["kernel"].shape)
    return {"policy": tiny.random_params(CONFIG), "values": values}


@jax.jit
def logits(beta, params):
    model = make_perturbed(MODEL, beta=beta)
    return model.unembed(params, model.apply(params, BATCH))


def test_the_logits_are_the_policys_and_the_least_q(params):
    q, values = READ(params["values"], BATCH)
    assert q.shape == (2, 2, 3, 64) and values.shape == (2, 4)
    policy = np.asarray(jax.jit(lambda p: MODEL.unembed(p, MODEL.apply(p, BATCH)))(params["policy"]))
    np.testing.assert_allclose(logits(0.0, params), policy, atol=1e-5)
    wanted = policy[:, -4:-1] + 2.0 * np.minimum(*np.asarray(q))  # column t is read before token t
    np.testing.assert_allclose(logits(2.0, params)[:, -4:-1], wanted, rtol=1e-4, atol=1e-4)


def test_it_begins_as_the_policy(params):
    fresh = add_token_values(MODEL, params["policy"], jax.random.key(0), critics=1)
    assert not fresh["q"]["outside"]["kernel"].any() and not fresh["v"]["outside"]["kernel"].any()
    assert len(fresh["q"]["outside"]["bias"]) == 1
    np.testing.assert_allclose(logits(8.0, params | {"values": fresh}), logits(0.0, params), atol=1e-5)


def test_a_cache_gives_the_logits_of_a_forward(params):
    """extend reads the first tokens, decode the last one: of both networks."""
    model, rows = make_perturbed(MODEL, beta=2.0), tiny.token_batch([6, 6], 6)

    @jax.jit
    def both(params):
        whole = model.unembed(params, model.apply(params, rows))[:, -1]
        unstacked, visible = model.unstack(params), jnp.ones((2, 6), bool)
        first = jax.tree.map(lambda x: x[:, :5], rows)
        _, cache = model.extend(unstacked, first, model.init_cache(2, 6), jnp.int32(0), visible)
        args = (rows.tokens[:, 5], rows.positions[:, 5], cache, jnp.full(2, 5, jnp.int32), visible)
        return whole, model.unembed(unstacked, model.decode(unstacked, *args)[0])

    whole, decoded = both(params)
    np.testing.assert_allclose(decoded, whole, rtol=1e-4, atol=1e-4)
