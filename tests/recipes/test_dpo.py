"""rl_jax/dpo.py: every method of the pairs' family against plain Python, and the laws through dpo.loss."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import dpo
from rl_jax.core.masked import merge
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.dpo import Objective
from rl_jax.losses.preference import compare, links, offsets, prompt_weights, regularizers, scales, score_maps
from tests.losses.preference.cases import EVERY, METHODS, B, compiled, make_batch, run, run64
from tests.numpy_loops import preference as reference

partial = functools.partial
every_method = pytest.mark.parametrize("name", sorted(EVERY))
# Each array of the batch goes into one of them: references, rewards, every extra.
DATA_READERS = ("inpo", "bco", "aot", "beta_dpo", "dno", "rpo", "given_margin", "odpo", "modpo", "wpo", "t_reg")
DATA_READERS += ("bco_unpaired", "mm_dpo", "rebel", "dpop", "f_forward_kl")


def _batch(name, **keywords):
    return make_batch(responses=EVERY[name].responses, **keywords)


def _rows(arrays, rows):
    """The prompts `rows` of (log_probs, batch, more)."""
    return jax.tree.map(lambda x: x[rows], arrays)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_values_and_gradients_against_plain_python(name):
    arrays = _batch(name, seed=1, dtype=np.float64)
    value, gradient = run64(METHODS[name].objective, *arrays)
    expected, differences = reference.value_and_gradient(METHODS[name].reference, *arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-9)
    assert np.abs(gradient).max() > 1e-4


@functools.cache
def _whole(name):
    return compiled(name)(*_batch(name))


@every_method
def test_nothing_behind_the_mask_is_read(name):
    """Bit for bit, in value and gradient; nan is the default padding of these batches."""
    mean, gradient, metrics = _whole(name)
    zeros = compiled(name)(*_batch(name, padding=0.0))
    jax.tree.map(np.testing.assert_array_equal, (mean, gradient, metrics), zeros)
    mask = _batch(name)[1].completion_mask
    assert np.isfinite(gradient).all() and (gradient[~mask] == 0).all() and np.isfinite(mean.total)
    assert mean.total.dtype == gradient.dtype == np.float32


@every_method
def test_micro_batches_and_permuted_prompts(name):
    """Parts add up to the whole, in whatever order the prompts stand.

    A part has the other prompts in it as well, none of them present: a batch of fewer rows is one more program, and is
    held to be the same for one method of each kind below.
    """
    mean, gradient, metrics = _whole(name)
    order = np.array([3, 0, 4, 5, 1, 2])
    log_probs, batch, more = _rows(_batch(name), order)
    there = [batch.present & (rows < 3)[:, None] for rows in (np.arange(6), np.arange(6)[::-1])]
    parts = [compiled(name)(log_probs, batch._replace(present=present), more) for present in there]
    whole, all_metrics = merge(parts[0][0], parts[1][0]), merge(parts[0][2], parts[1][2])
    np.testing.assert_allclose(whole.total, mean.total, rtol=2e-6)
    assert float(whole.count) == float(mean.count) == 6 and float(parts[0][0].count) == 3
    found = sum(part[1] * float(part[0].count) for part in parts)
    np.testing.assert_allclose(found, gradient[order] * 6, rtol=2e-5, atol=1e-6)
    for key, metric in metrics.items():
        np.testing.assert_allclose(all_metrics[key].value(), metric.value(), rtol=1e-5, atol=1e-6, err_msg=key)


@every_method
def test_absent_responses_are_inert(name):
    """What stands in their place is not looked at, bit for bit, and a prompt without any is not counted.

    nan in the data, too: rewards, and the extras of each response.
    """
    case = EVERY[name]
    log_probs, batch, more = _batch(name)
    present = batch.present.copy()
    present[1], present[2, -1] = False, False
    batch = batch._replace(present=present)
    mean, gradient, metrics = compiled(name)(log_probs, batch, more)
    assert float(mean.count) == (4 if case.responses == 1 else 5)
    assert (gradient[~present] == 0).all() and np.isfinite(gradient).all()
    changed = log_probs.copy()
    changed[~present] = np.linspace(-9, -1, changed.shape[-1], dtype=np.float32)
    by_response = {key: x for key, x in batch.extras.items() if x.shape == present.shape and x.dtype == np.float32}
    unknown = {key: np.where(present, x, np.float32(np.nan)) for key, x in by_response.items()}
    batch = batch._replace(
        completion_mask=batch.completion_mask | ~present[:, :, None],
        rewards=np.where(present, batch.rewards, np.float32(np.nan)),
        extras=batch.extras | unknown,
    )
    again = compiled(name)(changed, batch, more)
    jax.tree.map(np.testing.assert_array_equal, (mean, gradient, metrics), again)


@pytest.mark.parametrize("name", ["dpo", "sppo_hard", "kto", "nca", "hypo"])
def test_a_prompt_without_responses_adds_nothing(name):
    arrays = _batch(name)
    present = arrays[1].present.copy()
    present[[1, 4, 5]] = False
    mean, gradient, _ = compiled(name)(arrays[0], arrays[1]._replace(present=present), arrays[2])
    rest = compiled(name)(*_rows(arrays, np.array([0, 2, 3])))
    np.testing.assert_allclose(mean.total, rest[0].total, rtol=1e-6)
    np.testing.assert_allclose(gradient[[0, 2, 3]], rest[1], rtol=1e-5, atol=1e-7)
    assert (gradient[[1, 4, 5]] == 0).all()


@pytest.mark.parametrize("name", DATA_READERS)
def test_no_gradient_into_data(name):
    log_probs, batch, more = _batch(name)
    floats = {key: x for key, x in batch.extras.items() if x.dtype == np.float32}

    def value(ref, prev, rewards, floats):
        given = batch._replace(ref_log_probs=ref, prev_log_probs=prev, rewards=rewards, extras=batch.extras | floats)
        rows = jnp.asarray(log_probs).reshape(-1, log_probs.shape[-1])
        return dpo.loss(TokenScores(rows, jnp.ones_like(rows)), given, EVERY[name].objective, more)[0].value()

    gradients = jax.grad(value, argnums=(0, 1, 2, 3))(
        jnp.asarray(batch.ref_log_probs), jnp.asarray(batch.prev_log_probs), jnp.asarray(batch.rewards), floats
    )
    for x in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(x, np.zeros(x.shape))


def test_only_the_rejected_sequence_kl_has_a_gradient_in_tdpo2():
    log_probs, batch, more = make_batch(seed=3)

    def value(kl, objective):
        rows = jnp.asarray(log_probs).reshape(-1, log_probs.shape[-1])
        return dpo.loss(TokenScores(rows, rows), batch, objective, {"sequence_kl": kl})[0].value()

    first, second = (jax.grad(value)(more["sequence_kl"], EVERY[name].objective) for name in ("tdpo1", "tdpo2"))
    assert (np.abs(first) > 0).all() and (second[:, 0] == 0).all() and (np.abs(second[:, 1]) > 0).all()
    np.testing.assert_allclose(first[:, 0], -first[:, 1], rtol=1e-6)
    # d(x) = coef (KL_w - KL_l), and the loss falls with x
    assert (first[:, 0] < 0).all()


DPO = Objective(beta=B)
IPO = Objective(beta=1.0, link=links.square)
SIMPO = EVERY["simpo"].objective
NO_ANCHOR = partial(compare.anchored, anchor=0.0)


@pytest.mark.parametrize(
    "one, other",
    [
        (DPO._replace(link=partial(links.logistic, label_smoothing=0.0)), DPO),
        (DPO._replace(link=partial(links.robust, flip_rate=0.0)), DPO),
        (DPO._replace(score_map=partial(score_maps.alpha_divergence, alpha=1.0)), DPO),
        (
            DPO._replace(score_map=partial(score_maps.alpha_divergence, alpha=0.0)),
            DPO._replace(score_map=score_maps.forward_kl),
        ),
        (DPO._replace(score_map=partial(score_maps.positive, penalty=0.0)), DPO),
        (DPO._replace(score_map=partial(score_maps.token_level, coef=0.0)), DPO),
        (DPO._replace(score_map=partial(score_maps.biased, bias=1.0)), DPO),
        (DPO._replace(token_weight=partial(score_maps.common_length, alpha=1.0)), DPO),
        (DPO._replace(scale=partial(scales.reward_adapted, weight=0.0)), DPO),
        (DPO._replace(scale=partial(scales.reward_adapted, weight=0.5, rate=1e9)), DPO._replace(beta=1.5 * B)),
        (DPO._replace(scale=partial(scales.objective_share, weight=1.0)), DPO),
        (DPO._replace(offset=partial(offsets.length, alpha=0.0)), DPO),
        (DPO._replace(offset=partial(offsets.target_margin, margin=0.0)), DPO),
        (DPO._replace(offset=partial(offsets.reward_gap, eta=0.0)), DPO),
        (DPO._replace(weight=partial(prompt_weights.constant, value=1.0)), DPO),
        (
            DPO._replace(weight=partial(prompt_weights.policy_likelihood, max_weight=0.0)),
            DPO._replace(weight=partial(prompt_weights.constant, value=0.0)),
        ),
        (DPO._replace(compare=compare.first_pair), DPO),
        (SIMPO._replace(score_map=partial(score_maps.alpha_reward, alpha=0.0)), SIMPO),
        (SIMPO._replace(score_map=partial(score_maps.alpha_reward, alpha=1e-4)), SIMPO),
        (IPO._replace(reference={"ref": 1.0, "prev": 0.0}), IPO),  # INPO with tau = eta
        (IPO._replace(reference={"ref": 0.0, "prev": 1.0}), IPO._replace(reference={"prev": 1.0})),  # and with tau = 0
        (DPO._replace(regularizer=regularizers.optimism, regularizer_coef=1e-30), DPO),
        (
            DPO._replace(compare=partial(NO_ANCHOR, desirable_weight=0.0, undesirable_weight=0.0)),
            DPO._replace(weight=partial(prompt_weights.constant, value=0.0)),
        ),
    ],
)
def test_limits(one, other):
    arrays = make_batch(seed=4)
    found, expected = run(one, *arrays), run(other, *arrays)
    close = 3e-4 if getattr(one.score_map, "keywords", {}).get("alpha") == 1e-4 else 2e-6
    np.testing.assert_allclose(found[0].total, expected[0].total, rtol=close)
    np.testing.assert_allclose(found[1], expected[1], rtol=50 * close, atol=1e-7)


@pytest.mark.parametrize(
    "name, value",
    [
        ("dpo", np.log(2)),
        ("cdpo", np.log(2)),
        ("rdpo", np.log(2)),
        ("ln_dpo", np.log(2)),
        ("tdpo1", np.log(2)),
        ("tdpo2", np.log(2)),
        ("dpop", np.log(2)),
        ("ld_dpo", np.log(2)),
        ("f_forward_kl", np.log(2)),
        ("f_jensen_shannon", np.log(2)),
        ("f_alpha", np.log(2)),
        ("d3po", np.log(2)),
        ("mm_dpo", np.log(2)),
        ("hinge", 1.0),
        ("ipo", 2.0**2),
        ("ipo_sum", 2.0**2),
        ("exo", -np.log(2) - (np.log(0.9) + np.log(0.1)) / 2),
        ("nca", 2 * np.log(2)),
        ("bco", 2 * np.log(2)),
        ("sppo_hard", 2 * 2.0**2),
        ("apo_zero", 1.0),
        ("apo_down", 1.0),
        ("discopop", (np.log(2) + 1) / 2),
        ("kto_pair", (1.3 + 0.7) / 2),
        ("exponential", 1.0),
    ],
)
def test_at_the_reference(name, value):
    log_probs, batch, more = make_batch(seed=5)
    batch = batch._replace(ref_log_probs=log_probs, extras=batch.extras | {"anchor": np.zeros(6, np.float32)})
    more = {"sequence_kl": np.zeros_like(more["sequence_kl"])}
    mean, _, metrics = run(EVERY[name].objective, log_probs, batch, more)
    np.testing.assert_allclose(mean.value(), value, rtol=2e-6)
    assert float(metrics["rewards/margin"].value()) == 0 == float(metrics["log_ratio"].value())


def test_beta_scales_the_margin():
    log_probs, batch, more = make_batch(seed=6, dtype=np.float64)
    value, gradient = run64(DPO, log_probs, batch, more)
    # beta h is what counts: half the beta on twice the log-ratio
    doubled = log_probs + (log_probs - batch.ref_log_probs)
    halved = run64(DPO._replace(beta=B / 2), doubled, batch, more)
    np.testing.assert_allclose(halved[0], value, rtol=1e-12)
    np.testing.assert_allclose(halved[1], gradient / 2, rtol=1e-9)


def test_metrics():
    log_probs, batch, more = make_batch(seed=7)
    present = batch.present.copy()
    present[0, 1] = False
    _, _, metrics = run(DPO._replace(beta=0.5), log_probs, batch._replace(present=present), more)
    found = {key: float(metric.value()) for key, metric in metrics.items()}
    mask = batch.completion_mask & present[:, :, None]
    sums = np.where(mask, log_probs, 0).sum(-1)
    scores_ = 0.5 * np.where(mask, log_probs - batch.ref_log_probs, 0).sum(-1)
    margins = (scores_[:, 0] - scores_[:, 1])[1:]
    expected = {
        "rewards/chosen": scores_[:, 0].mean(),
        "rewards/rejected": scores_[1:, 1].mean(),
        "rewards/margin": margins.mean(),
        "rewards/accuracy": (margins > 0).mean(),
        "log_probs/chosen": sums[:, 0].mean(),
        "log_probs/rejected": sums[1:, 1].mean(),
        "entropy": 1.0,
        "log_ratio": (log_probs - batch.ref_log_probs)[mask].mean(),
    }
    assert 0 < expected["rewards/accuracy"] < 1
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    labels = make_batch(seed=7, responses=1)
    _, _, metrics = run(EVERY["kto"].objective, *labels)
    desirable = labels[1].rewards[:, 0] == 1
    sums = np.where(labels[1].completion_mask, labels[0], 0).sum(-1)[:, 0]
    np.testing.assert_allclose(metrics["log_probs/chosen"].value(), sums[desirable].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["log_probs/rejected"].value(), sums[~desirable].mean(), rtol=1e-5)
    assert "rewards/margin" not in metrics


def test_sums_of_half_precision_are_of_float32():
    """257 tokens of -1: bfloat16 has no 257, neither as a length nor as a sum."""
    mask, ones = np.ones((1, 2, 257), bool), jnp.ones((1, 2, 257), jnp.bfloat16)
    np.testing.assert_array_equal(dpo.sequence_scores(-ones, mask, ones, 0.0), [[-257.0, -257.0]])
    np.testing.assert_array_equal(dpo.sequence_scores(-ones, mask, ones, 1.0), [[-1.0, -1.0]])
    batch = PreferenceBatch(None, mask, mask[..., 0], np.float32([[1, 0]]))
    objective = Objective(reference={}, beta=1.0)
    metrics = dpo.loss(TokenScores(-ones[0], ones[0]), batch, objective)[1]
    assert metrics["log_probs/chosen"].value() == -257.0 == metrics["rewards/rejected"].value()


def test_the_metrics_leave_out_the_offset():
    """TRL's keys are of beta u: a margin that is wanted of the pair is none that it has."""
    log_probs, batch, more = make_batch(seed=7, padding=0.0)
    log_probs = np.where(batch.completion_mask, np.float32([-0.5, -0.6])[:, None], 0).astype(np.float32)
    metrics = run(SIMPO, log_probs, batch, more)[2]
    assert float(metrics["rewards/accuracy"].value()) == 1.0
    np.testing.assert_allclose(metrics["rewards/margin"].value(), 2.0 * 0.1, rtol=1e-5)
    np.testing.assert_allclose(metrics["rewards/chosen"].value(), 2.0 * -0.5, rtol=1e-5)


