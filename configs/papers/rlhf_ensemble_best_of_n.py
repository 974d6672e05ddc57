"""Best of n on a language model: an ensemble of reward models goes on where one of them picks worse and worse samples.

    python -m experiments.ablation rlhf_ensemble_best_of_n

Coste et al. (arXiv 2310.02743, section 5.1): the gold reward of the best of n samples, by one reward model or by the
worst or the mean of five. Samples, labels (a quarter reversed) and reward models are those of rlhf_ensemble_kl.py.
Seed s has reward model s, or s to s + 4 (modulo 8), and 128 samples of its own of each of 64 held-out prompts. `after`
is the gold reward of the best of 128, at most 3.9 nats from the policy; `lost` what of the best n's is gone by then. It
is not negative, so its mean is not 0 where there is only noise, of any arm.

Tried before, with samples and reward models 100 to 102, n up to 128 and 48 prompts: one model ends at .77, .75, .67 (at
.72, .74, .80 if each starts from a fine-tuned policy of its own), having lost .00, .00 and .06; the worst of three ends
at .77 (.81), their mean at .81, and neither has lost anything. The statements were written before the seeds below were
run; 256 samples took too long.
"""

from ml_collections import ConfigDict

from configs.papers import rlhf_ensemble, rlhf_ensemble_kl

POOL, MEMBERS, SEEDS = rlhf_ensemble.POOL, rlhf_ensemble.MEMBERS, rlhf_ensemble.SEEDS


def given(seeds: int, pool: int) -> dict:
    """The samples' policy and the reward models that choose, of each arm and seed."""
    start = "--config.init_from={folder}/candidates/sft"
    of_seed = [[rlhf_ensemble.model(seed + member, pool) for member in range(MEMBERS)] for seed in range(seeds)]
    five = [(start, f"--config.best_of_n.proxies={','.join(models)}") for models in of_seed]
    return dict(
        single=[(start, f"--config.best_of_n.proxies={models[0]}") for models in of_seed],
        worst=five,
        mean=[(*options, "--config.best_of_n.combine.fn=mean") for options in five],
    )


def arms(size: str) -> dict:
    """The configs, with the words of `size`."""
    one, five = (f"{rlhf_ensemble.RLHF}:{size}{words}" for words in ("best_of_n", "best_of_n,ensemble"))
    return dict(single=one, worst=five, mean=five)


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward over n (`eval/task`); proxy: of the reward that chooses."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.02743",
            claim="of many samples, those that five reward models choose are better than those of one",
            scaled_down="a 0.2M-parameter transformer on generated stories, 128 samples a prompt; gold is a lexicon",
            program="best_of_n",
            stages=rlhf_ensemble_kl.stages("short", POOL),
            arms=arms(""),
            given=given(SEEDS, POOL),
            seeds=tuple(range(SEEDS)),
            tried=2,
            evaluated="eval/task",
            also=dict(proxy="eval/proxy"),
            metric="after",
            expected=(
                dict(metric="rise", arm="single", at_least=0.05),
                dict(metric="after", increasing=("single", "worst"), by=0.0),
                dict(metric="after", increasing=("single", "mean"), by=0.0),
                dict(metric="lost", increasing=("worst", "single"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                stages=rlhf_ensemble_kl.stages("short,smoke", 2),
                given=given(2, 2),
                arms=arms("smoke,"),
            ),
        )
    )
