"""Pass@k training (arXiv 2508.10751): paying for the best of k answers solves more in k tries than paying for each.

    python -m experiments.ablation passk_training

16 hard questions, of 2 to 20 right answers in 1,024; k = 4 of groups of 16. Nothing ties the questions to each other
here: that measures exploration. 50 steps, so that pass@16 has room. The first try (256 completions, 150 steps) did not:
both arms answered every question that had a right answer. Not reproduced: with room (pass@16 is .35 in
both) pass@k training has a little less of both, .004 and .0008, and .009 nats more entropy.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """pass_4, pass_16: the chance that one of 4 or 16 answers is right, at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2508.10751",
            claim="pass@4 training ends with more pass@4 and pass@16, and more entropy, than pass@1 training",
            scaled_down="1,024 completions of 5 tokens, 16 questions; the paper has Qwen2.5 and Seed models",
            study="answers_by_policy_gradient",
            settings=dict(
                arms={"pass_1": dict(), "pass_k": dict(slots=dict(advantage=dict(fn="pass_at_k", k=4)))},
                vocab=4,
                length=5,
                world=dict(prompts=16, logit_scale=1.0, right=(0.002, 0.02), at_least_one=True),
                recipe=dict(groups=8, group_size=16, minibatches=2, steps=50, learning_rate=0.03, optimizer="adam"),
                ks=(4, 16),
            ),
            seeds=tuple(range(10)),
            metric="pass_4",
            expected=(
                dict(metric="pass_4", increasing=("pass_1", "pass_k"), by=0.0),
                dict(metric="pass_16", increasing=("pass_1", "pass_k"), by=0.0),
                dict(metric="entropy", increasing=("pass_1", "pass_k"), by=0.0),
            ),
            tried=2,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
