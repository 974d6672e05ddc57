"""Directional preference alignment: arXiv 2402.18571. A policy that is told which of two rewards is wanted how much.

    y_1 .. y_8 ~ pi(. | v, x);   y = argmax v . r(x, y);   loss = -1/|y| log pi(y | v, x)

Rejection sampling by v . r and fine-tuning on the best answer with v before the prompt, again after every step. The
rewards are the mood of a generated story (the lexicon's) and its length; v goes from less than the same weight against
length (-45 degrees) to as much for it (45), in five steps, each a letter before the prompt (rl_jax.tasks.directed). In
the paper a reward model of several heads gives r, v is drawn from the arc and written into the system prompt, and each
round starts from the model before it on a large set.

    python -m experiments.online_dpo --config=configs/preferences/directional.py --workdir=runs/directional

The demonstrations of the warm start are chosen by v . r, too, among the beginnings of each story. A letter means
nothing to a model before; where the demonstrations say nothing of it (task.demonstrations=drawn), all answers shrink to
the one good sentence that has the best mood before it is read, and no long sample is left to choose. With 2 layers of
48 units, 150 steps of the warm start and 40 of these, 500 held-out prompts, seeds 0, 1, 2: Spearman's rho of angle and
length is .47, .47, .47 after the warm start and .75, .72, .81 after the steps. Characters at -45 degrees go from 23,
23, 22 to 15, 14, 9, and at 45 from 45, 45, 43 to 58, 58, 61; moods from .5-.7 to .9-1.0 at every angle. With
demonstrations that are drawn rho is .02, -.08, .01 before and .02, .11, .03 after, and 16, 16, 11 characters are left
at 45 degrees.
Evaluations report eval/reward/source/ANGLE. Arguments: `smoke` (seconds, for CI).
"""

from configs import common
from configs.preferences import online


def get_config(arg: str | None = None):
    words = common.parse(arg, ("smoke",))
    config = online.get_config(",".join(["stories", *sorted(words)]))
    config.name = "_".join(["directional", *sorted(words)])
    config.task = dict(
        name="rl_jax.tasks.directed:load",
        of=config.task.to_dict(),
        marks="abcde",
        low=-45.0,
        high=45.0,
        length=64,
        demonstrations="best",  # whole, drawn or best: rl_jax.tasks.directed
    )
    config.sample.group_size = 8
    config.algorithm.update(pair_selection=dict(fn="best"), responses=1)
    config.algorithm.compare = dict(fn="rl_jax.losses.preference.compare.ranked:superhf", kl_coef=0.0)
    return config
