"""experiments/tools/judge_standards.py: who learns from which verdict, and a judge that reads what was tuned."""

import argparse
import ast
import json

import pytest

from experiments.parts import judge_standards, judges
from experiments.parts.chat import Chat
from experiments.parts.setup import make_setup
from experiments.tools import judge_standards as tool
from tests.experiments import small
from tests.experiments.chat_server import bodies, said, scripted
from tests.experiments.test_judges import asked, judged_rows

KNOWN = [{"query": "for a shop", "response": "Good trade!", "label": "Bad"}]
START = dict(flaws=("be vague",), standards=("be {kind}",))


def fields(**values):
    return json.dumps(values)


def test_the_writer_learns_when_caught_and_the_judge_when_fooled_or_wrong():
    answers = [
        *(fields(response="poor one", flaws="hid the cliche"), fields(response="poor two", flaws="left out the name")),
        fields(verdict="Bad", why="dull", advice="be vivid"),
        "no JSON",
        fields(verdict="Good", why="fine"),
        fields(rules=["be vague", "be vivid"]),  # of the writer
        fields(rules=["be {kind}", "name  the\nperson"]),  # of the judge, fooled
        fields(verdict="Good", why="short and well"),
        fields(why="it took brevity for style", advice="ask for warmth"),
        fields(rules=["be {kind}", "name the person", "warmth"]),  # of the judge, wrong
    ]
    with scripted(*answers) as server:
        found = judge_standards.tune(Chat(server.url), ["x", "y"], KNOWN, rounds=1, size=4, **START)
        asked_for = [said(body) for body in bodies(server)]
        assert not server.left
    assert found.flaws == ("be vague", "be vivid") and found.standards == ("be {kind}", "name the person", "warmth")
    assert found.rounds == (dict(caught=1, fooled=1, right=0, wrong=1),)
    assert "- be vague" in asked_for[0] and "- be {kind}" in asked_for[2] and "poor one" in asked_for[2]
    assert "is no JSON" in asked_for[4]
    assert "be vague" in asked_for[5] and "advice: be vivid" in asked_for[5]
    assert "be {kind}" in asked_for[6] and "advice: left out the name" in asked_for[6]
    assert "- name the person" in asked_for[7] and "Good trade!" in asked_for[7], "by the newest standards"
    assert "said Good, because: short and well\nIt is Bad." in asked_for[8]
    assert "advice: ask for warmth" in asked_for[9]


def test_a_right_judge_stays_as_it_is():
    answers = [fields(response="r", flaws="f"), fields(verdict="Bad", why="w", advice="a"), fields(rules=["new"])]
    answers += [fields(verdict="Bad", why="w", advice="never asked for")]
    with scripted(*answers) as server:
        found = judge_standards.tune(Chat(server.url), ["x"], KNOWN, rounds=1, **START)
    assert found.standards == START["standards"] and found.flaws == ("new",)
    assert found.rounds == (dict(caught=1, fooled=0, right=1, wrong=0),)


def test_what_is_refused():
    with scripted() as server:
        chat = Chat(server.url)
        with pytest.raises(ValueError, match="there is no query"):
            judge_standards.tune(chat, [], KNOWN, rounds=1)
        with pytest.raises(ValueError, match="known answer 0 must have query, response and a label"):
            judge_standards.tune(chat, ["x"], [KNOWN[0] | {"label": "fine"}], rounds=1)
    for read, bad, said_so in (
        (judge_standards.read_verdict, fields(verdict="Fair", why="w"), "is neither Good nor Bad"),
        (judge_standards.read_verdict, fields(verdict="Bad", why="w"), "the texts verdict, why, advice"),
        (judge_standards.read_rules, fields(rules=["x"] * 11), "there are 11 rules: 1 to 10"),
        (judge_standards.read_rules, fields(rules=[" "]), "must be"),
        (judge_standards.read_rules, "[", "no JSON"),
        (judge_standards.read_fields, "[", "no JSON"),
    ):
        with pytest.raises(ValueError, match=said_so):
            read(bad)


def test_a_run_is_judged_by_the_tuned_standards(tmp_path, monkeypatch, capsys):
    queries, known = tmp_path / "queries.jsonl", tmp_path / "known.jsonl"
    queries.write_text(fields(query="x") + "\n\n")
    known.write_text(fields(**KNOWN[0]))  # without a newline at its end
    answers = [
        fields(response="r", flaws="f"),
        fields(verdict="Good", why="w"),
        fields(rules=["No {a}.", "Warm."]),
    ]
    answers += [fields(verdict="Bad", why="w", advice="a")]
    with scripted(*answers) as server:
        given = dict(url=server.url, model="", temperature=0.0, seed=0, rounds=1, size=4, path="runs/judge")
        flag = tool.run(argparse.Namespace(queries=queries, known=known, workdir=tmp_path / "w", **given))
        with pytest.raises(FileExistsError, match=r"w/standards.json is there already: name another --workdir"):
            tool.run(argparse.Namespace(queries=queries, known=known, workdir=tmp_path / "w", **given))
    assert "round 1: caught 0, fooled 1, right 1, wrong 0" in capsys.readouterr().out
    written = json.loads((tmp_path / "w" / "standards.json").read_text())
    spec = ast.literal_eval(flag.removeprefix("--config.judge="))["standards"]
    assert written["standards"] == ["No {a}.", "Warm."] and written["judge"]["standards"] == spec

    config = small.config(tmp_path).copy_and_resolve_references().unlock()
    setup, questions = make_setup(config), []

    def says(question):
        questions.append(question)
        return " 1" if "answer: 3\n" in question else "0."

    asked(monkeypatch, says)
    fn = spec.pop("fn")
    found = getattr(judges, fn)(setup, **spec | {"path": ""})(judged_rows(setup.task.tokenizer))
    assert set(found.rewards.tolist()) == {0.0, 1.0} and not found.components["unparsed"].any()
    assert "- No (a).\n- Warm.\n" in questions[0] and "{completion}" not in questions[0]
    assert sum(found.rewards) == sum("answer: 3\n" in q for q in questions) >= 1
