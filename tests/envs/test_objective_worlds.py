"""envs/worlds/treasure.py, envs/objectives.py: fronts by enumeration, moves by a loop, weights in the observation."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs import objectives
from rl_jax.envs.worlds import treasure
from rl_jax.stats import pareto

STEPS = (1, 3, 5, 7, 8, 9, 13, 14, 17, 19)


@pytest.mark.parametrize("name", list(treasure.MAPS))
def test_the_front_of_the_sea_is_the_published_one(name):
    expected = np.stack([treasure.MAPS[name], -np.array(STEPS, float)], axis=1)
    np.testing.assert_allclose(treasure.front(name), expected)  # MO-Gymnasium's CONVEX_FRONT and CONCAVE_FRONT
    np.testing.assert_array_equal(treasure.front(name), treasure.returns_of_all(name))
    volume = pareto.hypervolume(treasure.front(name), (0.0, -25.0))
    assert volume == pytest.approx({"concave": 1155.0, "convex": 401.8}[name])  # 1155 is the published one


def test_steps_in_the_sea_are_those_of_a_loop():
    env = treasure.environment(name="concave", columns=4, limit=50)
    values, rock = treasure.sea("concave", 4)
    step, rng = jax.jit(env.step), np.random.default_rng(0)
    ended = 0
    state, _ = env.reset(jax.random.key(0))
    place, time = (0, 0), 0
    for _ in range(300):
        action = int(rng.integers(4))
        state, now = step(jax.random.key(0), state, action)
        onward = (place[0] + int(treasure.MOVES[action][0]), place[1] + int(treasure.MOVES[action][1]))
        inside = all(0 <= x < n for x, n in zip(onward, values.shape, strict=True))
        place, time = (onward if inside and not rock[onward] else place), time + 1
        np.testing.assert_allclose(now.reward, [values[place], -1.0])
        seen = np.concatenate([np.eye(values.shape[0])[place[0]], np.eye(values.shape[1])[place[1]]])
        np.testing.assert_array_equal(now.observation, seen)
        assert now.terminated == (values[place] > 0) and now.truncated == (time == 50 and not now.terminated)
        if now.terminated or now.truncated:
            (state, _), place, time, ended = env.reset(jax.random.key(0)), (0, 0), 0, ended + 1
    assert ended > 5


def test_no_short_way_through_the_sea_is_above_the_front():
    """All ways of up to 5 moves, by enumeration."""
    values, rock = treasure.sea("convex", 3)
    found = set()
    for moves in itertools.product(treasure.MOVES.tolist(), repeat=5):
        place = (0, 0)
        for time, (down, right) in enumerate(moves, start=1):
            onward = (place[0] + down, place[1] + right)
            inside = all(0 <= x < n for x, n in zip(onward, values.shape, strict=True))
            place = onward if inside and not rock[onward] else place
            if values[place]:
                found.add((round(float(values[place]), 4), -float(time)))
                break
    points = np.array(sorted(found))
    np.testing.assert_allclose(points[pareto.front(points)], treasure.front("convex", 3))


def test_the_front_of_two_aims_is_above_all_actions():
    env = treasure.two_aims(size=2, span=1.0)
    grid = np.linspace(-2, 2, 41, dtype=np.float32)
    actions = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    paid = jax.vmap(lambda a: env.step(None, jnp.int32(0), a)[1].reward)(actions)
    paid, front = np.asarray(paid), treasure.two_aims_front()
    reached = front[np.argmin(np.abs(front[None, :, 0] - paid[:, None, 0]), axis=1), 1]
    assert (paid[:, 1] <= reached + 2e-3).all()
    on_the_way = jax.vmap(lambda t: env.step(None, jnp.int32(0), t * jnp.ones(2) / np.sqrt(2))[1].reward)(
        jnp.linspace(1.0, -1.0, 5)
    )
    np.testing.assert_allclose(on_the_way, treasure.two_aims_front(5), rtol=1e-5)
    # Sums with any weights find its ends: the way between them is not concave.
    best = {int(np.argmax(front @ w)) for w in pareto.weight_grid(2, 10)}
    assert min(min(i, 2000 - i) for i in best) < 60 and all(min(i, 2000 - i) < 300 for i in best)


def test_one_reward_of_fixed_weights():
    env = envs.vectorize(treasure.arms(), 3)
    one = envs.scalarized(env, (2.0, 1.0))
    state, _ = one.reset(jax.random.key(0))
    drawn = jax.tree.map(lambda x: x[0], one.ahead(jax.random.key(1), 1))
    reward = one.step(state, jnp.arange(3), drawn)[2].reward
    np.testing.assert_allclose(reward, [2.0, 1.75, 1.0])
    assert one.objectives == 0
    with pytest.raises(ValueError, match="must be 2 numbers"):
        envs.scalarized(env, (1.0,))
    with pytest.raises(ValueError, match="one number"):
        envs.scalarized(one)


def _moved(env, state, drawn):
    """A step to the right of every environment: (state, (observation to act on, of the step))."""
    state, following, now = env.step(state, jnp.full(env.num_envs, 3), drawn)
    return state, (following, now.observation)


@pytest.mark.parametrize("kind", objectives.KINDS)
def test_each_episode_has_its_own_weights_and_keeps_them_to_its_end(kind):
    env = envs.conditioned(envs.vectorize(treasure.environment(columns=2, limit=3), 4), kind=kind)

    @jax.jit
    def rolled(key):
        state, first = env.reset(key)
        step = lambda carry, drawn: _moved(env, carry, drawn)  # noqa: E731
        return first, jax.lax.scan(step, state, env.ahead(jax.random.key(1), 6))[1]

    first, (following, ended) = rolled(jax.random.key(0))
    seen = np.concatenate([first[None], following])[..., -2:]
    np.testing.assert_array_equal(ended[..., -2:], seen[:-1])
    np.testing.assert_array_equal(seen[:3], seen[:1].repeat(3, 0))  # cut off after 3 steps
    assert (np.abs(seen[3] - seen[2]).max(axis=1) > 1e-3).all() and len(np.unique(seen[0, :, 0])) == 4
    total = seen.sum(-1) if kind == "weights" else np.square(seen).sum(-1)
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    assert (seen >= 0).all() and env.observation_space.shape == (first.shape[1],)


def test_weights_are_drawn_apart_from_the_environments():
    """An environment that begins with a direction of its own: none of them is that of the weights."""

    def reset(key):
        return (), jnp.abs(jax.random.normal(key, (2,)))

    plain = envs.Environment(reset, None, envs.Box(np.zeros(2), np.ones(2)), envs.Discrete(2), objectives=2)
    _, first = envs.conditioned(envs.vectorize(plain, 4), kind="directions").reset(jax.random.key(0))
    own, drawn = first[:, :2] / np.linalg.norm(first[:, :2], axis=1, keepdims=True), first[:, 2:]
    assert np.abs(own[:, None] - drawn[None]).max(axis=-1).min() > 1e-4


def test_an_evaluation_has_the_weights_of_the_grid():
    env = envs.conditioned(envs.vectorize(treasure.arms(), 7), parts=2, drawn=False)
    _, first = env.reset(jax.random.key(0))
    np.testing.assert_allclose(first[:, -2:], [[0, 1], [0.5, 0.5], [1, 0]] * 2 + [[0, 1]])
    directions = objectives.preference_grid(2, "directions", 4)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(directions[1], [np.sin(np.pi / 8), np.cos(np.pi / 8)], rtol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="sea='round'"):
        treasure.environment(name="round")
    with pytest.raises(ValueError, match="columns=11"):
        envs.load("objectives/treasure", columns=11)
    with pytest.raises(ValueError, match="kind='both' is none of weights, directions"):
        objectives.preference_grid(2, "both")
    with pytest.raises(ValueError, match="env.preferences.parts=0 must be 1 or more"):
        objectives.preference_grid(2, "weights", 0)
    with pytest.raises(ValueError, match="several objectives"):
        envs.conditioned(envs.load_vector("probes/matching", 2))
