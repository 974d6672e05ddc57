"""TACO's auxiliary loss (arXiv 2306.13229): against loops, by what its actions say, and through the program's seam."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs.control import rewards
from experiments.parts import control_auxiliary, control_runs, control_setup
from rl_jax.control import auxiliary
from rl_jax.control.auxiliary import several_steps
from rl_jax.losses import contrastive
from rl_jax.models.agents.features import make_net
from rl_jax.rollout.envs.steps import Transitions

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
ROWS, STATE, ACTIONS, WIDTH, STEPS = 5, 4, 2, 3, 2


def test_steps_ahead_by_loops():
    """Three steps on, within an episode and the rollout; the state after the last of them is the one before a reset."""
    rng = np.random.default_rng(0)
    shape = (2, 6)
    seen, after, actions = (rng.normal(size=(*shape, n)).astype(np.float32) for n in (3, 3, 2))
    rewards, done = rng.normal(size=shape).astype(np.float32), np.zeros(shape, bool)
    done[0, 2] = done[1, 0] = done[1, 5] = True
    ahead = jax.jit(functools.partial(auxiliary.steps_ahead, steps=3, discount=0.9))
    found = ahead(seen, after, actions, rewards, done)
    for b, t in np.ndindex(shape):
        valid = t + 3 <= 6 and not done[b, t : t + 2].any()
        assert found["ahead_valid"][b, t] == valid, (b, t)
        if valid:
            np.testing.assert_array_equal(found["ahead_actions"][b, t], actions[b, t : t + 3])
            np.testing.assert_array_equal(found["ahead_observations"][b, t], after[b, t + 2])
            paid = rewards[b, t] + 0.9 * rewards[b, t + 1] + 0.81 * rewards[b, t + 2]
            np.testing.assert_allclose(found["ahead_rewards"][b, t], paid, rtol=1e-5)
    assert np.asarray(found["ahead_valid"]).sum() == 5


def test_what_is_not_valid_is_neither_anchor_nor_candidate():
    scores = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    valid = np.array([True, False, True, True, False])
    both = jax.jit(lambda s, v: (contrastive.info_nce(s, v), jax.grad(lambda s: contrastive.info_nce(s, v).sum())(s)))
    found, slopes = map(np.asarray, both(scores, valid))
    part = scores[valid][:, valid]
    np.testing.assert_allclose(found[valid], np.log(np.exp(part).sum(1)) - np.diagonal(part), rtol=1e-5)
    assert np.all(found[~valid] == 0.0)
    assert np.all(slopes[~valid] == 0.0) and np.all(slopes[:, ~valid] == 0.0) and np.abs(slopes).max() > 0.1


def test_images_are_shifted_and_features_hidden():
    images = jnp.arange(2 * 6 * 5 * 1, dtype=jnp.float32).reshape(2, 6, 5, 1)
    augment = jax.jit(functools.partial(several_steps.augmented, hidden_share=0.3, pad=2))
    moved = np.asarray(augment(images, jax.random.key(1)))
    for old, new in zip(np.asarray(images)[..., 0], moved[..., 0], strict=True):
        padded = np.pad(old, 2, mode="edge")  # DrQ: pad, then crop
        assert any(np.array_equal(padded[y : y + 6, x : x + 5], new) for y in range(5) for x in range(5))
    assert not np.array_equal(moved, images)
    flat = np.asarray(augment(jnp.ones((200, 5)), jax.random.key(0)))
    assert set(np.unique(flat)) == {0.0, 1.0} and 0.65 < flat.mean() < 0.75


def linear_net(width, size, *, hidden):
    """One linear layer."""
    return SimpleNamespace(init=lambda key: jax.random.normal(key, (width, size)), apply=lambda params, x: x @ params)


@pytest.mark.slow
def test_the_loss_by_loops():
    rng = np.random.default_rng(0)
    sizes = dict(width=WIDTH, action_size=ACTIONS, make_net=linear_net, steps=STEPS)
    made = auxiliary.taco(**sizes, hidden_share=0.0, curl_coef=0.7, reward_coef=0.3)
    params, layer = made.init(jax.random.key(1)), np.float32(rng.normal(size=(STATE, WIDTH)))
    seen, later = (np.float32(rng.normal(size=(ROWS, STATE))) for _ in range(2))
    extras = {
        "ahead_observations": later,
        "ahead_actions": np.float32(rng.normal(size=(ROWS, STEPS, ACTIONS))),
        "ahead_rewards": np.float32(rng.normal(size=(ROWS, 1))),
        "ahead_valid": np.array([True, True, False, True, True])[:, None],
    }

    def total(params, layer):
        return made.loss(params, lambda x: jnp.tanh(x @ layer), seen, seen[:, :2], seen, jax.random.key(0), extras)

    own = {name: np.asarray(x) for name, x in params.items()}

    def code(x):
        y = np.tanh(x @ layer) @ own["state"]
        return np.tanh((y - y.mean()) / np.sqrt(y.var() + 1e-5))

    latents = [np.concatenate([a @ own["action"] for a in extras["ahead_actions"][i]]) for i in range(ROWS)]
    valid, terms = [0, 1, 3, 4], np.zeros(3)
    for i in range(ROWS):
        both = np.concatenate([code(seen[i]), latents[i]])
        curl = [code(seen[i]) @ own["map"] @ code(seen[j]) for j in range(ROWS)]
        terms[1] += (np.log(np.exp(curl).sum()) - curl[i]) / ROWS
        if i in valid:
            right = [both @ own["query"] @ own["map"] @ code(later[j]) for j in valid]
            terms[0] += (np.log(np.exp(right).sum()) - right[valid.index(i)]) / 4
            terms[2] += (both @ own["reward"] - extras["ahead_rewards"][i])[0] ** 2 / 4
    value, slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(params, layer)
    np.testing.assert_allclose(value, terms @ [1.0, 0.7, 0.3], rtol=1e-4)
    assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(slopes)), "every part learns"
    with pytest.raises(ValueError, match="steps=0 must be 1 or more"):
        auxiliary.taco(width=3, action_size=2, make_net=linear_net, steps=0)


@pytest.mark.slow
def test_the_actions_say_which_state_follows():
    """A walk on a ring of 32 places, 3 steps ahead: the loss falls well below the entropy of where the walk ends.

    Without the actions, or with those of other rows, it cannot.
    """
    rng = np.random.default_rng(0)
    eye, count = jnp.eye(32), 32
    made = auxiliary.taco(
        width=32, action_size=2, make_net=make_net, steps=3, hidden_share=0.0, curl_coef=0.0, reward_coef=0.0
    )

    def batch(key):
        place_key, action_key = jax.random.split(key)
        places = jax.random.permutation(place_key, 32)
        moves = jax.random.bernoulli(action_key, 0.5, (count, 3)).astype(jnp.int32)
        ends = (places + jnp.sum(2 * moves - 1, axis=1)) % 32
        extras = {
            "ahead_observations": eye[ends],
            "ahead_actions": jax.nn.one_hot(moves, 2),
            "ahead_rewards": jnp.zeros((count, 1)),
            "ahead_valid": jnp.ones((count, 1), bool),
        }
        return eye[places], extras

    torso = jnp.asarray(rng.normal(size=(32, 32)) / 4, jnp.float32)

    def loss(learned, key):
        seen, extras = batch(key)
        return made.loss(learned[0], lambda x: jnp.tanh(x @ learned[1]), seen, seen[:, :2], seen, key, extras)

    optimizer = optax.adam(1e-2)

    def train():
        def step(carry, key):
            learned, state = carry
            value, slopes = jax.value_and_grad(loss)(learned, key)
            moves, state = optimizer.update(slopes, state)
            return (jax.tree.map(jnp.add, learned, moves), state), value

        learned = (made.init(jax.random.key(0)), torso)
        begun, keys = (learned, optimizer.init(learned)), jax.random.split(jax.random.key(1), 400)
        return jax.lax.scan(step, begun, keys)[1][-50:].mean()

    found = jax.jit(train, compiler_options=QUICK)()
    probs = np.array([1, 3, 3, 1]) / 8
    entropy = -(probs * np.log(probs)).sum()  # 1.26
    assert found < 0.75 * entropy, (found, entropy)


@pytest.mark.slow
def test_the_program_tells_the_loss_what_follows():
    """control.ppo's own rollout: a batch with the steps ahead of its environments, and the loss among the metrics."""
    config = rewards.get_config("taco,smoke")
    config.sample.update(num_envs=2, num_steps=6)
    config.network.hidden = (4,)
    config.eval.num_episodes = 0
    env = control_setup.load_env(config, 2)
    agent = control_setup.make_network(config, env, 1)
    found = control_auxiliary.with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, env)
    rng = np.random.default_rng(0)
    seen, after = rng.normal(size=(2, 2, 6, 13)).astype(np.float32)
    done = np.zeros((2, 6), bool)
    done[0, 1] = True
    moves, paid = rng.integers(0, 2, (2, 6)), rng.normal(size=(2, 6)).astype(np.float32)
    steps = (jnp.asarray(x) for x in (moves, paid, done, np.zeros((2, 6), bool)))
    rows = Transitions(seen, after, None, *steps)
    extras = jax.jit(found.extras)(seen.reshape(12, 13), after.reshape(12, 13), rows)
    valid = np.asarray(extras["ahead_valid"]).reshape(2, 6)
    assert valid.tolist() == [[False, False, True, True, False, False], [True] * 4 + [False] * 2]
    np.testing.assert_array_equal(extras["ahead_observations"][8], after[1, 4])
    np.testing.assert_array_equal(extras["ahead_actions"][8], np.eye(2)[moves[1, 2:5]])
    init, advance, _ = control_runs.make_run(config)
    state = jax.eval_shape(lambda key: init(key, {}), jax.random.key(0))
    metrics = jax.eval_shape(lambda state: advance(state, {}, 1), state)[1]
    assert metrics["auxiliary"].shape == ()
