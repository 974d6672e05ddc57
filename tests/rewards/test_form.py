"""Rewards for form, order and brevity, against the numbers of the papers and counts by hand."""

import pytest

from rl_jax.rewards import brevity, form, order


@pytest.mark.parametrize(
    ("text", "formed", "share"),
    [
        ("<think>a</think><answer>b</answer>", 1, 1.0),
        (" <think>\na\n</think>\n<answer> b </answer>\n", 1, 1.0),
        ("<answer>b</answer><think>a</think>", 0, 1.0),
        ("<think>a</think><answer>b</answer> and more", 0, 1.0),
        ("<think>a</think><answer></answer>", 0, 1.0),
        ("<think>a</think><answer>b", 0, 0.75),
        ("<think>a</think><think>a</think><answer>b</answer>", 0, 0.5),
        ("<think><answer>b</answer></think><answer>b</answer>", 0, 0.5),
        ("b", 0, 0.0),
        ("", 0, 0.0),
    ],
)
def test_tags(text, formed, share):
    assert form.tags("", text, {})["reward"] == formed
    assert form.tags("", text, {}, soft=True) == {"reward": share, "format": formed}


def test_a_pattern_is_of_the_whole_text():
    assert form.pattern("", "a\nb!", {}, regex=r"a.b!")["reward"] == 1.0
    assert form.pattern("", "xa\nb!", {}, regex=r"a.b!")["reward"] == 0.0
    with pytest.raises(ValueError, match=r"regex='\(' is not valid"):
        form.pattern("", "", {}, regex="(")


def test_lengths():
    text = "one two three four five six"
    rewards = [form.overlong("", text, {}, limit=limit, buffer=4)["reward"] for limit in (10, 8, 6, 5)]
    assert rewards == [0.0, -0.5, -1.0, -1.0]  # DAPO: the last 4 of `limit` cost a quarter each
    assert form.overlong("", text, {}, limit=10, buffer=2, unit="characters", penalty=3.0)["reward"] == -3.0
    assert form.target_length("", text, {}, target=4)["reward"] == -0.5
    assert form.target_length("", text, {"n": 6}, target_field="n")["reward"] == 0.0
    assert form.target_length("", text, {}, target=4, per_unit=0.25)["reward"] == -0.5
    assert form.target_length("", text * 99, {}, target=4)["reward"] == -1.0
    assert [form.longer("", text, {}, cap=cap)["reward"] for cap in (12, 6, 3)] == [0.5, 1.0, 1.0]
    assert form.longer("", "", {}, cap=3)["reward"] == 0.0
    assert form.longer("", "abcd", {}, cap=8, unit="characters") == {"reward": 0.5, "length": 4.0}
    with pytest.raises(ValueError, match="0 < buffer <= limit"):
        form.overlong("", text, {}, limit=3, buffer=4)
    with pytest.raises(ValueError, match=r"positive integer, found None in info\['n'\]"):
        form.target_length("", text, {}, target_field="n")
    with pytest.raises(ValueError, match="unit='tokens' is none of words, characters"):
        form.target_length("", text, {}, target=4, unit="tokens")
    with pytest.raises(ValueError, match="cap must be at least 1, got 0"):
        form.longer("", text, {}, cap=0)


def test_repetition():
    assert form.repetition("", "a b c a b c a b c", {})["reward"] == pytest.approx(-(1 - 3 / 7))
    assert form.repetition("", "a a a a a", {}, n=2, penalty=0.5)["reward"] == pytest.approx(-0.5 * 3 / 4)
    assert form.repetition("", "abab", {}, n=2, unit="characters")["reward"] == pytest.approx(-1 / 3)
    for text in ("", "a b", "a b c d e f"):
        assert form.repetition("", text, {})["reward"] == 0.0
    with pytest.raises(ValueError, match="n must be at least 1"):
        form.repetition("", "a", {}, n=0)


