"""control/replay_methods/sequences.py (SRL): one action per decision is SAC; the actor's loss is its equation; a plan
is carried out without looking; and a plan of several actions does what a held action cannot."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rl_jax.control import off_policy, replay_types
from rl_jax.control import replay_methods as methods
from rl_jax.control.replay import ReplayBatch
from rl_jax.control.transitions import Transitions
from rl_jax.losses import value_heads
from rl_jax.models.agents import exploration, plans, value_networks
from rl_jax.rollout.envs.steps import Worlds

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
LOW, HIGH, SMALL = np.float32([-2.0]), np.float32([2.0]), dict(hidden=(8,), activation="tanh")
LAW = exploration.squashed(LOW, HIGH)


def parts(width=8, members=2):
    layers = dict(hidden=(width,), activation="tanh")
    critic = value_networks.make_q_function((2,), LOW, HIGH, 1, members=members, **layers)
    planner = plans.make_planner((2,), LAW, **layers)
    return methods.ReplayParts(
        critic, planner, value_heads.scalar(), model=plans.make_state_model(2, LOW, HIGH, **layers)
    )


def batch_of(key, rows=7):
    keys = jax.random.split(key, 4)
    seen, following = (jax.random.normal(k, (rows, 2)) for k in keys[:2])
    actions, rewards = jax.random.uniform(keys[2], (rows, 1)), jax.random.normal(keys[3], (rows,))
    steps = Transitions(seen, actions, rewards, following, jnp.zeros(rows, bool), jnp.zeros(rows, bool))
    return ReplayBatch(steps, jnp.full(rows, 0.9), jnp.ones(rows), None)


def test_a_plan_of_one_action_is_sac():
    """The losses, and the actor's gradient, of an actor that is the first step of the planner."""
    inner = value_networks.make_actor((3,), LAW, **SMALL)  # reads (s, the action before)

    def step(params, state, before):
        return inner.apply(params, jnp.concatenate([state, before], axis=1)), 0.5 * state

    def first_step(params, observations):
        return inner.apply(params, jnp.pad(observations, ((0, 0), (0, 1))))

    own = parts()._replace(actor=plans.planner_of(inner.init, lambda params, seen: seen, step, LAW))
    sac = methods.sac(own._replace(actor=value_networks.Actor(inner.init, first_step, LAW)), temperature=0.3)
    srl = methods.sequence_sac(own, length=1, temperature=0.3)

    def run(key):
        batch, params = batch_of(key), srl.init(key)
        slow = jax.tree.map(lambda x: 0.9 * x, params)
        model = params["critic"]["model"]
        missed = own.model.apply(model, batch.steps.observations, batch.steps.actions) - batch.steps.next_observations

        def plain(tree):
            return tree | {"critic": tree["critic"]["q"]}

        def critics(method, params, slow):
            return method.critic_loss(params, slow, batch, key)[0]

        def actors(method, params, slow):
            return method.actor_loss(params, slow, batch, key)[0]

        slope = [
            jax.grad(lambda own, params=params, method=method: jnp.sum(actors(method, own, params)))(params)["actor"]
            for method, params in ((srl, params), (sac, plain(params)))
        ]
        pairs = [(loss(srl, params, slow), loss(sac, plain(params), plain(slow))) for loss in (critics, actors)]
        return pairs, slope, jnp.mean(jnp.square(missed), axis=1)

    (critic, actor), slope, missed = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
    np.testing.assert_allclose(critic[0] - missed, critic[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(*actor, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), *slope)


class Simple:
    """Without networks: the state counts the steps, an action's mean is 0.1 s + 0.2 steps - 0.3 a_before."""

    planner = plans.planner_of(
        init=lambda key: jnp.float32([0.1, 0.2, -0.3]),
        begin=lambda params, seen: params[0] * seen,
        step=lambda params, state, before: (
            jnp.concatenate([state + params[1] + params[2] * before, jnp.full_like(before, -1.0)], axis=1),
            state + params[1],
        ),
        distribution=LAW,
    )
    critic = value_networks.Critic(
        lambda key: jnp.float32([1.0, 0.5]),
        lambda params, seen, actions: -jnp.square(actions[None] - params[:, None, None] * seen[None]),
        2,
    )
    model = plans.StateModel(
        init=lambda key: jnp.float32(0.8), apply=lambda params, seen, actions: params * seen + 0.1 * actions
    )
    parts = methods.ReplayParts(critic, planner, value_heads.scalar(), model=model)


def keyed():
    """Parts whose params are numbers drawn from the key that they are given."""
    drawn = [x._replace(init=lambda key: jax.random.normal(key, (2,))) for x in (Simple.critic, Simple.planner)]
    model = Simple.model._replace(init=lambda key: jax.random.normal(key, (2,)))
    return Simple.parts._replace(critic=drawn[0], actor=drawn[1], model=model)


def test_each_action_of_a_plan_is_valued_where_the_slow_model_says_that_it_acts():
    method, key = methods.sequence_sac(Simple.parts, length=3, temperature=0.2, target_entropy=-1.0), jax.random.key(0)
    seen, params = np.linspace(-1.0, 1.0, 5)[:, None], method.init(key)
    slow = params | {"critic": {"q": jnp.zeros(2), "model": jnp.float32(0.5)}}
    batch = batch_of(key, 5)
    batch = batch._replace(steps=batch.steps._replace(observations=jnp.asarray(seen, jnp.float32)))
    noise = np.stack(
        [LAW.noise(key, (5,)), *np.asarray(LAW.noise(jax.random.fold_in(key, 1), (2, 5)))]
    )  # the first action's is SAC's
    place, before, log_probs, loss = seen, 0.0, [], 0.0
    for j in range(3):
        mean = 0.1 * seen + 0.2 * (j + 1) - 0.3 * before
        u = mean + np.exp(-1.0) * noise[j]
        before, action = np.tanh(u), 2.0 * np.tanh(u)
        density = -0.5 * noise[j] ** 2 + 1.0 - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
        log_probs.append(density[:, 0])
        q = np.minimum(-((action - place) ** 2), -((action - 0.5 * place) ** 2))[:, 0]
        loss = loss + 0.2 * log_probs[-1] - q
        place = 0.5 * place + 0.1 * action
    entropy = -np.mean(log_probs, axis=0)
    loss = loss + np.log(0.2) * (entropy + 1.0)
    found, metrics = method.actor_loss(params, slow, batch, key)
    np.testing.assert_allclose(found, loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], entropy.mean(), rtol=1e-4)
    slope = jax.grad(lambda slow: jnp.sum(method.actor_loss(params, slow, batch, key)[0]))(slow)
    assert not np.any(slope["critic"]["model"]), "the model's states are data"


