"""Self-guided efficiency: right answers are paid for being short compared with the group's shortest: arXiv 2506.15647.

    python -m experiments.grpo --config=configs/tasks/self_guided_efficiency.py

On Countdown with the search written out: a right answer earns 1, and up to .5 more for being short: .5 L_min / L,
with the shortest right answer of its group. A wrong answer earns nothing for brevity. The paper's formula is not known
to us; this is our reading, and weight 0 is plain GRPO. Arguments: `plain` is that. `smoke`: seconds.
"""

from configs import common
from configs.tasks import backtrack_countdown_sudoku


def get_config(arg: str | None = None):
    words = common.parse(arg, ("plain", "smoke"))
    config = backtrack_countdown_sudoku.get_config("search")
    config.name = "self_guided_efficiency"
    weight = 0.0 if "plain" in words else 0.5
    config.reward.terms = dict(
        right=dict(fn="puzzles.countdown", weight=1.0),
        brief=dict(fn="brevity.short_and_right", weight=weight, correct="right"),
    )
    return common.smoke(config) if "smoke" in words else config
