"""experiments/parts/cooks.py and experiments/tools/kitchen_talk.py: who is asked when, and what becomes of it."""

import json

import numpy as np
import pytest

from experiments.parts import cooks
from experiments.tools import kitchen_talk
from rl_jax.envs.worlds import kitchen, kitchen_tasks
from rl_jax.envs.worlds.kitchen import EAST, STAY, WEST, Kitchen
from rl_jax.rollout.lm import client
from tests.experiments.loopback import speaking

PARTS = dict(onions=1, cook_steps=3)
START = Kitchen(np.zeros(2, int), np.zeros(2, int), np.zeros(3, int), np.int32(0))
HOLDS = START._replace(hands=np.array([kitchen.ONION, 0]))


def cook(fast, slow, **fields):
    return cooks.Cook(
        kitchen_tasks.LEFT,
        lambda texts: [fast(x) for x in texts],
        slow and (lambda t: [slow(x) for x in t]),
        **PARTS,
        **fields,
    )


def wants(question):
    return question.partition("Your partner wants: ")[2].partition("\n")[0]


def test_the_slow_mind_s_answer_counts_later_and_interrupts():
    """Until then the partner's own words are the demand; a fresh message makes the older one's answer void."""
    demands = []

    def fast(question):
        demands.append(wants(question))
        return "bring a dish" if "dish" in demands[-1] else "bring an onion"

    agent = cook(fast, lambda question: "bring a dish once", slow_steps=2)
    agent.hear("Something to eat from!", 0)
    assert agent.act(START, 0) == WEST and agent.act(HOLDS, 1) == EAST, "an onion, meanwhile"
    assert demands == ["Something to eat from!"]
    assert agent.act(START, 2) == kitchen.DOWN and demands[1:] == ["bring a dish once"]
    agent.hear("No, an onion", 3)
    agent.hear("Sorry, wait", 4)
    agent.act(START, 5)
    assert demands[-1] == "Sorry, wait", "the answer to the older message never counts"
    assert [row["kind"] for row in agent.log] == ["intention", "choice", "choice", "intention", "intention", "choice"]


def test_what_is_met_is_wanted_no_longer_and_is_answered():
    said = {"what they want": '"bring an onion once"', "Is that all": "Yes.", "helpful": "There it is!"}
    agent = cook(
        lambda question: "bring an onion" if "onion once" in wants(question) else "wait",
        lambda question: next(answer for words, answer in said.items() if words in question),
    )
    agent.hear("An onion, please", 0)
    assert [agent.act(state, step) for step, state in enumerate((START, HOLDS, START))] == [WEST, EAST, STAY]
    assert agent.said == [(2, "There it is!")]
    met = next(row["question"] for row in agent.log if row["kind"] == "met")
    assert 'wanted: "bring an onion once"' in met and "Since then you did: bring an onion\n" in met
    assert wants(agent.log[-1]["question"]) == "nothing in particular"


def test_without_an_answer_of_use_the_first_task_is_done_and_a_demand_is_given_up():
    assert (
        cooks.chosen("either bring an onion or (better) BRING A DISH", ["bring an onion", "bring a dish"])
        == "bring a dish"
    )
    assert cooks.chosen("dance", ["bring an onion", "wait"]) == "bring an onion"
    agent = cook(lambda question: "dance", None, patience=1, fast_steps=1)
    agent.hear("Dance!", 0)
    assert agent.act(HOLDS, 0) == STAY and agent.act(HOLDS, 1) == EAST, "the fast mind takes a step"
    agent.act(START, 2)
    assert wants(agent.log[-1]["question"]) == "nothing in particular"
    for fields in (dict(slow_steps=-1), dict(patience=0)):
        with pytest.raises(ValueError, match="or more"):
            cook(None, None, **fields)


def test_the_partner_speaks_once_for_each_need():
    partner = cooks.Partner(**PARTS)
    room, full = START, START._replace(pot=np.int32(1))
    brought = full._replace(counters=np.array([0, kitchen.DISH, 0]))
    said = [partner.speak(state) for state in (room, room, full, brought, full, room)]
    assert said == [
        cooks.Partner.WORDS["onion"],
        "",
        cooks.Partner.WORDS["dish"],
        "",
        cooks.Partner.WORDS["dish"],
        cooks.Partner.WORDS["onion"],
    ]


def test_soups_need_both_minds(tmp_path, capsys):
    """Scripted: what the partner says means nothing to the fast mind alone."""
    file = tmp_path / "asked.jsonl"
    kitchen_talk.main(["--episodes=1", "--lane=2", "--limit=40", "--slow_steps=2", f"--to={file}"])
    kitchen_talk.main(["--episodes=1", "--lane=2", "--limit=40", "--agent=fast"])
    whole, alone = capsys.readouterr().out.splitlines()
    best = kitchen.most_soups(lane=2, onions=1, cook=3, limit=40)
    assert f", {best} at best" in whole and alone.startswith("fast: soups 0,")
    soups = int(whole.split()[2].rstrip(","))
    assert 2 <= soups <= best
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["mind"] for row in rows} == {"slow", "fast"} and rows[0]["kind"] == "intention"


def test_what_cannot_be_played_is_a_message(monkeypatch, capsys):
    for flag, said in (("--episodes=0", "--episodes=0 must be 1 or more"), ("--lane=0", "--lane=0 must be 2 or more")):
        with pytest.raises(SystemExit, match="2"):
            kitchen_talk.main([flag])
        assert said in capsys.readouterr().err
    monkeypatch.setattr(client, "BACKOFF_S", 0.0)
    with pytest.raises(SystemExit, match="experiments.tools.kitchen_talk: http://127.0.0.1:9/.*Connection"):
        kitchen_talk.main(["--episodes=1", "--lane=2", "--limit=5", "--slow=http://127.0.0.1:9"])


def test_both_minds_over_servers():
    with (
        speaking(lambda x: kitchen_talk.scripted_slow([x])[0]) as slow,
        speaking(lambda x: "I choose: " + kitchen_talk.scripted_fast([x])[0]) as fast,
    ):
        made = [kitchen_talk.by_server(url=server.url) for server in (slow, fast)]
        fields = dict(count=1, slow_steps=2, fast_steps=0, lane=2, limit=40, **PARTS)
        soups, _ = kitchen_talk.episodes("hla", *made, **fields)
        scripted, _ = kitchen_talk.episodes("hla", kitchen_talk.scripted_slow, kitchen_talk.scripted_fast, **fields)
        assert soups == scripted and soups[0] > 0 and slow.texts and fast.texts
    with pytest.raises(ValueError, match="agent='both' is none of"):
        kitchen_talk.episodes("both", *made, **fields)
