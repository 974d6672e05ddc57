"""SPO (arXiv 2509.13232): one answer a question and a remembered baseline learn more than GRPO's groups of as many.

    python -m experiments.ablation spo_single_stream

Both arms sample 64 answers a step: 8 to each of 8 questions, or one to each of 64. Where all 8 are right or all wrong,
GRPO has sampled them for nothing. Questions are drawn alike in both; the paper's SPO prefers uncertain ones.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """learning: the mean chance of a right answer over the training."""
    return ConfigDict(
        dict(
            paper="arXiv 2509.13232",
            claim="SPO, of one sample a question, learns more than GRPO from as many samples",
            scaled_down="64 completions of 3 tokens, 64 questions of all difficulties; the paper has Qwen3-8B",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={
                    "grpo": dict(recipe=dict(groups=8, group_size=8)),
                    "spo": dict(
                        slots=dict(advantage="tracked_relative"),
                        recipe=dict(groups=64, group_size=1, tracker=dict(fn="beta_values")),
                    ),
                },
                vocab=4,
                length=3,
                world=dict(prompts=64, logit_scale=1.0, right=(0.02, 0.9)),
                recipe=dict(minibatches=2, steps=200, learning_rate=0.03, optimizer="adam"),
            ),
            seeds=tuple(range(10)),
            metric="learning",
            expected=(
                dict(metric="learning", increasing=("grpo", "spo"), by=0.0),
                dict(metric="reward", increasing=("grpo", "spo"), by=0.0),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
