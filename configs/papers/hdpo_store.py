"""HDPO (arXiv 2306.11246): gradients through the store find its best policy where PPO, from as many steps, does not.

    python -m experiments.ablation hdpo_store

One store, Poisson demand, orders arrive two periods later; the best policy orders up to a level and costs 7.264 a
period. Both arms see 480,000 periods. PPO has the settings of configs/control/environments.py:inventory.
Undecided: HDPO is 1 % above the least cost; so is PPO.
"""

from ml_collections import ConfigDict

BEST = -7.263767  # rl_jax.envs.worlds.inventory.least_cost


def get_ablation() -> ConfigDict:
    """return: of an episode of 50 periods, minus its cost."""
    fields = dict(train=dict(total_steps=480_000))
    return ConfigDict(
        dict(
            paper="arXiv 2306.11246",
            claim="pathwise gradients come within 2 % of the least cost, and PPO costs more after as many periods",
            scaled_down="one store with a lead time of 2 and backlogs, in place of networks of many stores",
            study="trained_in_worlds",
            settings=dict(
                arms={
                    "ppo": dict(config="environments:inventory", fields=fields),
                    "hdpo": dict(config="environments:hdpo", fields=fields),
                },
                metrics={"return": "eval/return"},
                points=5,
            ),
            seeds=tuple(range(10)),
            metric="return",
            expected=(
                dict(metric="return", arm="hdpo", at_least=50 * BEST * 1.02),
                dict(metric="return", increasing=("ppo", "hdpo"), by=0.0),
            ),
            tried=1,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms=dict(
                        ppo=dict(config="environments:smoke,inventory", fields=dict(train=dict(total_steps=400))),
                        hdpo=dict(config="environments:smoke,hdpo", fields=dict(train=dict(total_steps=400))),
                    ),
                    points=1,
                ),
            ),
        )
    )
