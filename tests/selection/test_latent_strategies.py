"""selection/latent_strategies.py and kuhn_talk.py (LSPO): k-means, CFR against Kuhn poker's, the judge's rewards."""

import functools
import itertools
import json
import random
import types

import numpy as np
import pytest

from experiments.parts import judges
from experiments.parts.judges import latent as latent_judge
from rl_jax.envs.text import kuhn, kuhn_talk
from rl_jax.selection import latent_strategies as latent
from rl_jax.selection.latent_strategies import Chance, Decision

PURE = dict.fromkeys(kuhn.equilibrium(), np.eye(2))  # a latent strategy for each move


def test_with_a_cluster_for_each_move_it_is_cfr_of_kuhn_poker():
    found, expected = latent.solve(kuhn_talk.tree(), PURE, rounds=150), kuhn.regret_matching(150)
    assert set(found.policy) == set(expected)
    np.testing.assert_allclose([found.policy[k][1] for k in expected], list(expected.values()), atol=1e-9)
    moves = latent.acted(found.policy, PURE)
    assert kuhn.value({k: p[1] for k, p in moves.items()}) == pytest.approx(-1 / 18, abs=0.01)
    even = dict.fromkeys(expected, np.full(2, 0.5))
    assert kuhn_talk.gap(moves) < 0.06 and kuhn_talk.gap(even) == pytest.approx(11 / 12)
    assert found.regrets["K"].shape == (2,) and found.regrets["Jb"][0] > found.regrets["Jb"][1] + 0.02
    assert found.regrets["Kpb"][1] > found.regrets["Kpb"][0] + 0.02, "a king calls"


def test_the_regret_of_one_round_by_hand():
    """One decision, and one hidden one: R(k) = pi_-i (v(k) - mean), for the first player and with the sign turned."""
    hidden = Decision(1, "right", (3.0, 1.0))
    game = Chance((0.25, 0.75), (Decision(0, "I", (2.0, hidden)), 5.0))
    effects = {"I": np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]), "right": np.eye(2)}
    found = latent.solve(game, effects, rounds=1)
    np.testing.assert_allclose(found.regrets["I"], 0.25 * (np.array([2.0, 2.0, 2.0]) - 2.0), atol=1e-12)
    np.testing.assert_allclose(found.regrets["right"], 0.25 * 0.5 * -(np.array([3.0, 1.0]) - 2.0))
    twice = latent.solve(game, effects, rounds=2)  # `right` now takes the second action: 1 in place of 2
    np.testing.assert_allclose(2 * twice.regrets["I"], 0.25 * (np.array([2.0, 1.5, 1.0]) - 1.5), atol=1e-12)
    np.testing.assert_allclose(twice.policy["right"], [0.25, 0.75])


# Moves by turns, chance below a decision, and an information set of two nodes.
TURNS = Decision(1, "a", (1, Decision(0, "b", (2.0, Decision(1, "c", (-1.0, Decision(0, "d", (0.5, 3))))))))
GAME = Chance((0.25, 0.75), (TURNS, Decision(0, "e", (Chance((0.5, 0.5), (4, -2.0)), Decision(1, "a", (0.0, -3.0))))))
MIXED = {
    "a": np.array([[0.9, 0.1], [0.5, 0.5], [0.0, 1.0]]),
    "b": np.array([[1.0, 0.0], [0.3, 0.7]]),
    "c": np.array([[0.2, 0.8], [0.9, 0.1]]),
    "d": np.eye(2),
    "e": np.array([[0.6, 0.4], [0.0, 1.0]]),
}


def endings(node, steps=()):
    """(steps, what player 0 gets) of each way through a game; a step is (player or None, name or chance, action)."""
    if isinstance(node, int | float):
        yield steps, node
        return
    for action, child in enumerate(node.children):
        known = (node.player, node.infoset) if isinstance(node, Decision) else (None, node.probs[action])
        yield from endings(child, (*steps, (*known, action)))


def chance_of(acts, step):
    player, name, action = step
    return name if player is None else acts[name][action]


