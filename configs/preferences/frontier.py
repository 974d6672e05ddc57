"""Reward against KL on stories: the controlled sentiment of arXiv 2305.18290 (section 6.1), with many methods.

    python -m experiments.frontier            # or: make preferences

DPO, IPO, KTO, SimPO and SPPO train on the same pairs, the best and the worst of eight samples of the reference; PPO and
GRPO sample for themselves. Each runs at a few strengths of its KL term and is measured on held-out prompts along the
way. The reference is a small model fine-tuned on generated stories, the gold reward a lexicon's. Arguments:
`stories260k` takes the pretrained stories260K and a sentiment model trained on SST-2, on which the strengths were
chosen (2 cores: under 20 minutes); `smoke`.
"""

from ml_collections import ConfigDict

from configs import common, ppo_common
from configs.preferences import online
from configs.tasks import stories_sentiment

OF_SAMPLED = ("schedules", "foreign")  # groups of grpo and ppo, which a config of online_dpo has not


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke", "stories260k"))
    real = words & {"stories260k"}
    config = stories_sentiment.get_config(*real)
    sampled = {name: config[name].to_dict() for name in ("algorithm", "train", "sample", *OF_SAMPLED)}
    config = online.of(config)
    config.program, config.name = "frontier", "frontier"
    config.log.update(progress=False, tensorboard=False)
    config.reward.num_workers = 0  # grading a sentence costs less than sending it to a worker
    config.eval.update(num_prompts=234, samples_per_prompt=2, batch_size=117)
    # algorithm, train and sample are the offline arms'. Pairs from one set of candidates, sampled from the
    # reference, are the data of all offline methods.
    config.sample.update(share=1.0, group_size=8, prompts_per_step=1024, prompts_per_batch=64)
    config.train.update(batch_size=32, epochs=2)
    config.train.optimizer = common.optimizer(learning_rate=1e-4, warmup_steps=5, decay_steps=59, final_fraction=0.1)
    config.algorithm.pair_selection = dict(fn="best_worst")
    # The same groups for the arms that sample for themselves.
    sampled["sample"].update(prompts_per_step=16, group_size=8)
    sampled["train"].update(steps=48)
    sampled["train"]["optimizer"]["decay_steps"] = 43
    sampled["algorithm"].update(kl_coef=0.0, measure_kl=False)
    of_ppo = {name: value for name, value in sampled["algorithm"].items() if name != "advantage"}
    config.programs = dict(grpo=sampled, ppo=sampled | dict(algorithm=of_ppo, critic=ppo_common.critic()))
    config.frontier = dict(
        title=f"Reward against KL: {'stories260K' if real else 'generated stories'}, sentiment of the continuation",
        points=4,  # measurements per arm at most, evenly spaced, and the last at its end
        budgets=(0.5, 1.0, 2.0, 5.0, 10.0, 20.0),  # of the table, nats per sequence
        best_of=(2, 4, 8, 16),  # the reference's best of so many samples
        arms=tuple(arms()),  # the arms to run, in this order
    )
    config.arms = arms()
    return smoke(config) if "smoke" in words else config


def arms() -> dict[str, dict]:
    """name -> program ("dpo", "grpo", "ppo"), method and setting for the table, and the fields that differ by group."""
    result = {}

    def add(method: str, setting: str, program: str, groups: dict | None = None, **algorithm):
        result[f"{method} {setting}".replace(" ", "_").replace(".", "p")] = dict(
            method=method, setting=setting, program=program, fields=dict(algorithm=algorithm) | (groups or {})
        )

    for beta in (0.1, 0.3, 1.0):
        add("DPO", f"beta {beta}", "dpo", beta=beta)
    for tau in (0.02, 0.05, 0.2):
        add("IPO", f"tau {tau}", "dpo", beta=1.0, link=dict(fn="square", target=1 / (2 * tau)))
    for beta in (0.1, 0.3):
        slots = dict(compare=dict(fn="anchored"), link=dict(fn="saturating"), batch_stats=dict(fn="kto_anchor"))
        batch = dict(train=dict(batch_size=64))  # each side of a pair is a labelled response
        add("KTO", f"beta {beta}", "dpo", batch, beta=beta, responses=1, **slots)
    for beta in (20.0, 60.0):  # of a mean over 64 tokens: as steep as DPO at 0.3 and 1
        slots = dict(reference={}, length_power=1.0, offset=dict(fn="target_margin", margin=0.5))
        add("SimPO", f"beta {beta}", "dpo", beta=beta, **slots)
    for beta in (0.02, 0.05):
        value = dict(fn="win_rate", temperature=0.1)
        add("SPPO", f"beta {beta}", "dpo", beta=beta, compare=dict(fn="win_rates"), candidate_value=value)
    for kl_coef in (0.1, 0.17):
        add("GRPO", f"KL {kl_coef}", "grpo", kl_coef=kl_coef)
    for kl_coef in (0.003, 0.01):
        add("PPO", f"KL {kl_coef}", "ppo", reward_kl_coef=kl_coef)
    return result


def smoke(config: ConfigDict) -> ConfigDict:
    """The same program at the smallest size: one arm per program and per kind of data, a few steps."""
    config.eval.update(num_prompts=8, samples_per_prompt=2, batch_size=8)
    config.rollout.completion_length = 16
    config.sft.update(steps=min(config.sft.steps, 20), eval_every=20)
    config.sample.update(prompts_per_step=32, prompts_per_batch=16)
    config.train.epochs = 2
    for groups in config.programs.values():
        groups.train.steps = 2
        groups.sample.update(prompts_per_step=4, group_size=2)
    config.frontier.update(points=2, best_of=(2, 4))
    config.frontier.arms = ("DPO_beta_0p1", "KTO_beta_0p1", "SPPO_beta_0p05", "GRPO_KL_0p17", "PPO_KL_0p01")
    return config
