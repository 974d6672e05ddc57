"""experiments/tools/reward_code.py: who proposes, what is said to a server, and a search on a probe."""

import argparse
import json
import math

import numpy as np
import pytest

from configs.control import reward_code as configs
from experiments.parts import control_runs, reward_proposals
from experiments.parts import reward_texts as texts
from experiments.parts.chat import Chat
from experiments.parts.reward_proposals import Asked
from experiments.parts.reward_trials import check_resumed
from experiments.tools import reward_code
from rl_jax.control.reward_code import Known
from tests.experiments.chat_server import bodies, said, scripted

KNOWN = Known(("x", "next_x", "task_reward", "terminated"), {"obs": 2, "next_obs": 2, "action": 1})
GOOD, BAD = "a = x\nreward = a", "reward = np.exp(x)"


def fence(text):
    return f"I think so.\n```python\n{text}\n```"


def row(generation, index, score, text=GOOD, error="", **fields):
    curve = [float(i) for i in range(20)]
    curves = dict(components={"a": curve}, task_score=curve, episode_length=[5.0] * 20, reward=curve)
    known = dict(part="tune", every=3, answer=fence(text), curves=curves)
    return known | dict(generation=generation, index=index, score=score, text=text, error=error) | fields


def asked(server=None, **fields):
    chat = server and Chat(server.url)
    return Asked(**(dict(count=2, known=KNOWN, names=("x",), task="Go far.", chat=chat) | fields))


def test_a_file_of_texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\ufeff" + "".join(json.dumps({"reward": text}) + "\n\n" for text in (GOOD, BAD, "x", "y")))
    first, second = reward_proposals.from_file(asked(path=path), [])
    assert first == texts.Candidate(GOOD, "", GOOD) and second.error.startswith(f"{path}:3, line 1: 'np.exp' is no")
    rows = [row(0, 0, 1.0), row(0, 1, None, BAD, "no")]
    third, fourth = reward_proposals.from_file(asked(path=path), rows)
    assert third.text == "x" and not third.error and f"{path}:7" in fourth.error
    with pytest.raises(ValueError, match="generation 2 needs lines 5 to 6, it has 4"):
        reward_proposals.from_file(asked(path=path), [*rows, row(1, 0, 1.0), row(1, 1, 1.0)])
    path.write_text('{"text": "x"}\n')
    with pytest.raises(ValueError, match=r"texts\.jsonl:1 must be a JSON object with reward"):
        reward_proposals.from_file(asked(path=path), [])


def test_eureka_says_what_is_allowed_then_the_best_and_its_reflection_and_repairs_a_text():
    with scripted(fence("reward = x"), fence(BAD), fence("reward = next_x"), fence(GOOD), fence(GOOD)) as server:
        first, second = reward_proposals.eureka(asked(server), [])
        rows = [
            row(0, 0, 1.0),
            row(0, 1, 3.0, "b = x\nreward = 3 * b"),
            row(0, 2, None, BAD, "nan in 3 % of the steps"),
        ]
        reward_proposals.eureka(asked(server), rows)
    assert (first.text, first.rounds) == ("reward = x", 0) and (second.text, second.rounds) == ("reward = next_x", 1)
    opening, repair, later = bodies(server)
    system, task = (message["content"] for message in opening["messages"])
    assert opening["n"] == 2 and "names x, next_x, task_reward" in system and "obs[0] to obs[1]" in system
    assert "The task: Go far." in task and "`x` is obs[0] and `next_x` next_obs[0]" in task
    assert "generation 0, candidate 1, line 1: 'np.exp' is no function" in said(repair)
    assert [message["role"] for message in repair["messages"]] == ["system", "user", "assistant", "user"]
    assert repair["messages"][2]["content"] == fence(BAD)
    assert later["messages"][:2] == opening["messages"] and len(later["messages"]) == 4
    assert later["messages"][2]["content"] == fence("b = x\nreward = 3 * b")  # the best score's
    assert "after every 6 updates" in said(later)
    assert "a: 0.00, 2.00, 4.00, 6.00, 8.00, 10.00, 12.00, 14.00, 16.00, 18.00 (max 19.00, mean 9.50, min 0.00)" in (
        said(later)
    )
    assert "task_score: 0.00" in said(later) and "episode_length: 5.00" in said(later)
    assert "Of 3 rewards 1 could not be used:\n- nan in 3 % of the steps" in said(later)


