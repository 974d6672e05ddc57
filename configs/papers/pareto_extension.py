"""C-MORL (arXiv 2410.02236): constrained extension raises the hypervolume of a front that is not concave.

    python -m experiments.ablation pareto_extension

The bandit of two aims: policies with fixed weights end at the aims, and the way between them is the front. `stage1` and
`c_morl` make as many updates of as many policies. `conditioned` is one policy that sees the weights, shown beside them:
it has a sixth of their episodes, and its front is of 11 weights, not of 24 policies, so the claim says nothing of it.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """hypervolume: above (0, 0), of the last evaluation. missing: what it lacks of the exact front's."""
    return ConfigDict(
        dict(
            paper="arXiv 2410.02236",
            claim="the second stage raises the hypervolume above that of as many updates with fixed weights",
            scaled_down="a bandit of two objectives with a known front, in place of MuJoCo, minecart and buildings",
            study="front_stages",
            settings=dict(
                arms={"stage1": "stage1", "c_morl": "c_morl", "conditioned": "conditioned"},
                updates=300,
                first=100,
                length=20,
                share=0.9,
            ),
            seeds=tuple(range(10)),
            tried=1,
            metric="hypervolume",
            expected=(
                dict(metric="hypervolume", increasing=("stage1", "c_morl"), by=0.02),
                dict(metric="missing", arm="c_morl", at_least=0.0, at_most=0.06),
            ),
            smoke=dict(seeds=(0, 1), settings=dict(updates=140, first=60, length=10, share=0.8)),
        )
    )
