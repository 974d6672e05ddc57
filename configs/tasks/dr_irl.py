"""DR-IRL: a reward learned from demonstrations alone, and advantages scaled by difficulty (GRPO-S): arXiv 2503.18991.

    r     = argmax  E_demonstrations[r] - E_policy[r],  a head for each category, one step of it after each step of GRPO
    A     = alpha(prompt) (r - mean) / std,  alpha from the likeness and the gap of rewards to the demonstration

    python -m experiments.sft --config=configs/tasks/dr_irl.py --workdir=runs/dr_irl_start
    python -m experiments.grpo --config=configs/tasks/dr_irl.py

No verifier and no pair is read: the task's own reward is only logged, as `task`. The categories are the lengths of
sums, in place of seven kinds of harm; demonstrations are the worked sums. The paper trains its reward models before the
policy, and its form of alpha could not be read (the docstring of credit.difficulty says what is ours); judge.irl's
data_coef and model_coef at 0 are GRPO on the learned reward. On sums it did not raise the share of right answers: from
.19 after 500 steps of SFT to .22 after 30 steps and .15 after 60 (300 problems, one seed). Arguments: `smoke`.
"""

from configs import common
from configs.tasks import arithmetic

START = "runs/dr_irl_start"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name, config.init_from = "dr_irl", START
    config.task.num_operands = (3, 4)
    of_category = dict(category="num_operands", categories=(3, 4))
    config.judge = dict(irl=dict(fn="demonstrated", path=START, learning_rate=1e-3, **of_category))
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.rows:by_difficulty")
    return config