def test_a_generation_of_which_nothing_trained_leaves_the_conversation_and_says_why():
    with scripted(*[fence(GOOD)] * 4) as server:
        rows = [row(0, 0, 1.0), row(0, 1, None, BAD, "no"), *(row(1, i, None, BAD, "bad again") for i in range(2))]
        reward_proposals.eureka(asked(server), rows)
        reward_proposals.eureka(asked(server), [row(0, i, None, BAD, "bad at once") for i in range(2)])
    later, first = bodies(server)
    assert later["messages"][2]["content"] == fence(GOOD) and "Of 2 rewards 2" in said(later)
    assert "bad again" in said(later)
    assert len(first["messages"]) == 2 and "bad at once" in said(first)


def test_icpl_shows_the_voted_good_and_bad_and_how_the_good_ones_changed(tmp_path):
    rows = [row(0, 0, 1.0, "reward = 1 * x"), row(0, 1, 2.0, "reward = 2 * x"), row(0, 2, None, BAD, "no")]
    rows += [row(1, 0, 9.0, "c = x\nreward = 3 * x"), row(1, 1, 0.0, "reward = 4 * x"), row(1, 2, 5.0)]
    path = tmp_path / "votes.jsonl"
    path.write_text('{"generation": 0, "best": 0, "worst": 1}\n')
    with scripted("It is steeper.", *[fence(GOOD)] * 6) as server:
        found = asked(server)
        reward_proposals.icpl(found, rows)
        reward_proposals.icpl(found, rows)  # the difference is asked for once
        reward_proposals.icpl(asked(server, path=path), rows[:3])
        with pytest.raises(ValueError, match=r'add {"generation": 1, "best": I, "worst": J}.*\[0, 1, 2\]'):
            reward_proposals.icpl(asked(server, path=path), rows)
        path.write_text('{"generation": 0, "best": 0, "worst": 2}\n')
        with pytest.raises(ValueError, match=r"generation 0 trained \[0, 1\], not \[0, 2\]"):
            reward_proposals.icpl(asked(server, path=path), rows[:3])
    question, by_score, again, by_people = (said(body) for body in bodies(server))
    assert by_score == again and question.index("3 * x") < question.index("2 * x") and "Go far." in question
    good, bad = by_score.split("liked the policy of this one least")
    assert "c = x\nreward = 3 * x" in good and "reward = 4 * x" in bad and "task_score" not in by_score
    assert "a: 0.00" in good and "How that of generation 1 differs from it: It is steeper." in good
    good, bad = by_people.split("liked the policy of this one least")
    assert "reward = 1 * x" in good and "reward = 2 * x" in bad and "differs" not in by_people


