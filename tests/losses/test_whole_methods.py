"""Whole methods of configs/methods, from rewards to the gradient, beside an independent implementation of each.

Ours is the method's own config, put together as its program does; theirs is a row of TABLE, made of the functions of
verl 0.9.1 or TRL 1.16.0 (tests/oracles/methods.py), or of the paper's equation where neither has the part.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from experiments.parts import actor_critic, trackers
from experiments.parts import policy as program
from experiments.tools import methods
from rl_jax import grpo, ppo
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from tests.oracles import methods as parts
from tests.oracles import papers, trl, verl
from tests.oracles.methods import BINS, GROUP, GROUPS, LENGTH, ROW_SUM, TOKEN_MEAN, Case, advantage, centred
from tests.probes import Prompts, counted

SEEDS = (0, 1, 2)
VERL, TRL = "verl 0.9.1", "TRL 1.16.0"
NEVER, LOW, HIGH, BOTH = (False, False), (True, False), (False, True), (True, True)
make_case = functools.cache(parts.make_case)

# --- The table -------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One method by one source.

    key: the file of configs/methods. source: whose functions, and the paper of what is written out.
    loss: Case -> (value, gradient [B, T]). clips: whether a lower and an upper bound take a gradient away.
    change: what of the method's config is set to the source's convention, and `why`.
    critic: Case -> (value, gradient with respect to what the critic says), where there is one.
    signed: with rewards from -1 to 1.
    """

    key: str
    source: str
    loss: Callable[[Case], tuple[float, np.ndarray]]
    clips: tuple[bool, bool] = BOTH
    change: dict[str, Any] | None = None
    why: str = ""
    critic: Callable[[Case], tuple[float, np.ndarray]] | None = None
    signed: bool = False


ROW_FIELDS = {"clips", "change", "why", "critic", "signed"}


def by_verl(key: str, of: Callable = advantage, *names, note="", weights: Callable | None = None, **settings) -> Row:
    """A Row of verl's policy loss. of, weights: Case -> [B, T], the advantages and what multiplies the tokens."""
    fields = {name: settings.pop(name) for name in ROW_FIELDS & set(settings)}

    def loss(case):
        factors = None if weights is None else weights(case)
        return parts.by_verl(case, of(case), *names, weights=factors, **settings)

    return Row(key, f"{VERL}; {note}" if note else VERL, loss, **fields)


def by_trl(key: str, of: Callable = advantage, *, note="", **settings) -> Row:
    """A Row of TRL's loss, on verl's advantages."""
    fields = {name: settings.pop(name) for name in ROW_FIELDS & set(settings)}
    return Row(key, f"{TRL}; {note}" if note else TRL, lambda c: parts.by_trl(c, of(c), **settings), **fields)


def by_ppo(key: str, of: Callable, *, clip=0.2, **settings) -> Row:
    """A Row whose policy and critic learn from of(case) -> (advantages, returns)."""

    def critic(case):
        old_values = case.values[:, :-1]
        return verl.value_loss(case.predictions, of(case)[1], old_values, case.mask, cliprange_value=clip)

    settings = {"critic": critic, "mode": TOKEN_MEAN} | settings
    return by_verl(key, lambda c: of(c)[0], **settings)


def shaped(case):
    return advantage(case, rewards=parts.punished(case))


def with_kl(name, coef, **arguments):
    """verl's estimator on rewards with a KL in them."""

    def of(case):
        rewards = parts.token_rewards(case, coef)
        named = {key: getattr(case, field) for key, field in arguments.items()}
        return verl.advantage(name, None, case.mask, group_size=GROUP, token_rewards=rewards, **named)[0]

    return of


def to_sampler(**arguments):
    return lambda case: parts.sampler_weights(case, **arguments)


K3 = {"kl": parts.K3}
FREE = {"clip_ratio_low": 1e9, "clip_ratio_high": 1e9}
REINFORCE = {"name": "reinforce", "clips": NEVER}
SHAPING = "shaping arXiv 2503.14476 eq. 13"
BEFORE = "its choice before the first update, as ours"