def test_a_plan_is_carried_out_without_looking_and_its_last_action_is_held():
    method = methods.sequence_sac(Simple.parts, length=2, decide_every=3)
    params, rows = method.init(jax.random.key(0)), 4
    memory = method.memory(jax.random.key(1), rows)
    began = jnp.array([0, 0, 1, 2])  # environment 2 and 3 are in the middle of their episodes
    acted = []
    for time in range(6):
        seen = jnp.full((rows, 1), float(time))
        outputs, memory = method.acting(params, None, Worlds((), seen, None, began + time, memory))
        acted.append(np.asarray(outputs))
    acted = np.stack(acted)  # [T, B, (drawn, mode)]
    first = 0.1 * np.arange(6) + 0.2
    plan = np.stack([first, 0.1 * np.arange(6) + 0.4 - 0.3 * np.tanh(first)], axis=1)
    np.testing.assert_allclose(acted[:, 0, 1], plan[[0, 0, 0, 3, 3, 3], [0, 1, 1, 0, 1, 1]], rtol=1e-5)
    np.testing.assert_allclose(acted[2:, 2, 1], plan[[2, 2, 2, 5], [0, 1, 1, 0]], rtol=1e-5)
    np.testing.assert_allclose(acted[1:, 3, 1], plan[[1, 1, 1, 4, 4], [0, 1, 1, 0, 1]], rtol=1e-5)
    drawn = acted[:, :, 0]
    assert (drawn[1] == drawn[2])[:2].all() and (drawn[0] != drawn[1])[:2].all() and drawn[0, 0] != drawn[0, 1]
    assert (drawn[3] != drawn[0])[:2].all()