def test_text2reward_hears_a_person(tmp_path):
    path = tmp_path / "said.jsonl"
    lines = [{"generation": 0, "feedback": "Faster.", "candidate": 0, "description": "It stands still."}]
    rows = [row(0, 0, 1.0, "reward = 1 * x"), row(0, 1, 2.0), *(row(1, i, None, BAD, "nan") for i in range(2))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with scripted(*[fence(GOOD)] * 4) as server:
        reward_proposals.text2reward(asked(server), [])  # one shot
        reward_proposals.text2reward(asked(server, path=path), rows)
        with pytest.raises(ValueError, match=r'--feedback=FILE: add a line {"generation": 0'):
            reward_proposals.text2reward(asked(server), rows[:2])
        with pytest.raises(ValueError, match=r'said.jsonl: add a line {"generation": 2'):
            reward_proposals.text2reward(asked(server, path=path), [*rows, row(2, 0, 1.0)])
        for wrong in (2, 7, "0", True, [0]):  # generation 0 has a candidate 2, whose text was refused
            path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0] | {"candidate": wrong}]))
            with pytest.raises(
                ValueError, match=r'said.jsonl:2 has "candidate": .*, but generation 0 trained \[0, 1\]'
            ):
                reward_proposals.text2reward(asked(server, path=path), [*rows[:2], row(0, 2, None, BAD, "no")])
    once, later = bodies(server)
    assert len(once["messages"]) == 2 and later["messages"][2]["content"] == fence("reward = 1 * x")
    assert "one sees: It stands still.\nWhat should change: Faster." in said(later) and "- nan" in said(later)


def test_auto_mc_designs_is_criticised_and_reads_failed_episodes():
    design, revised = "sparse = task_reward\ndense = x", "sparse = task_reward\ndense = next_x - x"
    observations = {"shape": [1], "values": [[float(i)] for i in range(13)]}
    shown = dict(observations=observations, actions=[1] * 12, terminated=False, truncated=True)
    episodes = [shown | dict(generation=0, index=1, rewards=[paid] * 12) for paid in (0.0, 1.0, 0.25)]
    episodes.append(shown | dict(generation=0, index=0, rewards=[-7.0] * 12))
    rows = [row(0, 0, 1.0), row(0, 1, 2.0)]
    answers = ["It runs away.", fence(design), "dense pays for standing still.", fence(revised), "ACCEPT", "Not yet."]
    with scripted(*answers, fence(BAD), fence(BAD)) as server:
        found = asked(server, count=1, episodes=episodes, solved=6.0, names=("x",), rounds=3)
        (candidate,) = reward_proposals.auto_mc(found, rows)
        assert candidate.text == revised + "\nreward = sign(sparse) + 0.1 * sign(dense)" and not candidate.error
        assert candidate.rounds == 1 and len(server.left) == 3
        messages = [dict(role="user", content="?")]
        kept = reward_proposals.criticised(found._replace(rounds=1), messages, candidate, "it")
    assert kept.text == candidate.text and kept.rounds == 3  # a revision that is refused changes nothing
    analyst, designer, critic, revision, second = bodies(server)[:5]
    assert said(analyst).count("An episode of 12 steps") == 2  # those under 6 of candidate 1, the worst first
    assert said(analyst).index("return 0.000, cut off") < said(analyst).index("return 3.000")
    assert "step 3: x=2 -> x=3; action 1; task_reward 0" in said(analyst) and "step 2:" not in said(analyst)
    assert "sparse" in designer["messages"][0]["content"] and "read the episodes that failed: It runs" in said(designer)
    assert design in said(critic) and "reward = sign(sparse)" in said(critic)
    assert "A reviewer objects: dense pays" in said(revision) and revised in said(second)


def options(tmp_path, **fields):
    known = dict(workdir=tmp_path, proposals="eureka", task="Go.", url="", model="", temperature=1.0, max_tokens=99)
    known |= dict(generations=2, candidates=2, seeds=1, test_seeds=2, score="max", repairs=0, votes=None, beta=math.inf)
    return argparse.Namespace(**(known | dict(feedback=None, record=False, rounds=1, solved=math.inf, seed=0) | fields))


