"""Offline: rewards that a CLIP teaches by preferences between pictures of the data, then IQL. arXiv 2411.05273.

    python -m experiments.tools.tiny_clip pointmass                                       # once: the encoder
    python -m experiments.control.offline --config=configs/control/offline_images.py
    python -m experiments.control.offline --config=configs/control/offline_images.py \
        --config.labels.goal="the dot is far left and at the bottom" --config.env.goal="(-1.5, -1.5)"

The data have no rewards. Pairs of their states are pictured, the one whose picture is nearer to labels.goal is the
better one, a difference below labels.margin is "unsure" and left out; Bradley-Terry on their codes gives the reward.
labels/right is how often the environment's reward says the same, which nothing else reads. With labels.server.url a
vision-language model is asked, in the published two questions; any server with /v1/chat/completions that takes images:

    ... --config.labels.server.url=http://HOST:8000 --config.labels.server.model=NAME --config.labels.num_pairs=200

Its answers are kept in the run's folder, or in the file labels.server.kept, and not asked for again.

Departs: the reward reads a CLIP's code of the picture in place of its pixels; the environment and the data are
configs/control/offline.py's pointmass.

Argument: `smoke` (seconds, for CI).
"""

from configs import common, sweeps
from configs.control.offline import get_config as offline
from configs.recipes._start import TINY


def get_config(arg: str | None = None):
    smoke = bool(common.parse(arg, ("smoke",)))
    config = offline("pointmass,iql,smoke" if smoke else "pointmass,iql")
    config.name = "control_offline_images"
    with config.unlocked():
        config.env.goal = (1.5, 1.5)  # where the scripted behaviours go, and what evaluations measure
        config.labels = dict(
            missing="images",
            encoder=f"{TINY}/clip_pointmass",
            picture=dict(fn="pointmass", size=16),
            goal="the dot is far right and at the top",
            margin=0.02,
            server=dict(url="", model="", timeout_s=60.0, concurrency=4, kept=""),
            num_pairs=16 if smoke else 1000,
            num_held=16 if smoke else 200,
            updates=4 if smoke else 1000,
            learning_rate=1e-3,
            members=3,
            center=True,
        )
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))