def test_of_several_responses_only_the_worse_ones_are_compared():
    """Not those of the same reward, right solutions as the first one is; of a pair the place says which is better."""
    log_probs, batch, more = make_batch(seed=7, responses=3)
    batch = batch._replace(rewards=np.float32([[1, 1, 0], [1, 0, 0], [1, 1, 1]] * 2))
    metrics = run(EVERY["hypo"].objective, log_probs, batch, more)[2]
    u = np.where(batch.completion_mask, log_probs - batch.ref_log_probs, 0).sum(-1)
    margins = B * (u[:, :1] - u)[batch.rewards < batch.rewards[:, :1]]
    assert len(margins) == 6 == float(metrics["rewards/accuracy"].count)
    np.testing.assert_allclose(metrics["rewards/margin"].value(), margins.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["rewards/accuracy"].value(), (margins > 0).mean(), rtol=1e-6)
    log_probs, batch, more = make_batch(seed=7)
    metrics = run(DPO, log_probs, batch._replace(rewards=np.zeros((6, 2), np.float32)), more)[2]
    assert float(metrics["rewards/accuracy"].count) == 6


def test_extras_do_not_hide_what_is_computed():
    """A data set with a column `lengths`, or an encoder that passes `present` on."""
    log_probs, batch, more = make_batch(seed=7)
    wrong = batch.extras | {"lengths": np.full((6, 2), 99, np.float32), "present": np.zeros((6, 2), bool)}
    for name in ("rdpo_length", "cpl"):
        expected = run(EVERY[name].objective, log_probs, batch, more)
        found = run(EVERY[name].objective, log_probs, batch._replace(extras=wrong), more)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_is_missing_is_named():
    log_probs, batch, more = make_batch()
    with pytest.raises(ValueError, match="'prev', which the batch lacks; it has: ref"):
        run(Objective(reference={"prev": 1.0}), log_probs, batch._replace(prev_log_probs=None), more)
    with pytest.raises(ValueError, match="soft_label needs label_probs"):
        run(Objective(link=links.soft_label), log_probs, batch._replace(extras={}), more)
    with pytest.raises(ValueError, match="token_level needs sequence_kl"):
        run(Objective(score_map=score_maps.token_level), log_probs, batch, {})


