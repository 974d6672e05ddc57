"""SAC and DQN of Stable-Baselines3 (PyTorch) and sbx (JAX): PYTHON baselines_replay.py sb3|sbx WORK, of bench.replay.

PYTHON has `stable-baselines3==2.9.2` and `torch==2.13.0`; for sbx `sbx-rl==0.28.0` and `jax==0.10.2` too. One seed, the
environments of gymnasium. The model is made once and learns on in each turn: of a new one sbx compiles all again.
"""

import json
import pathlib
import sys
import time

import numpy as np
from stable_baselines3.common.env_util import make_vec_env

sys.path.append(str(pathlib.Path(__file__).parents[3]))

from experiments.bench import turns  # noqa: E402

library, work = sys.argv[1], json.loads(sys.argv[2])
if library == "sb3":
    import stable_baselines3 as baselines
else:
    import sbx as baselines

common = dict(
    learning_rate=work["rate"], buffer_size=work["capacity"], learning_starts=work["warmup"], tau=work["tau"],
    batch_size=work["batch_size"], gamma=work["discount"], train_freq=work["every"], seed=0, device="cpu",
    gradient_steps=work["gradient_steps"], policy_kwargs={"net_arch": work["hidden"]},
)  # fmt: skip
if work["method"] == "sac":
    name, make, more = "Pendulum-v1", baselines.SAC, {}
else:
    explore = work["exploration"]
    name, make = "CartPole-v1", baselines.DQN
    more = dict(
        target_update_interval=work["target_every"], exploration_initial_eps=explore["initial"],
        exploration_final_eps=explore["final"], exploration_fraction=explore["fraction"],
    )  # fmt: skip
model = make("MlpPolicy", make_vec_env(name, work["envs"], seed=0), **common, **more)


def train(steps: int = work["steps"]) -> np.ndarray:
    """Learns for `steps` after the warm-up; the return of the last episodes."""
    model.learn(work["warmup"] + steps)
    return np.asarray([np.mean([episode["r"] for episode in list(model.ep_info_buffer)[-10:]])])


begin = time.perf_counter()
train(2 * work["envs"] * work["every"])
turns.serve(time.perf_counter() - begin, train, work["steps"])