def cfr_by_endings(game, effects, rounds):
    """Regrets and played strategies as sums over whole ways through the game, their probabilities as products."""
    regrets = {name: np.zeros(len(effects[name])) for name in effects}
    played = {name: np.zeros(len(effects[name])) for name in effects}
    for _ in range(rounds):
        said = {}
        for name, total in regrets.items():
            up = np.maximum(total, 0)
            said[name] = up / up.sum() if up.sum() else np.full(len(up), 1 / len(up))
        acts = {name: said[name] @ effects[name] for name in effects}
        chance = functools.partial(chance_of, acts)
        values, before = {name: np.zeros(len(said[name])) for name in effects}, {}
        for steps, gain in endings(game):
            for at, (player, name, action) in enumerate(steps):
                if player is None:
                    continue
                others = np.prod([chance(s) for s in steps[:at] if s[0] != player])
                after = np.prod([chance(s) for s in steps[at + 1 :]])
                values[name] += others * after * (gain if player == 0 else -gain) * effects[name][:, action]
                before[name, steps[:at]] = np.prod([chance(s) for s in steps[:at] if s[0] in (player, None)])
        for (name, _), reach in before.items():
            played[name] += reach * said[name]
        for name, value in values.items():
            regrets[name] += value - said[name] @ value
    policy = {name: x / x.sum() for name, x in played.items()}
    return {name: x / rounds for name, x in regrets.items()}, policy


@pytest.mark.parametrize("rounds", [1, 4])
def test_regrets_and_strategies_are_sums_over_whole_games(rounds):
    found = latent.solve(GAME, MIXED, rounds=rounds)
    regrets, policy = cfr_by_endings(GAME, MIXED, rounds)
    for name in MIXED:
        np.testing.assert_allclose(found.regrets[name], regrets[name], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.policy[name], policy[name], rtol=1e-12)


def test_what_no_game_comes_to_is_uniform_and_what_is_not_whole_is_refused():
    game = Decision(0, "x", (1.0, Decision(0, "y", (0, 2.0))))
    found = latent.solve(game, {"x": np.array([[1.0, 0.0]]), "y": np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])})
    np.testing.assert_allclose(found.policy["y"], 1 / 3)
    np.testing.assert_array_equal(found.policy["x"], [1.0])
    plain = latent.solve(TURNS, MIXED, rounds=300).regrets  # 300 rounds are the default
    np.testing.assert_array_equal(latent.solve(TURNS, MIXED).regrets["a"], plain["a"])
    with pytest.raises(ValueError, match="the information set 'y' needs effects of its 2 actions"):
        latent.solve(game, {"x": np.eye(2)})
    with pytest.raises(ValueError, match="zip"):
        latent.solve(Chance((0.5, 0.25, 0.25), (1.0, 2.0)), {})


def test_strategies_that_mix_moves_still_come_to_the_equilibrium():
    """Three clusters per card, one of which does both moves: the moves' gap falls as with pure ones."""
    mixed = dict.fromkeys(PURE, np.array([[1.0, 0.0], [0.4, 0.6], [0.1, 0.9]]))
    found = latent.solve(kuhn_talk.tree(), mixed, rounds=300)
    moves = latent.acted(found.policy, mixed)
    assert all(p.sum() == pytest.approx(1) for p in moves.values())
    best = [0.9 if p[1] > 0.9 - 1e-6 else p[1] for p in (moves["Kpb"], moves["Kb"])]
    assert best == pytest.approx([0.9, 0.9], abs=0.02), "as near to always as its words allow"
    with pytest.raises(ValueError, match="the information set 'J' needs effects of its 2 actions"):
        latent.solve(kuhn_talk.tree(), {**mixed, "J": np.eye(3)})


def test_k_means_finds_the_groups_and_stops_at_a_fixed_point():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 3, size=60)
    points = np.array([[0, 0], [5, 0], [0, 5]])[groups] + rng.normal(scale=0.3, size=(60, 2))
    labels = latent.clustered(points, 3)
    assert len(set(zip(groups, labels, strict=True))) == 3
    centres = np.stack([points[labels == k].mean(0) for k in range(3)])
    np.testing.assert_array_equal(labels, [np.argmin(((p - centres) ** 2).sum(1)) for p in points])
    assert set(latent.clustered(np.ones((4, 2)), 3)) == {0}, "equal points are one cluster"
    assert set(latent.clustered(np.array([[0.0], [0.0], [1.0]]), 5)) == {0, 1}
    assert latent.clustered(points, 1).tolist() == [0] * 60
    for wrong, clusters in ((points, 0), (points[:, 0], 2), (points[:0], 2)):
        with pytest.raises(ValueError, match="a cluster or more"):
            latent.clustered(wrong, clusters)