def test_an_objective_says_what_it_needs():
    terms = dict(score_map=score_maps.token_level, link=links.soft_label, regularizer=regularizers.token_rewards)
    objective = Objective(**terms)
    assert objective.needs() == {"sequence_kl", "label_probs"}
    wanted = {"token_rewards", "sequence_scores", "beta"}
    assert objective._replace(regularizer_coef=0.1).needs() == {"sequence_kl", "label_probs"} | wanted
    assert Objective().needs() == set()


def test_the_optimum_of_dpo_is_the_tilted_reference():
    """Bradley-Terry labels, full support: no gradient at pi = ref exp(r / beta) / Z, and there at soft labels only."""
    rng = np.random.default_rng(0)
    actions, beta = 5, 0.7
    rewards, ref_logits = rng.normal(size=actions), rng.normal(size=actions)
    first, second = (x.ravel() for x in np.meshgrid(np.arange(actions), np.arange(actions), indexing="ij"))
    label_probs = 1 / (1 + np.exp(rewards[second] - rewards[first]))

    def batch_of(pairs, ref):
        log_probs = np.zeros((len(pairs), 2, 1))
        _, batch, _ = make_batch(prompts=len(pairs), length=1, dtype=np.float64)
        return log_probs, batch._replace(
            completion_mask=np.ones((len(pairs), 2, 1), bool),
            ref_log_probs=ref[pairs][..., None],
            extras={"label_probs": label_probs},
        )

    with jax.enable_x64(True):
        pairs = np.stack([first, second], axis=1)
        ref = np.asarray(jax.nn.log_softmax(ref_logits))
        _, batch = batch_of(pairs, ref)
        objective = Objective(beta=beta, link=links.soft_label)

        def value(logits):
            rows = jax.nn.log_softmax(logits)[pairs.ravel()][:, None]
            return dpo.loss(TokenScores(rows, rows), batch, objective)[0].value()

        optimum = ref_logits + rewards / beta
        assert np.abs(jax.grad(value)(jnp.asarray(optimum))).max() < 1e-15
        assert np.abs(jax.grad(value)(jnp.asarray(ref_logits))).max() > 1e-2
        assert np.abs(jax.grad(value)(jnp.asarray(ref_logits + rewards / (1.1 * beta)))).max() > 1e-4


