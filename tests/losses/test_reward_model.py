"""losses/reward_model and what stands beside it: against TRL, rax, torch and sums written out, with their gradients."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rax
import torch

from rl_jax.advantages import prime
from rl_jax.core.binding import public_functions
from rl_jax.core.masked import masked_mean
from rl_jax.credit import ensembles, process_rewards, step_rewards
from rl_jax.losses import reward_model as losses
from rl_jax.losses.reward_model import base, implicit, rankings
from rl_jax.losses.reward_model.demonstrations import inverse_rl
from rl_jax.losses.value import Support
from tests.oracles import trl_reward

RNG = np.random.default_rng(0)
# Arithmetic on a few numbers: what takes time is LLVM, and it has nothing to gain here.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
SUPPORT = Support(-1.0, 1.0, 21, 3)


def values(*shape, scale=2.0, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def value(fn, rewards, *rest, **named):
    return float(quick_jit(lambda x: masked_mean(*fn(x, *rest, **named)).value())(rewards))


def gradient(fn, rewards, *rest, **named):
    return np.asarray(quick_jit(jax.grad(lambda x: masked_mean(*fn(x, *rest, **named)).value()))(rewards))


def there(*shape):
    return jnp.ones(shape, bool)


# --- Pairs against TRL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("center", [None, 0.01, 0.5])
def test_bradley_terry_is_trls_reward_trainer(with_margin, center):
    rewards, margins = values(7, 2), np.abs(values(7, seed=1))
    expected = trl_reward.reward_loss(
        rewards, margins=margins if with_margin else None, center_rewards_coefficient=center
    )
    margin = dict(margins=jnp.asarray(margins)) if with_margin else {}
    pair = losses.bradley_terry_margin if with_margin else losses.bradley_terry

    def fn(x):
        loss = masked_mean(*pair(x, there(7, 2), **margin)).value()
        return loss + (center or 0.0) * jnp.mean(rankings.centered(x, there(7, 2)))

    found = quick_jit(jax.value_and_grad(fn))(rewards)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-7)


def test_ragged_pairs_are_trls_of_the_whole_ones():
    """A prompt with one response has no term, whatever stands in the empty place."""
    rewards = values(6, 2)
    present = np.ones((6, 2), bool)
    present[[1, 4], 1] = False
    rewards[~present] = np.nan
    kept = present.all(axis=1)
    expected = trl_reward.reward_loss(rewards[kept])
    assert value(losses.bradley_terry, rewards, jnp.asarray(present)) == pytest.approx(expected[0], rel=1e-6)
    found = gradient(losses.bradley_terry, rewards, jnp.asarray(present))
    np.testing.assert_allclose(found[kept], expected[1], rtol=1e-5, atol=1e-7)
    assert not found[~kept].any()


def test_label_smoothing_and_soft_labels_are_torchs_cross_entropy():
    rewards, probs = values(9, 2), RNG.uniform(0, 1, 9).astype(np.float32)
    gaps = torch.tensor(rewards[:, 0] - rewards[:, 1], dtype=torch.float64)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(gaps, torch.tensor(probs, dtype=torch.float64))
    found = value(losses.bradley_terry_soft, rewards, there(9, 2), label_probs=jnp.asarray(probs))
    assert found == pytest.approx(float(expected), rel=1e-6)
    smooth = functools.partial(losses.bradley_terry, label_smoothing=0.2)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(gaps, torch.full((9,), 0.8, dtype=torch.float64))
    assert value(smooth, rewards, there(9, 2)) == pytest.approx(float(expected), rel=1e-6)
    certain = value(losses.bradley_terry_soft, rewards, there(9, 2), label_probs=jnp.ones(9))
    assert certain == pytest.approx(value(losses.bradley_terry, rewards, there(9, 2)), rel=1e-6)


def test_a_soft_label_is_stationary_at_its_own_log_odds():
    probs = jnp.array([0.2, 0.5, 0.9])
    rewards = jnp.stack([jnp.log(probs / (1 - probs)), jnp.zeros(3)], axis=1)
    found = gradient(losses.bradley_terry_soft, rewards, there(3, 2), label_probs=probs)
    np.testing.assert_allclose(found, 0.0, atol=1e-7)


def test_llama_2_margins():
    margins = rankings.LLAMA2_MARGINS
    assert list(margins["small"].values()) == [1.0, 2 / 3, 1 / 3, 0.0]
    assert list(margins["large"].values()) == [3.0, 2.0, 1.0, 0.0]
    assert list(margins["small"]) == list(margins["large"]) == ["significantly", "better", "slightly", "negligibly"]


# --- Rankings --------------------------------------------------------------------------------------------------------


def ragged_ranking(seed=0):
    """(rewards [5, 4], present): one prompt whole, three with less, one with a single response."""
    present = np.arange(4)[None, :] < np.array([4, 3, 2, 4, 1])[:, None]
    rewards = values(5, 4, seed=seed)
    rewards[~present] = np.nan
    return rewards, present


def graded(k, n=1):
    """Targets float [n, k] without ties, the best first."""
    return jnp.asarray(np.tile(np.arange(k, 0, -1, dtype=np.float32), (n, 1)))


# Two and three levels, and one prompt where all are as good as each other.
TIED = np.array([[1, 1, 0, 0], [2, 1, 1, 9], [1, 0, 9, 9], [1, 1, 1, 1], [3, 9, 9, 9]], np.float32)


@pytest.mark.parametrize("tied", [False, True])
def test_k_wise_is_the_mean_over_all_pairs_of_a_prompt(tied):
    """Over those of different grades; a prompt without one has no term."""
    rewards, present = ragged_ranking()
    targets = TIED if tied else np.asarray(graded(4, 5))
    leaf = torch.tensor(np.nan_to_num(rewards), dtype=torch.float64, requires_grad=True)
    terms = []
    for row, mask in enumerate(present):
        pairs = itertools.permutations(np.flatnonzero(mask), 2)
        found = [leaf[row, i] - leaf[row, j] for i, j in pairs if targets[row, i] > targets[row, j]]
        if found:
            terms.append(-torch.nn.functional.logsigmoid(torch.stack(found)).mean())
    assert len(terms) == (3 if tied else 4)
    expected = torch.stack(terms).mean()
    (want,) = torch.autograd.grad(expected, leaf)
    args = rewards, jnp.asarray(present)
    named = dict(targets=jnp.asarray(np.where(present, targets, np.nan)))
    assert value(losses.k_wise, *args, **named) == pytest.approx(float(expected.detach()), rel=1e-6)
    np.testing.assert_allclose(gradient(losses.k_wise, *args, **named), want, rtol=1e-5, atol=1e-7)


def test_plackett_luce_is_raxs_list_mle():
    rewards, present = ragged_ranking(3)
    labels = graded(4, 5)

    def expected(x):
        rows = [rax.listmle_loss(x[i], labels[i], where=jnp.asarray(present[i]), reduce_fn=jnp.sum) for i in range(4)]
        return sum(rows) / 4

    clean = jnp.asarray(np.nan_to_num(rewards))
    with jax.numpy_rank_promotion("allow"):
        want, want_gradient = quick_jit(jax.value_and_grad(expected))(clean)
    args = rewards, jnp.asarray(present)
    assert value(losses.plackett_luce, *args, targets=labels) == pytest.approx(float(want), rel=1e-5)
    found = gradient(losses.plackett_luce, *args, targets=labels)
    np.testing.assert_allclose(found, want_gradient, rtol=1e-4, atol=1e-6)


def test_plackett_luce_does_not_order_what_is_tied():
    """Each response is drawn ahead of those of a lower grade: a softmax over itself and them."""
    rewards, present = ragged_ranking(3)
    leaf = torch.tensor(np.nan_to_num(rewards), dtype=torch.float64, requires_grad=True)
    total, live = 0, 0
    for row, mask in enumerate(present):
        there_ = np.flatnonzero(mask)
        live += len({TIED[row, i] for i in there_}) > 1
        for i in there_:
            worse = [j for j in there_ if TIED[row, j] < TIED[row, i]]
            total += torch.logsumexp(leaf[row, [i, *worse]], 0) - leaf[row, i]
    (want,) = torch.autograd.grad(total / live, leaf)
    args, named = (rewards, jnp.asarray(present)), dict(targets=jnp.asarray(np.where(present, TIED, np.nan)))
    assert live == 3
    assert value(losses.plackett_luce, *args, **named) == pytest.approx(float((total / live).detach()), rel=1e-5)
    np.testing.assert_allclose(gradient(losses.plackett_luce, *args, **named), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["k_wise", "plackett_luce"])
def test_a_list_of_two_is_a_pair(name):
    rewards = values(6, 2, scale=5.0)
    for compute in (value, gradient):
        expected = compute(losses.bradley_terry, rewards, there(6, 2))
        found = compute(getattr(losses, name), rewards, there(6, 2), targets=graded(2, 6))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["bradley_terry", "k_wise", "plackett_luce"])
def test_a_constant_of_the_prompt_changes_nothing_but_the_centring(name):
    fn, k = getattr(losses, name), 2
    if name != "bradley_terry":
        fn, k = functools.partial(fn, targets=graded(4, 5)), 4
    rewards, shift = values(5, k), values(5, 1, seed=9)
    np.testing.assert_allclose(value(fn, rewards, there(5, k)), value(fn, rewards + shift, there(5, k)), rtol=1e-4)
    assert abs(gradient(fn, rewards, there(5, k)).sum(axis=1)).max() < 1e-6
    centred = [np.asarray(rankings.centered(jnp.asarray(x), there(5, k))) for x in (rewards, rewards + shift)]
    assert np.abs(centred[0] - centred[1]).min() > 1e-3


def test_regularizers():
    rewards = jnp.array([[1.0, -3.0], [2.0, jnp.nan]])
    present = jnp.array([[True, True], [True, False]])
    np.testing.assert_allclose(rankings.centered(rewards, present), [4.0, 4.0])
    np.testing.assert_allclose(rankings.squared(rewards, present), [10.0, 4.0])


def test_a_pair_has_two_responses():
    with pytest.raises(ValueError, match="2 responses per prompt, got 3: use k_wise or plackett_luce"):
        losses.bradley_terry(jnp.zeros((1, 3)), there(1, 3))


@pytest.mark.parametrize("name", ["k_wise", "plackett_luce"])
def test_a_list_has_two_responses_or_more(name):
    with pytest.raises(ValueError, match="two or more responses per prompt, got 1"):
        getattr(losses, name)(jnp.zeros((2, 1)), there(2, 1), targets=jnp.ones((2, 1)))


# --- Grades ----------------------------------------------------------------------------------------------------------


def test_outcome_and_mse_are_torchs():
    rewards, targets = values(5, 1), RNG.integers(0, 2, (5, 1)).astype(np.float32)
    present = np.array([[True], [True], [False], [True], [True]])
    for name, fn in (
        ("outcome", torch.nn.functional.binary_cross_entropy_with_logits),
        ("mse", torch.nn.functional.mse_loss),
    ):
        leaf = torch.tensor(rewards[present], dtype=torch.float64, requires_grad=True)
        expected = fn(leaf, torch.tensor(targets[present], dtype=torch.float64))
        (want,) = torch.autograd.grad(expected, leaf)
        dirty = np.where(present, rewards, np.nan)
        args = dirty, jnp.asarray(present)
        assert value(getattr(losses, name), *args, targets=jnp.asarray(targets)) == pytest.approx(
            float(expected.detach()), 1e-6
        )
        found = gradient(getattr(losses, name), *args, targets=jnp.asarray(targets))
        np.testing.assert_allclose(found[present], want, rtol=1e-5)
        assert not found[~present].any()


def test_attributes_leave_missing_labels_out():
    outputs, targets = values(3, 1, 4), values(3, 1, 4, seed=1)
    labelled = RNG.random((3, 1, 4)) < 0.6
    targets[~labelled] = np.nan
    named = dict(attribute_targets=jnp.asarray(targets), attribute_mask=jnp.asarray(labelled))
    expected = np.mean((outputs - targets)[labelled] ** 2)
    assert value(losses.attributes, outputs, there(3, 1), **named) == pytest.approx(expected, rel=1e-6)
    found = gradient(losses.attributes, outputs, there(3, 1), **named)
    want = np.where(labelled, 2 * (outputs - np.nan_to_num(targets)) / labelled.sum(), 0.0)
    np.testing.assert_allclose(found, want, rtol=1e-5)
    one = dict(attribute_targets=jnp.asarray(outputs[..., :1] * 0), attribute_mask=there(3, 1, 1))
    assert value(losses.attributes, outputs[..., :1], there(3, 1), **one) == pytest.approx(
        value(losses.mse, outputs[..., 0], there(3, 1), targets=jnp.zeros((3, 1))), rel=1e-6
    )


def test_hl_gauss_is_least_where_the_grade_is():
    targets = jnp.array([[0.5, -0.8], [0.0, 0.3]])
    logits = jnp.zeros((2, 2, SUPPORT.num_bins))
    fn = functools.partial(losses.hl_gauss, targets=targets, support=SUPPORT)
    assert value(fn, logits, there(2, 2)) == pytest.approx(math.log(SUPPORT.num_bins), rel=1e-5)
    step = quick_jit(lambda x: x - 20.0 * jax.grad(lambda y: masked_mean(*fn(y, there(2, 2))).value())(x))
    for _ in range(200):
        logits = step(logits)
    np.testing.assert_allclose(SUPPORT.mean(logits), targets, atol=2e-2)


# --- Steps -----------------------------------------------------------------------------------------------------------


def step_case():
    logits = values(3, 4, 2)
    mask = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]], bool)
    labels = RNG.integers(0, 2, (3, 4)).astype(np.float32)
    logits[~mask] = np.nan
    return logits, mask, labels


def test_steps_are_torchs_cross_entropy_with_ignored_labels():
    """Which is the loss of TRL's PRMTrainer, a token classification with -100 elsewhere."""
    logits, mask, labels = step_case()
    leaf = torch.tensor(np.nan_to_num(logits), dtype=torch.float64, requires_grad=True)
    targets = torch.tensor(np.where(mask, labels, -100), dtype=torch.int64)
    expected = torch.nn.functional.cross_entropy(leaf.reshape(-1, 2), targets.reshape(-1), ignore_index=-100)
    (want,) = torch.autograd.grad(expected, leaf)
    named = dict(step_labels=jnp.asarray(labels))
    found = value(losses.step_cross_entropy, logits, jnp.asarray(mask), **named)
    assert found == pytest.approx(float(expected.detach()), rel=1e-6)
    found = gradient(losses.step_cross_entropy, logits, jnp.asarray(mask), **named)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)
    loss, live = map(np.asarray, losses.step_cross_entropy(jnp.asarray(logits), jnp.asarray(mask), **named))
    np.testing.assert_array_equal(live, mask)
    assert np.all(loss[mask] > 0) and not loss[~mask].any()


