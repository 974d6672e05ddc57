"""SPO (arXiv 2509.13232): one answer a question and a remembered baseline learn more than GRPO's groups of as many.

    python -m experiments.ablation spo_single_stream

All arms sample 64 answers a step: 8 to each of 8 questions, or one to each of 64. Where all 8 are right or all wrong,
GRPO has sampled them for nothing. Questions are drawn alike in all; the paper's SPO prefers uncertain ones. SGD, one
update a step: an answer moves a table as far whether its question is asked 8 times at once or in 8 steps; Adam, of the
first try, does not. `loo` and `tracked` are GRPO and SPO without their scales, which differ: group and batch. `single`
has one answer a question and the batch's mean, no memory. Undecided: SPO leads GRPO by .07 and `single` by .05, but
`tracked` leads `loo` by .004 [-.001, .008]: most of the lead is one of scale, which differs between the arms.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """learning: the mean chance of a right answer over the training."""
    grouped = dict(groups=8, group_size=8)
    remembered = dict(groups=64, group_size=1, tracker=dict(fn="beta_values"))
    return ConfigDict(
        dict(
            paper="arXiv 2509.13232",
            claim="SPO learns more than GRPO from as many samples, also without scales, and more than without memory",
            scaled_down="64 completions of 3 tokens, 64 questions of all difficulties; the paper has Qwen3-8B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(recipe=grouped),
                    "loo": dict(slots=dict(advantage="leave_one_out"), recipe=grouped),
                    "single": dict(slots=dict(advantage="batch_relative"), recipe=dict(groups=64, group_size=1)),
                    "tracked": dict(slots=dict(advantage="tracked_baseline"), recipe=remembered),
                    "spo": dict(slots=dict(advantage="tracked_relative"), recipe=remembered),
                },
                vocab=4,
                length=3,
                world=dict(prompts=64, logit_scale=1.0, right=(0.02, 0.9), at_least_one=True),
                recipe=dict(minibatches=1, steps=200, learning_rate=20.0),
            ),
            seeds=tuple(range(10)),
            metric="learning",
            expected=(
                dict(metric="learning", increasing=("grpo", "spo"), by=0.0),
                dict(metric="reward", increasing=("grpo", "spo"), by=0.0),
                dict(metric="learning", increasing=("loo", "tracked"), by=0.0),
                dict(metric="learning", increasing=("single", "spo"), by=0.0),
            ),
            tried=2,  # first with Adam, two arms
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
