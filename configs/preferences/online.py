"""Online DPO (OAIF, arXiv 2402.04792) on random sums, and the fields of every run that samples its own preferences.

    python -m experiments.online_dpo --config=configs/preferences/online.py --workdir=runs/online_dpo

Two samples per prompt, the verifier decides which is better, and DPO trains on the pair at once. Arguments: `smoke`;
`stories` takes the setting of configs/tasks/stories_sentiment.py, `stories260k` that of its real data.
"""

from ml_collections import ConfigDict

from configs import common
from configs.preferences import given
from configs.tasks import stories_sentiment
from configs.tasks.arithmetic import get_config as arithmetic  # not the module: its sweeps are of GRPO's fields


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "stories", "stories260k"))
    real = words & {"stories260k"}
    config = of(stories_sentiment.get_config(*real) if real or "stories" in words else arithmetic())
    if real or "stories" in words:
        config.sample.update(prompts_per_step=16, prompts_per_batch=16, group_size=4)
        config.algorithm.pair_selection = dict(fn="best_worst")
        config.train.update(steps=60, batch_size=16)
        config.algorithm.update(beta=0.1)
        config.train.optimizer = common.optimizer(
            learning_rate=3e-4, warmup_steps=5, decay_steps=55, final_fraction=0.1
        )
    return smoke(config) if "smoke" in words else config


def of(config: ConfigDict) -> ConfigDict:
    """Turns a config of experiments.grpo (task, model, rollouts, warm start) into one of experiments.online_dpo."""
    config.program = "online_dpo"
    config.name = f"{config.name}_online_dpo"
    config.algorithm = given.dpo(**choices())
    # steps counts sets of samples, epochs the passes over each set's pairs.
    config.train = given.train(steps=100, epochs=1)
    del config.train["data_epochs"], config.train["reference_cache"]
    config.sample = sample()
    for group in ("schedules", "foreign"):  # of grpo and ppo
        if group in config:
            del config[group]
    return config


def sample() -> ConfigDict:
    """config.sample: the candidates of a step."""
    return ConfigDict(
        dict(
            prompts_per_step=32,  # an update takes train.batch_size of their pairs
            prompts_per_batch=32,  # per call of the sampler
            group_size=2,  # candidates per prompt
            **common.PROMPTS,
            # Sampled from pi^(1 - share) ref^share. 0: the policy; 1: the reference (RSO, EGPO).
            share=0.0,
            # Further samples, with a share of their own. candidates: may be chosen, too (XPO: 1 sample, share 1.0);
            # False: they are only compared with (Nash-MD: value win_rate_against, a share in between).
            opponents=dict(samples=0, share=1.0, candidates=True),
            # Further candidates, from the record: its "completion" (SPIN: pair_selection data_first), or the two
            # responses of given "pairs" (HyPO: pair_selection given_pair), which get no reward.
            data="",
            pairs=dict(name="jsonl", path=""),  # the keywords of rl_jax.preferences.load
            missing_eos_penalty=0.0,  # subtracted from the reward of a truncated completion
        )
    )


def choices() -> dict:
    """The fields of config.algorithm besides DPO's slots: the candidates compared, and the moves of the reference."""
    return dict(
        candidate_value=dict(fn="reward"),  # rl_jax.selection.candidate_values: the objective's `rewards`
        pair_selection=dict(fn="first_pair"),  # rl_jax.selection.pair_selection
        reference_schedule=dict(fn="fixed"),  # rl_jax.selection.reference_policy
        # EGPO (opponents of the policy, share 0): look ahead one step, then update against the policy there.
        extragradient=False,
        # The first reference: mixed with this share of another run's params (SALSA).
        reference_soup=dict(init_from="", weight=0.5),
    )


def smoke(config: ConfigDict) -> ConfigDict:
    """The same program at the smallest size."""
    config.sft.steps = min(config.sft.steps, 20)
    config.sft.eval_every = 20
    config.train.update(steps=4, batch_size=8)
    config.sample.update(prompts_per_step=8, prompts_per_batch=8)
    config.eval.update(every=2, num_prompts=16, samples_per_prompt=1, batch_size=16)
    config.checkpoint.every = 2
    return config
