"""Dynamic sampling (DAPO, arXiv 2503.14476) after as many samples, and not after as many updates.

    python -m experiments.ablation dynamic_sampling_samples

The paper counts updates (dynamic_sampling) and says that the samples thrown away cost little time. Undecided: as many
samples teach the same (.34 both), in half as many updates.
"""

from ml_collections import ConfigDict

from configs.papers import dynamic_sampling


def get_ablation() -> ConfigDict:
    """reward_at_budget: after as many samples as 150 updates without dynamic sampling take."""
    ablation = dynamic_sampling.get_ablation()
    ablation.claim = "after as many samples, groups drawn again until their rewards differ have learned more"
    ablation.metric = "reward_at_budget"
    ablation.expected = (dict(metric="reward_at_budget", increasing=("uniform", "dynamic"), by=0.0),)
    return ablation
