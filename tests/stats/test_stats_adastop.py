"""AdaStop against a walk through all permutations, scipy's exact test, and its own promise (false rejections)."""

import numpy as np
import pytest
import scipy.stats

from rl_jax import stats
from tests.numpy_loops import adastop as reference

PAIR = ("a", "b")


def drawn(rng, shift=0.0, size=5):
    return {"a": rng.normal(size=size) + shift, "b": rng.normal(size=size)}


def test_one_interim_is_the_exact_two_sided_permutation_test():
    rng, found = np.random.default_rng(0), []
    for shift in np.linspace(0.0, 3.0, 40):
        scores = drawn(rng, shift)
        test = scipy.stats.permutation_test(
            (scores["a"], scores["b"]),
            lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
            n_resamples=np.inf,
            vectorized=True,
        )
        said = stats.adastop(scores, n=5, interims=1, alpha=0.05).decisions[PAIR]
        assert (said != "equal") == (test.pvalue <= 0.05)
        found.append(said)
    assert set(found) == {"larger", "equal"}


def test_ties_do_not_reject():
    """Of scores of two values many splits are equal to the one observed, up to an ulp: they count for it."""
    scores = {"a": [0.1, 0.1, 0.1, 0.1, 0.3], "b": [0.3, 0.3, 0.3, 0.3, 0.1]}
    test = scipy.stats.permutation_test(tuple(scores.values()), lambda x, y: x.mean() - y.mean(), n_resamples=np.inf)
    assert test.pvalue > 0.2
    assert stats.adastop(scores, n=5, interims=1, alpha=0.2).decisions[PAIR] == "equal"
    assert stats.adastop(scores, n=5, interims=1, alpha=0.21).decisions[PAIR] == "smaller"  # 52 of 252 ways


@pytest.mark.parametrize("seed", range(6))
def test_three_agents_and_two_interims_as_listed_in_full(seed):
    rng = np.random.default_rng(seed)
    scores = {name: rng.normal(size=6) + shift for name, shift in zip("abc", rng.normal(size=3) * 2, strict=True)}
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    for alpha in (0.1, 0.3):
        found = stats.adastop(scores, n=3, interims=2, alpha=alpha)
        assert found.decisions == reference.decisions(scores, pairs, 3, 2, alpha)


@pytest.mark.parametrize(("interims", "paired", "alpha"), [(1, False, 0.05), (2, False, 0.1), (3, True, 0.05)])
def test_a_true_null_is_rejected_no_more_often_than_alpha(interims, paired, alpha):
    """The null of signed maxima, as published, rejects 0.11 of the time at alpha 0.05."""
    rng, size = np.random.default_rng(1), 5 * interims
    rejected = [
        stats.adastop(
            drawn(rng, size=size), n=5, interims=interims, alpha=alpha, paired=paired, permutations=400, key=i
        ).decisions[PAIR]
        != "equal"
        for i in range(400)
    ]
    assert np.mean(rejected) <= alpha + 2.5 * np.sqrt(alpha / 400)


def test_five_equal_agents_are_one_family():
    rng, rejected = np.random.default_rng(2), 0
    for key in range(100):
        scores = {name: rng.standard_t(3, size=10) for name in "abcde"}
        found = stats.adastop(scores, n=5, interims=2, permutations=500, key=key).decisions
        rejected += len(found) == 10 and set(found.values()) != {"equal"}
    assert rejected <= 12  # of 10 uncorrected tests one rejects in a third of the families


def test_a_decided_pair_does_not_change_what_the_others_risk():
    """Two equal agents beside one that is far off, which is decided at once and takes no level from them."""
    rng, rejected = np.random.default_rng(7), 0
    for key in range(200):
        scores = {"far": rng.normal(size=15) + 50.0, "a": rng.normal(size=15), "b": rng.normal(size=15)}
        found = stats.adastop(scores, n=5, interims=3, permutations=400, key=key).decisions
        assert found[("far", "a")] == found[("far", "b")] == "larger"
        rejected += found[PAIR] != "equal"
    assert rejected / 200 <= 0.05 + 2.5 * np.sqrt(0.05 / 200)


def test_it_stops_early_and_asks_for_no_more_than_it_needs():
    rng = np.random.default_rng(3)
    scores = {"far": list(rng.normal(size=5) + 50), "a": list(rng.normal(size=5)), "b": list(rng.normal(size=5))}
    first = stats.adastop(scores, n=5, interims=3)
    assert first.decisions == {("far", "a"): "larger", ("far", "b"): "larger", PAIR: "continue"}
    assert first.wanted == ("a", "b") and first.used == {"far": 5, "a": 5, "b": 5}
    for _ in range(2):
        for agent in ("a", "b"):
            scores[agent] += list(rng.normal(size=5))
        found = stats.adastop(scores, n=5, interims=3)
        assert found.decisions[("far", "a")] == "larger" and found.used["far"] == 5
    assert found.wanted == () and found.decisions[PAIR] == "equal" and found.used["a"] == 15
    some = stats.adastop(scores, n=5, interims=3, pairs=[("far", "a")])
    assert some.used == {"far": 5, "a": 5, "b": 0} and list(some.decisions) == [("far", "a")]


def test_shared_seeds_decide_what_apart_they_do_not():
    rng = np.random.default_rng(4)
    shared = rng.normal(size=10) * 100.0
    scores = {"a": shared + 1.0 + 0.1 * rng.normal(size=10), "b": shared}
    assert stats.adastop(scores, n=10, interims=1).decisions[PAIR] == "equal"
    assert stats.adastop(scores, n=10, interims=1, paired=True).decisions[PAIR] == "larger"


def test_a_scale_or_an_offset_changes_nothing():
    scores = {name: values + 0.0 for name, values in drawn(np.random.default_rng(5), 1.2, 10).items()}
    far = {name: 1e6 + 1e-3 * values for name, values in scores.items()}
    for interims in (1, 2):
        settings = dict(n=5, interims=interims, alpha=0.1)
        assert stats.adastop(scores, **settings).decisions == stats.adastop(far, **settings).decisions


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(n=1, interims=2), "nothing to test"),
        (dict(n=5, interims=0), "nothing to test"),
        (dict(n=5, interims=1, alpha=0.0), "nothing to test"),
        (dict(n=5, interims=1, pairs=[("a", "z")]), r"no scores of \['z'\]"),
    ],
)
def test_settings_that_decide_nothing_are_errors(settings, said):
    with pytest.raises(ValueError, match=said):
        stats.adastop(drawn(np.random.default_rng(0)), **settings)


def test_seeds_wanted_grow_as_the_effect_shrinks():
    noise = scipy.stats.norm.ppf((np.arange(10) + 0.5) / 10)
    large, small, none = (stats.seeds_wanted(noise + shift, permutations=500) for shift in (1.0, 0.4, 0.0))
    assert large.more <= 10 and large.decided == 1.0
    assert large.more < small.more < none.more == 40
    assert small.decided > 0.5 > none.decided
