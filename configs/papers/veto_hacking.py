"""A veto stops the hack of a criterion that a sum rewards: Rubicon, arXiv 2508.12790.

    python -m experiments.ablation veto_hacking

The paper: Qwen3-30B with thousands of rubrics; a rubric against hacking vetoes all others. Here: three criteria that a
completion meets or not, and compliments, which are counted, so that more are always worth more, but each takes a place.
A detector of more than one compliment errs on 5 % of the completions of either kind. `sum` adds all five terms; `veto`
adds them too, but what the detector finds is worth nothing; `veto_exact` has a detector without errors; `saturation`
bounds what compliments are worth; `without` does not count them. The statements are about `sum` and `veto`.

Tried, on seed 10000 only: learning rates 1, 10 and 40 with criteria that compliments do not touch (at 1 nothing is
learned; otherwise the sum is hacked, but that costs no quality), compliments that take a place with 8 prompts, and
these settings. The same with a transformer: configs/tasks/rubric_anchors.py beside its argument `plain`.
"""

from ml_collections import ConfigDict

ALL = dict(plain=1.0, polite=1.0, detector=1.0)


def get_ablation() -> ConfigDict:
    """quality: the chance of meeting a plain criterion; hacked: that of more than one compliment. Both at the end."""
    return ConfigDict(
        dict(
            paper="arXiv 2508.12790",
            claim="a sum of criteria is hacked through the one without end; a veto stops that, for the others' good",
            scaled_down="a table over 6 tokens, 4 a completion, and 5 criteria; Qwen3-30B and thousands of rubrics",
            study="hackable_criterion",
            settings=dict(
                arms={
                    "sum": dict(weights=ALL, compose=dict(fn="weighted_sum")),
                    "saturation": dict(weights=ALL, compose=dict(fn="saturation", scale=dict(polite=1.0))),
                    "veto": dict(weights=ALL, compose=dict(fn="veto", by=("detector",))),
                    "veto_exact": dict(weights=ALL, compose=dict(fn="veto", by=("calm",))),
                    "without": dict(weights=ALL | dict(polite=0.0), compose=dict(fn="weighted_sum")),
                },
                vocab=6,
                length=4,
                world=dict(prompts=32, plain=3, share=0.3, missed=0.05, alarms=0.05, logit_scale=0.5),
                recipe=dict(groups=32, group_size=8, minibatches=1, steps=300, learning_rate=40.0),
            ),
            seeds=tuple(range(20)),
            metric="quality",
            expected=(
                dict(metric="hacked", increasing=("veto", "sum"), by=0.2),
                dict(metric="hacked", arm="veto", at_most=0.1),
                dict(metric="quality", increasing=("sum", "veto"), by=0.0),
            ),
            tried=5,
            smoke=dict(seeds=(0, 1), settings=dict(recipe=dict(steps=3))),
        )
    )