def bounds(low, high=None):
    return {"clip_ratio_low": low, "clip_ratio_high": low if high is None else high}


TABLE = [
    # PPO's clip of tokens.
    by_verl("grpo", **K3),
    by_trl("grpo", beta=0.04),
    by_verl("grpo_r1", kl=("low_var_kl", 0.001), **bounds(10.0), clips=HIGH),
    by_verl("dr_grpo", centred, mode="seq-mean-token-sum-norm", global_batch_info={"loss_scale_factor": LENGTH}),
    Row("apo", f"{VERL}; weights arXiv 2506.21655", papers.apo),
    by_trl("dr_grpo", centred, loss_type="dr_grpo", max_completion_length=LENGTH),
    by_verl("dapo", shaped, mode=TOKEN_MEAN, clip_ratio_high=0.28, note=SHAPING),
    by_trl("dapo", shaped, loss_type="dapo", epsilon_high=0.28, note=SHAPING),
    Row("overlong_filter", VERL, lambda c: parts.by_verl(c, advantage(c), mask=c.mask & ~c.truncated[:, None], **K3)),
    by_verl("dual_clip", clip_ratio_c=3.0, **K3),
    by_trl("two_sided_clip", delta=4.0, beta=0.001),
    by_verl("importance_sampling", **FREE, clips=NEVER),
    by_verl("lite_ppo", parts.over_batch_std, mode=TOKEN_MEAN, note="std arXiv 2508.08221"),
    by_verl("grpo_loo_std", parts.loo_std, note="advantage NeMo-RL", **K3),
    by_verl("maxrl", parts.maxrl, mode=TOKEN_MEAN, note="advantage arXiv 2602.02710"),
    by_verl(
        "bnpo",
        parts.beta_normalised,
        mode=ROW_SUM,
        clip_ratio_high=0.28,
        clip_ratio_c=10.0,
        note="advantage arXiv 2506.02864",
    ),
    by_verl("passk_best", lambda c: advantage(c, "grpo_passk"), clips=HIGH, **K3),
    by_verl("passk_training", parts.pass_at_4, note="advantage arXiv 2508.10751"),
    by_verl("gdpo", parts.by_component, **K3),
    by_verl(
        "gdpo",
        lambda c: verl.advantage("gdpo", None, c.mask, group_size=GROUP, components=c.components)[0],
        change={"advantage": {"fn": "gdpo_tokens"}},
        why="verl's second norm is over tokens, the method's over completions",
        **K3,
    ),
    by_verl("flash_reinforce", lambda c: centred(c, group_size=parts.ROWS), mode=TOKEN_MEAN),
    by_verl("reinforce_pp", with_kl("reinforce_plus_plus", 0.01), mode=TOKEN_MEAN),
    by_verl(
        "reinforce_pp_baseline",
        lambda c: advantage(c, "reinforce_plus_plus_baseline"),
        mode=TOKEN_MEAN,
        kl=("k2", 0.01),
    ),
    by_verl("rloo", with_kl("rloo", 0.05), mode=ROW_SUM),
    Row("dcpo", "arXiv 2509.02333 in torch", papers.dcpo),
    by_verl("stable_reinforce", papers.three_sigma, note="filter arXiv 2505.02835", kl=("low_var_kl", 0.001)),
    by_verl("riskpo", papers.risk, mode=TOKEN_MEAN, note="advantage arXiv 2510.00911", clips=LOW),
    by_verl("fdpg", papers.fdpg, mode=ROW_SUM, note="advantage arXiv 2302.08215", **REINFORCE),
    by_verl("grpo_lambda", lambda c: advantage(c, rewards=papers.brief(c)), note="shaping arXiv 2505.18086"),
    by_verl(
        "gtpo",
        papers.gtpo,
        note="advantage arXiv 2508.03772",
        change={"advantage.threshold": 1.0},
        why="the entropies of the batch are 0 to 2 nats: with .7 hardly a row is left",
        **REINFORCE,
    ),
    Row("disco", "arXiv 2505.12366 in torch", papers.disco, NEVER),
    # Its regularisers.
    by_trl("unbiased_kl", beta=0.04, use_bias_correction_kl=True),
    by_verl("kl_straight_through", kl=("k3+", 0.04)),
    by_trl(
        "adaptive_entropy",
        loss_type="dapo",
        entropy_coef=parts.entropy_coef(),
        note="controller arXiv 2505.22312",
    ),
    # Other ratios and other clips.
    by_trl("gspo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
    by_verl("gspo", name="gspo", **bounds(3e-4, 4e-4)),
    by_verl("gspo_token", name="gspo", **bounds(3e-4, 4e-4)),
    by_trl("luspo", loss_type="luspo", importance_sampling_level="sequence", epsilon=2e-3, epsilon_high=2.5e-3),
    Row("p3o", "arXiv 2310.00212 in torch", papers.pairs_apart),
    Row("p3o_joint", "arXiv 2310.00212 in torch", papers.pairs_jointly),
    by_trl("rloo_sequence", with_kl("rloo", 0.05), loss=trl.rloo_loss),
    by_trl("gmpo", loss=trl.gmpo_loss, epsilon=0.4),
    by_verl("gmpo", name="geo_mean", **bounds(0.4)),
    by_verl("sapo", name="sapo", clips=NEVER),
    by_trl("sapo", loss_type="sapo", clips=NEVER),
    by_trl("vespo", loss_type="vespo", clips=NEVER),
    Row(
        "cispo",
        f"{TRL}; group by group",
        lambda c: parts.by_group(parts.by_trl, c, advantage(c), loss_type="cispo", epsilon_high=5.0),
        clips=HIGH,
    ),
    Row(
        "cispo",
        f"{VERL}; group by group",
        lambda c: parts.by_group(parts.by_verl, c, advantage(c), name="cispo", mode=TOKEN_MEAN, **bounds(1.0, 4.0)),
        clips=HIGH,
    ),
    by_verl("dppo_tv", name="dppo_tv", mode=TOKEN_MEAN, clip_ratio_c=20.0, **bounds(0.15)),
    by_verl("dppo_kl", name="dppo_kl", mode=TOKEN_MEAN, clip_ratio_c=20.0, **bounds(0.05)),
    by_verl("dro", centred, name="dro", mode=ROW_SUM, dro_beta=0.1, clips=NEVER),
    by_verl("rec", centred, "reinforce", TOKEN_MEAN, weights=parts.one_sided, note="mask arXiv 2509.24203"),
    by_verl("rec_two_side", centred, "reinforce", TOKEN_MEAN, weights=papers.two_sided, note="mask arXiv 2509.24203"),
    by_verl("rec_ring", centred, "reinforce", TOKEN_MEAN, weights=papers.ring, note="mask arXiv 2509.24203"),
    by_verl("opmd", papers.over_soft_baseline, mode=TOKEN_MEAN, note="baseline arXiv 2505.17826", **REINFORCE),
    by_verl("opmd_k2", centred, name="dro", mode=TOKEN_MEAN, dro_beta=0.2, clips=NEVER),
    by_verl("asymre", lambda c: centred(c) + 0.1 * c.mask, mode=TOKEN_MEAN, note="arXiv 2506.20520", **REINFORCE),
    by_verl("red_drop", papers.balanced, mode=TOKEN_MEAN, note="drop arXiv 2509.24203", **REINFORCE),
    by_verl("red_weight", centred, "reinforce", TOKEN_MEAN, clips=NEVER, weights=lambda c: np.exp(centred(c))),
    by_verl("topr", centred, "reinforce", ROW_SUM, weights=parts.tapered, clips=HIGH, note="signs arXiv 2503.14286"),
    Row("truncated_is", VERL, lambda c: parts.importance_weighted(c, 1.0, c.old_log_probs), HIGH),
    Row("aipo", VERL, lambda c: parts.importance_weighted(c, 2.0, c.behavior_log_probs, centred(c), ROW_SUM), HIGH),
    # REINFORCE.
    by_verl("reinforce", lambda c: parts.on_tokens(c, np.float64(c.rewards)), mode=ROW_SUM, signed=True, **REINFORCE),
    by_verl("reinforce_ema", parts.over_baseline, mode=ROW_SUM, note="baseline Williams, 1992", **REINFORCE),
    by_verl("remax", with_kl("remax", 0.05, reward_baselines="greedy_rewards"), mode=TOKEN_MEAN, **REINFORCE),
    by_verl("gpg", lambda c: advantage(c, "gpg"), "gpg", TOKEN_MEAN, clips=NEVER),
    by_verl("opo", lambda c: advantage(c, "opo"), mode=ROW_SUM, **REINFORCE),
    # Weights of tokens and of completions.
    by_verl("tis", weights=to_sampler(threshold=2.0), **K3),
    by_verl("mis", weights=to_sampler(threshold="1e-9_2.0"), **K3),
    by_verl("icepop", weights=to_sampler(threshold="0.5_5.0"), **K3),
    by_verl("sequence_mask", weights=to_sampler(level="sequence", threshold="1e-9_3.0"), **K3),
    by_verl("geometric_mask", weights=parts.within_band, **K3),
    by_verl("decoupled_ppo", mode=TOKEN_MEAN, weights=to_sampler(threshold=1e9)),
    Row("m2po", f"{VERL}; mask arXiv 2510.01161", parts.m2po),
    Row("opsm", TRL, parts.opsm),
    by_trl("high_entropy", shaped, loss_type="dapo", epsilon_high=0.28, top_entropy_quantile=0.2, note=SHAPING),
    Row(
        "clip_cov",
        f"{VERL}; {BEFORE}",
        parts.clip_cov,
        change={"token_weight.share": 1.0},
        why="each draws some of the eligible tokens at random: both take all of them",
    ),
    Row(
        "clip_cov",
        f"{VERL}; {BEFORE}",
        lambda c: parts.clip_cov(c, upper=2.0),
        change={"token_weight.share": 1.0, "token_weight.high": 2.0},
        why="as above, and few covariances of a batch so small reach 5",
    ),
    Row("kl_cov", f"{VERL}; {BEFORE}", lambda c: parts.kl_cov(c, 2e-4), NEVER),
    Row(
        "kl_cov",
        f"{VERL}; {BEFORE}",
        lambda c: parts.kl_cov(c, 0.1),
        NEVER,
        change={"token_selection.share": 0.1},
        why="2e-4 of a batch so small is one token",
    ),
    # With a critic.
    by_ppo("ppo", parts.estimate),
    by_ppo("ppo_adaptive_kl", lambda c: parts.estimate(c, coef=parts.kl_controlled(c))),
    by_ppo(
        "ppo_max",
        lambda c: parts.estimate(c, rewards=parts.scaled_rewards(c), coef=0.02),
        note="scale arXiv 2307.04964",
    ),
    by_ppo("ppo_hl_gauss", parts.estimate, critic=parts.hl_gauss, note="critic in torch, arXiv 2403.03950 section 3.1"),
    by_ppo(
        "vapo",
        parts.length_adaptive,
        clip_ratio_high=0.28,
        note="lambda arXiv 2504.05118",
        change={"critic.advantage.alpha": 0.5},
        why="with .05, all rows below 20 tokens have lambda 0",
    ),
    by_ppo("ma_rlhf", papers.macro_estimate, note="macros arXiv 2410.02743"),
    Row(
        "dapo_direct",
        "arXiv 2412.18279 in torch",
        papers.direct_advantage,
        NEVER,
        change={"token_selection.separators": (3,), "critic.advantage.separators": (3,)},
        why="the batch's tokens are 0 to 5",
        critic=lambda c: verl.value_loss(
            c.predictions, papers.step_estimate(c)[1], c.values[:, :-1], c.mask, cliprange_value=0.2
        ),
    ),
    by_ppo("vtrace", parts.corrected, clip=1e9, note="V-trace of rlax, arXiv 1802.01561", **REINFORCE),
]
each_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.key}-{row.source.partition(' ')[0]}")

