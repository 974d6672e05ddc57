"""Every library of environments through one protocol: its own steps, resets where an episode ends, time limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from tests.envs.libraries import ALONE, ROWS, adapter, foreign

QUICK = {"xla_backend_optimization_level": 0}  # compiling is nearly all of the time
SEED = 4  # of starts from which the worlds of libraries.ROWS end as these say


def program(fn, *args):
    """fn as a program that is quick to compile, for arguments such as these; what it gives is numpy."""
    found = jax.jit(fn).lower(*args).compile(compiler_options=QUICK)
    return lambda *args: jax.device_get(found(*args))


def vector(env, key, actions):
    """(first observations, starts drawn ahead, observations to act on [T, B, ...], Steps [T, B]) of two worlds."""
    start_key, ahead_key = jax.random.split(key)
    state, first = env.reset(start_key)
    drawn = env.ahead(ahead_key, len(actions))

    def step(state, now):
        state, observation, out = env.step(state, *now)
        return state, (observation, out)

    return first, drawn[1][1], *jax.lax.scan(step, state, (actions, drawn))[1]


def alone(own, key, world, actions):
    """(first observation, observations, rewards, done) of one of these worlds, as the library itself steps."""
    start_key, ahead_key = jax.random.split(key)
    keys = jax.random.split(jax.random.split(ahead_key)[0], (len(actions), 2))[:, world]
    state, first = own[0](jax.random.split(start_key, 2)[world])

    def step(state, now):
        state, *out = own[1](now[0], state, now[1])
        return state, tuple(out)

    return first, *jax.lax.scan(step, state, (keys, actions))[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_it_steps_as_the_library_does_and_starts_again_by_itself(name):
    row = ROWS[name]
    adapter(name.partition("/")[0])
    with foreign():
        env = envs.load(name, **row.keywords)
        many, own = envs.vectorize(env, 2), row.own()
        actions = jnp.asarray(np.concatenate([row.actions, row.actions[:2]]))
        key = jax.random.key(SEED)
        walk = program(lambda key: vector(many, key, actions), key)
        single = program(lambda world, actions: alone(own, key, world, actions), 0, actions[:, 0])
        first, starts, observation, step = walk(key)
        again, other = walk(key), walk(jax.random.key(0))
        theirs = [single(world, actions[:, world]) for world in range(2)]
    check_shapes(env, first, observation, step)
    done = step.done
    jax.tree.map(np.testing.assert_array_equal, (first, starts, observation, step), again)  # a key gives what it gave
    assert not np.array_equal(first, other[0])  # another gives other starts
    np.testing.assert_array_equal(observation[done], starts[done])
    np.testing.assert_array_equal(observation[~done], step.observation[~done])
    over = np.argmax(done, axis=0)
    assert over[0] == row.limit - 1 and step.truncated[over[0], 0]
    assert step.terminated[over[1], 1] == row.dies and (over[1] < row.limit - 1) == row.dies
    for world in range(2):
        same_steps((first, step), theirs[world], world, over[world] + 1)


def strong(x):
    """In numpy, unless it is traced or a key: a number of weak type would be another program."""
    dtype = getattr(x, "dtype", None)
    kept = isinstance(x, jax.core.Tracer) or (dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))
    return x if kept else np.asarray(x)


def compiled(kind: type, names: tuple[str, ...], patch: pytest.MonkeyPatch) -> None:
    """These methods become programs of their own, which all instances share."""
    for name in names:
        original, made = getattr(kind, name), []

        def call(self, *args, original=original, made=made):
            if not made:
                made.append(jax.jit(functools.partial(original, self)))
            return made[0](*jax.tree.map(strong, args))

        patch.setattr(kind, name, call)


def walked(reset, step, key, actions, harm=None):
    """(first, what each step gives [T]), stepped from here; harm: as in Row, of the state at the start."""
    start_key, step_key = jax.random.split(key)
    state, first = reset(start_key)
    state, given = state if harm is None else harm(state), []
    for now, action in zip(jax.random.split(step_key, len(actions)), actions, strict=True):
        state, *out = step(now, state, jnp.asarray(action))
        given.append(out)
    return jax.device_get((first, jax.tree.map(lambda *x: np.stack(x), *given)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_a_world_of_it_steps_as_the_library_does(name, monkeypatch):
    row = ALONE[name]
    adapter(name.partition("/")[0])
    with foreign():
        compiled(*row.compiled(), monkeypatch)
        env, own, key = envs.load(name, **row.keywords), row.own(), jax.random.key(SEED)
        ours = [walked(env.reset, env.step, key, actions) for actions in row.actions.swapaxes(0, 1)]
        theirs = [walked(*own, key, actions) for actions in row.actions.swapaxes(0, 1)]
        again, other = (walked(env.reset, env.step, x, row.actions[:1, 0]) for x in (key, jax.random.key(0)))
        if row.harm:
            on_timed = lambda state: state._replace(state=row.harm(state.state))  # noqa: E731
            hurt = walked(env.reset, env.step, key, row.actions[:1, 0], on_timed)
            hurt_theirs = walked(*own, key, row.actions[:1, 0], row.harm)
        many, actions = envs.vectorize(env, 2), jnp.asarray(row.actions)
        first, starts, *shapes = jax.eval_shape(lambda key: vector(many, key, actions), key)
    both = jax.tree.map(lambda *x: np.stack(x, axis=1), *(steps for _, (steps,) in ours))
    check_shapes(env, np.stack([ours[0][0]] * 2), both.observation, both)
    assert (starts.shape, starts.dtype) == (both.observation.shape, np.float32) and first.shape == starts.shape[1:]
    expected = jax.tree.map(lambda x: (x.shape, x.dtype), [both.observation, both])
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == expected
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:1], y), ours[0][1], again[1])  # a key gives what it gave
    assert not np.array_equal(again[0], other[0])  # another gives other starts
    over = np.argmax(both.done, axis=0)
    assert over[0] == row.limit - 1 and both.truncated[over[0], 0]
    assert both.terminated[over[1], 1] == row.dies and (over[1] < row.limit - 1) == row.dies
    for world in range(2):
        first, steps = theirs[world]
        same_steps((np.stack([ours[world][0]] * 2), both), (first, *steps), world, over[world] + 1)
    if row.harm:
        (first, (step,)), (their_first, their_steps) = hurt, hurt_theirs
        same_steps((first[None], jax.tree.map(lambda x: x[:, None], step)), (their_first, *their_steps), 0, 1)
        assert step.terminated[0] and not step.truncated[0]


def same_steps(ours, theirs, world: int, count: int):
    """The first observation and `count` steps of a world are the library's."""
    first, step = ours
    mine = (step.observation, step.reward, step.done)
    pairs = [(first[world], theirs[0]), *((x[:count, world], y[:count]) for x, y in zip(mine, theirs[1:], strict=True))]
    for x, y in pairs:
        np.testing.assert_allclose(x.ravel(), np.asarray(y, x.dtype).ravel(), rtol=1e-5, atol=1e-5)


