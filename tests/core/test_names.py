"""rl_jax.core.names: the table of what may be asked for by name against what is supplied and asked for."""

import ast
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import advantages, credit, dpo, grpo, ppo, reward_model, token_weights
from rl_jax.advantages import steps, tokens
from rl_jax.control import algorithm
from rl_jax.core import binding
from rl_jax.core.names import NAMES, describe
from rl_jax.core.types import PolicyBatch, PreferenceBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit import CreditRule, rule, shaping
from rl_jax.losses import aggregate, kl, policy, value
from rl_jax.losses import reward_model as reward_losses
from rl_jax.losses.policy import gates, weighted
from rl_jax.losses.preference import (
    batch_stats,
    compare,
    links,
    offsets,
    prompt_weights,
    regularizers,
    scales,
    score_maps,
)
from rl_jax.losses.reward_model import rankings
from rl_jax.models.agents import actor_critic, distributions
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.testing.batches import ragged_batch
from tests.paths import REPO_ROOT

# Modules whose functions a recipe supplies with arrays.
SLOTS = [policy, gates, kl, aggregate, value, advantages, tokens, steps, token_weights, shaping, compare, links]
SLOTS += [offsets, regularizers, scales, score_maps, prompt_weights, reward_losses, rankings]
# Required keywords of theirs that a config has to set, or that the module's own callers give.
SETTINGS = {"buffer", "free_length", "gate", "k", "kl_coef", "max_length", "penalty", "threshold"}


def functions():
    return [fn for module in SLOTS for fn in binding.public_functions(module).values()]


def test_every_name_that_a_function_asks_for_is_in_the_table():
    asked = set().union(*(binding.needs(fn) for fn in functions()))
    assert asked - SETTINGS <= set(NAMES)
    assert not SETTINGS & set(NAMES)


def test_no_shipped_function_has_a_default_for_a_name_of_the_table():
    for fn in functions():
        binding.needs(fn)  # raises


def test_every_row_has_a_shape_a_meaning_and_a_source():
    for name, row in NAMES.items():
        assert all(row) and row.shape.split()[0].removesuffix(",") in (
            "float", "int", "int32", "bool", "PRNG", "value.Support",
        ), name  # fmt: skip
        assert describe(name).startswith(f"{name}: {row.shape}, ")
    assert describe("teacher_log_probs") == "teacher_log_probs"


# --- Supplied: what the recipes make available at run time -----------------------------------------------------------


@pytest.fixture
def supplied(monkeypatch):
    """The names that every call of `supply` had available."""
    names = set()

    def spy(fn, available):
        names.update(available)
        return binding.supply(fn, available)

    for module in (grpo, rule, ppo, dpo, reward_model, algorithm, weighted):
        monkeypatch.setattr(module, "supply", spy)
    return names


def policy_recipes():
    batch, key = ragged_batch(0), jax.random.key(0)
    blank, cut = np.zeros(batch.mask.shape, np.int32), np.zeros(8, bool)
    full = (TokenBatch(blank, blank, blank), batch.mask, batch.old_log_probs, batch.old_log_probs, ~cut, cut)
    rollout = Rollout(*full, token_rewards=np.ones_like(batch.log_probs), versions=blank)
    chosen = CreditRule(selection=lambda mask: mask)
    arrays = dict(group_size=4, key=key, log_probs=batch.log_probs, entropy=-batch.log_probs)
    arrays |= dict(ref_log_probs=batch.ref_log_probs, reward_kl_coef=0.1)
    rewards = jnp.ones(8)
    data = credit.assign(chosen, rollout, rewards, **arrays)
    token_scores = TokenScores(jnp.asarray(batch.log_probs), -jnp.asarray(batch.log_probs))
    bonus = grpo.Objective(entropy_coef=0.1, entropy_aggregate=aggregate.token_mean)
    grpo.loss(token_scores, grpo.with_entropy_scale(data, bonus), bonus)
    grpo.loss(token_scores, data, grpo.Objective(surrogate=functools.partial(policy.gated, gate="ppo_gate")))
    critic, _ = ppo.assign(chosen, ppo.Estimator(), rollout, rewards, jnp.zeros((8, 7)), **arrays)
    ppo.value_loss(jnp.zeros((8, 6, 1)), critic, ppo.Objective())


def control_recipe():
    agent = actor_critic.make_agent((3,), distributions.categorical(2), hidden=(4,), num_values=1)
    floats, flags, observations = jnp.ones((2, 3)), jnp.zeros((2, 3), bool), jnp.ones((2, 3, 3))
    steps = dict.fromkeys(Transitions._fields, floats) | dict(terminated=flags, truncated=flags)
    steps |= dict(observations=observations, next_observations=observations, outputs=jnp.zeros((2, 3, 2)))
    rows = Transitions(**steps | dict(actions=jnp.zeros((2, 3), jnp.int32)))
    algorithm.assign(agent, agent.init(jax.random.key(0)), rows, lambda x: x, algorithm.Algorithm())


