"""Programs are compiled before the first step, with its own arguments: the step itself compiles none of them again."""

import re

import jax
import pytest

from configs import ppo_common
from experiments import grpo, ppo
from rl_jax.runs.logging import read_jsonl
from rl_jax.training.compilation import COMPILED
from tests.experiments import small
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

# Several updates a step, prompts drawn again, a greedy rollout as the baseline: each has arguments of its own.
VARIED = dict(
    train__epochs=2,
    train__minibatches=2,
    sample__dynamic_sampling__max_batches=2,
    algorithm__advantage=dict(fn="remax"),
)
OURS = {"jit(generate)", "jit(score)", "jit(step)", "jit(assign)"}


def with_critic(config):
    """PPO's config with these fields."""
    with config.unlocked():
        return ppo_common.with_critic(config)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("program, fields, told", [
    (grpo, VARIED, "generate generate greedy score assign train_step"),
    (grpo, dict(packing__mode="packed"), "generate"),
    (ppo, {}, "generate score predict assign critic_step policy_step"),
])  # fmt: skip
def test_the_first_step_compiles_nothing_that_was_compiled_ahead(tmp_path, monkeypatch, capsys, program, fields, told):
    compiled, before = [], []

    def note(event, duration, fun_name="", **_):
        if event == COMPILED and fun_name in OURS:
            compiled.append(fun_name)

    ahead = program.compile_ahead

    def noted(loop, setup, programs, *rest):
        compiled.clear()
        ahead(loop, setup, programs, *rest)
        assert programs.compile_count() == 0, "a program was run"
        before.extend(compiled)
        compiled.clear()

    jax.monitoring.register_event_duration_secs_listener(note)
    monkeypatch.setattr(program, "compile_ahead", noted)
    evaluating = getattr(program, "play_groups", program)  # where the program finds it
    monkeypatch.setattr(evaluating, "make_evaluate", lambda setup, pool: lambda params: ({}, []))
    config = small.config(tmp_path, train__steps=1, log__progress=True, **fields)
    program.run(with_critic(config) if program is ppo else config, tmp_path / "run")
    lines = re.findall(r"^compiling (\w+) \.\.\. \d+\.\d s$", capsys.readouterr().out, re.MULTILINE)
    assert lines == told.split()
    assert set(before) and not set(before) & set(compiled), "compiled twice"
    last = read_jsonl(tmp_path / "run" / "timing.jsonl")[-1]
    assert last["compile_count"] >= len(set(lines)) and last["compile_s"] > 0
