"""STARC (arXiv 2309.15257): canonical rewards tell the regret of a wrong reward, raw differences do not.

    python -m experiments.ablation starc

Proxies of a true reward in random MDPs, with potential shaping and s'-rewards that change no policy: the distance of
the standardised canonical rewards is compared with the regret of the proxy's best policy, by exact solution.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """correlation: Spearman's, of distance and regret, over the proxies of one MDP."""
    return ConfigDict(
        dict(
            paper="arXiv 2309.15257",
            claim="STARC distances order proxies by their regret, better than differences of the rewards themselves",
            scaled_down="random MDPs of 8 states and 3 actions, 40 proxies each",
            study="reward_distances",
            settings=dict(
                arms={
                    "no_canonical": dict(canonical="no_canonical"),
                    "value": dict(canonical="value_canonical"),
                    "minimal": dict(canonical="minimal_canonical"),
                },
                states=8,
                actions=3,
                discount=0.9,
                proxies=40,
                shaping=3.0,
            ),
            seeds=tuple(range(20)),
            tried=1,
            metric="correlation",
            expected=(
                dict(metric="correlation", increasing=("no_canonical", "value"), by=0.1),
                dict(metric="correlation", arm="value", at_least=0.6, at_most=1.0),
                dict(metric="correlation", arm="minimal", at_least=0.6, at_most=1.0),
            ),
            smoke=dict(seeds=(0, 1, 2), settings=dict(proxies=20)),
        )
    )
