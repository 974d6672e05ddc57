"""CGPO, a mixture of judges over several tasks: arXiv 2409.20370. Each task has a reward and constraints of its own.

    A = R~ - mean of the batch,   R~ = J_task sigma(r_task - r_0) max(1 - log(pi / ref) / KL_max, 0),   l = -A logp

Three generated tasks in one run: boxes (reward: IoU-based mAP; judge: boxes and nothing else), decisions (an exact
match; one of the two words) and open sentences (BMAS; no three words said twice). An answer that a judge of its task
fails earns nothing. The paper also has data, a batch size and a KL_max for each task; here they share one. The judges
are rules; a judge of config.judge is a further term. configs/experience/crpg.py is the same with one task, and codpo.py
and crraft.py in configs/methods/preferences are its other two optimizers.

    python -m experiments.grpo --config=configs/tasks/cgpo.py
"""

from configs.experience import crpg
from configs.tasks import mixed_r1

JUDGES = dict(
    listed=r"(\[\d+,\d+,\d+,\d+\])+",  # boxes and nothing else
    decided=r"hire|reject",
    fluent=r"(?!.*\b(\w+ \w+ \w+)\b.*\b\1\b).+",  # no three words said twice
)


def get_config(arg: str | None = None):
    config, method = mixed_r1.get_config(arg), crpg.get_config()
    config.name = "cgpo"
    config.sample.references = method.sample.references
    for name in ("advantage", "surrogate", "aggregate"):
        config.algorithm[name] = method.algorithm[name]
    config.algorithm.kl_coef = 0.0
    config.train.minibatches = method.train.minibatches
    judges = {name: dict(fn="form.pattern", regex=regex, weight=0.0) for name, regex in JUDGES.items()}
    config.reward.terms.update(judges)
    tasks = dict(
        boxes=dict(reward=dict(boxes=1.0), judges=("listed",)),
        screening=dict(reward=dict(match=1.0), judges=("decided",)),
        echoes=dict(reward=dict(similar=1.0), judges=("fluent",)),
    )
    config.reward.compose = dict(fn="rl_jax.rewards.constraints:mixture_of_judges", tasks=tasks)
    return config
