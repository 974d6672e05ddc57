"""Waiting for stale groups against dropping them (AReaL, arXiv 2505.24298, waits): who learns the long answers.

    python -m experiments.ablation waiting_dropping

A prompt needs so many right tokens, then EOS: lognormal numbers of them, cut at 31. At the start every prompt is solved
equally often, so that the hard quarter differs from the others in length alone. `ready` takes the oldest groups that
have finished and waits where a row would pass the age, `oldest` waits for the oldest groups, `drop` throws away what is
older than eta. Arms are compared in pairs that may train on rows of the same age: 2, 4 or 8. Admission is the program's
own (rl_jax.experience.admission), time is counted in decode calls: a train step lasts as long as an answer of mean
length. The loss weighs tokens as configs/grpo_async.py does.

The first version compared unequal bounds, rows of up to 8 versions that were waited for with a drop at 2, and said
"reproduced". Seeds 0 to 4 of the arms below were looked at before the statements were written: by the clock the order
of the pairs at 4 and 8 was the other one. At 8 nothing gets too old here: that pair differs in how far sampling runs
ahead.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kept: mean length of what was trained on over what was let in; hard, easy: chance of a right answer at the end,
    on the quarter of the prompts that need most tokens and on the others."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.24298",
            claim="at an equal bound of staleness waiting keeps the long answers and hard prompts that dropping loses, "
            "also by the clock",
            scaled_down="24 prompts, a table of logits by prompt and place, answers of 2 to 32 tokens",
            study="waiting_dropping",
            settings=dict(
                arms={
                    "oldest_2": dict(eta=2, order="oldest"),
                    "drop_2": dict(eta=2, order="drop"),
                    "ready_4": dict(eta=2, age=4, order="ready"),
                    "drop_4": dict(eta=4, order="drop"),
                    "ready_8": dict(eta=2, age=8, order="ready"),
                    "drop_8": dict(eta=8, order="drop"),
                    "synchronous": dict(eta=0, age=0),
                },
                slots=dict(aggregate="token_mean", behavior_weight=dict(fn="masked", cap=5.0)),
                prompts=24,
                mean=6,
                sigma=1.25,
                length=32,
                solve=0.3,
                noise=0.1,
                groups=8,
                group_size=8,
                train=6,
                steps=150,
                learning_rate=32.0,
            ),
            seeds=tuple(range(20)),
            metric="hard",
            expected=(
                dict(metric="hard_timed", increasing=("drop_2", "oldest_2"), by=0.0),
                dict(metric="hard_timed", increasing=("drop_4", "ready_4"), by=0.0),
                dict(metric="hard_timed", increasing=("drop_8", "ready_8"), by=0.0),
                dict(metric="hard", increasing=("drop_2", "oldest_2"), by=0.0),
                dict(metric="hard", increasing=("drop_4", "ready_4"), by=0.0),
                dict(metric="kept", increasing=("drop_2", "oldest_2"), by=0.05),
                dict(metric="kept", increasing=("drop_4", "ready_4"), by=0.05),
            ),
            tried=4,  # learning rates 2, 8 and 32, of the synchronous arm alone; the arms of the first version
            smoke=dict(seeds=(0, 1), settings=dict(steps=6, prompts=8, groups=2, group_size=2)),
        )
    )
