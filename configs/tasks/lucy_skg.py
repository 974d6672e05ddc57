"""Lucy-SKG's combination of rewards, on text: arXiv 2305.15801. A signed geometric mean instead of a sum.

    python -m experiments.grpo --config=configs/tasks/lucy_skg.py

The reward of a way is s sqrt(|heading| exp(-distance)), s = -1 as soon as one of the two is negative: to head the right
way does not make up for being far off, as it does in a sum. The paper plays Rocket League with PPO; the way of points
stands in for the car's, and its auxiliary tasks are in configs/control/rewards.py:reward_sequence. Arguments: `sum`
adds the two instead. `smoke`: seconds.
"""

from configs import common
from configs.tasks import _toys


def get_config(arg: str | None = None):
    words = common.parse(arg, ("sum", "smoke"))
    terms = dict(
        near=dict(fn="ways.near", weight=0.5, scale=2.0),
        heading=dict(fn="ways.heading", weight=0.5),
    )
    config = _toys.run("lucy_skg", ("paths",), terms, prompt=20, completion=48)
    config.reward.compose = dict(fn="weighted_sum" if "sum" in words else "signed_geometric_mean")
    return common.smoke(config) if "smoke" in words else config