def test_language_is_the_share_of_words_in_a_script():
    assert form.language("", "so the answer is 7", {})["reward"] == 1.0
    assert form.language("", "so 答案 is 7", {})["reward"] == pytest.approx(2 / 3)
    assert form.language("", "так и есть", {}, script="CYRILLIC")["reward"] == 1.0
    assert form.language("", "naïve", {}, count="characters")["reward"] == 1.0
    assert form.language("", "7 + 7", {})["reward"] == 0.0


def test_garbled_text():
    assert form.garbled("", "fine\n\tπ 答", {})["reward"] == 0.0
    assert form.garbled("", "a\ufffdb", {})["reward"] == -1.0
    assert form.garbled("", "a\x07" + "b" * 98, {}, most=0.02)["reward"] == 0.0


# --- Order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "jigsaw", "positions"),
    [
        ("1, 2, 3", 1.0, 1.0),  # the identity
        ("[1 2 3]", 1.0, 1.0),
        ("3, 2, 1", 0.2 / 3, 1 / 3),  # reversed: the middle one is right
        ("2, 3, 1", 0.0, 0.0),
        ("1, 2", 0.0, 0.0),
        ("1, 1, 3", 0.0, 0.0),
        ("1, 2, 3, 3", 0.0, 0.0),
        ("1 2 3 or 3 2 1", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_permutations(text, jigsaw, positions):
    """The atlas' table: the identity 1, reversed n = 3 gives 1/3 of the positions."""
    info = {"answer": [1, 2, 3]}
    assert order.permutation("", text, info)["reward"] == pytest.approx(jigsaw)
    assert order.permutation("", text, info, discount=1.0)["reward"] == pytest.approx(positions)
    assert order.permutation("", text, info)["positions"] == pytest.approx(positions)


def test_a_permutation_needs_distinct_integers():
    for wrong in (None, "123", [1, 1], [], [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"info\['answer'\] must be a list of distinct integers"):
            order.permutation("", "1", {"answer": wrong})


def test_masked_spans():
    info = {"answer": ["3+4", "7"]}
    assert order.masked_spans("", "3+4; 7", info)["reward"] == 1.0
    assert order.masked_spans("", "3+4; 8", info)["reward"] == 0.5
    assert order.masked_spans("", "8; 3+4", info)["reward"] == 0.0
    assert order.masked_spans("", "3+4; 7; 8", info)["reward"] == 0.0
    assert order.masked_spans("", "7", {"answer": ["7.0"]})["reward"] == 1.0
    with pytest.raises(ValueError, match="must be a list of texts"):
        order.masked_spans("", "7", {"answer": [""]})


def test_next_segments():
    info = {"answer": "The dog ran home."}
    for text, prefix, exact in (("the dog ran home", 1, 1), ("The dog", 1, 0), ("The dog ran home. And", 0, 0),
                                ("The dogs", 0, 0), ("", 0, 0), ("dog ran", 0, 0), ("The cat", 0, 0)):  # fmt: skip
        assert order.next_segment("", text, info)["reward"] == prefix, text
        assert order.next_segment("", text, info, mode="exact")["reward"] == exact, text
    assert order.next_segment("", "The", info, least_words=2)["reward"] == 0.0
    assert order.next_segment("", "The dog sat", info)["shared"] == 0.5
    with pytest.raises(ValueError, match="must be a text with words"):
        order.next_segment("", "a", {"answer": "..."})
    with pytest.raises(ValueError, match="neither prefix nor exact"):
        order.next_segment("", "a", info, mode="suffix")


# --- Brevity ----------------------------------------------------------------------------------------------------------


def test_only_right_answers_are_paid_for_being_short():
    completions, lengths = ["a"] * 4, [10, 20, 5, 40]
    terms = {"right": [1.0, 1.0, 0.0, 1.0]}
    found = brevity.short_and_right(completions, lengths=lengths, terms=terms, correct="right")
    assert found == [1.0, 0.5, 0.0, 0.25]
    nothing = brevity.short_and_right(completions, lengths=lengths, terms={"right": [0.0] * 4}, correct="right")
    assert nothing == [0.0] * 4
    with pytest.raises(ValueError, match="correct='wrong' is no term; the terms are right"):
        brevity.short_and_right(completions, lengths=lengths, terms=terms, correct="wrong")
