"""rewards/tools.py: ToolRL's numbers, what is a call and what is none, BFCL's layout and data."""

import gzip
import json
import random

import pytest

from rl_jax.rewards import tools
from tests.paths import shared_data

TRUTH = {"calls": [{"name": "f", "parameters": {"x": 1, "y": 2}}]}
TWO = {"calls": [{"name": "f", "parameters": {"x": 1}}, {"name": "f", "parameters": {"x": 2}}]}
BFCL = {"calls": [{"area": {"base": [10], "height": [5.0], "unit": ["cm", "centimetres", ""]}}]}


def text(*calls):
    lines = "\n".join(call if isinstance(call, str) else json.dumps(call) for call in calls)
    return f"<think>so</think>\n<tool_call>\n{lines}\n</tool_call>"


def call(name="f", **parameters):
    return {"name": name, "parameters": parameters}


@pytest.mark.parametrize(
    ("completion", "fine", "intermediate", "coarse"),
    [
        (text(call(x=1, y=2)), 3.0, 3.0, 3.0),
        (text(call(y=2, x=1)), 3.0, 3.0, 3.0),
        (text(call(x=1, y=3)), 1.5, 0.0, -3.0),
        (text(call(x=1)), 0.75, 0.0, -3.0),
        (text(call("g", x=1, y=2)), -3.0, -3.0, -3.0),
        (text("f(x=1, y=2)"), -3.0, -3.0, -3.0),
        (text(call(x=1, y=2), call(x=1, y=2)), 2.25, 1.5, -3.0),  # a second call halves the score of the names
        (text(call(x=1, y=2, z=3)), 6 * (1 + 2 / 3 + 2) / 4 - 3, 0.0, -3.0),
        (text(call(x=True, y=2)), 1.5, 0.0, -3.0),
        (text(call(x=1.0, y=2)), 3.0, 3.0, 3.0),
        ("no call", -3.0, -3.0, -3.0),
        ("", -3.0, -3.0, -3.0),
        (json.dumps(call(x=1, y=2)), -3.0, -3.0, -3.0),  # without the tags
        (text('{"name": "f"}'), -3.0, -3.0, -3.0),
        (text('{"name": ["f"], "parameters": {}}'), -3.0, -3.0, -3.0),
        (text(call(x=1, y=2), "not json"), -3.0, -3.0, -3.0),
    ],
)
def test_numbers_of_toolrl(completion, fine, intermediate, coarse):
    got = [fn("", completion, TRUTH)["correctness"] for fn in (tools.fine, tools.intermediate, tools.coarse)]
    assert got == pytest.approx([fine, intermediate, coarse], abs=1e-12)


def test_the_sum_has_the_format_and_the_bounds_move():
    scores = tools.fine("", text(call(x=1, y=3)), TRUTH, low=-1.0, high=1.0)
    assert scores == {"reward": 1.5, "format": 1.0, "correctness": 0.5, "exact": 0.0}
    assert tools.fine("", "<think>a</think>\n<response>b</response>", {"calls": []})["reward"] == 1.0


def test_calls_are_matched_each_once():
    assert tools.fine("", text(call(x=2), call(x=1)), TWO)["exact"] == 1.0
    # names 1; the first truth takes x=1, the second gets nothing for the value
    assert tools.fine("", text(call(x=1), call(x=1)), TWO)["correctness"] == pytest.approx(6 * 4 / 5 - 3)
    # the first call fits both truths: it must be paired with the one that needs it
    truth = {"calls": [{"f": {"x": [1, 2]}}, {"f": {"x": [1]}}]}
    assert tools.exact("", json.dumps([call(x=1), call(x=2)]), truth)["reward"] == 1.0