def test_a_search_with_a_server_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Training is a stand-in: what pays most is a factor near 3; a factor of 9 gives nan."""
    seen = []

    def trained(config, found, seeds, *, statistic, record):
        seen.append((list(found), [list(own) for own in seeds]))
        rows = [row(0, 0, -abs(float(text.split()[2]) - 3.0), text) for text in found]
        rows = [one | ({"error": "nan", "score": None} if " 9 " in one["text"] else {}) for one in rows]
        made = [{k: one[k] for k in ("text", "error", "score", "curves", "every")} for one in rows]
        return [one | {"scores": [1.0] * len(seeds[0])} for one in made], [[] for _ in found]

    monkeypatch.setattr(reward_code, "trained", trained)
    config = configs.get_config("corridor,smoke")
    config.algorithm.relabel.programs = ("reward = 1 * place",)
    answers = [fence(text) for text in ("reward = 2 * place", BAD, "reward = 9 * place", "reward = 4 * place")]
    with scripted(*answers[:2]) as server, pytest.raises(ValueError, match="chat server: .*no answer is left"):
        reward_code.run(config, options(tmp_path, url=server.url))  # its server has no answers to a second generation
    rows = [json.loads(line) for line in (tmp_path / "search.jsonl").read_text().splitlines()]
    assert [(one["score"], bool(one["error"])) for one in rows] == [(-1.0, False), (None, True)]
    with scripted(*answers[2:]) as server:
        tested = reward_code.run(config, options(tmp_path, url=server.url))
        assert reward_code.run(config, options(tmp_path, url=server.url)) == tested and len(bodies(server)) == 1
    assert "Of 2 rewards 1 could not be used" in said(bodies(server)[0])
    assert seen[:2] == [(["reward = 2 * place"], [[0]]), (["reward = 9 * place", "reward = 4 * place"], [[0], [0]])]
    assert seen[2] == (["reward = 2 * place", "reward = 1 * place"], [[1_000_000, 1_000_001]] * 2)
    assert [(one["name"], one["score"]) for one in tested] == [("found", -1.0), ("hand", -2.0)]
    assert "| found | -1.000 | 2 |" in reward_code.table(tested) and "reward = 2 * place" in reward_code.table(tested)
    rows = [json.loads(line) for line in (tmp_path / "search.jsonl").read_text().splitlines()]
    assert [(one["part"], one["error"]) for one in rows[2:4]] == [("tune", "nan"), ("tune", "")]
    assert len((tmp_path / "exchanges.jsonl").read_text().splitlines()) == 2


def test_a_search_killed_between_its_two_files_equals_one_that_was_not(tmp_path, monkeypatch):
    """It is killed after the episodes of generation 1 were written and before its rows."""

    def trained(config, found, seeds, *, statistic, record):
        own = {"error": "", "score": 1.0, "scores": [1.0], "curves": row(0, 0, 1.0)["curves"], "every": 3}
        return [own | {"text": text} for text in found], [[{"rewards": [float(text.split()[2])]}] for text in found]

    def search(folder, *answers):
        with scripted(*answers) as server:
            known = dict(url=server.url, generations=3, candidates=1, record=True)
            reward_code.run(config, options(folder, **known))

    def killed(path, rows):
        if rows and rows[0].get("generation") == 1:
            raise KeyboardInterrupt
        appended(path, rows)

    monkeypatch.setattr(reward_code, "trained", trained)
    config, appended = configs.get_config("corridor,smoke"), reward_code.append
    config.algorithm.relabel.programs = ("reward = 1 * place",)
    one, two, three = (fence(f"reward = {i} * place") for i in (1, 2, 3))
    search(tmp_path / "whole", one, two, three)
    monkeypatch.setattr(reward_code, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "killed", one, fence("reward = 9 * place"))
    assert '"rewards": [9.0]' in (tmp_path / "killed" / "episodes.jsonl").read_text()
    monkeypatch.setattr(reward_code, "append", appended)
    search(tmp_path / "killed", two, three)
    for name in ("episodes.jsonl", "search.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_episodes_of_a_killed_generation_are_not_shown_to_whoever_writes(tmp_path, monkeypatch):
    seen = []

    def propose(asked, rows):
        seen.append([episode["index"] for episode in asked.episodes])
        raise ValueError("enough")

    monkeypatch.setitem(reward_code.PROPOSERS, "eureka", propose)
    lines = [dict(generation=generation, index=i) for generation in (0, 1) for i in range(2)]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config, given = configs.get_config("corridor,smoke"), options(tmp_path, url="http://127.0.0.1:9")
    check_resumed(tmp_path / "search.jsonl", config, given, [], [])
    (tmp_path / "search.jsonl").write_text("".join(json.dumps(row(0, i, 1.0)) + "\n" for i in range(2)))
    with pytest.raises(ValueError, match="enough"):
        reward_code.run(config, given)
    assert seen == [[0, 1]]
    with pytest.raises(ValueError, match="  --temperature: 1.0 -> 0.5"):
        reward_code.run(config, options(tmp_path, url=given.url, temperature=0.5))
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match="settings.json: no settings were kept, as by older versions"):
        reward_code.run(config, given)


def test_what_a_search_refuses(tmp_path):
    config = configs.get_config("pendulum,smoke")
    for fields, complaint in [
        (dict(), "--proposals=eureka needs --url of a chat server and --task"),
        (dict(proposals="none.jsonl"), "neither eureka, icpl, text2reward, auto_mc nor a file"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            reward_code.run(config, options(tmp_path, **fields))
    with pytest.raises(ValueError, match="none of 2 rewards could be used"):
        reward_code.chosen(options(tmp_path), asked(), [row(0, i, None, BAD, "no") for i in range(2)])
    config.algorithm.relabel = dict(fn="")
    with pytest.raises(ValueError, match="needs a config of experiments.control.ppo with"):
        reward_code.run(config, options(tmp_path))
    with pytest.raises(ValueError, match="choose at most one environment, not car, pendulum"):
        configs.get_config("car,pendulum")


@pytest.mark.slow
def test_the_right_text_is_preferred_on_every_seed(tmp_path, monkeypatch):
    """A corridor of 12, 3,840 steps: a text that pays going right, one that pays going left, and broken ones."""
    quick = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", quick)
    config = configs.get_config("corridor,smoke")
    config.env.length = 12
    config.sample.update(num_envs=8, num_steps=32)
    config.network.hidden = (8,)
    config.train.update(total_steps=15 * 256, epochs=2, minibatches=2, optimizer=dict(learning_rate=0.02))
    config.update(log_every=5)
    config.checkpoint.every = 5
    config.eval.update(num_episodes=8, max_steps=48, greedy=False)
    lines = ["right = place - place_before\nreward = right", "reward = place_before - place"]
    lines += ["reward = log(-place)", "reward = place.mean()"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"reward": text}) + "\n" for text in lines))
    asked_for = options(tmp_path, proposals=str(path), candidates=4, seeds=3, score="last", record=True)
    found = reward_code.asked_of(config, asked_for)
    rows, episodes = reward_code.tuned(config, asked_for, reward_proposals.from_file(found, []), 0)
    right, left, nan, wrong = rows
    print(right["scores"], left["scores"])
    assert min(right["scores"]) > 0.9 and max(left["scores"]) < 0.1
    assert "nan or infinite in up to 100 %" in nan["error"] and nan["score"] is None
    assert "Attribute" in wrong["error"] or "no function" in wrong["error"]
    assert reward_code.chosen(asked_for, found, rows) == lines[0]
    assert len(right["curves"]["components"]["right"]) == len(right["curves"]["task_score"]) == 3
    assert right["curves"]["components"]["right"][-1] > right["curves"]["components"]["right"][0]
    assert [(one["generation"], one["index"]) for one in episodes] == [(0, i) for i in (0, 1, 2) for _ in range(3)]
    last = np.argmax(episodes[0]["observations"]["values"][-1])
    assert last == 12 and sum(episodes[0]["rewards"]) == 1.0
    assert "An episode of " in texts.trajectory(episodes[0], (), last=3)
