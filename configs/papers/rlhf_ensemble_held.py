"""Whether five reward models go on gaining where one has stopped: the best of 64 to 1,024 samples of a language model.

    python -m experiments.ablation rlhf_ensemble_held

Coste et al. (arXiv 2310.02743, section 5.1), whose reward models start from initial params of their own. Those of
rlhf_ensemble.py, rlhf_ensemble_kl.py and rlhf_ensemble_best_of_n.py start from the policy that is sampled and share
their error; here each starts from nothing, on 64 pairs of which a quarter is reversed. `single` is each of the five
alone, averaged. `held` is the gold reward of the best of 1,024 minus that of the best of 64: a reward model that is
over-optimised gains little from more samples, or loses.

Tried before, with seeds 200 to 203, one policy and 8 or 16 prompts; the gold reward of the best of 256 and of 1,024, by
one and by the mean of five: 150 steps of 32 pairs .731, .693 and .777, .792; 60 steps of 32 .726, .695 and .770, .750,
and .721, .749 and .775, .823; 32 pairs .657, .693 and .713, .734; these settings .660, .640 and .783, .857; two fifths
of the labels reversed .563, .577 and .572, .557, where five are no better. Policy gradients on such reward models,
without a KL, end within 10 steps at text without a mood that all five rate highly, on five as on one. The statements
were written before the seeds below were run.
"""

from ml_collections import ConfigDict

SIZES = tuple(2**power for power in range(11))


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; middle is the best of 64, after the best of 1,024."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.02743",
            claim="from 64 samples to 1,024, the choice of five reward models gains more gold reward than that of one",
            scaled_down="0.2M-parameter transformers on generated stories, 64 labelled pairs; gold is a lexicon",
            study="best_of_many",
            settings=dict(
                arms=dict(single=None, mean="mean", worst="worst_case"),
                policy=dict(
                    sizes=dict(embed_dim=64, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=16, mlp_dim=192),
                    steps=300,
                    batch_size=64,
                    learning_rate=3e-3,
                ),
                labels=dict(prompts=128, pairs=64, flipped=0.25),
                training=dict(members=5, steps=60, batch_size=16, learning_rate=1e-3),
                prompts=16,
                samples=SIZES[-1],
                sizes=SIZES,
                middle=64,
            ),
            seeds=tuple(range(12)),
            tried=5,
            metric="held",
            expected=(
                dict(metric="after", increasing=("single", "mean"), by=0.0),
                dict(metric="after", increasing=("single", "worst"), by=0.0),
                dict(metric="held", increasing=("single", "mean"), by=0.0),
                dict(metric="held", increasing=("single", "worst"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    policy=dict(steps=4, batch_size=4, sizes=dict(embed_dim=16, num_layers=1, mlp_dim=16)),
                    labels=dict(prompts=16, pairs=4),
                    training=dict(members=2, steps=2, batch_size=2),
                    prompts=2,
                    samples=4,
                    sizes=(1, 2, 4),
                    middle=2,
                ),
            ),
        )
    )
