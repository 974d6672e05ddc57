"""control/taxons.py: pictures, trainings and their schedule, novelty search and SERENE as special cases, learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.tools import serene
from rl_jax.control import quality_diversity as qd
from rl_jax.control import taxons
from rl_jax.envs.worlds import maze
from rl_jax.models.agents import features
from tests.control.test_quality_diversity import SMALL, plane, same


def scripted(*, surprise=lambda weights, x: np.zeros(len(x)), encode=lambda weights, x: x, epochs=1):
    """An Autoencoder whose weights are the number of its epochs."""
    return taxons.Autoencoder(lambda key: 0, encode, surprise, lambda weights, x, index: weights + 1, 16, epochs)


def test_a_picture_is_a_spot_where_the_point_is():
    places = np.float32([[0.1, 0.7], [0.55, 0.3]])
    pictures = np.asarray(maze.picture(jnp.asarray(places), 10)).reshape(2, 10, 10)
    centres = (np.arange(10) + 0.5) / 10
    for n, i, j in np.ndindex(2, 10, 10):
        gap = np.square(np.array([centres[i], centres[j]]) - places[n]).sum()
        assert pictures[n, i, j] == pytest.approx(np.exp(-50.0 * gap), abs=1e-5)
    assert np.unravel_index(pictures[0].argmax(), (10, 10)) in ((0, 6), (0, 7), (1, 6), (1, 7))


def test_every_observation_is_in_one_batch_and_what_fills_the_last_ones_counts_for_nothing():
    index = taxons.batches(21, 4, np.random.default_rng(0))
    assert index.shape == (8, 4) and sorted(index[index >= 0]) == list(range(21)) and (index[6:] == -1).all()
    net = dict(make_net=features.make_net, latent=2, hidden=(5,))
    autoencoder = taxons.make_autoencoder(3, **net)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3)), jnp.float32)
    first = autoencoder.init(jax.random.key(0))
    short = autoencoder.epoch(first, x, np.int32([[4, 2]]))
    long = autoencoder.epoch(first, x.at[0].set(9.0), np.int32([[-1, 4, 2, -1], [-1] * 4]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), short, long)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), first.params, short.params)
    assert min(jax.tree.leaves(moved["decode"])) > 0 and max(jax.tree.leaves(moved["encode"])) > 0
    up = features.make_net(2, 3, hidden=(5,))
    again = up.apply(first.params["decode"], autoencoder.encode(first, x))
    wanted = np.square(np.asarray(again) - np.asarray(x)).mean(1)
    np.testing.assert_allclose(autoencoder.surprise(first, x), wanted, rtol=1e-5)


def test_a_training_ends_when_the_held_out_error_was_worse_four_times_in_a_row():
    errors = [None, 5.0, 4.0, 6.0, 5.0, 4.5, 3.0, 3.5, 3.75, 3.5, 3.25, 1.0]
    made = scripted(surprise=lambda weights, x: np.full(len(x), errors[weights]), epochs=11)
    weights, found = taxons.train(made, 0, np.zeros((30, 2), np.float32), np.random.default_rng(0))
    assert weights == 10 and found == errors[1:11]
    short = made._replace(epochs=4)
    assert taxons.train(short, 0, np.zeros((30, 2), np.float32), np.random.default_rng(0))[0] == 4


def test_trainings_are_after_chunks_1_3_6_on_all_that_is_kept():
    sizes = []

    def epoch(weights, x, index):
        sizes.append(int((index >= 0).sum()))
        return weights + 1

    made = scripted()._replace(epoch=epoch)
    options = dict(seed=0, numbers=SMALL, criteria=("novelty",))
    for chunks, wanted in ((1, 1), (2, 1), (3, 2), (5, 2), (6, 3)):
        sizes.clear()
        search, weights = taxons.run(plane(1e-6), 2, made, budget=64 * chunks, **options)
        assert weights == wanted and search.explored >= 64 * chunks
    # 8 live, 16 children, 2 archived in each generation; a chunk has four of them.
    generations = [4, 12, 24]
    kept = [8 + 16 + 2 * count for count in generations]
    assert sizes == [n - max(n // 5, 1) for n in kept]
    search, weights = taxons.run(plane(1e-6), 2, made, budget=64, trained=False, **options)
    assert weights == 0


def test_with_what_was_observed_for_codes_it_is_novelty_search_and_with_emitters_serene():
    for emitters in (False, True):
        known = qd.run(plane(2.0), 2, budget=400, seed=1, numbers=SMALL, emitters=emitters)
        options = dict(budget=400, seed=1, numbers=SMALL, emitters=emitters)
        learned, _ = taxons.run(plane(2.0), 2, scripted(), criteria=("novelty",), **options)
        same(learned, known)
        assert learned.exploited == known.exploited and (learned.exploited > 0) == emitters
        other, _ = taxons.run(plane(2.0), 2, scripted(encode=lambda w, x: x[:, :1]), criteria=("novelty",), **options)
        assert not np.array_equal(other.archive, known.archive)


def test_a_coin_decides_between_the_most_novel_and_the_most_surprising():
    """The surprise is least far from the start: by it alone all stay near, with the coin some go further."""
    near = scripted(surprise=lambda weights, x: -np.linalg.norm(x, axis=1))
    reach = {}
    for criteria in (("surprise",), ("novelty", "surprise"), ("novelty",)):
        search, _ = taxons.run(plane(1e-6), 2, near, budget=600, seed=2, numbers=SMALL, criteria=criteria)
        reach[criteria] = np.linalg.norm(search.archive, axis=1).max()
    assert reach["surprise",] < 0.6 * reach["novelty", "surprise"] < reach["novelty",], reach
    with pytest.raises(ValueError, match=r"taxons: criteria=\('luck',\) must be of novelty, surprise"):
        taxons.run(plane(1.0), 2, near, budget=100, seed=0, numbers=SMALL, criteria=("luck",))


def test_codes_tell_places_apart_and_what_was_not_seen_surprises():
    autoencoder = serene.make_autoencoder(8)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        seen = rng.uniform(0.0, 1.0, (400, 2)).astype(np.float32) * np.float32([0.5, 1.0])  # the left half
        weights, errors = taxons.train(autoencoder, autoencoder.init(jax.random.key(seed)), seen, rng)
        left, right = (jnp.asarray(qd.padded(seen[:64] + np.float32([shift, 0]))) for shift in (0.0, 0.5))
        known, new = (float(autoencoder.surprise(weights, x).mean()) for x in (left, right))
        assert errors[-1] < 0.4 * errors[0] and new > 3 * known, (errors[0], errors[-1], known, new)
        codes = np.asarray(autoencoder.encode(weights, left))
        gaps, far = (np.linalg.norm(x[:, None] - x[None], axis=2)[np.triu_indices(64, 1)] for x in (codes, seen[:64]))
        assert np.corrcoef(gaps, far)[0, 1] > 0.6


@pytest.mark.slow
def test_stax_finds_and_raises_a_reward_behind_a_wall_from_pictures_of_where_it_ended():
    """With 8,000 episodes STAX has .34, evolution .08 of two seeds."""
    evaluate, size = serene.make_evaluate(maze.environment())
    searches = serene.make_searches(evaluate, size, 8000)
    found = {name: [searches[name](seed) for seed in range(2)] for name in ("evolution", "stax")}
    best = {name: [max(s.rewarded.rewards, default=0.0) for s in runs] for name, runs in found.items()}
    assert min(best["stax"]) > 0 and np.mean(best["stax"]) > np.mean(best["evolution"]) + 0.05, best
    assert all(search.exploited > 0 for search in found["stax"])
