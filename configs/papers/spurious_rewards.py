"""Spurious rewards do not teach where the answers cannot have leaked: arXiv 2507.10532 ("Reasoning or Memorization?").

    python -m experiments.ablation spurious_rewards

The paper: Qwen2.5 improves on MATH-500 under random and even wrong rewards, because it has seen those problems; on
RandomCalculation, problems generated afterwards, only correct rewards help. Here: that second half, scaled down to a
small transformer that has seen nothing, on generated arithmetic whose test problems are in no training set.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """Arms share each seed's SFT warm start; a gain is the last minus the first held-out evaluation of `evaluated`.

    program: experiments.PROGRAM runs the arms. expected: the claim, see experiments.ablation.judgements."""
    return ConfigDict(
        dict(
            paper="arXiv 2507.10532",
            claim="correct rewards raise held-out accuracy, shuffled ones do not",
            scaled_down="a 0.2M-parameter transformer instead of Qwen2.5-7B; sums of four one-digit numbers",
            program="grpo",
            warm_start="configs/tasks/arithmetic.py",
            arms={"correct": "configs/tasks/arithmetic.py", "shuffled": "configs/tasks/arithmetic.py:shuffled"},
            seeds=(0, 1, 2),
            tried=2,  # also sums of three and four numbers
            evaluated="eval/pass@1",
            metric="gain",
            expected=(
                dict(metric="gain", arm="correct", at_least=0.30),
                dict(metric="gain", arm="shuffled", at_most=0.05),
            ),
            smoke=dict(
                seeds=(0, 1),
                warm_start="configs/tasks/arithmetic.py:smoke",
                arms={
                    "correct": "configs/tasks/arithmetic.py:smoke",
                    "shuffled": "configs/tasks/arithmetic.py:smoke,shuffled",
                },
            ),
        )
    )
