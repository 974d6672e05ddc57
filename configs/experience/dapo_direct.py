"""Direct Advantage Policy Optimization in the paper's two stages, both offline: arXiv 2412.18279.

    critic, alone:  -[V_MC log V(s) + (1 - V_MC) log(1 - V(s))],   V_MC(s): mean reward of 4 answers going on from s
    then policy:    1/2 (A_k / beta - sum_t in k (logp - ref_logp))^2,   A_k = V(s_{k+1}) - V(s_k), R after the last

Departs from GRPO: a critic of the beginnings of steps, which end with "="; the reference samples the answers of both
stages, makes the states and completes them; the critic does not change once the policy learns. Cross-entropy over bins
at 0 and 1 is that of a probability. Confirmed are the stages, the Monte Carlo targets and the squares; beta, the 1/2,
4 completions and equal weights of steps are ours. Answers are sampled anew, where the paper has a fixed set of them.

    python -m experiments.ppo --config=configs/experience/dapo_direct.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config, ends = _start.ppo("dapo_direct", arg, longer=_start.length(arg)), (15,)  # the id of "="
    smoke = "smoke" in config.name
    first = 2 if smoke else 100
    config.name += "_offline"
    config.train.steps = max(config.train.steps, first + 1)
    config.foreign.completions = dict(
        fn="experiments.parts.foreign_own:step_completions",
        at_most=config.sample.group_size,
        replace="group",
        share=1.0,
        separators=ends,
        samples=2 if smoke else 4,
    )
    values = ((1, 1.0), (first + 1, 0.0))
    config.schedules.completions = dict(field="foreign.completions.share", fn="piecewise", values=values)
    config.algorithm.reward_kl_coef = 0.0
    config.algorithm.surrogate = dict(fn="rl_jax.losses.policy.regression:offline_direct_advantage", beta=0.1)
    config.algorithm.token_selection = dict(fn="rl_jax.core.steps:step_ends", separators=ends)
    config.critic.update(offline=True, warmup_steps=first, whiten=False)
    config.critic.advantage = dict(fn="rl_jax.advantages.stepwise:direct", separators=ends)
    config.critic.loss = dict(fn="two_hot")
    config.critic.support = dict(low=-0.5, high=1.5, num_bins=2, padding=0)
    return config
