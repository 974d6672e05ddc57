"""ARMAP, a reward model of agents' trajectories, and planning with it: arXiv 2502.12130. Recorded episodes of a world.

    loss = -log sigma(r(x, h+) - r(x, h-));   of n trajectories of an instruction x the one with the highest r is taken

    A=configs/agents_worlds.py:search
    python -m experiments.agents --config=$A --config.agent.record=true --workdir=runs/first
    python -m experiments.agents --config=$A --config.agent.record=true --config.seed=1 \
        --config.init_from=runs/first --config.sft.steps=0 --config.train.steps=6 --workdir=runs/second
    python -m experiments.reward_model --config=configs/preferences/armap.py:search \
        --config.data.path=runs/first --config.init_from=runs/first --workdir=runs/armap
    python -m experiments.tools.best_trajectory --reward=runs/armap --run=runs/second

The first argument is the world of the runs. The negative h- is the good trajectory h+ with the end of another
instruction's, from each turn on (rl_jax.preferences.episodes: altered): the reward model learns what fits.
Departs from the paper: a language model wrote its instructions for explored trajectories, and its negatives, and no
environment was asked which are good; here it is, for the positives. Of its three ways to plan (best-of-n, Reflexion,
tree search) best-of-n is here. Arguments: `groups` (the best against the worst of a group, by the environment's
reward), `smoke`.
"""

from configs import common
from configs.agents_worlds import WORLDS
from configs.preferences import episodes, reward_models


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, "groups", "smoke"))
    world = common.one_of(words, WORLDS, "search")
    like = episodes.get_config(f"{world},episodes")
    config = reward_models.base(f"armap_{world}")
    config.task, config.model, config.data, config.rollout = like.task, like.model, like.data, like.rollout
    config.encode.update(like.encode)
    config.data.pairs = "episodes" if "groups" in words else "altered"
    config.train.update(steps=400, batch_size=16)  # some thousand triplets
    if "smoke" in words:
        config.train.update(steps=4, batch_size=8)
        config.eval.update(every=2, num_prompts=16, batch_size=16)
    return config