def test_k_means_by_hand():
    """The first centre is the point farthest from the mean, the next the one farthest from those before it."""
    line = np.array([[0], [1], [10], [11], [30]])
    assert latent.clustered(line, 3).tolist() == [1, 1, 2, 2, 0]
    assert latent.clustered(line, 2).tolist() == [1, 1, 1, 1, 0]
    # From the centres 10 and 0 the 4.9 is 0's; those of the first step, 8 and 1.2, give it to the other.
    line = np.array([[0.0], [0.0], [0.0], [4.9], [6.0], [10.0]])
    assert latent.clustered(line, 2, rounds=0).tolist() == [1, 1, 1, 1, 0, 0]
    for more in ({}, dict(rounds=1)):
        assert latent.clustered(line, 2, **more).tolist() == [1, 1, 1, 0, 0, 0]
    assert latent.clustered(np.array([[0.0], [1e-7]]), 2).tolist() == [0, 0], "equal but for rounding"
    assert latent.clustered(np.array([[0.0], [0.5]]), 2).tolist() == [0, 1]


def test_what_clusters_do_is_the_share_of_their_texts():
    found = latent.effects_of(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0]), 2)
    np.testing.assert_allclose(found, [[0.5, 0.5], [1 / 3, 2 / 3]])
    with pytest.raises(ValueError, match="of the same texts"):
        latent.effects_of(np.zeros(3, int), np.zeros(2, int), 2)


def rows(words):
    """Rows of all information sets, `words` of each."""
    sets = [name for name in kuhn.equilibrium() for _ in words]
    records = [{"prompt": f"{name}:", "info": json.dumps({"infoset": name})} for name in sets]
    return sets, types.SimpleNamespace(records=records, completions=list(words) * len(kuhn.equilibrium()))


def test_the_judge_pays_by_the_regret_of_a_texts_cluster():
    words = ("bbb", "b", "p", "ppp")
    sets, judged = rows(words)
    found = judges.latent_strategies(None, clusters=2, rounds=150)(judged)
    expected = latent.solve(kuhn_talk.tree(), PURE, rounds=150)
    pairs = zip(sets, judged.completions, strict=True)
    by_hand = [expected.regrets[name][kuhn_talk.bets(text)] for name, text in pairs]
    np.testing.assert_allclose(found.rewards, by_hand, atol=1e-6)
    groups = found.rewards.reshape(-1, 4)
    assert (groups[:, 0] == groups[:, 1]).all() and (groups[:, 2] == groups[:, 3]).all(), "one cluster, one reward"
    assert found.components["gap"][0] == pytest.approx(11 / 12) and found.components["latent_gap"][0] < 0.06
    assert (found.components["clusters"] == 2).all()
    by_policy = judges.latent_strategies(None, clusters=2, rounds=150, by="policy")(judged)
    np.testing.assert_allclose(
        np.exp(by_policy.rewards.reshape(-1, 4)[:, 0]), [expected.policy[n][1] + 1e-3 for n in sets[::4]], rtol=1e-4
    )


def test_the_judge_says_what_it_needs():
    _, judged = rows(("b", "p"))
    part = types.SimpleNamespace(records=judged.records[:4], completions=judged.completions[:4])
    with pytest.raises(ValueError, match="no text of the roles K in this batch: it needs all prompts"):
        judges.latent_strategies(None)(part)
    for wrong in (dict(by="value"), dict(clusters=1)):
        with pytest.raises(ValueError, match="by=.* clusters=. 2 or more"):
            judges.latent_strategies(None, **wrong)
    names = latent.infosets(kuhn_talk.tree())
    said = latent_judge.shares(["Jb", "Jb", "J"], np.array([0, 1, 1]), {"Jb": (1, 2), "Jp": (1, 2)}, kuhn_talk.game())
    np.testing.assert_allclose([said["Jb"], said["Jp"]], [[0.5, 0.5], [1 / 3, 2 / 3]])
    assert len(names) == 12 and {count for _, count in names.values()} == {2}


def test_the_words_of_the_game(tmp_path):
    assert [kuhn_talk.bets(text) for text in ("b", "b.b", "bpb", "", "p", "bp", "..")] == [1, 1, 1, 0, 0, 0, 0]
    np.testing.assert_allclose(kuhn_talk.embed(["b.b", "", "pp"]), [[2 / 3, 0], [0, 0], [0, 1]])
    drawn = {kuhn_talk.word(random.Random(seed)) for seed in range(2000)}
    assert drawn == {"".join(w) for n in (1, 2, 3) for w in itertools.product("bp.", repeat=n)}
    task = kuhn_talk.load(num_words=5, data_dir=str(tmp_path))
    assert [r["prompt"] for r in task.data_source("train")] == [f"{name}:" for name in kuhn.equilibrium()]
    assert len(task.data_source("sft_train")) == 5 and task.reward_fn is None
