"""RLHF on a language model: the gold reward rises under its proxy, then falls, and an ensemble holds it longer.

    python -m experiments.ablation rlhf_ensemble

Coste et al. (arXiv 2310.02743) with the stages of `make rlhf`, shorter: samples of a fine-tuned policy, ranked by the
gold reward (a lexicon's) with a quarter of the rankings reversed; eight reward models on them; PPO and GRPO without KL
or SFT loss, on one reward model or on the worst of five. Seed s has reward model s, or s to s + 4 (modulo 8): policies
are independent given the samples and the pool of reward models, which all seeds share. The gold reward of held-out
prompts every 4 steps: `rise` is the gain of `peak`, the best evaluation, over the start; `lost` is what of the peak is
gone at the end; `mean` is over all evaluations. The peak is the best of 11 noisy evaluations of 64 prompts, so that
`rise` and `lost` are about .05 by construction, of a policy that stays as it is, too; the measured ones, .17 to .24 of
`single` and `grpo`, are well above it. The fall is to about .5, which a text without a mood has.

The paper's reward models have 14M to 1.3B parameters, and its policies are of Pythia 1.4B.

Tried before: 40 steps of these sizes, evaluated every 10 steps, 3 seeds (docs/pages/over_optimization.md), where the
ensemble's peak was higher in two of three; then, of these settings, `single` with the samples and the reward model of
seed 100.

Afterwards, with the samples of seed 100 and reward models 100 to 104: all five rate what a policy writes that has
over-optimised one of them above good stories; so do their mean, worst and UWO. Standardised, with smaller steps and
a KL of .01, three ensembles ended at .86 to .96, five single models at .51 to .97 (docs/pages/over_optimization.md): no
claim yet.
"""

from ml_collections import ConfigDict

RLHF = "configs/preferences/rlhf.py"
POOL, MEMBERS, SEEDS = 8, 5, 8


def model(number: int, pool: int) -> str:
    """The folder of a reward model of the pool."""
    return f"{{folder}}/reward_model_{number % pool}"


def given(seeds: int, pool: int) -> dict:
    """Where the policies of each arm and seed start, and what they are trained on."""
    start = "--config.init_from={folder}/candidates/sft"

    def on(path, seed: int, *, critic: bool = True) -> tuple[str, ...]:
        judged = (start, f"--config.judge.proxy.path={path}")
        return (*judged, f"--config.critic.init_from={model(seed, pool)}") if critic else judged

    members = [tuple(model(seed + member, pool) for member in range(MEMBERS)) for seed in range(seeds)]
    return dict(
        single=[on(model(seed, pool), seed) for seed in range(seeds)],
        ensemble=[on(members[seed], seed) for seed in range(seeds)],
        grpo=[on(model(seed, pool), seed, critic=False) for seed in range(seeds)],
    )


def stages(size: str, pool: int) -> tuple[dict, ...]:
    """What all seeds share, in order: the samples and the reward models."""
    on = (
        "--config.algorithm.standardize=False",  # as it was run
        "--config.init_from={folder}/candidates/sft",
        "--config.data.path={folder}/candidates/rankings.jsonl",
    )
    samples = dict(name="candidates", program="best_of_n", config=f"{RLHF}:{size},candidates", given=())
    models = (
        dict(
            name=f"reward_model_{number}",
            program="reward_model",
            config=f"{RLHF}:{size},reward_model",
            given=(f"--config.seed={number}", *on),
        )
        for number in range(pool)
    )
    return (samples, *models)


def get_ablation() -> ConfigDict:
    """Metrics of the gold reward (`eval/task`); proxy: of the reward that is trained on."""
    arms = {"single": "ppo", "ensemble": "ensemble,ppo", "grpo": "grpo"}
    return ConfigDict(
        dict(
            paper="arXiv 2310.02743",
            claim="the gold reward rises under a learned proxy and falls again, later under the worst of five",
            scaled_down="a 0.2M-parameter transformer on generated stories, 40 steps of 32 samples; gold is a lexicon",
            program=dict(single="ppo", ensemble="ppo", grpo="grpo"),
            stages=stages("short", POOL),
            arms={arm: f"{RLHF}:short,{words}" for arm, words in arms.items()},
            given=given(SEEDS, POOL),
            seeds=tuple(range(SEEDS)),
            tried=2,
            evaluated="eval/task",
            also=dict(proxy="eval/reward"),
            metric="mean",
            expected=(
                dict(metric="proxy_gain", arm="single", at_least=0.0),
                dict(metric="rise", arm="single", at_least=0.05),
                dict(metric="lost", arm="single", at_least=0.05),
                dict(metric="rise", arm="grpo", at_least=0.05),
                dict(metric="lost", arm="grpo", at_least=0.05),
                dict(metric="mean", increasing=("single", "ensemble"), by=0.0),
            ),
            smoke=dict(
                seeds=(0, 1),
                stages=stages("short,smoke", 2),
                given=given(2, 2),
                arms={arm: f"{RLHF}:short,smoke,{words}" for arm, words in arms.items()},
            ),
        )
    )
