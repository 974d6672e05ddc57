"""rl_jax.testing as a user calls it: what is right passes, and each fault is named with its law and its argument."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages, dpo, grpo, testing
from rl_jax.core import binding
from rl_jax.core.masked import Mean, masked_mean, zero_masked
from rl_jax.losses import aggregate, kl, policy
from rl_jax.losses.policy.base import Surrogate, log_ratio
from rl_jax.testing import aggregate_laws
from tests.numpy_loops import advantages as loops

partial = functools.partial


def as_surrogate(loss):
    return Surrogate(loss, jnp.ones(loss.shape), jnp.zeros(loss.shape, bool), jnp.zeros(loss.shape, bool))


def plain(log_probs, old_log_probs, advantages, mask):
    """Importance sampling."""
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    return as_surrogate(-advantages * jnp.exp(log_ratio(log_probs, old_log_probs, mask)))


def with_keyword(log_probs, old_log_probs, advantages, mask, *, ref_log_probs, entropy, behavior_log_probs, scale=1.0):
    """A surrogate that asks for what grpo.loss gives by name."""
    for array in (ref_log_probs, entropy, behavior_log_probs):
        assert array.shape == mask.shape
    found = plain(log_probs, old_log_probs, advantages, mask)
    return found._replace(loss=scale * found.loss)


# Each with one fault, and in the message: the law's name, and the argument at fault.


def forgetful(log_probs, old_log_probs, advantages, mask):
    return as_surrogate(-advantages * jnp.exp(log_probs - jax.lax.stop_gradient(old_log_probs)))


def masked_late(log_probs, old_log_probs, advantages, mask):
    return as_surrogate(zero_masked(forgetful(log_probs, old_log_probs, advantages, mask).loss, mask))


def divided_by_none(log_probs, old_log_probs, advantages, mask):
    found = forgetful(log_probs, old_log_probs, advantages, mask)
    return found._replace(loss=found.loss / jnp.sum(mask, dtype=jnp.float32))


def leaks_old(log_probs, old_log_probs, advantages, mask):
    x, old, a = (zero_masked(x, mask) for x in (log_probs, old_log_probs, advantages))
    return as_surrogate(-jax.lax.stop_gradient(a) * jnp.exp(x - old))


def leaks_advantages(log_probs, old_log_probs, advantages, mask):
    return as_surrogate(-zero_masked(advantages, mask) * jnp.exp(log_ratio(log_probs, old_log_probs, mask)))


def scaled(factor):
    def surrogate(log_probs, old_log_probs, advantages, mask):
        found = plain(log_probs, old_log_probs, advantages, mask)
        return found._replace(loss=found.loss * factor(found.loss, mask, advantages))

    return surrogate


by_row = scaled(lambda loss, mask, a: 1.0 + jnp.arange(len(mask), dtype=jnp.float32)[:, None])
by_width = scaled(lambda loss, mask, a: jnp.float32(mask.shape[1]))
by_rows = scaled(lambda loss, mask, a: jnp.float32(mask.shape[0]))
by_batch = scaled(lambda loss, mask, a: jax.lax.stop_gradient(jnp.mean(jnp.abs(loss))))
turned = scaled(lambda loss, mask, a: -1.0)
one_sided = scaled(lambda loss, mask, a: jnp.where(jax.lax.stop_gradient(zero_masked(a, mask)) < 0, 0.5, 1.0))
eager_only = scaled(lambda loss, mask, a: 1.0 if isinstance(mask, jax.core.Tracer) else 2.0)


def pulling(log_probs, old_log_probs, advantages, mask):
    found = plain(log_probs, old_log_probs, advantages, mask)
    return found._replace(loss=found.loss + jnp.square(log_ratio(log_probs, old_log_probs, mask)))


FAULTS = [
    (forgetful, "contents_of_the_padding_change_nothing", "log_probs, noise outside of the mask"),
    (masked_late, "contents_of_the_padding_change_nothing", "log_probs, noise outside of the mask"),
    (masked_late, "rows_without_a_token_change_nothing", "rows without a token"),
    (by_width, "width_of_the_padding_changes_nothing", "columns of padding"),
    (by_rows, "rows_without_a_token_change_nothing", "rows without a token"),
    (divided_by_none, "a_batch_without_a_token_is_zero", "mask, all False"),
    (by_row, "order_of_the_rows_changes_nothing", "in another order"),
    (by_batch, "micro_batches_change_nothing", "in micro-batches"),
    (eager_only, "jit_changes_nothing", "without jit"),
    (leaks_old, "nothing_flows_into_the_data", "old_log_probs: it has a gradient"),
    (leaks_advantages, "nothing_flows_into_the_data", "advantages: it has a gradient"),
    (turned, "on_policy_the_gradient_is_minus_c_times_a", "advantages of both signs"),
    (one_sided, "on_policy_the_gradient_is_minus_c_times_a", "advantages of both signs"),
    (pulling, "no_advantage_no_gradient", "advantages, all 0"),
]


@pytest.mark.slow
@pytest.mark.parametrize("fn", [plain, with_keyword, partial(with_keyword, scale=1.0)], ids=["plain", "asks", "bound"])
def test_a_good_surrogate_passes(fn):
    testing.check_surrogate(fn)


@pytest.mark.slow
def test_what_is_on_purpose_is_said():
    testing.check_surrogate(pulling, needs_advantages=False)
    testing.check_surrogate(turned, on_policy=False)
    testing.check_surrogate(partial(with_keyword, scale=3.0), on_policy=False)
    except_for = {"micro_batches_change_nothing", "on_policy_the_gradient_is_minus_c_times_a"}
    assert set(testing.broken(testing.surrogate_case(by_batch), testing.LAWS)) >= except_for
    with pytest.raises(ValueError, match="no law 'micro_batches'; near it: micro_batches_change_nothing. The laws"):
        testing.check_surrogate(plain, except_for={"micro_batches"})


@pytest.mark.parametrize(("fn", "law", "argument"), FAULTS, ids=[f"{law}-{i}" for i, (_, law, _) in enumerate(FAULTS)])
def test_a_fault_is_named_with_its_law_and_argument(fn, law, argument):
    with pytest.raises(AssertionError) as raised:
        testing.LAWS[law](testing.surrogate_case(fn, name="my_loss"))
    message = str(raised.value)
    assert f"my_loss breaks the law {law.replace('_', ' ')!r}: " in message and argument in message


def test_a_check_lists_every_law_that_is_broken():
    with pytest.raises(AssertionError) as raised:
        testing.check_surrogate(forgetful)
    first, _, rest = str(raised.value).partition("\n")
    laws = ("contents_of_the_padding_change_nothing", "rows_without_a_token_change_nothing")
    laws += ("nothing_flows_into_the_data",)
    assert first == f"forgetful breaks 3 of 11 laws ({', '.join(laws)})."
    assert all(f"forgetful breaks the law {law.replace('_', ' ')!r}: " in rest for law in laws)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda log_probs, old, advantages, mask: -advantages, "returns a .*, and a Surrogate"),
        (lambda *arrays: as_surrogate(plain(*arrays).loss)._replace(ratio=jnp.float32(1)), r"ratio .* has shape \(\)"),
    ],
)
def test_what_is_no_surrogate_is_refused(fn, says):
    with pytest.raises(AssertionError, match=says):
        testing.check_surrogate(fn)


def test_an_array_that_nobody_gives_is_refused():
    def asks(log_probs, old_log_probs, advantages, mask, *, teacher_log_probs):
        return plain(log_probs, old_log_probs, advantages, mask)

    with pytest.raises(ValueError, match="asks needs teacher_log_probs"):
        testing.check_surrogate(asks)


# KL estimators.


@pytest.mark.slow
def test_kl_estimators():
    testing.check_kl(kl.k3)
    testing.check_kl(kl.ratio_k1)

    def leaks(log_probs, ref_log_probs, mask):
        return jnp.square(zero_masked(log_probs, mask) - zero_masked(ref_log_probs, mask))

    with pytest.raises(AssertionError, match="leaks breaks 1 of 12 laws(.|\n)*ref_log_probs: it has a gradient"):
        testing.check_kl(leaks)

    def lifted(log_probs, ref_log_probs, mask):
        return kl.k3(log_probs, ref_log_probs, mask) + zero_masked(jnp.ones(mask.shape), mask)

    with pytest.raises(AssertionError, match="lifted breaks 1 of 12 laws(.|\n)*equal to log_probs: the value is 1"):
        testing.check_kl(lifted)
    with pytest.raises(AssertionError, match=r"it returns shape \(\), expected \(8, 6\)"):
        testing.check_kl(lambda log_probs, ref_log_probs, mask: kl.k1(log_probs, ref_log_probs, mask).sum())


# Aggregations.

AGGREGATIONS = binding.public_functions(aggregate)
CONSTANTS = {"seq_mean_token_sum_norm": {"max_length": 10}}


@pytest.mark.parametrize("law", aggregate_laws.LAWS)
@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_obeys_the_laws(name, law):
    fn = partial(AGGREGATIONS[name], **CONSTANTS.get(name, {}))
    aggregate_laws.LAWS[law](testing.aggregate_case(fn, name=name))


def local_mean(per_token, mask):
    return Mean(masked_mean(per_token, mask).value(), jnp.float32(1))


def padded_mean(per_token, mask):
    return Mean(jnp.sum(zero_masked(per_token, mask)), jnp.float32(mask.size))


def first_row(per_token, mask):
    rows = jnp.arange(len(mask))[:, None] == 0
    return masked_mean(per_token, mask & rows)


def unmasked(per_token, mask):
    return Mean(jnp.sum(per_token * jnp.float32(mask)), jnp.sum(mask, dtype=jnp.float32))


def squared(per_token, mask):
    return masked_mean(jnp.square(per_token), mask)


def by_place(per_token, mask):
    return masked_mean(per_token * jnp.arange(1.0, mask.shape[1] + 1)[None], mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "law", "argument"),
    [
        (local_mean, "micro_batches_add_up", "in 2 micro-batches"),
        (padded_mean, "width_of_the_padding_changes_nothing", "columns of padding"),
        (padded_mean, "rows_without_a_token_change_nothing", "rows without a token"),
        (first_row, "order_of_the_rows_changes_nothing", "in another order"),
        (unmasked, "contents_of_the_padding_change_nothing", "per_token, nan outside of the mask"),
        (squared, "value_is_a_sum_of_coefficients", "per_token"),
        (by_place, "equal_lengths_weigh_all_tokens_the_same", "mask, rows of equal length"),
        (lambda x, mask: Mean(jnp.sum(zero_masked(x, mask)), 0.0 + mask.sum()).total, "micro_batches_add_up", "Mean"),
        (lambda x, mask: Mean(masked_mean(x, mask).total / mask.sum(), 1.0), "a_batch_without_a_token_is_zero", "mask"),
    ],
)
def test_a_faulty_aggregation_is_named_with_its_law(fn, law, argument):
    with pytest.raises(AssertionError) as raised:
        testing.check_aggregate(fn)
    assert law in str(raised.value).partition("\n")[0] and argument in str(raised.value)


def test_an_aggregation_may_ask_for_what_there_is_only():
    with pytest.raises(ValueError, match="needs max_length"):
        testing.check_aggregate(aggregate.seq_mean_token_sum_norm)


# Advantages.


def test_advantages():
    testing.check_advantage(advantages.leave_one_out, loops.leave_one_out)
    with pytest.raises(AssertionError, match="leave_one_out breaks 1 of 6 laws .matches_the_loop"):
        testing.check_advantage(advantages.leave_one_out, loops.group_relative)

    def best_of(rewards, *, group_size):
        groups = jnp.reshape(rewards, (-1, group_size))
        return (groups - jnp.max(groups, axis=1, keepdims=True)).reshape(-1)

    with pytest.raises(AssertionError, match=r"best_of breaks 2 of 6 laws \(a_group_sums_to_zero, bad_input_is_ref"):
        testing.check_advantage(best_of)
    testing.check_advantage(best_of, except_for={"a_group_sums_to_zero", "bad_input_is_refused"})


# That they learn.


@pytest.mark.slow
def test_learns():
    outcome = testing.learns(plain)
    assert outcome.before[0] == pytest.approx(0.23, abs=0.01) and outcome.gain().min() > 0.3 and len(outcome.after) == 3
    objective = grpo.Objective(surrogate=policy.clipped_surrogate, kl_coef=0.0, aggregate=aggregate.token_mean)
    assert len(testing.learns(objective, seeds=2).after) == 2


@pytest.mark.slow
def test_what_does_not_learn_says_so():
    def backwards(log_probs, old_log_probs, advantages, mask):
        return plain(log_probs, old_log_probs, -advantages, mask)

    says = r"^backwards does not learn: the probability of a right answer was 0.23 and is 0.0\d, 0.0\d, 0.0\d after 50"
    with pytest.raises(AssertionError, match=says):
        testing.learns(backwards)


@pytest.mark.slow
def test_learns_preferences():
    gains = testing.learns_preferences(dpo.Objective(beta=0.1))
    assert gains.shape == (4,) and gains.min() > 0.1
    with pytest.raises(AssertionError, match=r"the objective does not learn: .* changes by -0\.\d\d, -.* \(by prompt"):
        testing.learns_preferences(dpo.Objective(score_map=lambda u: -u))
    assert testing.learns_preferences(dpo.Objective(), responses=2, gain=0.05).min() > 0.05


def test_batches_are_ragged_and_off_policy():
    batch = testing.ragged_batch(0)
    ratio = np.exp(batch.log_probs - batch.old_log_probs)[batch.mask]
    assert ratio.min() < 0.7 and ratio.max() > 1.6
    assert len(set(batch.mask.sum(axis=1).tolist())) > 2 and (np.diff(batch.mask[1].astype(int)) > 0).any()
