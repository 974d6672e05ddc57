"""SQIRL (arXiv 2312.08369): a world is solved by k steps of Q-iteration on random play, and by no fewer.

    python -m experiments.ablation effective_horizon

Four corridors of four steps, whose actions slip in a tenth of the cases; the reward at the start hides the end from
anybody who looks fewer than 1, 2, 3 or 4 steps ahead, as their exact tables say. Undecided: two of 40 seeds end at .13
with two steps where two are enough; none of the first ten did.
"""

from ml_collections import ConfigDict

CORRIDORS = {"needs_1": 0.02, "needs_2": 0.08, "needs_3": 0.2, "needs_4": 0.5}
ARMS = {f"k{k}": k for k in (1, 2, 3, 4)}


def get_ablation() -> ConfigDict:
    """needs_i: the return as a share of the best, in the corridor whose exact tables need k = i."""
    share = dict(within=(0.0, 1.0))
    enough = tuple(dict(metric=f"needs_{i}", arm=f"k{i}", at_least=0.9, at_most=1.1, **share) for i in (1, 2, 3, 4))
    too_few = tuple(dict(metric=f"needs_{i}", arm=f"k{i - 1}", at_least=-0.1, at_most=0.8, **share) for i in (2, 3, 4))
    return ConfigDict(
        dict(
            paper="arXiv 2312.08369",
            claim="SQIRL is optimal with as many steps of Q-iteration as the exact tables need, and not with one fewer",
            scaled_down="tables of five states in place of networks in Atari, Procgen and MiniGrid with sticky actions",
            study="effective_horizon",
            settings=dict(depth=4, actions=3, slip=0.1, near=CORRIDORS, arms=ARMS, episodes=2000),
            seeds=tuple(range(40)),  # ten, all alike, bound the share of others by .31 only
            tried=3,  # first 300 episodes, too few for the smallest gaps: undecided; then 10 seeds, all alike
            metric="needs_3",
            expected=enough + too_few,
            smoke=dict(seeds=(0, 1), settings=dict(episodes=200, near=dict(needs_2=0.08))),
        )
    )
