"""experiments/tools/reward_search.py: its parts, and a whole search on a probe."""

import argparse
import json
import math
import sys

import pytest

from configs.control import reward_code, rewards
from experiments import studies
from experiments.parts import control_runs
from experiments.tools import reward_code as reward_code_tool
from experiments.tools import reward_search
from rl_jax.runs import disk


def options(tmp_path, **fields):
    known = dict(workdir=tmp_path, proposals="random", generations=2, candidates=3, seeds=1, test_seeds=2, seed=0)
    return argparse.Namespace(**(known | dict(beta=math.inf) | fields))


def rows_of(scores, start=0):
    return [{"weights": {"effort": float(start + i)}, "score": s, "part": "tune"} for i, s in enumerate(scores)]


def test_what_is_proposed_and_chosen(tmp_path):
    asked, hand = options(tmp_path), {"effort": 1.0}
    first = reward_search.proposed(asked, hand, [])
    assert first[0] == hand and len(first) == 3 and first == reward_search.proposed(asked, hand, [])
    rows = rows_of([1.0, 3.0, math.nan]) + rows_of([0.0, 2.0, 1.0], 10)
    assert reward_search.proposed(asked, hand, rows)[0] == {"effort": 1.0}  # the best of all
    assert reward_search.chosen(asked, rows) == {"effort": 1.0}
    votes = options(tmp_path, proposals="preference")
    assert reward_search.proposed(votes, hand, rows)[0] == {"effort": 11.0}  # the winner of the last generation
    assert reward_search.chosen(votes, rows) == {"effort": 11.0}
    path = tmp_path / "lines.jsonl"
    path.write_text("\ufeff" + "".join(json.dumps({"effort": i}) + "\n\n" for i in range(5)))
    given = options(tmp_path, proposals=str(path))
    assert reward_search.proposed(given, hand, []) == [{"effort": float(i)} for i in range(3)]
    with pytest.raises(ValueError, match="generation 1 needs lines 4 to 6"):
        reward_search.proposed(given, hand, rows[:3])
    path.write_text('{"effort": 1}\n{"other": 1}\n{"effort": 2}\n')
    with pytest.raises(ValueError, match=r"lines\.jsonl:2 must be a JSON object with a number for each of effort"):
        reward_search.proposed(given, hand, [])
    with pytest.raises(ValueError, match="neither random, preference nor a file"):
        reward_search.proposed(options(tmp_path, proposals="llm"), hand, [])
    with pytest.raises(ValueError, match="needs a config of experiments.control.ppo with"):
        reward_search.run(rewards.get_config("potential"), asked)


@pytest.mark.parametrize(
    ("tool", "config"),
    [
        (reward_search, lambda: rewards.get_config("residuals,smoke")),
        (reward_code_tool, lambda: reward_code.get_config("car,smoke")),
    ],
    ids=["weights", "texts"],
)
def test_one_process_at_a_time_searches_in_a_folder(tmp_path, monkeypatch, tool, config):
    """Before anything of it is read: the other's generation would be appended to rows that are not its own."""

    def refuse(folder):
        raise disk.InUseError(f"{folder} belongs to a run that is going on")

    monkeypatch.setattr(disk, "lock", refuse)
    monkeypatch.setattr(tool, "read_jsonl", lambda path: pytest.fail("read before the lock"))
    (tmp_path / "search.jsonl").touch()
    path = tmp_path / "texts.jsonl"
    path.touch()
    words = [f"--workdir={tmp_path}", f"--proposals={path}", "--config=x"]
    monkeypatch.setattr(tool, "load_config", lambda word: config())
    monkeypatch.setattr(sys, "argv", ["search", *words])
    with pytest.raises(SystemExit) as end:
        tool.main()
    assert end.value.code == 1


