"""Every method of the pairs' family as a choice of slots, beside its loss in plain Python; batches to run them on."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch, TokenBatch, TokenScores
from rl_jax.dpo import Objective
from rl_jax.losses.preference import compare, links, offsets, prompt_weights, regularizers, scales, score_maps
from tests.numpy_loops import preference as reference

partial = functools.partial


class Case(NamedTuple):
    """objective: the slots. reference: (Prompt) -> its loss. responses: K."""

    objective: Objective
    reference: object
    responses: int = 2


B = 0.3  # a beta at which the margins of these batches bend every link
_anchored = partial(compare.anchored, desirable_weight=1.3, undesirable_weight=0.7)
_zero = partial(compare.anchored, anchor=0.0)
_free = {"reference": {}}
_mean = {"reference": {}, "length_power": 1.0}
_nll = partial(regularizers.chosen_nll, reduce="mean")
_square = partial(links.square, target=2.0)
_soft = partial(links.logistic, label_smoothing=0.1)


def _pair(link):
    """A loss of beta h."""
    return lambda p: link(B * p.h)


METHODS = {
    "dpo": Case(Objective(beta=B), _pair(reference.logistic)),
    "cdpo": Case(Objective(beta=B, link=_soft), _pair(lambda x: reference.logistic(x, 0.9))),
    "rdpo": Case(Objective(beta=B, link=partial(links.robust, flip_rate=0.2)), _pair(lambda x: reference.rdpo(x, 0.2))),
    "ipo_sum": Case(Objective(beta=1.0, link=_square), lambda p: (p.h - 1 / (2 * 0.25)) ** 2),
    "ipo": Case(
        Objective(beta=1.0, link=_square, length_power=1.0),
        lambda p: (p.a[0] / p.lengths[0] - p.a[1] / p.lengths[1] - 1 / (2 * 0.25)) ** 2,
    ),
    "hinge": Case(Objective(beta=B, link=links.hinge), _pair(lambda x: max(0.0, 1 - x))),
    "slic": Case(
        Objective(beta=1.0, **_free, link=partial(links.hinge, margin=0.8), regularizer_coef=0.1),
        lambda p: max(0.0, 0.8 - (p.sums[0] - p.sums[1])) - 0.1 * p.sums[0],
    ),
    "slic_target": Case(
        Objective(
            beta=1.0,
            **_free,
            compare=compare.first_pair,
            link=links.hinge,
            regularizer=regularizers.target_nll,
            regularizer_coef=0.1,
        ),
        lambda p: max(0.0, 1 - (p.sums[0] - p.sums[1])) - 0.1 * p.sums[2],
        3,
    ),
    "kto": Case(
        Objective(beta=B, compare=_anchored, link=links.saturating), lambda p: reference.kto(p, B, 1.3, 0.7), 1
    ),
    "kto_pair": Case(
        Objective(beta=B, compare=_anchored, link=links.saturating), lambda p: reference.kto_pair(p, B, 1.3, 0.7)
    ),
    "bco": Case(Objective(beta=B, compare=compare.anchored), lambda p: reference.bco(p, B)),
    "bco_unpaired": Case(
        Objective(beta=B, compare=compare.anchored, weight=prompt_weights.given),
        lambda p: reference.bco_unpaired(p, B),
        1,
    ),
    "nca": Case(Objective(beta=B, compare=compare.nca), lambda p: reference.nca(p, B)),
    "exo": Case(
        Objective(beta=B, link=partial(links.exo, label_smoothing=0.1)), _pair(lambda x: reference.exo(x, 0.1))
    ),
    "apo_zero": Case(Objective(beta=B, compare=_zero, link=links.saturating), lambda p: reference.apo_zero(p, B)),
    "apo_down": Case(
        Objective(beta=B, compare=compare.apo_down, link=links.saturating), lambda p: reference.apo_down(p, B)
    ),
    "sppo_hard": Case(Objective(beta=1.0, compare=_zero, link=_square), lambda p: reference.sppo_hard(p, 0.25)),
    "discopop": Case(
        Objective(beta=B, link=partial(links.discopop, temperature=0.2)), _pair(lambda x: reference.discopop(x, 0.2))
    ),
    "exponential": Case(Objective(beta=B, link=links.exponential), _pair(lambda x: math.exp(-x))),
    "orpo": Case(
        Objective(
            beta=1.0,
            **_mean,
            score_map=score_maps.log_odds,
            weight=partial(prompt_weights.constant, value=0.2),
            regularizer=_nll,
            regularizer_coef=1.0,
        ),
        lambda p: reference.orpo(p, 0.2),
    ),
    "simpo": Case(
        Objective(beta=2.0, **_mean, offset=partial(offsets.target_margin, margin=0.6)),
        lambda p: reference.logistic(2.0 * (p.means[0] - p.means[1]) - 0.6),
    ),
    "alphapo": Case(
        Objective(
            beta=2.5,
            **_mean,
            score_map=partial(score_maps.alpha_reward, alpha=0.25),
            offset=partial(offsets.target_margin, margin=0.1),
        ),
        lambda p: reference.alphapo(p, 0.25, 2.5, 0.1),
    ),
    "cpo": Case(
        Objective(beta=B, **_free, regularizer=regularizers.chosen_token_nll, regularizer_coef=0.7),
        lambda p: reference.logistic(B * (p.sums[0] - p.sums[1])) - 0.7 * p.sums[0] / p.extras["mean_tokens"],
    ),
    "cpo_simpo": Case(
        Objective(beta=2.0, **_mean, offset=offsets.target_margin, regularizer=_nll, regularizer_coef=0.05),
        lambda p: reference.logistic(2.0 * (p.means[0] - p.means[1]) - 0.5) - 0.05 * p.means[0],
    ),
    "rdpo_length": Case(
        Objective(beta=B, offset=partial(offsets.length, alpha=0.2)),
        lambda p: reference.logistic(B * p.h + 0.2 * (p.lengths[0] - p.lengths[1])),
    ),
    "ln_dpo": Case(
        Objective(beta=5.0, length_power=1.0),
        lambda p: reference.logistic(5.0 * (p.a[0] / p.lengths[0] - p.a[1] / p.lengths[1])),
    ),
    "ld_dpo": Case(
        Objective(beta=B, token_weight=partial(score_maps.common_length, alpha=0.4)),
        lambda p: reference.ld_dpo(p, B, 0.4),
    ),
    "dpop": Case(
        Objective(beta=B, score_map=partial(score_maps.positive, penalty=5.0)), lambda p: reference.dpop(p, B, 5.0)
    ),
    "rpo_sum": Case(Objective(beta=B, regularizer_coef=0.2), lambda p: reference.logistic(B * p.h) - 0.2 * p.sums[0]),
    "rpo_mean": Case(
        Objective(beta=B, regularizer=_nll, regularizer_coef=0.2),
        lambda p: reference.logistic(B * p.h) - 0.2 * p.means[0],
    ),
    "rpo": Case(
        Objective(beta=B, regularizer=regularizers.chosen_token_nll, regularizer_coef=0.2),
        lambda p: reference.logistic(B * p.h) - 0.2 * p.sums[0] / p.extras["mean_tokens"],
    ),
    "wpo": Case(Objective(beta=B, weight=prompt_weights.policy_likelihood), lambda p: reference.wpo(p, B)),
    "beta_dpo": Case(
        Objective(beta=B, scale=scales.batch_adapted, weight=prompt_weights.kept),
        lambda p: p.extras["kept"] * reference.logistic(p.extras["batch_beta"] * p.h),
    ),
    "f_forward_kl": Case(
        Objective(beta=B, score_map=score_maps.forward_kl), lambda p: reference.f_dpo(p, B, lambda t: -1 / t)
    ),
    "f_jensen_shannon": Case(
        Objective(beta=B, score_map=score_maps.jensen_shannon),
        lambda p: reference.f_dpo(p, B, lambda t: math.log(2 * t / (1 + t))),
    ),
    "f_alpha": Case(
        Objective(beta=B, score_map=partial(score_maps.alpha_divergence, alpha=0.3)),
        lambda p: reference.f_dpo(p, B, lambda t: (1 - t**-0.7) / 0.7),  # the paper's alpha is 1 - 0.3
    ),
    "modpo": Case(
        Objective(
            beta=B,
            scale=partial(scales.objective_share, weight=0.4),
            offset=partial(offsets.other_objectives, weight=0.4),
        ),
        lambda p: reference.modpo(p, B, 0.4),
    ),
    "tdpo1": Case(
        Objective(beta=B, score_map=partial(score_maps.token_level, coef=1.0, stop_chosen=False)),
        lambda p: reference.tdpo(p, B, 1.0, False),
    ),
    "tdpo2": Case(Objective(beta=B, score_map=score_maps.token_level), lambda p: reference.tdpo(p, B, 0.5, True)),
    "t_reg": Case(
        Objective(beta=B, regularizer=regularizers.token_rewards, regularizer_coef=0.25),
        lambda p: reference.t_reg(p, B, 0.25),
    ),
    "xpo": Case(
        Objective(beta=B, regularizer=regularizers.optimism, regularizer_coef=0.05), lambda p: reference.xpo(p, B, 0.05)
    ),
    "hypo": Case(
        Objective(beta=B, compare=compare.first_pair, regularizer=regularizers.online_kl, regularizer_coef=0.05),
        lambda p: reference.hypo(p, B, 0.05),
        3,
    ),
    "rebel": Case(
        Objective(beta=1.0, link=partial(links.square, target=0.0), offset=partial(offsets.reward_gap, eta=0.5)),
        lambda p: (p.h - 0.5 * (p.rewards[0] - p.rewards[1])) ** 2,
    ),
    "online_ipo": Case(
        Objective(beta=1.0, link=partial(links.square, target=0.0), offset=partial(offsets.reward_gap, eta=1 / 0.4)),
        lambda p: (p.h - (p.rewards[0] - p.rewards[1]) / 0.4) ** 2,
    ),
    "inpo": Case(
        Objective(beta=1.0, reference={"ref": 1 / 3, "prev": 2 / 3}, link=partial(links.square, target=1 / (2 * 0.3))),
        lambda p: reference.inpo(p, 0.1, 0.3),
    ),
    "dno": Case(
        Objective(beta=B, link=links.soft_label), lambda p: reference.logistic(B * p.h, p.extras["label_probs"])
    ),
    "spin": Case(
        Objective(beta=B, reference={"prev": 1.0}),
        lambda p: reference.logistic(B * (p.sums[0] - p.sums[1] - sum(p.prev[0]) + sum(p.prev[1]))),
    ),
    "odpo": Case(
        Objective(beta=B, offset=partial(offsets.log_reward_gap, alpha=0.7)),
        lambda p: reference.logistic(B * p.h - 0.7 * math.log(p.rewards[0] - p.rewards[1])),
    ),
    "given_margin": Case(
        Objective(beta=B, offset=offsets.given),
        lambda p: reference.logistic(B * p.h + p.extras["offsets"][0] - p.extras["offsets"][1]),
    ),
    "cpl": Case(
        Objective(
            beta=B,
            **_free,
            score_map=partial(score_maps.biased, bias=0.6),
            regularizer=regularizers.behaviour_cloning,
            regularizer_coef=0.3,
        ),
        lambda p: reference.cpl(p, B, 0.6, 0.3),
    ),
    "mm_dpo": Case(
        Objective(beta=B, scale=partial(scales.reward_adapted, weight=0.6, rate=0.8)),
        lambda p: reference.mm_dpo(p, B, 0.6, 0.8),
    ),
    "d3po": Case(
        Objective(beta=B, score_map=partial(score_maps.clipped, epsilon=0.4)), lambda p: reference.d3po(p, B, 0.4)
    ),
}
# Those whose row is compared with another row's statistic; tests/losses/preference/test_pairs.py has their sorted loss.
COUPLED = {
    "aot": (Objective(beta=B, compare=compare.sorted_pairs, link=_soft), None, 2),
    "aot_unpaired": (Objective(beta=B, compare=compare.sorted_unpaired, link=_soft), None, 2),
}
EVERY = METHODS | {name: Case(*case) for name, case in COUPLED.items()}


def make_batch(seed=0, prompts=6, responses=2, length=6, dtype=np.float32, padding=np.nan):
    """(log_probs [N, K, C], PreferenceBatch with every extra, what only the forward knows); lengths 1 .. C, both ends.

    `padding` stands behind the mask of every array of tokens.
    """
    rng = np.random.default_rng(seed)
    shape = prompts, responses, length
    lengths = rng.integers(1, length + 1, shape[:2])
    lengths[0, 0], lengths[-1, -1] = length, 1
    mask = np.arange(length) < lengths[..., None]

    def tokens(x):
        return np.where(mask, x, padding).astype(dtype)

    log_probs = rng.uniform(-3.0, -0.1, shape)
    ref, prev = (log_probs + rng.uniform(-0.8, 0.8, shape) for _ in range(2))
    rewards = np.sort(rng.uniform(0.0, 2.0, shape[:2]), axis=1)[:, ::-1]
    if responses == 1:
        rewards = (np.arange(prompts) % 2 == 0)[:, None]
    rest = np.broadcast_to(np.arange(responses) >= min(2, responses - 1), shape[:2])
    extras = {
        "anchor": rng.uniform(-1, 1, prompts),
        "partners": rng.uniform(-2, 2, shape[:2]),
        "batch_beta": np.full(prompts, 0.42),
        "kept": np.where(np.arange(prompts) == 1, 0.0, prompts / max(prompts - 1, 1)),
        "label_probs": rng.uniform(0, 1, prompts),
        "prompt_weights": rng.uniform(0.2, 2, prompts),
        "mean_tokens": np.full(prompts, lengths[:, 0].mean()),
        "offsets": rng.uniform(-1, 1, shape[:2]),
        "other_rewards": rng.uniform(-1, 1, shape[:2]),
        "response_weights": rng.uniform(0.3, 1.2, shape[:2]),
        "token_rewards": tokens(rng.uniform(-0.5, 0.5, shape)),
    }
    extras = {name: x.astype(dtype) for name, x in extras.items()}
    extras |= {"targets": rest, "sampled": rest, "from_reference": np.roll(rest, 1, axis=0)}
    ids = np.ones((prompts, responses, length + 1), np.int32)
    batch = PreferenceBatch(
        batch=TokenBatch(ids, ids, ids),
        completion_mask=mask,
        present=np.ones(shape[:2], bool),
        rewards=rewards.astype(dtype),
        ref_log_probs=tokens(ref),
        prev_log_probs=tokens(prev),
        extras=extras,
    )
    return tokens(log_probs), batch, {"sequence_kl": rng.uniform(0, 2, shape[:2]).astype(dtype)}


def _run(objective, log_probs, batch, more):
    def value(log_probs):
        rows = log_probs.reshape(-1, log_probs.shape[-1])
        mean, metrics = dpo.loss(TokenScores(rows, jnp.ones_like(rows)), batch, objective, more)
        return mean.value(), (mean, metrics)

    (_, (mean, metrics)), gradient = jax.value_and_grad(value, has_aux=True)(jnp.asarray(log_probs))
    return mean, gradient, metrics


def run(objective, log_probs, batch, more):
    """(the Mean, its value's gradient in log_probs [N, K, C], the metrics); arrays keep their dtype."""
    mean, gradient, metrics = _run(objective, log_probs, batch, more)
    return mean, np.asarray(gradient), metrics


@functools.cache
def compiled(name):
    """`run` of a method of EVERY on float32 as one program, for what calls it often; arrays are numpy's."""
    program = jax.jit(partial(_run, EVERY[name].objective))
    return lambda *arrays: jax.device_get(program(*arrays))


def run64(objective, log_probs, batch, more):
    """(value, gradient) in float64."""
    with jax.enable_x64(True):
        mean, gradient, _ = run(objective, log_probs, batch, more)
        return float(mean.value()), gradient
