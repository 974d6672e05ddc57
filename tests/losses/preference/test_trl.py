"""Values and gradients of dpo.loss against TRL 1.16, and 0.28 for what it dropped, on ragged batches in float64."""

import functools

import numpy as np
import pytest

from rl_jax.dpo import Objective
from rl_jax.losses.preference import compare, links, offsets, prompt_weights, regularizers, score_maps
from tests.losses.preference.cases import make_batch, run64
from tests.oracles import trl_preference as trl

partial = functools.partial
B = 0.3
SMOOTH = partial(links.logistic, label_smoothing=0.1)
ZERO = partial(compare.anchored, anchor=0.0)
FREE = {"reference": {}}
MEAN = {"reference": {}, "length_power": 1.0}


def _sums(x, mask):
    return np.where(mask, x, 0.0).sum(axis=-1)


def _sorted_partner(values, others):
    """others at the rank that each value has among values, [N] or [N, 2] along the first axis."""
    return others[np.argsort(np.argsort(values))]


# name -> (objective, TRL's settings)
DPO = {
    "sigmoid": (Objective(beta=B), {}),
    "hinge": (Objective(beta=B, link=links.hinge), {}),
    "ipo": (Objective(beta=1.0, length_power=1.0, link=partial(links.square, target=1 / (2 * B))), {}),
    "exo_pair": (Objective(beta=B, link=partial(links.exo, label_smoothing=0.1)), {"label_smoothing": 0.1}),
    "nca_pair": (Objective(beta=B, compare=compare.nca), {}),
    "robust": (Objective(beta=B, link=partial(links.robust, flip_rate=0.1)), {"label_smoothing": 0.1}),
    "bco_pair": (Objective(beta=B, compare=ZERO), {}),
    "sppo_hard": (Objective(beta=1.0, compare=ZERO, link=partial(links.square, target=1 / (2 * B))), {}),
    "aot": (Objective(beta=B, compare=compare.sorted_pairs, link=SMOOTH), {"label_smoothing": 0.1}),
    "aot_unpaired": (Objective(beta=B, compare=compare.sorted_unpaired, link=SMOOTH), {"label_smoothing": 0.1}),
    "apo_zero": (Objective(beta=B, compare=ZERO, link=links.saturating), {}),
    "apo_down": (Objective(beta=B, compare=compare.apo_down, link=links.saturating), {}),
    "discopop": (Objective(beta=B, link=partial(links.discopop, temperature=0.2)), {"discopop_tau": 0.2}),
    "sigmoid_norm": (Objective(beta=B, length_power=1.0), {}),
    "rpo": (
        Objective(beta=B, regularizer=regularizers.chosen_token_nll, regularizer_coef=0.4),
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.4]},
    ),
    "forward_kl": (
        Objective(beta=B, score_map=score_maps.forward_kl),
        {"loss_type": ["sigmoid"], "f_divergence_type": "forward_kl"},
    ),
    "js_divergence": (
        Objective(beta=B, score_map=score_maps.jensen_shannon),
        {"loss_type": ["sigmoid"], "f_divergence_type": "js_divergence"},
    ),
    "js_divergence of hinge": (
        Objective(beta=B, score_map=score_maps.jensen_shannon, link=links.hinge),
        {"loss_type": ["hinge"], "f_divergence_type": "js_divergence"},
    ),
    "ld_alpha": (
        Objective(beta=B, token_weight=partial(score_maps.common_length, alpha=0.4)),
        {"loss_type": ["sigmoid"], "ld_alpha": 0.4},
    ),
    "ld_alpha 0": (
        Objective(beta=B, token_weight=partial(score_maps.common_length, alpha=0.0)),
        {"loss_type": ["sigmoid"], "ld_alpha": 0.0},
    ),
}


def _check(objective, arrays, expected, rtol=1e-9, atol=1e-10):
    value, gradient = run64(objective, *arrays)
    np.testing.assert_allclose(value, expected[0], rtol=rtol)
    np.testing.assert_allclose(gradient, expected[1], rtol=rtol, atol=atol)
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize("name", DPO)
def test_dpo_trainer(name):
    objective, settings = DPO[name]
    log_probs, batch, more = make_batch(seed=2, dtype=np.float64)
    mask = batch.completion_mask
    policy, ref = _sums(log_probs, mask), _sums(batch.ref_log_probs, mask)
    if name == "aot":
        order = _sorted_partner(policy[:, 0] - policy[:, 1], np.argsort(ref[:, 0] - ref[:, 1]))
        batch.extras["partners"] = ref[order] - ref
    if name == "aot_unpaired":
        chosen, rejected = (policy - ref).T
        partners = _sorted_partner(chosen, np.sort(rejected)), _sorted_partner(rejected, np.sort(chosen))
        batch.extras["partners"] = np.stack(partners, axis=1)
    settings = {"loss_type": [name], "beta": B} | settings
    _check(objective, (log_probs, batch, more), trl.dpo_loss(log_probs, batch.ref_log_probs, mask, **settings))


