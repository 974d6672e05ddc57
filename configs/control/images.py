"""PPO on rewards that are seen in pictures of the states, by a CLIP: of a text, or of demonstrations.

    python -m experiments.tools.tiny_clip pointmass                                       # once: the encoder
    python -m experiments.control.ppo --config=configs/control/images.py:pointmass
    python -m experiments.control.ppo --config=configs/control/images.py:pointmass \
        --config.algorithm.relabel.goal="the dot is far left and at the bottom" --config.env.goal="(-1.5, -1.5)"
    python -m experiments.control.ppo --config=configs/control/images.py:own --workdir=runs/own \
        --config.log_every=5 --config.checkpoint.every=5
    python -m experiments.control.ppo --config=configs/control/images.py:shown \
        --config.algorithm.relabel.demos=runs/own/episodes.jsonl

Arguments: an environment, `pointmass` (the default: the goal is in the upper right corner), `pendulum`, `mountain_car`;
a reward, `text` (VLM-RM, arXiv 2310.12921; the default), `shown` (stages of demonstrations, arXiv 1612.06699:
algorithm.relabel.demos), `own` (the environment's, which makes demonstrations); `smoke` (seconds, for CI). The
environment's reward is not read, except with `own`: episode metrics and evaluations report it. env.goal only says what
they measure. The encoder is any folder of a CLIP (algorithm.relabel.encoder); docs/pages/control_images.md.
"""

from configs import common, sweeps
from configs.control import control_common
from configs.recipes._start import TINY

ENVIRONMENTS = {
    "pointmass": dict(
        env=dict(name="probes/pointmass", goal=(1.5, 1.5)),
        sample=dict(num_envs=16, num_steps=40),
        algorithm=dict(advantage=dict(discount=0.9), entropy_coef=0.003, normalize_rewards=True),
        train=dict(total_steps=100_000, optimizer=dict(learning_rate=1e-3)),
        eval=dict(num_episodes=64, max_steps=20, greedy=True),
    ),
    "pendulum": dict(
        env=dict(name="gymnax/Pendulum-v1"),
        sample=dict(num_envs=16, num_steps=128),
        algorithm=dict(
            advantage=dict(discount=0.95), entropy_coef=0.05, normalize_rewards=True, normalize_observations=True
        ),
        train=dict(total_steps=400_000, epochs=10, minibatches=16, optimizer=dict(learning_rate=1e-3)),
        eval=dict(num_episodes=64, max_steps=200, greedy=True),
    ),
    "mountain_car": dict(
        env=dict(name="gymnax/MountainCar-v0"),
        sample=dict(num_envs=16, num_steps=32),
        algorithm=dict(
            advantage=dict(discount=0.99, lam=0.98),
            entropy_coef=0.02,
            normalize_observations=True,
            normalize_rewards=True,
        ),
        train=dict(total_steps=400_000, optimizer=dict(learning_rate=1e-3)),
        eval=dict(num_episodes=64, max_steps=200, greedy=True),
    ),
}
# (goal, baseline) as experiments.tools.tiny_clip describes pictures.
TEXTS = {
    "pointmass": ("the dot is far right and at the top", "a dot in a square"),
    "pendulum": ("the rod is upright", "a rod"),
    "mountain_car": ("the car is at the flag on top of the right hill", "a car in a valley"),
}
REWARDS = ("text", "shown", "own")


def relabel(place: str, reward: str) -> dict:
    """config.algorithm.relabel of a word."""
    if reward == "own":
        return dict(fn="")
    seen = dict(encoder=f"{TINY}/clip_{place}", picture=dict(fn=place, size=16))
    if reward == "shown":
        # The paper's constants: 32 features of each stage, contrast 5.
        return dict(fn="by_image_stages", **seen, demos="", last=8, stages=3, features=32, contrast=5.0, first_layer=0)
    goal, baseline = TEXTS[place]
    return dict(fn="by_image_goal", **seen, goal=goal, baseline=baseline, alpha=0.5, scale=1.0, keep=0.0)


def get_config(arg: str | None = None):
    words = common.parse(arg, (*ENVIRONMENTS, *REWARDS, "smoke"))
    places, rewards = sorted(words & set(ENVIRONMENTS)), sorted(words & set(REWARDS))
    if max(len(places), len(rewards)) > 1:
        raise ValueError(f"choose at most one environment and one reward, not {', '.join(places + rewards)}")
    place, reward = (places or ["pointmass"])[0], (rewards or ["text"])[0]
    config = control_common.base(f"control_images_{place}_{reward}")
    config.num_seeds = 3
    config.update(ENVIRONMENTS[place])
    config.algorithm.relabel = relabel(place, reward)
    if "smoke" in words:
        control_common.smoke(config)
    return config


def sweep_seed(arg: str | None = None):
    """Test seeds; each is a run of its own, regardless of config.num_seeds."""
    return sweeps.product(sweeps.seeds(arg), sweeps.grid("num_seeds", (1,)))


def sweep_alpha(arg: str | None = None):
    """alpha of the goal-baseline regularisation, 0 to 1."""
    return sweeps.grid("algorithm.relabel.alpha", sweeps.numbers(arg, (0.0, 0.25, 0.5, 0.75, 1.0)))
