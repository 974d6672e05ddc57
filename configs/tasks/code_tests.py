"""GRPO on programs that are run: hidden tests in the sandbox are the reward (rl_jax.rewards.code).

    reward = 1 if every hidden test passes, else 0        share of the tests, shown

Small functions on one line, which a model of characters learns from scratch. Each test is a process of its own in the
sandbox, its output is compared outside. Arguments: `share` pays for the share of tests that pass. `slow` asks to make a
slow function faster and pays for CPU time too (code.run_time). `real` takes HumanEval and MBPP, for a model that speaks
already (--config.model.path=FOLDER --config.sft.steps=0). `none` runs without a sandbox, on a machine of its own only.
`smoke`: seconds.

    python -m experiments.grpo --config=configs/tasks/code_tests.py
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("share", "slow", "real", "none", "smoke"))
    tests = dict(fn="code.run_time" if "slow" in words else "code.score", weight=1.0)
    tests |= dict(sandbox="none") if "none" in words else {}
    tests |= dict(reward="share") if "share" in words and "slow" not in words else {}
    kinds = ("slow_programs",) if "slow" in words else ("programs",)
    config = _toys.run("code_tests", kinds, dict(tests=tests), prompt=12, completion=48)
    config.reward.time_limit_s = 120.0  # of all tests of a program; each has its own limit of CPU seconds
    if "real" in words:
        names = ("humaneval", "mbpp")
        config.task = dict(name="code_problems", path=common.real("code"), names=names, data_dir=common.DATA_DIR)
        config.rollout.update(completion_length=512, prompt_buckets=(512, 1536))
        config.train.update(micro_batches=4)
        config.eval.update(num_prompts=32, batch_size=32)
    return common.smoke(config) if "smoke" in words else config
