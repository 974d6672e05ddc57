"""DPO or SFT on the recorded episodes of a run of experiments.agents, token by token as they were sampled.

    python -m experiments.agents --config=configs/agents_worlds.py:guess --config.agent.record=true --workdir=runs/guess
    python -m experiments.dpo --config=configs/preferences/episodes.py:guess,turns --config.data.path=runs/guess
    python -m experiments.sft --config=configs/preferences/episodes.py:guess,good --config.data.path=runs/guess

The first argument is the world of that run (configs/agents_worlds.py). Further ones: `turns` (the default: two turns
after the same tokens, the better return to go against the worse), `judged` (of a tree of turns, by the policy's own
judgement: configs/preferences/itool.py), `episodes` (the best episode of a group against the
worst; what the environment wrote is read, not trained on), `good` (episodes with a reward of .5 or more, for SFT),
`smoke`: seconds. The policy starts from the run itself, --config.init_from=runs/guess, if it is given.
"""

from configs import common, sweeps
from configs.agents_worlds import WORLDS
from configs.agents_worlds import get_config as of_world
from configs.preferences import given

PAIRS = {"turns": "turns", "judged": "judged", "episodes": "episodes", "good": "none"}


def get_config(arg: str | None = None):
    words = common.parse(arg, (*WORLDS, *PAIRS, "real", "smoke"))
    said = (arg or "").split(",")  # in their order: "judged" is the name of a world, too
    world = next((word for word in said if word in WORLDS), "guess")
    like = of_world(f"{world},real" if "real" in words else world)
    config = given.base(f"episodes_{world}")
    config.task, config.model = like.task, like.model
    row = like.rollout.completion_length
    pairs = next((PAIRS[word] for word in said if word in PAIRS and word != world), "turns")
    config.rollout.update(completion_length=row, prompt_buckets=like.rollout.prompt_buckets)
    if pairs in ("turns", "judged"):  # the prompt of a turn is all that was read before it
        config.rollout.prompt_buckets = (max(like.rollout.prompt_buckets) + row,)
    config.data = dict(
        name="episodes", path="RUN", pairs=pairs, gap=1e-6, least=0.5, newest=0, test_share=0.1,
        discount=0.0 if world == "program" else 1.0,  # an attempt at a program is a trajectory of its own
        data_dir=common.DATA_DIR,
    )  # fmt: skip
    config.encode = dict(truncate="drop", identical="drop")
    config.algorithm.responses = 1 if pairs == "none" else 2
    config.program = "sft" if pairs == "none" else "dpo"
    config.sft.update(steps=200 if pairs == "none" else 0, batch_size=32)
    return given.smoke(config) if "smoke" in words else config


def sweep_seed(arg: str | None = None):
    """Test seeds."""
    return sweeps.seeds(arg)
