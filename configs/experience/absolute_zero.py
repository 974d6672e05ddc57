"""Absolute Zero, self-play without data: arXiv 2505.03335. The policy proposes sums and solves them; Python executes.

    R_propose = 1 - acc if acc > 0 else 0, over G solutions;   R_solve = 1;   -.5 for wrong, -1 for malformed
    A = (R - mean) / std of its task and role (TRR++),  tasks: deduction "12+7=" -> 19, abduction "+7=19=" -> 12

Departs from GRPO: no records are read after the warm start, no group baseline, no KL. Sums in place of Python
programs, two tasks of three, one example in a proposer's prompt; every proposal is solved G = 8 times, as there.
Rewards and TRR++: LeapLabTHU/Absolute-Zero-Reasoner. The warm start still shows sums: sft.steps=0 goes without.

    python -m experiments.grpo --config=configs/experience/absolute_zero.py
"""

from configs.experience import _start


def get_config(arg: str | None = None):
    config = _start.grpo("absolute_zero", arg, longer=_start.length(arg) + 4)
    config.algorithm.advantage = dict(fn="no_baseline")
    config.foreign.self_play = dict(
        fn="experiments.parts.foreign_self_play:propose_and_solve",
        at_most=config.sample.group_size,
        replace="group",
        digits=2,
        operands=3,
    )
    return config
