"""A reward from demonstrations alone, on texts: inverse RL of arXiv 2405.17888 (a survey of it: 2507.13158).

    r  = argmax  E_demonstrations[r] - E_policy[r] - decay / 2 E[r^2],   one step of it after each step of GRPO
    pi = argmax  E_pi[r] - kl_coef KL(pi || start)

    python -m experiments.sft --config=configs/tasks/stories_sentiment.py --workdir=runs/demonstrations_start
    python -m experiments.grpo --config=configs/tasks/demonstrations.py

The start tells happy and sad stories alike; each prompt's demonstration is a happy one. Nobody says which, and no pair,
label or verifier is read: the lexicon's grade is only logged (reward/task; of held-out prompts eval/task), and says
how near the policy has come. judge/irl/accuracy near a half is the time to stop: the reward cannot tell samples from
demonstrations any more. Departs: the paper trains policy and reward to the end in turns, here they take one step each;
its second algorithm, whose reward is the policy's own log-ratio, is SPIN (configs/methods/preferences/spin.py). DR-IRL
(configs/tasks/dr_irl.py) is this with a head for each category and advantages scaled by difficulty. Arguments: `smoke`.

After 160 steps of SFT in place of 300, the lexicon's grade of held-out prompts went from .48 to .67 after 15 steps and
.75 after 60, at a KL of .04 per token (seed 1, 128 prompts); in a run of 24 steps from .53 to .66 (seed 0, 64 prompts).
"""

from configs import common
from configs.tasks import stories_sentiment

START = "runs/demonstrations_start"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = stories_sentiment.get_config("smoke" if "smoke" in words else None)
    config.name, config.init_from = "demonstrations", START
    config.task.good_share = 1.0
    config.judge = dict(irl=dict(fn="demonstrated", path=START, learning_rate=1e-3))
    return config