@pytest.mark.parametrize("alpha", [0.5, 0.0, 1.0, 2.0])
def test_alpha_divergence(alpha):
    log_probs, batch, more = make_batch(seed=3, dtype=np.float64)
    settings = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": alpha, "beta": B}
    expected = trl.dpo_loss(log_probs, batch.ref_log_probs, batch.completion_mask, **settings)
    objective = Objective(beta=B, score_map=partial(score_maps.alpha_divergence, alpha=alpha))
    _check(objective, (log_probs, batch, more), expected, rtol=3e-6, atol=1e-7)  # TRL's is in float32


def test_alpha_counts_the_other_way_before_0_29():
    log_probs, batch, more = make_batch(seed=3, dtype=np.float64)
    arrays = log_probs, batch.ref_log_probs, batch.completion_mask
    old = {"f_divergence_type": "alpha_divergence", "f_divergence_params": {"alpha_divergence_coef": 0.3}, "beta": B}
    objective = Objective(beta=B, score_map=partial(score_maps.alpha_divergence, alpha=0.7))
    _check(objective, (log_probs, batch, more), trl.old_dpo_loss(*arrays, **old))


@pytest.mark.parametrize(
    "loss_type, link", [("sigmoid", links.logistic), ("robust", partial(links.robust, flip_rate=0.1))]
)
def test_wpo(loss_type, link):
    log_probs, batch, more = make_batch(seed=4, dtype=np.float64)
    mask = batch.completion_mask
    squares = np.random.default_rng(0).uniform(-2.0, -0.1, mask.shape)
    batch.extras["response_weights"] = np.exp(_sums(log_probs - squares, mask) / mask.sum(axis=-1))
    expected = trl.dpo_loss(
        log_probs,
        batch.ref_log_probs,
        mask,
        loss_type=[loss_type],
        beta=B,
        label_smoothing=0.1,
        log_sum_sq_probs=squares,
    )
    _check(Objective(beta=B, link=link, weight=prompt_weights.policy_likelihood), (log_probs, batch, more), expected)


@pytest.mark.parametrize("loss_type, kl", [("kto", 0.3), ("kto", -0.3), ("apo_zero_unpaired", 0.0)])
def test_kto_trainer(loss_type, kl):
    log_probs, batch, more = make_batch(seed=5, responses=1, dtype=np.float64)
    weighing = {"desirable_weight": 1.3, "undesirable_weight": 0.7}
    mismatched = kl + np.linspace(-0.5, 0.5, 6)
    arrays = log_probs[:, 0], batch.ref_log_probs[:, 0], batch.completion_mask[:, 0], batch.rewards[:, 0]
    value, gradient = trl.kto_loss(*arrays, mismatched, loss_type=loss_type, beta=B, **weighing)
    batch.extras["anchor"] = np.full(6, max(0.0, mismatched.mean()) if loss_type == "kto" else 0.0)
    objective = Objective(beta=B, compare=partial(compare.anchored, **weighing), link=links.saturating)
    _check(objective, (log_probs, batch, more), (value, gradient[:, None]))


SIMPO = {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.6}
MARGIN = partial(offsets.target_margin, margin=0.6)
NLL = {"regularizer": regularizers.chosen_token_nll, "regularizer_coef": 0.7}
CPO = {
    "cpo": (Objective(beta=B, **FREE, **NLL), {"loss_type": "sigmoid", "beta": B, "cpo_alpha": 0.7}),
    "cpo smoothed": (
        Objective(beta=B, **FREE, link=SMOOTH, **NLL),
        {"loss_type": "sigmoid", "beta": B, "cpo_alpha": 0.7, "label_smoothing": 0.1},
    ),
    "slic": (
        Objective(beta=B, **FREE, link=links.hinge, **NLL),
        {"loss_type": "hinge", "beta": B, "cpo_alpha": 0.7},
    ),
    "ipo without reference": (
        Objective(beta=1.0, **MEAN, link=partial(links.square, target=1 / (2 * B))),
        {"loss_type": "ipo", "beta": B, "cpo_alpha": 0.0},
    ),
    "simpo": (Objective(beta=2.0, **MEAN, offset=MARGIN), SIMPO | {"cpo_alpha": 0.0}),
    "cpo_simpo": (Objective(beta=2.0, **MEAN, offset=MARGIN, **NLL), SIMPO | {"cpo_alpha": 0.7}),
    "alphapo": (
        Objective(beta=2.0, **MEAN, offset=MARGIN, score_map=partial(score_maps.alpha_reward, alpha=0.25)),
        SIMPO | {"cpo_alpha": 0.0, "alpha": 0.25},
    ),
}


