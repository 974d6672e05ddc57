"""configs/presets: frozen to the letter; the numbers that are known of the frameworks; their own functions beside ours.

The published numbers are those of shared/atlas/conventions.md, section 5.
"""

import copy
import functools
import importlib
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from experiments.parts import policy as program
from rl_jax import grpo
from rl_jax.core.masked import Mean
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.testing.batches import ragged_batch
from tests.losses import test_kl
from tests.oracles import trl, verl
from tests.paths import REPO_ROOT

FOLDER = REPO_ROOT / "configs" / "presets"
KEYS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
every_preset = pytest.mark.parametrize("key", KEYS)

# --- Frozen ----------------------------------------------------------------------------------------------------------

# What every preset has, unless FROZEN says otherwise. A framework's later version is a new file, not a new value here.
SHARED = {
    "shape": "unchanged()",
    "reward_kl": "k1()",
    "behavior_weight": "none()",
    "token_weight": "none()",
    "selection": "None",
    "entropy_weight": "None",
    "mask_truncated": "False",
    "kl_coef": "0.0",
    "entropy_coef": "0.0",
    "entropy_aggregate": "None",
    "reward_kl_coef": "0.0",
    "epochs": "1",
    "dynamic_sampling": "max_batches: 1",
    "max_grad_norm": "1.0",
    "trackers": "",
    "sampling": "1.0 0 1.0",
}
K3_CLAMPED = "k3_clamped(max_difference=20.0, max_value=10.0)"
OVERLONG = "overlong(max_length=12, buffer=2, penalty=1.0)"


def group_relative(eps: str) -> str:
    return f"group_relative(ddof=1, eps={eps}, relative_tolerance=1e-06)"


def clip(high="0.2", guard="inf") -> str:
    return f"clipped_surrogate(clip_low=0.2, clip_high={high}, max_log_ratio={guard})"


def dual(high="0.2", bound="3.0") -> str:
    return f"dual_clip(clip_low=0.2, clip_high={high}, dual_clip={bound}, max_log_ratio=20.0)"


def frozen(advantage, surrogate, aggregate, kl, updates, **more) -> dict[str, str]:
    choices = {"advantage": advantage, "surrogate": surrogate, "aggregate": aggregate, "kl": kl}
    return SHARED | choices | {"minibatches": str(updates)} | more


