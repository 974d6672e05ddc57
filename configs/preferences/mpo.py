"""Meta policy optimization, a reward model whose rubric evolves: arXiv 2504.20157. Sums, and your own tasks.

    R(x, y) = mean_k s_k / high,   the rubric (s_1, .., s_K) is rewritten by a meta judge every 10 steps

The meta judge prescreens 20 rows of the step for gradings that are bad, analyses and refines the rubric for each, and
merges what it wrote (experiments.parts.judges.evolving); the rubric is in every checkpoint. Interval, rows, PPO and the
k1 penalty of .05 are those of the paper's code. It needs a judge that can write: a Hugging Face folder; the small
model of letters that is named here says nothing useful, and the rubric then stays as it is. Departs: analysis and
refinement are one question. Arguments: `fixed` (the control: the first rubric for ever), `smoke`.

    python -m experiments.ppo --config=configs/preferences/mpo.py --config.judge.rubric.path=FOLDER
"""

from configs import common, ppo_common
from configs.tasks import arithmetic

RUBRIC = ("The last number is the result of the sum.", "Every total follows from the one before it.")


def get_config(arg: str | None = None):
    words = common.parse(arg, ("fixed", "smoke"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["mpo", *sorted(words & {"fixed"})])
    judge = dict(fn="evolving", path="runs/judge_letter", rubric=RUBRIC, samples=20)
    config.judge = dict(rubric=dict(**judge, retrain_every=0 if "fixed" in words else 10))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
    return ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
