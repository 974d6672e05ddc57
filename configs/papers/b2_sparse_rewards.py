"""B2-DiffuRL (arXiv 2503.11240): late steps first and branches learn from sparse rewards what DDPO does not.

    python -m experiments.ablation b2_sparse_rewards

The exact model of a ring of Gaussians; only samples far out in the direction of their prompt are paid, at first about
one in forty. Both arms sample as many chains and make as many updates.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """paid: the share of paid samples at the end. spread: variance of the samples within a prompt, the diversity."""
    fields = dict(env=dict(margin=2.1))
    return ConfigDict(
        dict(
            paper="arXiv 2503.11240",
            claim="on sparse rewards B2-DiffuRL ends with more reward than DDPO, and its samples are not less diverse",
            scaled_down="points in the plane from the exact model of 8 Gaussians, in place of Stable Diffusion 1.4",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "ddpo": dict(config="denoising:ddpo", fields=fields),
                    "b2": dict(config="denoising:b2_diffurl", fields=fields),
                },
                metrics=dict(paid="eval/return", spread="episode/spread"),
                points=4,
            ),
            seeds=tuple(range(10)),
            metric="paid",
            expected=(
                dict(metric="paid", increasing=("ddpo", "b2"), by=0.0),
                dict(metric="spread", increasing=("ddpo", "b2"), by=-0.02),
            ),
            tried=2,  # first a margin of 1.5, which a quarter of the samples clear: both arms ended at .998
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms=dict(ddpo=dict(config="denoising:smoke,ddpo"), b2=dict(config="denoising:smoke,b2_diffurl")),
                    points=2,
                ),
            ),
        )
    )