NEMO = "nemo_leave_one_out(eps=1e-06, relative_tolerance=1e-06)"
TOKENS, ROWS = "token_mean()", "seq_mean_token_mean(count_empty_rows=False)"
OF_TRL = {"entropy_aggregate": "token_mean()"}  # whatever the loss's own is
FROZEN = {
    "cispo_trl_1_16": frozen(
        *(group_relative("0.0001"), "cispo(ratio_min=0.0, ratio_max=0.2)", TOKENS, "ratio_k3()", 1), **OF_TRL
    ),
    "cispo_verl_0_9_1": frozen(group_relative("1e-06"), "cispo(ratio_min=0.8, ratio_max=1.2)", TOKENS, K3_CLAMPED, 4),
    "dapo_paper": frozen(
        *(group_relative("1e-06"), clip("0.28"), "group_token_mean()", "k3()", 16),
        shape=OVERLONG,
        dynamic_sampling="max_batches: 10",
    ),
    "dapo_verl_recipe": frozen(
        *(group_relative("1e-06"), dual("0.28", "10.0"), TOKENS, K3_CLAMPED, 16),
        shape=OVERLONG,
        dynamic_sampling="max_batches: 10",
    ),
    "drgrpo_oat": frozen(
        *("group_centered()", clip(), "seq_mean_token_sum_norm(max_length=12, count_empty_rows=False)", "k3()", 8)
    ),
    "grpo_ms_swift_4_6": frozen(
        group_relative("0.0001"), clip(), ROWS, K3_CLAMPED, 1, kl_coef="0.04", sampling="0.9 0 1.0"
    ),
    "grpo_nemo_rl_0_6": frozen(NEMO, clip(), TOKENS, K3_CLAMPED, 1, kl_coef="0.01"),
    "grpo_nemo_rl_0_7": frozen(NEMO, clip(), TOKENS, f"on_policy_{K3_CLAMPED}", 1, kl_coef="0.01"),
    "grpo_open_instruct_0_3": frozen(
        *("group_centered()", clip("0.272"), TOKENS, "k3_clamped(max_difference=40.0, max_value=1e+18)", 1),
        behavior_weight="truncated(level='token', cap=2.0, normalize=False, max_log=10.0)",
        kl_coef="0.05",
        dynamic_sampling="max_batches: 4",
        sampling="0.7 0 1.0",
    ),
    "grpo_openrlhf_0_11": frozen(group_relative("1e-09"), clip(guard="20.0"), TOKENS, K3_CLAMPED, 8, kl_coef="0.01"),
    "grpo_slime_0_3": frozen(group_relative("1e-06"), clip(), ROWS, "k1()", 1),
    "grpo_trl_0_15": frozen(
        *(group_relative("0.0001"), "importance_sampling()", "seq_mean_token_mean(count_empty_rows=True)", "k3()", 1),
        kl_coef="0.04",
        **OF_TRL,
    ),
    "grpo_trl_0_16": frozen(
        *(group_relative("0.0001"), clip(), TOKENS, "k3()", 1), kl_coef="0.04", sampling="0.9 0 1.0", **OF_TRL
    ),
    "grpo_trl_1_16": frozen(group_relative("0.0001"), clip(), TOKENS, "ratio_k3()", 1, **OF_TRL),
    "grpo_tunix_0_1": frozen(group_relative("1e-06"), clip(guard="20.0"), ROWS, "k1()", 1, kl_coef="0.04"),
    "grpo_verl_0_9_1": frozen(group_relative("1e-06"), dual(), TOKENS, K3_CLAMPED, 4),
}
# Fields of config.algorithm, config.train and config.sample that are the task's.
OF_THE_TASK = {"steps", "prompts_per_step", "group_size", "micro_batches", "optimizer", "max_nonfinite_in_a_row"}
OF_THE_TASK |= {"measure_kl", "prompts", "memory", "references", "reference_soup", "reference_schedule"}
OF_THE_TASK |= {"row_selection", "ptx", "mirror_step", "action_mask", "perception"}
FIELDS = {"shape": "shaping", "selection": "token_selection"}  # a slot whose field has another name
PINNED = {FIELDS.get(slot, slot) for slot in FROZEN["dapo_paper"]} - {"sampling"}


def load(key: str, arg: str | None = None):
    return importlib.import_module(f"configs.presets.{key}").get_config(arg)


