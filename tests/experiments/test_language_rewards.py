"""experiments/tools/language_rewards.py: terms and formulas that a server writes, and what goes back to it."""

import argparse
import ast
import json
import shlex

import pytest

from configs.control import agents, reward_code, rewards
from experiments.parts import check_config, language_rewards
from experiments.parts.chat import Chat
from experiments.parts.reward_trials import given
from experiments.tools import language_rewards as tool
from experiments.tools import reward_code as search_of_texts
from experiments.tools import reward_search
from rl_jax.control.relabelling import machines
from rl_jax.core import ltl
from tests.experiments.chat_server import bodies, said, scripted

NAMES = ("cosine", "sine", "speed")
CALLS = """residual(entry="cosine", target=1.0, weight=5.0)
residual(entry="speed", norm="smooth_abs", width=0.2, weight=1)
residual(entry="speed", target=8, weight=-0.5)
effort(weight=0.001)"""
TERMS = {
    "residual_cosine": dict(fn="residual", index=0, target=1.0),
    "residual_speed": dict(fn="residual", index=2, norm="smooth_abs", width=0.2),
    "residual_speed_2": dict(fn="residual", index=2, target=8),
    "effort": dict(fn="effort"),
}
WEIGHTS = {"residual_cosine": 5.0, "residual_speed": 1.0, "residual_speed_2": -0.5, "effort": 0.001}
DESCRIPTION = "* the number cosine should be 1.0: very."


@pytest.mark.parametrize("module", [tool, reward_search, search_of_texts])
def test_a_config_that_is_missing_is_a_message(module, tmp_path, monkeypatch, capsys):
    words = ["terms", "--url=http://127.0.0.1:9", "--task=x"] if module is tool else ["--proposals=eureka"]
    monkeypatch.setattr("sys.argv", ["x", *words, "--config=configs/control/nope.py", f"--workdir={tmp_path}"])
    with pytest.raises(SystemExit, match="1"):
        module.main()
    assert "there is no config file configs/control/nope.py" in capsys.readouterr().err


def test_calls_become_terms_and_weights():
    found = language_rewards.calls_of(CALLS, NAMES)
    assert found == dict(fn="by_terms", terms_of=TERMS, weights=WEIGHTS, keep=0.0)


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("", "there is no call"),
        ("effort(", "the calls are no Python"),
        ("import os", "line 1 is no call of residual, progress"),
        ("effort(weight=1)\nos.system('x')", "line 2 is no call"),
        ("effort(0.1)", "line 1 is no call"),
        ("effort(**{'weight': 1})", "takes weight, not None"),
        ("effort(weight=1, entry='speed')", "effort takes weight, not entry"),
        ("effort()", "effort needs a weight"),
        ("effort(weight=speed)", "weight must be a number or a text"),
        ("effort(weight='1')", "weight must be a finite number"),
        ("effort(weight=1e999)", "weight must be a finite number"),
        ("residual(entry='height', weight=1)", "entry='height' is none of cosine, sine, speed"),
        ("residual(weight=1)", "entry=None is none of"),
        ("residual(entry='sine', norm='l1', weight=1)", "norm='l1' is none of quadratic"),
        ("residual(entry='sine', width=0, weight=1)", "width must be above 0"),
    ],
)
def test_calls_that_are_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        language_rewards.calls_of(text, NAMES)


def options(tmp_path, server, **fields):
    known = dict(workdir=tmp_path, url=server.url, model="", temperature=0.0, repairs=1, seed=0, names="")
    return argparse.Namespace(**(known | fields))


def relabel_of(command):
    """The field that a printed command sets."""
    flags = [text for text in shlex.split(command) if text.startswith("--config.")]
    return given(flags)["algorithm.relabel"]


