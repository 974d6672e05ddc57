"""control/quality_diversity.py: novelty by hand, SERENE without a reward, what emitters add, a maze for each search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools import serene
from rl_jax.control import quality_diversity as qd
from rl_jax.envs.worlds import maze

SMALL = qd.Numbers(population=8, neighbours=3, sigma=0.3, archived=2, chunk=64, emitter=3, patience=4)


def plane(radius):
    """A policy is where it ends; a small disc far from the start pays by how near its middle is."""

    def evaluate(genomes):
        return genomes, np.maximum(0.0, 1.0 - np.linalg.norm(genomes - np.float32([3.0, 2.0]), axis=1) / radius)

    return evaluate


def same(one, two):
    for name in ("population", "archive", "rewarded", "explored"):
        jax.tree.map(np.testing.assert_array_equal, getattr(one, name), getattr(two, name))


def test_novelty_is_the_mean_distance_to_the_k_nearest():
    points, line = np.float32([[0.0], [4.0]]), np.float32([[0.0], [1.0], [3.0], [4.0], [10.0]])
    np.testing.assert_allclose(qd.novelties(points, line, 2, among=True), [2.0, 2.0])  # (1, 3) and (1, 3)
    np.testing.assert_allclose(qd.novelties(points, line, 2), [0.5, 0.5])
    np.testing.assert_allclose(qd.novelties(points, line[:1], 5), [0.0, 4.0])
    np.testing.assert_array_equal(qd.novelties(points, line[:0], 2), 0.0)


def test_without_a_reward_serene_is_novelty_search_bit_for_bit():
    evaluate = plane(1e-6)
    found = [qd.run(evaluate, 2, budget=300, seed=3, numbers=SMALL, emitters=on) for on in (True, False)]
    same(*found)
    assert found[0].exploited == 0 and found[0].explored >= 300 and len(found[0].archive) > 30
    other = qd.run(evaluate, 2, budget=300, seed=4, numbers=SMALL)
    assert not np.array_equal(other.archive, found[0].archive)


def test_emitters_raise_the_reward_and_use_every_second_chunk():
    """Novelty search passes through the disc; emitters go to its middle, with no more evaluations."""
    best = {}
    for on in (True, False):
        runs = [qd.run(plane(2.0), 2, budget=1500, seed=seed, numbers=SMALL, emitters=on) for seed in range(4)]
        best[on] = [max(search.rewarded.rewards, default=0.0) for search in runs]
        for search in runs:
            assert 1500 <= search.explored + search.exploited < 1500 + 2 * SMALL.population
            assert (search.exploited > 0) == on and (np.abs(search.population.genomes) <= SMALL.limit).all()
    assert min(best[True]) > 0.97 and np.mean(best[True]) > np.mean(best[False]) + 0.01, best


def test_an_emitter_keeps_its_best_and_ends_when_it_stagnates():
    rng, evaluate = np.random.default_rng(0), plane(3.0)
    start = np.float32([[2.5, 2.0]])
    search = qd.begin(evaluate, 2, SMALL, rng)
    search.waiting = []
    one = qd.Members(start, *evaluate(start))
    qd._await(search, one, np.float32([[2.5, 2.0], [2.5, 2.6], [0.0, 0.0]]), SMALL)
    assert len(search.waiting) == 1 and search.waiting[0].sigma == pytest.approx(0.2)
    emitter, explored = search.waiting[0], search.explored
    qd.exploit(search, evaluate, SMALL, rng, budget=400)
    assert search.explored == explored and not search.waiting
    means = [np.mean(values) for values in emitter.values]
    assert means == sorted(means) and emitter.best == max(search.rewarded.rewards) > one.rewards[0]
    archived = search.rewarded.rewards
    assert (emitter.members.rewards <= emitter.best).all() and (archived > 0).all()
    flat = qd.Emitter(one, 0.1, one, values=[np.ones(3)] * 6)
    assert qd._stagnates(flat, SMALL)
    flat.values = [np.full(3, float(step)) for step in range(6)]
    assert not qd._stagnates(flat, SMALL)


def test_the_maze_has_walls_a_gap_and_one_place_that_pays():
    env = maze.environment(limit=3)
    for start, wanted, open_way in (
        ((0.2, 0.3), (0.2, 0.4), False),
        ((0.9, 0.3), (0.9, 0.4), True),
        ((0.1, 0.6), (0.1, 0.7), True),
        ((0.5, 0.7), (0.5, 0.6), False),
        ((0.5, 0.98), (0.5, 1.02), False),
    ):
        end = maze.moved(jnp.float32(start), jnp.float32(wanted))
        np.testing.assert_allclose(end, wanted if open_way else start)
    place = jnp.float32(maze.GOAL)
    state = env.reset(jax.random.key(0))[0]
    state = jax.tree.map(lambda x: place if x.shape == (2,) else x, state)
    paid = []
    for _ in range(3):
        state, now = env.step(jax.random.key(0), state, jnp.zeros(2))
        paid.append(float(now.reward))
    assert paid == [0.0, 0.0, 1.0] and bool(now.truncated)
    with pytest.raises(ValueError, match="maze: radius"):
        maze.environment(radius=0.0)


def test_what_is_refused():
    for fields in (dict(population=0), dict(sigma=0.0), dict(population=4, neighbours=8)):
        with pytest.raises(ValueError, match="quality_diversity"):
            qd.Numbers(**fields)
    with pytest.raises(ValueError, match="by='luck' is neither"):
        qd.run(plane(1.0), 2, budget=100, seed=0, numbers=SMALL, by="luck")


def test_the_command_prints_a_row_per_search(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["serene", "--seeds=1", "--budget=120"])
    serene.main()
    text = capsys.readouterr().out
    assert all(f"| {name} | " in text for name in (*serene.SEARCHES, *serene.LEARNED)) and text.count("\n") == 7
    monkeypatch.setattr("sys.argv", ["serene", "--seeds=0"])
    with pytest.raises(SystemExit):
        serene.main()


@pytest.mark.slow
def test_novelty_and_serene_find_a_reward_that_evolution_does_not():
    """Behind a wall: with the same episodes SERENE is paid with 8 of 12 seeds, evolution with none."""
    evaluate, size = serene.make_evaluate(maze.environment())
    best = {}
    for name in ("evolution", "serene"):
        options = dict(budget=8000, numbers=serene.NUMBERS) | serene.SEARCHES[name]
        runs = [qd.run(evaluate, size, seed=seed, **options) for seed in range(4)]
        best[name] = [max(search.rewarded.rewards, default=0.0) for search in runs]
    paid = {name: sum(x > 0 for x in values) for name, values in best.items()}
    assert paid["serene"] > paid["evolution"] and np.mean(best["serene"]) > np.mean(best["evolution"]) + 0.05, best
