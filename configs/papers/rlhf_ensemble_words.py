"""A language model that is trained on one reward model loses gold reward; on five together it gains more, and keeps it.

    python -m experiments.ablation rlhf_ensemble_words

Coste et al. (arXiv 2310.02743, section 5.2), policy gradients with a small KL. In rlhf_ensemble.py and its kin the
policy leaves what the reward models were trained on within 10 steps, for spellings that all five rate highly. Here
tokens are words, so that what is written stays a text; a quarter of the sentences say nothing good or bad, as "Sue met
a red fox at home", and have a gold reward of .5. A reward model of few, partly wrong labels likes some of these better
than good sentences, another one others.

`single` is the first of five reward models, `mean` and `worst` all five. All are standardized, before and after they
are combined, so that the coefficient of the KL means the same in each arm. Gold is of the samples of 12 windows of 10
steps; `lost` is what of the best window is gone in the last.

Tried before, with seeds 900 to 905, the gold reward of the last window by one, the mean and the worst of five. Stories
of three sentences, half of them without a mood, larger models: 64 pairs .56, .58 (five with pairs of their own .77);
256 pairs .83, .75, .83, where a KL of 16 is one text per prompt. Two sentences, half without a mood, 128 pairs: .67,
.99, .75. These sentences: 64 pairs .50, .98, .98 and .67, .75, .74 and .63, .71; 128 pairs .77, .89, .99 and .99, 1.00,
the only ones whose combined reward was standardized. 96 pairs, between the last two, were not tried. The statements
were written before the seeds below were run.

Afterwards: undecided, and one model is ahead. The other members like what `single` writes less than its own does (.73
deviations, against 1.52), but most policies end near .5, .75 or 1, whatever they are trained on: near .5 in three of
ten seeds in each arm, not the same three. The mean of five varies less than one does, so that standardized once more it
is pressed harder: a KL of 15 (worst: 18), against 11.
"""

from ml_collections import ConfigDict

FIVE = dict(members=5)
SMALL = dict(embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, mlp_dim=16)


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; others: of the reward models that `single` is not trained on."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.02743",
            claim="trained on one reward model a policy gains gold reward and loses it; on five it ends higher",
            scaled_down="a 0.02M-parameter transformer on generated stories of words; gold is a lexicon",
            study="optimized_policy",
            settings=dict(
                arms=dict(
                    single=dict(members=1, combine="mean"),
                    mean=dict(FIVE, combine="mean"),
                    worst=dict(FIVE, combine="worst_case"),
                ),
                task=dict(fn="story_task", count=4000, sentences=2, moody=0.75, seed=0),
                columns=(12, 18),
                policy=dict(
                    sizes=dict(embed_dim=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16, mlp_dim=64),
                    steps=400,
                    batch_size=64,
                    learning_rate=3e-3,
                ),
                labels=dict(prompts=192, pairs=96, flipped=0.25, task={}),
                training=dict(members=5, steps=60, batch_size=24, learning_rate=1e-3),
                improving=dict(group_size=4, kl_coef=0.03, learning_rate=2e-3),
                standardized_again=True,
                prompts=16,
                steps=120,
                windows=12,
            ),
            seeds=tuple(range(10)),
            tried=6,
            metric="after",
            expected=(
                dict(metric="rise", arm="single", at_least=0.05),
                dict(metric="lost", arm="single", at_least=0.02),
                dict(metric="after", increasing=("single", "mean"), by=0.0),
                dict(metric="after", increasing=("single", "worst"), by=0.0),
                dict(metric="lost", increasing=("mean", "single"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    task=dict(count=600),
                    policy=dict(steps=4, batch_size=4, sizes=SMALL),
                    labels=dict(prompts=16, pairs=4),
                    training=dict(members=2, steps=2, batch_size=2),
                    arms=dict(mean=dict(members=2), worst=dict(members=2)),
                    prompts=2,
                    steps=2,
                    windows=2,
                ),
            ),
        )
    )
