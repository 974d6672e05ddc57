"""The pinned losses of golden_preference.json (TRL 1.16; 0.24 and 0.29 where it says so), through dpo.loss."""

import functools
import json

import jax
import numpy as np
import pytest

from rl_jax.core.types import PreferenceBatch, TokenBatch
from rl_jax.dpo import Objective
from rl_jax.losses.preference import compare, links, offsets, prompt_weights, regularizers, score_maps
from tests.losses.preference.cases import run64
from tests.oracles import trl_preference as trl
from tests.paths import REPO_ROOT

partial = functools.partial
GOLDEN = json.loads((REPO_ROOT / "tests/numpy_loops/golden_preference.json").read_text())
X = {name: np.array(x) for name, x in GOLDEN["inputs"].items() if isinstance(x, list)}
LOSSES = GOLDEN["per_example_losses"]
B, EPS = GOLDEN["inputs"]["beta"], GOLDEN["inputs"]["eps_for_exo_robust_aot"]

SMOOTH = partial(links.logistic, label_smoothing=EPS)
ZERO = partial(compare.anchored, anchor=0.0)
IPO = partial(links.square, target=1 / (2 * B))
MEAN = {"reference": {}, "length_power": 1.0}
PAIRS = {
    "sigmoid": Objective(beta=B),
    "hinge": Objective(beta=B, link=links.hinge),
    "ipo": Objective(beta=1.0, length_power=1.0, link=IPO),
    "ipo_sum_tau0.1": Objective(beta=1.0, link=IPO),
    "exo_pair": Objective(beta=B, link=partial(links.exo, label_smoothing=EPS)),
    "nca_pair": Objective(beta=B, compare=compare.nca),
    "robust": Objective(beta=B, link=partial(links.robust, flip_rate=EPS)),
    "cdpo_eps0.1": Objective(beta=B, link=SMOOTH),
    "bco_pair": Objective(beta=B, compare=ZERO),
    "bco_pair_shifted(delta=batch mean)": Objective(beta=B, compare=compare.anchored),
    "sppo_hard": Objective(beta=1.0, compare=ZERO, link=IPO),
    "aot": Objective(beta=B, compare=compare.sorted_pairs, link=SMOOTH),
    "apo_zero": Objective(beta=B, compare=ZERO, link=links.saturating),
    "apo_down": Objective(beta=B, compare=compare.apo_down, link=links.saturating),
    "discopop": Objective(beta=B, link=partial(links.discopop, temperature=GOLDEN["inputs"]["discopop_tau"])),
    "sigmoid_norm": Objective(beta=B, length_power=1.0),
    "forward_kl0": Objective(beta=B, score_map=score_maps.forward_kl),
    "js_divergence0": Objective(beta=B, score_map=score_maps.jensen_shannon),
    "alpha_divergence0.5": Objective(beta=B, score_map=partial(score_maps.alpha_divergence, alpha=0.5)),
    "alpha_divergence2.0": Objective(beta=B, score_map=partial(score_maps.alpha_divergence, alpha=2.0)),
    "simpo_beta2.5_gamma1.375": Objective(beta=2.5, **MEAN, offset=partial(offsets.target_margin, margin=1.375)),
    "cpo_sigmoid_beta0.1": Objective(beta=B, reference={}),
    "alphapo_alpha.25_beta2.5_gamma.1": Objective(
        beta=2.5,
        **MEAN,
        score_map=partial(score_maps.alpha_reward, alpha=0.25),
        offset=partial(offsets.target_margin, margin=0.1),
    ),
    "orpo_beta0.1 preference part (float32 inside TRL)": Objective(
        beta=1.0, **MEAN, score_map=score_maps.log_odds, weight=partial(prompt_weights.constant, value=B)
    ),
}
BCO = "bco_pair_shifted(delta=batch mean)"
KTO = "kto_beta0.1_z0=0.25 [4 desirable, 4 undesirable]"
XPO = "xpo_beta0.1_alpha0.01 (scalar; chosen=[model,ref,model,model], y_ref=rejected col)"
ELSEWHERE = {"aot_unpaired", KTO, XPO, "orpo_log_odds"}


def _batch(columns=("w", "l"), rewards=(1.0, 0.0), rows=slice(None)):
    """(log_probs, batch): each sequence's log-prob spread evenly over its tokens."""
    lengths = np.stack([X[f"len_{side}"] for side in columns], axis=1)[rows]
    mask = np.arange(40) < lengths[..., None]

    def spread(name):
        sums = np.stack([X[f"{name}_{side}"] for side in columns], axis=1)[rows]
        return np.where(mask, (sums / lengths)[..., None], np.nan)

    ids = np.ones((*lengths.shape, 41), np.int32)
    everywhere = np.broadcast_to(np.asarray(rewards), lengths.shape)
    batch = PreferenceBatch(TokenBatch(ids, ids, ids), mask, np.ones(lengths.shape, bool), everywhere, spread("ref"))
    return spread("logp"), batch


