"""grpo.py: the recipe against the paper's double sum, torch's autograd, and the identities of online.md 1.6."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages, grpo
from rl_jax.advantages import groups
from rl_jax.core.masked import merge
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.losses import aggregate, kl, policy
from rl_jax.losses.policy.base import Surrogate
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import aggregate as aggregate_reference
from tests.numpy_loops import grpo as reference

CLIP = (0.2, 0.28)
SURROGATE = functools.partial(policy.clipped_surrogate, clip_low=CLIP[0], clip_high=CLIP[1])


def _policy_batch(batch, token_advantages=None):
    """The PolicyBatch of a ragged batch; the loss does not read the tokens, and the sampler's log-probs for metrics."""
    return PolicyBatch(
        batch=None,
        completion_mask=batch.mask,
        advantages=batch.advantages if token_advantages is None else token_advantages,
        old_log_probs=batch.old_log_probs,
        behavior_log_probs=_behavior(batch),
        ref_log_probs=batch.ref_log_probs,
    )


def _behavior(batch):
    """The sampler's log-probs: another dtype or another kernel, so a little beside the trainer's, on both sides."""
    return batch.old_log_probs + 0.1 * np.sin(batch.ref_log_probs * 20)


def _rewards(seed, rows=8):
    return np.random.default_rng(seed).normal(size=rows).astype(np.float32)


def _loss(log_probs, batch, objective, entropy=None):
    entropy = jnp.zeros_like(log_probs) if entropy is None else entropy
    mean, _ = grpo.loss(TokenScores(log_probs, entropy), batch, objective)
    return mean.value()


@pytest.mark.parametrize("mode", [aggregate.token_mean, aggregate.seq_mean_token_mean])
def test_log_probs_in_half_precision(mode):
    """64 rows of 513 tokens: a mask that bfloat16 counts is four times too small."""
    batch = ragged_batch(rows=64, length=513)
    objective = grpo.Objective(surrogate=SURROGATE, kl_coef=0.1, aggregate=mode)

    @jax.jit
    def run(log_probs, batch):
        def value(x):
            mean, metrics = grpo.loss(TokenScores(x, -x), batch, objective)
            return mean.value(), metrics

        (loss, metrics), slopes = jax.value_and_grad(value, has_aux=True)(log_probs)
        slope = jnp.sum(jnp.abs(slopes), dtype=jnp.float32)
        return loss, metrics["entropy"].value(), metrics["ratio/mean"].value(), slope

    full = batch.log_probs, _policy_batch(batch._replace(mask=np.ones_like(batch.mask)))
    halved = jax.tree.map(lambda x: x if x.dtype == bool else jnp.asarray(x, jnp.bfloat16), full)
    np.testing.assert_allclose(run(*halved), run(*full), rtol=0.02, atol=0.005)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04, 1.0])
def test_matches_the_double_sum_of_the_paper(seed, kl_coef):
    batch, rewards = ragged_batch(seed), _rewards(seed)
    a = rule.token_advantages(rewards, batch.mask, group_size=4)
    objective = grpo.Objective(surrogate=SURROGATE, kl_coef=kl_coef)
    expected = reference.grpo_loss(
        *batch[:2], batch.ref_log_probs, rewards, batch.mask, group_size=4, clip=CLIP, kl_coef=kl_coef
    )
    value = _loss(batch.log_probs, _policy_batch(batch, a), objective)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_value_and_gradient_match_torch_from_logits():
    rng = np.random.default_rng(3)
    rows, length, vocab = 8, 6, 11
    mask = np.arange(length) < np.array([6, 1, 4, 5, 2, 6, 3, 3])[:, None]
    logits = rng.normal(size=(rows, length, vocab))
    tokens = rng.integers(0, vocab, (rows, length))
    rewards = rng.normal(size=rows)

    def log_probs_of(logits):
        return jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(tokens)[..., None], axis=-1)[..., 0]

    with jax.enable_x64(True):
        log_probs = np.asarray(log_probs_of(jnp.asarray(logits)))
        old_log_probs = log_probs + rng.uniform(-0.6, 0.6, log_probs.shape)
        ref_log_probs = log_probs + rng.uniform(-0.6, 0.6, log_probs.shape)
        batch = PolicyBatch(
            batch=None,
            completion_mask=mask,
            advantages=rule.token_advantages(jnp.asarray(rewards), mask, group_size=4),
            old_log_probs=np.where(mask, old_log_probs, np.nan),
            behavior_log_probs=np.where(mask, old_log_probs, np.nan),
            ref_log_probs=np.where(mask, ref_log_probs, np.nan),
        )
        objective = grpo.Objective(surrogate=SURROGATE, kl_coef=0.1)
        value, gradient = jax.value_and_grad(lambda z: _loss(log_probs_of(z), batch, objective))(jnp.asarray(logits))
        _, metrics = grpo.loss(TokenScores(jnp.asarray(log_probs), jnp.zeros_like(log_probs)), batch, objective)
    assert metrics["clip/low"].total > 0 and metrics["clip/high"].total > 0
    expected, expected_gradient = reference.torch_grpo(
        logits, tokens, old_log_probs, ref_log_probs, rewards, mask, group_size=4, clip=CLIP, kl_coef=0.1
    )
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-8, atol=1e-12)


