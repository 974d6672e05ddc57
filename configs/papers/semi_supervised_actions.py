"""SS-ORL (arXiv 2210.06518): with the actions of a tenth of the episodes, the worse ones, nearly as much is learned.

    python -m experiments.ablation semi_supervised_actions

IQL on data of mixed quality. `ss_orl` sees the actions of 10 % of the episodes, from the worst half, and fills in the
others by an inverse model; `labelled_only` learns from the 10 % alone.
"""

from ml_collections import ConfigDict


def get_ablation() -> ConfigDict:
    """score: of the last evaluation, 0 for random play and 100 for the expert."""
    fields = dict(train=dict(total_steps=2000 * 128))
    words = dict(labelled_only=",labelled_only", ss_orl=",ss_orl", full="")
    return ConfigDict(
        dict(
            paper="arXiv 2210.06518",
            claim="filling in the actions of 9 episodes in 10 loses little against knowing all, and gains on the tenth",
            scaled_down="a point mass with scripted data in place of D4RL's Gym data; IQL of two layers of 64",
            study="trained_in_worlds",
            settings=dict(
                arms={arm: dict(config=f"offline:pointmass,iql{word}", fields=fields) for arm, word in words.items()},
                metrics=dict(score="eval/normalized"),
                points=1,
            ),
            seeds=tuple(range(10)),
            metric="score",
            expected=(
                dict(metric="score", increasing=("labelled_only", "ss_orl"), by=5.0),
                dict(metric="score", increasing=("full", "ss_orl"), by=-10.0),
            ),
            tried=1,
            smoke=dict(
                seeds=(0, 1),
                settings=dict(
                    arms={
                        arm: dict(config=f"offline:smoke,pointmass,iql{word}", fields=dict(train=dict(total_steps=64)))
                        for arm, word in words.items()
                    }
                ),
            ),
        )
    )
