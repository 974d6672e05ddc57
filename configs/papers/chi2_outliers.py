"""f-DVL (arXiv 2302.08560): the chi^2 member of the dual family stays where XQL's exponential overflows on outliers.

    python -m experiments.ablation chi2_outliers

One state of three actions with Q = 0, 1, 2; V is fitted by each loss to samples of which a tenth are far off: XQL as
its equation has it, XQL as its code has it (scaled by the batch's maximum, clipped at 7), chi^2, total variation.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """finite: the share of seeds whose V is a number at the end. shift: how far outliers move V, in ranges of
    Q; that of a lost V, 15, is a convention, so no statement is about it."""
    return ConfigDict(
        dict(
            paper="arXiv 2302.08560",
            claim="V fitted with the chi^2 or total-variation loss stays finite on outliers that overflow XQL's",
            scaled_down="the value of one state with made-up Q and outliers, in place of D4RL's unstable runs of XQL",
            study="value_outliers",
            settings=dict(
                arms={
                    "xql_equation": dict(fn="gumbel_plain", beta=1.0),
                    "xql_code": dict(fn="gumbel", beta=1.0, max_clip=7.0),
                    "chi2": dict(fn="chi2", lam=0.7),
                    "tv": dict(fn="tv", lam=0.7),
                },
                actions=3,
                outliers=0.1,
                size=30.0,
                batch_size=64,
                steps=1000,
                learning_rate=0.01,
            ),
            seeds=tuple(range(40)),  # ten, all alike, bound the share of others by .31 only
            tried=3,  # first with bounds of "finite" on 0 and 1 themselves: undecided; then 10 seeds
            metric="shift",
            expected=(
                dict(metric="finite", arm="xql_equation", at_least=-0.1, at_most=0.1, within=(0.0, 1.0)),
                dict(metric="finite", arm="chi2", at_least=0.9, at_most=1.1, within=(0.0, 1.0)),
                dict(metric="finite", arm="tv", at_least=0.9, at_most=1.1, within=(0.0, 1.0)),
                dict(metric="finite", arm="xql_code", at_least=0.9, at_most=1.1, within=(0.0, 1.0)),
                dict(metric="shift", increasing=("tv", "chi2"), by=0.0),
            ),
            smoke=dict(seeds=(0, 1), settings=dict(steps=200)),
        )
    )
