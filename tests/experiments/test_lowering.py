"""Every function that a program jits, lowered for TPU and CUDA on a machine that has neither; nothing is compiled."""

import jax
import jax.numpy as jnp
import pytest

from configs import ppo_common
from experiments import dpo, grpo, online_dpo, ppo, reward_model, sft
from experiments.parts import control_runs
from rl_jax.training import checkpoint, compilation
from tests.experiments import small, test_control_ppo, test_dpo, test_online_dpo, test_reward_model
from tests.experiments.small import kept_signals  # noqa: F401
from tests.experiments.test_dpo import files  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("kept_signals")
PLATFORMS = ("tpu", "cuda")


class Enough(Exception):
    """A program has come as far as saving its first step."""


def ones(shape):
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), shape.shape)
    return jnp.ones(shape.shape, shape.dtype)


@pytest.fixture
def lowered(monkeypatch):
    """The qualified names of the jitted functions that were called; from here on jax.jit lowers, and returns ones."""
    found: set[str] = set()
    jit = jax.jit

    class Lowering:
        def __init__(self, fn, **keywords):
            keywords.pop("compiler_options", None)  # the CPU's
            self.name, self.jitted = getattr(fn, "__qualname__", repr(fn)), jit(fn, **keywords)

        def __call__(self, *arguments, **keywords):
            traced = self.jitted.trace(*arguments, **keywords)
            traced.lower(lowering_platforms=PLATFORMS)
            found.add(self.name)
            return jax.tree.map(ones, traced.out_info)

        def _cache_size(self):
            return 1

    def save(*arguments, **keywords):
        raise Enough

    monkeypatch.setattr(jax, "jit", Lowering)
    monkeypatch.setattr(checkpoint.Checkpointer, "save", save)
    monkeypatch.setattr(compilation.Ahead, "__call__", lambda self, name, program: program)
    return found


def with_critic(config):
    return ppo_common.with_critic(config.copy_and_resolve_references().unlock()).lock()


def one_step(config):
    """The same, saved after the first step, without a look at held-out prompts in between."""
    config = config.copy_and_resolve_references().unlock()
    config.train.steps = 1
    return config


# What a program jits by the end of its first step, by parts of their names.
STEP = "make_step.<locals>.step"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "names"),
    [
        (sft, {STEP, "make_generate"}),
        (grpo, {STEP, "make_score", "make_generate"}),
        (ppo, {STEP, "make_score", "make_generate", "make_assign", "build.<locals>.<lambda>"}),
        (dpo, {STEP, "make_score", "build.<locals>.evaluate"}),
        (online_dpo, {STEP, "make_score", "make_generate"}),
        (reward_model, {STEP, "_response_reader"}),
    ],
    ids=["sft", "grpo", "ppo", "dpo", "online_dpo", "reward_model"],
)
def test_what_a_program_jits_lowers_for_accelerators(program, names, tmp_path, lowered, request):
    config = {
        sft: lambda: small.config(tmp_path, sft__steps=1),
        grpo: lambda: one_step(small.config(tmp_path)),
        ppo: lambda: one_step(with_critic(small.config(tmp_path))),
        dpo: lambda: one_step(test_dpo.config(request.getfixturevalue("files"))),
        online_dpo: lambda: one_step(test_online_dpo.config(tmp_path)),
        reward_model: lambda: one_step(test_reward_model.small(tmp_path)),
    }[program]()
    with pytest.raises(Enough):
        program.run(config, tmp_path / "run")
    for name in names:
        assert any(name in found for found in lowered), f"{name} is not among {sorted(lowered)}"


@pytest.mark.slow
def test_control_lowers_for_accelerators(lowered):
    """A chunk of updates with its environments, and the start of it."""
    program = control_runs.make_program(test_control_ppo.small())
    lowered.clear()
    program.advance(program.init())
    assert lowered == {"map_runs.<locals>.mapped"}
