"""The mean of five reward models lets a policy gain more gold reward than one does: fresh seeds.

    python -m experiments.ablation rlhf_ensemble_mean

Coste et al. (arXiv 2310.02743, section 5.2). The study of rlhf_ensemble_rare.py, whose 20 seeds left the worst of five
undecided and were for their mean. Here are the statements about the mean alone, with 30 seeds that nothing was chosen
on. They were written before these were run.

Afterwards: reproduced as stated. The mean over the seeds rises to the end in both arms, though: `lost`, the best window
less the last one, counts single seeds that fell, and noise. That five hold longer where one falls is not shown here.
"""

from ml_collections import ConfigDict

from configs.papers import rlhf_ensemble_rare


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; others: of the reward models that `single` is not trained on."""
    config = rlhf_ensemble_rare.get_ablation()
    for settings in (config.settings, config.smoke.settings):
        del settings.arms.worst
    config.update(
        dict(
            claim="of the gold reward that a policy gains, the mean of five reward models keeps more than one does",
            seeds=tuple(range(100, 130)),
            expected=(
                dict(metric="rise", arm="single", at_least=0.05),
                dict(metric="lost", arm="single", at_least=0.01),
                dict(metric="after", increasing=("single", "mean"), by=0.0),
                dict(metric="lost", increasing=("mean", "single"), by=0.0),
            ),
        )
    )
    return config
