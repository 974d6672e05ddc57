"""preferences/generated.py: each record is held to what it says, computed here anew from its texts."""

import collections
import itertools
import math
import re

import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.losses.preference import offsets, scales
from rl_jax.preferences import generated
from rl_jax.rewards import lexicon

WORLDS = tuple(generated.WORLDS)


def load(folder, **settings):
    return preferences.load("generated", **{"num_prompts": 120, "data_dir": str(folder)} | settings)


def rows(found, *splits):
    sources = [found.data_source(split) for split in splits or ("train", "test")]
    return [source[i] for source in sources for i in range(len(source))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


def totals(prompt):
    """The running totals of a sum, from its text."""
    return list(itertools.accumulate(int(term) for term in re.findall(r"[+-]?\d+", prompt)))[1:]


def grade_of_sum(prompt, response):
    """The share of totals before the first wrong one."""
    right, said = totals(prompt), [int(text) for text in response.split("=")]
    assert len(said) == len(right)
    return next((i / len(right) for i, (a, b) in enumerate(zip(said, right, strict=True)) if a != b), 1.0)


def grade_of(world, prompt, response, user=None):
    """A response's grade for a user, from the texts alone."""
    if world == "sums":
        return grade_of_sum(prompt, response)
    if world == "moods":
        return lexicon.text_score(response)
    given, numbers = ([int(text) for text in side.rstrip(":").split()] for side in (prompt, response))
    if world == "order":
        assert sorted(numbers) == sorted(given)
        grade = np.mean([a < b for a, b in itertools.combinations(numbers, 2)])
    else:
        assert numbers == given[: len(numbers)]
        grade = 1 - (len(numbers) - 1) / (len(given) - 1)
    return grade if user == 0 else 1 - grade


@pytest.mark.parametrize("world", WORLDS)
def test_the_grades_are_those_of_the_texts(folder, world):
    for kind in ("pairs", "rankings", "labels"):
        for record in rows(load(folder, world=world, kind=kind)):
            user = record["info"].get("user")
            graded = [grade_of(world, record["prompt"], text, user) for text in record["responses"]]
            assert record["info"]["grades"] == pytest.approx(graded)
            if kind == "pairs":
                assert record["margin"] == pytest.approx(graded[0] - graded[1]) and graded[0] > graded[1]
                assert record["label_prob"] == 1.0 and record["rewards"] == pytest.approx(graded)
            elif kind == "rankings":
                assert record["rewards"] == pytest.approx(graded) and len(graded) == 4
                assert all(a > b + 0.1 for a, b in itertools.pairwise(graded))


@pytest.mark.parametrize("world", WORLDS)
def test_methods_of_graded_pairs_are_not_dpo_on_them(folder, world):
    """MM-DPO's beta' = beta (1 + w (1 - e^{-k delta})) and ODPO's offset follow the gap of each pair's grades."""
    rewards = np.float32([record["rewards"] for record in rows(load(folder, world=world))])
    gaps = rewards[:, 0] - rewards[:, 1]
    adapted = scales.reward_adapted(0.1, rewards=rewards, weight=0.5, rate=0.5)
    np.testing.assert_allclose(adapted, 0.1 * (1 + 0.5 * (1 - np.exp(-0.5 * gaps))), rtol=1e-5)
    offset = offsets.log_reward_gap(np.ones((len(rewards), 2), bool), rewards=rewards)
    assert np.ptp(adapted) > 0.01 and np.ptp(offset[:, 0]) > 0.5


@pytest.mark.parametrize("kind", ["pairs", "rankings", "labels"])
def test_sums_are_right_and_wrong(folder, kind):
    for record in rows(load(folder, kind=kind)):
        answer = totals(record["prompt"])[-1]
        right = [int(text.rpartition("=")[2]) == answer for text in record["responses"]]
        assert record["info"]["answer"] == answer
        assert right == ([record["rewards"][0] == 1.0] if kind == "labels" else [True] + [False] * (len(right) - 1))


def test_labels_are_half_right(folder):
    found = collections.Counter(record["rewards"][0] for record in rows(load(folder, kind="labels")))
    assert found == {1.0: 120, 0.0: 120}


def test_the_first_wrong_step_is_marked(folder):
    found = rows(load(folder, kind="steps"))
    assert 40 < sum(0 in record["labels"] for record in found) < 80
    for record in found:
        before, labels = int(re.match(r"\d+", record["prompt"])[0]), []
        for step in record["steps"]:
            start, term, said = (int(text) for text in re.fullmatch(r"(-?\d+)([+-]\d+)=(-?\d+)", step).groups())
            assert start == before
            labels.append(1 if start + term == said else 0)
            before = said
        place = labels.index(0) if 0 in labels else len(labels)
        assert record["labels"] == labels[: place + 1] + [None] * (len(labels) - place - 1)
        assert all(labels[place + 1 :]), "a mistake is made once, and carried on"
        assert [int(step.split("=")[1]) == total for step, total in zip(record["steps"], totals(record["prompt"]),
                                                                        strict=True)] == [
            i < place for i in range(len(labels))
        ]


@pytest.mark.parametrize("world", ["order", "length"])
def test_two_users_want_the_opposite(folder, world):
    by_prompt = collections.defaultdict(dict)
    for record in rows(load(folder, world=world, kind="rankings")):
        by_prompt[record["prompt"]][record["info"]["user"]] = record["responses"]
    assert len(by_prompt) == 120
    assert all(users[0] == users[1][::-1] for users in by_prompt.values())
    pairs = rows(load(folder, world=world, kind="pairs"))
    assert collections.Counter(record["info"]["user"] for record in pairs) == {0: 120, 1: 120}


@pytest.mark.parametrize("world", WORLDS)
def test_no_prompt_is_on_both_sides(folder, world):
    found = load(folder, world=world, test_share=0.3)
    train, test = ({" ".join(sorted(re.findall(r"[+-]?\w+", r["prompt"]))) for r in rows(found, s)}
                   for s in ("train", "test"))
    assert not train & test and len(train | test) == 120 and 18 < len(test) < 56


def test_a_seed_decides_everything(tmp_path):
    first, again, other = (rows(load(tmp_path / str(i), seed=seed)) for i, seed in enumerate((0, 0, 1)))
    assert first == again and not {r["prompt"] for r in first} & {r["prompt"] for r in other}


def test_more_prompts_go_on_where_fewer_ended(folder):
    few, many = (rows(load(folder, num_prompts=n, test_share=0.0), "train") for n in (30, 60))
    assert many[:30] == few


def test_annotators_vote(folder):
    found = rows(load(folder, num_prompts=1500, annotators=5, seed=3))
    assert {record["label_prob"] for record in found} == {0.6, 0.8, 1.0}
    wrong = [record for record in found if record["info"]["grades"][0] < record["info"]["grades"][1]]
    assert 0 < len(wrong) and all(record["margin"] == 0 for record in wrong)
    assert all(record["rewards"] == [1.0, 0.0] for record in found), "a vote orders, it does not grade"
    by_margin = collections.defaultdict(list)
    for record in found:
        gap = np.diff(record["info"]["grades"])[0]
        by_margin[round(abs(gap), 3)].append(record["label_prob"] if gap < 0 else 1 - record["label_prob"])
    assert len(by_margin) == 3
    for gap, shares in by_margin.items():
        right, spread = 1 / (1 + math.exp(-generated.SHARPNESS * gap)), 4 * math.sqrt(0.25 / (5 * len(shares)))
        assert np.mean(shares) == pytest.approx(right, abs=spread)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("responses", [2, 6])
def test_as_many_responses_as_wanted(world, responses):
    for found, _ in generated.draw(world=world, num_prompts=20, responses=responses, seed=0):
        grades = [grade for _, grade in found.responses]
        assert len({text for text, _ in found.responses}) == len(set(grades)) == responses
        assert grades == sorted(grades, reverse=True) and min(grades) >= 0 and max(grades) <= 1


def test_a_chat_says_the_same(folder):
    plain, chats = (rows(load(folder, chat=chat, num_prompts=20), "train") for chat in (False, True))
    assert all(r["prompt"][0]["role"] == "user" for r in chats)
    assert {r["prompt"][0]["content"]: r["responses"] for r in chats}.items() <= {
        r["prompt"]: r["responses"] for r in plain + rows(load(folder, num_prompts=20), "test")
    }.items()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(world="summs"), "world='summs' is none of sums, moods, order, length"),
        (dict(kind="essays"), "kind='essays': generated sums come as pairs, rankings, labels, steps"),
        (dict(kind="steps", world="order"), "generated order come as pairs, rankings, labels$"),
        (dict(responses=7), "responses must be 2..6, got 7"),
        (dict(num_prompts=1), "num_prompts must be at least 2"),
        (dict(annotators=2), "annotators=2 must be 0, or odd"),
        (dict(annotators=3, kind="labels"), "annotators=3 must be .* they vote on pairs"),
        (dict(num_prompts=20_000, world="moods"), "1 tries for each gave only [5-9][0-9][0-9][0-9] distinct moods"),
        (dict(prompts=3), "'generated' take no prompts; they take kind, world"),
    ],
)
def test_what_it_refuses(tmp_path, settings, said, monkeypatch):
    monkeypatch.setattr(generated, "TRIES", 1)
    with pytest.raises(ValueError, match=said):
        load(tmp_path, **settings)


@pytest.mark.slow
def test_given_reads_a_file_where_there_is_one(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    settings = dict(data_dir=str(tmp_path / "data"), test_share=0.0)
    found = preferences.load("given", path=str(path), **settings)
    assert found.name == "jsonl" and [r["responses"] for r in rows(found, "train")] == [["a", "b"]]
    made = preferences.load("given", kind="labels", **settings)
    assert made.name == "generated" and made.kind == "labels"
    assert rows(made, "train") == rows(preferences.load("generated", kind="labels", **settings), "train")
