"""How tests start the programs: the smallest sizes, and a process of its own with a home of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import REPO_ROOT

# Sums of two digits; one layer of 32. The entropy and KL terms move the params where no reward does. A verifier that a
# loaded machine keeps waiting for a second would be counted as timed out, in one of two runs.
TINY = (
    "task.num_train=100 task.num_test=20 task.digits=1 task.num_operands=(2,2) task.unfinished_share=0.0 "
    "model.embed_dim=32 model.num_layers=1 model.num_heads=2 model.num_kv_heads=2 model.head_dim=16 model.mlp_dim=64 "
    "rollout.completion_length=4 rollout.prompt_buckets=(8,) rollout.temperature=1.0 "
    "sft.steps=20 sft.stop_at=1.1 sft.eval_every=8 sft.batch_size=16 sft.optimizer.learning_rate=0.01 "
    "train.steps=16 sample.prompts_per_step=8 sample.group_size=4 algorithm.kl_coef=0.05 algorithm.entropy_coef=0.01 "
    "eval.every=5 eval.num_prompts=16 eval.batch_size=16 checkpoint.every=4 "
    "log.tensorboard=false log.progress=false reward.num_workers=1 reward.time_limit_s=60.0"
).split()


def command(workdir: Path, *overrides: str, program="grpo", config="tasks/arithmetic.py:smoke") -> list[str]:
    """`python -m experiments.PROGRAM` at the smallest size. overrides: "a.b=value" each."""
    fields = [f"--config.{field}" for field in (*TINY, *overrides)]
    start = [sys.executable, "-m", f"experiments.{program}", f"--config=configs/{config}"]
    return [*start, f"--workdir={workdir}", *fields]


def environment(home: Path) -> dict[str, str]:
    """A process's environment: the CPU, and a home in which data sets are prepared, not the user's.

    Compiled programs are those of the whole test run (conftest.py): a program that is killed leaves none of them torn.
    """
    kept = home / ".cache" / "rl_jax" / "xla"  # the default of --compile_cache
    compiled = os.environ.get("RL_JAX_TESTS_COMPILED")  # not set if the user named a cache, which then is theirs, too
    if compiled and not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.symlink_to(compiled)
    return {**os.environ, "HOME": str(home), "JAX_PLATFORMS": "cpu"}


def start(arguments: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen:
    """Starts a program from the repository's root; what it prints is added to the file `log`."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            arguments, env=variables, cwd=REPO_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def finish(process: subprocess.Popen, log: Path, timeout_s: float) -> int:
    """The exit status; a program that does not end in time is killed, and the test fails with the end of its log."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"not done after {timeout_s} s; its log ends with:\n{tail(log)}") from None


def tail(log: Path) -> str:
    """The last of what a program printed."""
    return log.read_text(errors="replace")[-3000:]
