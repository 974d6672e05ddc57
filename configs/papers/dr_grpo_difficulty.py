"""Dr. GRPO (arXiv 2503.20783): dividing by a group's std gives easy and hard questions more weight.

    python -m experiments.ablation dr_grpo_difficulty

Nothing is sampled but the pass rates of the questions: the expected update is summed over all numbers of right answers
in a group. Under the exact gradient of the pass rate every question weighs the same.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """hard: the weight of a question of pass rate .02 to .1 over that of one of .4 to .6."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.20783",
            claim="easy and hard questions weigh more than medium ones under GRPO's std, and the same without it",
            scaled_down="questions with two answers, groups of 8, pass rates drawn at random; Qwen2.5-Math on MATH",
            study="question_weights",
            settings=dict(
                arms={
                    "grpo": dict(),
                    "dr_grpo": dict(advantage="group_centered"),
                    "rloo": dict(advantage="leave_one_out"),
                },
                group_size=8,
                hard=(0.02, 0.1),
                medium=(0.4, 0.6),
                easy=(0.9, 0.98),
                questions=8,
            ),
            seeds=tuple(range(20)),
            metric="hard",
            expected=(
                dict(metric="hard", increasing=("dr_grpo", "grpo"), by=0.1),
                dict(metric="easy", increasing=("dr_grpo", "grpo"), by=0.1),
                dict(metric="hard", arm="dr_grpo", at_least=0.99, at_most=1.01),
                dict(metric="easy", arm="dr_grpo", at_least=0.99, at_most=1.01),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1)),
        )
    )
