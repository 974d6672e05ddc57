"""control/adversaries.py: its reward and norms against numpy, and what it pays in an update from replay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import envs
from rl_jax.control import adversaries, off_policy, replay_methods, replay_types
from rl_jax.control.relabelling import imitation
from rl_jax.envs.worlds import docking
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, value_networks
from rl_jax.models.agents.features import make_net

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
UNIT = np.ones(2, np.float32)
NET = make_net(6, 1, hidden=(8,))
SHOW = functools.partial(docking.demonstrations, episodes=2, periods=8, bias=0.0)


def normalized(params):
    """The params with the hidden kernel over its largest singular value."""
    kernel = np.asarray(params["layer_0"]["kernel"])
    return params | {"layer_0": params["layer_0"] | {"kernel": kernel / np.linalg.svd(kernel)[1][0]}}


def test_all_layers_but_the_head_have_norm_one():
    rng = np.random.default_rng(0)
    params = {name: {"kernel": rng.normal(size=shape), "bias": np.ones(2)} for name, shape in
              (("layer_0", (6, 4)), ("head", (4, 1)))}  # fmt: skip
    found = adversaries.spectrally_normalized(params, iterations=200)
    np.testing.assert_allclose(found["layer_0"]["kernel"], normalized(params)["layer_0"]["kernel"], rtol=1e-4)
    assert found["head"] is params["head"] and found["layer_0"]["bias"] is params["layer_0"]["bias"]


@pytest.mark.slow
def test_an_update_pays_the_newest_discriminators_rewards_and_not_those_of_the_environment():
    """TD3, n = 2: from the same state with other rewards in the replay the same params come, with another D others."""
    made = adversaries.discriminator(NET, SHOW, steps=20, batch_size=16, learning_rate=1e-2)
    critic = value_networks.make_q_function((4,), -UNIT, UNIT, members=1, hidden=(8,))
    law = exploration.noisy(-UNIT, UNIT, std=0.1)
    actor = value_networks.make_actor((4,), law, hidden=(8,))
    method = replay_methods.td3(replay_methods.ReplayParts(critic, actor, value_heads.scalar(), law))
    seen = []

    def critic_loss(params, slow, batch, key):
        jax.debug.callback(lambda *x: seen.append(x), batch.places, batch.steps.rewards)
        return method.critic_loss(params, slow, batch, key)

    watched = method._replace(critic_loss=critic_loss)
    acting = exploration.exploring(law, exploration.uniform_actions(law, -UNIT, UNIT))
    settings = replay_types.ReplaySettings(slots=16, warmup=8, batch_size=16, steps=2, discount=0.9)
    adam = {name: optax.adam(1e-2) for name in ("critic", "actor")}
    vector = envs.vectorize(docking.environment(), 2)
    init, update, _ = off_policy.make_replay_update(
        watched, acting, vector, settings, adam, num_steps=2, adversary=made
    )
    state = jax.jit(init, compiler_options=QUICK)(jax.random.key(0))
    update = jax.jit(update, compiler_options=QUICK)
    after, metrics = update(state)
    other = state._replace(
        replay=state.replay._replace(rows=state.replay.rows._replace(rewards=jnp.full((2, 16), 9.0)))
    )
    jax.tree.map(np.testing.assert_array_equal, after.train.params, update(other)[0].train.params)
    before, judge = state.train.trackers["adversary"], after.train.trackers["adversary"]
    moved = before._replace(learned=before.learned._replace(params=jax.tree.map(lambda x: -x, before.learned.params)))
    trackers = state.train.trackers | {"adversary": moved}
    changed = update(state._replace(train=state.train._replace(trackers=trackers)))[0].train.params
    assert np.abs(changed["critic"] - after.train.params["critic"]).max() > 1e-4

    jax.effects_barrier()
    rows, params = jax.device_get((after.replay.rows, judge.learned.params))
    normed = jax.device_get(adversaries.spectrally_normalized(params))
    x = np.concatenate([rows.observations, rows.actions], axis=2).reshape(32, 6)
    hidden = np.maximum(x @ normed["layer_0"]["kernel"] + params["layer_0"]["bias"], 0.0)
    logits = (hidden @ params["head"]["kernel"] + params["head"]["bias"])[:, 0]
    paid = np.log1p(np.exp(logits)).reshape(2, 16)  # -log(1 - D)
    places, rewards = seen[0]
    expected = [paid[env, slot] + 0.9 * paid[env, slot + 1] for env, slot in places]
    np.testing.assert_allclose(rewards, expected, rtol=1e-4)
    assert float(metrics["imitation/expert"].value()) > float(metrics["imitation/own"].value())


def test_it_has_the_published_numbers_and_clips_what_it_sees(monkeypatch):
    """The loss itself is that of relabelling.imitation, whose tests train it."""
    given = {}

    def recorded(score, **numbers):
        given.update(numbers)
        return imitation.make_objective(score, **numbers)

    monkeypatch.setattr(adversaries, "make_objective", recorded)
    made = adversaries.discriminator(NET, SHOW)
    assert given == dict(batch_size=64, labels=(0.7, 1.2), penalty=10.0, entropy_coef=0.001)
    state = jax.jit(made.init, compiler_options=QUICK)(jax.random.key(0))
    paid = jax.jit(made.pay, compiler_options=QUICK)(
        state, np.float32([[100.0] * 4, [5.0] * 4, [4.0] * 4]), np.ones((3, 2))
    )
    assert paid[0] == paid[1] != paid[2]