def written(value) -> str:
    """A function as name(keyword=value, ...), the defaults of its signature included; anything else as it is."""
    if not callable(value):
        return repr(value)
    parameters = inspect.signature(value).parameters.values()
    settings = [f"{p.name}={p.default!r}" for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    named = value.func if isinstance(value, functools.partial) else value
    return f"{named.__name__}({', '.join(settings)})"


def resolved(config) -> dict[str, str]:
    """Every choice that makes a preset, down to the defaults of the functions."""
    algorithm, train, rollout = config.algorithm, config.train, config.rollout
    chosen = program.make_credit(config)._asdict() | program.make_objective(config)._asdict()
    found = {slot: written(value) for slot, value in chosen.items()}
    found["reward_kl_coef"] = repr(algorithm.reward_kl_coef)
    found |= {name: repr(train[name]) for name in ("epochs", "minibatches", "max_grad_norm")}
    found["dynamic_sampling"] = ", ".join(f"{name}: {value}" for name, value in config.sample.dynamic_sampling.items())
    found["trackers"] = ", ".join(f"{place}: {spec.fn}" for place, spec in algorithm.trackers.items() if spec.fn)
    return found | {"sampling": f"{rollout.temperature} {rollout.top_k} {rollout.top_p}"}


def test_every_preset_is_frozen():
    assert KEYS == sorted(FROZEN)


@every_preset
def test_a_preset_is_what_it_was(key):
    assert resolved(load(key)) == FROZEN[key]


@every_preset
def test_a_field_is_the_presets_or_the_tasks(key):
    """A field that these groups get later is pinned here too, or left to the task, on purpose."""
    config = load(key)
    assert {*config.algorithm, *config.train, *config.sample} == PINNED | OF_THE_TASK


@every_preset
def test_a_preset_inherits_no_choice(key, monkeypatch):
    before, base = load(key), common.base

    def moved(name):
        config = base(name)
        config.rollout.update(temperature=0.5, top_k=3, top_p=0.5)
        config.train.update(epochs=2, minibatches=2, max_grad_norm=9.0)
        config.algorithm.update(mask_truncated=True)
        config.algorithm.update(kl_coef=9.0, entropy_coef=9.0, reward_kl_coef=9.0)
        for slot in ("shaping", "advantage", "surrogate", "kl", "reward_kl", "aggregate", "token_weight"):
            config.algorithm[slot] = dict(fn="another", keyword=1.0)
        config.algorithm.token_selection = dict(fn="another", keyword=1.0)
        config.algorithm.entropy_weight = dict(fn="another", keyword=1.0)
        config.algorithm.entropy_aggregate = dict(fn="another", keyword=1.0)
        config.algorithm.behavior_weight = dict(fn="another", level="row")
        config.sample.dynamic_sampling = dict(max_batches=7)
        config.algorithm.trackers.baseline = dict(fn="another")
        return config

    monkeypatch.setattr(common, "base", moved)
    assert resolved(load(key)) == resolved(before)


@every_preset
@pytest.mark.parametrize("arg", ["smoke", "game24", "stories_sentiment,smoke"])
def test_a_preset_starts_from_any_task(key, arg):
    config, alone = load(key, arg), load(key)
    named = arg.split(",")[0].replace("smoke", "arithmetic")
    assert config.name == f"{key}_{named}" + "_smoke" * ("smoke" in arg) and config.task.name in (named, "stories")
    length = config.rollout.completion_length
    differ = {slot for slot, value in resolved(config).items() if value != resolved(alone)[slot]}
    assert differ <= {"shape", "aggregate"}  # the limit of the generation
    if key.startswith("dapo"):
        assert config.algorithm.shaping.buffer == round(0.2 * length)
    rows = config.sample.prompts_per_step * config.sample.group_size
    assert rows % (config.train.minibatches * config.train.micro_batches) == 0


@every_preset
def test_the_learning_rate_falls_over_the_whole_run(key):
    settings = load(key).train
    updates = settings.epochs * settings.minibatches * settings.steps
    assert settings.optimizer.warmup_steps + settings.optimizer.decay_steps == updates


@every_preset
def test_the_docstring_says_each_convention(key):
    text = importlib.import_module(f"configs.presets.{key}").__doc__
    said = " ".join(text.split())
    for part in (" A_i = ", " loss = ", "KL", " a batch", " Departs from GRPO: "):
        assert part in said, part
    assert re.search(r"\b[Cc]lip\b|\bbound\b", said)
    assert "Sampler: " in said or key == "dapo_paper"  # a paper has no sampler of its own
    assert text.rstrip().endswith(f"\n    python -m experiments.grpo --config=configs/presets/{key}.py")


# --- Published numbers -----------------------------------------------------------------------------------------------


def assigned(config, rewards, mask, *, group_size, log_probs=None, ref_log_probs=None, behavior_log_probs=None):
    """The PolicyBatch of these rewards [B] and mask [B, T] under a preset; log-probs of 0 where none are given."""
    zeros = jnp.zeros(mask.shape)
    log_probs, ref, behavior = (zeros if x is None else x for x in (log_probs, ref_log_probs, behavior_log_probs))
    blank = jnp.zeros(mask.shape, jnp.int32)
    never = jnp.zeros(len(rewards), bool)
    rollout = Rollout(TokenBatch(blank, blank, blank), jnp.asarray(mask), behavior, behavior, ~never, never)
    arrays = {"ref_log_probs": ref, "log_probs": log_probs, "reward_kl_coef": config.algorithm.reward_kl_coef}
    rewards, key = jnp.asarray(rewards, jnp.float32), jax.random.key(0)
    return rule.assign(program.make_credit(config), rollout, rewards, group_size=group_size, key=key, **arrays)


def value_and_gradient(config, batch, log_probs):
    """(loss, its gradient [B, T]) of a preset on a PolicyBatch."""
    objective = program.make_objective(config)

    def loss(log_probs):
        return grpo.loss(TokenScores(log_probs, jnp.zeros_like(log_probs)), batch, objective)[0].value()

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(log_probs))
    return float(value), np.asarray(gradient)


