"""rewards/decisions.py: dear mistakes, and terms of one source."""

import pytest

from rl_jax.rewards import decisions


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [("hire", "reject", 1), (" hire\n", "reject", 1), ("hire", "hire", 0), ("reject", "hire", 0), ("", "hire", 0),
     ("hired", "reject", 0), ("I hire", "reject", 0)],
)  # fmt: skip
def test_a_wrong_yes(completion, answer, expected):
    assert decisions.mistake("", completion, {"answer": answer}, said="hire") == expected


def test_in_tags_and_without_an_answer():
    info = {"answer": "reject"}
    assert decisions.mistake("", "so <answer>hire</answer>", info, said="hire", extract="tag") == 1
    # two decisions: to say the dear one as well is no way around its price
    both = "<answer>reject</answer><answer>hire</answer>"
    assert decisions.mistake("", both, info, said="hire", extract="tag") == 1
    with pytest.raises(ValueError, match="answer"):
        decisions.mistake("", "hire", {}, said="hire")


def test_a_term_of_one_source():
    info = {"source": "json", "answer": {"a": 1}}
    keywords = dict(source="json", of="json.exact")
    assert decisions.only("", '{"a": 1}', info, **keywords)["reward"] == 1.0
    assert decisions.only("", '{"a": 2}', info, **keywords) == {
        "reward": 0.0, "values": 0.0, "keys": 1.0, "exact": 0.0, "format": 1.0}  # fmt: skip
    assert decisions.only("", '{"a": 1}', {"source": "other"}, **keywords) == {"reward": 0.0}
    own = dict(source="json", of="rl_jax.rewards.decisions:mistake", said="hire")
    assert decisions.only("", "hire", info | {"answer": "reject"}, **own) == {"reward": 1.0}
    with pytest.raises(ValueError, match='write "module:function"'):
        decisions.only("", "", info, source="json", of="jsen")
