"""The objectives of masked-diffusion language models, beside loops and enumerations in numpy float64."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.losses import masked_diffusion as ours
from rl_jax.training.step import init_state, make_gradient, make_train_step

RNG = np.random.default_rng(0)
LENGTH, VOCAB = 3, 2
# A model of three tokens of two kinds: logits for every partly masked answer (2 is the mask), at every position.
TABLE = RNG.normal(0.0, 1.5, (VOCAB + 1,) * LENGTH + (LENGTH, VOCAB))
ANSWERS = list(itertools.product(range(VOCAB), repeat=LENGTH))
SUBSETS = [s for n in range(1, LENGTH + 1) for s in itertools.combinations(range(LENGTH), n)]


def log_prob_at(answer, masked) -> np.ndarray:
    """log p of each token of an answer, of which some are masked: [C]."""
    logits = TABLE[tuple(VOCAB if i in masked else token for i, token in enumerate(answer))]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return log_probs[np.arange(LENGTH), list(answer)]


def sampler_log_prob(answer) -> float:
    """log of the mean, over the orders of unmasking one by one, of the chain rule's product."""
    products = []
    for order in itertools.permutations(range(LENGTH)):
        masked, total = set(range(LENGTH)), 0.0
        for place in order:
            total += log_prob_at(answer, masked)[place]
            masked.remove(place)
        products.append(math.exp(total))
    return math.log(sum(products) / len(products))


def elbo_by_subsets(answer) -> float:
    """The expectation over a uniform number n of masks, then over the sets of that size, of C / n sum log p."""
    total = 0.0
    for subset in SUBSETS:
        chance = 1.0 / LENGTH / math.comb(LENGTH, len(subset))
        total += chance * LENGTH / len(subset) * sum(log_prob_at(answer, set(subset))[i] for i in subset)
    return total


def test_the_elbo_is_a_lower_bound_and_all_subsets_give_it_exactly():
    log_probs = np.array([[log_prob_at(answer, set(s)) for s in SUBSETS] for answer in ANSWERS])
    masked = np.array([[i in s for i in range(LENGTH)] for s in SUBSETS])[None].repeat(len(ANSWERS), 0)
    sizes = masked.sum(-1)
    chances = 1.0 / (LENGTH * np.vectorize(math.comb)(LENGTH, sizes))
    weights = LENGTH / sizes
    terms = jax.jit(functools.partial(ours.elbo_terms, per_token=False))(log_probs, masked, weights)
    elbo = np.sum(chances * np.asarray(terms), axis=1)
    exact = np.array([sampler_log_prob(answer) for answer in ANSWERS])
    np.testing.assert_allclose(elbo, [elbo_by_subsets(answer) for answer in ANSWERS], rtol=1e-5)
    assert np.all(elbo < exact - 1e-3)
    assert np.exp(exact).sum() == pytest.approx(1.0)  # a distribution over the answers: the any-order sampler's
    per_token = jax.jit(ours.elbo_terms)(log_probs, masked, weights)
    np.testing.assert_allclose(per_token, np.asarray(terms) / LENGTH, rtol=1e-5)


@pytest.mark.parametrize("how", ["count", "uniform"])
def test_masks_have_the_same_expectation_of_each_set(how):
    keys = jax.random.split(jax.random.key(1), 20_000)
    masked, weights = jax.jit(lambda keys: ours.draw_masks(keys, 3, LENGTH, how=how))(keys)
    masked, weights = np.asarray(masked).reshape(-1, LENGTH), np.asarray(weights).reshape(-1)
    for subset in SUBSETS:
        wanted = np.array([i in subset for i in range(LENGTH)])
        found = np.mean(weights * np.all(masked == wanted, axis=1))
        assert found == pytest.approx(1.0 / math.comb(LENGTH, len(subset)) / len(subset), abs=0.02), subset
    if how == "count":  # three draws of three positions: every number of masks once, in each row
        numbers = np.sort(masked.sum(1).reshape(-1, 3), axis=1)
        assert np.all(numbers == [1, 2, 3]) and np.allclose(weights, LENGTH / masked.sum(1))
    else:  # t from 1e-3 to 1: of 60 000 draws, some close to both ends
        shares = 1.0 / weights.astype(np.float64)
        assert 1e-3 - 1e-9 < shares.min() < 1.05e-3 and 1 - 1e-4 < shares.max() < 1 + 1e-6