def _ranks(x):
    return np.argsort(np.argsort(x))


def _extras():
    policy, ref = X["logp_w"] - X["logp_l"], np.stack([X["ref_w"], X["ref_l"]], axis=1)
    order = np.argsort(ref[:, 0] - ref[:, 1])[_ranks(policy)]
    ratios = X["logp_w"] - X["ref_w"], X["logp_l"] - X["ref_l"]
    return {
        "partners": ref[order] - ref,
        "anchor": np.full(4, np.mean(ratios)),
    }


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name):
    extras, found = _extras(), []
    for n in range(4):
        log_probs, batch = _batch(rows=slice(n, n + 1))
        batch = batch._replace(extras={key: x[n : n + 1] for key, x in extras.items()})
        found.append(run64(PAIRS[name], log_probs, batch, {})[0])
    if name == "aot":
        found = np.array(found)[np.argsort(X["logp_w"] - X["logp_l"])]
    digits = len(str(LOSSES[name][0]).split(".")[1])  # those that TRL computes in float32 are given with seven
    np.testing.assert_allclose(found, LOSSES[name], rtol=0, atol=1e-9 if digits > 7 or digits < 5 else 4e-7)


def test_sorted_unpaired():
    log_probs, batch = _batch()
    ratios = X["logp_w"] - X["ref_w"], X["logp_l"] - X["ref_l"]
    partners = np.sort(ratios[1])[_ranks(ratios[0])], np.sort(ratios[0])[_ranks(ratios[1])]
    batch = batch._replace(extras={"partners": np.stack(partners, axis=1)})
    objective = Objective(beta=B, compare=compare.sorted_unpaired, link=SMOOTH)
    found = run64(objective, log_probs, batch, {})[0]
    np.testing.assert_allclose(found, np.mean(LOSSES["aot_unpaired"]), atol=1e-10)


def test_kto():
    objective = Objective(beta=B, compare=compare.anchored, link=links.saturating)
    extras = {"anchor": np.full(1, np.mean(X["kl_logp"] - X["kl_ref"]))}
    found = []
    for column, label in (("w", 1.0), ("l", 0.0)):
        for n in range(4):
            log_probs, batch = _batch((column,), (label,), slice(n, n + 1))
            found.append(run64(objective, log_probs, batch._replace(extras=extras), {})[0])
    np.testing.assert_allclose(found, LOSSES[KTO], atol=1e-10)
    np.testing.assert_allclose(np.mean(found), 0.4976726221622668, atol=1e-10)


def test_xpo():
    log_probs, batch = _batch()
    swapped = batch.ref_log_probs.copy(), batch.completion_mask.copy()
    for x in (log_probs, *swapped):
        x[1] = x[1, ::-1].copy()  # the reference's sample is the better one here
    from_reference = np.array([[False, True], [True, False], [False, True], [False, True]])
    batch = batch._replace(
        ref_log_probs=swapped[0], completion_mask=swapped[1], extras={"from_reference": from_reference}
    )
    objective = Objective(beta=B, regularizer=regularizers.optimism, regularizer_coef=0.01)
    np.testing.assert_allclose(run64(objective, log_probs, batch, {})[0], LOSSES[XPO], atol=1e-10)


def test_log_odds():
    means = np.stack([X["logp_w"] / X["len_w"], X["logp_l"] / X["len_l"]], axis=1)
    with jax.enable_x64(True):
        odds = np.asarray(score_maps.log_odds(jax.numpy.asarray(means)))
    np.testing.assert_allclose(odds[:, 0] - odds[:, 1], LOSSES["orpo_log_odds"], atol=1e-9)


@pytest.mark.parametrize("name", list(LOSSES)[:14])
def test_trl_is_what_they_are_from(name):
    """A release that computes something else is noticed here, under its own name."""
    log_probs, batch = _batch()
    smoothing = EPS if name in ("exo_pair", "robust", "aot", "aot_unpaired") else 0.0
    arrays = log_probs, batch.ref_log_probs, batch.completion_mask
    value, _ = trl.dpo_loss(*arrays, loss_type=[name], beta=B, label_smoothing=smoothing)
    np.testing.assert_allclose(value, np.mean(LOSSES[name]), atol=1e-9)


@pytest.mark.parametrize(
    "name, settings", [("cdpo_eps0.1", {"label_smoothing": EPS}), (BCO, {"loss_type": ["bco_pair"]})]
)
def test_the_older_trl_is_what_they_are_from(name, settings):
    log_probs, batch = _batch()
    arrays = log_probs, batch.ref_log_probs, batch.completion_mask
    np.testing.assert_allclose(trl.old_dpo_loss(*arrays, beta=B, **settings)[0], np.mean(LOSSES[name]), atol=1e-7)


def test_nothing_is_left_out():
    assert set(LOSSES) == set(PAIRS) | ELSEWHERE
