"""A reward from demonstrations alone, in the loop of experiments.grpo: the policy comes to write what is shown.

Demonstrations have a seven; the policy starts from random params, with one in about one of four completions. What is
measured, the share of completions with a seven, is read by nobody: the judge gets demonstrations and samples, not the
task's reward. With the sides of its loss exchanged it must not rise.
"""

import importlib
import json

import numpy as np
import pytest

from experiments import grpo
from rl_jax import tasks
from rl_jax.losses.reward_model.demonstrations import inverse_rl
from tests.experiments import small
from tests.experiments.judge_runs import model_run
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_signals", "no_evaluations")]
MARGIN = 0.5


class Records(list):
    """A split of a task."""

    num_skipped = 0


def shown(**fields) -> tasks.Task:
    """Sums whose demonstrations are two digits, a seven among them, and whose reward is for having one."""
    task = tasks.load("arithmetic", **fields)

    def data_source(split):
        source, rng = task.data_source(split), np.random.default_rng(0)
        texts = ["".join(rng.permutation(["7", rng.choice(list("0123456789"))])) for _ in range(len(source))]
        return Records(source[i] | {"completion": text} for i, text in enumerate(texts))

    return task._replace(data_source=data_source, reward_fn=small.has_a_seven)


def gain(tmp_path, seed: int, steps: int) -> float:
    """The share of completions with a seven in the last ten steps, less that of the first two."""
    config = small.config(
        tmp_path, seed=seed, train__steps=steps, sample__group_size=8, train__optimizer__learning_rate=5e-3,
        eval__every=1000, checkpoint__every=1000,
    ).copy_and_resolve_references().unlock()  # fmt: skip
    config.task.name = f"{__name__}:shown"
    path = model_run(tmp_path / "trunk", config, seed=seed)
    config.judge = dict(irl=dict(fn="demonstrated", path=path, learning_rate=1e-2))
    grpo.run(config.lock(), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][1:]
    assert all(0.0 <= row["judge/irl/accuracy"] <= 1.0 and row["reward/mean"] == row["reward/irl"] for row in rows)
    found = [row["reward/task"] for row in rows]
    return float(np.mean(found[-10:]) - np.mean(found[:2]))


@pytest.mark.parametrize(("seed", "steps"), [(0, 60), (1, 25)])  # seed 0 first loses its sevens: to 0 until step 30
def test_a_policy_comes_to_write_what_is_shown(tmp_path, seed, steps):
    assert gain(tmp_path, seed, steps) > MARGIN


def test_with_the_sides_exchanged_it_does_not(tmp_path, monkeypatch):
    def exchanged(rewards, present, *, decay):
        return inverse_rl(-rewards, present, decay=decay)

    module = importlib.import_module("experiments.parts.judges.demonstrated")  # the package has a function of this name
    monkeypatch.setattr(module, "inverse_rl", exchanged)
    assert gain(tmp_path, 1, 25) < MARGIN / 2  # of the seed that rises at once
