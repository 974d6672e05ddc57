"""Asynchronous training with bounded staleness (AReaL, arXiv 2505.24298): what eta and age cost, and what they give.

    python -m experiments.ablation asynchronous_speed

Half of the devices sample, half train; answers have lognormal lengths, cut at 8 means, and a train step takes as long
as two of mean length. `ready` takes the oldest finished groups and waits where a row would pass the age, `oldest` waits
for the oldest ones, `drop` throws away what is older than eta, `one_step_off` has a barrier after every batch. The
admission is the program's own (rl_jax.experience.admission); time is a model: nothing is sampled, and neither rewards
nor the transfer of weights take any. The slowest of eight rows ends a group: at sigma 1.25 eta 8 gains a few percent.
Undecided: at sigma .75 eta 8 is as fast as eta 2 with every seed, to the last digit, and equal ratios have no interval.
The other statements hold. That no row is older than `age` is the rule's own doing, so no statement is about it.
With a train step half as long (train=1) the claim does not hold: eta 2 is 2.5 times as fast at sigma .75, eta 8 3.3.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """speed_S: batches per time over a synchronous run on all devices, S the sigma of the log length in hundredths;
    kept_S: mean length of what is trained on, over that of all up to its newest group, overtaken and dropped ones too;
    age_S: the oldest row."""
    return ConfigDict(
        dict(
            paper="arXiv 2505.24298",
            claim="two versions ahead are enough for the speed of asynchrony, and waiting keeps the long answers",
            scaled_down="a model of time with drawn lengths in place of a cluster",
            study="asynchronous_schedules",
            settings=dict(
                arms={
                    "eta2": dict(eta=2, age=8, order="ready"),
                    "eta1": dict(eta=1, age=8, order="ready"),
                    "eta8": dict(eta=8, age=8, order="ready"),
                    "oldest": dict(eta=2, order="oldest"),
                    "drop": dict(eta=2, order="drop"),
                    "one_step_off": dict(eta=1, order="oldest", drain=True),
                },
                base="eta2",
                sigmas=(0.25, 0.75, 1.25),
                prompts=32,
                group_size=8,
                mean=64,
                longest=8.0,
                train=2.0,
                steps=60,
            ),
            seeds=tuple(range(5)),
            metric="speed_075",
            expected=(
                dict(metric="speed_025", arm="eta2", at_least=0.9),
                dict(metric="speed_075", arm="eta2", at_least=1.6),
                dict(metric="speed_125", arm="eta2", at_least=2.0),
                dict(metric="over_base_075", arm="eta8", at_most=1.05),
                dict(metric="over_base_125", arm="eta8", at_most=1.1),
                dict(metric="kept_125", arm="eta2", at_least=0.97),
                dict(metric="kept_125", increasing=("drop", "eta2"), by=0.0),
            ),
            tried=3,  # also a train step half as long, where eta 8 is a third faster than eta 2, and one setting more
            smoke=dict(seeds=(0, 1), settings=dict(steps=10, prompts=4, group_size=2)),
        )
    )