def check_shapes(env, first, observation, step):
    """Shapes and dtypes are the protocol's, and an observation lies within its space."""
    steps = len(observation)
    assert first.shape == (2, *env.observation_space.shape) and first.dtype == np.float32
    assert observation.shape == step.observation.shape == (steps, *first.shape)
    assert observation.dtype == step.observation.dtype == step.reward.dtype == np.float32
    assert step.terminated.dtype == step.truncated.dtype == bool
    assert step.reward.shape == step.terminated.shape == step.truncated.shape == (steps, 2)
    assert not (step.terminated & step.truncated).any()
    low, high = env.observation_space
    assert (observation >= np.broadcast_to(low, observation.shape)).all()
    assert (observation <= np.broadcast_to(high, observation.shape)).all()


@pytest.mark.slow
def test_jumanjis_illegal_actions_and_its_fields():
    adapter("jumanji")
    with foreign():
        small = dict(num_rows=4, num_cols=4, time_limit=20)
        env = envs.load("jumanji/Snake-v1", illegal="random", **small)
        assert env.observation_space.shape == (4 * 4 * 5 + 1 + 4,) and env.action_space == envs.Discrete(4)
        plain = envs.load("jumanji/Snake-v1", **small)

        def walk(env, key):
            state, first = env.reset(key)

            def step(state, key):
                state, now = env.step(key, state, jnp.int32(0))  # up, up, up: into the wall
                return state, (now.observation, now.terminated, now.truncated)

            return first, jax.lax.scan(step, state, jax.random.split(key, 19))[1]

        kept, replaced = program(lambda key: (walk(plain, key), walk(env, key)), jax.random.key(0))(jax.random.key(0))
    assert kept[1][1][:4].any()  # the wall is at most four steps away
    legal = replaced[1][0][:, -4:]
    over = np.argmax(replaced[1][1] | ~legal.any(axis=1) | (np.arange(19) == 18))
    assert over > 4, "an illegal action was taken all the same"
    assert legal[:over].any(axis=1).all() and not legal[:over].all()
    assert not replaced[1][2].any()