@pytest.mark.slow
def test_a_plan_of_four_actions_does_what_the_first_of_them_held_cannot():
    """A mass is pushed to the origin, with one look per four steps."""
    own = parts(width=32, members=1)
    method, held = (
        methods.sequence_sac(own, temperature=0.02, learn_temperature=False, **more)
        for more in (dict(length=4), dict(length=1, decide_every=4))
    )
    count, adam = 400, optax.adam(optax.linear_schedule(1e-2, 1e-3, 400))

    def push(seen, actions):
        speed = 0.7 * seen[:, 1] + 0.5 * actions[:, 0]
        place = seen[:, 0] + 0.5 * speed
        return jnp.stack([place, speed], axis=1), -jnp.square(place)

    def run(key):
        flat, unravel = ravel_pytree(method.init(key))

        def update(carry, key):
            vector, slow, state = carry
            first, second = jax.random.split(key)
            seen = jax.random.uniform(first, (64, 2), minval=-1.0, maxval=1.0)
            actions = jax.random.uniform(second, (64, 1), minval=-2.0, maxval=2.0)
            following, rewards = push(seen, actions)
            nothing = jnp.zeros(64, bool)
            steps = Transitions(seen, actions, rewards, following, nothing, nothing)
            batch = ReplayBatch(steps, jnp.full(64, 0.8), jnp.ones(64), None)

            def loss(vector):
                params = unravel(vector)
                fixed = jax.lax.stop_gradient(params)
                critic = method.critic_loss(fixed | {"critic": params["critic"]}, unravel(slow), batch, key)[0]
                actor = method.actor_loss(fixed | {"actor": params["actor"]}, unravel(slow), batch, key)[0]
                return jnp.mean(critic) + jnp.mean(actor)

            updates, state = adam.update(jax.grad(loss)(vector), state)
            vector = vector + updates
            return (vector, slow + 0.05 * (vector - slow), state), None

        vector = jax.lax.scan(update, (flat, flat, adam.init(flat)), jax.random.split(key, count))[0][0]
        start = jnp.stack([jnp.linspace(-1.0, 1.0, 32), jnp.zeros(32)], axis=1)

        def evaluated(method):
            def step(carry, time):
                seen, memory = carry
                worlds = Worlds((), seen, None, jnp.broadcast_to(time, (32,)), memory)
                outputs, memory = method.acting(unravel(vector), None, worlds)
                seen, rewards = push(seen, LAW.to_env(outputs[:, 1:]))
                return (seen, memory), jnp.mean(rewards)

            return jnp.sum(jax.lax.scan(step, (start, method.memory(key, 32)), jnp.arange(8))[1])

        return [evaluated(method) for method in (method, held)]

    with jax.default_prng_impl("unsafe_rbg"):  # compiles in half the time
        found = jax.jit(jax.vmap(run), compiler_options=QUICK)(jax.random.split(jax.random.key(0), 3))
    plan, held = (np.asarray(x) for x in found)
    assert (plan > -1.6).all() and (plan > held + 1.0).all(), (plan, held)  # standing still has -2.8


def test_refusals():
    with pytest.raises(ValueError, match="length=4 must be 1 or more, and decide_every=2 as many"):
        methods.sequence_sac(Simple.parts, length=4, decide_every=2)
    settings = replay_types.ReplaySettings(slots=8, warmup=4, batch_size=2, steps=3)
    with pytest.raises(ValueError, match="algorithm.n_step=3: this method learns a model of the next state"):
        replay_types.check(settings, 4, methods.sequence_sac(Simple.parts))
    replay_types.check(settings._replace(steps=1), 4, methods.sequence_sac(Simple.parts))


def test_the_planner_and_the_model_start_from_weights_of_their_own():
    """split(key)[1] is fold_in(key, 1): a second use of a key shows as equal weights."""
    params = methods.sequence_sac(keyed()).init(jax.random.key(0))
    drawn = params["actor"]["policy"], params["critic"]["model"], params["critic"]["q"]
    assert len({float(x[0]) for x in drawn}) == 3


def test_the_memory_has_no_key_of_an_environment(monkeypatch):
    """Environment b starts from split(key, B)[b], which is fold_in(key, b)."""
    seen = {}

    def start(env, key, memory):
        seen.update(key=key, memory=memory)
        raise InterruptedError

    monkeypatch.setattr(off_policy, "start", start)
    env, adam = SimpleNamespace(num_envs=3), optax.sgd(0.1)
    settings = replay_types.ReplaySettings(slots=8, warmup=4, batch_size=2)
    init = off_policy.make_replay_update(
        methods.sequence_sac(keyed()), None, env, settings, {"critic": adam, "actor": adam}, num_steps=4
    )[0]
    with pytest.raises(InterruptedError):
        init(jax.random.key(0))
    for own in jax.random.split(seen["key"], 3):
        assert (jax.random.key_data(jax.random.split(own, 3)) != seen["memory"]["keys"]).any()
