"""DR-IRL: a reward model of each category from demonstrations alone, then GRPO with advantages scaled by difficulty.

    r_j   = argmax  E_demonstrations[r] - E_policy[r],  of category j alone, policy and reward in turns (ML-IRL)
    A     = alpha(prompt) (r_j - mean) / std,  alpha from how unlike the demonstration the samples are, and the gap

    python -m experiments.sft --config=configs/tasks/dr_irl.py --workdir=runs/dr_irl_start
    python -m experiments.grpo --config=configs/tasks/dr_irl.py:reward_3 --workdir=runs/dr_irl_reward_3
    python -m experiments.grpo --config=configs/tasks/dr_irl.py:reward_4 --workdir=runs/dr_irl_reward_4
    python -m experiments.grpo --config=configs/tasks/dr_irl.py

Source: arXiv 2503.18991 (ICLR 2026), whose equations two readers' notes quote (credit.difficulty). No verifier and no
pair is read: the task's own reward is only logged, as `task`. The categories are the lengths of sums, in place of seven
kinds of harm; demonstrations are the worked sums, their sentences the totals between equals signs. Arguments:
`together` learns the rewards in the run of the policy, a head for each category on one trunk; `smoke`. judge.irl's
by_data and by_model at False are GRPO on the learned rewards. On sums `together`, with another form of alpha, did not
raise the share of right answers: from .19 after 500 steps of SFT to .22 after 30 steps and .15 after 60 (300 problems,
one seed).
"""

from configs import common
from configs.tasks import arithmetic

START, LENGTHS = "runs/dr_irl_start", (3, 4)
REWARDS = tuple(f"reward_{length}" for length in LENGTHS)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*REWARDS, "together", "smoke"))
    if len(named := sorted(words - {"smoke"})) > 1:
        raise ValueError(f"choose one of {', '.join((*REWARDS, 'together'))}, not {', '.join(named)}")
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name, config.init_from = "_".join(["dr_irl", *named]), START
    config.task.num_operands = LENGTHS
    irl = dict(fn="demonstrated", path=START, separator="=", tau=1.0)
    learning = dict(retrain_every=1, learning_rate=1e-3)
    if named and named[0] in REWARDS:
        length = LENGTHS[REWARDS.index(named[0])]
        config.task.num_operands = (length, length)
        if "smoke" in words:
            config.task.update(num_train=1_000, num_test=200)  # of one digit there are no more
        config.judge = dict(irl=irl | learning)
        return config
    of_category = dict(category="num_operands", categories=LENGTHS)
    models = dict(models=tuple(f"runs/dr_irl_{name}" for name in REWARDS), retrain_every=0)
    config.judge = dict(irl=irl | of_category | (learning if named else models))
    config.algorithm.token_weight = dict(fn="rl_jax.token_weights.rows:by_difficulty")
    return config