SQRT_3 = 3**-0.5
LIKE_VERL = {"1000": (1.5, -0.5, -0.5, -0.5)}
LIKE_TRL = {"1000": (1.4997, -0.4999, -0.4999, -0.4999)}
CENTRED = {"1000": (0.75, -0.25, -0.25, -0.25)}
LIKE_NEMO = {
    "1000": (1.0, -0.5773, -0.5773, -0.5773),
    "1110": (0.577, 0.577, 0.577, -1.0),
    "10000000": (1.0, *[-0.378] * 7),
    "1100": (1.155, 1.155, -1.155, -1.155),
}
ADVANTAGES = {
    "grpo_verl_0_9_1": LIKE_VERL,
    "grpo_openrlhf_0_11": LIKE_VERL,
    "grpo_slime_0_3": LIKE_VERL,
    "grpo_tunix_0_1": LIKE_VERL,
    "dapo_verl_recipe": LIKE_VERL,
    "grpo_trl_1_16": LIKE_TRL,
    "grpo_trl_0_16": LIKE_TRL,
    "grpo_trl_0_15": LIKE_TRL,
    "grpo_ms_swift_4_6": LIKE_TRL,
    "drgrpo_oat": CENTRED,
    "grpo_open_instruct_0_3": CENTRED,
    "grpo_nemo_rl_0_6": LIKE_NEMO,
    "grpo_nemo_rl_0_7": LIKE_NEMO,
}


@pytest.mark.parametrize("key", ADVANTAGES)
def test_advantages_of_one_group(key):
    """Table 5.1."""
    for rewards, expected in ADVANTAGES[key].items():
        batch = assigned(
            load(key), [float(r) for r in rewards], np.ones((len(rewards), 1), bool), group_size=len(rewards)
        )
        np.testing.assert_allclose(batch.advantages[:, 0], expected, rtol=0, atol=1e-3 if len(expected) > 4 else 5e-4)


