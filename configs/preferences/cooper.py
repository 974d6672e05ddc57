"""Cooper, a reward model that is trained beside the policy on verified answers: arXiv 2508.05613. Generated sums.

    policy:   GRPO on r(q, a, y), a the reference answer, which the policy does not see, with a KL (k3)
    model:    -log sigma(r(q, a, y+) - r(q, a, y-)) each step, y+ an answer that the rule finds right, y- the same made
              wrong

    python -m experiments.reward_model --config=configs/preferences/cooper.py:model
    python -m experiments.grpo --config=configs/preferences/cooper.py

The model starts as VerifyRM does, by binary cross-entropy on labelled answers with their reference answers. The rule's
reward is only logged, as `task`: `eval/pass@1` is by it. Departs from the paper: sums; one digit of the answer is
changed by a rule in place of an assistant model (`judge.verify.assistant` takes one); rates and the KL's weight are
ours. Arguments: `model` (the reward model), `frozen` (the control: it is not trained), `smoke`.
"""

from configs import common, sweeps
from configs.preferences.facts import TEMPLATE
from configs.preferences.reward_models import get_config as reward_model
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("model", "frozen", "smoke"))
    if {"model", "frozen"} <= words:
        raise ValueError("model, frozen: the control has the same model; choose one")
    smoke = "smoke" if "smoke" in words else None
    run = "smoke_cooper" if smoke else "cooper"
    if "model" in words:
        config = reward_model(smoke)
        config.data = dict(name="privileged", template=TEMPLATE, data_dir=common.DATA_DIR)
        config.rollout.update(completion_length=24, prompt_buckets=(40,))
        config.algorithm.update(responses=1, loss=dict(fn="outcome"))
    else:
        config = policy(f"runs/{run}_model", smoke, every=0 if "frozen" in words else 1)
    config.name = "_".join([run, *sorted(words & {"model", "frozen"})])
    return config


def policy(path: str, smoke: str | None, every: int):
    """GRPO on the reward model, which is retrained every `every` steps; 0: never."""
    config = arithmetic.get_config(smoke)
    config.task = dict(name="rl_jax.preferences.privileged:load_task", of=config.task.to_dict(), template=TEMPLATE)
    config.judge = dict(verify=dict(fn="cotrained", path=path, retrain_every=every, learning_rate=3e-4))
    config.algorithm.update(kl=dict(fn="k3"), kl_coef=0.001)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
