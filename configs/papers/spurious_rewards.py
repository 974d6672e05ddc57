"""Spurious rewards do not teach where the answers cannot have leaked: arXiv 2507.10532 ("Reasoning or Memorization?").

    python -m experiments.ablation spurious_rewards

The paper: Qwen2.5 improves on MATH-500 under random and even wrong rewards, because it has seen those problems; on
RandomCalculation, problems generated afterwards, only correct rewards help. Here: that second half, scaled down to a
small transformer that has seen nothing, on generated arithmetic whose test problems are in no training set.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """Arms share each seed's SFT warm start; a gain is the last minus the first evaluation of `metric`, held out.

    program: experiments.PROGRAM runs the arms. expected_lead: arm -> over (an arm), at_least (seed by seed)."""
    return ConfigDict(
        dict(
            paper="arXiv 2507.10532",
            claim="correct rewards raise held-out accuracy, shuffled ones do not",
            scaled_down="a 0.2M-parameter transformer instead of Qwen2.5-7B; sums of four one-digit numbers",
            program="grpo",
            warm_start="configs/arithmetic.py",
            arms={"correct": "configs/arithmetic.py", "shuffled": "configs/arithmetic.py:shuffled"},
            seeds=(0, 1, 2),
            metric="eval/pass@1",
            expected_gain={"correct": dict(at_least=0.30), "shuffled": dict(at_most=0.05)},
            expected_lead={},
        )
    )