def test_a_search_goes_on_where_it_stopped_and_tests_on_seeds_of_its_own(tmp_path, monkeypatch):
    """Training is a stand-in: what pays most is a weight near 3."""
    config, seen = rewards.get_config("residuals,smoke"), []

    def trained(config, candidates, seeds):
        seen.append((len(candidates), list(seeds[0])))
        scores = [-abs(weights["effort"] - 3.0) for weights in candidates]
        rows = zip(candidates, scores, seeds, strict=True)
        return [{"weights": w, "score": s, "scores": [s] * len(own)} for w, s, own in rows]

    monkeypatch.setattr(reward_search, "trained", trained)
    asked = options(tmp_path, generations=2, candidates=4)
    tested = reward_search.run(config, asked)
    assert seen == [(4, [0]), (4, [0]), (2, [1_000_000, 1_000_001])]
    assert [row["name"] for row in tested] == ["found", "hand"] and len(tested[0]["scores"]) == 2
    assert tested[0]["score"] > tested[1]["score"] and "| found |" in reward_search.table(tested)
    again = reward_search.run(config, asked)
    assert len(seen) == 3 and again == tested
    for fields, complaint in [
        (dict(generations=3), "its 2 generations were tested already, and --generations=3"),
        (dict(candidates=2), "settings.json: made with other settings(.|\n)*--candidates: 4 -> 2"),
        (dict(seeds=7, test_seeds=9, seed=5), "--seed: 0 -> 5(.|\n)*--seeds: 1 -> 7(.|\n)*--test_seeds: 2 -> 9"),
        (dict(seeds=0), "--seeds=0 must be 1 or more"),
        (dict(candidates=0), "--candidates=0 must be 1 or more"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            reward_search.run(config, options(tmp_path, **(dict(generations=2, candidates=4) | fields)))
    other = rewards.get_config("residuals,smoke")
    other.train.optimizer.learning_rate = 0.5
    with pytest.raises(ValueError, match="  train.optimizer.learning_rate: .* -> 0.5"):
        reward_search.run(other, asked)
    rows = [json.loads(line) for line in (tmp_path / "search.jsonl").read_text().splitlines()]
    assert [row["part"] for row in rows] == ["tune"] * 8 + ["test"] * 2
    assert [row["generation"] for row in rows[:8]] == [0] * 4 + [1] * 4
    # Stopped after the first generation, it proposes the same second one.
    path = tmp_path / "search.jsonl"
    whole = path.read_text()
    path.write_text("".join(line + "\n" for line in whole.splitlines()[:4]))
    reward_search.run(config, asked)
    assert path.read_text() == whole


@pytest.mark.slow
def test_candidates_train_in_one_program(monkeypatch):
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", {"xla_backend_optimization_level": 0})
    config = rewards.get_config("residuals,smoke")
    config.sample.update(num_envs=4, num_steps=8)
    config.network.hidden = (8,)
    config.train.update(total_steps=4 * 32, epochs=1, minibatches=1)
    candidates = [{"effort": 0.0, "upright": 1.0}, {"effort": 9.0, "upright": 0.0}]
    found = reward_search.trained(config, candidates, [[0, 7]] * 2)
    assert [row["weights"]["effort"] for row in found] == [0.0, 9.0]
    assert all(set(row["terms"]) == {"upright", "effort"} and len(row["scores"]) == 2 for row in found)
    assert found[0]["scores"] != found[1]["scores"]


def test_the_study_tests_each_search_on_seeds_of_its_own(monkeypatch):
    """Training is a stand-in: what pays most is an effort near 3 times the hand-written one."""
    seen = []

    def trained(config, candidates, seeds):
        seen.append([tuple(own) for own in seeds])
        scores = [-abs(weights["effort"] / 0.001 - 3.0) for weights in candidates]
        return [{"weights": w, "score": s} for w, s in zip(candidates, scores, strict=True)]

    monkeypatch.setattr(reward_search, "trained", trained)
    sizes = dict(arms=dict(hand="written", found="searched"), generations=2, candidates=4, tuning=2, unseen=3)
    found = studies.searched_rewards((0, 5), config="rewards:residuals,smoke", fields={}, **sizes)
    tuned, again, tested = seen
    assert tuned == again == [(10_000, 10_001)] * 4 + [(10_010, 10_011)] * 4
    assert tested == [(1_000_000, 1_000_001, 1_000_002)] * 2 + [(1_000_015, 1_000_016, 1_000_017)] * 2
    hand, best = found.values["hand"], found.values["found"]
    assert list(hand["score"]) == list(hand["best"]) == pytest.approx([-2.0, -2.0])
    assert (best["score"] > hand["score"]).all() and (best["score"] == best["best"]).all()
    assert [step for step, _ in found.curves["tuning score"]["searched"]] == [1, 2]
