"""RRHF on programs that are run: Leveraging RL and LLMs for code optimization, arXiv 2312.05657 (PerfRL).

    R    = 0 unless every unit test passes; else 1/2 + 1/2 max(0, 1 - seconds / seconds of the slow program)
    loss = sum_{R_i > R_j} max(0, s_j - s_i) - mean_t logp_t(y_best)          s = mean_t logp_t

Each step samples programs, runs them in the sandbox (code.run_time: CPU seconds, measured from outside) and ranks them.
Departs from the paper: its reward has steps for failing to build, failing tests and being slower, ours is the formula
above, as its values are not known to us; a small model of characters and generated functions instead of CodeT5 and PIE.
Arguments: `none` runs without a sandbox. `smoke`: seconds.

    python -m experiments.online_dpo --config=configs/preferences/rrhf_code.py
"""

from configs import common
from configs.preferences import online
from configs.tasks import code_tests


def get_config(arg: str | None = None):
    words = common.parse(arg, ("none", "smoke"))
    config = online.of(code_tests.get_config(",".join(sorted({"slow"} | words - {"smoke"}))))
    config.name = "rrhf_code"
    config.algorithm.update(responses=4, reference={}, length_power=1.0, beta=1.0, compare=dict(fn="rrhf"))
    config.algorithm.update(regularizer=dict(fn="chosen_nll", reduce="mean"), regularizer_coef=1.0)
    config.algorithm.pair_selection = dict(fn="ranking")
    config.sample.update(prompts_per_step=16, prompts_per_batch=16, group_size=4)
    config.train.update(steps=60, batch_size=16)
    return online.smoke(config) if "smoke" in words else config
