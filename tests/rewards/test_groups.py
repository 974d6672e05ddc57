"""rewards/groups.py: terms over the completions of one prompt."""

import itertools
import random

import pytest

from rl_jax.core import binding
from rl_jax.rewards import groups, terms


def test_every_short_name_is_a_term():
    loaded = {name: terms.Term(name, path, binding.resolve(path), 1.0, {}) for name, path in terms.TERMS.items()}
    assert list(terms.TERMS) == sorted(terms.TERMS)
    assert {name for name, term in loaded.items() if term.is_group} >= {n for n in loaded if n.startswith("groups.")}


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((10, 20, 30), (0.5, 0.0, -0.5)), ((30, 10), (-0.5, 0.5)), ((7, 7, 7), (0.0, 0.0, 0.0)), ((5,), (0.0,))],
)
def test_relative_length(lengths, expected):
    assert groups.relative_length([""] * len(lengths), lengths=list(lengths)) == pytest.approx(expected)
    bounded = groups.relative_length([""] * len(lengths), lengths=list(lengths), low=0.0, high=1.0)
    assert bounded == pytest.approx([value + 0.5 for value in expected])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["4", "4", "5"], [1, 1, 0]),
        (["Yes.", " yes", "no"], [1, 1, 0]),
        (["5", "4", "4", "5"], [1, 0, 0, 1]),  # a tie: the first one given
        (["4", "5", "6"], [0, 0, 0]),  # no two agree
        (["4"], [1]),
        (["", "", "3", "3"], [0, 0, 1, 1]),  # nothing is no answer
        (["", ""], [0, 0]),
    ],
)
def test_majority(texts, expected):
    assert groups.majority(texts) == expected


def test_votes_with_a_rule():
    texts = ["\\boxed{4}", "so \\boxed{4}", "\\boxed{4} \\boxed{5}", "4"]
    assert groups.majority(texts, rule="boxed") == [1, 1, 0, 0]  # two answers are no vote, nor is no answer
    assert groups.vote_share(texts, rule="boxed") == [0.5, 0.5, 0.0, 0.0]
    assert groups.majority(["A", "a", "a"], normalize=False) == [0, 1, 1]
    with pytest.raises(ValueError, match="is no rule"):
        groups.majority(["1"], rule="boxt")


def test_uniqueness_counts_the_different_texts():
    rng = random.Random(0)
    for _ in range(50):
        texts = rng.choices("abcd ", k=6)
        assert sum(groups.uniqueness(texts)) == pytest.approx(len({text.strip() for text in texts}))
    assert groups.uniqueness(["a", "a ", "b"]) == [0.5, 0.5, 1.0]


def test_diversity_of_an_identical_group_is_nothing():
    same, different = ["the cat sat down"] * 4, ["the cat sat", "a dog ran off", "x y z", "one two"]
    for fn in (groups.distinct_ngrams, groups.dissimilarity):
        assert fn(same) == [0.0] * 4
        assert fn(different) == [1.0] * 4
    assert groups.distinct_ngrams(["a b c", "a b d"]) == [0.5, 0.5]  # "b c" is its own, "a b" is not
    assert groups.dissimilarity(["a b c", "a b d"]) == pytest.approx([2 / 3, 2 / 3])
    assert groups.distinct_ngrams([""]) == groups.dissimilarity([""]) == [0.0]
    assert groups.dissimilarity(["", "", ""]) == [0.0] * 3


def test_roles_are_counted_once_and_up_to_a_number():
    texts = [
        "As a doctor I say no. As a patient, yes. As a Doctor, no.",
        "No.",
        " ".join(f"as a r{i}" for i in range(9)),
    ]
    assert groups.roles(texts) == [0.5, 0.0, 1.0]
    assert groups.roles(["(nurse) (cook)"], pattern=r"\((\w+)\)", most=2) == [1.0]


def test_numbers_of_evol_rl():
    same = groups.novelty(["4 4 4"] * 4)
    assert same == [0.75] * 4  # no spread
    rewards = groups.novelty(
        ["x <answer>4</answer>", "y z <answer>4</answer>", "<answer>5</answer>", "", "??"], rule="tag"
    )
    assert min(rewards[:2]) >= 0.5 and rewards[2] == -0.5 and rewards[3:] == [-1.0, -1.0]
    rng = random.Random(0)
    for _ in range(100):
        texts = [f"{' '.join(rng.choices('abc', k=4))} <answer>{rng.randrange(3)}</answer>" for _ in range(6)]
        answers = [text[-10] for text in texts]
        for reward, answer in zip(groups.novelty(texts, rule="tag"), answers, strict=True):
            most = max(answers.count(other) for other in answers)
            assert -1.0 <= reward <= -0.5 or 0.5 <= reward <= 1.0
            assert reward < 0 or answers.count(answer) == most


def test_no_order_of_the_group_matters():
    rng = random.Random(0)
    texts = ["the cat <answer>1</answer>", "the cat <answer>1</answer>", "a dog ran <answer>2</answer>", "the cow"]
    lengths = [3, 5, 2, 9]
    for fn in (groups.majority, groups.vote_share, groups.novelty):
        expected = dict(zip(texts, fn(texts, rule="tag"), strict=True))
        for order in itertools.islice(itertools.permutations(texts), 12):
            assert fn(list(order), rule="tag") == [expected[text] for text in order]
    order = rng.sample(range(4), 4)
    moved = groups.relative_length([texts[i] for i in order], lengths=[lengths[i] for i in order])
    assert moved == [groups.relative_length(texts, lengths=lengths)[i] for i in order]


def test_novelty_of_characters_tells_answers_without_words_apart():
    from rl_jax.rewards import groups

    texts = ["8=6=13", "8=7=13", "9-4+1=13", "1=2"]
    assert groups.novelty(texts, rule="last_number")[:3] == [0.75, 0.75, 0.75], "each is a word of its own"
    found = groups.novelty(texts, rule="last_number", characters=True)
    assert found[2] == 1.0 and min(found[:2]) == 0.5 and found[3] == -0.5