# Prompt A: one right answer of 400 tokens, three wrong ones of 100. Prompt B: four wrong ones of 100.
LENGTHS = np.array([400, 100, 100, 100, 100, 100, 100, 100])
# (a right token, a wrong token of prompt A) by hand: A_i over the tokens, or over its row's and the 8 rows.
TOKEN_WEIGHTS = {
    **dict.fromkeys(["grpo_trl_1_16", "grpo_trl_0_16"], (1.4997 / 1100, 0.4999 / 1100)),
    **dict.fromkeys(["grpo_verl_0_9_1", "grpo_openrlhf_0_11", "dapo_verl_recipe"], (1.5 / 1100, 0.5 / 1100)),
    **dict.fromkeys(["grpo_slime_0_3", "grpo_tunix_0_1"], (1.5 / 3200, 0.5 / 800)),
    **dict.fromkeys(["grpo_ms_swift_4_6", "grpo_trl_0_15"], (1.4997 / 3200, 0.4999 / 800)),
    **dict.fromkeys(["grpo_nemo_rl_0_6", "grpo_nemo_rl_0_7"], (1.0 / 1100, SQRT_3 / 1100)),
    "grpo_open_instruct_0_3": (0.75 / 700, 0.25 / 700),
    "drgrpo_oat": (0.75 / 8000, 0.25 / 8000),
    "dapo_paper": (1.5 / 1400, 0.5 / 1400),
}
# The same to the digits of table 5.2.
PUBLISHED = {
    **dict.fromkeys(["grpo_trl_1_16", "grpo_verl_0_9_1"], (1.36e-3, 4.5e-4)),
    **dict.fromkeys(["grpo_slime_0_3", "grpo_ms_swift_4_6", "grpo_trl_0_15"], (4.7e-4, 6.25e-4)),
    "grpo_nemo_rl_0_6": (9.1e-4, 5.2e-4),
    "grpo_open_instruct_0_3": (1.07e-3, 3.6e-4),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", TOKEN_WEIGHTS)
def test_weight_of_a_token_in_the_policy_gradient(key):
    """Table 5.2, at ratio 1 and without the KL term."""
    config = load(key)
    config.algorithm.kl_coef = 0.0
    config.rollout.completion_length = 1000
    # open-instruct never sees prompt B: its rewards are all the same.
    rows = slice(0, 4 if key == "grpo_open_instruct_0_3" else 8)
    mask = (np.arange(400) < LENGTHS[:, None])[rows]
    batch = assigned(config, np.eye(8)[0][rows], mask, group_size=4)
    _, gradient = value_and_gradient(config, batch, np.zeros(mask.shape, np.float32))
    right, wrong = TOKEN_WEIGHTS[key]
    np.testing.assert_allclose(gradient[0], -right, rtol=1e-4)
    np.testing.assert_allclose(gradient[1:4, :100], wrong, rtol=1e-4)
    np.testing.assert_array_equal(gradient[4:], 0)
    if key in PUBLISHED:
        np.testing.assert_allclose((right, wrong), PUBLISHED[key], rtol=1.2e-2)


@pytest.mark.parametrize(
    ("key", "at"),
    [
        ("cispo_trl_1_16", {1.0: 0.2, 3.0: 0.2, 0.1: 0.1}),
        ("cispo_verl_0_9_1", {1.0: 1.0, 3.0: 1.2, 0.1: 0.8, 1.1: 1.1}),
    ],
)
def test_weight_of_cispo(key, at):
    """Table 5.5: on-policy a token weighs .2 in TRL and 1 in verl. at: ratio -> weight."""
    config, everything = load(key), np.ones((4, 1), bool)
    batch = assigned(config, [1.0, 0.0, 0.0, 0.0], everything, group_size=4)
    for ratio, weight in at.items():
        log_probs = np.full((4, 1), np.log(ratio), np.float32)
        _, gradient = value_and_gradient(config, batch._replace(old_log_probs=jnp.zeros((4, 1))), log_probs)
        np.testing.assert_allclose(gradient, -weight * batch.advantages / 4, rtol=1e-5)


# Table 5.3: (cosine, ratio of norms) of the expected gradient with that of the reverse KL; None: it is 0.
KL_GRADIENTS = {
    **dict.fromkeys(["grpo_trl_1_16", "cispo_trl_1_16"], (1.000, 1.000)),
    **dict.fromkeys(["grpo_trl_0_15", "grpo_trl_0_16", "grpo_open_instruct_0_3"], (0.723, 1.108)),
    **dict.fromkeys(["grpo_verl_0_9_1", "cispo_verl_0_9_1", "dapo_verl_recipe"], (0.946, 0.482)),
    **dict.fromkeys(["grpo_nemo_rl_0_6", "grpo_openrlhf_0_11", "grpo_ms_swift_4_6"], (0.946, 0.482)),
    "grpo_nemo_rl_0_7": (0.990, 0.951),
    **dict.fromkeys(["grpo_tunix_0_1", "grpo_slime_0_3"], (None, 0.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", KL_GRADIENTS)
def test_gradient_of_the_kl(key):
    """Table 5.3, through the recipe: eight rows of one token, one an outcome, weighed by its probability."""
    with jax.enable_x64(True):
        config = load(key)
        config.algorithm.kl_coef = 1.0
        everything, probabilities = np.ones((8, 1), bool), jax.nn.softmax(test_kl.LOGITS)
        reference = jax.nn.log_softmax(test_kl.REF_LOGITS)[:, None]
        batch = assigned(config, np.zeros(8), everything, group_size=8, ref_log_probs=reference)
        batch = batch._replace(advantages=jnp.zeros((8, 1)))
        objective = program.make_objective(config)._replace(
            aggregate=lambda per_token, mask: Mean(jnp.sum(probabilities * per_token[:, 0]), jnp.ones(()))
        )

        def expected(logits):
            log_probs = jax.nn.log_softmax(logits)[:, None]
            return grpo.loss(TokenScores(log_probs, log_probs), batch, objective)[0].value()

        gradient = np.asarray(jax.grad(expected)(jnp.asarray(test_kl.LOGITS)))
        exact = np.asarray(test_kl._divergence(test_kl.LOGITS, test_kl.REF_LOGITS, differentiate=0)[1])
    cosine, norm = KL_GRADIENTS[key]
    np.testing.assert_allclose(np.linalg.norm(gradient) / np.linalg.norm(exact), norm, atol=6e-4)
    if cosine is not None:
        np.testing.assert_allclose(test_kl._compared(gradient, exact)[0], cosine, atol=6e-4)


# --- The frameworks' own functions -----------------------------------------------------------------------------------

GROUP = 4


class Case:
    """A ragged batch of 8 rows and 6 tokens, off-policy, with rewards and a sampler of its own."""

    def __init__(self, seed):
        self.batch = ragged_batch(seed, rows=8, length=6)
        rng = np.random.default_rng(seed)
        self.rewards = rng.normal(size=8).astype(np.float32)
        self.behavior_log_probs = (self.batch.old_log_probs + rng.uniform(-1, 1, (8, 6))).astype(np.float32)
        # Ratios beyond the dual clip, for both signs of the advantage.
        self.batch.log_probs[[0, 4, 5, 6], 0] = self.batch.old_log_probs[[0, 4, 5, 6], 0] + np.float32(2.6)

    def ours(self, config):
        batch = self.batch
        made = assigned(
            *(config, self.rewards, batch.mask),
            group_size=GROUP,
            log_probs=batch.old_log_probs,
            ref_log_probs=batch.ref_log_probs,
            behavior_log_probs=self.behavior_log_probs,
        )
        return value_and_gradient(config, made._replace(old_log_probs=batch.old_log_probs), batch.log_probs)

    def group(self, rows):
        """The case of some of its rows."""
        part = copy.copy(self)
        part.batch, part.rewards = type(self.batch)(*(x[rows] for x in self.batch)), self.rewards[rows]
        return part


def by_trl(case, **settings):
    """TRL's loss, on the advantages that TRL makes of the rewards."""
    groups = case.rewards.astype(np.float64).reshape(-1, GROUP)
    advantages = groups - groups.mean(axis=1, keepdims=True)
    advantages /= groups.std(axis=1, ddof=1, keepdims=True) + 1e-4
    arrays = (case.batch.log_probs, case.batch.old_log_probs, advantages.reshape(-1), case.batch.mask)
    return trl.grpo_loss(*arrays, ref_log_probs=case.batch.ref_log_probs, **settings)


def by_verl(
    case, *, name="vanilla", mode="token-mean", kl=("k1", 0.0), shaped=None, advantages=None, weight=None, **settings
):
    """verl's loss: estimator, policy loss and KL penalty, each by its own function; settings of all three."""
    batch, estimator = case.batch, {k: settings.pop(k) for k in ("epsilon", "norm_adv_by_std_in_grpo") if k in settings}
    rewards = case.rewards if shaped is None else shaped
    if advantages is None:
        advantages, _ = verl.advantage("grpo", rewards, batch.mask, group_size=GROUP, **estimator)
    arrays = (batch.log_probs, batch.old_log_probs, advantages, batch.mask)
    value, gradient = verl.policy_loss(name, *arrays, loss_agg_mode=mode, rollout_is_weights=weight, **settings)
    penalty, slope = verl.kl_penalty(batch.log_probs, batch.ref_log_probs, kl[0])
    penalty, coefficients = verl.aggregate(penalty, batch.mask, mode)
    return value + kl[1] * penalty, gradient + kl[1] * coefficients * slope


NO_DUAL = {"clip_ratio_c": 1e9}  # verl has no switch for it
LOW_VAR = "low_var_kl"


def nemo_advantages(case):
    """The formula of NeMo-RL's calculate_baseline_and_std_per_prompt, on the tokens."""
    rows = []
    for group in case.rewards.astype(np.float64).reshape(-1, GROUP):
        for i, reward in enumerate(group):
            others = np.delete(group, i)
            rows.append((reward - others.mean()) / (others.std(ddof=1) + 1e-6))
    return np.array(rows)


def punished(case):
    """DAPO's soft punishment by hand: a limit of 6 tokens, of which the last 2 are the buffer."""
    return case.rewards + np.minimum(-(case.batch.mask.sum(axis=1) - 4) / 2, 0)


def dapo_paper(case):
    """verl's token mean of each group, and the mean of the two."""
    parts = [
        by_verl(case.group(rows), shaped=punished(case)[rows], clip_ratio_high=0.28, **NO_DUAL)
        for rows in (slice(0, 4), slice(4, 8))
    ]
    return np.mean([value for value, _ in parts]), np.concatenate([gradient for _, gradient in parts]) / 2


def nemo_0_7(case):
    """0.6, and in the gradient the KL itself once more: the derivative of its weight."""
    value, gradient = THEIRS["grpo_nemo_rl_0_6"](case)
    penalty, _ = verl.kl_penalty(case.batch.log_probs, case.batch.ref_log_probs, LOW_VAR)
    return value, gradient + 0.01 * penalty / case.batch.mask.sum()


def truncated_weight(case):
    return verl.rollout_weights(case.batch.old_log_probs, case.behavior_log_probs, case.batch.mask, threshold=2.0)


THEIRS = {
    "grpo_trl_1_16": by_trl,
    "grpo_trl_1_16 kl_coef=0.04": functools.partial(by_trl, beta=0.04),
    "grpo_trl_0_16": functools.partial(by_trl, loss_type="bnpo", beta=0.04, use_bias_correction_kl=False),
    "grpo_trl_0_15": functools.partial(
        by_trl, loss_type="grpo", beta=0.04, use_bias_correction_kl=False, epsilon=1e9, epsilon_high=1e9
    ),
    "cispo_trl_1_16": functools.partial(by_trl, loss_type="cispo"),
    "cispo_trl_1_16 kl_coef=0.04": functools.partial(by_trl, loss_type="cispo", beta=0.04),
    "grpo_verl_0_9_1": by_verl,
    "grpo_verl_0_9_1 kl_coef=0.001": functools.partial(by_verl, kl=(LOW_VAR, 0.001)),
    "cispo_verl_0_9_1": functools.partial(by_verl, name="cispo"),
    "cispo_verl_0_9_1 kl_coef=0.001": functools.partial(by_verl, name="cispo", kl=(LOW_VAR, 0.001)),
    "dapo_verl_recipe": lambda case: by_verl(case, shaped=punished(case), clip_ratio_high=0.28, clip_ratio_c=10.0),
    # Frameworks that are not installed: the same choices made of verl's functions.
    "grpo_openrlhf_0_11": functools.partial(by_verl, epsilon=1e-9, kl=(LOW_VAR, 0.01), **NO_DUAL),
    "grpo_slime_0_3": functools.partial(by_verl, mode="seq-mean-token-mean", **NO_DUAL),
    "grpo_tunix_0_1": functools.partial(by_verl, mode="seq-mean-token-mean", kl=("k1", 0.04), **NO_DUAL),
    "grpo_ms_swift_4_6": functools.partial(
        by_verl, epsilon=1e-4, mode="seq-mean-token-mean", kl=(LOW_VAR, 0.04), **NO_DUAL
    ),
    "grpo_nemo_rl_0_6": lambda case: by_verl(case, advantages=nemo_advantages(case), kl=(LOW_VAR, 0.01), **NO_DUAL),
    "grpo_nemo_rl_0_7": nemo_0_7,
    "dapo_paper": dapo_paper,
    "drgrpo_oat": functools.partial(
        *(by_verl,),
        mode="seq-mean-token-sum-norm",
        norm_adv_by_std_in_grpo=False,
        global_batch_info={"loss_scale_factor": 6},
        **NO_DUAL,
    ),
    "grpo_open_instruct_0_3": lambda case: by_verl(
        *(case,),
        norm_adv_by_std_in_grpo=False,
        weight=truncated_weight(case),
        clip_ratio_high=0.272,
        kl=(LOW_VAR, 0.05),
        **NO_DUAL,
    ),
}


def test_every_preset_is_compared():
    assert {said.split(" ")[0] for said in THEIRS} == set(KEYS)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("said", THEIRS)
def test_the_whole_loss_is_theirs(said, seed):
    key, _, change = said.partition(" ")
    config, case = load(key), Case(seed)
    config.rollout.completion_length = 6
    if change:
        name, _, value = change.partition("=")
        config.algorithm[name] = float(value)
    value, gradient = case.ours(config)
    expected, expected_gradient = THEIRS[said](case)
    np.testing.assert_allclose(value, expected, rtol=2e-5)
    np.testing.assert_allclose(gradient, np.where(case.batch.mask, expected_gradient, 0), rtol=2e-4, atol=1e-7)