@pytest.mark.parametrize(
    ("completion", "calls", "response", "right"),
    [
        ("<think>a</think>\n<tool_call>\n{}\n</tool_call>", True, False, True),
        ("<think>a</think>\n<response>b</response>", False, True, True),
        ("<think>a</think>\n<tool_call>\n{}\n</tool_call>\n<response>b</response>", True, True, True),
        ("<think>a</think>", False, False, True),
        ("<think>a</think>\n<tool_call>\n{}\n</tool_call> and more", True, False, False),
        ("<tool_call>\n{}\n</tool_call>", True, False, False),
        ("<think>a</think>\n<tool_call>{}</tool_call>", True, False, False),
        (
            "<think>a</think>\n<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>", True, False, False,
        ),
        ("<think>a</think>\n<response>b</response>\n<tool_call>\n{}\n</tool_call>", True, True, False),
    ],
)  # fmt: skip
def test_format_of_toolrl(completion, calls, response, right):
    assert tools.well_formed(completion, calls=calls, response=response) == right


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ({"base": 10, "height": 5}, 1),
        ({"base": 10, "height": 5, "unit": "CM"}, 1),
        ({"base": 10, "height": 5, "unit": "centi-metres"}, 1),
        ({"base": 10, "height": 5, "unit": ""}, 0),  # "" means: may be left out
        ({"base": 10, "height": 5, "unit": "m"}, 0),
        ({"base": 10}, 0),
        ({"base": 11, "height": 5}, 0),
        ({"base": "10", "height": 5}, 0),
        ({"base": 10, "height": 5, "colour": "red"}, 0),
    ],
)
def test_bfcl_accepts_and_rejects(given, right):
    for completion in (
        json.dumps({"name": "area", "arguments": given}),
        f"```json\n{json.dumps([{'area': given}])}\n```",
        text({"name": "area", "parameters": given}),
        f"I call {json.dumps({'area': given})} now.",
    ):
        assert tools.exact("", completion, BFCL)["reward"] == right


def test_an_integer_is_asked_for_where_the_function_says_so():
    functions = [{"name": "area", "parameters": {"properties": {"base": {"type": "integer"}}}}]
    completion = json.dumps({"area": {"base": 10.0, "height": 5}})
    assert tools.exact("", completion, BFCL)["reward"] == 1.0
    assert tools.exact("", completion, BFCL | {"functions": functions})["reward"] == 0.0


def test_where_no_call_is_right_a_call_is_wrong():
    for completion, right in [("I cannot do that.", 1), (text(call(x=1)), 0), (json.dumps(call(x=1)), 0)]:
        assert tools.exact("", completion, {"calls": []})["reward"] == right
    assert tools.exact("", "<tool_call>\nbroken", {"calls": []})["reward"] == 0


@pytest.mark.parametrize("entry", ["f", {"f": {"x": 1}}, {"f": {}, "g": {}}, {"name": "f"}, 3])
def test_a_bad_truth_is_named(entry):
    with pytest.raises(ValueError, match=r'info\["calls"\]\[0\] must be'):
        tools.read_truth({"calls": [entry]})


def test_noise_is_worth_nothing():
    rng = random.Random(0)
    pieces = ["{", "}", "[", "]", '"name"', ":", '"f"', '"parameters"', ",", "1", "<tool_call>", "</tool_call>", "\n",
              "é", "null", "-", "e999", "\\", "NaN", '"x"', "true"]  # fmt: skip
    for _ in range(2_000):
        completion = "".join(rng.choices(pieces, k=rng.randrange(40)))
        assert tools.exact("", completion, BFCL)["reward"] == 0.0
        assert -3.0 <= tools.fine("", completion, TRUTH)["reward"] < 3.0
    for completion in ("[" * 50_000, '{"a":' * 50_000, "<tool_call>" * 20_000, "9" * 99_999, "[1e999]"):
        assert tools.exact("", completion, BFCL)["reward"] == 0.0


@pytest.mark.parametrize("name", ["simple_python", "multiple", "parallel", "parallel_multiple"])
def test_the_answers_of_bfcl_are_right_and_changed_ones_wrong(name):
    def read(file):
        return [json.loads(line) for line in gzip.open(shared_data(f"tools/{file}"), "rt")]

    questions = {q["id"]: q for q in read(f"bfcl_v4_{name}.json.gz")}
    answers = read(f"bfcl_v4_{name}.answers.json.gz")
    assert len(answers) >= 200
    for answer in answers:
        truth = answer["ground_truth"]
        info = {"calls": truth, "functions": questions[answer["id"]]["function"]}
        plain = [{n: {k: _first(v) for k, v in p.items() if _first(v) != ""} for n, p in c.items()} for c in truth]
        good = tools.exact("", json.dumps(plain), info)["reward"]
        assert good == 1.0, (answer["id"], plain)
        assert tools.fine("", text(*plain), info)["correctness"] == 3.0
        wrong = [{f"{n}_x": p for n, p in plain[0].items()}, *plain[1:]]
        more = [{n: p | {"made_up": 1} for n, p in plain[0].items()}, *plain[1:]]
        for bad in (wrong, more, [*plain, plain[0]], plain[1:]):
            assert tools.exact("", json.dumps(bad), info)["reward"] == 0.0
            assert tools.fine("", text(*bad), info)["correctness"] < 3.0


def _first(options):
    """The first allowed value, in which objects hold lists of allowed values of their own."""
    value = options[0] if options else ""
    if isinstance(value, dict):
        return {key: _first(inner) if isinstance(inner, list) else inner for key, inner in value.items()}
    return [_first([inner]) for inner in value] if isinstance(value, list) else value
