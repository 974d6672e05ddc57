"""losses/preference/batch_stats.py: losses against TRL, sums over micro-batches, what each state remembers."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from rl_jax import dpo
from rl_jax.core.binding import bind
from rl_jax.core.masked import masked_var, merge
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.losses.preference import batch_stats, compare, links, prompt_weights, scales
from tests.oracles import trl_preference

N, C, BETA = 8, 5, 0.3
KEY = jax.random.key(0)


def _case(seed=0, responses=2):
    rng = np.random.default_rng(seed)
    mask = np.arange(C) < rng.integers(1, C + 1, (N, responses, 1))
    log_probs, refs = np.float32(rng.uniform(-3.0, -0.1, (2, N, responses, C)))
    return log_probs, refs, mask


def _preferences(refs, mask, extras, rewards=None):
    rewards = np.float32([[1.0, 0.0]] * N)[:, : mask.shape[1]] if rewards is None else rewards
    return PreferenceBatch(None, mask, np.ones(mask.shape[:2], bool), rewards, refs, None, extras)


def _before(log_probs, refs, mask, **more):
    if "mismatched_log_ratios" in more:
        more.setdefault("mismatched_present", jnp.ones(len(mask), bool))
    sums, ref_sums = (np.where(mask, x, np.float32(0.0)).sum(axis=2) for x in (log_probs, refs))
    lengths = np.float32(mask.sum(axis=2))
    there = jnp.ones(mask.shape[:2], bool)
    return batch_stats.GlobalBatch(jnp.asarray(sums - ref_sums), there, None, lengths, jnp.asarray(ref_sums), **more)


def _value_and_gradient(objective, log_probs, refs, mask, extras, micro_batches=1, rewards=None):
    """rl_jax.dpo.loss of the batch dealt out to micro-batches, divided once; the gradient in log_probs [N, K, C]."""
    batch = _preferences(refs, mask, extras, rewards)
    zeros = jnp.zeros((N // micro_batches * mask.shape[1], C))

    def total(log_probs):
        means = []
        for i in range(micro_batches):
            part = jax.tree.map(lambda x, i=i: x[i::micro_batches], (batch, log_probs))
            rows = part[1].reshape(-1, C)
            means.append(dpo.loss(TokenScores(rows, zeros), part[0], objective)[0])
        mean = means[0]
        for other in means[1:]:
            mean = merge(mean, other)
        return mean.value()

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(log_probs))
    return float(value), np.asarray(gradient)


def _check(found, expected, mask):
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    np.testing.assert_allclose(found[1][mask], expected[1][mask], rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name, paired", [("aot", True), ("aot_unpaired", False)])
def test_sorted_losses_are_trls(name, paired, smoothing, micro_batches):
    log_probs, refs, mask = _case()
    statistics = batch_stats.aot_partners(paired=paired)
    extras = statistics.update(statistics.init(), _before(log_probs, refs, mask))[1]
    objective = dpo.Objective(
        beta=BETA,
        compare=compare.sorted_pairs if paired else compare.sorted_unpaired,
        link=bind({"fn": "logistic", "label_smoothing": smoothing}, links),
    )
    found = _value_and_gradient(objective, log_probs, refs, mask, extras, micro_batches)
    expected = trl_preference.dpo_loss(log_probs, refs, mask, loss_type=[name], beta=BETA, label_smoothing=smoothing)
    _check(found, expected, mask)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="needs mismatched_log_ratios"):
        batch_stats.kto_anchor().update((), _before(*_case(responses=1)))
    before = _before(*_case())._replace(ref_sequence_scores=None)
    with pytest.raises(ValueError, match="reference to {ref: 1}"):
        batch_stats.aot_partners().update((), before)


def test_rows_without_a_pair_do_not_disturb_the_sort():
    log_probs, refs, mask = _case(1)
    for paired in (True, False):
        update = batch_stats.aot_partners(paired=paired).update
        whole = _before(log_probs, refs, mask)
        present = np.arange(N) < N - 2
        some = jax.tree.map(lambda x: x[:-2], whole)
        wild = whole.sequence_scores.at[-2:].set(jnp.array([[9e3, -9e3], [-9e3, 9e3]]))
        holey = whole._replace(present=jnp.asarray(np.stack([present, present | True], axis=1)), sequence_scores=wild)
        expected = update((), some)[1]["partners"]
        found = update((), holey)[1]["partners"]
        np.testing.assert_allclose(found[:-2], expected, rtol=1e-6)
        # A response that is not there has no partner, whatever stands in its place.
        wild = jnp.array([[np.inf, 3.0], [np.inf, 5.0]])
        holey = holey._replace(ref_sequence_scores=whole.ref_sequence_scores.at[-2:].set(wild))
        found = update((), holey)[1]["partners"]
        np.testing.assert_array_equal(found[-2:, 0], 0.0)
        np.testing.assert_allclose(found[:-2], expected, rtol=1e-6)


@pytest.mark.parametrize("shift", [0.5, -5.0])
def test_kto_is_trls(shift):
    """shift moves the mismatched log-ratios: their mean is above 0, and clamped there."""
    log_probs, refs, mask = _case(2, responses=1)
    labels = np.arange(N) % 3 == 0
    mismatched = np.float32(np.random.default_rng(3).normal(size=N) + shift)
    statistics = batch_stats.kto_anchor()
    _, extras = statistics.update(statistics.init(), _before(log_probs, refs, mask, mismatched_log_ratios=mismatched))
    assert extras["anchor"].shape == (N,) and (float(extras["anchor"][0]) == 0) == (shift < 0)
    compared = bind({"fn": "anchored", "desirable_weight": 1.3, "undesirable_weight": 0.8}, compare)
    objective = dpo.Objective(beta=BETA, compare=compared, link=links.saturating)
    rewards = np.float32(labels)[:, None]
    found = _value_and_gradient(objective, log_probs, refs, mask, extras, 2, rewards)
    value, gradient = trl_preference.kto_loss(
        log_probs[:, 0],
        refs[:, 0],
        mask[:, 0],
        labels,
        mismatched,
        beta=BETA,
        desirable_weight=1.3,
        undesirable_weight=0.8,
    )
    _check(found, (value, gradient[:, None]), mask)


def test_kto_anchor_leaves_out_neighbours_without_a_response():
    """3 of 8 prompts have a response, which the next one's prompt takes: the ratios of rows 1 to 3 count, not row 0's,
    which is 0 because its neighbour has none."""
    there = np.arange(N) < 3
    ratios = np.where(np.roll(there, 1), np.arange(N, dtype=np.float32), 0)
    more = dict(mismatched_log_ratios=ratios, mismatched_present=np.roll(there, 1))
    before = _before(*_case(2, responses=1), **more)._replace(present=jnp.asarray(there[:, None]))
    np.testing.assert_allclose(batch_stats.kto_anchor().update((), before)[1]["anchor"], np.full(N, 2.0))


def test_bco_over_three_steps_is_trls():
    """The running mean over responses: BCOTrainer, its third step."""
    batches = [_case(seed) for seed in (4, 5, 6)]
    statistics = batch_stats.bco_anchor()
    state = statistics.init()
    for batch in batches:
        state, extras = statistics.update(state, _before(*batch))
    assert float(state.count) == 3 * 2 * N
    objective = dpo.Objective(beta=BETA, compare=compare.anchored)
    found = _value_and_gradient(objective, *batches[-1], extras, 2)
    _check(found, trl_preference.bco_losses(batches, beta=BETA), batches[-1][2])


def test_bco_pair_is_trls_of_028():
    """A batch's mean is one observation, whatever its size."""
    log_probs, refs, mask = _case(4)
    statistics = batch_stats.bco_anchor(observations="batches")
    _, extras = statistics.update(statistics.init(), _before(log_probs, refs, mask))
    objective = dpo.Objective(beta=BETA, compare=compare.anchored)
    found = _value_and_gradient(objective, log_probs, refs, mask, extras)
    _check(found, trl_preference.old_dpo_loss(log_probs, refs, mask, loss_type=["bco_pair"], beta=BETA), mask)


