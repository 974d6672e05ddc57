"""control/cpl.py: the published loss in torch, and the policy that it finds in a finite MDP."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from rl_jax.control import cpl, segments, tabular
from rl_jax.core.types import StepInputs
from rl_jax.losses.preference import links, score_maps
from rl_jax.models.agents.actor_critic import make_agent
from rl_jax.models.agents.distributions import categorical
from rl_jax.models.agents.scoring import make_score
from tests.control.segment_cases import all_segments, pairs_of, torch_sums

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def quick(fn, *args):
    return jax.jit(fn, compiler_options=QUICK)(*args)


@pytest.mark.slow
@pytest.mark.parametrize(("bias", "discount", "cloning"), [(0.5, 1.0, 0.0), (1.0, 0.9, 0.0), (0.7, 0.9, 0.6)])
def test_cpl_is_the_published_loss(bias, discount, cloning):
    """log(1 + exp(-(alpha (S_w - lambda S_l)))) of the published biased_bce_with_logits, and c times the cloning."""
    x, batch = pairs_of()
    alpha = 0.3
    objective = cpl.make_objective(alpha=alpha, bias=bias, discount=discount, cloning_coef=cloning)

    def loss(x):
        return cpl.policy_loss(x, batch, objective)[0].value()

    leaf, sums = torch_sums(x, batch, discount)
    logits = alpha * sums[:, 0] - bias * alpha * sums[:, 1]
    mask = torch.tensor(np.asarray(batch.completion_mask))
    clone = (-(leaf * mask).sum(-1) / mask.sum(-1)).mean()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits)) + cloning * clone
    expected.backward()
    np.testing.assert_allclose(loss(jnp.asarray(x)), float(expected.detach()), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(x)), leaf.grad.numpy(), rtol=1e-4, atol=1e-6)
    cloned = cpl.cloning_loss(jnp.asarray(x), batch)[0].value()
    np.testing.assert_allclose(cloned, float(clone.detach()), rtol=1e-5)


def test_the_published_settings():
    assert cpl.CPL.beta == 0.1 and cpl.CPL.score_map.keywords == {"bias": 0.5}
    assert not cpl.CPL.reference and not cpl.CPL.regularizer_coef
    default = cpl.make_objective()
    assert (default.score_map.keywords, default.token_weight.keywords) == ({"bias": 0.5}, {"discount": 1.0})
    plain = dict(score_map=None, token_weight=None)
    assert default._replace(**plain) == cpl.CPL._replace(**plain)


@pytest.mark.slow
def test_means_take_the_place_of_sums():
    """length_power = 1, for segments that end with their episode: twice the length is no less likely."""
    mask = jnp.array([[[True, True, True, True], [True, True, False, False]]])
    batch = pairs_of(rows=1, length=4)[1]._replace(completion_mask=mask)
    log_probs = jnp.full((1, 2, 4), -0.7)
    by_sum, by_mean = (
        cpl.policy_loss(log_probs, batch, cpl.make_objective(bias=1.0, length_power=power))[0].value()
        for power in (0.0, 1.0)
    )
    np.testing.assert_allclose(by_sum, np.log1p(np.exp(0.1 * 0.7 * 2)), rtol=1e-5)
    np.testing.assert_allclose(by_mean, np.log(2.0), rtol=1e-5)


@pytest.mark.slow
def test_segments_are_scored_and_cloned_step_by_step():
    """The log-probs of an agent in numpy; cloning brings them up, most of all those of steps that are always taken."""
    agent = make_agent((1,), categorical(3), hidden=(8,))
    score, rng = make_score(agent), np.random.default_rng(5)
    observations = jnp.asarray(rng.choice([-1.0, 1.0], size=(20, 4, 1)), jnp.float32)
    actions = (observations[..., 0] > 0).astype(jnp.int32)  # 0 or 1 by the observation, never 2
    mask = jnp.ones((20, 4), bool).at[:, 3].set(False)
    actions = actions.at[:, 3].set(2)  # outside of the mask: must not be learned
    pairs = jnp.asarray(rng.integers(0, 20, size=(30, 2)))
    data = segments.SegmentPairs(StepInputs(observations, actions), mask, pairs)
    batch = segments.pair_batch(data, jnp.arange(30))
    params = agent.init(jax.random.key(0))
    log_probs = cpl.segment_log_probs(score, params, batch.batch)
    logits = np.asarray(agent.policy(params, observations.reshape(-1, 1)), np.float64)
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = expected[np.arange(80), np.asarray(actions).reshape(-1)].reshape(20, 4)[np.asarray(pairs)]
    np.testing.assert_allclose(log_probs, expected, rtol=1e-4, atol=1e-5)

    def cloned(params):
        settings = dict(updates=60, batch_size=16, max_grad_norm=1.0)
        params = cpl.clone(score, params, jax.random.key(1), data, optax.adam(0.03), **settings)
        return cpl.segment_log_probs(score, params, batch.batch)

    after = quick(cloned, params)
    assert after[..., :3].min() > -0.1 > log_probs.max() and after[..., 3].max() < -2.0


def test_discounted_counts_the_places_of_the_mask():
    mask = jnp.array([[[True, True, False, True]], [[False, True, True, False]]])
    found = np.asarray(score_maps.discounted(mask, discount=0.5))
    np.testing.assert_allclose(found[0, 0][[0, 1, 3]], [1.0, 0.5, 0.25])
    np.testing.assert_allclose(found[1, 0][[1, 2]], [1.0, 0.5])


def cpl_policy(advantages, rewards, following, alpha, label):
    """The tabular policy that CPL finds from soft labels of all pairs of walks of 2 steps. label: "regret" or not."""
    at, chosen = all_segments(*rewards.shape, 2, following)
    judged = jnp.asarray((advantages if label == "regret" else rewards)[at, chosen])
    mask = jnp.ones(at.shape, bool)
    f = segments.segment_sums(judged, mask)
    pairs = np.array(list(itertools.combinations(range(len(at)), 2)))
    data = segments.SegmentPairs((jnp.asarray(at), jnp.asarray(chosen)), mask, jnp.asarray(pairs))
    batch = segments.pair_batch(data, jnp.arange(len(pairs)))
    batch = batch._replace(extras={"label_probs": segments.preference_probs(f[pairs])})
    objective = cpl.CPL._replace(
        beta=alpha, score_map=functools.partial(score_maps.biased, bias=1.0), link=links.soft_label
    )

    def loss(logits):
        log_probs = jax.nn.log_softmax(logits)[batch.batch]
        return cpl.policy_loss(log_probs, batch, objective)[0].value()

    optimizer = optax.adam(0.1)

    def turn(carry, _):
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (optax.apply_updates(logits, updates), state), None

    logits = jnp.zeros(rewards.shape)
    (logits, _), _ = quick(lambda c: jax.lax.scan(turn, c, None, 800), (logits, optimizer.init(logits)))
    return np.asarray(jax.nn.softmax(logits)), loss


@pytest.mark.slow
def test_cpl_recovers_the_optimal_policy_of_a_finite_mdp():
    """Labels by the regret of the soft optimum: the least loss is at pi = exp(A / alpha), to the digit."""
    alpha, rng = 0.5, np.random.default_rng(7)
    following = rng.integers(0, 3, size=(3, 2))
    rewards = rng.normal(size=(3, 2)).astype(np.float32)
    probs = jnp.asarray(0.9 * np.eye(3, dtype=np.float32)[following])
    advantages = np.asarray(tabular.advantages(jnp.asarray(rewards), probs, discount=0.9, temperature=alpha))
    best = np.exp(advantages / alpha)
    found, loss = cpl_policy(advantages, rewards, following, alpha, "regret")
    np.testing.assert_allclose(found, best, atol=1e-4)
    assert np.abs(jax.grad(loss)(jnp.log(best))).max() < 1e-5
    other, _ = cpl_policy(advantages, rewards, following, alpha, "partial return")
    assert np.abs(other - best).max() > 0.3  # partial returns are no advantages
