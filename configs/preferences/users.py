"""VPL, a reward model that infers what its user wants: arXiv 2408.10075. Lists, which one user wants short, one long.

    python -m experiments.reward_model --config=configs/preferences/users.py --workdir=runs/users

    loss = -log sigma(r(h_w, z) - r(h_l, z)) + .01 KL(q(z | the user's other pairs) || N(0, 1)),   z ~ q

Both users compare the same two answers, in opposite ways, so that the accuracy of one reward for both is one half. A
user's pairs are those in the batch, but for the pair that is graded; held-out pairs are graded with the mean of q,
scaled to the length that draws have. The noise of z is scaled by .001, our choice (WEIRDLabUW/vpl_llm had it for two
weeks of 2024, and has 1): with 1, the ELBO's, the held-out accuracy stays at .5 here. Departs from it too: no cycles of
the KL, and the scale of the mean.
Arguments: `order` (numbers that rise or fall), `blind` (the control: Bradley-Terry without users), `smoke`.
"""

from configs import common
from configs.preferences import reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, ("order", "blind", "smoke"))
    config = reward_models.get_config("smoke" if "smoke" in words else None)
    config.name = "_".join(["users", *sorted(words & {"order", "blind"})])
    world = "order" if "order" in words else "length"
    # Two responses per prompt: the users compare the same two, in opposite ways.
    config.data = dict(name="generated", kind="pairs", world=world, responses=2, data_dir=common.DATA_DIR)
    config.rollout.update(completion_length=24, prompt_buckets=(24,))
    if "blind" not in words:
        config.algorithm.reads = "user"
    return config
