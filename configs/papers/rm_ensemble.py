"""Reward model ensembles (arXiv 2310.02743): five models that disagree are harder to exploit than one.

    python -m experiments.ablation rm_ensemble

The true reward of what best-of-4096 and PPO find, with one reward model fitted to 400 pairs of which a quarter is
flipped, and with five combined: by their mean, by the mean less their variance (UWO), by the worst of them (WCO). Of
two sets of 20 worlds one gave all six statements and one left mean and WCO under best-of-n undecided, hence 60.
"""

from ml_collections import ConfigDict

MEAN = dict(members=5, best_of_n="mean", ppo="mean")
UWO = dict(
    members=5,
    best_of_n=dict(fn="uncertainty_weighted", coef=0.5, ddof=0),
    ppo=dict(fn="uncertainty_weighted", coef=0.1, ddof=1),
)
WCO = dict(members=5, best_of_n="worst_case", ppo="worst_case")


def get_ablation() -> ConfigDict:
    """best_of_n, ppo_at_kl: the true reward, in standard deviations over the reference's responses.

    ppo, the last policy's, compares nothing: the single model goes twice as far from the reference (ppo_kl), and here
    the true reward only rises with the distance. A world where an arm does not reach a KL of 20 (WCO in one of eight)
    is left out where that arm is compared, and counted."""
    return ConfigDict(
        dict(
            paper="arXiv 2310.02743",
            claim="ensembles (mean, UWO, WCO) find more true reward than one, by best-of-n and by PPO at equal KL",
            scaled_down="responses are vectors of 20 numbers, reward models linear in 32 ReLU features",
            study="ensemble_overoptimization",
            settings=dict(
                arms={"single": dict(members=1, best_of_n="mean", ppo="mean"), "mean": MEAN, "uwo": UWO, "wco": WCO},
                world=dict(members=5, dimensions=20, hidden=64, model_hidden=32, pairs=400, flip_rate=0.25),
                best_of=dict(pool=4096, prompts=8),
                policy=dict(kl_coef=0.1, kl_budget=20.0, batch_size=128, steps=150, epochs=2, learning_rate=0.03),
            ),
            seeds=tuple(range(60)),
            tried=2,  # and seeds 20, other 20 and 60
            metric="best_of_n",
            expected=tuple(
                dict(metric=metric, increasing=("single", arm), by=0.0)
                for metric in ("best_of_n", "ppo_at_kl")
                for arm in ("mean", "uwo", "wco")
            ),
            smoke=dict(
                seeds=(0, 1),
                settings=dict(world=dict(pairs=100), best_of=dict(pool=16), policy=dict(steps=10, kl_budget=0.1)),
            ),
        )
    )
