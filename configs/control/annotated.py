"""Intrinsic rewards from a language model that judges captions beside the run (ONI, arXiv 2410.23022); PPO.

    python -m experiments.control.ppo --config=configs/control/annotated.py
    python -m experiments.control.ppo --config=configs/control/annotated.py:classifier,waiting
    python -m experiments.control.ppo --config=configs/control/annotated.py:ranking,server \\
        --config.algorithm.relabel.annotator.ask.url=http://127.0.0.1:8000

Arguments: how answers become a reward, `retrieval` (a label per caption; the default), `classifier` or `ranking`, or
`alone`, the environment's sparse reward. Who answers: a script that likes to come nearer to the shop and to hold the
parcel (the default), or with `server` a language model: any server of OpenAI's protocol, or a run of one's own by
experiments.tools.serve_text. Answers come when they are there, and the run never waits; with `waiting` it does, and is
then the same every time and resumes bit for bit. algorithm.relabel.annotator.ask.kept names a file of answers, which
are then asked for once. The world is probes/errands: a shop left, a house right, and a reward of 1 for the parcel at
the house. The paper's code weighs a sparse reward 25 times as much as the labels (10 and .4); so does coef=.04 here.
With .1 a policy that had found the reward left it again for the labels, in one of two seeds. `smoke` (seconds).
Measured: docs/pages/language_models.md.
"""

from configs import common, sweeps
from configs.control import control_common

KINDS = ("retrieval", "classifier", "ranking")
GOAL = "The player's goal is to bring a parcel from the shop to the house."
LIKED = ("hold the parcel", "hand over", r"shop is 1?\d step")  # nearer to the shop than the start is


def get_config(arg: str | None = None):
    words = common.parse(arg, (*KINDS, "alone", "server", "waiting", "smoke"))
    kinds = sorted(words & {*KINDS, "alone"})
    if len(kinds) > 1:
        raise ValueError(f"choose at most one reward, not {', '.join(kinds)}")
    kind = (kinds or ["retrieval"])[0]
    config = control_common.base("_".join(["annotated", kind, *sorted(words & {"server", "waiting"})]))
    config.env = dict(name="probes/errands", length=41, shown=True, features=(), frame_stack=1, at_reset="repeat")
    config.sample.update(num_envs=16, num_steps=64)
    config.network.hidden = (32,)
    config.train.update(total_steps=100_000)
    config.train.optimizer.learning_rate = 3e-3
    config.update(num_seeds=2, log_every=10)
    config.checkpoint.every = 50
    config.eval.update(num_episodes=32, max_steps=164, greedy=False)
    if kind != "alone":
        config.algorithm.relabel = _relabel(kind, "server" in words, "waiting" in words)
    if "smoke" in words:
        config.update(num_seeds=1, log_every=2)
        config.sample.update(num_envs=4, num_steps=8)
        config.network.hidden = (8,)
        config.train.update(total_steps=4 * 32)
        config.eval.update(num_episodes=2, max_steps=8)
        config.checkpoint.every = 2
        config.log.update(progress=False, tensorboard=False)
    return config


def _relabel(kind: str, server: bool, waiting: bool) -> dict:
    """config.algorithm.relabel."""
    ask = dict(fn="by_words", liked=LIKED)
    if server:
        ask = dict(fn="by_server", url="http://127.0.0.1:8000", model="", max_tokens=256, timeout_s=60.0, kept="")
    return dict(
        fn="by_captions",
        kind=kind,
        captions=128,
        limit=16,
        power=3.0,
        coef=0.04,
        annotator=dict(captions=dict(fn="errands"), ask=ask, goal=GOAL, wait=waiting, batch=16, features=32),
    )


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))