def test_masks_of_a_row_depend_on_its_key_only_and_bad_names_are_refused():
    keys = jax.random.split(jax.random.key(1), 4)
    draw = jax.jit(lambda keys: ours.draw_masks(keys, 2, 5)[0])
    drawn = np.asarray(draw(keys))
    np.testing.assert_array_equal(drawn[2:], draw(keys[::-1])[1::-1])
    numbers = drawn.sum(axis=2)  # the second is half of the five positions, rounded down, past the first
    np.testing.assert_array_equal((numbers[:, 1] - numbers[:, 0]) % 5, 2)
    masked, weights = map(np.asarray, ours.draw_masks(keys, 1, 5, how="all"))
    assert masked.shape == (len(keys), 1, 5) and weights.shape == (len(keys), 1)
    assert np.all(masked) and np.all(weights == 1.0)
    with pytest.raises(ValueError, match="masking='some' is none of count"):
        ours.draw_masks(keys, 1, 5, how="some")
    with pytest.raises(ValueError, match="num_samples=2: all of them would be equal"):
        ours.draw_masks(keys, 2, 5, how="all")


def slow_objectives(terms, old, advantages):
    """(the ELBO-based objective, BGPO's bound of it: equations 7 and 13 of 2510.11683v3) by loops; to be maximised."""
    exact, bound = [], []
    for row, old_row, advantage in zip(terms, old, advantages, strict=True):
        gaps = [new - before for new, before in zip(row, old_row, strict=True)]
        exact.append(advantage * math.exp(sum(gaps) / len(gaps)))
        of_draws = [1.0 + gap if advantage >= 0 else math.exp(gap) for gap in gaps]
        bound.append(advantage * sum(of_draws) / len(of_draws))
    return exact, bound


def case(spread: float):
    """Terms [N, M] whose gaps have that spread, with advantages of both signs."""
    rng = np.random.default_rng(3)
    old = rng.normal(-1.0, 1.0, (6, 4))
    return old + rng.normal(0.0, spread, old.shape), old, np.array([1.5, 0.7, 0.0, -0.4, -1.1, -2.0])


@jax.jit
def ratio(terms, old, advantages):
    return ours.elbo_ratio(terms, old, advantages, clip_low=math.inf, clip_high=math.inf)[0]


@jax.jit
def bound(terms, old, advantages):
    return ours.linear_bound(terms, old, advantages)[0]


@functools.cache
def slope(f):
    return jax.jit(jax.grad(lambda *x: f(*x).value(), argnums=(0, 1, 2)))


def test_the_bound_is_below_the_objective_off_policy_for_both_signs():
    arrays = case(0.8)
    exact, below = slow_objectives(*case(0.8))
    assert all(b <= e for e, b in zip(exact, below, strict=True))
    signed = [(e - b) > 1e-3 for e, b in zip(exact, below, strict=True)]
    assert signed == [True, True, False, True, True, True]  # strictly, but where the advantage is 0
    np.testing.assert_allclose(-ratio(*arrays).value(), np.mean(exact), rtol=1e-5)
    np.testing.assert_allclose(-bound(*arrays).value(), np.mean(below), rtol=1e-5)
    of_rows = jax.vmap(lambda *row: -bound(*row).value())(*(x[:, None] for x in arrays))
    np.testing.assert_allclose(of_rows, below, rtol=1e-5)


