"""The other libraries of experiments.bench.control: CartPole by their PPO, with purejaxrl's default settings.

Each function returns the same as `control.ours`: (compile seconds, function that trains all seeds and returns their
final returns [seeds], environment steps per seed). None of these libraries is a dependency: install the one you
compare with on the PYTHONPATH.
"""

import importlib
import sys
import time
import types
from collections.abc import Callable

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES, RATE = 4, 128, 4, 4, 2.5e-4


def _compile(train: Callable, seeds: int):
    """(seconds, compiled function of keys) from a function of one key, by vmap."""
    keys = jax.random.split(jax.random.key(0), seeds)
    whole = jax.jit(jax.vmap(train)) if seeds > 1 else jax.jit(lambda keys: train(keys[0]))
    start = time.perf_counter()
    compiled = whole.lower(keys).compile()
    return time.perf_counter() - start, lambda: jax.block_until_ready(compiled(keys))


def _factor_one_by_one() -> None:
    """Lets the peers' orthogonal weights of several seeds be made; on two cores a batch waits forever (torso.dense)."""
    make = jax.nn.initializers.orthogonal

    def orthogonal(*options):
        one = make(*options)
        return lambda key, shape, dtype=jnp.float32: jax.custom_batching.sequential_vmap(
            lambda key: one(key, shape, dtype)
        )(key)

    jax.nn.initializers.orthogonal = flax.linen.initializers.orthogonal = orthogonal


class _FiveValues:
    """An environment of gymnax 1.x with the five-valued step of 0.0.x, which both JAX peers expect."""

    def __init__(self, env):
        self._env = env

    def __getattr__(self, name):
        if name == "_env":  # a deep copy reads it before it is set
            raise AttributeError(name)
        return getattr(self._env, name)

    def step(self, key, state, action, params=None):
        observation, state, reward, terminated, truncated, info = self._env.step(key, state, action, params)
        return observation, state, reward, terminated | truncated, {"discount": info["discount"]}


def purejaxrl(folder: str, seeds: int, steps: int):
    """purejaxrl's ppo.py from `folder`, which also holds its wrappers.py, with the settings at the file's end."""
    import gymnax

    _factor_one_by_one()
    jax.config.update("jax_numpy_rank_promotion", "allow")
    make = gymnax.make

    def make_old(name):
        env, params = make(name)
        return _FiveValues(env), params

    gymnax.make = make_old
    # wrappers.py imports two more libraries, for environments not used here.
    for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["brax"].envs = sys.modules["brax.envs"]
    training = sys.modules["brax.envs.wrappers.training"]
    training.EpisodeWrapper = training.AutoResetWrapper = None
    sys.path.insert(0, folder)
    ppo = importlib.import_module("ppo")
    settings = {
        "LR": RATE, "NUM_ENVS": NUM_ENVS, "NUM_STEPS": NUM_STEPS, "TOTAL_TIMESTEPS": steps, "UPDATE_EPOCHS": EPOCHS,
        "NUM_MINIBATCHES": MINIBATCHES, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01,
        "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1", "ANNEAL_LR": True,
        "DEBUG": False,
    }  # fmt: skip
    seconds, train = _compile(ppo.make_train(settings), seeds)

    def run() -> np.ndarray:
        info = train()["metrics"]
        names = ("returned_episode", "returned_episode_returns")
        ended, returns = (np.asarray(info[name]).reshape(seeds, -1) for name in names)
        tail = slice(-(ended.shape[1] // 10), None)
        return (returns[:, tail] * ended[:, tail]).sum(1) / np.maximum(ended[:, tail].sum(1), 1)

    return seconds, run, steps // (NUM_ENVS * NUM_STEPS) * NUM_ENVS * NUM_STEPS


def rejax(folder: str, seeds: int, steps: int):
    """rejax's PPO, evaluated once at the end in 16 episodes that do not count as steps. `folder` is unused."""
    import gymnax

    _factor_one_by_one()
    library, evaluation = importlib.import_module("rejax"), importlib.import_module("rejax.evaluate")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    env, params = gymnax.make("CartPole-v1")
    size = NUM_ENVS * NUM_STEPS
    steps = steps // size * size
    algorithm = library.PPO.create(
        env=_FiveValues(env), env_params=params, total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True,
        num_envs=NUM_ENVS, num_steps=NUM_STEPS, num_epochs=EPOCHS, num_minibatches=MINIBATCHES, learning_rate=RATE,
        max_grad_norm=0.5, gamma=0.99, gae_lambda=0.95, clip_eps=0.2, vf_coef=0.5, ent_coef=0.01,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    )  # fmt: skip

    def judge(algorithm, state, key):
        act = algorithm.make_act(state)
        return evaluation.evaluate(act, key, algorithm.env, algorithm.env_params, 16, 500)[1]

    algorithm = algorithm.replace(eval_callback=judge)
    seconds, train = _compile(lambda key: algorithm.train(key)[1], seeds)
    return seconds, lambda: np.asarray(jnp.mean(train().reshape(seeds, -1), axis=1)), steps


def sb3(folder: str, seeds: int, steps: int):
    """Stable-Baselines3's PPO, one seed after the other, its networks in PyTorch. `folder` is unused."""
    library = importlib.import_module("stable_baselines3")
    make_vec_env = importlib.import_module("stable_baselines3.common.env_util").make_vec_env

    def train_one(seed: int) -> float:
        model = library.PPO(
            "MlpPolicy", make_vec_env("CartPole-v1", NUM_ENVS, seed=seed), seed=seed, device="cpu",
            learning_rate=lambda left: RATE * left, n_steps=NUM_STEPS, n_epochs=EPOCHS,
            batch_size=NUM_ENVS * NUM_STEPS // MINIBATCHES, gamma=0.99, gae_lambda=0.95, clip_range=0.2,
            clip_range_vf=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5,
            policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        )  # fmt: skip
        model.learn(steps)
        return float(np.mean([episode["r"] for episode in model.ep_info_buffer]))

    size = NUM_ENVS * NUM_STEPS
    return 0.0, lambda: np.asarray([train_one(seed) for seed in range(seeds)]), -(-steps // size) * size


PEERS = {"purejaxrl": purejaxrl, "rejax": rejax, "sb3": sb3}