# --- Ours ------------------------------------------------------------------------------------------------------------


def config_of(row: Row):
    """The method's config, with the row's changes, which are of config.algorithm unless they say critic."""
    config = methods.load(row.key)
    assert config.rollout.completion_length == LENGTH and config.sample.group_size == GROUP
    for path, value in (row.change or {}).items():
        *folders, name = path.split(".")
        place = config if folders[:1] == ["critic"] else config.algorithm
        for folder in folders:
            place = place[folder]
        place[name] = value
    return config


def cases_of(row: Row) -> list[Case]:
    cases = [make_case(seed) for seed in SEEDS]
    return [case._replace(rewards=2 * case.rewards - 1) for case in cases] if row.signed else cases


def stacked(trees: list):
    return jax.tree.map(lambda *x: np.stack(x), *trees)


def assigned(config, cases: list[Case]):
    """(PolicyBatch, PPOBatch or None) of the cases, after the steps of their history, as the loops of experiments do.

    Side by side, the cases first: op by op, three cases cost as much as one.
    """
    made, named = trackers.make_trackers(config, Prompts(GROUPS)), {"prompt_ids": np.repeat(np.arange(GROUPS), GROUP)}

    def states_of(case):
        states = trackers.init(made)
        for rewards, measured in case.history:
            states = trackers.observe(made, trackers.see_rewards(made, states, rewards), rewards, measured, named)
        return jax.device_get(trackers.see_rewards(made, states, case.rewards))

    def one(states, case):
        rollout = Rollout(
            TokenBatch(case.tokens, case.tokens, case.tokens),
            case.mask,
            case.behavior_log_probs,
            case.behavior_log_probs,
            ~case.truncated,
            case.truncated,
        )
        available = {"ref_log_probs": case.ref_log_probs, "log_probs": case.old_log_probs, "entropy": case.entropy}
        available |= trackers.known(config, states, named) | {"group_size": GROUP, "key": jax.random.key(0)}
        chosen = program.make_credit(config)
        if "critic" in config:
            estimator = actor_critic.make_estimator(config)
            critic, _ = ppo.assign(chosen, estimator, rollout, case.rewards, case.values, **available)
            batch = critic.policy
        else:
            extras = {"greedy_rewards": case.greedy_rewards, "components": case.components}
            critic, batch = None, rule.assign(chosen, rollout, case.rewards, **available, **extras)
        batch = trackers.weigh(batch._replace(old_log_probs=case.old_log_probs), states)
        return counted(batch, parts.ROWS), critic

    states = stacked([states_of(case) for case in cases])
    return jax.vmap(one)(states, stacked([case._replace(history=()) for case in cases]))


