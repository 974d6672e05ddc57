"""D2LOLS of RLGF, learning to generate better than your LLM: arXiv 2306.11816. A guide rolls out first, then rolls in.

    first fifth (AggreVaTeD): one token per answer,  A = Q_guide(s, a) - V_guide(s),  the guide goes on after it
    then (PPO++):             with probability .8 the answer starts inside the guide's, cut at a random place

Departs from GRPO: two phases by a schedule of the shares. The guide of the roll-outs is the policy's own start, as the
fine-tuned model there; that of the roll-ins is the record's demonstration. Group means are the baseline of both phases,
in place of a critic. .8 and a fifth, its tau of 100 in 500 and 200 in 1,000 iterations: Cornell-RL/tril (20 in 50 for
IMDB); its beta of .8 in the first phase is 1 here. PPO++ alone: ppo_plus_plus.py.

    python -m experiments.grpo --config=configs/experience/d2lols.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("d2lols", arg, longer=_start.length(arg))
    config.algorithm.advantage = dict(fn="group_centered")
    every, then = dict(at_most=config.sample.group_size, replace="group"), max(config.train.steps // 5, 1) + 1
    config.foreign.aggrevate = dict(fn="experiments.parts.foreign_own:guided_roll_outs", share=1.0, **every)
    roll_in = dict(level=1.0, random_level=True, until_right=False, train_on="hinted", share=0.0)
    config.foreign.guide = dict(fn="hints", **roll_in, **every)
    for name, values in dict(aggrevate=((1, 1.0), (then, 0.0)), guide=((1, 0.0), (then, 0.8))).items():
        config.schedules[name] = dict(field=f"foreign.{name}.share", fn="piecewise", values=values)
    return config
