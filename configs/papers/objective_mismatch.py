"""Objective mismatch in model-based RL (arXiv 2002.04523): the likelier model is not the better one to plan with.

    python -m experiments.ablation objective_mismatch

Small dynamics models are fitted to data from everywhere by likelihood, plain or with weights exp(-d / .5) of the
distance to a near-optimal trajectory, and planned with by CEM in a world whose hills lie where no good plan goes.
Undecided: weighted models plan better, but over the same plain models both likelihoods rank the returns alike (.63).
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """return: of planning, mean over the models; correlation: of the ranks of the likelihood by an arm's weights and
    of the return, over the models fitted by plain likelihood."""
    return ConfigDict(
        dict(
            paper="arXiv 2002.04523",
            claim="likelihood says less of the return of planning than likelihood near a good trajectory, and training "
            "by the latter makes better plans",
            scaled_down="a point on a line and models of one layer, in place of cartpole and ensembles",
            study="objective_mismatch",
            settings=dict(
                arms=dict(likelihood=float("inf"), reweighted=0.5),
                models=16,
                rows=512,
                width=12,
                updates=400,
                learning_rate=2e-2,
                waves=2.0,
                span=3.0,
                noise=0.02,
                length=20,
                horizon=8,
                planner=dict(rounds=3, samples=32, elites=6, std=0.6),
            ),
            seeds=tuple(range(100, 110)),  # the settings were chosen by the first seeds
            tried=10,  # worlds, widths, scales, sizes and counts of models; with 1024 rows the arms are alike
            metric="return",
            expected=(
                dict(metric="correlation", arm="likelihood", at_most=0.8),
                dict(metric="correlation", increasing=("likelihood", "reweighted"), by=0.0),
                dict(metric="return", increasing=("likelihood", "reweighted"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    models=2, rows=32, width=4, updates=4, length=3, horizon=2, planner=dict(samples=4, elites=2)
                ),
            ),
        )
    )