def test_rebel_at_its_own_samples_is_pairwise_reinforce():
    """At theta = old the gradient in the log-probs is -2 eta (R_1 - R_2) on the better response, + on the other."""
    log_probs, batch, more = make_batch(seed=8, dtype=np.float64)
    batch = batch._replace(ref_log_probs=log_probs)
    _, gradient = run64(EVERY["rebel"].objective, log_probs, batch, more)
    push = -2 * 0.5 * (batch.rewards[:, 0] - batch.rewards[:, 1]) / 6
    expected = np.stack([push, -push], axis=1)[..., None] * batch.completion_mask
    np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-15)


def test_a_longer_winner_is_pushed_less():
    """R-DPO: d loss / dh = -beta sigma(-(beta h + alpha (|y_w| - |y_l|))); here h = 0 and |y_l| = 3."""
    _, batch, more = make_batch(dtype=np.float64)
    lengths = np.arange(1, 7)
    mask = np.arange(6) < np.stack([lengths, np.full(6, 3)], axis=1)[..., None]
    ones = -np.ones(mask.shape)
    _, gradient = run64(
        EVERY["rdpo_length"].objective, ones, batch._replace(completion_mask=mask, ref_log_probs=ones), more
    )
    pushes = -6 * gradient[:, 0, 0]
    np.testing.assert_allclose(pushes, B / (1 + np.exp(0.2 * (lengths - 3))), rtol=1e-12)
    assert (np.diff(pushes) < 0).all()


def test_only_comparators_of_labels_read_labels():
    found = {name for name, fn in vars(compare).items() if callable(fn) and Objective(compare=fn).reads_labels()}
    assert found == {"anchored"} and Objective(compare=NO_ANCHOR).reads_labels()