def test_language_to_rewards_in_two_requests(tmp_path, capsys):
    marked = f"Sure.\n[start of description]\n{DESCRIPTION}\n[end of description]"
    answers = [
        "[start of description]\n* old\n[end of description]",
        marked,
        "```\nspin(weight=1)\n```",
        f"```\n{CALLS}\n```",
    ]
    with scripted(*answers) as server:
        fields = dict(kind="terms", config="configs/control/reward_code.py:pendulum", task=["Stand.", "Softer."])
        command = tool.run(options(tmp_path, server, **fields))
    first, second, coder, repair = bodies(server)
    assert "the number speed should be [NUM: 0.0]" in first["messages"][0]["content"] and said(first) == "Stand."
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["system", "user", "assistant", "user"] and said(second) == "Softer."
    # The coder sees the newest description alone.
    assert len(coder["messages"]) == 2 and said(coder) == DESCRIPTION
    assert "one of: cosine, sine, speed" in coder["messages"][0]["content"]
    assert "line 1 is no call of residual" in said(repair) and DESCRIPTION in capsys.readouterr().out
    found = relabel_of(command)
    assert found == dict(fn="by_terms", terms_of=TERMS, weights=WEIGHTS, keep=0.0)
    assert json.loads((tmp_path / "relabel.json").read_text()) == found
    config = reward_code.get_config("pendulum")
    config.algorithm.relabel = found
    check_config.check(config)


TREE = {
    "task": {"text": "Do the first, then the second.", "parts": ["a", "second"]},
    "second": {"text": "Go to b and never to c on the way.", "parts": ["b", "c"]},
}
PLACES = dict(a=0, b=6, c=3)


def test_a_task_in_words_becomes_formulas_of_a_tree(tmp_path):
    config = "configs/control/rewards.py:formula"
    tree = {"task": TREE["task"], "second": {"text": "Go to b.", "parts": ["b"]}}
    answers = [json.dumps(tree), "b once", "```\nF c\n```", "```\nF b\n```", "first a, then second"]
    answers += ["F (a & ", "F (a & second)"]
    with scripted(*answers) as server:
        command = tool.run(options(tmp_path, server, kind="formula", config=config, task=["First a, then b."]))
    first, ask_leaf, leaf, mended, ask_root, root, again = bodies(server)
    assert "First a, then b." in said(ask_leaf) and "'second', 'Go to b.', is done when" in said(ask_leaf)
    assert "of these are done: a, second." in said(ask_root)
    assert "propositions: a, b." in first["messages"][0]["content"] and said(first) == "First a, then b."
    assert (
        "names are: b." in said(leaf)
        and said(leaf).endswith("The sentence: b once")
        and "'c' in 'F c' is none of b" in said(mended)
    )
    assert "names are: a, second." in said(root) and "ends too early" in said(again)
    given_one = rewards.get_config("formula").algorithm.relabel.to_dict()["machine"]
    assert relabel_of(command) == dict(fn="by_machine", machine=given_one)


def test_a_task_in_words_is_given_to_the_robots_of_a_team(tmp_path, capsys):
    """The tree's parts become formulas of single robots; the printed command has the world with their owners."""
    tree = {
        "task": {"text": "Visit both ends.", "parts": ["left", "right"]},
        "left": {"text": "The left end, then the middle.", "parts": ["a", "b"]},
        "right": {"text": "The right end.", "parts": ["c"]},
    }
    answers = [json.dumps(tree), "first a, then b", "F (a & F b)", "c once", "F c"]
    answers += ["any order", "left & !left", "left & right"]
    config = "configs/control/agents.py:robots,ippo"
    with scripted(*answers) as server:
        fields = dict(kind="robots", config=config, task=["Visit both ends, and the middle after the left one."])
        command = tool.run(options(tmp_path, server, **fields))
    assert "no plan does 'left & !left'" in said(bodies(server)[-1])
    wanted = agents.get_config("robots,ippo").env.to_dict()
    assert json.loads((tmp_path / "env.json").read_text())["owners"] == dict(left=0, right=1)
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "experiments.control.ppo"]
    assert ast.literal_eval(words[-1].removeprefix("--config.env=")) == wanted
    out = capsys.readouterr().out
    assert "6 steps, 9 moves" in out and "robot 0: 3 2 1 0 1 2 3" in out and "robot 1: 3 " in out
    with pytest.raises(ValueError, match="env.name='agents/robots'"):
        tool.run(options(tmp_path, server, **fields | dict(config="configs/control/agents.py:climbing,ippo")))


