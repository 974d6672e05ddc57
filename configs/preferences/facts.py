"""Fact-RLHF, a reward model that sees facts and a policy that does not: arXiv 2309.14525. Generated sums.

    loss = -log sigma(r(facts, q, y_w) - r(facts, q, y_l));   then PPO on r(facts, q, y) - beta KL, y from pi(. | q)

The fact is the result of the sum; in the paper a caption or the options of a question, in front of an image's
question. The verifier's reward is only logged, as `task`. Departs from the paper: no images, and its symbolic rewards
(correctness of multiple choice, length penalty) are further terms of config.reward.terms, not used here. Arguments:
`model` (the reward model), `ppo` (without a word, too), `blind` (the control, of both: nobody sees the fact), `smoke`.

    python -m experiments.reward_model --config=configs/preferences/facts.py:model
    python -m experiments.ppo --config=configs/preferences/facts.py
"""

from configs import common, ppo_common
from configs.preferences import reward_models
from configs.tasks import arithmetic

TEMPLATE = "Fact: {answer}\n{prompt}"


def get_config(arg: str | None = None):
    words = common.parse(arg, ("model", "ppo", "blind", "smoke"))
    if {"model", "ppo"} <= words:
        raise ValueError("choose one stage, not 2: model, ppo")
    blind, smoke = "blind" in words, "smoke" if "smoke" in words else None
    run = "_".join(["smoke_facts" if smoke else "facts", *(["blind"] if blind else []), "model"])
    config = reward_models.get_config(smoke) if "model" in words else policy(f"runs/{run}", smoke)
    config.name = run if "model" in words else run.removesuffix("model") + "ppo"
    template = "{prompt}" if blind else TEMPLATE
    if "model" in words:
        config.data = dict(name="privileged", template=template, data_dir=common.DATA_DIR)
        config.rollout.update(completion_length=24, prompt_buckets=(40,))
    else:
        config.task = dict(name="rl_jax.preferences.privileged:load_task", of=config.task.to_dict(), template=template)
    return config


def policy(path: str, smoke: str | None):
    """PPO on the reward model."""
    config = arithmetic.get_config(smoke)
    config.judge = dict(facts=dict(fn="reward_model", path=path))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
    return ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