def test_what_the_bound_reports_is_data():
    """ratio/mean is that of 1 + d where A >= 0, also where A is 0, and of exp(d) elsewhere; gap/size that of |d|."""
    terms, old, advantages = case(0.8)
    gaps = terms - old
    ratios = [1 + d if a >= 0 else np.exp(d) for d, a in zip(gaps, advantages, strict=True)]

    def total(terms):
        metrics = ours.linear_bound(terms, old, advantages)[1]
        return sum(m.value() for m in metrics.values()), metrics

    slopes, metrics = jax.jit(jax.grad(total, has_aux=True))(terms)
    np.testing.assert_allclose(metrics["ratio/mean"].value(), np.mean(ratios), rtol=1e-5)
    np.testing.assert_allclose(metrics["gap/size"].value(), np.mean(np.abs(gaps)), rtol=1e-5)
    np.testing.assert_array_equal(slopes, 0.0)


OBJECTIVES = {
    "elbo_ratio": lambda *x: ours.elbo_ratio(*x, clip_low=0.2, clip_high=0.2)[0],
    "linear_bound": lambda *x: ours.linear_bound(*x)[0],
    "clipped_bound": lambda *x: ours.clipped_bound(*x)[0],
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_row_may_have_gone_anywhere_that_does_not_count(name):
    """Gaps beyond the range of exp: without an advantage there is no loss, and what a clip holds has no gradient."""
    fn = OBJECTIVES[name]
    for gaps in ([[200.0, 0.0]], [[400.0, 300.0]], [[89.0, 89.0]]):
        arrays = np.float32(gaps), np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
        np.testing.assert_array_equal(fn(*arrays).value(), 0.0)
        np.testing.assert_array_equal(slope(fn)(*arrays)[0], 0.0)
    far = np.float32([[400.0, 300.0]]), np.zeros((1, 2), np.float32)
    good, bad = np.ones(1, np.float32), -np.ones(1, np.float32)
    wanted = {"elbo_ratio": (-1.2, np.inf), "linear_bound": (-351.0, np.inf), "clipped_bound": (-1.2, 3.0)}[name]
    np.testing.assert_allclose([fn(*far, a).value() for a in (good, bad)], wanted, rtol=1e-6)
    np.testing.assert_array_equal(slope(fn)(*far, good)[0], -0.5 if name == "linear_bound" else 0.0)
    np.testing.assert_array_equal(slope(fn)(*far, bad)[0], 0.0 if name == "clipped_bound" else np.inf)


def test_without_a_dual_clip_an_infinite_ratio_is_seen():
    arrays = np.float32([[400.0]]), np.zeros((1, 1), np.float32)
    fn = jax.jit(functools.partial(ours.clipped_bound, dual_clip=math.inf))
    assert fn(*arrays, -np.ones(1, np.float32))[0].value() == np.inf
    assert fn(*arrays, np.zeros(1, np.float32))[0].value() == 0


def test_on_policy_the_bound_has_the_value_and_the_gradient_of_the_objective():
    terms, old, advantages = case(0.0)
    assert bound(terms, old, advantages).value() == pytest.approx(float(ratio(terms, old, advantages).value()))
    of_bound, of_ratio = (slope(f)(terms, old, advantages)[0] for f in (bound, ratio))
    np.testing.assert_allclose(of_bound, of_ratio, rtol=1e-5)
    np.testing.assert_allclose(of_bound, -np.asarray(advantages)[:, None] / 24 * np.ones((6, 4)), rtol=1e-5)


def released_loss(gaps, advantage, low, high, dual):
    """compute_policy_loss_bgpo of yjyddq/DARE for one draw, by its own steps: log, exp, two clips."""
    log_ratio = math.log(1.0 + gaps) if advantage > 0 else gaps
    ratio = math.exp(log_ratio)
    first, second = -advantage * ratio, -advantage * min(max(ratio, 1.0 - low), 1.0 + high)
    loss = max(first, second)
    return min(-advantage * dual, loss) if advantage < 0 else loss


def test_the_clipped_bound_is_the_one_of_the_released_code():
    gaps = np.array([[-0.9, -0.1, 0.05, 0.6], [-0.9, 0.1, 0.25, 1.05], [-2.0, -0.1, 0.15, 1.2]])
    gaps, advantages = np.concatenate([gaps, gaps]), np.array([1.5, 0.7, 0.0, -0.4, -1.1, -2.0])
    gaps[2, 0] = gaps[0, 0]  # 1 + d above 0: of the code it is nan elsewhere
    old = np.random.default_rng(3).normal(-1.0, 1.0, gaps.shape)
    clips = dict(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    by_hand = [[released_loss(d, a, 0.2, 0.3, 3.0) for d in row] for row, a in zip(gaps, advantages, strict=True)]
    loss = lambda terms: ours.clipped_bound(terms, old, advantages, **clips)  # noqa: E731
    found, metrics = jax.jit(loss)(old + gaps)
    np.testing.assert_allclose(found.value(), np.mean(by_hand), rtol=1e-5)
    slopes = 24 * np.asarray(jax.jit(jax.grad(lambda x: loss(x)[0].value()))(old + gaps))
    ratio = np.where(advantages[:, None] > 0, 1.0 + gaps, np.exp(gaps))
    good, bad = advantages[:, None] > 0, advantages[:, None] < 0
    held = (good & (ratio > 1.3)) | (bad & ((ratio < 0.8) | (ratio > 3.0)))
    assert 4 < held.sum() < 16 and (bad & (ratio > 3.0)).any()
    np.testing.assert_array_equal(slopes[held], 0.0)
    free = np.where(good, -advantages[:, None] * np.ones_like(gaps), -advantages[:, None] * ratio)
    np.testing.assert_allclose(slopes[~held], free[~held], rtol=1e-5)
    np.testing.assert_allclose(metrics["ratio/clipped"].value(), np.mean(held), rtol=1e-6)
    open_clips = dict(clip_low=math.inf, clip_high=math.inf, dual_clip=math.inf)
    open_ended = jax.jit(lambda *x: ours.clipped_bound(*x, **open_clips)[0])(*case(0.8))
    np.testing.assert_allclose(open_ended.value(), bound(*case(0.8)).value(), rtol=1e-6)  # the paper's
    beyond = ours.clipped_bound(np.float32([[-1.5]]), np.zeros((1, 1), np.float32), np.ones(1, np.float32))[0]
    np.testing.assert_allclose(beyond.value(), 0.5)  # 1 + d below 0, where the code's log is nan


def test_gradients_are_finite_differences_and_old_terms_and_advantages_have_none():
    terms, old, advantages = (x.astype(np.float64) for x in case(0.5))
    gradient = slope(bound)(terms, old, advantages)
    for n, m in [(0, 1), (3, 2), (5, 0)]:
        moved = terms.copy()
        moved[n, m] += 1e-6
        rise = (
            np.mean(slow_objectives(moved, old, advantages)[1]) - np.mean(slow_objectives(terms, old, advantages)[1])
        ) / 1e-6
        assert -float(gradient[0][n, m]) == pytest.approx(rise, rel=1e-3)
    assert not np.any(gradient[1]) and not np.any(gradient[2])
    large = slope(bound)(np.full((6, 4), 200.0), old, advantages)[0]
    assert np.all(np.isfinite(large[:3]))  # the tangent's rows do not see the exponential


def test_the_clip_of_the_ratio():
    terms, advantages = np.array([[0.5, 0.7], [0.5, 0.7]], np.float32), np.array([1.0, -1.0], np.float32)
    clipped = jax.jit(functools.partial(ours.elbo_ratio, clip_low=0.2, clip_high=0.3))
    loss, metrics = clipped(terms, np.zeros((2, 2), np.float32), advantages)
    assert float(loss.value()) == pytest.approx((-1.3 + math.exp(0.6)) / 2)
    assert float(metrics["ratio/clipped"].value()) == 1.0


def test_the_clip_on_both_sides_and_what_it_reports_is_data():
    """Ratios below, within and above, advantages of both signs: by loops, and the share of what is outside."""
    gaps = np.float32([[-0.5, -0.1], [0.1, 0.0], [0.5, 0.7], [-0.5, -0.1], [0.1, 0.0], [0.5, 0.7]])
    old, advantages = np.full((6, 2), -1.0, np.float32), np.float32([1.0, 2.0, 0.5, -1.0, -2.0, -0.5])

    def loss(terms, old, advantages):
        found, metrics = ours.elbo_ratio(terms, old, advantages, clip_low=0.2, clip_high=0.3)
        return found.value(), metrics

    slopes, metrics = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(old + gaps, old, advantages)
    ratios = np.exp(gaps.mean(axis=1))
    inside = (0.8 <= ratios) & (ratios <= 1.3)
    moved = inside | ((advantages > 0) == (ratios < 1))
    np.testing.assert_allclose(slopes[0], np.where(moved, -advantages * ratios / 12, 0)[:, None] * [[1, 1]], rtol=1e-4)
    assert not np.asarray(slopes[1]).any() and not np.asarray(slopes[2]).any()
    np.testing.assert_allclose(metrics["ratio/mean"].value(), ratios.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["ratio/clipped"].value(), 4 / 6, rtol=1e-6)
    expected = [min(a * r, a * min(max(r, 0.8), 1.3)) for a, r in zip(advantages, ratios, strict=True)]
    np.testing.assert_allclose(loss(old + gaps, old, advantages)[0], -np.mean(expected), rtol=1e-5)

    def reported(terms):
        return sum(m.value() for m in loss(terms, old, advantages)[1].values())

    np.testing.assert_array_equal(jax.jit(jax.grad(reported))(old + gaps), 0.0)
    for fn in (ours.linear_bound, lambda *x: ours.elbo_ratio(*x, clip_low=0.2, clip_high=0.3)):
        for bad in ((old, old[:, :1], advantages), (old, old, advantages[:1])):
            with pytest.raises(AssertionError):
                fn(*bad)


def test_draws_add_up_in_micro_batches_of_the_bound_but_not_of_the_ratio():
    """The draws as rows of a batch, one at a time: BGPO's memory is that of one forward, and its gradient the same."""
    arrays = case(0.8)
    flat = tuple(np.repeat(x, 4, axis=0) if x.ndim == 1 else x.reshape(24, 1) for x in arrays)

    @jax.jit
    def updates(arrays, flat):
        found = []
        for f in (bound, ratio):

            def loss(params, rows, f=f):
                return f(rows[0] * params, rows[1], rows[2]), {}

            step = make_train_step(loss, optax.sgd(1.0), num_micro_batches=24)
            state, _ = step(init_state(jnp.float32(1.1), optax.sgd(1.0), jax.random.key(0)), flat)
            whole, means = make_gradient(loss)(jnp.float32(1.1), arrays)
            found.append((1.1 - state.params, whole / means["loss"].count))
        return found

    (in_parts, whole), (ratio_in_parts, of_ratio) = updates(arrays, flat)
    assert float(in_parts) == pytest.approx(float(whole), rel=1e-4) and abs(whole) > 0.01
    assert abs(ratio_in_parts - of_ratio) > 1e-3


def test_the_filter_keeps_the_uncertain_hints_and_nothing_else():
    entropy = np.array([[0.1, 0.9, 0.2, 0.8, 0.3, 0.7], [0.5, 0.1, 0.9, 0.0, 0.0, 0.0], [1.0] * 6], np.float32)
    keep = jax.jit(ours.keep_uncertain)
    hinted = np.array([[True] * 5 + [False], [True, True, False, False, False, False], [False] * 6])
    np.testing.assert_array_equal(
        keep(entropy, hinted, 0.4),
        [[False, True, False, True, False, False], [True] + [False] * 5, [False] * 6],
    )
    np.testing.assert_array_equal(keep(entropy, hinted, 0.2).sum(1), [1, 1, 0])  # int(0.2 x 5) = 1
    np.testing.assert_array_equal(keep(entropy, hinted, 1.0), hinted)
    many = keep(np.arange(75, dtype=np.float32)[None], np.ones((1, 75), bool), 0.84)
    np.testing.assert_array_equal(many[0], np.arange(75) >= 12)  # 63, though float32 has .84 x 75 below it