def test_the_advantage_is_an_argument():
    mask = ragged_batch(0).mask
    out = rule.token_advantages(_rewards(1), mask, group_size=4, advantage=advantages.leave_one_out)
    expected = groups.to_tokens(advantages.leave_one_out(_rewards(1), group_size=4), mask)
    np.testing.assert_array_equal(out, expected)


def test_every_choice_of_the_objective_is_used():
    batch = ragged_batch(1)
    entropy = np.float32(0.5) + np.square(batch.advantages)
    objective = grpo.Objective(SURROGATE, kl.k2, 0.3, 0.07, aggregate.token_mean)
    per_token = (
        SURROGATE(*batch[:3], batch.mask).loss
        + np.float32(0.3) * kl.k2(batch.log_probs, batch.ref_log_probs, batch.mask)
        - np.float32(0.07) * entropy
    )
    expected = aggregate_reference.aggregate("token_mean", per_token, batch.mask)
    value = _loss(batch.log_probs, _policy_batch(batch), objective, entropy)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_the_entropy_bonus_raises_entropy():
    batch = ragged_batch(2)
    objective = grpo.Objective(SURROGATE, entropy_coef=0.07)
    entropy = np.where(batch.mask, np.abs(batch.advantages), np.nan)
    gradient = jax.grad(lambda h: _loss(batch.log_probs, _policy_batch(batch), objective, h))(entropy)
    expected = -0.07 * aggregate_reference.coefficients("seq_mean_token_mean", batch.mask)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


ALL_ROWS = functools.partial(aggregate.seq_mean_token_sum, count_empty_rows=True)


@pytest.mark.parametrize("mode", [aggregate.seq_mean_token_mean, ALL_ROWS], ids=["live rows", "all rows"])
def test_the_entropy_bonus_may_have_an_aggregate_of_its_own(mode):
    """Over micro-batches of other lengths and with empty rows: the weight of a token is that of its own aggregate."""
    batch = ragged_batch(2)
    batch.mask[5] = False
    entropy = jnp.asarray(np.where(batch.mask, np.abs(batch.advantages), np.nan))
    plain = grpo.Objective(SURROGATE, kl_coef=0.0, aggregate=mode)
    objective = plain._replace(entropy_coef=0.07, entropy_aggregate=aggregate.token_mean)
    data = _policy_batch(batch)
    scaled = jax.tree.map(jnp.asarray, grpo.with_entropy_scale(data, objective))

    def loss(entropy):
        parts = [
            grpo.loss(TokenScores(jnp.asarray(batch.log_probs)[i::3], entropy[i::3]), part, objective)[0]
            for i in range(3)
            for part in [jax.tree.map(lambda x, i=i: x[i::3], scaled)]
        ]
        return functools.reduce(merge, parts).value()

    value, gradient = jax.value_and_grad(loss)(entropy)
    weights = aggregate_reference.coefficients("token_mean", batch.mask)
    np.testing.assert_allclose(gradient, -0.07 * weights, rtol=1e-5)
    without = _loss(batch.log_probs, data, plain)
    np.testing.assert_allclose(value, without - 0.07 * np.sum(weights * np.nan_to_num(entropy)), rtol=1e-5)
    with pytest.raises(ValueError, match=r"entropy_aggregate.*grpo.with_entropy_scale\(batch, objective\)"):
        _loss(batch.log_probs, data, objective, entropy)
    assert grpo.with_entropy_scale(data, plain) is data


