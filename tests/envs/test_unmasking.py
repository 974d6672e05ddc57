"""envs/worlds/unmasking.py: Bayes by enumeration, the KL of paths, and gradients that stop where they should."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import unmasking

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
PRIOR = unmasking.markov(3, 3)
STRINGS = np.array(list(itertools.product(range(3), repeat=3)))


def hard(text):
    """ "a_c" as x float32 [L, V + 1]; _ is the mask."""
    return np.eye(4, dtype=np.float32)[["abc_".index(letter) for letter in text]]


def test_the_pretrained_model_is_the_prior_given_what_is_seen():
    assert PRIOR.probs.sum() == pytest.approx(1.0)
    ours = jax.jit(lambda x: unmasking.pretrained(PRIOR, x), compiler_options=QUICK)
    for text in ("___", "a__", "_b_", "a_c"):
        fits = [all(c in ("_", "abc"[s]) for c, s in zip(text, string, strict=True)) for string in STRINGS]
        weights = PRIOR.probs * fits / np.sum(PRIOR.probs * fits)
        expected = [[weights[STRINGS[:, i] == v].sum() for v in range(3)] for i in range(3)]
        np.testing.assert_allclose(ours(hard(text)), expected, atol=1e-6)


def test_the_kl_is_of_the_masked_positions_and_0_without_a_correction():
    base, probs = np.float32([[0.5, 0.3, 0.2]] * 3), np.float32([[0.2, 0.3, 0.5]] * 3)
    masked = np.float32([1.0, 0.0, 0.5])
    expected = 0.25 * 1.5 * np.sum(probs[0] * np.log(probs[0] / base[0]))
    assert unmasking.step_kl(probs, base, masked, 0.25) == pytest.approx(expected, rel=1e-5)
    assert unmasking.step_kl(base, base, masked, 0.25) == 0.0


def test_a_step_copies_what_is_seen_and_unmasks_by_chance():
    """With s = 0 nothing stays masked; the hard sample is the soft one's largest entry."""
    rng = np.random.default_rng(0)
    x, probs, gumbel = hard("a__"), np.float32([[0.5, 0.3, 0.2]] * 3), rng.gumbel(size=(3, 4)).astype(np.float32)
    soft = unmasking.soft_step(x, probs, gumbel, 0.5, 0.25, tau=0.7)
    q = np.concatenate([probs * 0.25, np.full((3, 1), 0.25)], axis=1)
    expected = np.exp((np.log(q) + gumbel) / 0.7)
    expected = expected / expected.sum(-1, keepdims=True)
    expected[0] = x[0]
    np.testing.assert_allclose(soft, expected, rtol=1e-4)
    sampled = unmasking.soft_step(x, probs, gumbel, 0.5, 0.25, tau=0.0)
    np.testing.assert_array_equal(sampled, np.eye(4)[expected.argmax(-1)])
    last = unmasking.soft_step(x, probs, gumbel, 0.5, jnp.float32(0.0), tau=0.7)
    np.testing.assert_allclose(last[:, -1], 0.0, atol=1e-6)


def rolled(env, actions, keys):
    """Return and final x of one chain with these actions [T, L V]."""
    state, _ = env.reset(keys[0])
    state, steps = jax.lax.scan(lambda s, drawn: env.step(drawn[1], s, drawn[0]), state, (actions, keys))
    return jnp.sum(steps.reward), (state.x, steps)


def test_hard_chains_of_the_pretrained_model_are_samples_of_the_prior():
    env = unmasking.environment(letters=3, length=3, steps=3, tau=0.0, alpha=1.0)
    keys = jax.random.split(jax.random.key(0), (3000, 3))
    run = jax.jit(jax.vmap(lambda keys: rolled(env, jnp.zeros((3, 9)), keys)), compiler_options=QUICK)
    total, (x, steps) = run(keys)
    np.testing.assert_allclose(x[..., -1], 0.0, atol=1e-6)
    index = np.asarray(x).argmax(-1) @ np.array([9, 3, 1])
    np.testing.assert_allclose(np.bincount(index, minlength=27) / 3000, PRIOR.probs, atol=0.03)
    letters = np.asarray(x).argmax(-1)
    pairs = ((letters[:, :-1] == 0) & (letters[:, 1:] == 1)).sum(1)
    np.testing.assert_allclose(total, pairs / 1, atol=1e-5)  # no KL, and the share of one possible pair
    assert np.all(steps.terminated[:, -1]) and not np.any(steps.terminated[:, :-1])


def test_gradients_go_through_the_last_steps_only():
    """An early action moves the reward only if gradients go through it; its own KL always counts."""
    keys = jax.random.split(jax.random.key(3), 4)
    actions = 0.1 * jax.random.normal(jax.random.key(4), (4, 9))

    def gradient(through):
        env = unmasking.environment(letters=3, length=3, steps=4, alpha=0.0, through=through)
        return jax.jit(jax.grad(lambda a: rolled(env, a, keys)[0]), compiler_options=QUICK)(actions)

    sizes = np.abs(gradient(2)).sum(-1)
    assert not sizes[:2].any() and sizes[2:].all()
    assert np.abs(gradient(0)).sum(-1).all()


@pytest.mark.parametrize("wrong", [dict(letters=1), dict(length=9), dict(steps=0), dict(tau=-1.0), dict(through=9)])
def test_what_is_refused(wrong):
    with pytest.raises(ValueError, match="letters=|steps="):
        unmasking.environment(**wrong)
