"""A folder of one's own beside the checkout: its config, its functions, its reward, by the checkout's programs."""

import ast
import importlib
import json
import os
import subprocess
import sys

import pytest

from experiments.parts import own_folder
from experiments.sweep import cli, points
from rl_jax.core.binding import bind
from rl_jax.losses import policy
from rl_jax.rewards.pool import RewardPool
from tests.experiments import programs
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

CONFIG = '''"""My surrogate on sums of two digits."""

import {losses}
from configs.tasks import arithmetic


def get_config(arg=None):
    config = arithmetic.get_config("smoke")
    config.name = "mine"
    config.task.update(num_train=100, num_test=20, digits=1, num_operands=(2, 2), unfinished_share=0.0)
    config.model.update(embed_dim=32, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64)
    config.rollout.update(completion_length=4, prompt_buckets=(8,))
    config.sft.steps = 0
    config.train.steps = 1
    config.eval.update(every=0, num_prompts=16, batch_size=16)
    config.log.update(tensorboard=False, progress=False)
    config.reward.update(num_workers=1, time_limit_s=60.0)
    config.algorithm.surrogate = dict(fn="{losses}:my_surrogate", width={losses}.WIDTH)
    return config


def sweep_width(arg):
    return ({{"algorithm.surrogate.width": x}} for x in (0.2, 0.4))


def sweep_loss(arg):
    return ({{"algorithm.surrogate.fn": x}} for x in ("{losses}:my_surrogate", "{losses}:plain"))
'''
LOSSES = '''"""Functions of my own; each says in a file that it was called."""

import pathlib

import jax.numpy as jnp

from rl_jax import log_ratio
from rl_jax.losses import policy

WIDTH = 0.3


def my_surrogate(log_probs, old_log_probs, advantages, mask, *, width=0.4):
    pathlib.Path(__file__).with_name("called").write_text(str(width))
    found = policy.importance_sampling(log_probs, old_log_probs, advantages, mask)
    return found._replace(loss=found.loss * jnp.exp(-jnp.abs(log_ratio(log_probs, old_log_probs, mask)) / width))


def plain(log_probs, old_log_probs, advantages, mask, *, width=0.0):
    return policy.importance_sampling(log_probs, old_log_probs, advantages, mask)
'''
REWARD = """
def length(prompt, completion, info, *, per_token=1.0):
    return {"reward": per_token * len(completion)}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a config, its losses and a reward, in modules of names that no other test has."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(REPO_ROOT)
    losses = f"my_losses_{tmp_path.name}".replace("-", "_")
    (tmp_path / "my_config.py").write_text(CONFIG.format(losses=losses))
    (tmp_path / f"{losses}.py").write_text(LOSSES)
    (tmp_path / f"{losses}_reward.py").write_text(REWARD)
    return tmp_path, losses


def test_the_folder_of_a_config_is_found(folder):
    path, losses = folder
    before = list(sys.path)
    own_folder.put_on_path(str(path / "missing.py"))
    own_folder.put_on_path("configs/tasks/arithmetic.py:smoke")
    assert sys.path == before
    for arguments in ([f"--config={path}/my_config.py:x"], ["--workdir=x", "--config", f"{path}/my_config.py"]):
        sys.path[:] = before
        own_folder.of_command_line(["program", *arguments])
        assert sys.path == [*before, str(path)]
    own_folder.of_command_line([f"--config={os.path.relpath(path)}/my_config.py"])  # and once only
    assert sys.path == [*before, str(path)]
    fn = bind({"fn": f"{losses}:my_surrogate", "width": 0.5}, policy)
    assert fn.func.__module__ == losses and fn.keywords == {"width": 0.5}


@pytest.mark.parametrize("absolute", [True, False])
def test_sweeps_of_a_config_elsewhere(folder, absolute):
    path, losses = folder
    config = f"{path if absolute else os.path.relpath(path)}/my_config.py"
    found = points.expand(config, "width,loss,seed:2")
    assert len(found) == 8 and found[0].name == f"width=0.2,loss={losses}-my_surrogate,seed=0"
    assert f"--config={config}" in found[0].command("run")
    assert f"--config.algorithm.surrogate.fn={losses}:plain" in found[2].command("run")
    resolved = points.resolve(found[2])
    assert resolved.algorithm.surrogate.to_dict() == {"fn": f"{losses}:plain", "width": 0.2}


def test_a_reward_of_the_folder_runs_in_the_workers(folder):
    path, losses = folder
    own_folder.put_on_path(str(path / "my_config.py"))
    reward = bind(f"{losses}_reward:length", policy)
    with RewardPool(reward, kwargs={"per_token": 0.5}, num_workers=1, time_limit_s=60.0) as pool:
        result = pool(["p", "p"], ["abc", ""], ["{}", "{}"])
    assert result.rewards.tolist() == [1.5, 0.0] and result.first_error is None


@pytest.mark.slow
def test_a_folder_trains_by_the_programs_of_the_checkout(folder, monkeypatch):
    """By a sweep, which starts the program as its user would, in a process of its own."""
    path, losses = folder
    for name, value in programs.environment(path / "home").items():
        monkeypatch.setenv(name, value)
    config = (f"--config={path}/my_config.py", "--sweep=width", "--subsample=1")
    assert cli.main([*config, f"--workdir={path}/sweep", "--no-pin"]) == 0
    (point,) = (path / "sweep" / "points").iterdir()
    recorded = json.loads((point / "config.json").read_text())
    width = recorded["algorithm"]["surrogate"]["width"]
    assert recorded["algorithm"]["surrogate"]["fn"] == f"{losses}:my_surrogate"
    assert point.name == f"width={width}" and (path / "called").read_text() == str(width)
    assert json.loads((point / "final.json").read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_fork_of_the_loop_trains(folder):
    """A copy of the program, in a file of one's own."""
    path, losses = folder
    source = (REPO_ROOT / "experiments" / "grpo.py").read_text()
    fork = path / f"{losses}_grpo.py"
    call = "metrics |= routed | logged.step_metrics("
    fork.write_text(source.replace(call, call.replace("|= ", "|= {'mine': 1.0} | ")))
    assert fork.read_text() != source
    own_folder.put_on_path(str(path / "my_config.py"))
    config = points.load_config(str(path / "my_config.py"))
    config.task.data_dir = str(path / "data")
    config.reward.num_workers = 0
    importlib.import_module(fork.stem).run(config, path / "run")
    rows = [json.loads(line) for line in (path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["mine"] == 1.0 and (path / "run" / "final.json").exists()


def test_a_fork_needs_the_parts_and_little_else():
    tree = ast.parse((REPO_ROOT / "experiments" / "grpo.py").read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {name for name in modules if name.split(".")[0] in ("rl_jax", "configs", "experiments")}
    assert len({name for name in ours if not name.startswith("experiments.parts")}) <= 3, sorted(ours)


@pytest.mark.slow
def test_a_misspelt_function_ends_the_program_with_the_nearest_name(folder):
    """Started in the folder, as its user may: what is on the path is the checkout, by name."""
    path, losses = folder
    done = subprocess.run(
        [
            *(sys.executable, "-m", "experiments.grpo", "--config=my_config.py", "--workdir=run"),
            f"--config.algorithm.surrogate.fn={losses}:my_surogate",
        ],
        cwd=path,
        capture_output=True,
        text=True,
        timeout=300,
        env=programs.environment(path / "home") | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{REPO_ROOT}"},
    )
    assert done.returncode != 0
    assert f"'{losses}:my_surogate': {losses} has no 'my_surogate'; nearest: 'my_surrogate'" in done.stderr
