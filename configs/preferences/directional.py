"""Directional preference alignment: arXiv 2402.18571. A policy that is told which of two rewards is wanted how much.

    y_1 .. y_8 ~ pi(. | v, x);   y = argmax v . r(x, y);   loss = -1/|y| log pi(y | v, x)

Rejection sampling by v . r and fine-tuning on the best answer with v before the prompt, again after every step. The
rewards are the mood of a generated story (the lexicon's) and its length; v goes from less than the same weight against
length (-45 degrees) to as much for it (45), in five steps, each a letter before the prompt (rl_jax.tasks.directed). In
the paper a reward model of several heads gives r, v is drawn from the arc and written into the system prompt, and each
round starts from the model before it on a large set.

    python -m experiments.online_dpo --config=configs/preferences/directional.py --workdir=runs/directional

With 2 layers of 48 units, 150 steps of the warm start and 40 of these, one seed, the reward rises at every angle (-45:
-.03 to .48, 0: .52 to .94, 45: .67 to .82), mood from .54 to .89, but answers of all angles shrink from 37 to 16
characters: a single good sentence has the best mood, and the letter is not read yet. Lengths that follow the direction
were not seen. Evaluations report eval/reward/source/ANGLE. Arguments: `smoke` (seconds, for CI).
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
        varied=True,  # the stories are all of 49 to 55 characters: without it no sample is shorter than another
    )
    config.sample.group_size = 8
    config.algorithm.update(pair_selection=dict(fn="best"), responses=1)
    config.algorithm.compare = dict(fn="rl_jax.losses.preference.compare.ranked:superhf", kl_coef=0.0)
    return config
