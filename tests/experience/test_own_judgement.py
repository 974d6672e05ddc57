"""Values that the policy gives its own episodes: their formula, the search by them, the pairs; hard prompts."""

import math
import random

import numpy as np
import pytest

from rl_jax.envs.text.graded import first_guess, overlap
from rl_jax.experience.own_judgement import by_judgement, graded_value, judged_pairs, node_values
from rl_jax.experience.trajectory import Trajectory, Turn, given, prompt, sampled
from rl_jax.experience.tree_search import ROOT, by_confidence, grown, paths
from rl_jax.preferences import episodes
from rl_jax.selection.hardest import hardest, perplexity


def episode(sample, said, value, guesses=None, parent=-1, shared=0, status="done"):
    """An episode that says these ids, a turn each; an observation of token 9 follows each turn but the last."""
    spans = [prompt([1, 2])]
    for ids in said:
        logs = np.float32([-0.1 * (1 + token) for token in ids])
        spans += [sampled(ids, logs, logs), given("observation", [9])]
    numbers = [{"guess": guess} for guess in guesses or [0.0] * len(said)]
    numbers[-1]["own_value"] = value
    turns = tuple(Turn(value if turn + 1 == len(said) else 0.0, "", told) for turn, told in enumerate(numbers))
    return Trajectory("p", 0, sample, (tuple(spans[:-1]),), turns, status, "", parent, shared)


def test_a_value_weighs_the_grades():
    probs = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0.5, 0.2, 0.2, 0.1], [0.1, 0, 0, 0]])
    wanted = [0.25, 0.025, -0.25, -0.5, (0.5 + 0.02 - 0.2 - 0.2) / 4, 0.025]
    np.testing.assert_allclose(graded_value(probs), wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="axis of 4 grades"):
        graded_value(probs[:, :3])


def test_a_first_guess_is_what_is_in_the_known_answer():
    right = "s eli c4*7 =28"
    assert first_guess("s eli", right, mark="=") == pytest.approx(-0.1 + 1 - 0.5)  # all of it, but not the end
    assert first_guess("=28", right, mark="=") == pytest.approx(0.1 + 1 - 0.5)
    assert first_guess("=27", right, mark="=") == pytest.approx(0.1 + 0 - 0.5)
    assert first_guess("s ann", right, mark="=") == pytest.approx(-0.1 + 0.5 - 0.5)
    assert first_guess(" ", right) == 0 and overlap("", right) == 0
    assert first_guess("[f(a=1)]", "[f(a=1)]") == pytest.approx(0.6)


def random_group(dice, count=9):
    """Episodes of three turns, most of which branch off an earlier one."""
    found, said = [], []
    for sample in range(count):
        parent = dice.randrange(sample) if sample > 2 and dice.random() < 0.8 else -1
        shared = dice.randrange(1, 3) if parent >= 0 else 0
        begun = said[parent][:shared] if parent >= 0 else []
        said.append([*begun, *([dice.randrange(4)] for _ in range(3 - shared))])
        guesses = [round(0.1 * token[0] - 0.2, 1) for token in said[-1]]
        found.append(episode(sample, said[-1], dice.uniform(-0.5, 0.25), guesses, parent, shared))
    return found


def test_without_guesses_and_with_rewards_as_values_it_is_the_search_by_confidence():
    for seed in range(20):
        found = random_group(random.Random(seed))
        plain = [one._replace(turns=tuple(turn._replace(numbers={**turn.numbers, "guess": 0.0}) for turn in one.turns))
                 for one in found]  # fmt: skip
        for explore in (0.0, 1.0):
            chosen = [rule(plain, 3, random.Random(1), explore=explore) for rule in (by_judgement, by_confidence)]
            assert chosen[0] == chosen[1]


