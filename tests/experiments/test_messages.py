"""What a program says: where it runs and writes, what it resumes, saves or wrote, and what takes long."""

import json
import os
import re
import signal
import subprocess
import sys
import types

import jax
import pytest

from configs.control import environments
from experiments.control import ppo as control_ppo
from experiments.parts import devices, sampler, setup
from experiments.parts.run import Run
from rl_jax.training import checkpoint
from tests.experiments import small, test_run
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.usefixtures("kept_signals")


def run(workdir, *, stop_after=None, steps=3) -> Run:
    """A run that says what it does, from its record to its last line."""
    config = test_run.config(log=dict(progress=True, tensorboard=False))
    config.train.steps = steps
    Run(config, workdir, "sum", config.train).record(jax.devices()[:2])
    loop = test_run.run(workdir, config, stop_after)[1]
    loop.say_end()
    return loop


def test_a_run_says_where_it_runs_and_what_it_wrote(tmp_path, capsys):
    run(tmp_path / "a")
    text = capsys.readouterr().out
    assert re.search(rf"^sum on 2 x cpu.*; results go to {tmp_path / 'a'}$", text, re.MULTILINE)
    assert "evaluating before the first step" in text and "step 0/3  total 0  ETA ?" in text
    assert re.search(rf"^wrote {tmp_path / 'a'}: metrics.jsonl, .*checkpoints", text, re.MULTILINE)
    assert text.endswith(f"see it with  python -m experiments.report {tmp_path / 'a'}\n")


def test_a_stop_says_what_is_saved_and_the_same_command_that_it_resumes(tmp_path, capsys):
    run(tmp_path, stop_after=2)
    text = capsys.readouterr().out
    assert f"stopped before the end: step 2 is saved in {tmp_path / 'checkpoints'}" in text
    assert "run the same command again to resume" in text and "wrote" not in text
    run(tmp_path)
    assert "this run resumes from step 2" in capsys.readouterr().out
    run(tmp_path)
    assert "this run is complete, at step 3" in capsys.readouterr().out


def test_the_warm_start_is_not_taken_for_the_run(tmp_path, capsys):
    config, stop = test_run.config(log=dict(progress=True, tensorboard=False)), types.SimpleNamespace(received=False)
    for _ in range(2):
        loop = test_run.run(tmp_path, config, stop=stop)[1]
        loop.say_end()
    text = capsys.readouterr().out
    assert "its sum is complete, at step 7" in text and "this run" not in text and "wrote" not in text


def test_a_signal_is_answered_at_once(capfd):
    stop = checkpoint.StopSignal()
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.received and "stopping after this step" in capfd.readouterr().err


def test_an_error_says_in_which_step_it_was(tmp_path):
    config = test_run.config()
    loop = Run(config, tmp_path, "sum", config.train)
    loop.restore({})
    with pytest.raises(KeyError) as raised, loop:
        for _ in loop.steps():
            {}["x"]
    assert raised.value.__notes__ == [f"This was in step 1 of {tmp_path}"]


def test_devices_in_words():
    def device(index, kind="NVIDIA H100 80GB HBM3", platform="gpu"):
        limit = {"bytes_limit": 79 * 2**30}
        return types.SimpleNamespace(
            device_kind=kind, platform=platform, process_index=index, memory_stats=lambda: limit
        )

    assert devices.describe([device(0)] * 2) == "2 x NVIDIA H100 80GB HBM3 (gpu), 79.0 GiB each"
    assert devices.describe([device(0), device(1)]).startswith("2 x NVIDIA H100 80GB HBM3 (gpu) in 2 processes, 79.0")
    assert re.fullmatch(r"1 x cpu(, [\d.]+ GiB of memory.*)?", devices.describe([device(0, "cpu", "cpu")]))


def test_the_continuous_engine_says_that_it_compiles():
    written = []
    config = types.SimpleNamespace(rollout=types.SimpleNamespace(engine=types.SimpleNamespace(name="continuous")))
    sampler.say_engine(config, types.SimpleNamespace(write=written.append))
    assert len(written) == 1 and "continuous engine compiles" in written[0] and written[0].endswith("\n")
    config.rollout.engine.name = "openai"
    sampler.say_engine(config, types.SimpleNamespace(write=written.append))
    assert len(written) == 1


def test_no_advice_names_a_package_that_is_not_ours():
    """rl_jax on PyPI is another project: an extra is installed from the checkout."""
    places = [REPO_ROOT / "README.md"]
    for top in ("rl_jax", "experiments", "configs", "docs"):
        places += [path for path in (REPO_ROOT / top).rglob("*") if path.suffix in (".py", ".md")]
    advice = re.compile(r"pip install [-\w '\"]*rl_jax")
    assert not [str(path) for path in places if advice.search(path.read_text(encoding="utf-8"))]


def test_params_of_another_model_are_told_by_their_fields(tmp_path, monkeypatch):
    config = small.config(tmp_path)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    theirs = json.loads(config.to_json_best_effort())
    theirs["model"] |= {"embed_dim": 64, "dtype": "bfloat16"}
    (run / "config.json").write_text(json.dumps(theirs))
    reason = ["is of a run with other shapes; use that run's config"]

    def restore(*_):
        raise ValueError(reason[0])

    monkeypatch.setattr(checkpoint.Checkpointer, "restore", restore)
    made = types.SimpleNamespace(config=config, param_shapes={}, param_shardings={})
    with pytest.raises(ValueError, match="is of another model: model.embed_dim is 64 there and 32 here$"):
        setup.load_params(made, run)
    reason[0] = "no checkpoint can be read"
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        setup.load_params(made, run)


def test_a_run_without_a_language_model_is_refused_by_its_program(tmp_path):
    """Its checkpoints are whole: nothing may advise to move them away."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text('{"network": {}}')
    (run / "run.json").write_text('{"algorithm": "control.ppo"}')
    made = types.SimpleNamespace(config=small.config(tmp_path), param_shapes={}, param_shardings={})
    with pytest.raises(ValueError, match="init_from=.*run is a run of control.ppo, which has no language model$"):
        setup.load_params(made, run)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "says"), [(1, True), (4, False)])
def test_steps_that_are_rounded_up_to_whole_calls_are_said(tmp_path, capsys, asked, says):
    config = environments.get_config("matching,smoke")
    step = config.sample.num_envs * config.sample.num_steps
    config.train.total_steps, config.log_every, config.log.progress = asked * step, 4, True
    control_ppo.run(config, tmp_path)
    said = (
        f"train.total_steps={asked * step:,} becomes {4 * step:,}: whole calls of log_every=4 updates, {step:,} steps"
    )
    assert (said in capsys.readouterr().out) is says and (tmp_path / "final.json").exists()


PROGRAM = """
import sys
sys.argv = ["program", "--config=configs/tasks/arithmetic.py:smoke", *sys.argv[1:]]
import jax
from experiments.parts import flags

def step(x):
    raise TypeError("the loss takes no such thing")

flags.main(lambda config, workdir: jax.jit(step)(1.0))
"""


@pytest.mark.slow
def test_the_last_line_of_an_error_in_a_traced_function_says_why(tmp_path):
    command = [sys.executable, "-c", PROGRAM, f"--workdir={tmp_path}", "--compile_cache="]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_TRACEBACK_FILTERING"}
    ended = subprocess.run(
        command, input="", capture_output=True, text=True, cwd=REPO_ROOT, timeout=600, env=environment
    )
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == "TypeError: the loss takes no such thing"
