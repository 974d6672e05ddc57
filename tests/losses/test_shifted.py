"""losses/reward_model/shifted.py, parts/reward_shift.py (Secrets of RLHF II): formulas, the meta step, configs."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import secrets2
from experiments.parts import check_config, reward_readers, reward_shift
from experiments.parts.setup import make_setup
from rl_jax.losses.reward_model import shifted


def contrast_by_loops(hidden, keep, live, tau):
    """SimCSE's loss, pair by pair."""
    gaps = [[keep[i, v, 0] * hidden[i, 0] - keep[i, v, 1] * hidden[i, 1] for v in (0, 1)] for i in range(len(hidden))]
    cosine = lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)  # noqa: E731
    found = []
    for i in range(len(hidden)):
        scores = np.array([cosine(gaps[i][0], gaps[j][1]) / tau for j in range(len(hidden)) if live[j]])
        own = cosine(gaps[i][0], gaps[i][1]) / tau
        found.append(-own + np.log(np.exp(scores).sum()) if live[i] else 0.0)
    return np.array(found)


def test_views_are_contrasted_as_in_simcse():
    rng = np.random.default_rng(0)
    hidden, keep = rng.normal(size=(5, 2, 8)), rng.random((5, 2, 2, 8)) > 0.1

    def total(hidden, live):
        found = shifted.view_contrast(hidden, keep, live, temperature=0.5)
        return found.loss.sum(), found

    contrast = jax.jit(jax.grad(total, has_aux=True))
    for live in (np.ones(5, bool), np.array([True, False, True, True, False])):
        slope, found = contrast(np.float32(np.where(live[:, None, None], hidden, np.nan)), live)
        assert np.isfinite(slope).all() and (np.asarray(slope).any(axis=(1, 2)) == live).all()
        np.testing.assert_allclose(found.loss, contrast_by_loops(hidden, keep, live, 0.5), rtol=2e-5)
        np.testing.assert_array_equal(found.live, live)
    usual = jax.jit(shifted.view_contrast)(np.float32(hidden), keep, np.ones(5, bool))
    expected = contrast_by_loops(hidden, keep, np.ones(5, bool), 0.05)  # SimCSE's temperature
    np.testing.assert_allclose(usual.loss, expected, rtol=1e-3, atol=1e-5)
    same = jnp.ones((4, 2, 8)) * jnp.array([1.0, 0.0])[None, :, None]
    alike = shifted.view_contrast(same, jnp.ones((4, 2, 2, 8), bool), jnp.ones(4, bool))
    np.testing.assert_allclose(alike.loss, np.log(4), rtol=1e-5)
    zeros = jax.grad(lambda x: shifted.view_contrast(x, jnp.ones((3, 2, 2, 4), bool), jnp.ones(3, bool)).loss.sum())
    assert np.isfinite(zeros(jnp.zeros((3, 2, 4)))).all(), "two equal responses have no direction"
    rate = np.mean(reward_shift.masks(jnp.arange(200, dtype=jnp.uint32), 16, 0.1))
    assert 0.88 < rate < 0.92


def test_the_difference_is_the_papers_sum():
    rewards = np.array([[0.5, -1.0, 2.0, 0.0], [1.0, 1.0, 3.0, 3.0]])
    present = np.array([[True, True, True, True], [True, True, False, False]])
    found = shifted.difference(jnp.float32(rewards), jnp.asarray(present))
    sigma = lambda x: 1 / (1 + np.exp(-abs(x)))  # noqa: E731
    whole = sum(sigma(a - b) for a, b in itertools.combinations(rewards[0], 2))
    np.testing.assert_allclose(found.loss, [2 / 16 * whole, 2 / 4 * 0.5], rtol=1e-6)
    alone = shifted.difference(jnp.ones((1, 2)), jnp.array([[True, False]]))
    assert not alone.live[0] and alone.loss[0] == 0
    assert found.live.tolist() == [True, True]
    some, nothing = np.array([[np.nan, 2.0, 1.0], [np.nan] * 3]), np.array([[False, True, True], [False] * 3])
    slope = jax.jit(jax.grad(lambda x: shifted.difference(x, nothing).loss.sum()))(np.float32(some))
    there = sigma(1) * (1 - sigma(1)) / 2
    np.testing.assert_allclose(slope, [[0, there, -there], [0, 0, 0]], rtol=1e-5)


