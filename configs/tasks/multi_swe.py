"""Issues of repositories, resolved by a patch: Multi-SWE-bench, arXiv 2504.02605. Their own tests are the reward.

    reward = 1 if every test of fail_to_pass and of pass_to_pass passes after the patch, else 0

The patch is applied outside, the tests run in the bubblewrap sandbox, which must be installed. Departs from the paper:
generated repositories with a wrong operator and a model of bytes; its records are read with their checkouts
(--config.task.path=multi_swe.jsonl --config.task.folder=CHECKOUTS), but not its images, so only what the machine can
build. Arguments: `none` runs without a sandbox. `smoke`: seconds.

    python -m experiments.grpo --config=configs/tasks/multi_swe.py
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("none", "smoke"))
    tests = dict(fn="issues.resolved", weight=1.0) | (dict(sandbox="none") if "none" in words else {})
    config = _toys.run("multi_swe", ("programs",), dict(tests=tests), prompt=140, completion=96)
    config.task = dict(
        name="issues", path="", folder="", command=("/usr/bin/python3", "-m", "unittest", "-v"),
        num_train=200, num_test=32, seed=0, data_dir=common.DATA_DIR,
    )  # fmt: skip
    config.eval.update(num_prompts=32, batch_size=32)
    config.reward.time_limit_s = 1_200.0  # the sandbox has limits of its own
    return common.smoke(config) if "smoke" in words else config
