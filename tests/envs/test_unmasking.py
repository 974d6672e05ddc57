"""envs/worlds/unmasking.py: Bayes by enumeration, the KL of paths, and gradients that stop where they should."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import string_oracles, unmasking

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
CHAIN = unmasking.markov(3)
PRIOR = unmasking.enumerated(CHAIN, 3)
STRINGS = np.array(list(itertools.product(range(3), repeat=3)))


def hard(text):
    """ "a_c" as x float32 [L, V + 1]; _ is the mask."""
    return np.eye(4, dtype=np.float32)[["abc_".index(letter) for letter in text]]


def test_the_pretrained_model_is_the_prior_given_what_is_seen():
    assert PRIOR.probs.sum() == pytest.approx(1.0)
    ours = jax.jit(lambda x: unmasking.pretrained(CHAIN, x), compiler_options=QUICK)
    for text in ("___", "a__", "_b_", "a_c"):
        fits = [all(c in ("_", "abc"[s]) for c, s in zip(text, string, strict=True)) for string in STRINGS]
        weights = PRIOR.probs * fits / np.sum(PRIOR.probs * fits)
        expected = [[weights[STRINGS[:, i] == v].sum() for v in range(3)] for i in range(3)]
        np.testing.assert_allclose(ours(hard(text)), expected, atol=1e-6)


def test_soft_letters_fit_with_their_product():
    """A mixture at each position: the sum over all strings, as for hard letters; 20 letters take the same recursion."""
    x = np.random.default_rng(0).dirichlet(np.ones(4), size=3).astype(np.float32)
    weights = PRIOR.probs * np.prod(np.einsum("nlv,lv->nl", PRIOR.one_hot, x[:, :3]) + x[:, 3], axis=1)
    expected = np.einsum("n,nlv->lv", weights, PRIOR.one_hot) / weights.sum()
    np.testing.assert_allclose(unmasking.pretrained(CHAIN, jnp.asarray(x)), expected, rtol=1e-5)
    many, seen = unmasking.markov(20), np.eye(21, dtype=np.float32)[[20] * 5 + [7] + [20] * 4]
    found = np.asarray(unmasking.pretrained(many, jnp.asarray(seen)))
    np.testing.assert_allclose(found[6], many.moves[7], rtol=1e-4)
    np.testing.assert_allclose(found[3], np.linalg.matrix_power(many.moves.astype(float), 2)[:, 7], rtol=1e-4)


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


@pytest.mark.parametrize("wrong", [dict(letters=1), dict(length=2000), dict(steps=0), dict(tau=-1.0), dict(through=9)])
def test_what_is_refused(wrong):
    with pytest.raises(ValueError, match="letters=|steps="):
        unmasking.environment(**wrong)


def test_the_reward_of_an_oracle_is_that_of_the_string():
    options = dict(letters=4, length=4, steps=2, tau=0.0, alpha=0.0, samples=200, seed=1)
    oracles = string_oracles.make_oracles(*unmasking.markov(4), length=4, samples=200, noise=0.3, ridge=1.0, seed=1)
    keys = jax.random.split(jax.random.key(0), (8, 2))
    for name, oracle in zip(("trained", "held_out"), oracles, strict=True):
        env = unmasking.environment(reward=name, **options)
        run = jax.jit(jax.vmap(lambda k, env=env: rolled(env, jnp.zeros((2, 16)), k)), compiler_options=QUICK)
        total, (x, _) = run(keys)
        letters = np.asarray(x)[..., :4]
        pairs = np.einsum("nlu,nlv->nuv", letters[:, :-1], letters[:, 1:]) / 2
        np.testing.assert_allclose(total, np.sum(pairs * oracle.weights, axis=(1, 2)) + oracle.constant, atol=1e-5)
    with pytest.raises(ValueError, match="reward='best'"):
        unmasking.environment(reward="best")
    with pytest.raises(ValueError, match="ridge=0.0"):
        unmasking.environment(reward="trained", ridge=0.0)


def test_oracles_learn_the_truth_from_enough_and_the_best_of_few_is_over_optimised():
    start, moves = unmasking.markov(4)
    table = unmasking.enumerated(unmasking.markov(4), 4)
    truth = np.array([unmasking.pair_share(x) for x in table.one_hot])
    exact = string_oracles.make_oracles(start, moves, length=4, samples=3000, noise=0.0, ridge=1e-3, seed=0)
    for oracle in exact:
        seen = np.array([string_oracles.predicted(oracle, x) for x in table.one_hot])
        np.testing.assert_allclose(seen, truth, atol=0.02)
    gaps = []
    counts = np.asarray(string_oracles.pair_counts(table.one_hot)).reshape(len(truth), -1)
    for seed in range(20):
        few = dict(length=4, samples=200, noise=1.0, ridge=1.0, seed=seed)
        trained, held = string_oracles.make_oracles(start, moves, **few)
        seen, other = (counts @ oracle.weights.reshape(-1) + oracle.constant for oracle in (trained, held))
        best = np.argmax(seen)
        gaps.append((seen[best] - other[best], seen[best] - truth[best]))
    assert np.min(np.mean(gaps, axis=0)) > 0.2  # an oracle beside itself would have a gap of 0


def test_the_halves_share_no_string():
    strings = np.array([[0, 1], [0, 1], [1, 1], [2, 0], [0, 1], [2, 2]])
    first, second = string_oracles.halves(strings, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(6))
    assert not {tuple(s) for s in strings[first]} & {tuple(s) for s in strings[second]}
    drawn = string_oracles.sampled(*CHAIN, 3, 4000, np.random.default_rng(0))
    counts = np.bincount(drawn @ np.array([9, 3, 1]), minlength=27) / 4000
    np.testing.assert_allclose(counts, PRIOR.probs, atol=0.03)