def test_the_largest_value_is_followed():
    """Three answers to the prompt, as many as actions = 2 wants; then V / (n + 1) + c p sqrt(log N / (n + 1))."""
    values, guesses = np.array([0.1, -0.4, 0.2]), np.array([0.1, 0.6, -0.5])
    found = [episode(n, [[n], [5]], values[n], [guesses[n], 0.0]) for n in range(3)]
    confidence = np.exp(-0.1 * np.array([1, 2, 3]))
    best = []
    for explore in (0.0, 0.2, 9.0):
        scores = (guesses + values) / 2 + explore * confidence * math.sqrt(math.log(3) / 2)
        best.append(int(np.argmax(scores)))
        assert by_judgement(found, 1, random.Random(0), explore=explore) == [(best[-1], 1)]
    assert len(set(best)) == 1 == best[0] + 1  # p falls from the first to the last
    found[1] = episode(1, [[1], [5]], 0.2, [0.6, 0.0])
    assert by_judgement(found, 1, random.Random(0), explore=0.0) == [(1, 1)]
    with pytest.raises(ValueError, match="explore=-1"):
        by_judgement(found, 1, random.Random(0), explore=-1)
    rewarded = found[0]._replace(turns=(Turn(0.0), Turn(1.0)))
    with pytest.raises(ValueError, match="sample 0 of prompt 'p' has no judgement"):
        by_judgement([rewarded], 1, random.Random(0))


def pairs_loop(found, gap, least):
    """Pairs of a group as its code makes them from a tree of nodes. Plain loops."""
    nodes = {}  # node -> [parent, ids, context, V]
    for one, way in zip(found, paths(found), strict=True):
        ids = [tuple(span.ids.tolist()) for span in one.sampled()]
        for depth, node in enumerate(way):
            if node not in nodes:
                context = (1, 2)
                for said in ids[:depth]:
                    context += (*said, 9)
                parent, guess = way[depth - 1] if depth else ROOT, one.turns[depth].numbers["guess"]
                nodes[node] = [parent, ids[depth], context, guess]
            nodes[node][3] += one.turns[-1].numbers["own_value"]
    result = []
    for parent in {node[0] for node in nodes.values()}:
        rows = sorted((row for row in nodes.values() if row[0] == parent), key=lambda row: row[3])
        worst, best = rows[0], rows[-1]
        if len(rows) > 1 and worst[1] != best[1] and best[3] - worst[3] >= gap and best[3] >= least:
            result.append((best[2], [best[1], worst[1]], [best[3], worst[3]]))
    return sorted(result)


@pytest.mark.parametrize(("gap", "least"), [(0.1, -0.3), (1e-6, -9.0), (0.5, 0.1)])
def test_pairs_are_the_best_and_the_worst_child(gap, least):
    number = 0
    for seed in range(30):
        found = random_group(random.Random(seed))
        wanted, pairs = pairs_loop(found, gap, least), sorted(judged_pairs(found, gap=gap, least=least))
        assert [pair[:2] for pair in pairs] == [pair[:2] for pair in wanted]
        np.testing.assert_allclose([pair[2] for pair in pairs], [pair[2] for pair in wanted], rtol=1e-6)
        records = episodes.pairs_by_judgement(found, gap, least)
        assert [record["responses"][0]["ids"] for record in records] == [
            list(turns[0]) for _, turns, _ in judged_pairs(found, gap=gap, least=least)
        ]
        number += len(pairs)
    assert number > 10


def test_a_failed_episode_is_in_no_tree():
    failed = episode(2, [], 0.0, [0.0])._replace(turns=(), status="error")
    found = [episode(0, [[1]], 0.2), episode(1, [[2]], -0.5), failed]
    assert set(node_values(found)) == {(0, 0), (1, 0)} == set(grown(found).ended)
    assert judged_pairs(found) == [((1, 2), [(1,), (2,)], [pytest.approx(0.2), pytest.approx(-0.5)])]


def test_the_hardest_share_of_each_kind():
    values = np.array([3.0, 1.0, np.nan, 5.0, 2.0, 5.0, 4.0, 1.5])
    kinds = [True, True, True, False, True, True, False, False]
    for ratio in (0.1, 0.3, 0.5, 1.0):
        wanted = []
        for kind in (True, False):
            mine = sorted((-values[i], i) for i in range(8) if kinds[i] == kind and values[i] == values[i])
            wanted += [i for _, i in mine[: math.floor(ratio * len(mine))]]
        assert hardest(values, kinds, ratio=ratio).tolist() == wanted
    with pytest.raises(ValueError, match="ratio=0 must be above 0"):
        hardest(values, kinds, ratio=0)
    with pytest.raises(ValueError, match="1 kinds those of 8 prompts"):
        hardest(values, [True])


def test_perplexity_is_of_the_masked_tokens():
    log_probs = np.log(np.array([[0.5, 0.25, 0.1], [1.0, 1.0, 1e-9], [0.3, 0.3, 0.3]], np.float32))
    mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
    np.testing.assert_allclose(perplexity(log_probs, mask), [math.sqrt(8), 1.0, np.nan], rtol=1e-6)