def close(found, expected, seed):
    (value, gradient), (expected, expected_gradient) = found, expected
    np.testing.assert_allclose(value, expected, rtol=1e-4, err_msg=f"seed {seed}")
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7, err_msg=f"seed {seed}")


@each_row
def test_the_whole_method_is_theirs(row):
    config, cases = config_of(row), cases_of(row)
    batches, _ = assigned(config, cases)
    objective = program.make_objective(config)

    def loss(log_probs, entropy, batch):
        mean, metrics = grpo.loss(TokenScores(log_probs, entropy), batch, objective)
        return mean.value(), [metrics[name].value() for name in ("clip/low", "clip/high")]

    given = stacked([(case.log_probs, case.entropy) for case in cases])
    found = jax.vmap(jax.value_and_grad(loss, has_aux=True))(*given, batches)
    found, batches = jax.tree.map(np.asarray, (found, batches))
    for i, (seed, case) in enumerate(zip(SEEDS, cases, strict=True)):
        ((value, clipped), gradient), batch = jax.tree.map(lambda x, i=i: x[i], (found, batches))
        close((value, gradient), row.loss(case), seed)
        # What the comparison has gone through.
        assert tuple(share > 0 for share in clipped) == row.clips, seed
        advantages, weights = batch.advantages, batch.token_weights[case.mask]
        assert (advantages.max() > 0) == (row.key != "riskpo") and (advantages.min() < 0) == (row.key != "passk_best")
        weighted = config.algorithm.behavior_weight.fn != "none" or config.algorithm.token_weight.fn != "none"
        assert (np.ptp(weights[weights > 0]) > 0 or weights.min() == 0) == (weighted or config.algorithm.mask_truncated)