def preference_recipes():
    shape = (4, 2, 3)
    mask, present = jnp.ones(shape, bool), jnp.ones(shape[:2], bool)
    rewards = jnp.tile(jnp.array([1.0, 0.0]), (4, 1))
    log_probs = -jnp.ones((8, 3))
    batch = PreferenceBatch(None, mask, present, rewards, ref_log_probs=-jnp.ones(shape))
    dpo.loss(TokenScores(log_probs, -log_probs), batch, dpo.Objective(regularizer_coef=0.1))
    reward_model.loss(jnp.ones((4, 2, 1)), batch, reward_model.Objective())
    reward_model.implicit_loss(TokenScores(log_probs, -log_probs), batch)
    labelled = reward_model.StepBatch(None, jnp.zeros((4, 2), jnp.int32), jnp.ones((4, 2)), present)
    reward_model.steps_loss(jnp.ones((4, 2, 2)), labelled)


def batch_statistics():
    """The names of the extras that batch_stats adds."""
    present = jnp.ones((4, 2), bool)
    ones = jnp.ones((4, 2))
    before = batch_stats.GlobalBatch(ones, present, ones, ones, ones, jnp.ones(4), present[:, 0])
    found = set()
    for name, make in binding.public_functions(batch_stats).items():
        parameters = inspect.signature(make).parameters
        statistics = make(**({"beta": 0.1} if "beta" in parameters else {}))
        found |= set(statistics.update(statistics.init(), before, jax.random.key(0))[1])
        assert name
    return found


def written(*files):
    """String constants and keywords in these files: the names that they write into extras or hand to a recipe."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse((REPO_ROOT / file).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            if isinstance(node, ast.keyword):
                found.add(node.arg)
    return found


def test_the_table_lists_what_is_supplied_and_nothing_else(supplied):
    policy_recipes()
    control_recipe()
    preference_recipes()
    batch_only = {"reward_kl_coef"}  # a setting of the recipe that travels with its arrays
    found = (supplied | batch_statistics()) - batch_only
    assert found <= set(NAMES), sorted(found - set(NAMES))
    # The rest comes from the programs, from the data, or from a caller.
    programs = written(
        "experiments/parts/policy.py",
        "experiments/parts/turn_signals.py",
        "experiments/parts/trackers.py",
        "rl_jax/advantages/memory.py",
        "rl_jax/credit/prices.py",
        "experiments/grpo.py",
        "experiments/ppo.py",
        "experiments/parts/actor_critic.py",
        "experiments/parts/preference_steps.py",
        "experiments/parts/preference_data.py",
        "experiments/parts/reward_readers.py",
        "experiments/online_dpo.py",
        "rl_jax/preferences/encode.py",
    )
    rest = {name for name, row in NAMES.items() if name not in found | programs}
    elsewhere = {name for name in rest if "data's info" in NAMES[name].source or NAMES[name].source.startswith("you")}
    assert rest == elsewhere, sorted(rest - elsewhere)
    asked = set().union(*(binding.needs(fn) for fn in functions()))
    assert elsewhere <= asked


# --- The trap --------------------------------------------------------------------------------------------------------


def test_a_default_for_a_name_of_the_table_is_refused():
    """House.md 1.5: `*, ref_log_probs=None` was silently never supplied."""

    def against(rewards, *, ref_log_probs=None, weight=1.0):
        return rewards

    for fn in (against, functools.partial(against, weight=2.0)):
        with pytest.raises(ValueError, match="against has a default for ref_log_probs: .* remove the default"):
            binding.supply(fn, {"ref_log_probs": 1})
        with pytest.raises(ValueError, match="against has a default"):
            binding.needs(fn)
    bound = functools.partial(against, ref_log_probs=3)
    assert binding.needs(bound) == set()
    assert binding.supply(bound, {"ref_log_probs": 1}) is bound


def test_the_error_says_where_a_known_name_comes_from():
    def fn(x, *, versions, mine):
        return x

    message = "fn needs mine, versions, which is not available here; available: other; versions: int32 .B, C."
    with pytest.raises(ValueError, match=message):
        binding.supply(fn, {"other": 1})


def test_the_batch_of_a_policy_has_every_array_of_its_methods_in_the_table():
    assert "extras" in PolicyBatch._fields and not set(PolicyBatch._fields) & {"selected", "kl_coefs", "batch_rows"}
