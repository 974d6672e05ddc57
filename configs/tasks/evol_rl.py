"""EVOL-RL, learning without labels: arXiv 2509.15194. The group's majority is the label, novelty decides among equals.

    python -m experiments.grpo --config=configs/tasks/evol_rl.py

Answers of the majority earn .5 to 1, others -1 to -.5, by how new they are in their class (rl_jax.rewards.groups:
similar texts by shared word pairs, where the paper embeds them). KL .001 and clip-higher .28 are the paper's; its
entropy bonus has the weight .003 of its README, and its votes come from 64 samples, here from the group's 8. `right`
is shown and not paid: the run sees no label. Eight updates a batch, as its script's: with one no clip does anything.
Arguments: `ttrl` pays for the majority alone (arXiv 2504.16084), without the entropy bonus. `smoke`: seconds.
"""

from configs import common
from configs.tasks import arithmetic


def get_config(arg: str | None = None):
    words = common.parse(arg, ("ttrl", "smoke"))
    config = arithmetic.get_config("smoke" if "smoke" in words else None)
    config.name = "evol_rl"
    ttrl = "ttrl" in words
    config.reward.terms = dict(
        vote=dict(fn="groups.majority" if ttrl else "groups.novelty", weight=1.0, rule="last_number"),
        right=dict(fn="task", weight=0.0),
    )
    common.set_updates(config, minibatches=8)
    config.algorithm.update(kl_coef=0.001, entropy_coef=0.0 if ttrl else 0.003)
    config.algorithm.surrogate.clip_high = 0.2 if ttrl else 0.28
    return config