@functools.cache
def run(words, members=1):
    """(the reader, params, a batch) of a small model."""
    config = secrets2.get_config(f"{words},smoke")
    config.algorithm.members = members
    config.model.update(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=32)
    setup = make_setup(config)
    reader = reward_readers.make_reader(setup)
    params = reader.add_head(setup.init_params(), jax.random.key(0))
    records = [
        {"prompt": f"{i}+1=", "responses": [str(i + 1), str(i)], "rewards": [1.0, 0.0], "info": {}} for i in range(4)
    ]
    arrays, _ = reader.encode(records)
    return config, reader, params, reader.batch(arrays, np.arange(3), 4)


@pytest.mark.slow
def test_metarm_takes_the_gradient_at_the_ascended_params(monkeypatch):
    """theta moves by the gradient of L at theta + eta grad J(theta)."""
    rankings = [{"prompt": "1+1=", "responses": ["2", "3", "11"], "rewards": [2, 1, 0], "info": {}}]

    class Data:
        data_source = staticmethod(lambda split: rankings)

    monkeypatch.setattr(reward_shift.preferences, "load", lambda *_, **__: Data)
    config, reader, params, batch = run("metarm")
    total = lambda of: lambda params: of(params)[0].total  # noqa: E731
    own = jax.jit(jax.grad(total(lambda params: reader.loss(params, batch))))(params)

    config.algorithm.meta.step_size = 0.0
    plain = reward_readers.make_reader(make_setup(config))

    def spread(params):
        meta = batch._replace(
            batch=batch.batch._replace(**{name: batch.extras["meta_" + name] for name in reward_shift.FIELDS}),
            present=batch.extras["meta_present"],
        )
        rewards = plain.rewards(params, meta)[..., 0]
        return jnp.mean(shifted.difference(rewards, meta.present).loss)

    slope = jax.jit(jax.value_and_grad(spread))
    before, direction = slope(params)
    ascended = jax.tree.map(lambda x, g: x + 0.01 * g, params, direction)
    expected = jax.jit(jax.grad(total(lambda params: plain.loss(params, batch))))(ascended)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), own, expected)
    assert slope(ascended)[0] > before
    config.algorithm.meta.step_size = 0.01


@pytest.mark.slow
def test_the_contrast_is_added_with_its_weight():
    config, reader, params, batch = run("contrast", 2)
    result, metrics = jax.jit(reader.loss)(params, batch)
    assert float(metrics["views"].count) == 3, "the absent row is no candidate"
    expected = float(metrics["compare"].value()) + 0.1 * float(metrics["views"].value())
    np.testing.assert_allclose(float(result.value()), expected, rtol=1e-5)


@pytest.mark.parametrize("arg", [None, "contrast", "metarm,noisy,smoke"])
def test_its_config_can_run(arg):
    config = secrets2.get_config(arg)
    check_config.check(config)
    assert bool(config.algorithm.views.coef) == (arg in (None, "contrast"))
    assert bool(config.algorithm.meta.step_size) == (arg != "contrast")


def test_what_does_not_fit_is_refused():
    config = secrets2.get_config("smoke")
    config.algorithm.reads = "log_ratio"
    with pytest.raises(ValueError, match="need reads='response', not 'log_ratio'"):
        reward_shift.check(config)
    config = secrets2.get_config("contrast,smoke")
    config.algorithm.responses = 4
    with pytest.raises(ValueError, match="views are of pairs, algorithm.responses=2"):
        reward_shift.extended(make_setup(config), None, None)