def test_last_step_only_is_an_outcome_model():
    logits, mask, labels = step_case()
    final = np.zeros_like(mask)
    final[0, 2] = final[1, 3] = True
    named = dict(step_labels=jnp.asarray(labels))
    only = functools.partial(losses.step_cross_entropy, last_step_only=True)
    expected = value(losses.step_cross_entropy, logits, jnp.asarray(final), **named)
    assert value(only, logits, jnp.asarray(mask), **named) == pytest.approx(expected, rel=1e-6)
    gaps = np.where(final, logits[..., 1] - logits[..., 0], 0.0)
    assert expected == pytest.approx(value(losses.outcome, gaps, jnp.asarray(final), targets=jnp.asarray(labels)), 1e-5)


STEPS = np.array([[0.9, 0.5, 0.2, 7.0], [0.6, 7.0, 7.0, 7.0], [7.0, 7.0, 7.0, 7.0]], np.float32)
STEP_MASK = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minimum", 0.2),
        ("maximum", 0.9),
        ("product", 0.09),
        ("geometric_mean", 0.09 ** (1 / 3)),
        ("mean", 1.6 / 3),
        ("last", 0.2),
        ("mean_logit", 1 / (1 + math.exp(-(math.log(9) + 0 + math.log(0.25)) / 3))),
        ("mean_odds", (9 + 1 + 0.25) / 3),
    ],
)
def test_scores_of_steps(name, expected):
    """RewardMATH's own lines on [.9, .5, .2]; one step is itself (its odds, for the odds); none is .5."""
    found = quick_jit(getattr(process_rewards, name))(STEPS, STEP_MASK)
    alone = 1.5 if name == "mean_odds" else 0.6
    np.testing.assert_allclose(found, [expected, alone, 0.5], rtol=1e-5)