@pytest.mark.parametrize("row", [row for row in TABLE if row.critic], ids=lambda row: row.key)
def test_the_critic_is_theirs(row):
    config, cases = config_of(row), cases_of(row)
    _, batches = assigned(config, cases)
    objective = actor_critic.make_objective(config)
    outputs = [case.predictions[..., None] if objective.support is None else case.logits for case in cases]

    def loss(outputs, batch):
        return ppo.value_loss(outputs, batch, objective)[0].value()

    values, gradients = jax.vmap(jax.value_and_grad(loss))(np.stack(outputs), batches)
    for i, (seed, case) in enumerate(zip(SEEDS, cases, strict=True)):
        expected = row.critic(case)
        close((values[i], gradients[i]), (expected[0], expected[1].reshape(gradients[i].shape)), seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_batches_reach_every_bound(seed):
    """Of the methods' configs, on tokens whose advantage would be clipped or not there."""
    case = make_case(seed)
    groups = case.rewards.reshape(-1, GROUP)
    sign = np.repeat(np.sign(groups - groups.mean(axis=1, keepdims=True)).reshape(-1, 1), LENGTH, axis=1)
    up, down = (case.mask & (sign == s) for s in (1, -1))
    ratio = np.exp(case.log_probs - case.old_log_probs)
    assert np.all((case.log_probs < 0) & (case.old_log_probs < 0))
    assert [np.any(ratio[up] > x) for x in (1.28, 5, 11)] == [True] * 3 and np.any(ratio[up] < 0.8)
    assert [np.any(ratio[down] > x) for x in (3, 4, 10, 20)] == [True] * 4 and np.any(ratio[down] < 0.8)
    gap = case.old_log_probs - case.behavior_log_probs
    for side in (up, down):
        for low, high in ((0, 0.5), (0.5, 2), (2, 5), (5, np.inf)):
            assert np.any((np.exp(gap[side]) > low) & (np.exp(gap[side]) < high))
    moved, gaps = ((np.log(x) * case.mask).sum(axis=1) / case.mask.sum(axis=1) for x in (ratio, np.exp(gap)))
    totals, up, down = gaps * case.mask.sum(axis=1), up.any(axis=1), down.any(axis=1)
    near_bounds = {
        **{4e-4: np.expm1(moved[up]), 2.5e-3: np.expm1(moved[up])},  # of gspo and luspo
        **{-3e-4: np.expm1(moved[down]), -2e-3: np.expm1(moved[down])},
        **{0.5: np.exp(gaps[up]), 5.0: np.exp(gaps[up]), -1e-4: (gaps + moved)[down], 3.0: np.exp(totals[up])},
    }
    for bound, rows in near_bounds.items():
        near = rows[np.abs(rows / bound - 1) < 0.04]
        assert np.any(near > bound) and np.any(near < bound), bound
    assert case.truncated.any() and not case.truncated.all()


def test_the_bins_are_those_of_the_config():
    assert methods.load("ppo_hl_gauss").critic.support.to_dict() == BINS


def test_every_method_is_compared():
    """At least 25 of them with nothing but verl's or TRL's functions; each change of a config has its reason."""
    compared = {row.key for row in TABLE}
    assert compared == set(methods.keys())
    assert len({row.key for row in TABLE if row.source in (VERL, TRL)}) >= 25
    assert all(bool(row.change) == bool(row.why) for row in TABLE)