def test_a_bonus_with_the_mean_over_tokens_is_trls():
    """Where rows are summed TRL's bonus is a mean over tokens all the same, and empty rows count."""
    from tests.oracles import trl

    batch = ragged_batch(9)
    batch.mask[[1, 4]] = False
    entropy, signs = np.abs(batch.ref_log_probs), np.float32([1, -1, 1, -1, 1, 1, -1, -1])
    arrays = (batch.log_probs, batch.old_log_probs, signs, batch.mask)
    expected, _ = trl.grpo_loss(*arrays, entropy=entropy, loss_type="luspo", entropy_coef=0.3)
    surrogate = functools.partial(policy.clipped_surrogate, clip_low=0.2, clip_high=0.2)
    objective = grpo.Objective(surrogate, kl_coef=0.0, entropy_coef=0.3, aggregate=ALL_ROWS)
    data = _policy_batch(batch, groups.to_tokens(signs, batch.mask))
    apart = _loss(batch.log_probs, data, objective, entropy)
    objective = objective._replace(entropy_aggregate=aggregate.token_mean)
    value = _loss(batch.log_probs, grpo.with_entropy_scale(data, objective), objective, entropy)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert abs(apart - expected) > 0.1, "through the loss's own aggregate it is another number"


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_term_with_coefficient_zero_is_left_out(poison):
    batch = ragged_batch(3)
    garbage = np.full_like(batch.log_probs, poison)
    objective = grpo.Objective(SURROGATE, kl_coef=0.0, entropy_coef=0.0)
    data = _policy_batch(batch)._replace(ref_log_probs=garbage)
    value = _loss(batch.log_probs, data, objective, garbage)
    np.testing.assert_array_equal(value, _loss(batch.log_probs, _policy_batch(batch), objective))
    assert np.isfinite(value)


def test_metrics_match_the_loops():
    batch = ragged_batch(4)
    entropy = np.abs(batch.advantages)
    _, metrics = grpo.loss(TokenScores(batch.log_probs, entropy), _policy_batch(batch), grpo.Objective(SURROGATE))
    expected = reference.grpo_metrics(
        *batch[:2], _behavior(batch), batch.ref_log_probs, batch.advantages, entropy, batch.mask, clip=CLIP
    )
    assert set(metrics) == set(expected)
    assert expected["clip/low"] > 0 and expected["clip/high"] > 0
    assert expected["clip/low"] != expected["clip/high"]
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name].value(), value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_metrics_do_not_look_behind_the_mask_and_carry_no_gradient():
    batch = ragged_batch(5)

    def poison(x):
        return np.where(batch.mask, x, np.nan)

    data = _policy_batch(batch._replace(**{f: poison(getattr(batch, f)) for f in batch._fields if f != "mask"}))
    assert np.isnan(data.behavior_log_probs[~batch.mask]).all()
    scores = TokenScores(poison(batch.log_probs), poison(np.abs(batch.advantages)))

    def values(scores):
        metrics = grpo.loss(scores, data, grpo.Objective(SURROGATE, entropy_coef=0.1))[1]
        return {name: metric.value() for name, metric in metrics.items()}

    for name, value in values(scores).items():
        assert np.isfinite(value), name
    for name, gradient in jax.jacobian(values)(scores).items():
        for array in jax.tree.leaves(gradient):
            np.testing.assert_array_equal(array, 0, err_msg=name)


def test_without_old_log_probs_the_policy_is_its_own_proximal_policy():
    batch = ragged_batch(5)
    own = _policy_batch(batch._replace(old_log_probs=batch.log_probs))
    behavior = np.float32(batch.log_probs - 0.3)
    run = jax.value_and_grad(functools.partial(_loss, objective=grpo.Objective(SURROGATE)))
    value, gradient = run(batch.log_probs, own)
    none = own._replace(old_log_probs=None, behavior_log_probs=behavior)  # the sampler's are not a substitute
    none_value, none_gradient = run(batch.log_probs, none)
    np.testing.assert_array_equal(none_value, value)
    np.testing.assert_array_equal(none_gradient, gradient)
    assert np.abs(gradient).max() > 0.01
    scores = TokenScores(batch.log_probs, np.zeros_like(batch.log_probs))
    _, metrics = grpo.loss(scores, none, grpo.Objective(SURROGATE))
    assert metrics["ratio/max_dev"].value() == 0
    np.testing.assert_allclose(metrics["sampler/weight"].value(), np.exp(0.3), rtol=1e-5)


