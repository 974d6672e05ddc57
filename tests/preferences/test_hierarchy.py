"""preferences/hierarchy.py (HERON): the order of the paper's code, undecided pairs, files, and its config."""

import json

import numpy as np
import pytest

from configs.preferences import hierarchy as configs
from experiments.parts import check_config
from rl_jax import preferences
from rl_jax.preferences import hierarchy


def of_the_code(one, other, sigmas):
    """The comparisons of rm_mountain.py, with three levels: 1 if `one` is better, -1 if `other` is, else 0."""
    if one[0] > other[0]:
        return 1
    if other[0] > one[0]:
        return -1
    for level in (1, 2):
        if one[level] > other[level] + sigmas[level]:
            return 1
        if other[level] > one[level] + sigmas[level]:
            return -1
    return 0


def test_the_order_is_that_of_the_papers_code():
    rng = np.random.default_rng(0)
    signals = np.stack([rng.integers(0, 2, 40), rng.normal(size=40), 5 * rng.normal(size=40)], axis=1)
    deltas = hierarchy.margins(signals)
    np.testing.assert_allclose(deltas, [0.0, *signals.std(axis=0)[1:]])
    found = {frozenset((i, j)): (i, level) for i, j, level in hierarchy.ordered(signals, deltas)}
    levels, undecided = set(), 0
    for i in range(40):
        for j in range(i):
            sign = of_the_code(signals[i], signals[j], signals.std(axis=0))
            better, level = found.get(frozenset((i, j)), (None, None))
            assert better == {1: i, -1: j, 0: None}[sign]
            levels.add(level)
            undecided += sign == 0
    assert levels == {0, 1, 2, None} and undecided > 10
    assert hierarchy.decide([1, 0], [1, 5], [0, 5]) == (0, -1), "a difference of delta decides nothing"
    with pytest.raises(ValueError, match="factor >= 0, got .40, 3. and -1"):
        hierarchy.margins(signals, factor=-1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("hierarchy"))


def test_generated_pairs_are_decided_from_the_top(folder):
    source = preferences.load("hierarchy", num_prompts=40, data_dir=folder).data_source("train")
    records = [source[i] for i in range(len(source))]
    assert {record["info"]["level"] for record in records} == {0, 1, 2} and source.report["undecided"] > 0
    for record in records:
        info = record["info"]
        signals = [info[name] for name in hierarchy.LEVELS]
        assert signals[info["level"]][0] > signals[info["level"]][1]
        assert all(a == b for a, b in signals[: min(info["level"], 1)])
        assert [-len(text) for text in record["responses"]] == info["brevity"]
    flat = preferences.load("hierarchy", num_prompts=40, levels=("right",), data_dir=folder).data_source("train")
    assert len(flat) == 3 * len({record["prompt"] for record in records}), "the right one before three wrong ones"
    with pytest.raises(ValueError, match="levels: 'taste' is none of right, steps, brevity"):
        preferences.load("hierarchy", num_prompts=40, levels=("taste",), data_dir=folder)


def test_a_file_names_its_signals(folder, tmp_path):
    path = tmp_path / "rankings.jsonl"
    rows = [
        {"prompt": "p", "responses": ["a", "b", "c"], "passed": [0, 1, 1], "votes": [9, 1, 4]},
        {"prompt": "q", "responses": ["d", "e"], "passed": [1, 1], "votes": [3, 3]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = dict(path=str(path), test_share=0.0, data_dir=folder)
    source = preferences.load("hierarchy", levels=("passed", "votes"), factor=0.0, **options).data_source("train")
    assert [source[i]["responses"] for i in range(len(source))] == [["b", "a"], ["c", "a"], ["c", "b"]]
    assert source.report["undecided"] == 1
    with pytest.raises(ValueError, match="record 0: the signal 'speed' must be 3 numbers, one for each .* found null"):
        preferences.load("hierarchy", levels=("speed",), **options)
    with pytest.raises(ValueError, match="name each signal once"):
        preferences.load("hierarchy", levels=("passed", "passed"), **options)


@pytest.mark.parametrize("arg", [None, "flat,smoke"])
def test_its_config_can_run(arg):
    config = configs.get_config(arg)
    check_config.check(config)
    assert len(config.data.levels) == (1 if arg else 3)
