"""Waiting for stale groups against dropping them (AReaL, arXiv 2505.24298, waits): who learns the long answers.

    python -m experiments.ablation waiting_dropping

A prompt needs so many right tokens, then EOS: lognormal numbers of them, cut at 31. At the start every prompt is solved
equally often, so that the hard quarter differs from the others in length alone. `ready` takes the oldest groups that
have finished and waits where a row would pass the age, `oldest` waits for the oldest groups, `drop` throws away what is
older than eta. Admission is the program's own (rl_jax.experience.admission), time is counted in decode calls: a train
step lasts as long as an answer of mean length. The loss weighs tokens as configs/grpo_async.py does.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """kept: mean length of what was trained on over what was let in; hard, easy: chance of a right answer at the end,
    on the quarter of the prompts that need most tokens and on the others."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.24298",
            claim="dropping stale groups loses the long answers, and with them the hard prompts; waiting keeps both",
            scaled_down="24 prompts, a table of logits by prompt and place, answers of 2 to 32 tokens",
            study="waiting_dropping",
            settings=dict(
                arms={
                    "ready": dict(eta=2, age=8, order="ready"),
                    "oldest": dict(eta=2, order="oldest"),
                    "drop": dict(eta=2, order="drop"),
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
                dict(metric="kept", arm="ready", at_least=0.97),
                dict(metric="kept", increasing=("drop", "ready"), by=0.05),
                dict(metric="hard", increasing=("drop", "ready"), by=0.05),
                dict(metric="hard_timed", increasing=("drop", "ready"), by=0.0),
                dict(metric="age", arm="ready", at_most=8.0),
            ),
            tried=3,  # learning rates 2, 8 and 32, of the synchronous arm alone
            smoke=dict(seeds=(0, 1), settings=dict(steps=6, prompts=8, groups=2, group_size=2)),
        )
    )
