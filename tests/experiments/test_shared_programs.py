"""shared_programs: what is shared is the same, and what differs anywhere is not shared."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from ml_collections import ConfigDict

from configs import ppo_common
from experiments.parts import actor_critic, perception, policy
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.models.transformer.model import make_transformer
from tests.experiments import shared_programs
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import config as small_config
from tests.tiny import CONFIG

OFFSET = 1.0


def make(scale, power=2):
    """A function that differs in what it is closed over."""

    def inner(x):
        return x**power

    return lambda x: scale * inner(x)


def defaults(x, *, factor=1.0):
    return x * factor


def test_the_same_is_jitted_once():
    first, second = jax.jit(make(2.0)), jax.jit(make(2.0))
    assert first is second and first(jnp.float32(3.0)) == 18.0
    assert jax.jit(make_transformer(CONFIG).init) is jax.jit(make_transformer(CONFIG).init)
    first, second = (jax.jit(make(ravel_pytree(dict(a=jnp.full(2, x)))[1])) for x in (0.0, 1.0))
    assert first is second and jax.jit(make(jnp.tanh)) is jax.jit(make(jnp.tanh))


def different():
    """Pairs of arguments of jax.jit that are not the same program."""
    model = make_transformer(CONFIG)
    other = make_transformer(dataclasses.replace(CONFIG, num_layers=CONFIG.num_layers + 1))
    array = np.arange(3.0)
    return {
        "a value": (make(2.0), make(3.0)),
        "a type of a value": (make(2), make(2.0)),
        "a value further in": (make(2.0), make(2.0, power=3)),
        "code": (lambda x: x + 1, lambda x: x + 2),
        "a partial's keyword": tuple(functools.partial(defaults, factor=factor) for factor in (1.0, 2.0)),
        "an array": (make(array), make(array + 1)),
        "a type of an array": (make(array), make(array.astype(np.float32))),
        "an array of jax": (make(jnp.ones(2)), make(jnp.zeros(2))),
        "a random key": (make(jax.random.key(0)), make(jax.random.key(1))),
        "a model": (model.apply, other.apply),
        "a jitted function": (make(jax.jit(make(1.0))), make(jax.jit(make(2.0)))),
        "the shapes of an unraveler": tuple(make(ravel_pytree(dict(a=jnp.ones(n)))[1]) for n in (2, 3)),
        "the names of an unraveler": tuple(make(ravel_pytree({name: jnp.ones(2)})[1]) for name in "ab"),
    }


@pytest.mark.parametrize("what", different())
def test_what_differs_is_not_shared(what):
    left, right = different()[what]
    assert shared_programs.key_of(left) != shared_programs.key_of(right)
    assert jax.jit(left) is not jax.jit(right)


def test_options_of_jit_are_part_of_it():
    function = make(5.0)
    assert jax.jit(function) is not jax.jit(function, donate_argnums=0) is not jax.jit(function, static_argnums=0)


@pytest.mark.parametrize(
    "unknown", [[], object(), np.zeros(5000), iter(())], ids=["list", "object", "large", "iterator"]
)
def test_what_nothing_is_known_of_is_not_shared(unknown):
    assert jax.jit(make(unknown)) is not jax.jit(make(unknown))


def test_nothing_is_shared_once_something_is_replaced(monkeypatch):
    """What a function finds by its global name is not in its key."""

    def shifted():
        return lambda x: x + OFFSET

    assert jax.jit(shifted())(1.0) == 2.0
    monkeypatch.setattr("tests.experiments.test_shared_programs.OFFSET", 5.0)
    assert jax.jit(shifted())(1.0) == 6.0
    monkeypatch.undo()
    assert jax.jit(shifted())(1.0) == 2.0


# --- What is said to be read of a config is all that a program reads --------------------------------------------------


def full(tmp_path, of_ppo=False):
    """A config of which a test takes away what programs are said not to read."""
    fields = dict(algorithm__row_selection=dict(fn="best_worst"), train__minibatches=2)
    config = small_config(tmp_path, **fields).copy_and_resolve_references().unlock()
    return ppo_common.with_critic(config) if of_ppo else config


def keep(config, module, name):
    """Leaves in a config nothing but what READ names."""
    kept = shared_programs.read_of(config, shared_programs.READ[module.__name__, name])
    for group in list(config):
        del config[group]
    for path, part in kept.items():
        *groups, last = path.split(".")
        group = config
        for step in groups:
            group[step] = group.get(step, ConfigDict())
            group = group[step]
        group[last] = ConfigDict(part) if isinstance(part, dict) else part


def rows():
    """(scores, a rollout) of 8 answers of 4 tokens to prompts of 2."""
    blank, mask = np.zeros((8, 4), np.float32), np.ones((8, 4), bool)
    tokens = TokenBatch(*[np.zeros((8, 6), np.int32)] * 3)
    return TokenScores(blank, blank), Rollout(tokens, mask, blank, blank, mask[:, 0], ~mask[:, 0])


def test_what_the_policys_loss_reads(tmp_path):
    config, (scores, rollout) = full(tmp_path), rows()
    loss = perception.with_terms(types.SimpleNamespace(config=config), lambda *_: scores, policy.make_objective)
    keep(config, perception, "with_terms")
    blank, tokens = scores.log_probs, rollout.batch
    batch = PolicyBatch(tokens, rollout.completion_mask, *[blank] * 4, extras={perception.NAME: tokens.tokens})
    assert "perception/kl" in jax.eval_shape(loss, {}, batch)[1]


@pytest.mark.parametrize("module", [policy, actor_critic])
def test_what_credit_reads(tmp_path, module):
    config, key, (scores, rollout) = full(tmp_path, module is actor_critic), jax.random.key(0), rows()
    assign, rewards, values = module.make_assign(config), np.zeros(8, np.float32), np.zeros((8, 5), np.float32)
    keep(config, module, "make_assign")
    of_critic = (values,) if module is actor_critic else ()
    found, _ = jax.eval_shape(assign, rollout, rewards, *of_critic, scores, scores.log_probs, key, {}, {})
    found = found.policy if of_critic else found
    assert found.old_log_probs is not None and policy.SELECTED_ROWS in found.extras


def test_what_the_critics_loss_reads(tmp_path):
    config = full(tmp_path, of_ppo=True)
    objective = repr(actor_critic.make_objective(config))
    keep(config, actor_critic, "build")
    assert repr(actor_critic.make_objective(config)) == objective
