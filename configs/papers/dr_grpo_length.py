"""Dr. GRPO (arXiv 2503.20783): a mean over the tokens of each answer makes wrong answers grow longer.

    python -m experiments.ablation dr_grpo_length

A long wrong answer is punished less a token. Here no reward hangs on the length, so that the exact gradient would never
change it. DAPO's mean over all tokens leaves the lengths alone as well; the std makes the bias larger.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """wrong: by how many tokens wrong answers have grown, exactly summed over all lengths."""
    return ConfigDict(
        dict(
            paper="arXiv 2503.20783",
            claim="GRPO makes wrong answers longer and right ones shorter where nothing hangs on it, Dr. GRPO neither",
            scaled_down="answers of up to 32 tokens, right by the first one, that stop by chance; Qwen2.5-Math",
            study="free_length",
            settings=dict(
                arms={
                    "grpo": dict(),
                    "no_std": dict(advantage="group_centered"),
                    "no_length": dict(aggregate=dict(fn="seq_mean_token_sum_norm", max_length=32)),
                    "dr_grpo": dict(
                        advantage="group_centered", aggregate=dict(fn="seq_mean_token_sum_norm", max_length=32)
                    ),
                    "token_mean": dict(aggregate="token_mean"),
                },
                length=32,
                prompts=8,
                solve=(0.2, 0.6),
                stop=0.08,
                recipe=dict(groups=8, group_size=8, minibatches=1, steps=200, learning_rate=8.0),
            ),
            seeds=tuple(range(10)),
            metric="wrong",
            expected=(
                dict(metric="wrong", increasing=("dr_grpo", "no_std", "grpo"), by=0.0),
                dict(metric="wrong", arm="dr_grpo", at_least=-0.1, at_most=0.1),
                dict(metric="wrong", arm="grpo", at_least=0.5),
                dict(metric="right", increasing=("grpo", "dr_grpo"), by=0.5),
            ),
            tried=1,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
