"""Preferences among the leaves of trees of answers: arXiv 2402.10184. A reward model on generated sums.

    python -m experiments.reward_model --config=configs/preferences/trees.py --workdir=runs/trees

    loss = -log sigma(r(y_w) - r(y_l)),   y_w and y_l two leaves of one tree, which part at a random step

Leaves that share their first steps differ in what comes after, so that a comparison is about single steps. The paper's
trees are grown by a language model on dialogues, ours of right and mistaken totals (rl_jax.preferences.trees). Both
topologies are evaluated on the held-out pairs of each other, and on those of the plain sums. How far comparisons of a
tree and of a chain determine rewards: `python -m experiments.tools.known_answers trees`. Arguments: `chain` (the
control: as many answers, each written on its own, and as many labels), `smoke`.
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("chain", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "trees_chain" if "chain" in words else "trees"
    data = {name: dict(name="trees", topology=name, num_prompts=500, pairs=8) for name in ("tree", "chain")}
    config.data = dict(**data["chain" if "chain" in words else "tree"], data_dir=common.DATA_DIR)
    sums = dict(name="generated", kind="pairs", world="sums")
    config.benchmarks = dict(names=("tree", "chain", "sums"), sets=dict(**data, sums=sums))
    config.rollout.update(completion_length=24, prompt_buckets=(24,))
    return config
