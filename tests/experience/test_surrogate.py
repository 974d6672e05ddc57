"""MoDoMoDo's surrogate: the quadratic through a few mixtures and its exact maximum; and the command that reads runs."""

import itertools
import json

import numpy as np
import pytest

from experiments.tools import mixture
from rl_jax.experience.surrogate import best_mixture, fit_quadratic


def quadratic(seed: int, count: int) -> np.ndarray:
    matrix = np.random.default_rng(seed).normal(size=(count, count))
    return (matrix + matrix.T) / 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_known_quadratic_is_recovered_from_one_point_more_than_it_has_numbers(count):
    random = np.random.default_rng(count)
    points = (count**2 + count) // 2 + 1
    weights = random.dirichlet(np.ones(count), points) * random.uniform(1, 9, (points, 1))
    linear, constant, square = random.normal(size=count), random.normal(), quadratic(count, count)
    shares = weights / weights.sum(axis=1, keepdims=True)
    scores = constant + shares @ linear + np.einsum("ni,ij,nj->n", shares, square, shares)
    found = fit_quadratic(weights, scores)
    other = random.dirichlet(np.ones(count), 20)
    expected = constant + other @ linear + np.einsum("ni,ij,nj->n", other, square, other)
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", other, found, other), expected, atol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_mixture_is_the_best_of_a_fine_grid(seed):
    count, steps = 3, 60
    matrix = quadratic(seed, count)
    places = itertools.product(range(steps + 1), repeat=2)
    grid = [np.array([i, j, steps - i - j]) / steps for i, j in places if i + j <= steps]
    best, value = best_mixture(matrix)
    assert best.min() >= 0 and best.sum() == pytest.approx(1.0) and value == pytest.approx(best @ matrix @ best)
    highest = max(w @ matrix @ w for w in grid)
    assert highest <= value + 1e-9 and value - highest < 0.01


def test_the_maximum_of_a_concave_quadratic_is_inside():
    target = np.array([0.2, 0.5, 0.3])
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 7)
    best, _ = best_mixture(fit_quadratic(weights, -np.sum((weights - target) ** 2, axis=1)))
    np.testing.assert_allclose(best, target, atol=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="3 mixtures of 3 sources do not determine the 6 numbers"):
        fit_quadratic(np.eye(3), np.ones(3))
    with pytest.raises(ValueError, match="n finite numbers"):
        fit_quadratic(np.eye(3), np.array([1.0, np.nan, 0.0]))
    with pytest.raises(ValueError, match="0 or more"):
        fit_quadratic(-np.eye(1), np.ones(1))
    with pytest.raises(ValueError, match="13 sources are too many"):
        best_mixture(np.eye(13))


def test_the_command_reads_runs(tmp_path, capsys):
    for place, (a, b, score) in enumerate([(1, 0, 0.2), (0, 2, 0.4), (1, 1, 0.5)]):
        folder = tmp_path / str(place)
        folder.mkdir()
        weights = {name: w for name, w in (("a", a), ("b", b)) if w}
        config = {"sample": {"prompts": {"fn": "mixture", "weights": weights}}}
        (folder / "config.json").write_text(json.dumps(config))
        rows = [{"step": 0, "eval/pass@1": 0.0}, {"step": 2, "eval/pass@1": score}, {"step": 3, "loss": 1.0}]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = [str(tmp_path / str(place)) for place in range(3)]
    assert mixture.main(runs) == 0
    printed = capsys.readouterr().out
    # .2 a^2 + .4 b^2 + 1.4 a b with b = 1 - a: a maximum at a = .375
    assert "predicted best: 0.5125" in printed
    assert "{'fn': 'mixture', 'weights': {'a': 0.375, 'b': 0.625}}" in printed
    assert mixture.main([*runs, "--metric=eval/reward"]) == 2
    assert "0: no eval/reward in metrics.jsonl" in capsys.readouterr().err
    (tmp_path / "0" / "config.json").write_text(json.dumps({"sample": {"prompts": {"fn": "shuffled"}}}))
    assert mixture.main(runs) == 2
    assert "not a mixture with weights" in capsys.readouterr().err