@pytest.mark.parametrize("name", ["mean_logit", "mean_odds"])
def test_scores_of_steps_that_are_certain(name):
    """A probability of 0 or 1 has no finite odds: the score is finite, and the surer solution has the higher one."""
    probs = np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 1.0], [0.0, 0.0]], np.float32)
    found = np.asarray(quick_jit(getattr(process_rewards, name))(probs, there(4, 2)))
    assert np.isfinite(found).all() and found[3] < found[0] <= found[1] < found[2]
    if name == "mean_logit":
        assert found[0] == pytest.approx(0.5, abs=0.05)


def test_a_config_names_an_aggregate_and_nothing_else():
    names = {"minimum", "maximum", "product", "geometric_mean", "mean", "last", "mean_logit", "mean_odds"}
    assert set(public_functions(process_rewards)) == names


def test_robust_mixes_a_nominal_member_with_the_most_pessimistic_one():
    rewards = jnp.array([[1.0, 2.0, 0.0], [3.0, 2.5, -1.0], [0.0, 1.0, 4.0]])
    # Means 4/3, 11/6, 1: the third is the lowest, though not in the last row; the second is nearest the members' mean.
    found = ensembles.robust(rewards, weight=0.25)
    np.testing.assert_allclose(found, 0.25 * rewards[:, 1] + 0.75 * rewards[:, 2], rtol=1e-6)
    by_row = ensembles.robust(rewards, weight=0.0, batch=False)
    np.testing.assert_allclose(by_row, ensembles.worst_case(rewards), rtol=1e-6)
    np.testing.assert_allclose(ensembles.robust(rewards, weight=1.0), rewards[:, 1], rtol=1e-6)
    np.testing.assert_allclose(ensembles.robust(rewards[:, :1]), rewards[:, 0], rtol=1e-6)  # one head: plain RLHF