def test_bco_anchor_by_hand():
    """Counts weigh: a batch of 4 at 1, then one of 2 present responses at 4. 0 as long as there was no response."""
    empty = batch_stats.GlobalBatch(jnp.ones((2, 2)), jnp.zeros((2, 2), bool))
    ones = batch_stats.GlobalBatch(jnp.ones((2, 2)), jnp.ones((2, 2), bool))
    fours = batch_stats.GlobalBatch(4.0 * jnp.ones((2, 2)), jnp.array([[True, False]] * 2))
    for observations, expected in (("responses", 2.0), ("batches", 2.5)):
        statistics = batch_stats.bco_anchor(observations=observations)
        state, extras = statistics.update(statistics.init(), empty)
        np.testing.assert_array_equal(extras["anchor"], [0.0] * 2)
        state, _ = statistics.update(state, ones)
        _, extras = statistics.update(state, fours)
        np.testing.assert_allclose(extras["anchor"], [expected] * 2, rtol=1e-6)
    with pytest.raises(ValueError, match="observations='rows' is none of responses, batches"):
        batch_stats.bco_anchor(observations="rows")


def _beta_dpo(gaps, kept, state, beta, a):
    """beta-DPO as published, with the filter's choice given: (mean, std, beta of the batch), in torch."""
    gaps, kept = torch.tensor(np.float64(gaps)), torch.tensor(np.asarray(kept))
    mean, std = 0.9 * state[0] + 0.1 * float(gaps.mean()), 0.9 * state[1] + 0.1 * float(gaps.std())
    return mean, std, max(1e-3, beta * (1 + a * (float(gaps[kept].mean()) - mean)))


