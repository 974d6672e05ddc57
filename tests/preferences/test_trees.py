"""preferences/trees.py and stats/comparisons.py: trees of answers, what comparisons tell; the config."""

import itertools
import random

import numpy as np
import pytest

from configs.preferences import trees as config_of
from experiments.parts import check_config
from experiments.tools import known_answers
from rl_jax import preferences
from rl_jax.preferences import trees
from rl_jax.stats import comparisons

PROBLEM = (12, 8, -2, 6)


def test_a_trees_leaves_are_all_that_its_nodes_go_on_with():
    leaves = trees.grow(random.Random(0), PROBLEM, 3)
    assert len(leaves) == len(set(leaves)) == 27 and (20, 18, 24) in leaves
    for depth in range(3):  # every node has three children, one of which is right
        for node in {leaf[:depth] for leaf in leaves}:
            children = {leaf[depth] for leaf in leaves if leaf[:depth] == node}
            assert len(children) == 3 and (PROBLEM[0], *node)[-1] + PROBLEM[depth + 1] in children
    # One leaf has all steps right, 3 * 2 have two, and so on: the grades are binomial.
    grades = sorted(round(3 * trees.grade(PROBLEM, leaf)) for leaf in leaves)
    assert [grades.count(n) for n in range(4)] == [8, 12, 6, 1]
    chain = [leaf for seed in range(40) for leaf in trees.write(random.Random(seed), PROBLEM, 3)]
    assert np.mean([trees.grade(PROBLEM, leaf) for leaf in chain]) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("topology", trees.TOPOLOGIES)
def test_pairs_are_ordered_by_their_grades(tmp_path, topology):
    options = dict(topology=topology, num_prompts=12, pairs=6, test_share=0.0, data_dir=str(tmp_path))
    source = preferences.load("trees", **options).data_source("train")
    seen, depths = {}, []
    for record in (source[i] for i in range(len(source))):
        terms = [int(x) for x in record["prompt"][:-1].replace("-", "+-").split("+")]
        better, worse = (tuple(map(int, text.split("="))) for text in record["responses"])
        assert record["info"]["grades"] == [trees.grade(terms, better), trees.grade(terms, worse)]
        margin = trees.grade(terms, better) - trees.grade(terms, worse)
        assert record["margin"] == pytest.approx(margin) and margin > 0
        depths.append(record["info"]["shared"])
        assert better[: depths[-1]] == worse[: depths[-1]] and better[depths[-1]] != worse[depths[-1]]
        seen.setdefault(record["prompt"], set()).add((better, worse))
    assert len(seen) == 12 and sum(map(len, seen.values())) == len(source) <= 12 * 6
    assert max(depths) > 0 or topology == "chain"
    both = [preferences.load("trees", **options | {"topology": t}).data_source("train") for t in trees.TOPOLOGIES]
    assert both[0][0]["prompt"] == both[1][0]["prompt"]


@pytest.mark.parametrize("wrong", [dict(topology="ring"), dict(branching=1), dict(steps=9), dict(pairs=0)])
def test_what_is_no_tree_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        trees.load(**wrong)


def test_what_comparisons_tell():
    """Series add, parallels add precisions; and least squares with simulated noise agrees."""
    found = comparisons.posterior_variances(4, [(0, 1, 1.0), (1, 2, 2.0), (0, 2, 3.0)])
    assert found[0, 2] == pytest.approx(1.5) and found[0, 1] == pytest.approx(5 / 6) and np.isinf(found[0, 3])
    rng = np.random.default_rng(0)
    edges = [(i, j, v) for (i, j), v in zip(itertools.combinations(range(5), 2), rng.uniform(0.5, 2, 10), strict=True)]
    design = np.zeros((10, 5))
    for row, (i, j, _) in enumerate(edges):
        design[row, i], design[row, j] = 1, -1
    scale = np.sqrt([v for _, _, v in edges])
    fitted = np.linalg.lstsq(design[:, 1:] / scale[:, None], rng.normal(size=(10, 40_000)), rcond=None)[0]
    assert comparisons.posterior_variances(5, edges)[1, 2] == pytest.approx(np.var(fitted[0] - fitted[1]), rel=0.05)
    paths = comparisons.path_variances(5, edges)
    weight = {frozenset(edge[:2]): edge[2] for edge in edges}
    for i, j in itertools.combinations(range(5), 2):
        middle = [p for n in range(4) for p in itertools.permutations(set(range(5)) - {i, j}, n)]
        best = min(sum(weight[frozenset(s)] for s in itertools.pairwise((i, *p, j))) for p in middle)
        assert paths[i, j] == pytest.approx(best) and comparisons.posterior_variances(5, edges)[i, j] <= best
    with pytest.raises(ValueError, match="expected two different nodes below 2"):
        comparisons.path_variances(2, [(0, 2, 1.0)])


def test_the_table_of_both_topologies():
    rows = known_answers.tree_variances(2)
    assert [what.rsplit(" ", 1)[1] for what, _, _ in rows] == ["tree", "chain"]
    assert all(0 < variance < 4 for _, variance, _ in rows)


@pytest.mark.parametrize("arg", [None, "chain,smoke"])
def test_its_config_can_run(arg):
    config = config_of.get_config(arg)
    check_config.check(config)
    assert config.data.topology == ("chain" if arg else "tree") and len(config.benchmarks.sets) == 3