def test_clip_and_delta():
    rewards = jnp.array([[0.9, 0.2, 0.6, 0.4], [0.9, 0.2, 0.0, 0.0]])
    mask = jnp.array([[True] * 4, [True, True, False, False]])
    clip = quick_jit(functools.partial(step_rewards.clip_steps, threshold=0.5))
    deltas = quick_jit(step_rewards.delta_steps)
    clipped = clip(rewards, mask)
    np.testing.assert_allclose(clipped, [[0.0, -0.3, 0.0, -0.1], [0.0, -0.3, 0.0, 0.0]], atol=1e-6)
    delta = deltas(rewards, mask)
    np.testing.assert_allclose(delta, [[0.7, -0.4, 0.6, 0.0], [0.9, 0.0, 0.0, 0.0]], atol=1e-6)
    to_go = np.cumsum(np.asarray(delta)[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(to_go[0, :3], rewards[0, :3], atol=1e-6)  # telescopes to the step's own reward
    same = clip(jnp.full((2, 4), 0.5), mask)
    np.testing.assert_array_equal(same, 0.0)
    # A filler step more earns nothing: the sum of the deltas is the first reward, however many steps follow.
    for steps in (2, 3, 4):
        few = np.arange(4)[None, :] < np.array([steps, 1])[:, None]
        total = np.asarray(deltas(jnp.full((2, 4), 0.8), jnp.asarray(few))).sum(axis=1)
        np.testing.assert_allclose(total, [0.8, 0.0], rtol=1e-6)


def test_signed_steps_are_those_of_the_likelier_class():
    rewards, mask = jnp.array([[0.9, 0.5, 0.2, 0.7]]), jnp.array([[True, True, True, False]])
    np.testing.assert_array_equal(step_rewards.signed(rewards, mask), [[1.0, -1.0, -1.0, 0.0]])


def test_steps_on_their_tokens():
    rewards, mask = jnp.array([[1.0, 2.0, jnp.nan]]), jnp.array([[True, True, False]])
    found = step_rewards.at_tokens(rewards, mask, jnp.array([[1, 4, -1]]), completion_length=5)
    np.testing.assert_allclose(found, [[0.0, 1.0, 0.0, 0.0, 2.0]])


# --- Implicit --------------------------------------------------------------------------------------------------------


def test_implicit_outcome_is_primes():
    ratios, mask = values(4, 1, 5), RNG.random((4, 1, 5)) < 0.7
    ratios[~mask] = np.nan
    labels = np.array([[1.0], [0.0], [1.0], [0.0]], np.float32)
    leaf = torch.tensor(np.nan_to_num(ratios[:, 0]), dtype=torch.float64, requires_grad=True)
    eos_mask = torch.tensor(mask[:, 0], dtype=torch.float64)
    scores = ((leaf * eos_mask).sum(dim=1) * 0.05).sigmoid()
    expected = torch.nn.functional.binary_cross_entropy(scores, torch.tensor(labels[:, 0], dtype=torch.float64))
    (want,) = torch.autograd.grad(expected, leaf)
    args, named = (jnp.asarray(mask), there(4, 1)), {"targets": jnp.asarray(labels), "beta": 0.05}
    found = value(losses.implicit_outcome, ratios, *args, **named)
    assert found == pytest.approx(float(expected.detach()), rel=1e-6)
    found = gradient(losses.implicit_outcome, ratios, *args, **named)
    np.testing.assert_allclose(found[:, 0], want, rtol=1e-5, atol=1e-8)
    at_reference = value(losses.implicit_outcome, 0 * np.nan_to_num(ratios), *args, **named)
    assert at_reference == pytest.approx(math.log(2), rel=1e-6)
    whole = implicit.implicit_rewards(jnp.asarray(ratios), jnp.asarray(mask), beta=2.0)
    np.testing.assert_allclose(whole[:, 0], 2 * np.where(mask, ratios, 0).sum(-1)[:, 0], rtol=1e-5)


def test_implicit_pairs_is_dpo_on_all_pairs_of_a_prompts_episodes():
    """Sums written out; an episode that is absent, or has the same outcome as another, is not compared with it."""
    ratios, mask = values(2, 3, 4), RNG.random((2, 3, 4)) < 0.7
    ratios[~mask] = np.nan
    outcomes = np.array([[1.0, 0.0, 1.0], [0.5, 0.2, 9.0]], np.float32)
    present = np.array([[True, True, True], [True, True, False]])
    sums = 0.3 * np.where(mask, ratios, 0).sum(-1)
    pairs = [[(0, 1), (2, 1)], [(0, 1)]]
    losses_ = [np.mean([np.logaddexp(0, sums[n, j] - sums[n, i]) for i, j in of]) for n, of in enumerate(pairs)]
    args, named = (jnp.asarray(mask), jnp.asarray(present)), {"targets": jnp.asarray(outcomes), "beta": 0.3}
    assert value(losses.implicit_pairs, ratios, *args, **named) == pytest.approx(np.mean(losses_), rel=1e-6)
    weights = np.zeros((2, 3))  # dl/dsum
    for n, of in enumerate(pairs):
        for i, j in of:
            share = 0.3 / (1 + np.exp(sums[n, i] - sums[n, j])) / len(of) / 2
            weights[n, i], weights[n, j] = weights[n, i] - share, weights[n, j] + share
    found = gradient(losses.implicit_pairs, ratios, *args, **named)
    np.testing.assert_allclose(found, np.where(mask, weights[..., None], 0), rtol=1e-5, atol=1e-8)


def prime_in_torch(rm_scores, gt_scores, mask, group, gammas):
    """compute_rloo_returns of PRIME's core_algos.py, its lines in their order, without verl's containers."""
    mask = torch.tensor(mask)
    total = 0
    for scores, where, gamma in ((rm_scores, mask, gammas[0]), (gt_scores, None, gammas[1])):
        rewards = torch.tensor(scores, dtype=torch.float64)
        if where is None:
            where = torch.zeros_like(mask)
            where[torch.arange(len(mask)), mask.sum(-1) - 1] = True
        rewards[~where] = 0
        for start in range(0, len(rewards), group):
            part, there_ = rewards[start : start + group], where[start : start + group]
            baseline = sum(part[i][there_[i]].mean() for i in range(group)) / (group - 1)
            part[there_] = part[there_] * (group / (group - 1)) - baseline
        discounted = torch.zeros_like(rewards)
        for step in reversed(range(rewards.shape[1])):
            after = discounted[:, step + 1] if step + 1 < rewards.shape[1] else 0
            discounted[:, step] = rewards[:, step] + gamma * after
        total = total + discounted
    kept = total[mask]
    return ((total - kept.mean()) * torch.rsqrt(kept.var(correction=1) + 1e-8)).numpy()


@pytest.mark.parametrize("gammas", [(1.0, 1.0), (0.9, 0.5)])
def test_prime_advantages(gammas):
    mask = np.arange(5)[None, :] < np.array([5, 3, 1, 4, 2, 5])[:, None]
    rewards = np.where(mask, values(6, 5), np.nan)
    outcomes = np.array([1.0, 0.0, 1.0, 0.0, 0.0, 1.0], np.float32)
    named = dict(group_size=3, reward_discount=gammas[0], outcome_discount=gammas[1])
    advantages = functools.partial(prime, **named)
    earned = outcomes + np.where(mask, rewards, 0).sum(1)  # credit.assign adds a row's own token rewards to it
    found = quick_jit(advantages)(earned.astype(np.float32), step_rewards=rewards, completion_mask=mask)
    expected = prime_in_torch(rewards, np.tile(outcomes[:, None], (1, 5)), mask, 3, gammas)
    np.testing.assert_allclose(np.asarray(found)[mask], expected[mask], rtol=2e-4, atol=1e-5)
    small = (2e-5 * earned).astype(np.float32), (2e-5 * rewards).astype(np.float32)  # beside an eps of 1e-8; pairs
    found = quick_jit(functools.partial(prime, **(named | {"group_size": 2})))(
        small[0], step_rewards=small[1], completion_mask=mask
    )
    expected = prime_in_torch(small[1], np.tile(2e-5 * outcomes[:, None], (1, 5)), mask, 2, gammas)
    np.testing.assert_allclose(np.asarray(found)[mask], expected[mask], rtol=2e-3, atol=1e-3)
    with pytest.raises(ValueError, match="at least 2"):
        prime(jnp.zeros(2), step_rewards=jnp.zeros((2, 2)), completion_mask=there(2, 2), group_size=1)


def test_prime_token_rewards_bound_the_return():
    mask = np.arange(4)[None, :] < np.array([4, 2])[:, None]
    ratios = np.where(mask, values(2, 4), np.nan)
    found = np.asarray(step_rewards.prime_token_rewards(jnp.asarray(ratios), jnp.asarray(mask)))
    assert np.abs(np.cumsum(found[:, ::-1], axis=1)).max() == pytest.approx(1.0, abs=1e-5)
    plain = step_rewards.prime_token_rewards(jnp.asarray(ratios), jnp.asarray(mask), normalize=False)
    np.testing.assert_allclose(plain, np.where(mask, ratios, 0.0))
    assert not np.asarray(step_rewards.prime_token_rewards(jnp.zeros((2, 4)), jnp.asarray(mask))).any()


# --- Laws ------------------------------------------------------------------------------------------------------------

RANKED = {
    "bradley_terry": (2, {}),
    "bradley_terry_margin": (2, {"margins": values(6, seed=5)}),
    "bradley_terry_soft": (2, {"label_probs": np.linspace(0, 1, 6, dtype=np.float32)}),
    "k_wise": (3, {"targets": TIED[[0, 1, 2, 0, 1, 2], :3]}),
    "plackett_luce": (3, {"targets": TIED[[0, 1, 2, 0, 1, 2], :3]}),
    "outcome": (3, {"targets": np.ones((6, 3), np.float32)}),
    "mse": (3, {"targets": values(6, 3, seed=4)}),
}


@pytest.mark.parametrize("name", RANKED)
def test_micro_batches_order_and_padding_change_nothing(name):
    k, named = RANKED[name]
    fn, rewards = getattr(losses, name), values(6, k)
    present = np.ones((6, k), bool)
    present[2, -1] = False

    def mean(rows, width=k):
        pad = ((0, 0), (0, width - k))
        extra = {key: x[rows] for key, x in named.items()}
        extra = {key: np.pad(x, pad, constant_values=np.nan) if x.ndim == 2 else x for key, x in extra.items()}
        kept = np.pad(present[rows], pad)
        padded = np.pad(rewards[rows], pad, constant_values=np.nan)
        return quick_jit(lambda x, there, named: masked_mean(*fn(x, there, **named)))(padded, kept, extra)

    whole = mean(np.arange(6))
    shuffled = mean(np.array([3, 1, 5, 0, 2, 4]))
    halves = [mean(np.arange(6)[i::2]) for i in range(2)]
    assert float(shuffled.value()) == pytest.approx(float(whole.value()), rel=1e-5)
    joined = sum(float(m.total) for m in halves) / sum(float(m.count) for m in halves)
    assert joined == pytest.approx(float(whole.value()), rel=1e-5)
    if k == 3:
        assert float(mean(np.arange(6), 5).value()) == pytest.approx(float(whole.value()), rel=1e-5)


def test_no_gradient_into_labels():
    rewards = jnp.asarray(values(4, 2))
    for fn, name in ((losses.bradley_terry_margin, "margins"), (losses.bradley_terry_soft, "label_probs")):
        found = quick_jit(jax.grad(lambda x, fn=fn, name=name: fn(rewards, there(4, 2), **{name: x}).loss.sum()))(
            jnp.ones(4) * 0.7
        )
        np.testing.assert_array_equal(found, 0.0)
    for fn in (losses.outcome, losses.mse, losses.k_wise, losses.plackett_luce):
        slope = jax.grad(lambda x, fn=fn: fn(rewards, there(4, 2), targets=x).loss.sum())
        found = quick_jit(slope)(graded(2, 4) * 0.7)
        np.testing.assert_array_equal(found, 0.0)


def test_data_of_a_prompt_is_one_number():
    """For rewards of any rank."""
    for shape in ((3,), (3, 2)):
        np.testing.assert_array_equal(base.per_prompt(jnp.arange(3), jnp.zeros(shape)), [0.0, 1.0, 2.0])
        for bad in ((2,), (3, 2), (3, 1)):
            with pytest.raises(AssertionError):
                base.per_prompt(jnp.zeros(bad), jnp.zeros(shape))


# --- Demonstrations --------------------------------------------------------------------------------------------------


def test_inverse_rl_is_the_gap_and_a_decay():
    rewards = values(5, 4, scale=1.0)
    present = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 1, 1]], bool)
    expected, live = np.zeros(5), []
    for i, (row, here) in enumerate(zip(rewards, present, strict=True)):
        samples = [r for r, taken in zip(row[1:], here[1:], strict=True) if taken]
        live.append(bool(here[0] and samples))
        if live[-1]:
            expected[i] = np.mean([r + 0.15 * r**2 for r in samples]) - row[0] + 0.15 * row[0] ** 2

    def loss(rewards, present, **decay):
        found = inverse_rl(rewards, present, **decay)
        return found.loss.sum(), found

    holed = jnp.asarray(np.where(present, rewards, np.nan))
    slope, found = quick_jit(jax.grad(functools.partial(loss, decay=0.3), has_aux=True))(holed, present)
    assert found.live.tolist() == live == [True, True, False, False, True]
    np.testing.assert_allclose(found.loss, expected, rtol=1e-5)
    np.testing.assert_allclose(slope[0, 0], -1 + 0.3 * rewards[0, 0], rtol=1e-5)
    np.testing.assert_allclose(slope[1, 1], 1 + 0.3 * rewards[1, 1], rtol=1e-5)
    assert not np.asarray(slope)[~present].any() and not np.asarray(slope)[2].any()
    # Rewards that nothing ties together go to 1 / decay and -1 / decay; the default is .5.
    slope, _ = quick_jit(jax.grad(loss, has_aux=True))(jnp.array([[2.0, -2.0]]), there(1, 2))
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_a_demonstration_without_samples_is_refused():
    with pytest.raises(AssertionError):
        inverse_rl(jnp.zeros((2, 1)), there(2, 1))