@pytest.mark.parametrize("name", CPO)
def test_cpo_trainer(name):
    objective, settings = CPO[name]
    arrays = make_batch(seed=6, dtype=np.float64)
    _check(objective, arrays, trl.cpo_loss(arrays[0], arrays[1].completion_mask, **settings))


def test_orpo_trainer():
    """Its likelihood is the mean over the batch's tokens. The odds are in float32, whatever comes in."""
    arrays = make_batch(seed=7, dtype=np.float64)
    objective = Objective(
        beta=1.0,
        **MEAN,
        score_map=score_maps.log_odds,
        weight=partial(prompt_weights.constant, value=0.2),
        regularizer=regularizers.chosen_token_nll,
        regularizer_coef=1.0,
    )
    _check(objective, arrays, trl.orpo_loss(arrays[0], arrays[1].completion_mask, beta=0.2), rtol=3e-6, atol=1e-7)


OLD = {
    "cdpo": (Objective(beta=B, link=SMOOTH), {"label_smoothing": 0.1}),
    "reference_free": (Objective(beta=B, **FREE), {"reference_free": True}),
    "rpo_alpha": (Objective(beta=B, **NLL), {"rpo_alpha": 0.7}),
    "ipo": (
        Objective(beta=1.0, length_power=1.0, link=partial(links.square, target=1 / (2 * B))),
        {"loss_type": ["ipo"]},
    ),
    "bco_pair": (Objective(beta=B, compare=compare.anchored), {"loss_type": ["bco_pair"]}),
}


@pytest.mark.parametrize("name", OLD)
def test_dpo_trainer_of_0_28(name):
    objective, settings = OLD[name]
    log_probs, batch, more = make_batch(seed=8, dtype=np.float64)
    mask = batch.completion_mask
    batch.extras["anchor"] = np.full(len(mask), (_sums(log_probs, mask) - _sums(batch.ref_log_probs, mask)).mean())
    expected = trl.old_dpo_loss(log_probs, batch.ref_log_probs, mask, beta=B, **settings)
    # Its running mean is kept in float32.
    _check(objective, (log_probs, batch, more), expected, rtol=1e-6 if name == "bco_pair" else 1e-9)


@pytest.mark.parametrize("density", [False, True])
def test_bco_trainer_after_a_batch_of_another_size(density):
    first, second = make_batch(seed=9, prompts=3, dtype=np.float64), make_batch(seed=10, prompts=6, dtype=np.float64)
    arrays = [(x, batch.ref_log_probs, batch.completion_mask) for x, batch, _ in (first, second)]
    ratios = [_sums(x, mask) - _sums(ref, mask) for x, ref, mask in arrays]
    log_probs, batch, more = second
    batch.extras["anchor"] = np.full(6, np.concatenate(ratios).mean())
    objective = Objective(beta=B, compare=compare.anchored)
    if not density:
        _check(objective, second, trl.bco_losses(arrays, beta=B), rtol=1e-6)
        return
    # The density ratio weighs the undesirable side: that of a labelled response is its prompt's weight.
    ratio = np.linspace(0.5, 2.0, 6)
    value, gradient = trl.bco_losses(arrays[1:], beta=B, rejected_weights=ratio)
    unpaired = batch._replace(
        completion_mask=batch.completion_mask.reshape(12, 1, -1),
        present=np.ones((12, 1), bool),
        rewards=np.tile([1.0, 0.0], 6)[:, None],
        ref_log_probs=batch.ref_log_probs.reshape(12, 1, -1),
        prev_log_probs=None,
        extras={
            "anchor": np.full(12, ratios[1].mean()),
            "prompt_weights": np.stack([np.ones(6), ratio], axis=1).reshape(12),
        },
    )
    arrays = log_probs.reshape(12, 1, -1), unpaired, {}
    expected = value / 2, gradient.reshape(12, 1, -1) / 2  # a mean over 12 responses instead of 6 pairs
    _check(objective._replace(weight=prompt_weights.given), arrays, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "loss_type, objective",
    [
        ("sigmoid", Objective(beta=B)),
        ("ipo", Objective(beta=1.0, link=partial(links.square, target=1 / (2 * B)))),  # of sums
    ],
)
@pytest.mark.parametrize("alpha", [0.0, 0.05])
def test_xpo_trainer(loss_type, objective, alpha):
    log_probs, batch, more = make_batch(seed=11, dtype=np.float64)
    chosen_is_ours = np.array([True, False, False, True, True, False])
    batch.extras["from_reference"] = np.stack([~chosen_is_ours, chosen_is_ours], axis=1)
    objective = objective._replace(regularizer=regularizers.optimism, regularizer_coef=alpha)
    arrays = log_probs, batch.ref_log_probs, batch.completion_mask, chosen_is_ours
    expected = trl.xpo_loss(*arrays, loss_type=loss_type, beta=B, alpha=alpha)
    _check(objective, (log_probs, batch, more), expected)
