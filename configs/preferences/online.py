"""Online DPO (OAIF, arXiv 2402.04792) on random sums, and the fields of every run that samples its own preferences.

    python -m experiments.online_dpo --config=configs/preferences/online.py --workdir=runs/online_dpo

Two samples of each prompt, the verifier says which is better, DPO on the pair at once. Arguments: `smoke`; `stories`
takes the setting of configs/tasks/stories_sentiment.py, `stories260k` that of its real data.
"""

from ml_collections import ConfigDict

from configs import common
from configs.preferences import given
from configs.tasks import arithmetic, stories_sentiment


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "stories", "stories260k"))
    real = words & {"stories260k"}
    config = of(stories_sentiment.get_config(*real) if real or "stories" in words else arithmetic.get_config())
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
    """A config of experiments.grpo with its task, model, rollouts and warm start, for experiments.online_dpo."""
    config.program = "online_dpo"
    config.name = f"{config.name}_online_dpo"
    config.algorithm = given.dpo(**choices())
    # steps counts sets of samples, epochs the passes over the pairs of each.
    config.train = given.train(steps=100, epochs=1)
    del config.train["data_epochs"], config.train["reference_cache"]
    config.sample = sample()
    return config


def sample() -> ConfigDict:
    """config.sample: the candidates of a step."""
    return ConfigDict(
        dict(
            prompts_per_step=32,  # train.batch_size of their pairs are one update
            prompts_per_batch=32,  # of one call of the sampler
            group_size=2,  # candidates of each prompt
            # They are sampled from pi^(1 - share) ref^share. 0: the policy; 1: the reference (RSO, EGPO).
            share=0.0,
            # Further samples, at a share of their own. candidates: they may be chosen, too (XPO: 1 sample, share 1.0);
            # False: they are only compared with (Nash-MD: value win_rate_against, a share in between).
            opponents=dict(samples=0, share=1.0, candidates=True),
            # Further candidates, of the record itself: its "completion" (SPIN: pair_selection data_first), or the two
            # responses of given "pairs" (HyPO: pair_selection given_pair), which are not judged.
            data="",
            pairs=dict(name="jsonl", path=""),  # the keywords of rl_jax.preferences.load
            missing_eos_penalty=0.0,  # taken from the reward of a completion that was cut off
            judge="",  # "": the task's verifier; else the workdir of a reward model (experiments.reward_model)
        )
    )


def choices() -> dict:
    """What config.algorithm has beside DPO's slots: which candidates are compared, and when the reference moves."""
    return dict(
        candidate_value=dict(fn="reward"),  # rl_jax.selection.candidate_values: the objective's `rewards`
        pair_selection=dict(fn="first_pair"),  # rl_jax.selection.pair_selection
        reference_schedule=dict(fn="fixed"),  # rl_jax.selection.reference_policy
        # EGPO (opponents of the policy at a share of 0): a trial step, then the real one against where it led.
        extragradient=False,
        # The first reference: so much of another run's params (SALSA).
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