# --- Ensembles -------------------------------------------------------------------------------------------------------


def test_ensembles():
    rewards = values(5, 4)
    np.testing.assert_allclose(ensembles.mean(rewards), rewards.mean(1), rtol=1e-6)
    np.testing.assert_array_equal(ensembles.worst_case(rewards), rewards.min(1))
    for ddof in (0, 1):
        found = ensembles.uncertainty_weighted(jnp.asarray(rewards), coef=0.5, ddof=ddof)
        np.testing.assert_allclose(found, rewards.mean(1) - 0.5 * rewards.var(1, ddof=ddof), rtol=1e-5, atol=1e-6)
        alone = ensembles.uncertainty_weighted(jnp.asarray(rewards[:, :1]), coef=0.5, ddof=ddof)
        np.testing.assert_array_equal(alone, rewards[:, 0])  # no nan for one member
    same = jnp.asarray(np.repeat(rewards[:, :1], 3, axis=1))
    for fn in (ensembles.mean, ensembles.worst_case, ensembles.uncertainty_weighted):
        np.testing.assert_allclose(fn(same), rewards[:, 0], rtol=1e-6)


def test_standardized():
    rewards = values(50, 3, scale=3.0) + np.array([1.0, -2.0, 5.0], np.float32)
    standardized = quick_jit(ensembles.standardized)
    found = np.asarray(standardized(rewards, rewards.mean(0), rewards.std(0)))
    np.testing.assert_allclose(found.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(found.std(0), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(standardized(np.ones((50, 3), np.float32), np.ones(3), np.zeros(3)), 0.0)
