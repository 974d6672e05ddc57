"""rewards/actions.py: each kind of action pays by its own rule, in order; nothing is earned by adding actions."""

import pytest

from rl_jax.rewards import actions, terms

INFO = {"actions": [["tap", "save"], ["write", "hello"], ["drag", "up"]]}


@pytest.mark.parametrize(
    ("completion", "paid"),
    [
        ("tap(save) write(hello) drag(up)", 3.0),
        ("first tap( save ), then write(hello); drag(up)!", 3.0),
        ("tap(open) write(hello) drag(up)", 2.2),  # another button: its kind alone
        ("tap(save) write(help) drag(up)", 2.0 + 0.2 + 0.8 * 2 * 3 / 9),  # "hel" of hello and help
        ("drag(up) write(hello) tap(save)", 1.0),  # the order counts
        ("tap(save)", 1.0),
        ("nothing", 0.0),
        ("tap save", 0.0),
    ],
)
def test_each_kind_pays_by_its_rule(completion, paid):
    found = actions.by_type("", completion, INFO)
    assert found["reward"] == pytest.approx(paid / 3) and found["correct"] == float(paid == 3.0)


def test_superfluous_actions_cost():
    assert actions.by_type("", "tap(save) write(hello) drag(up) tap(save)", INFO)["reward"] == pytest.approx(3 / 4)
    every = " ".join(f"{kind}({word})" for kind in ("tap", "write", "drag") for word in ("save", "hello", "up"))
    assert actions.by_type("", every, INFO)["reward"] < 0.3


def test_the_kind_alone_may_pay_nothing_and_texts_may_have_to_be_the_same():
    strict = dict(type_share=0.0, similar=[])
    assert actions.by_type("", "tap(open) write(help) drag(up)", INFO, **strict)["reward"] == pytest.approx(1 / 3)
    assert terms.TERMS["actions.by_type"].endswith("actions:by_type")


def test_a_long_text_pays_nothing_and_wrong_records_are_named():
    assert actions.by_type("", "tap(save) " * 200_000, INFO)["reward"] == 0.0
    for info in ({}, {"actions": []}, {"actions": [["tap"]]}):
        with pytest.raises(ValueError, match=r"info\['actions'\] must be a list of \[name, argument\]"):
            actions.by_type("", "", info)
    with pytest.raises(ValueError, match=r"type_share must lie in \[0, 1\], got 2"):
        actions.by_type("", "", INFO, type_share=2)
