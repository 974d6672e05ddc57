"""One reward model's policy gains gold reward and loses it again; that of five gains more, and keeps it.

    python -m experiments.ablation rlhf_ensemble_rare

Coste et al. (arXiv 2310.02743, section 5.2), policy gradients with a small KL. Texts are 12 distinct words. Common ones
have values of their own; 1.5 % of what is written are rare words, which are bad, and of which few or no labels speak.
What a reward model says of these is mostly where it started, so five of them, from initial params of their own, differ.

`single` is the first of five reward models, `mean` and `worst` all five, standardized before they are combined and not
again, as in the paper. Gold is of the samples of 12 windows of 20 steps; `lost` is what of the best window is gone in
the last.

The five designs before this one are in rlhf_ensemble.py and its kin: there members shared their errors, or a policy of
a few texts ended at one of a few values. Tried before this one's seeds, with seeds 900 to 913: coefficients of the KL
from .05 to 0 (at .01 and above gold hardly falls); rare words 1 to 10 % of the texts, worth -1 to -3 (at -3, with 256
pairs, the mean of five fell as well in one of three); 128 to 384 pairs; words that are bad when repeated (gold falls
from the start). Below .05 the mean of five ended ahead of one in 27 of 28 runs, the worst of five in 9 of 10. With the
settings below, or 120 more steps, one lost .00 to .12 of its best window, the mean .00 to .05, in seven. The statements
were written before the seeds below were run.
"""

from ml_collections import ConfigDict

from configs.papers import rlhf_ensemble_words


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; others: of the reward models that `single` is not trained on."""
    config = rlhf_ensemble_words.get_ablation()
    settings = config.settings
    settings.task = dict(
        fn="rare_words_task",
        words=12,
        topics=8,
        common=40,
        rare=40,
        rare_share=0.015,
        rare_value=-2.0,
        count=2000,
        seed=0,
    )
    settings.update(columns=(3, 14), standardized_again=False, prompts=32, steps=240)
    settings.labels.update(prompts=384, pairs=384)
    settings.training.update(steps=100, batch_size=32)
    settings.improving.kl_coef = 0.003
    config.update(
        claim="trained on one reward model a policy gains gold reward and loses some; on five it keeps more",
        scaled_down="a 0.03M-parameter transformer on generated texts with rare words; gold is a table of values",
        seeds=tuple(range(20)),
        tried=9,
        expected=(
            dict(metric="rise", arm="single", at_least=0.05),
            dict(metric="lost", arm="single", at_least=0.01),
            dict(metric="after", increasing=("single", "mean"), by=0.0),
            dict(metric="after", increasing=("single", "worst"), by=0.0),
            dict(metric="lost", increasing=("mean", "single"), by=0.0),
            dict(metric="lost", increasing=("worst", "single"), by=0.0),
        ),
    )
    return config
