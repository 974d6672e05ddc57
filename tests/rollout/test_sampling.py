"""rollout/sampling.py against loops in numpy, and draw at the ends of [0, 1), where an inverted CDF goes wrong."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.rollout.lm import sampling as rules
from rl_jax.rollout.lm.sampling import Sampling, _width, take_log_probs
from rl_jax.training import sharding

# One program each, in place of one for each of their operations.
draw = jax.jit(rules.draw)
sample = jax.jit(rules.sample, static_argnames="sampling")
sampled_log_softmax = jax.jit(rules.sampled_log_softmax, static_argnames="sampling")


def _reference(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0):
    """One row in float64: divide, cut to the k largest, then walk down until the mass reaches top_p, then drop what is
    less than min_p times as likely as the first. Ties stay."""
    assert repetition_penalty == 1.0
    x = np.asarray(logits, np.float64) / temperature
    keep = np.ones(len(x), bool)
    if top_k:
        keep = x >= np.sort(x)[::-1][top_k - 1]
    if top_p < 1:
        probs = np.where(keep, np.exp(x - x.max()), 0.0)
        probs /= probs.sum()
        mass, smallest = 0.0, np.inf
        for token in np.argsort(-probs, kind="stable"):
            if mass >= top_p:
                break
            mass, smallest = mass + probs[token], x[token]
        keep &= x >= smallest
    keep &= np.exp(x - x.max()) >= min_p
    probs = np.where(keep, np.exp(x - x.max()), 0.0)
    with np.errstate(divide="ignore"):
        return np.log(probs / probs.sum())


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(temperature=2.0, top_k=5),
        Sampling(top_k=1),
        Sampling(top_p=0.9),
        Sampling(top_p=1e-6),
        Sampling(temperature=0.6, top_k=7, top_p=0.8),
        Sampling(min_p=0.2),
        Sampling(temperature=1.5, top_p=0.95, min_p=0.05),
    ],
    ids=str,
)
def test_equals_the_loop(sampling):
    logits = np.random.default_rng(0).normal(size=(20, 3, 17)).astype(np.float32) * 2
    ours = np.asarray(sampled_log_softmax(jnp.array(logits), sampling))
    expected = np.apply_along_axis(_reference, -1, logits, *sampling)
    np.testing.assert_array_equal(np.isneginf(ours), np.isneginf(expected))
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(np.exp(ours).sum(-1), 1.0, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.1, 2.0])
def test_a_rule_that_cuts_nothing_inverts_the_cdf_and_tells_both_log_probs(temperature):
    rng = np.random.default_rng(1)
    logits, uniforms = rng.normal(size=(40, 9)).astype(np.float32) * 2, rng.uniform(size=40).astype(np.float32)
    tokens, sampled, raw = sample(jnp.array(logits), jnp.array(uniforms), Sampling(temperature))
    expected = np.apply_along_axis(_reference, -1, logits, temperature)
    cumulative = np.cumsum(np.exp(expected), axis=1)
    np.testing.assert_array_equal(tokens, np.argmax(cumulative > uniforms[:, None], axis=1))
    rows = np.arange(40)
    np.testing.assert_allclose(sampled, expected[rows, tokens], atol=1e-5)
    np.testing.assert_allclose(raw, np.apply_along_axis(_reference, -1, logits)[rows, tokens], atol=1e-5)


def test_logits_far_apart_neither_overflow_nor_vanish():
    logits = jnp.array([[-120.0, 3.0, 3.0], [90.0, 90.0, -90.0]])
    tokens, sampled, raw = sample(logits, jnp.array([0.75, 0.25]), Sampling())
    np.testing.assert_array_equal(tokens, [2, 0])
    np.testing.assert_allclose([sampled, raw], np.full((2, 2), -math.log(2.0)), rtol=1e-5)


def test_a_vocabulary_is_split_over_devices_that_divide_it(monkeypatch):
    monkeypatch.setattr(rules, "devices_over", {"vocab": 4}.get)
    assert [rules._shards(size) for size in (4, 8, 9, 10)] == [4, 4, 1, 1]


def test_on_one_device_a_log_prob_is_gathered():
    """The mask of a whole vocabulary is for one that is split."""
    found = jax.make_jaxpr(rules._pick)(jnp.ones((2, 8)), jnp.zeros(2, jnp.int32))
    assert "gather" in str(found) and "reduce_sum" not in str(found)


def test_blocks_are_summed_where_they_are_if_a_block_has_eight_tokens(monkeypatch):
    """With fewer, the sums of all blocks are as much to send as the logits."""
    split = []
    monkeypatch.setattr(rules, "devices_over", {"vocab": 4}.get)
    monkeypatch.setattr(rules, "_invert_split", lambda masses, uniforms, width: split.append(width))
    for size in (32, 36, 48, 512):  # blocks of 8, 1, 4 and 32 tokens
        jax.eval_shape(rules._invert, jnp.ones((2, size)), jnp.ones(2))
    assert split == [8, 32]


@pytest.mark.slow
def test_the_token_that_crosses_top_p_is_kept():
    log_probs = jnp.log(jnp.array([0.1, 0.5, 0.25, 0.15]))
    for top_p, kept in [(0.49, [1]), (0.51, [1, 2]), (0.74, [1, 2]), (0.76, [1, 2, 3]), (0.95, [0, 1, 2, 3])]:
        out = np.asarray(sampled_log_softmax(log_probs, Sampling(top_p=top_p)))
        assert np.flatnonzero(np.isfinite(out)).tolist() == kept, top_p
    exact = jnp.log(jnp.array([0.5, 0.25, 0.25]))  # the mass reaches 0.5 with the first token: none crosses after it
    assert np.isfinite(sampled_log_softmax(exact, Sampling(top_p=0.5))).tolist() == [True, False, False]


def test_top_p_is_the_mass_after_temperature_and_top_k():
    logits = jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1]))
    # Of the two that top_k keeps, the first has 4/7 = 0.571 of the mass, and 16/25 = 0.64 at temperature 1/2.
    for top_p, temperature, kept in [(0.57, 1.0, 1), (0.58, 1.0, 2), (0.63, 0.5, 1), (0.65, 0.5, 2)]:
        out = sampled_log_softmax(logits, Sampling(temperature, 2, top_p))
        assert np.isfinite(out).sum() == kept


def test_ties_are_kept_together():
    logits = jnp.array([1.0, 3.0, 3.0, 0.0, 3.0])
    for sampling in (Sampling(top_k=1), Sampling(top_k=2), Sampling(top_p=0.1)):
        out = np.asarray(sampled_log_softmax(logits, sampling))
        np.testing.assert_allclose(np.exp(out), [0, 1 / 3, 1 / 3, 0, 1 / 3], atol=1e-6)


@pytest.mark.slow
def test_a_top_k_of_one_is_greedy_at_any_temperature():
    logits = jax.random.normal(jax.random.key(0), (50, 31))
    out = sampled_log_softmax(logits, Sampling(temperature=3.0, top_k=1))
    for u in (0.0, 0.5, 1 - 2**-24):
        np.testing.assert_array_equal(draw(out, jnp.full(50, u)), np.argmax(logits, -1))
    np.testing.assert_array_equal(take_log_probs(out, jnp.argmax(logits, -1)), np.zeros(50))


@pytest.mark.slow
def test_draw_inverts_the_cdf():
    log_probs = jnp.log(jnp.array([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]))
    expected = {0.0: 1, 0.2499: 1, 0.25: 3, 0.7499: 3, 0.75: 4, 0.9999: 4, 1 - 2**-24: 4}
    for u, token in expected.items():
        assert draw(log_probs, jnp.array([u], jnp.float32)).tolist() == [token], u


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [3, 64, 512, 2000])
def test_a_token_without_mass_is_never_drawn(vocab_size):
    """At u = 0, the u just below 1, and where the float32 cumulative sum itself changes between tokens."""
    rng = np.random.default_rng(vocab_size)
    logits = jnp.array(rng.normal(size=(200, vocab_size)).astype(np.float32) * 3)
    log_probs = sampled_log_softmax(logits, Sampling(top_k=min(20, vocab_size - 1)))
    cumulative = np.asarray(jnp.cumsum(jnp.exp(log_probs), axis=-1))
    places = rng.integers(0, vocab_size, (30, 200))
    around = cumulative[np.arange(200), places] / cumulative[:, -1]
    edges = [np.nextafter(around, np.float32(0)), around, np.nextafter(around, np.float32(2))]
    uniforms = np.concatenate([np.zeros((1, 200)), np.full((1, 200), 1 - 2**-24), *edges]).clip(0, 1 - 2**-24)
    tokens = jax.vmap(lambda u: draw(log_probs, u))(jnp.array(uniforms, jnp.float32))
    assert np.all((np.asarray(tokens) >= 0) & (np.asarray(tokens) < vocab_size))
    drawn = np.asarray(log_probs)[np.arange(200), np.asarray(tokens)]
    assert np.all(np.isfinite(drawn)), f"{np.sum(~np.isfinite(drawn))} of {drawn.size} draws have mass 0"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=8, top_p=0.9)], ids=str)
def test_frequencies_within_the_chi_square_bound(sampling):
    number = 50_000
    log_probs = sampled_log_softmax(jax.random.normal(jax.random.key(1), (1, 12)), sampling)
    uniforms = jax.random.uniform(jax.random.key(2), (number,))
    tokens = draw(jnp.broadcast_to(log_probs, (number, 12)), uniforms)
    counts = np.bincount(np.asarray(tokens), minlength=12)
    expected = number * np.exp(np.asarray(log_probs[0], np.float64))
    live = expected > 0
    assert not counts[~live].any()
    freedom = live.sum() - 1
    statistic = np.sum((counts[live] - expected[live]) ** 2 / expected[live])
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.slow
def test_gradient_is_finite_beside_the_cut():
    logits = jax.random.normal(jax.random.key(3), (5, 16))
    kept = jnp.argmax(logits, axis=-1)

    def total(logits):
        out = sampled_log_softmax(logits, Sampling(temperature=0.8, top_k=6, top_p=0.9))
        return jnp.sum(take_log_probs(out, kept))

    gradient = np.asarray(jax.grad(total)(logits))
    cut = np.isneginf(sampled_log_softmax(logits, Sampling(temperature=0.8, top_k=6, top_p=0.9)))
    assert np.all(np.isfinite(gradient)) and not np.any(gradient[cut]) and np.any(gradient[~cut])


@pytest.mark.parametrize(
    "sampling, message",
    [
        (Sampling(temperature=0.0), "temperature=0.0 must be above 0, from 1e-6 to 1e6; for greedy decoding use"),
        (Sampling(temperature=1e-39), "temperature=1e-39 must be above 0"),
        (Sampling(temperature=float("nan")), "temperature=nan"),
        (Sampling(top_k=-1), r"top_k=-1 must lie in 0..16"),
        (Sampling(top_k=17), r"top_k=17 must lie in 0..16"),
        (Sampling(top_p=0.0), r"top_p=0.0 must lie in \(0, 1\]"),
        (Sampling(top_p=1.5), r"top_p=1.5"),
        (Sampling(min_p=1.5), r"min_p=1.5 must lie in \[0, 1\]"),
        (Sampling(repetition_penalty=0.0), "repetition_penalty=0.0 must be above 0"),
    ],
)
def test_senseless_rules_are_named(sampling, message):
    with pytest.raises(ValueError, match=message):
        sampling.check(16)
    assert Sampling(top_k=16).check(16) == Sampling(top_k=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.7), Sampling(top_k=5, min_p=0.1)], ids=["plain", "warm", "cut"]
)
def test_sample_equals_its_parts(sampling):
    """The shared exponentials of the plain case are a saving and nothing else."""
    logits = 3 * jax.random.normal(jax.random.key(4), (300, 70))
    uniforms = jax.random.uniform(jax.random.key(5), (300,))
    tokens, sampled, raw = sample(logits, uniforms, sampling)
    log_probs = sampled_log_softmax(logits, sampling)
    np.testing.assert_array_equal(tokens, draw(log_probs, uniforms))
    np.testing.assert_allclose(sampled, take_log_probs(log_probs, tokens), atol=1e-5)
    np.testing.assert_allclose(raw, take_log_probs(jax.nn.log_softmax(logits), tokens), atol=1e-5)


@pytest.mark.slow
def test_draw_inverts_the_whole_cdf():
    """Block by block gives the token that one long float64 sum gives, but for a uniform at the very edge."""
    rng = np.random.default_rng(6)
    log_probs = jax.nn.log_softmax(jnp.array(rng.normal(size=(500, 1000)) * 2, jnp.float32))
    uniforms = rng.uniform(size=500).astype(np.float32)
    cumulative = np.cumsum(np.exp(np.asarray(log_probs, np.float64)), axis=1)
    expected = np.argmax(cumulative > (uniforms * cumulative[:, -1])[:, None], axis=1)
    assert np.mean(np.asarray(draw(log_probs, jnp.array(uniforms))) == expected) > 0.99


def test_repetition_penalty_equals_transformers():
    torch, processors = pytest.importorskip("torch"), pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(7)
    logits, tokens = rng.normal(size=(6, 20)).astype(np.float32), rng.integers(0, 20, (6, 9))
    seen = np.zeros((6, 20), bool)
    np.put_along_axis(seen, tokens, True, axis=1)
    processor = processors.RepetitionPenaltyLogitsProcessor(1.3)
    expected = torch.log_softmax(processor(torch.tensor(tokens), torch.tensor(logits)), dim=-1).numpy()
    rule = Sampling(repetition_penalty=1.3)
    ours = sampled_log_softmax(jnp.array(logits), rule, jnp.array(seen))
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    with pytest.raises(ValueError, match="repetition_penalty=1.3: the sampled distribution depends on the tokens"):
        sampled_log_softmax(jnp.array(logits), rule)


@pytest.mark.parametrize(("vocab_size", "split"), [(512, True), (1000, True), (36, False)])
def test_logits_that_are_split_over_devices_are_sampled_from_where_they_are(vocab_size, split):
    """The same tokens and log-probs as on one device; no array with a row's whole vocabulary, if blocks are wide."""
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,tensor:4"))
    rng = np.random.default_rng(0)
    logits = (3.0 * rng.normal(size=(16, vocab_size))).astype(np.float32)
    uniforms = rng.uniform(size=16).astype(np.float32)
    uniforms[:2] = 0.0, 1.0 - 2.0**-24
    rule = Sampling(temperature=0.7)
    expected = jax.jit(functools.partial(sample, sampling=rule))(logits, uniforms)
    placed = jax.device_put(logits, jax.NamedSharding(mesh, jax.P("data", "tensor")))
    call = jax.jit(sharding.on_mesh(functools.partial(sample, sampling=rule), mesh))
    compiled = call.lower(placed, uniforms).compile()
    found = compiled(placed, uniforms)
    np.testing.assert_array_equal(found[0], expected[0])
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    gathered = re.findall(r"f32\[(\d+(?:,\d+)*)\]\S* all-gather", compiled.as_text())
    whole = [shape for shape in gathered if math.prod(map(int, shape.split(","))) >= 8 * vocab_size]
    assert bool(whole) != split


def test_blocks_of_a_split_vocabulary_divide_each_devices_share():
    """About sqrt(V), a power of two; of 1000 tokens on 4 devices each has 250, which 2 divides and 4 does not."""
    sizes = ((512, 1), (512, 4), (1000, 1), (1000, 4), (96, 4), (256, 1), (257, 1))
    assert [_width(size, shards) for size, shards in sizes] == [32, 32, 32, 2, 8, 16, 32]


def test_the_raw_log_prob_is_that_of_the_logits_at_any_temperature():
    logits = np.random.default_rng(3).normal(size=(5, 7)).astype(np.float32)
    call = jax.jit(functools.partial(sample, sampling=Sampling(temperature=0.7)))
    tokens, sampled, raw = call(logits, np.linspace(0.1, 0.9, 5, dtype=np.float32))
    for temperature, found in ((0.7, sampled), (1.0, raw)):
        scaled = logits / temperature
        expected = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(found, expected[np.arange(5), np.asarray(tokens)], rtol=1e-5)
