"""relabelling/likelihood.py: densities against scipy, a fit against its closed form, and what is paid."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from configs.control import rewards
from experiments.parts import control_runs, control_setup
from experiments.parts.episodes import episode_row
from rl_jax.control.relabelling import by_likelihood
from rl_jax.control.relabelling.likelihood import log_likelihood
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.episode import Episode
from rl_jax.rollout.envs.steps import Transitions

STD = 0.2


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """episodes.jsonl with one episode of 400 steps in a plane: .5 to the right and nowhere else, with noise."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("run") / "episodes.jsonl"
    seen = [np.zeros(2)]
    for _ in range(400):
        seen.append(np.array([np.tanh(seen[-1][0]) + 0.5, 0.0]) + rng.normal(0, STD, 2))
    seen, zeros = np.stack(seen).astype(np.float32), np.zeros(400, np.float32)
    actions = np.zeros((400, 1), np.float32)
    episode = Episode(seen[:-1], seen[-1], actions, zeros, np.int32(400), np.bool_(True), np.bool_(False))
    path.write_text(json.dumps(episode_row(episode, step=0, env="x")) + "\n")
    return str(path)


def steps(before, after):
    zeros = jnp.zeros(before.shape[:2])
    return Transitions(before, after, (), jnp.zeros((*before.shape[:2], 1)), zeros + 3.0, zeros > 0, zeros > 0)


def test_densities_are_scipys():
    rng = np.random.default_rng(0)
    move, before, after = rng.normal(size=(3, 5, 4)).astype(np.float32)
    log_std = rng.normal(size=4).astype(np.float32)
    expected = scipy.stats.norm.logpdf(after, before + move, np.exp(log_std)).mean(axis=1)
    np.testing.assert_allclose(log_likelihood(move, log_std, before, after), expected, rtol=1e-5)


def test_steps_like_the_experts_are_paid_the_most(demos):
    relabel = by_likelihood(observation_size=2, make_net=make_net, demos=demos, hidden=(32,), steps=800, keep=0.5)
    state = jax.jit(relabel.init)(jax.random.key(0))
    entropy = scipy.stats.norm.entropy(0, STD)  # the best mean log-likelihood there is, of its own samples
    assert float(state.expert) == pytest.approx(-entropy, abs=0.08)
    np.testing.assert_allclose(np.exp(state.model["log_std"]), STD, rtol=0.2)
    places = jnp.broadcast_to(jnp.linspace(0.2, 1.2, 6)[None, :, None] * jnp.array([[[1.0, 0.0]]]), (1, 6, 2))
    right = jnp.stack([jnp.tanh(places[..., 0]) + 0.5, jnp.zeros((1, 6))], axis=2)
    paid = {}
    for name, after in {"expert": right, "still": places, "away": right + jnp.array([[[0.0, 9.0]]])}.items():
        moved, rows = relabel.apply(state, steps(places, after))
        paid[name] = np.asarray(rows.rewards) - 0.5 * 3.0
        assert relabel.measure(moved)["relabel/expert"] == state.expert
    assert (paid["expert"] > paid["still"] + 0.2).mean() > 0.8 and paid["expert"].min() > paid["still"].mean()
    np.testing.assert_array_equal(paid["away"], -10.0)
    assert float(moved.own) < -100  # what is measured is not cut at the floor


def test_other_sizes_are_refused(demos):
    with pytest.raises(ValueError, match="observations of 2 numbers, but 3 here"):
        by_likelihood(observation_size=3, make_net=make_net, demos=demos)


@pytest.mark.slow
def test_a_tour_is_walked_after_one_demonstration_and_not_with_the_wrong_sign(tmp_path, monkeypatch):
    """PPO that never sees the environment's reward, over three seeds."""
    quick = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", quick)
    config = rewards.get_config("likelihood")
    env = control_setup.load_env(config, 1)
    actions = np.array([1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1], np.int32)

    def walked(key):
        def step(state, action):
            state, _, now = env.step(state, action[None], jax.tree.map(lambda x: x[0], env.ahead(key, 1)))
            return state, (now.observation[0], now.reward[0])

        state, first = env.reset(key)
        return first, jax.lax.scan(step, state, actions)[1]

    first, (seen, paid) = jax.jit(walked)(jax.random.key(0))
    assert paid.sum() == 1.0
    seen, length = np.concatenate([first, seen]), len(actions)
    episode = Episode(seen[:-1], seen[-1], actions, np.asarray(paid), np.int32(length), np.bool_(False), np.bool_(True))
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode_row(episode, step=0, env="x")) + "\n")
    config.algorithm.relabel.demos = str(tmp_path / "episodes.jsonl")
    with config.unlocked():
        config.algorithm.relabel.coef = 1.0
    config.sweep = (("algorithm.relabel.coef", (1.0, -1.0)),)
    config.update(num_seeds=3, group=6)
    config.eval.num_episodes = 8
    config.train.total_steps = 60 * config.sample.num_envs * config.sample.num_steps
    config.log_every = config.checkpoint.every = 60
    program = control_runs.make_program(config)
    found = jax.device_get(program.advance(program.init())[1])["eval/return"]
    assert (found[0::2] > 0.9).all() and (found[1::2] < 0.5).all(), found  # each seed with 1 and with -1
