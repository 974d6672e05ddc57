"""A small in-process run: the smallest model, one device, a reward function that the test gives."""

import shutil
import signal

import pytest

from configs.tasks import arithmetic
from rl_jax import tasks

ALWAYS = dict(num_train=100, num_test=20, digits=1, num_operands=(2, 2), unfinished_share=0.0)


def config(tmp_path, **fields):
    """configs/tasks/arithmetic.py:smoke without a warm start, on one layer of 32. fields: train__steps=value."""
    found = arithmetic.get_config("smoke")
    found.task = dict(name="arithmetic", data_dir=str(tmp_path / "data"), **ALWAYS)
    found.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64, checkpoint="")
    found.rollout.update(completion_length=4, prompt_buckets=(8,), temperature=1.0, top_k=0, top_p=1.0)
    found.sft.steps = 0
    found.train.update(epochs=1, minibatches=1, micro_batches=1)
    found.algorithm.update(mask_truncated=False)
    found.train.optimizer.update(warmup_steps=0, decay_steps=0, final_fraction=1.0)
    found.eval.update(num_prompts=16, batch_size=16, samples_per_prompt=1)
    found.log.update(progress=False, tensorboard=False)
    found.reward.num_workers = 0
    for name, value in fields.items():
        *groups, last = name.split("__")
        group = found
        for part in groups:
            group = group[part]
        assert last in group, f"no field {name}"
        group[last] = value
    return found.lock()


# Rewards with a signal from the first step, for config.reward.function (in this process: reward.num_workers is 0).


def sevens(prompt, completion, info):
    """The number of sevens: several levels, and ties."""
    return {"reward": float(completion.count("7"))}


def sevens_and_even(prompt, completion, info):
    """The same with a second component."""
    return {"reward": float(completion.count("7")), "even": float(len(completion) % 2 == 0)}


def sevens_of_prompt(prompt, completion, info):
    """The same, and it depends on the prompt."""
    return {"reward": float(completion.count("7")) + 0.1 * (len(prompt) % 3), "even": float(len(completion) % 2 == 0)}


def has_a_seven(prompt, completion, info):
    """1 for a completion with a seven."""
    return {"reward": float("7" in completion)}


def even_length(prompt, completion, info):
    """1 for a completion of an even length."""
    return {"reward": float(len(completion) % 2 == 0)}


def reward(fn) -> str:
    """The import path of one of these."""
    return f"tests.experiments.small:{fn.__name__}"


def task(*, base: str = "arithmetic", reward_fn: str = "sevens", **fields) -> tasks.Task:
    """A task of one's own: another one's records with one of these rewards."""
    return tasks.load(base, **fields)._replace(reward_fn=globals()[reward_fn])


@pytest.fixture
def kept_signals():
    """Puts back the signal handlers that a run replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def no_evaluations(monkeypatch):
    """For tests that read nothing of them: grpo, ppo, online_dpo and agents sample no held-out prompts, which compiles
    a sampler more."""
    from experiments import agents, grpo, online_dpo  # here: workers that score rewards import this file, too
    from experiments.parts import play_groups

    nothing = lambda *_: lambda params: ({}, [])  # noqa: E731
    monkeypatch.setattr(grpo, "make_evaluate", nothing)
    monkeypatch.setattr(online_dpo, "make_evaluate", nothing)
    monkeypatch.setattr(agents, "make_episode_evaluate", nothing)
    monkeypatch.setattr(play_groups, "make_loop_evaluate", nothing)


class StopAfter:
    """In place of checkpoint.StopSignal: a signal that has come when it is looked for once more than `count` times."""

    def __init__(self, count: int = 1):
        self._left = count

    def __call__(self):
        return self

    @property
    def received(self) -> bool:
        self._left -= 1
        return self._left < 0


def cut_off(workdir, part) -> int:
    """Copies a run's folder without its end and its newest checkpoint: a run that died. Gives the step it resumes from.

    What the run says of later steps stays in its files, as when it dies between two checkpoints.
    """
    shutil.copytree(workdir, part)
    (part / "final.json").unlink()
    before, newest = sorted(int(path.name) for path in (part / "checkpoints").iterdir() if path.name.isdigit())[-2:]
    shutil.rmtree(part / "checkpoints" / str(newest))
    return before
