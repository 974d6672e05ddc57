"""One reward model's policy gains gold reward and loses a part of it again; that of five loses less, and ends higher.

    python -m experiments.ablation rlhf_ensemble_unseen

Coste et al. (arXiv 2310.02743, section 5.2), policy gradients with a small KL. Labels are of another language model's
texts, as those of public data are. That one writes 20 common words, of values from -1 to 1; the policy also writes 160
others, 15 % of its words, all of them bad. Labels hardly speak of these (.6 % of their words): what a reward model says
of one is where it started. So the policy first finds the common words that are good, then words of these others that
its reward model likes. Five reward models, from initial params of their own, like different ones.

`single` is the first of five reward models, `mean` and `worst` all five, standardized before they are combined and not
again, as in the paper. Gold is of the samples of 12 windows of 40 steps. `fell` is how much lower it is in the last
window than in the best one, which is chosen on other samples than those that are compared, so that noise adds nothing.

The six designs before this one are in rlhf_ensemble.py and its kin: members shared their errors, or what lowers gold
was written too seldom to be found. Tried before this one's seeds, about 25 settings with seeds 900 to 903, of which
`single` fell in most and five hardly in any: labels of the policy's own texts (gold falls less); coefficients of the
KL from .003 (a policy that stops exploring before it finds a bad word) and falling ones to .02 and .03; 40 to 200
unseen words, 3 to 20 % of the texts, worth -2 to -4; 100 to 300 steps of the reward models, none to a quarter of the
labels flipped; texts that may end early (one of four policies wrote empty ones from the start). With the settings below
gold of `single` rose to .67 and fell to .47, that of `mean` .72 and .69, of `worst` .76 and .76. The statements were
written before the seeds below were run.

Afterwards: all as stated but one, which is undecided: of 20 policies on the worst of five, one lost .48. That arm's
reward varies more, so that it goes further with the same coefficient (a KL of 14, against 11.6 and 10.6). The same
statements with 60 fresh seeds are in rlhf_ensemble_holds.py.
"""

from ml_collections import ConfigDict

from configs.papers import rlhf_ensemble_words


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward; others: of the reward models that `single` is not trained on."""
    config = rlhf_ensemble_words.get_ablation()
    settings = config.settings
    settings.task = dict(
        fn="unseen_words_task",
        words=6,
        topics=8,
        common=10,
        unseen=80,
        share=0.15,
        value=-3.0,
        count=2000,
        seed=0,
    )
    settings.update(columns=(3, 6), standardized_again=False, prompts=32, steps=480)
    settings.labels = dict(prompts=512, pairs=384, flipped=0.15, task=dict(share=0.0))
    settings.training.update(steps=120, batch_size=32)
    settings.improving.update(kl_coef=0.03, learning_rate=3e-3)
    config.update(
        claim="on one reward model a policy's gold reward rises and falls; on five it loses less, and ends higher",
        scaled_down="a 0.03M-parameter transformer on generated texts with unlabelled words; gold is a table of values",
        seeds=tuple(range(20)),
        tried=25,
        expected=(
            dict(metric="rise", arm="single", at_least=0.5),
            dict(metric="fell", arm="single", at_least=0.05),
            dict(metric="after", increasing=("single", "mean"), by=0.0),
            dict(metric="after", increasing=("single", "worst"), by=0.0),
            dict(metric="fell", increasing=("mean", "single"), by=0.0),
            dict(metric="fell", increasing=("worst", "single"), by=0.0),
        ),
    )
    return config