@pytest.mark.parametrize(
    ("name", "keywords", "said"),
    [
        ("brax/ants", {}, "it has: ant, fast"),
        ("brax/ant", {"backnd": "spring"}, "backnd"),
        ("brax/fast", {"obs_mode": "dict_state", "observation": "pixels"}, "none of state"),
        ("jumanji/Snake-v0", {}, "Snake-v1"),
        ("jumanji/Sokoban-v0", {}, "jumanji has no"),
        ("jumanji/Snake-v1", {"rows": 3}, "rows"),
        ("jumanji/Snake-v1", {"observation": "map"}, "none of grid, step_count, action_mask"),
        ("jumanji/Snake-v1", {"illegal": "resample"}, "'keep'"),
        ("jumanji/Minesweeper-v0", {}, "takes actions"),
        ("craftax/Craftax-v1", {}, "Craftax-Symbolic-v1"),
        ("craftax/Craftax-Classic-Symbolic-v1", {"max_steps": 3}, "max_timesteps"),
        ("navix/Empty-5x5", {}, "Navix-Empty-5x5-v0"),
        ("navix/Navix-Empty-5x5-v0", {"observation": "rgb"}, "symbolic"),
        ("playground/Cartpole", {}, "CartpoleBalance"),
        ("playground/CartpoleBalance", {"steps": 3}, "episode_length"),
        ("playground/Go1Handstand", {}, "mujoco_menagerie"),
        ("envpool/CartPole", {}, "CartPole-v1"),
        ("envpool/CartPole-v1", {"limit": 3}, "limit"),
        ("envpool/Pong-v5", {}, "channels first"),
    ],
)
def test_what_is_unknown(name, keywords, said):
    library = name.partition("/")[0]
    adapter(library)
    with foreign(), pytest.raises(ValueError, match=said):
        envs.load_vector(name, 2, **keywords)


@pytest.mark.parametrize(
    "library", ["brax", "playground", "jumanji", "craftax", "navix", "envpool", "gymnax", "metaworld"]
)
def test_a_missing_library_names_its_extra(library, monkeypatch):
    import importlib
    import sys

    module = {"playground": "mujoco_playground"}.get(library, library)
    for name in list(sys.modules):
        if name == module or name.startswith(module + ".") or name == f"rl_jax.envs.adapters.from_{library}":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install -e '\.\[({library}|control)\]'"):
        importlib.import_module(f"rl_jax.envs.adapters.from_{library}")


def test_discrete_observations_of_envpool_are_one_hot():
    adapter("envpool")
    with foreign():
        env = envs.load_vector("envpool/FrozenLake-v1", 2, num_threads=1)
        first = env.reset(jax.random.key(0))[1]
    np.testing.assert_array_equal(first, np.eye(16, dtype=np.float32)[[0, 0]])


def test_envpool_is_gymnasium_in_threads():
    import gymnasium

    adapter("envpool")
    actions = jnp.asarray(np.stack([np.resize([0, 1], 40), np.ones(40, int), np.zeros(40, int)], axis=1), jnp.int32)
    with foreign():
        env = envs.load_vector("envpool/CartPole-v1", 3, max_episode_steps=12, num_threads=1)
        walk = program(lambda key: hosted_walk(env, key, actions), jax.random.key(0))
        (first, observation, now), again = walk(jax.random.key(0)), walk(jax.random.key(0))
        other = walk(jax.random.key(1))
    assert env.action_space == envs.Discrete(2) and env.observation_space.shape == (4,) and not env.pure
    peer = gymnasium.make("CartPole-v1").unwrapped
    peer.reset(seed=0)
    shown = np.concatenate([first[None], observation[:-1]])
    for t, b in np.ndindex(40, 3):
        peer.state, peer.steps_beyond_terminated = np.asarray(shown[t, b], np.float64), None
        expected, reward, terminated, _, _ = peer.step(int(actions[t, b]))
        np.testing.assert_allclose(now.observation[t, b], expected, rtol=1e-4, atol=1e-5)
        assert now.reward[t, b] == reward and now.terminated[t, b] == terminated
    np.testing.assert_array_equal(now.truncated[:, 0], np.arange(40) % 12 == 11)
    assert not now.terminated[:, 0].any() and now.terminated[:, 1:].any(axis=0).all()
    starts = observation[now.done]
    assert (np.abs(starts) <= 0.05).all() and len(np.unique(starts[:, 0])) == len(starts)
    np.testing.assert_array_equal(observation[~now.done], now.observation[~now.done])
    jax.tree.map(np.testing.assert_array_equal, again, (first, observation, now))
    assert not np.array_equal(other[0], first)


def hosted_walk(env, key, actions):
    """(first observation, observations to act on, Steps) of worlds on the host."""
    state, first = env.reset(key)

    def step(state, action):
        state, observation, now = env.step(state, action, ())
        return state, (observation, now)

    return first, *jax.lax.scan(step, state, actions)[1]
