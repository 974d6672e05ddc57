"""MaxMin-RLHF, a policy for groups of different tastes: arXiv 2402.08925. Generated lists.

    max_pi min_u E_{y ~ pi}[r_u(q, y)] - beta KL(pi || pi_ref);   groups of annotators by EM on reward models

40 annotators, a quarter of whom want long lists and the others short ones. M step: `group0` and `group1` train a reward
model each on the pairs of their annotators, who are divided at random at first; E step:
experiments.tools.preference_groups; then again with --config.data.assignment=FILE. PPO maximises in each step the
reward of the group with the lowest mean over the step's rows (config.judge.*.combine), as the paper's practical
algorithm does. Each group's rewards are standardised on its held-out responses, since Bradley-Terry does not say what 0
is. Arguments: `group0`, `group1`, `everyone` (a reward model on all pairs), the controls `mean` (the mean over the
groups) and `single` (PPO on that of everyone), `smoke`.

    python -m experiments.reward_model --config=configs/preferences/maxmin.py:group0 --workdir=runs/maxmin_0
    python -m experiments.ppo --config=configs/preferences/maxmin.py

With models of 2 layers of 32 units, 80 steps of the reward models, 200 of the warm start and 40 of PPO on 64 rows, one
seed: one E step put all 40 annotators with their own taste, and each group's model was then right on all of its
held-out pairs (.93 for `everyone` on all). Grades of 16 training samples of the last 10 steps: the majority .50 and the
minority .50 by max-min, 1.00 and .00 by `single`, from .58 and .42 before (held out, at the end: .65 and .35, 1.00 and
.00).
"""

from configs import common, ppo_common
from configs.preferences import reward_models
from configs.tasks import arithmetic

RUNS = ("runs/maxmin_0", "runs/maxmin_1")
MODELS = {"group0": 0, "group1": 1, "everyone": -1}  # whose pairs a reward model is trained on


def get_config(arg: str | None = None):
    words = common.parse(arg, (*MODELS, "mean", "single", "smoke"))
    if len(words - {"smoke"}) > 1:
        named = ", ".join(sorted(words - {"smoke"}))
        raise ValueError(f"choose one of group0, group1, everyone, mean, single, not {named}")
    smoke = "smoke" if "smoke" in words else None
    data = dict(world="length", num_prompts=2_000, data_dir=common.DATA_DIR)
    for word in words & set(MODELS):
        config = reward_models.get_config(smoke)
        config.name = f"maxmin_{word.removeprefix('group')}"
        config.data = dict(name="annotators", annotators=40, minority=0.25, groups=2, assignment="", **data)
        config.data.group = MODELS[word]
        # Bradley-Terry leaves the level of each group's rewards open, and the groups' means are compared.
        config.algorithm.standardize = True
        return config
    config = arithmetic.get_config(smoke)
    config.name = "_".join(["maxmin", *sorted(words & {"mean", "single"})])
    config.task = dict(name="rl_jax.preferences.prompt_task:load", data=dict(name="generated", kind="pairs", **data))
    config.rollout.update(completion_length=16, prompt_buckets=(24,))
    combine = dict(fn="mean" if "mean" in words else "max_min")
    paths = ("runs/maxmin_everyone",) if "single" in words else RUNS
    config.judge = dict(groups=dict(fn="reward_model", path=paths, combine=combine))
    config.algorithm.update(reward_kl=dict(fn="k1"), reward_kl_coef=0.05)
    return ppo_common.with_critic(config, optimizer=common.optimizer(learning_rate=1e-3, warmup_steps=10))
