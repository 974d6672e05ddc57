"""DAPO, decoupled clip and dynamic sampling: arXiv 2503.14476.

    R'_i = R_i + min(0, (L - b - n_i) / b),   L the generation limit, b its last fifth
    loss = 1/(sum_i n_i) sum_i sum_t max(-A r, -A clip(r, 1 - .2, 1 + .28)),   A = (R' - mean_g) / (std_g + 1e-6)

Departs from GRPO: more room above than below, for rare tokens to rise; a mean over all tokens; prompts are drawn until
every group has right and wrong answers; overlong answers are punished softly; no KL. The paper's R is 1 or -1, and so
verl's (math_dapo); the tasks here give 1 or 0, beside which the same punishment, at most 1, weighs twice as much.
--config.algorithm.shaping.penalty=0.5 gives it the paper's weight. The paper has 16 answers a prompt and 16 updates a
batch; here are the task's answers and 4 updates: --config.train.minibatches=16 --config.sample.group_size=16.

    python -m experiments.grpo --config=configs/methods/dapo.py
"""

from configs.methods import _start


def get_config(arg: str | None = None):
    return _start.dapo("dapo", arg)