def test_on_policy_metrics_say_so():
    """T1: the ratio is exactly 1, nothing is clipped, and the KL to a reference equal to the policy is exactly 0."""
    batch = ragged_batch(6)
    batch = batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)
    scores = TokenScores(batch.log_probs, np.zeros_like(batch.log_probs))
    _, metrics = grpo.loss(scores, _policy_batch(batch), grpo.Objective(SURROGATE))
    assert metrics["ratio/mean"].value() == 1 and metrics["ratio/max_dev"].value() == 0
    for name in ("clip/low", "clip/high", "kl/k1", "kl/k3"):
        assert metrics[name].value() == 0, name


def test_the_value_says_nothing_on_policy_but_the_gradient_does():
    """T4: with centred advantages and one token's weight per row, the loss is 0 while it trains."""
    batch = ragged_batch(7)
    a = rule.token_advantages(_rewards(7), batch.mask, group_size=4)
    batch = batch._replace(old_log_probs=batch.log_probs)
    run = jax.value_and_grad(functools.partial(_loss, objective=grpo.Objective(SURROGATE, kl_coef=0.0)))
    value, gradient = run(batch.log_probs, _policy_batch(batch, a))
    np.testing.assert_allclose(value, 0.0, atol=1e-6)
    assert np.abs(gradient).max() > 0.01


def test_equal_rewards_teach_nothing():
    """T6: a group whose rewards are all equal gets a gradient of exactly 0; its neighbour does not."""
    batch, rewards = ragged_batch(8), _rewards(8)
    rewards[:4] = 0.1
    a = rule.token_advantages(rewards, batch.mask, group_size=4)
    objective = grpo.Objective(SURROGATE, kl_coef=0.0)
    gradient = jax.grad(lambda x: _loss(x, _policy_batch(batch, a), objective))(batch.log_probs)
    np.testing.assert_array_equal(gradient[:4], 0)
    assert np.abs(gradient[4:]).max() > 0.01


