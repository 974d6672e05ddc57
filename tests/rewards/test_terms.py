"""rl_jax/rewards/terms.py: which terms a config may name, what each kind is given, and what a bad one says."""

import json
import math
import sys

import numpy as np
import pytest

from rl_jax.core.binding import resolve
from rl_jax.rewards import terms
from rl_jax.rewards.pool import RewardPool


def right(prompt, completion, info, *, scale=1.0):
    return {"reward": scale * float(completion == info["answer"]), "empty": float(not completion)}


def length(prompt, completion, info):
    return len(completion)


def broken(prompt, completion, info):
    return 1 / 0


def nothing(prompt, completion, info):
    return None


def rarest(completions, *, lengths, share=1.0):
    """1 for a completion that no other of its group equals."""
    return [share * (completions.count(text) == 1) for text in completions]


def of_trl(prompts, completions, answer, **kwargs):
    """As TRL calls it: columns of the records as lists."""
    assert set(kwargs) >= {"infos", "lengths"}
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def some_fail(completions):
    return [{"none": None, "nan": math.nan, "word": "word"}.get(text, 1.0) for text in completions]


def divides(completions):
    return [20 / len(text) for text in completions]


def too_few(completions):
    return [0.0]


def needs_more(completions, *, weather):
    return [0.0] * len(completions)


def two(prompt, completion):
    return 0.0


HERE = __name__


def load(**spec):
    return terms.load_terms({name: {"fn": f"{HERE}:{fn}"} | more for name, (fn, more) in spec.items()}, resolve)


def columns(completions, **more):
    count = len(completions)
    return {
        "completions": completions,
        "prompts": ["p"] * count,
        "infos": [{"answer": "4"}] * count,
        "prompt_ids": ["p"] * count,
        "lengths": [len(text) for text in completions],
        "truncated": [False] * count,
        "terms": {},
    } | more


@pytest.mark.parametrize("num_workers", [0, 1])
def test_item_terms_in_a_pool(num_workers):
    spec = [["right", f"{HERE}:right", {"scale": 2.0}], ["length", f"{HERE}:length", {}]]
    with RewardPool(terms.score_item, kwargs={"terms": spec}, num_workers=num_workers, time_limit_s=60) as pool:
        found = pool(["p"] * 3, ["4", "", "444"], [json.dumps({"answer": "4"})] * 3)
    assert found.rewards.tolist() == [0.0] * 3 and found.failed.tolist() == [False] * 3
    assert {name: column.tolist() for name, column in found.components.items()} == {
        "right": [2.0, 0.0, 0.0],
        "right/empty": [0.0, 1.0, 0.0],
        "length": [1.0, 0.0, 3.0],
    }


@pytest.mark.parametrize("fn, said", [("broken", "ZeroDivisionError"), ("nothing", "returned None, not a finite")])
def test_an_item_term_that_fails_is_named(fn, said):
    with RewardPool(terms.score_item, kwargs={"terms": [["mine", f"{HERE}:{fn}", {}]]}, num_workers=0) as pool:
        found = pool(["p"], ["x"], ["{}"])
    assert found.num_errors == 1 and found.failed.tolist() == [True]
    assert "reward term 'mine'" in found.first_error and said in found.first_error


def test_group_terms():
    rare, trl = load(rare=("rarest", {"share": 0.5}), trl=("of_trl", {}))
    assert rare.is_group and trl.is_group
    group = columns(["4", "5", "4"])
    np.testing.assert_array_equal(terms.score_group(rare, group).values, np.float32([0, 0.5, 0]))
    np.testing.assert_array_equal(terms.score_group(trl, group).values, np.float32([1, 0, 1]))


def test_a_group_term_fails_by_row_or_for_all_and_none_is_no_value():
    """As in TRL, a reward function of several tasks returns None for rows of another."""
    some, all_of_them = load(some=("some_fail", {}), all_of_them=("divides", {}))
    values, errors = terms.score_group(some, columns(["4", "none", "nan", "word"]))
    assert values.tolist() == [1.0, 0.0, 0.0, 0.0] and errors[:2] == [None, None]
    assert "'some'" in errors[2] and "returned nan, not a finite number" in errors[2] and "'word'" in errors[3]
    values, errors = terms.score_group(all_of_them, columns(["4", ""]))
    assert values.tolist() == [0.0, 0.0] and "'all_of_them'" in errors[0] and "ZeroDivisionError" in errors[1]


def test_a_group_term_that_fails_is_named():
    few, more = load(few=("too_few", {}), more=("needs_more", {}))
    values, errors = terms.score_group(few, columns(["a", "b"]))
    assert values.tolist() == [0.0, 0.0] and all("'few'" in e and "returned 1 values for 2 rows" in e for e in errors)
    with pytest.raises(ValueError, match="more.*asks for weather"):
        terms.score_group(more, columns(["a", "b"]))


@pytest.mark.parametrize(
    "spec, said",
    [
        ({"a": "x:y"}, "must be dict"),
        ({"a": {"weight": 1.0}}, "must be dict"),
        ({"a": {"fn": "no_such_term"}}, "'no_such_term' is unknown"),
        ({"a": {"fn": f"{HERE}:length", "weight": float("nan")}}, "reward.terms.a.weight=nan"),
        ({"a": {"fn": f"{HERE}:right", "scael": 1.0}}, "takes no scael; it takes scale"),
        ({"a": {"fn": f"{HERE}:two"}}, "must take"),
        ({"a": {"fn": "form.overlong", "limit": 10}}, "form:overlong needs buffer: give it in the term"),
        ({"a": {"fn": f"{HERE}:lenght"}}, "nearest: 'length'"),
        ({"a/b": {"fn": f"{HERE}:length"}}, "no '/'"),
    ],
)
def test_a_bad_spec_says_what_is_wrong(spec, said):
    with pytest.raises(ValueError, match=said):
        terms.load_terms(spec, resolve)


def test_short_names_lead_to_functions_without_jax():
    assert all(callable(resolve(path)) for path in terms.TERMS.values())
    assert all(sys.modules[path.partition(":")[0]] for path in terms.TERMS.values())


@pytest.mark.slow
def test_importing_a_term_does_not_count_as_the_time_of_an_item():
    slow = [["one", "tests.rewards.slow_module:one", {}]]
    with RewardPool(terms.score_item, kwargs={"terms": slow}, num_workers=1, time_limit_s=0.7) as pool:
        assert pool(["p"], ["c"], ["{}"]).components["one"].tolist() == [1.0]
    with pytest.raises(RuntimeError, match="could not start.*missing_module"):
        RewardPool(terms.score_item, kwargs={"terms": [["a", "missing_module:f", {}]]}, num_workers=1)
