"""The judge latent_iterations and the game werewolf_talk (LSPO): iterations, their state, the rules of the game."""

import itertools
import json
import types

import numpy as np
import pytest

from configs.preferences import latent as latent_config
from experiments.parts import check_config, judges
from rl_jax.envs.text import kuhn_talk, werewolf_talk
from rl_jax.selection import game_values
from rl_jax.selection import latent_strategies as latent

SETUP = types.SimpleNamespace(mesh=None, config=types.SimpleNamespace(seed=0))
TABLES = {"fn": "solve", "rounds": 40}
KUHN = "rl_jax.envs.text.kuhn_talk:game"


def rows(game, texts, sets=None):
    """Rows of the spoken information sets, `texts` of each."""
    names = sets or [name for name in latent.infosets(game.root) if game.spoken(name)]
    records = [{"prompt": f"{name}:", "info": json.dumps({"infoset": name})} for name in names for _ in texts]
    rollout = types.SimpleNamespace(completion_mask=np.ones((len(records), 1), bool))
    return types.SimpleNamespace(records=records, completions=list(texts) * len(names), rollout=rollout)


def test_an_iteration_stays_until_the_next_one_which_has_more_clusters():
    game, first = kuhn_talk.game(), ("bbb", "b", "pp", "p..")
    judge = judges.latent_iterations(SETUP, game=KUHN, clusters=(2, 3), every=2, solver=TABLES)
    nothing = rows(game, first)
    nothing.rollout.completion_mask[:] = False  # what is compiled ahead
    assert not judge(nothing).rewards.any() and not judge.learner.arrays["solved"]
    found = judge(rows(game, first))
    effects = dict.fromkeys(latent.infosets(game.root), np.eye(2))
    expected = latent.solve(game.root, effects, rounds=40)
    names = list(effects)
    by_hand = [expected.regrets[name][kuhn_talk.bets(text)] for name, text in itertools.product(names, first)]
    np.testing.assert_allclose(found.rewards, by_hand, atol=1e-6)
    assert found.components["gap"][0] == pytest.approx(11 / 12) and found.components["clusters"][0] == 2
    assert found.components["latent_gap"][0] == pytest.approx(kuhn_talk.gap(expected.policy), abs=1e-5)
    # Other words are of the nearest cluster; nothing is solved anew within an iteration.
    other = rows(game, ("bb.", "."), ["K", "Jb"])
    by_hand = [expected.regrets[name][move] for name in ("K", "Jb") for move in (1, 0)]
    np.testing.assert_allclose(judge(other).rewards, by_hand, atol=1e-6)
    assert not judge.learner.due() and judge.learner.due()
    third = rows(game, ("bbb", "bb.", "ppp", "..."))
    assert judge.learn(third, None) == {"clusters": 3.0}
    again = judge(third)
    assert (again.components["iteration"] == 1).all() and (again.components["clusters"] == 3).all()
    assert (judge.learner.arrays["counts"] == 3).all() and len(set(again.rewards[:4].tolist())) == 2, "two of them fold"
    assert judge.learner.size == 3
    judge.learn(third, None)
    assert judge.learner.size == 3 and judge.learner.arrays["iteration"] == 2, "the last number stays"


def test_a_resumed_run_judges_the_same():
    game = werewolf_talk.game()
    options = dict(clusters=(2, 4), every=3, solver=TABLES | {"rounds": 10}, by="policy")
    one, other = (judges.latent_iterations(SETUP, **options) for _ in range(2))
    judged = rows(game, ("lll", "l.", "..", "rr"))
    before = one(judged)
    one.learner.due()
    other.learner.set_carried(one.learner.carried())
    assert other.learner.arrays["seen"] == 1
    after = other(rows(game, ("lll", "l.", "..", "rr")))
    np.testing.assert_array_equal(before.rewards, after.rewards)
    assert before.components.keys() == after.components.keys()
    for name, column in before.components.items():
        np.testing.assert_array_equal(column, after.components[name])
    # Votes are no texts: their strategies are their actions, and each has a share of its own.
    place = list(latent.infosets(game.root)).index("cV...?")
    assert one.learner.arrays["policy"][place].sum() == pytest.approx(1) and one.learner.arrays["counts"].max() == 2
    assert one.learner.arrays["policy"][place, 2:].sum() == 0
    np.testing.assert_array_equal(one._effects()["cV...?"], np.eye(2))


def test_what_cannot_be_is_refused():
    for wrong in (dict(by="value"), dict(every=0), dict(clusters=(1, 2)), dict(clusters=(3, 2)), dict(clusters=())):
        with pytest.raises(ValueError, match="latent_iterations: by=.*2 or more that do not fall"):
            judges.latent_iterations(SETUP, **wrong)
    with pytest.raises(ValueError, match="tables is a word of werewolf"):
        latent_config.get_config("tables")
    config = latent_config.get_config("werewolf,smoke")
    check_config.check(config)
    assert config.judge.strategies.every == config.algorithm.reference_schedule.every == 1
    assert config.name == "lspo_werewolf" and config.judge.strategies.solver.rounds == 3
    tables = latent_config.get_config("werewolf,tables,policy").judge.strategies
    assert (tables.solver.rounds, tables.by, tables.every) == (300, "policy", 20)


def test_the_rules_of_werewolf(tmp_path):
    assert [werewolf_talk.accuses(text) for text in ("l", "r.r", "lr", "", "...", "lrl")] == [1, 2, 0, 0, 0, 1]
    deal = ("S", "V", "W")
    assert [werewolf_talk.knows(deal, seat) for seat in range(3)] == ["aSr", "bV", "cW"]
    outcomes = {(2, 2, 0): 1, (2, 0, 0): -1, (2, 0, None): 0, (2, 0, 1): 0, (None, None, None): 0, (1, 2, 1): -1}
    assert {votes: werewolf_talk.outcome(deal, votes) for votes in outcomes} == outcomes
    sets = latent.infosets(werewolf_talk.tree())
    assert sum(map(werewolf_talk.spoken, sets)) == 52 and len(sets) == 133
    shown = {tuple(werewolf_talk.features(name)) for name in sets}
    assert len(shown) == 133 and {len(one) for one in shown} == {18}
    assert len({tuple(kuhn_talk.features(name)) for name in latent.infosets(kuhn_talk.tree())}) == 12
    # A seer who tells, a wolf who says nothing, and a villager who believes: the village always wins. Without: never.
    honest = {}
    for name, (_, count) in sets.items():
        act = {"S": "lr".find(name[2:3]) + 1, "W": 0, "V": 0}[name[1]]
        if not werewolf_talk.spoken(name):  # the accused seat, else the next one
            own, talk = "abc".index(name[0]), name[2:5]
            accused = [(seat + ".lr".index(word)) % 3 for seat, word in enumerate(talk) if word != "."]
            act = int(bool(accused) and (accused[0] - own) % 3 == 2)
        honest[name] = np.eye(count)[act]
    assert game_values.value(werewolf_talk.tree(), honest) == pytest.approx(1.0)
    silent = honest | {name: np.eye(3)[0] for name in sets if name[1] == "S" and werewolf_talk.spoken(name)}
    assert game_values.value(werewolf_talk.tree(), silent) == 0
    task = werewolf_talk.load(num_words=5, data_dir=str(tmp_path))
    prompts = [record["prompt"] for record in task.data_source("train")]
    assert len(prompts) == 52 and prompts[0] == "aW:" and max(map(len, prompts)) == 6
    with pytest.raises(ValueError, match="num_words=0"):
        werewolf_talk.load(num_words=0, data_dir=str(tmp_path))
