"""advantages/consistency.py and rewards/contrast.py: COPO and GCPO's rewards by hand."""

import jax
import numpy as np
import pytest

from configs.experience import gcpo_geometryzero
from rl_jax import advantages
from rl_jax.advantages.consistency import copo
from rl_jax.rewards import compose, contrast, form

G = 4


def by_hand(rewards, entropies, size=G):
    """The equations of arXiv 2508.04138, prompt by prompt."""
    groups = np.float64(rewards).reshape(-1, size)
    share = (1 - 1 / size) / np.log2(size)
    scores = np.array([group.mean() * (1 - share * h) for group, h in zip(groups, entropies, strict=True)])
    between = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
    result = []
    for group, h, outside in zip(groups, entropies, between, strict=True):
        equal = np.ptp(group) == 0
        w = 0.0 if equal else 1 / (1 + np.exp(-(h - 0.5)))
        local = np.zeros(size) if equal else (group - group.mean()) / (group.std(ddof=1) + 1e-6)
        result += list(w * local + (1 - w) * outside)
    return result


def columns(entropies, size=G):
    """Components [B, 3], the last one H."""
    h = np.repeat(entropies, size)
    return np.stack([np.zeros_like(h), 9 - h, h], axis=1).astype(np.float32)


def test_copo_is_its_equation():
    rewards = np.float32([1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, 0])
    entropies = np.float32([1.0, 2.0, 0.0, 1.5])
    found = np.asarray(copo(rewards, group_size=G, components=columns(entropies)))
    np.testing.assert_allclose(found, by_hand(rewards, entropies), rtol=1e-5)
    small = jax.jit(lambda: copo(1e-6 * rewards, group_size=G, components=columns(entropies)))()  # as small as eps
    np.testing.assert_allclose(small, by_hand(1e-6 * rewards, entropies), rtol=1e-4)
    pairs = jax.jit(lambda: copo(rewards[:4], group_size=2, components=columns(entropies[:2], 2)))()  # two prompts
    np.testing.assert_allclose(pairs, by_hand(rewards[:4], entropies[:2], 2), rtol=1e-5)
    assert (found[4:8] < 0).all() and (found[8:12] > 0).all(), "all wrong, and all right: they learn"


def test_copo_at_its_limits():
    rewards = np.float32([1, 0, 0, 1, 0, 0, 0, 1])
    unsure = copo(rewards, group_size=G, components=columns([2.0, 2.0]), midpoint=-100.0)
    np.testing.assert_allclose(unsure, advantages.group_relative(rewards, group_size=G), rtol=1e-5)  # w = 1
    np.testing.assert_array_equal(copo(rewards[:4] * 0, group_size=G, components=columns([0.0])), 0.0)  # one prompt
    with pytest.raises(ValueError, match="copo needs group_size >= 2"):
        copo(rewards, group_size=1, components=columns([0.0, 0.0]))


def test_the_entropy_of_answers():
    assert contrast.answer_entropy(["7", " 7", "7", "7"]) == [0.0] * 4
    assert contrast.answer_entropy(["1", "2", "3", "4"]) == [2.0] * 4
    np.testing.assert_allclose(contrast.answer_entropy(["1", "1", "2", "3"]), [1.5] * 4)
    none = contrast.answer_entropy(["so 4", "four", "none", "4"], rule="last_number")
    assert none == [1.0] * 4  # two without an answer are one more answer


def test_an_aid_is_paid_where_it_helps():
    def bonus(right, uses, **keywords):
        return contrast.contrast_bonus(["x"] * 4, terms={"r": right, "u": uses}, right="r", uses="u", **keywords)

    assert bonus([1, 1, 0, 0], [1, 1, 0, 0]) == [1, 1, 0, 0]
    assert bonus([1, 1, 0, 0], [0, 0, 1, 1]) == [0, 0, -1, -1]
    assert bonus([1, 0, 1, 0], [1, 1, 0, 0]) == [0, 0, 0, 0]  # it makes no difference
    assert bonus([1, 1, 0, 0], [1] * 4) == [0] * 4 == bonus([1, 1, 0, 0], [0] * 4)
    assert bonus([1, 1, 1, 0], [1, 1, 0, 0], margin=0.6) == [0] * 4
    with pytest.raises(ValueError, match="no item term is called u; item terms: r"):
        contrast.contrast_bonus(["x"], terms={"r": [1.0]}, right="r", uses="u")


def test_the_config_pays_for_answers_aids_that_help_and_length():
    terms = gcpo_geometryzero.get_config("smoke").reward.terms
    rows = [("a=b", 1), ("a=bcd", 1), ("a", 0), ("ab", 0)]  # with the aid, right; without it, wrong
    values = {"right": [right for _, right in rows]}
    values["aid"] = [form.pattern("", text, {}, regex=terms.aid.regex)["reward"] for text, _ in rows]
    length = {name: x for name, x in terms.length.items() if name not in ("fn", "weight")}
    values["length"] = [form.longer("", text, {}, **length)["reward"] for text, _ in rows]
    named = {name: terms.contrast[name] for name in ("right", "uses")}
    values["contrast"] = contrast.contrast_bonus([text for text, _ in rows], terms=values, **named)
    weights = {"right": 1.0} | {name: terms[name].weight for name in ("aid", "contrast", "length")}
    found = compose.weighted_sum({name: np.float32(x) for name, x in values.items()}, weights)
    np.testing.assert_allclose(found, [1.5 + 0.1 * 3 / 12, 1.5 + 0.1 * 5 / 12, 0.1 / 12, 0.2 / 12], rtol=1e-6)


def test_only_the_named_terms_are_rewarded():
    terms = {"right": np.float32([1, 0]), "entropy": np.float32([2, 2])}
    found = contrast.only(terms, {"right": 2.0, "entropy": 1.0}, names=("right",))
    np.testing.assert_array_equal(found, [2.0, 0.0])
    with pytest.raises(ValueError, match="no reward term is called wrong; terms: entropy, right"):
        contrast.only(terms, {}, names=("wrong",))
