"""configs/control/navigators.py: what is trained is small, the equation of its target, and RLoT's run from the host."""

import jax
import numpy as np
import pytest

from configs.control import navigators
from experiments.parts import control_runs, control_setup, replay_runs
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.envs import subtasks
from tests.envs.test_thoughts import by_marks, played
from tests.experiments.test_control_replay import QUICK, trained


def made(words):
    """(the config, its method, its settings)."""
    config = navigators.get_config(words)
    groups = control_setup.settings_of(config)
    env = control_setup.load_env(config, config.sample.num_envs)
    method = replay_runs.build(config, groups["algorithm"], env).method
    return config, method, replay_runs.make_settings(config, groups, 1)


def test_the_navigator_has_less_than_3000_weights_and_its_codes_numbers():
    _, method, settings = made("rlot")
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(method.init, jax.random.key(0)))]
    assert sum(sizes) == 1510
    assert (settings.discount, settings.target_every, settings.batch_size) == (0.9, 50, 64)
    with pytest.raises(ValueError, match="rlot, rlap: one at a time"):
        navigators.get_config("rlap,rlot")


@pytest.mark.slow
def test_rlaps_target_is_the_largest_value_of_the_slow_network_on_any_subtask():
    """r + gamma max_a' Q_slow(s', a'), squared error, each Q by the network on (state, subtask) alone."""
    config, method, settings = made("rlap,smoke")
    assert settings.discount == 0.5 and settings.priority.exponent == 1.0
    init = jax.jit(method.init)
    params, slow = init(jax.random.key(0)), init(jax.random.key(1))
    rng = np.random.default_rng(0)
    seen, after = ((rng.random((3, config.env.size)) < 0.05).astype(np.float32) for _ in range(2))
    actions, rewards, ended = np.array([2, 0, 3]), np.float32([1.0, 0.0, 0.5]), np.array([False, False, True])
    flags = np.zeros(3, bool)
    steps = Transitions(seen, actions, rewards, after, ended, flags)
    discounts = np.where(ended, 0.0, 0.5).astype(np.float32)
    batch = ReplayBatch(steps, discounts, np.ones(3, np.float32), np.zeros((3, 2), int))
    loss = jax.jit(lambda: method.critic_loss(params, slow, batch, jax.random.key(2))[0])()

    def value(tree, state, subtask):
        """One number for one (state, subtask), by hand."""
        x = np.concatenate([state, subtasks.action_vectors()[subtask]])
        for name in ("layer_0", "layer_1"):
            x = np.maximum(x @ np.asarray(tree[name]["kernel"][0]) + np.asarray(tree[name]["bias"][0]), 0.0)
        return (x @ np.asarray(tree["head"]["kernel"][0]) + np.asarray(tree["head"]["bias"][0]))[0]

    for n in range(3):
        best = 0.0 if ended[n] else max(value(slow["critic"], after[n], a) for a in range(4))
        error = value(params["critic"], seen[n], actions[n]) - rewards[n] - 0.5 * best
        assert loss[n] == pytest.approx(0.5 * error**2, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_rlot_learns_which_block_comes_next(monkeypatch):
    """Played greedily, its mean return is nearer to that of who knows the clerk than to that of one block."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)
    config = navigators.get_config("rlot")
    config.train.total_steps, config.log_every, config.checkpoint.every = 5_000, 1_250, 1_250
    config.eval.num_episodes = 0
    params, metrics = trained(config)
    critic = jax.tree.map(lambda x: np.asarray(x)[0, 0], params["critic"])  # the first run, the first member

    def greedy(marks):
        x = marks
        for name in ("layer_0", "layer_1"):
            x = np.maximum(x @ critic[name]["kernel"] + critic[name]["bias"], 0.0)
        return int(np.argmax(x @ critic["head"]["kernel"] + critic["head"]["bias"]))  # the state's head is of all alike

    one_block = max(played(lambda _: 0)[1], played(lambda _: 2)[1])
    known, found = played(by_marks)[1], played(greedy)[1]
    assert found > 0.5 * (one_block + known), (one_block, found, known)
    assert not np.any(metrics["nonfinite/skipped"])
