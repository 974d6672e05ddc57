"""Sources of prompts: the law of each, restored states, bad input."""

import collections
import itertools
import json
import math

import numpy as np
import pytest

from rl_jax.core.binding import bind, public_functions
from rl_jax.data import pipeline
from rl_jax.experience import Feedback, PromptTable, sources, transfer
from rl_jax.experience.sources.base import draw, effective
from rl_jax.experience.sources.learned import text_features

COUNT = 24
RECORDS = [
    {
        "prompt": f"{index % 3}+{index}=",
        "completion": "",
        "info": json.dumps({"difficulty": index // 6, "source": "ab"[index % 2], "name": f"p{index}"}),
    }
    for index in range(COUNT)
]
TABLE = PromptTable(RECORDS)


def told(indices, success, rewards=None, lengths=None) -> Feedback:
    """Feedback of groups with these successes, [n, G]."""
    success = np.asarray(success, np.float32)
    rewards = success if rewards is None else np.asarray(rewards, np.float32)
    texts = [[f"{i}.{j}" for j in range(success.shape[1])] for i in indices]
    lengths = np.full(success.shape, 3) if lengths is None else np.asarray(lengths)
    return Feedback(np.asarray(indices), [f"id{i}" for i in indices], rewards, success, lengths, texts)


MOVING = {
    "by_success": {},
    "softmax": {},
    "thompson": {},
    "prioritised": dict(by="variance"),
    "staged": dict(steps=5),
    "promoted": dict(threshold=0.4, patience=1),
    "hard_later": dict(steps=2),
    "one_level_after_another": dict(column="difficulty", steps=2),
    "learned_value": dict(columns=("difficulty",), features=8),
    "by_transfer": dict(column="difficulty", steps=2, budget=3),
    "mixture": dict(weights={"a": 3.0, "b": 1.0}),
    "exp3": {},
    "learning_progress": {},
    "shuffled": {},
    "ordered": {},
    "uniform": {},
}


def made(name: str, seed: int = 3, **keywords):
    return bind({"fn": name, **MOVING.get(name, {}), **keywords}, sources, seed=seed)(TABLE)


def play(source, steps: int, first: int = 0):
    """The batches of `steps` steps with feedback that depends on the step and the prompts."""
    batches = []
    for step in range(first, first + steps):
        chosen = source.take(8)
        batches.append(chosen.tolist())
        source.feedback(told(chosen, [[(i * 7 + step) % 3 == 0, (i + step) % 2] for i in chosen]))
    return batches


def test_every_source_is_tested_below():
    assert set(public_functions(sources)) == set(MOVING)


@pytest.mark.parametrize("name", MOVING)
def test_a_restored_source_goes_on_exactly(name):
    source = made(name)
    batches = play(source, 5)
    assert all(len(batch) == 8 and 0 <= min(batch) <= max(batch) < COUNT for batch in batches)
    state, metrics = json.loads(json.dumps(source.state(), allow_nan=False)), source.metrics()
    rest = play(source, 6, first=5)
    other = made(name)
    play(other, 2)  # wherever it stands
    other.restore(state)
    of_a_step = {key for key in metrics if key.endswith(("/success", "/prompts", "value_error"))}
    assert other.state() == state and set(metrics) - of_a_step <= set(other.metrics())
    assert play(other, 6, first=5) == rest, "not the same prompts"
    assert other.state() == source.state()
    assert state == json.loads(json.dumps(state)) != source.state(), "the state that was saved has moved on"
    assert play(made(name), 5) == batches
    if name != "ordered":
        assert play(made(name, seed=4), 5) != batches


@pytest.mark.parametrize("name", sorted(set(MOVING) - {"ordered", "shuffled", "uniform"}))
def test_weights_are_of_the_next_draw(name):
    source = made(name)
    play(source, 4)
    weights = source.weights()
    if name in ("thompson", "learned_value"):
        assert weights is None
        return
    assert weights.shape == (COUNT,) and np.isfinite(weights).all() and weights.min() >= 0 < weights.max()
    assert set(source.take(8)) <= set(np.flatnonzero(weights)) and 1 <= effective(weights) <= COUNT


def test_a_state_of_another_source_or_of_other_records_is_refused():
    with pytest.raises(ValueError, match="resume with the sample.prompts of the run"):
        made("by_success").restore(made("shuffled").state())
    other = sources.by_success(PromptTable(RECORDS[:5]))
    with pytest.raises(ValueError, match=r"successes is of \(24,\) prompts, but there are \(5,\): the task's records"):
        other.restore(made("by_success").state())


def test_shuffled_is_the_order_of_the_plain_iterator():
    plain = pipeline.train_iterator(range(COUNT), batch_size=7, seed=11)
    source = sources.shuffled(TABLE, seed=11)
    for _ in range(9):
        assert source.take(7).tolist() == next(plain)


def test_ordered_and_uniform():
    assert sources.ordered(TABLE).take(26).tolist() == [*range(24), 0, 1]
    counts = np.bincount(np.concatenate([made("uniform", seed).take(240) for seed in range(50)]), minlength=COUNT)
    assert abs(counts / counts.mean() - 1).max() < 0.2 and len(set(made("uniform").take(24).tolist())) < COUNT


def test_a_draw_is_proportional_without_repetition():
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    random, pairs = np.random.default_rng(0), collections.Counter()
    for _ in range(20_000):
        pairs[tuple(draw(random, weights, 2).tolist())] += 1
    for a, b in itertools.permutations(range(1, 4), 2):  # one after the other
        expected = weights[a] / 8 * weights[b] / (8 - weights[a])
        assert abs(pairs[a, b] / 20_000 - expected) < 4 * math.sqrt(expected / 20_000)
    assert sum(pairs.values()) == sum(pairs[p] for p in itertools.permutations(range(1, 4), 2))
    repeated = draw(random, np.array([0.0, 1.0, 3.0, 0.0]), 10_000)
    assert set(repeated) == {1, 2} and abs(np.mean(repeated == 2) - 0.75) < 0.02
    for bad in ([0.0, 0.0], [1.0, -1.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="must be finite, 0 or more"):
            draw(random, np.array(bad), 1)


def test_weights_by_success():
    source, soft = sources.by_success(TABLE), sources.softmax(TABLE, temperature=0.1, decay=1.0)
    np.testing.assert_array_equal(source.weights(), 1.0)  # not seen counts as .5
    for made_one in (source, soft):
        made_one.feedback(told([0, 1, 2, 1], [[1, 0], [1, 1], [0, 0], [1, 1]]))
    p = np.array([1.5 / 3, 4.5 / 5, 0.5 / 3])
    np.testing.assert_allclose(source.estimate()[:3], p)
    np.testing.assert_allclose(source.weights()[:3], 4 * p * (1 - p))
    np.testing.assert_allclose(soft.weights()[:3], np.exp((0.5 - p) / 0.1))
    assert source.weights()[0] == soft.weights()[0] == 1.0, "weight 1 at success .5"
    assert source.metrics() == {"visited": 3 / 24, "estimate": pytest.approx(p.mean())}
    spo = sources.by_success(TABLE, power=0.5, floor=0.1)
    spo.feedback(told([0], [[1, 1]]))
    np.testing.assert_allclose(spo.weights()[0] / 2, math.sqrt(2.5 / 3 * 0.5 / 3) + 0.05)  # SPO's sqrt(p(1-p)) + .05
    forgets = sources.by_success(TABLE, decay=0.5)
    forgets.feedback(told([0], [[1, 1]]))
    forgets.feedback(told([0, 0], [[0, 0], [0, 0]]))
    np.testing.assert_array_equal([forgets.successes[0], forgets.failures[0]], [1.0, 4.0])


def test_tasks_are_weighed_by_their_own_success():
    """VLA-RL: p(task) ~ exp((.5 - success) / temperature), whatever the number of a task's prompts."""
    records = [{"prompt": str(i), "info": json.dumps({"task": "lift" if i < 3 else "push"})} for i in range(12)]
    source = sources.softmax(PromptTable(records), temperature=0.5, column="task", prior=1e-9)
    np.testing.assert_allclose(source.weights()[[0, 3]], [1 / 3, 1 / 9])
    source.feedback(told([0, 1, 5], [[1, 1], [1, 0], [1, 0]]))
    shares = [source.weights()[:3].sum(), source.weights()[3:].sum()]
    np.testing.assert_allclose(shares, [math.exp((0.5 - 0.75) / 0.5), 1.0], rtol=1e-6)
    assert source.kinds == ["lift", "push"] and source.visits.tolist() == [2, 1]
    taken = np.concatenate([source.take(1) for _ in range(4000)])
    assert abs(np.mean(taken < 3) - shares[0] / sum(shares)) < 0.03


def test_thompson_draws_from_its_counts():
    source = sources.thompson(TABLE, target=0.5, seed=0)
    for _ in range(200):
        source.feedback(told(range(12), [[1, 0]] * 12))
        source.feedback(told(range(12, 24), [[1, 1]] * 12))
    assert set(source.take(12)) == set(range(12))
    state = source.state()
    assert (state["successes"][0], state["failures"][0], state["successes"][23]) == (200.0, 200.0, 400.0)
    drawn = np.random.default_rng([0, 2]).beta(source.successes + 1, source.failures + 1)
    np.testing.assert_array_equal(source.take(5), np.argsort(np.abs(drawn - 0.5), kind="stable")[:5])


def test_prioritised_by_what_the_last_group_could_teach():
    source = sources.prioritised(TABLE, power=2.0, floor=0.5)
    np.testing.assert_array_equal(source.weights(), 1.5**2)
    source.feedback(told([3, 4], [[1, 0], [1, 1]], rewards=[[2.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(source.weights()[3:6], [2.25, 0.25, 2.25])  # 1, 0, and not seen as the highest so far
    variance = sources.prioritised(TABLE, by="variance", floor=0.01)
    variance.feedback(told([0], [[1, 0]], rewards=[[3.0, 0.0]]))
    np.testing.assert_allclose(variance.weights()[0], 2.25 + 0.01)


def test_stages_grow_linearly():
    source, allowed = sources.staged(TABLE, column="difficulty", steps=4, start=0.25), []
    for _ in range(6):
        allowed.append(np.count_nonzero(source.weights()))
        taken = source.take(4)
        assert max(taken) < allowed[-1], "harder prompts came before their time"
    assert allowed == [6, 11, 15, 20, 24, 24]  # ceil(24 (.25 + .75 t / 4))
    measured = sources.staged(TABLE, steps=10, start=0.1)
    measured.feedback(told([20, 21, 22], [[1, 1]] * 3))
    assert set(np.flatnonzero(measured.weights())) == {20, 21, 22}
    assert np.all(sources.staged(TABLE, start=1.0).weights() == 1.0)


def test_levels_follow_each_other():
    source = sources.one_level_after_another(TABLE, column="difficulty", steps=2)
    values, levels = TABLE.numbers("difficulty"), []
    for _ in range(7):
        levels.append(set(values[source.take(3)]))
    ordered = sorted(set(values))
    assert levels == [{ordered[min(n // 2, len(ordered) - 1)]} for n in range(7)]


def test_the_next_level_comes_at_the_threshold():
    source = sources.promoted(TABLE, threshold=0.75, patience=2, review=0.5)
    assert set(np.flatnonzero(source.weights())) == set(range(6))
    for success, level in (((1, 0), 0), ((1, 1), 1), ((1, 1), 1), ((0, 1), 2)):
        at = [source.level * 6]
        source.feedback(told(at, [success]))
        assert source.level == level, success
    assert source.metrics() == {"level": 2.0, "difficulty": 2.0}
    weights = source.weights()
    np.testing.assert_allclose([weights[:12].sum(), weights[12:18].sum(), weights[18:].sum()], [0.5, 0.5, 0.0])
    source.feedback(told([0], [(1, 1)]))
    assert source.window == [], "prompts of earlier levels say nothing about this one"
    source.feedback(told([12], [(1, 1)])), source.feedback(told([12], [(1, 1)]))
    for _ in range(4):
        source.feedback(told([18], [(1, 1)]))
    assert source.level == 3, "there is none after the last"
    never = sources.promoted(TABLE, threshold=1.1, patience=1)
    never.feedback(told([0], [(1, 1)]))
    assert never.level == 0


def test_only_hard_prompts_later():
    source = sources.hard_later(TABLE, steps=1, below=0.5, above=0.1)
    source.feedback(told(range(22), [[1, 1]] * 20 + [[0, 0, 0, 1][:2], [0, 0]]))
    source.feedback(told([20], [[0, 1]]))
    assert np.all(source.weights() == 1.0)
    source.take(4)
    assert set(np.flatnonzero(source.weights())) == {20, 22, 23}  # .25, and two that were not seen


def test_a_learned_value_finds_prompts_of_middling_success():
    source = sources.learned_value(TABLE, columns=("difficulty",), features=0, candidates=3, ridge=1e-6, decay=1.0)
    np.testing.assert_allclose(source.values(np.arange(COUNT)), 0.5)
    levels = [[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]  # success 1, 2/3, 1/3, 0: linear in the column
    source.feedback(told(range(COUNT), [levels[i // 6] for i in range(COUNT)]))
    np.testing.assert_allclose(source.values(np.arange(0, 24, 6)), [1, 2 / 3, 1 / 3, 0], atol=1e-5)
    assert source.metrics()["value_error"] == pytest.approx((0.5 + 1 / 6) / 2)
    assert set(source.take(8)) <= set(range(6, 18))
    plain = sources.learned_value(TABLE, candidates=1, seed=5)
    np.testing.assert_array_equal(plain.take(8), draw(np.random.default_rng([5, 1]), np.ones(24), 8))  # uniform
    features = text_features("3+4=", 16)
    np.testing.assert_allclose(np.linalg.norm(features), 1.0)
    assert not np.array_equal(features, text_features("4+3=", 16)) and not text_features("", 16).any()


def test_the_most_signal_is_at_success_half():
    """E sum A^2 = (G - 1) p (1 - p) for a group of G Bernoulli(p) rewards, A = R - mean: the weights' reason."""
    size = 4

    def expected(p):
        total = 0.0
        for rewards in itertools.product([0, 1], repeat=size):
            chance = math.prod(p if r else 1 - p for r in rewards)
            total += chance * np.sum((np.array(rewards) - np.mean(rewards)) ** 2)
        return total

    for p in (0.0, 0.1, 0.5, 0.8):
        np.testing.assert_allclose(expected(p), (size - 1) * p * (1 - p), atol=1e-12)
        np.testing.assert_allclose(expected(p) / expected(0.5), 4 * p * (1 - p), atol=1e-12)


def test_a_mixture_keeps_its_shares_and_loses_no_prompt():
    source = sources.mixture(TABLE, weights={"a": 3.0, "b": 1.0})
    taken = np.concatenate([source.take(8) for _ in range(8)])
    assert np.mean(taken % 2 == 0) == 0.75, "exactly, in every batch of a multiple of 4"
    assert sorted(taken[taken % 2 == 0]) == sorted(np.resize(np.arange(0, 24, 2), 48)), "an epoch has every prompt once"
    alone = sources.mixture(TABLE, weights={"b": 1.0})
    assert set(alone.take(12)) == set(range(1, 24, 2)) and np.count_nonzero(alone.weights()) == 12
    by_level = sources.mixture(TABLE, column="difficulty")
    assert by_level.names == ["0", "1", "2", "3"]
    by_level.feedback(told([0, 1, 23], [[1, 0], [1, 1], [0, 0]]))
    metrics = by_level.metrics()
    assert (metrics["0/prompts"], metrics["0/success"], metrics["3/success"], metrics["1/prompts"]) == (2, 0.75, 0, 0)
    assert "1/success" not in metrics and metrics["1/share"] == 0.25


def test_exp3_is_its_formula():
    source = sources.exp3(TABLE, rate=0.2)
    np.testing.assert_allclose(source.probabilities(), [0.5, 0.5])
    source.feedback(told([0, 2, 1, 3], [[1, 0], [1, 1], [0, 0], [0, 0]]))  # learnability 1, 0 of a; 0, 0 of b
    weights = np.exp([0.2 / 2 * (1.0 / 4 / 0.5), 0.0])
    np.testing.assert_allclose(source.probabilities(), 0.8 * weights / weights.sum() + 0.1)
    for _ in range(400):
        source.feedback(told([0, 1], [[1, 0], [1, 1]]))
    np.testing.assert_allclose(source.probabilities(), [0.9, 0.1], atol=1e-4)


def test_learning_progress_follows_what_moves():
    source = sources.learning_progress(TABLE, floor=0.2, temperature=0.05, fast=0.5, slow=0.9)
    source.feedback(told([0], [[0, 0]]))
    np.testing.assert_allclose(source.probabilities(), [0.5, 0.5])  # b was not seen
    source.feedback(told([0, 1], [[1, 1], [1, 1]]))
    scores = np.array([0.5 - 0.1, 0.0]) / 0.05
    expected = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(source.probabilities(), 0.8 * expected + 0.1)


def test_the_next_context_by_brute_force():
    contexts, slope = np.linspace(0.0, 10.0, 11), 0.1
    options = dict(slope=slope, explore=0.0, length_scale=3.0)
    assert transfer.next_context(contexts, [], [], **options) == 5, "the middle"
    for trained in ([5], [0], [2, 9]):
        found = transfer.next_context(contexts, trained, [0.8] * len(trained), **options)
        covered = [
            np.mean([max(0.8 - slope * abs(contexts[s] - x) for s in [*trained, other]) for x in contexts])
            for other in range(11)
        ]
        assert found == int(np.argmax(covered)), trained
    mean, deviation = transfer.posterior(contexts, np.array([5]), np.array([0.8]), length_scale=3.0, noise=0.1)
    np.testing.assert_allclose(mean, 0.8)
    assert np.argmin(deviation) == 5 and deviation[0] > deviation[4]
    with pytest.raises(ValueError, match="all 2 contexts"):
        transfer.next_context(np.array([0.0, 1.0]), [0, 1], [1.0, 1.0], **options)


def test_three_chosen_contexts_cover_more_than_random_ones():
    """MBTL's own comparison, with a known law of transfer: J(x) - slope |x - x'|."""
    contexts = np.linspace(0.0, 1.0, 25)
    slope, totals = 1.2, {"chosen": [], "random": []}

    def value(trained, skill):
        return np.mean(np.max([skill[s] - slope * np.abs(contexts - contexts[s]) for s in trained], axis=0))

    for seed in range(20):
        random = np.random.default_rng(seed)
        skill = 0.7 + 0.1 * np.sin(5 * contexts + random.uniform(0, 6))
        trained = []
        for _ in range(3):
            performance = skill[trained]
            trained.append(transfer.next_context(contexts, trained, performance, slope=slope, length_scale=0.3))
        totals["chosen"].append(value(trained, skill))
        totals["random"].append(np.mean([value(random.choice(25, 3, replace=False), skill) for _ in range(50)]))
    gains = np.subtract(totals["chosen"], totals["random"])
    assert np.all(gains > 0)


def test_the_length_scale_is_a_share_of_the_range_of_contexts():
    """Red before: contexts from 0 to .1 had the length scale of a range of 1, so that all of them looked alike."""
    visited = {}
    for unit in (1.0, 0.01):
        records = [{"prompt": str(i), "info": json.dumps({"place": unit * (i % 11)})} for i in range(44)]
        source = sources.by_transfer(PromptTable(records), column="place", steps=1, budget=4, slope=0.01 / unit)
        visited[unit] = []
        for success in ([1, 0], [0, 0], [1, 1], [1, 0]):
            chosen = source.take(4)
            visited[unit].append(sorted({int(i) % 11 for i in chosen}))
            source.feedback(told(chosen, [success] * 4))
    assert visited[1.0] == visited[0.01] and len({tuple(one) for one in visited[1.0]}) == 4


def test_contexts_are_trained_one_after_the_other():
    source, visited = sources.by_transfer(TABLE, column="difficulty", steps=2, budget=2, slope=0.2), []
    for _ in range(5):
        chosen = source.take(3)
        visited.append(sorted({int(i) // 6 for i in chosen}))
        source.feedback(told(chosen, [[1, 0]] * 3))
    assert visited[0] == visited[1] == [1] and visited[2] == visited[3] == [3]
    assert source.metrics() == {"contexts": 2.0} and source.performance == [0.5, 0.5]
    assert set(np.flatnonzero(source.weights()) // 6) == {1, visited[2][0]}


@pytest.mark.parametrize(("name", "keywords", "said"), [
    ("staged", dict(column="level"), "record 0, field 'level': it is missing; its info has difficulty, name, source"),
    ("promoted", dict(column="name"), "record 0, field 'name': 'p0' must be a finite number"),
    ("mixture", dict(weights={"a": 1.0, "c": 1.0}), "names the sources c, but field 'source' of .* has: a, b"),
    ("mixture", dict(weights={"a": -1.0}), "must be 0 or more and not all 0"),
    ("by_success", dict(power=0.0), "power must be above 0"),
    ("softmax", dict(temperature=0.0), "temperature must not be 0"),
    ("prioritised", dict(by="loss"), "by must be one of advantage, variance"),
    ("staged", dict(start=0.0), "start must be above 0"),
    ("promoted", dict(patience=0), "patience must be 1 or more"),
    ("one_level_after_another", dict(steps=0), "steps=0 of each level must be 1 or more"),
    ("exp3", dict(rate=0.0), "rate must be above 0"),
    ("learned_value", dict(candidates=0), "candidates must be 1 or more"),
    ("by_transfer", dict(steps=0), "steps must be 1 or more"),
    ("learning_progress", dict(slow=1.0), "0 <= fast <= slow < 1"),
    ("thompson", dict(prior=0.0), "prior must be above 0"),
    ("by_sucess", {}, "has no function 'by_sucess'; it has: by_success, by_transfer"),
    ("softmax", dict(tau=1.0), "takes no keyword 'tau'; it takes: column, decay, prior, seed, target, temperature"),
])  # fmt: skip
def test_bad_input_is_named(name, keywords, said):
    with pytest.raises(ValueError, match=said):
        made(name, **keywords)