def test_beta_statistics_are_the_published_ones():
    statistics = batch_stats.beta_statistics(beta=BETA, adaptation=0.6, dropped=0.3)
    state, expected = statistics.init(), (0.0, 0.0)
    for step in range(3):
        log_probs, refs, mask = _case(step)
        before = _before(log_probs, refs, mask)
        gaps = np.asarray(before.sequence_scores[:, 0] - before.sequence_scores[:, 1])
        state, extras = statistics.update(state, before, jax.random.fold_in(KEY, step))
        kept = np.asarray(extras["kept"]) > 0
        assert kept.sum() == int(N * (1 - 0.3)) == 5
        *expected, batch_beta = _beta_dpo(gaps, kept, expected, BETA, 0.6)
        np.testing.assert_allclose(state, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(extras["batch_beta"], np.full(N, batch_beta), rtol=1e-4)
        np.testing.assert_allclose(np.asarray(extras["kept"])[kept], N / 5, rtol=1e-6)
    # The loss of the last step: -log sigma(beta_b h), averaged over the pairs that were kept.
    objective = dpo.Objective(beta=BETA, scale=scales.batch_adapted, weight=prompt_weights.kept)
    value, gradient = _value_and_gradient(objective, log_probs, refs, mask, extras, 4)
    np.testing.assert_allclose(value, np.logaddexp(0.0, -batch_beta * gaps[kept]).mean(), rtol=1e-5)
    assert not gradient[~kept].any() and gradient[kept].any()
    with pytest.raises(ValueError, match="pass a key to its update"):
        statistics.update(state, before)


def test_beta_statistics_without_adaptation_or_filter_are_dpo():
    statistics = batch_stats.beta_statistics(beta=BETA, adaptation=0.0, dropped=0.0)
    log_probs, refs, mask = _case()
    _, extras = statistics.update(statistics.init(), _before(log_probs, refs, mask), KEY)
    np.testing.assert_allclose(extras["batch_beta"], BETA, rtol=1e-6)
    np.testing.assert_array_equal(extras["kept"], 1.0)
    # A gap far below the mean asks for less than the floor.
    low = batch_stats.beta_statistics(beta=BETA, adaptation=1e3, dropped=0.0)
    before = _before(log_probs, refs, mask)._replace(sequence_scores=jnp.array([[-9.0, 0.0]] * N))
    np.testing.assert_allclose(low.update(low.init(), before, KEY)[1]["batch_beta"], 1e-3, rtol=1e-6)


def test_a_pair_alone_is_kept():
    """int((1 - dropped) 1) would be none."""
    before = batch_stats.GlobalBatch(jnp.array([[1.0, 0.0]]), jnp.ones((1, 2), bool))
    statistics = batch_stats.beta_statistics(beta=BETA, adaptation=0.0, dropped=0.3)
    _, extras = statistics.update(statistics.init(), before, KEY)
    np.testing.assert_allclose([extras["kept"][0], extras["batch_beta"][0]], [1.0, BETA], rtol=1e-6)


def test_the_filter_draws_without_replacement_by_weight():
    """How often each of 4 pairs is kept when 2 are drawn, against the enumerated probabilities of torch.multinomial's
    procedure: the first by weight, the second by weight among the rest."""
    gaps = np.float32([0.0, 1.0, 2.0, 4.0])
    before = batch_stats.GlobalBatch(jnp.stack([gaps, jnp.zeros(4)], axis=1), jnp.ones((4, 2), bool))
    statistics = batch_stats.beta_statistics(beta=BETA, dropped=0.5)
    mean, std = 0.1 * gaps.mean(), 0.1 * gaps.std(ddof=1)
    # A state in which the moving averages come out as the batch's own.
    state = batch_stats.GapStatistics(jnp.float32(9 * mean / 0.9), jnp.float32(9 * std / 0.9))
    weight = np.exp(-0.5 * ((np.float64(gaps) - gaps.mean()) / gaps.std(ddof=1)) ** 2)
    expected = np.zeros(4)
    for i, j in itertools.permutations(range(4), 2):
        expected[[i, j]] += weight[i] / weight.sum() * weight[j] / (weight.sum() - weight[i])
    draws = 20000
    keys = jax.random.split(KEY, draws)
    kept = jax.jit(jax.vmap(lambda key: statistics.update(state, before, key)[1]["kept"] > 0))(keys)
    np.testing.assert_array_equal(np.sum(kept, axis=1), 2)
    np.testing.assert_allclose(np.mean(kept, axis=0), expected, atol=4 * 0.5 / np.sqrt(draws))


def test_pairs_that_are_not_there_are_not_counted():
    """Statistics and choice of a batch with holes are those of the batch without them."""
    log_probs, refs, mask = _case(7)
    whole = _before(log_probs, refs, mask)
    present = whole.present.at[-3:, 1].set(False)
    holey = whole._replace(present=present, sequence_scores=whole.sequence_scores.at[-3:].set(1e6))
    statistics = batch_stats.beta_statistics(beta=BETA, dropped=0.4)
    state, extras = statistics.update(statistics.init(), holey, KEY)
    gaps = (whole.sequence_scores[:, 0] - whole.sequence_scores[:, 1])[:-3]
    std = jnp.sqrt(masked_var(gaps, jnp.ones(5, bool), ddof=1))
    np.testing.assert_allclose(state, [0.1 * jnp.mean(gaps), 0.1 * std], rtol=1e-5)
    kept = np.asarray(extras["kept"])
    assert (kept > 0).sum() == 3 and not kept[-3:].any()
    np.testing.assert_allclose(kept[kept > 0], 5 / 3, rtol=1e-6)


def test_eight_devices_are_one():
    """The batch sharded over its rows: every sort, mean and draw is of the whole batch all the same."""
    log_probs, refs, mask = _case(8)
    before = _before(log_probs, refs, mask, mismatched_log_ratios=jnp.arange(N, dtype=jnp.float32))
    rows = jax.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("data",)), jax.P("data"))
    sharded = jax.tree.map(lambda x: jax.device_put(x, rows), before)
    anchors = batch_stats.kto_anchor(), batch_stats.bco_anchor()
    each = *anchors, batch_stats.aot_partners(), batch_stats.beta_statistics(beta=BETA)

    @jax.jit
    def every(before):
        return [statistics.update(statistics.init(), before, KEY) for statistics in each]

    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), every(sharded), every(before))


@pytest.mark.parametrize("statistics", [batch_stats.bco_anchor(), batch_stats.beta_statistics(beta=BETA)])
def test_a_batch_that_is_not_finite_leaves_no_trace(statistics):
    """The train step skips it; what comes after it is as if it had never been."""
    good, bad = _before(*_case(4)), _before(*_case(5))
    bad = bad._replace(sequence_scores=bad.sequence_scores.at[2, 0].set(-jnp.inf))
    first, _ = statistics.update(statistics.init(), good, KEY)
    after, extras = statistics.update(first, bad, KEY)
    assert after == first and not all(np.isfinite(x).all() for x in extras.values()), "the loss shows it"
    assert statistics.update(statistics.init(), bad, KEY)[0] == statistics.init()


def test_bcos_held_out_anchor_is_the_training_mean():
    statistics = batch_stats.bco_anchor()
    state, _ = statistics.update(statistics.init(), _before(*_case(4)))
    found = statistics.held_out(state, _before(*_case(5)))
    np.testing.assert_array_equal(found["anchor"], np.full(N, state.mean))


def test_none_wants_nothing():
    statistics = batch_stats.none()
    assert statistics.update(statistics.init(), None) == ((), {})
    assert bind("none", batch_stats)().init() == ()
