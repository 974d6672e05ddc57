"""One reward model's policy gains gold reward and loses a part of it again; that of five holds longer: fresh seeds.

    python -m experiments.ablation rlhf_ensemble_holds

Coste et al. (arXiv 2310.02743, section 5.2). The study and the statements of rlhf_ensemble_unseen.py, whose 20 seeds
left one of six undecided (39 to 40 more would do, it said), with 60 seeds that nothing was chosen on. This was written
before they were run.

Afterwards: reproduced, all six statements. One reward model's policy rises to .60 and ends at .40; on the mean of five
.68 and .60 at the same KL (10.6, 10.4), on the worst of five .77 and .73 at 13.8. More than .05 are lost in 54, 41 and
17 of the 60. How long they hold is in the curves: the mean over the seeds is .05 under its best from 80 to 120 steps
after it on one, 280 steps after it on the mean of five, not within the run on the worst.
"""

from ml_collections import ConfigDict

from configs.papers import rlhf_ensemble_unseen


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; others: of the reward models that `single` is not trained on."""
    config = rlhf_ensemble_unseen.get_ablation()
    config.seeds = tuple(range(100, 160))
    return config
