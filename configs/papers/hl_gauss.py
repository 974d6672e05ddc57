"""Stop regressing: a critic that classifies returns helps more than one that regresses them, arXiv 2403.03950.

    python -m experiments.ablation hl_gauss

The paper: with a cross-entropy loss on HL-Gauss targets in place of squared errors, value-based agents play Atari,
chess and Wordle better. Here: the critic of PPO on generated arithmetic; the two arms differ in nothing but the
critic's loss and the width of its head. Undecided (experiments/LOG.md): both gain .46, and neither leads.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """Arms share each seed's SFT warm start; a gain is the last minus the first held-out evaluation of `evaluated`.

    program: experiments.PROGRAM runs the arms. expected: the claim, see experiments.ablation.judgements."""
    return ConfigDict(
        dict(
            paper="arXiv 2403.03950",
            claim="PPO gains more with an HL-Gauss critic than with an MSE critic",
            scaled_down="the critic of a 0.2M-parameter PPO in place of Q-networks; returns of one 0/1 reward",
            program="ppo",
            warm_start="configs/tasks/arithmetic_ppo.py",
            arms={"mse": "configs/tasks/arithmetic_ppo.py:mse", "hl_gauss": "configs/tasks/arithmetic_ppo.py:hl_gauss"},
            seeds=(0, 1, 2, 3, 4),
            tried=1,
            evaluated="eval/pass@1",
            metric="gain",
            expected=(
                dict(metric="gain", arm="mse", at_least=0.05),
                dict(metric="gain", increasing=("mse", "hl_gauss"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                warm_start="configs/tasks/arithmetic_ppo.py:smoke",
                arms={
                    "mse": "configs/tasks/arithmetic_ppo.py:smoke,mse",
                    "hl_gauss": "configs/tasks/arithmetic_ppo.py:smoke,hl_gauss",
                },
            ),
        )
    )