def test_a_group_may_change_the_order_of_its_samples():
    batch, rewards, order = ragged_batch(9), _rewards(9), [2, 0, 3, 1, 7, 6, 4, 5]
    permuted = type(batch)(*(x[order] for x in batch))
    objective = grpo.Objective(SURROGATE)
    losses = [
        _loss(b.log_probs, _policy_batch(b, rule.token_advantages(r, b.mask, group_size=4)), objective)
        for b, r in [(batch, rewards), (permuted, rewards[order])]
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_other_methods_are_other_choices():
    """Dr. GRPO is G / (G - 1) short of RLOO, and divides by the generation limit instead of by 1."""
    batch, rewards, limit = ragged_batch(10), _rewards(10), 32
    batch = batch._replace(old_log_probs=batch.log_probs)

    def gradient(advantage, aggregation):
        a = rule.token_advantages(rewards, batch.mask, group_size=4, advantage=advantage)
        objective = grpo.Objective(SURROGATE, kl_coef=0.0, aggregate=aggregation)
        return jax.grad(lambda x: _loss(x, _policy_batch(batch, a), objective))(batch.log_probs)

    norm = functools.partial(aggregate.seq_mean_token_sum_norm, max_length=limit)
    dr_grpo = gradient(advantages.group_centered, norm)
    rloo = gradient(advantages.leave_one_out, aggregate.seq_mean_token_sum)
    np.testing.assert_allclose(dr_grpo * (limit * 4 / 3), rloo, rtol=1e-5, atol=1e-7)


def test_shapes_that_do_not_fit_are_refused():
    batch = ragged_batch(0)
    scores = TokenScores(batch.log_probs, np.zeros_like(batch.log_probs))
    with pytest.raises(AssertionError):
        grpo.loss(scores, _policy_batch(batch)._replace(advantages=_rewards(0)), grpo.Objective())
    with pytest.raises(AssertionError):
        grpo.loss(scores._replace(entropy=scores.entropy[:, :-1]), _policy_batch(batch), grpo.Objective())
    with pytest.raises(ValueError, match="do not divide"):
        rule.token_advantages(_rewards(0), batch.mask, group_size=3)


@pytest.mark.parametrize("surrogate", [policy.clipped_surrogate, policy.gspo, policy.product_ratio_clip])
def test_a_weight_of_zero_drops_a_token_whose_loss_is_infinite(surrogate):
    """Its ratio, or that of its row, is beyond float32. What is left is the loss without the row; its KL stays."""
    log_probs, mask = jnp.full((2, 2), -1.0), np.ones((2, 2), bool)
    old = jnp.asarray([[-200.0, -200.0], [-1.2, -0.9]])
    weights = jnp.asarray([[0.0, 0.0], [1.0, 2.0]])
    batch = PolicyBatch(None, mask, -jnp.ones((2, 2)), old, old, log_probs - 0.5, token_weights=weights)

    def run(batch, kl_coef):
        objective = grpo.Objective(surrogate=surrogate, kl_coef=kl_coef, aggregate=aggregate.token_mean)
        return jax.value_and_grad(_loss)(log_probs, batch, objective)

    near = batch._replace(old_log_probs=old.at[0].set(-1.0))
    for kl_coef in (0.0, 0.3):
        (value, slopes), (expected, expected_slopes) = run(batch, kl_coef), run(near, kl_coef)
        assert value == expected and slopes[1].all()
        np.testing.assert_array_equal(slopes, expected_slopes)
        assert bool(slopes[0].any()) == (kl_coef > 0)


def test_a_token_of_weight_zero_has_its_part_in_the_ratio_of_its_row():
    """GSPO: the loss of the second token has a gradient in the log-prob of the first."""
    log_probs, old = jnp.full((1, 2), -1.0), jnp.full((1, 2), -1.1)
    weights = jnp.asarray([[0.0, 1.0]])
    batch = PolicyBatch(None, np.ones((1, 2), bool), -jnp.ones((1, 2)), old, old, None, token_weights=weights)
    objective = grpo.Objective(surrogate=policy.gspo, kl_coef=0.0)
    slopes = jax.grad(_loss)(log_probs, batch, objective)
    np.testing.assert_allclose(slopes, [[0.25 * np.exp(0.1)] * 2], rtol=1e-5)


def test_token_weights_multiply_the_policy_term_and_not_the_regularisers():
    batch = ragged_batch(8)
    weights = np.random.default_rng(0).uniform(0, 2, batch.mask.shape).astype(np.float32)
    plain = _policy_batch(batch)
    poisoned = np.where(batch.mask, weights, np.nan)

    def gradient(policy_batch, kl_coef):
        objective = grpo.Objective(surrogate=SURROGATE, kl_coef=kl_coef)
        return jax.grad(_loss)(batch.log_probs, policy_batch, objective)

    weighted = gradient(plain._replace(token_weights=poisoned), 0.0)
    np.testing.assert_allclose(weighted, np.where(batch.mask, weights, 0) * gradient(plain, 0.0), rtol=1e-5, atol=1e-8)
    penalty = gradient(plain, 0.3) - gradient(plain, 0.0)
    with_penalty = gradient(plain._replace(token_weights=poisoned), 0.3)
    np.testing.assert_allclose(with_penalty - weighted, penalty, rtol=1e-4, atol=1e-7)

    def through(weights):
        return _loss(batch.log_probs, plain._replace(token_weights=weights), grpo.Objective(kl_coef=0.0))

    np.testing.assert_array_equal(jax.grad(through)(weights), 0)


def test_each_term_is_zero_off_the_mask_and_the_proximal_policy_is_data():
    batch, seen = ragged_batch(8), []

    def spoilt(x):
        return np.where(batch.mask, x, np.float32(np.nan))

    def see(per_token, mask):
        seen.append(np.asarray(per_token))
        return aggregate.token_mean(per_token, mask)

    arrays = {name: spoilt(getattr(_policy_batch(batch), name)) for name in ("advantages", "ref_log_probs")}
    weighted = _policy_batch(batch)._replace(**arrays, token_weights=spoilt(1 + 0 * batch.log_probs))
    scores = TokenScores(spoilt(batch.log_probs), spoilt(-batch.log_probs))
    for own in (None, see):  # with the bonus in the sum over all terms, and on its own
        objective = grpo.Objective(kl_coef=0.1, entropy_coef=0.2, aggregate=see, entropy_aggregate=own)
        grpo.loss(scores, weighted._replace(extras={"entropy_scale": np.ones(8, np.float32)}), objective)
    assert len(seen) == 3
    for per_token in seen:
        np.testing.assert_array_equal(per_token != 0, batch.mask)

    def of_old(log_probs, old_log_probs, advantages, mask):
        ratio = jnp.where(mask, 0.25, 9.0)
        return Surrogate(jnp.where(mask, old_log_probs, 0.0), ratio, mask & False, mask & False)

    plain = _policy_batch(batch)._replace(old_log_probs=None, behavior_log_probs=batch.log_probs + 0.5)
    objective = grpo.Objective(surrogate=of_old, kl_coef=0.0)
    slope = jax.grad(_loss)(batch.log_probs, plain, objective)
    np.testing.assert_array_equal(slope, 0.0)
    metrics = grpo.loss(TokenScores(batch.log_probs, -batch.log_probs), plain, objective)[1]
    assert metrics["ratio/max_dev"].value() == 0.75  # below 1, too, and on the mask
    np.testing.assert_allclose(metrics["sampler/gap_max"].value(), 0.5, rtol=1e-5)


def test_a_coefficient_of_the_integer_zero_is_off_and_a_batch_without_a_token_has_a_scale():
    batch = _policy_batch(ragged_batch(8))._replace(ref_log_probs=None)
    scores = TokenScores(batch.old_log_probs, np.full_like(batch.old_log_probs, np.nan))
    assert np.isfinite(grpo.loss(scores, batch, grpo.Objective(kl_coef=0, entropy_coef=0))[0].value())
    own = grpo.Objective(entropy_coef=0.1, entropy_aggregate=aggregate.token_mean)
    empty = grpo.with_entropy_scale(batch._replace(completion_mask=batch.completion_mask & False), own)
    np.testing.assert_array_equal(empty.extras["entropy_scale"], np.zeros(8))


@pytest.mark.parametrize("field, constant", [("kl_coefs", "kl_coef"), ("entropy_coefs", "entropy_coef")])
def test_coefficients_of_the_batch_stand_in_for_the_objectives(field, constant):
    batch = ragged_batch(9)
    entropy = np.where(batch.mask, -batch.log_probs, np.nan)
    moved = _policy_batch(batch)._replace(extras={field: np.full(8, 0.7, np.float32)})
    for left_out in (0.0, 0.2):  # the objective's constant does not matter any more, not even as a switch
        found = _loss(batch.log_probs, moved, grpo.Objective(**{"kl_coef": 0.0, constant: left_out}), entropy)
        expected = grpo.Objective(**{"kl_coef": 0.0, constant: 0.7})
        np.testing.assert_allclose(found, _loss(batch.log_probs, _policy_batch(batch), expected, entropy), rtol=1e-6)

    def through(coefficients):
        changed = moved._replace(extras={field: coefficients})
        return _loss(batch.log_probs, changed, grpo.Objective(kl_coef=0.0), entropy)

    np.testing.assert_array_equal(jax.grad(through)(np.full(8, 0.7, np.float32)), 0)


def test_what_a_choice_asks_for_by_name_is_the_batchs():
    batch = ragged_batch(10)
    extras = {
        "selected": batch.mask & (batch.advantages > 0),
        "group_tokens": np.full(8, 11.0, np.float32),
        "batch_rows": np.full(8, 8.0, np.float32),
    }
    policy_batch = _policy_batch(batch)._replace(extras=extras)
    seen = {}

    def surrogate(log_probs, old_log_probs, advantages, mask, *, behavior_log_probs, ref_log_probs, entropy, selected):
        seen.update(behavior=behavior_log_probs, ref=ref_log_probs, entropy=entropy, selected=selected)
        return policy.clipped_surrogate(log_probs + entropy, old_log_probs, advantages, mask)

    def estimator(log_probs, ref_log_probs, mask, *, old_log_probs):
        seen.update(old=old_log_probs)
        return kl.k1(log_probs, ref_log_probs, mask)

    def mode(per_token, mask, *, group_tokens, batch_rows):
        seen.update(group_tokens=group_tokens, batch_rows=batch_rows)
        return aggregate.token_mean(per_token, mask)

    objective = grpo.Objective(surrogate, estimator, 0.1, 0.0, mode)
    entropy = np.ones_like(batch.log_probs)
    gradient = jax.grad(lambda e: _loss(batch.log_probs, policy_batch, objective, e))(entropy)
    np.testing.assert_array_equal(gradient, 0)  # the entropy that a surrogate sees is data
    for name, expected in [
        ("behavior", policy_batch.behavior_log_probs),
        ("ref", batch.ref_log_probs),
        ("selected", extras["selected"]),
        ("old", batch.old_log_probs),
        ("group_tokens", extras["group_tokens"]),
        ("batch_rows", extras["batch_rows"]),
    ]:
        np.testing.assert_array_equal(seen[name], expected, err_msg=name)


def test_what_the_batch_does_not_have_is_refused():
    batch = ragged_batch(11)

    def surrogate(log_probs, old_log_probs, advantages, mask, *, selected):
        return policy.clipped_surrogate(log_probs, old_log_probs, advantages, mask)

    with pytest.raises(ValueError, match="surrogate needs selected, .*; available: advantages, behavior_log_probs, "):
        _loss(batch.log_probs, _policy_batch(batch), grpo.Objective(surrogate=surrogate))
