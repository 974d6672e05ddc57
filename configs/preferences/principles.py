"""SALMON, a principle-following reward model: arXiv 2310.05910. Generated lists, to be short or long.

    python -m experiments.reward_model --config=configs/preferences/principles.py --workdir=runs/principles

    loss = -log sigma(r(principle, q, y_w) - r(principle, q, y_l)),   y_w as the principle says

The principle is a line before the question, and half of the principles are negations of the opposite one, so that the
model has to read them. `policy` is PPO on this reward model: the policy reads the question alone, the judge the
principle and the question (a record's info["judge_prompt"]), so that a principle of a test turns a policy's taste
without new labels. Its principles say short; with `reversed` long, which the same reward model judges.

    python -m experiments.ppo --config=configs/preferences/principles.py:policy

The reward model, as it is here, is right on all of 256 held-out pairs after its 120 steps (one seed). A policy of 2
layers of 32 units, 200 steps of warm start on lists of both tastes and 40 of PPO on 64 rows: from 2.3 numbers to 1.0 by
the principles for short lists, to 4.1 by those for long ones, by the same reward model (16 held-out samples each).

Arguments: `order` (numbers that rise or fall), `blind` (the control: the principle is left out. Of two answers it is
right half of the time; of the four that are made here, one reward can like both ends: .84), `policy`, `reversed`
(a policy, too), `smoke`.
"""

from configs import common, ppo_common
from configs.preferences import reward_models
from configs.tasks import arithmetic

PROMPT, COMPLETION = 64, 24  # characters


def get_config(arg: str | None = None):
    words = common.parse(arg, ("order", "blind", "policy", "reversed", "smoke"))
    if words & {"policy", "reversed"}:
        return policy(words)
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["principles", *sorted(words & {"order", "blind"})])
    world = "order" if "order" in words else "length"
    config.data = dict(name="principles", world=world, data_dir=common.DATA_DIR)
    if "blind" in words:
        config.data = dict(name="generated", kind="pairs", world=world, data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=COMPLETION, prompt_buckets=(PROMPT,))
    return config


def policy(words: set[str]):
    """PPO on the reward model of the same world, with a principle that the policy does not see."""
    if "blind" in words:
        raise ValueError("blind is a reward model without principles; leave out policy and reversed")
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["principles", *sorted(words & {"order", "policy", "reversed"})])
    world = "order" if "order" in words else "length"
    data = dict(name="principles", world=world, judged_by=int("reversed" in words), data_dir=common.DATA_DIR)
    config.task = dict(name="rl_jax.preferences.prompt_task:load", data=data)
    config.rollout.update(completion_length=COMPLETION, prompt_buckets=(24,))
    config.judge = dict(principle=dict(fn="reward_model", path="runs/principles" + "_order" * ("order" in words)))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
    return ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
