"""control/replay_methods/on_the_fly.py: EXPO's choice and targets against loops over its equations; and it learns, from
demonstrations of two kinds, what neither its clone nor the best of the clone's samples reaches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import envs
from rl_jax.control import off_policy, replay_types
from rl_jax.control import replay_methods as methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.envs.protocol import Box, Environment, Step
from rl_jax.losses import value_heads
from rl_jax.models.agents import diffusion, exploration, value_networks
from rl_jax.rollout.envs.steps import Worlds

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
LOW, HIGH, UNIT = np.float32([-2.0]), np.float32([2.0]), np.ones(1, np.float32)
STEPS, SMALL = 4, dict(hidden=(16,), activation="silu")


def parts():
    critic = value_networks.make_q_function((1,), LOW, HIGH, 1, members=2, **SMALL)
    editor = value_networks.make_actor((2,), exploration.squashed(-UNIT, UNIT), **SMALL)
    base = diffusion.make_diffusion((1,), LOW, HIGH, steps=STEPS, **SMALL)
    return methods.ReplayParts(critic, editor, value_heads.scalar(), base=base)


def choices_by_hand(parts, base_params, params, slow_critic, observations, noise, edit_noise, beta):
    """(actions [B, M, 1] in the environment's units, Q' [B, M]), one candidate after the other."""
    law, found = parts.actor.distribution, []
    count = edit_noise.shape[0] // len(observations)
    for edited in (False, True) if beta else (False,):
        for i in range(count):
            own, own_edit = noise[:, i::count], edit_noise[i::count]
            actions = parts.base.sample(base_params, observations, own)
            if edited:
                outputs = parts.actor.apply(params["edit"], jnp.concatenate([observations, actions], axis=1))
                actions = jnp.clip(actions + beta * jnp.tanh(law.sample(outputs, own_edit)), -1.0, 1.0)
            found.append(2.0 * actions)
    q = [jnp.min(parts.critic.apply(slow_critic, observations, actions)[..., 0], axis=0) for actions in found]
    return jnp.stack(found, axis=1), jnp.stack(q, axis=1)


def noise_of(key, rows):
    return jax.random.normal(key, (STEPS, rows, 1))


def test_the_target_and_the_action_are_those_of_the_best_candidate():
    """With beta = 0 the best of N of the clone, with N = 1 besides the clone itself, whatever Q says."""
    own = parts()
    observations = jnp.linspace(-1.0, 1.0, 6)[:, None]
    zeros, no = jnp.zeros(6), jnp.zeros(6, bool)
    batch = ReplayBatch(
        Transitions(observations, jnp.zeros((6, 1)), zeros, observations, no, no), jnp.ones(6), jnp.ones(6), None
    )

    def run(key):
        found = {}
        for samples, beta in ((4, 0.3), (4, 0.0), (1, 0.0)):
            method = methods.expo(own, samples=samples, beta=beta)
            params, slow = method.init(key), method.init(jax.random.fold_in(key, 1))
            slow["critic"]["head"]["bias"] += 5.0  # so that every target is positive
            blank = params | {"critic": jax.tree.map(jnp.zeros_like, params["critic"])}
            # Both critics of 0 miss the target by y: y^2 / 2 twice.
            target = jnp.sqrt(method.critic_loss(blank, slow, batch, key)[0])
            keys = jax.random.split(key, 4)
            noise = noise_of(keys[0], 6 * samples), jax.random.normal(keys[1], (6 * samples, 1))
            base = params["actor"]["base"]
            _, q = choices_by_hand(own, base, params["actor"], slow["critic"], observations, *noise, beta)

            memory = method.memory(key, 6)
            outputs, after = method.acting(params, slow, Worlds((), observations, zeros, zeros, memory))
            each = [jax.random.split(jax.random.wrap_key_data(row), 4) for row in memory]
            noise = jnp.concatenate([noise_of(k[0], samples) for k in each], axis=1)
            edit_noise = jnp.concatenate([jax.random.normal(k[1], (samples, 1)) for k in each])
            base = slow["actor"]["base"]
            actions, acted = choices_by_hand(
                own, base, params["actor"], slow["critic"], observations, noise, edit_noise, beta
            )
            best = jnp.take_along_axis(actions, jnp.argmax(acted, axis=1)[:, None, None], axis=1)[:, 0]
            found[samples, beta] = target, q, outputs, best, (memory, after)
        return found

    found = jax.device_get(jax.jit(run, compiler_options=QUICK)(jax.random.key(0)))
    for (samples, beta), (target, q, outputs, best, (memory, after)) in found.items():
        assert q.shape == (6, samples * (2 if beta else 1))
        np.testing.assert_allclose(target, q.max(axis=1), rtol=1e-4)
        assert (target >= q.mean(axis=1) - 1e-4).all() and (samples == 1 or (target > q.mean(axis=1) + 1e-3).all())
        np.testing.assert_allclose(outputs, np.concatenate([best, best], axis=1), atol=1e-5)
        assert (memory != after).any(axis=1).all(), "the next step draws anew"


def shown_twice():
    """One step, reward -(a - 1.5)^2 / 4; the observation is noise. Somebody shows -1.2 and 1.2, each as often."""
    space = Box(np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32))

    def reset(key):
        seen = jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)
        return seen, seen

    def step(key, state, action):
        reward = -jnp.square(action[0] - 1.5) / 4.0
        return state, Step(state, reward, np.bool_(True), np.bool_(False))

    def demonstrator(observations):
        # The third decimal of the observation chooses: nothing that a network can read.
        odd = jnp.floor(observations * 1000.0) % 2
        return jnp.where(odd > 0, 1.2, -1.2), jnp.zeros(len(observations), bool)

    return Environment(reset, step, space, Box(LOW, HIGH)), demonstrator


@pytest.mark.slow
def test_it_learns_from_demonstrations_and_its_own_steps_more_than_was_shown():
    own, (env, demonstrator) = parts(), shown_twice()
    settings = dict(samples=4, temperature=0.01, learn_temperature=False)
    edited, plain, clone = (
        methods.expo(own, **settings | more) for more in (dict(beta=0.3), dict(beta=0.0), dict(beta=0.0, samples=1))
    )
    law = exploration.drawn(1, lambda actions: actions)
    law = exploration.intervened(exploration.exploring(law, exploration.uniform_actions(law, LOW, HIGH)), 1)
    numbers = replay_types.ReplaySettings(64, 8, 64, kept=8, discount=0.9, tau=0.05)
    adam = {"critic": optax.adam(1e-2), "actor": optax.adam(1e-2)}
    init, update, _ = off_policy.make_replay_update(
        edited, law, envs.vectorize(env, 8), numbers, adam, num_steps=2, intervention=demonstrator
    )
    opened = replay_types.opener(edited)

    def run(key):
        state = jax.lax.scan(lambda state, _: (update(state)[0], None), init(key), None, 250)[0]
        params, slow = opened(state.train.params), opened(state.train.trackers["slow"])
        worlds = Worlds((), jax.random.uniform(key, (64, 1)), jnp.zeros(64), jnp.zeros(64), edited.memory(key, 64))
        return [method.acting(params, slow, worlds)[0][:, 0] for method in (edited, plain, clone)]

    found = jax.jit(jax.vmap(run), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 3))
    edits, best, cloned = (np.asarray(x) for x in found)
    returns = [(-np.square(x - 1.5) / 4).mean(axis=1) for x in (edits, best, cloned)]
    print([r.round(4) for r in returns], [(x > 0).mean(axis=1) for x in (cloned,)], np.abs(cloned).mean(axis=1))
    share = (cloned > 0).mean(axis=1)
    assert ((share > 0.15) & (share < 0.95)).all(), share  # its own steps are cloned too
    assert (returns[0] > returns[1] + 0.01).all() and (returns[1] > returns[2] + 0.2).all(), returns
    assert (returns[0] > -0.01).all(), returns


def test_refusals():
    with pytest.raises(ValueError, match="samples=0 must be 1 or more, and beta=0.3 from 0 to 2"):
        methods.expo(parts(), samples=0, beta=0.3)
    with pytest.raises(ValueError, match="steps=1 of denoising"):
        diffusion.make_diffusion((1,), LOW, HIGH, steps=1)