def test_a_printed_command_is_read_by_a_shell_as_it_was_meant(tmp_path):
    folder = tmp_path / "it's; two words $HOME"
    with scripted("Still.", f"```\n{CALLS}\n```") as server:
        fields = dict(kind="terms", config="configs/control/reward_code.py:pendulum", task=["Stand."])
        command = tool.run(options(folder, server, **fields))
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "experiments.control.ppo"] and words[4] == f"--workdir={folder / 'run'}"
    assert len(words) == 6 and relabel_of(command)["weights"] == WEIGHTS


def test_a_task_named_twice_in_each_formula_of_a_deep_tree_is_refused():
    """Each level doubles what is below it: with nine levels more than a thousand operators and names."""
    tree = {"task": {"text": "x", "parts": ["t0"]}}
    tree |= {f"t{i}": {"text": "x", "parts": [f"t{i + 1}" if i < 9 else "a"]} for i in range(10)}
    formulas = [f"F (t{i + 1} & X t{i + 1})" if i < 9 else "F a" for i in range(10)] + ["t0"]
    answers = [json.dumps(tree), *(text for formula in formulas for text in ("?", formula))]
    with scripted(*answers) as server, pytest.raises(ValueError, match="more than 500 operators and names with the"):
        language_rewards.by_logic(Chat(server.url), "Go.", PLACES, size=7, progress=0.0, repairs=0)


def test_formulas_are_checked_together():
    tree, whole = json.dumps(TREE), "F (a & second)"
    answers = [tree, "?", "F (b & (!c U b))", "?", "F a & F second", tree, "?", "!c U b", "?", whole]
    with scripted(*answers) as server:
        chat, fields = Chat(server.url), dict(size=7, progress=0.5, repairs=0)
        language_rewards.by_logic(chat, "Go.", PLACES, **fields)
        found = language_rewards.by_logic(chat, "Go.", PLACES, **fields)["machine"]
    made = machines.formula(**{name: value for name, value in found.items() if name != "fn"})
    assert made.transitions.shape[1] == 4 and made.rewards.max() == 1.0 and made.rewards.min() <= 0.0
    assert found["parts"] == {"second": "!c U b"} and language_rewards.names_in(ltl.parse(whole)) == {"a", "second"}
    with (
        scripted(tree, "?", "F F") as server,
        pytest.raises(ValueError, match="no usable answer after 1 requests: ltl: "),
    ):
        language_rewards.by_logic(Chat(server.url), "Go.", PLACES, **fields)


@pytest.mark.parametrize(
    "change, complaint",
    [
        ("[]", 'must be a JSON object with the key "task"'),
        ("{", "the tree is no JSON"),
        ({"task": {"text": "x"}}, "must be {"),
        ({"task": {"text": "x", "parts": []}}, "one or more"),
        ({"task": {"text": "x", "parts": ["d"]}}, "the part 'd', which is neither a task nor of a, b, c"),
        (TREE | {"a": {"text": "x", "parts": ["b"]}}, "'a' is no name of its own"),
        (TREE | {"F": {"text": "x", "parts": ["b"]}}, "'F' is no name of its own"),
        (TREE | {"lost": {"text": "x", "parts": ["b"]}}, "'lost' is a part of 0 tasks"),
        (TREE | {"second": {"text": "x", "parts": ["task"]}}, "'task' is a part of 1 tasks"),
        (
            {
                "task": {"text": "x", "parts": ["a"]},
                "p": {"text": "x", "parts": ["q"]},
                "q": {"text": "x", "parts": ["p"]},
            },
            "'p' is not under the whole task",
        ),
        ({f"t{i}": {"text": "x", "parts": ["a"]} for i in range(32)} | TREE, "the tree has 34 tasks, at most 32"),
    ],
)
def test_trees_that_are_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        language_rewards.tree_of(change if isinstance(change, str) else json.dumps(change), PLACES)


def test_a_formula_is_of_a_bounded_length():
    with pytest.raises(ValueError, match="a formula of 201 characters, at most 200"):
        language_rewards.formula_of("!" * 200 + "a", ["a"])
    with pytest.raises(ValueError, match="nested deeper than 64"):
        language_rewards.formula_of("!" * 199 + "a", ["a"])
    with pytest.raises(ValueError, match="names"):
        tool.names_of(rewards.get_config("residuals"), "")
    assert tool.names_of(rewards.get_config("residuals"), "x,y") == ["x", "y"]
