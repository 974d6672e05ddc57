"""Directional stimulus prompting: arXiv 2302.11520. A small policy writes a hint, a frozen model the answer. Sums.

    R(x, z) = mean_i reward(x, y_i) over 4 answers y_i ~ p_frozen(. | x, z) at temperature .7,   z ~ pi(. | x)
    the KL to the fine-tuned policy is in the reward: coefficient .005 at first, towards a KL of .5

The hint is the first total, which the frozen model goes on from; half of the demonstrated hints are wrong. In the paper
hints are keywords, the frozen model is a large one behind an API, the reward is ROUGE, and NLPO restricts the sampled
tokens (configs/experience/nlpo.py), which PPO here does not. Samples, temperature and KL are those of the paper's code
for summaries. Arguments: `smoke`.

    python -m experiments.sft --config=configs/tasks/arithmetic.py --workdir=runs/dsp_frozen
    python -m experiments.ppo --config=configs/preferences/dsp.py
"""

from configs import common, ppo_common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "dsp"
    config.task = dict(name="rl_jax.tasks.hinted:load", of=config.task.to_dict(), steps=1, wrong_share=0.5)
    config.rollout.update(completion_length=5)
    frozen = dict(fn="stimulus", path="runs/dsp_frozen", votes=4, temperature=0.7, max_tokens=12)
    config.judge = dict(answered=dict(**frozen, answer="{hint}{output}"))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.005)
    config.algorithm.trackers.reward_kl = dict(fn="adaptive_kl", initial=0.005, target=0.5)
    return ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
