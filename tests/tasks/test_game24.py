"""The game24 task on the published files, and on small files made here that hold every kind of record to leave out."""
import gzip
import itertools
import json
from fractions import Fraction

import pytest

from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.rewards import game24 as reward
from rl_jax.tasks import game24_hands
from tests.paths import shared_data


def rows(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def answer(expression, value="24", correct=True):
    return {"text": f"1 - 1 = 0 (left: 0 4 6)\nThe answer is {expression} = {value}", "correct": correct}


def puzzle(question, *answers):
    return {"question": question, "answer": list(answers), "i": 0}


def write(folder, train, test):
    for split, records in (("train", train), ("test", test)):
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (folder / f"game24_{split}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return tasks.load("game24", path=str(shared_data("math")), data_dir=str(tmp_path_factory.mktemp("tfds")))


@pytest.mark.slow
def test_published_files(published):
    task = published
    train, test, sft = rows(task, "train"), rows(task, "test"), rows(task, "sft_train")
    assert (len(train), len(test)) == (1000, 362)
    report = task.data_source("train").report
    assert report["num_test_duplicates"] == report["num_train_duplicates"] == report["num_skipped"] == 0
    keys = [{tuple(sorted(json.loads(row["info"])["numbers"])) for row in split} for split in (train, test)]
    assert not keys[0] & keys[1]
    assert {row["prompt"] for row in sft} == {row["prompt"] for row in train}
    assert len({(row["prompt"], row["completion"]) for row in sft}) == len(sft)
    assert max(sum(row["prompt"] == other["prompt"] for other in sft[:500]) for row in sft[:50]) == 20
    for row in train + test + sft:
        info = json.loads(row["info"])
        assert row["prompt"] == " ".join(map(str, info["numbers"])) + ":" and " " not in row["completion"]
        assert task.reward_fn(row["prompt"], row["completion"], info)["reward"] == 1.0
        task.tokenizer.encode(row["prompt"] + row["completion"])


def test_what_is_left_out_and_counted(tmp_path):
    # 8/(3-8/3) is exact though its decimals are not; 1*1*4+6 is not 24, whatever the file says
    train = [puzzle("1 1 4 6", answer("1 - 1 + 4 * 6"), answer("(1 + 4 - 1) * 6", "23.9999808"),
                    answer("1 - 1 + 4 * 6"), answer("1 * 1 * 4 + 6"), answer("1 * 1 * 4 * 6", correct=False)),
             puzzle("3 3 8 8", answer("8 / (3 - 8 / 3)", "23.9976")),
             puzzle("1 1 1 1", answer("1 + 1 + 1 + 1")),
             puzzle("6 4 1 1", answer("6 * 4 * 1 * 1"))]
    test = [puzzle("8 3 8 3", answer("8 / (3 - 8 / 3)")), puzzle("4 6 2 2", answer("4 * 6 + 2 - 2"))]
    write(tmp_path, train, test)
    task = tasks.load("game24", path=str(tmp_path), data_dir=str(tmp_path))
    report = task.data_source("test").report
    assert (report["num_train_duplicates"], report["num_test_duplicates"]) == (1, 1)
    assert (report["num_train_without_solution"], report["num_inexact_solutions"]) == (1, 2)
    assert sorted(row["completion"] for row in rows(task, "sft_train")) == [
        "(1+4-1)*6", "1-1+4*6", "8/(3-8/3)"]
    assert [row["prompt"] for row in rows(task, "train")] == ["1 1 4 6:", "3 3 8 8:"]
    assert [row["prompt"] for row in rows(task, "test")] == ["4 6 2 2:"]
    capped = tasks.load("game24", path=str(tmp_path), data_dir=str(tmp_path), max_solutions_per_puzzle=1)
    assert len(rows(capped, "sft_train")) == 2


@pytest.mark.parametrize("bad, field", [
    ("{", None), (puzzle("1 2 3"), "question"), (puzzle("1 2 3 x"), "question"), ({"question": "1 2 3 4"}, "answer"),
    (puzzle("1 2 3 4", "1+2"), "answer"), (puzzle("1 2 3 4", {"text": "The answer is 1 = 1"}), "answer"),
    (puzzle("1 2 3 4", {"text": "no answer", "correct": True}), "answer")])
def test_bad_records(tmp_path, bad, field):
    good = [puzzle("1 1 4 6", answer("1 - 1 + 4 * 6"))], [puzzle("4 6 2 2", answer("4 * 6 + 2 - 2"))]
    write(tmp_path, [*good[0], bad], good[1])
    place = "game24_train.jsonl.gz, line 2" + (f", field '{field}'" if field else "")
    with pytest.raises(readers.DataError, match=place):
        tasks.load("game24", path=str(tmp_path), data_dir=str(tmp_path))
    task = tasks.load("game24", path=str(tmp_path), data_dir=str(tmp_path), skip_bad_records=True)
    source = task.data_source("train")
    assert source.num_skipped == 1 and "line 2" in source.report["skipped"][0] and len(source) == 1


def test_missing_folder(tmp_path):
    with pytest.raises(readers.DataError, match="cannot be opened"):
        tasks.load("game24", path=str(tmp_path / "none"), data_dir=str(tmp_path))


def test_published_numbers_are_the_prompt(published):
    row = published.data_source("test")[0]
    assert reward.is_solution(row["completion"], [int(n) for n in row["prompt"].rstrip(":").split()])


@pytest.mark.slow
def test_worked_solutions_are_steps_that_the_verifier_takes(tmp_path):
    path = str(shared_data("math"))
    task = tasks.load("game24", path=path, worked=True, max_solutions_per_puzzle=50, data_dir=str(tmp_path))
    sft, test = rows(task, "sft_train"), rows(task, "test")
    assert len(rows(task, "train")) == 1000 and len(test) == 362  # test puzzles all stay
    assert len(sft) > 15_000 and len({(row["prompt"], row["completion"]) for row in sft}) == len(sft)
    for row in sft[::50]:
        assert row["completion"].count("=") == 3 and row["completion"].endswith("=24")
        assert task.reward_fn(row["prompt"], row["completion"], json.loads(row["info"]))["reward"] == 1.0
        assert task.tokenizer.decode(task.tokenizer.encode(row["completion"])) == row["completion"]


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return tasks.load("game24", worked=True, max_solutions_per_puzzle=5, data_dir=str(tmp_path_factory.mktemp("tfds")))


def numbers_of(records):
    return {tuple(json.loads(record["info"])["numbers"]) for record in records}


@pytest.mark.slow
def test_generated_puzzles_need_no_file(generated):
    train, test, sft = (rows(generated, split) for split in ("train", "test", "sft_train"))
    assert (len(test), generated.data_source("train").report["num_train_without_solution"]) == (362, 1000 - len(train))
    assert len(train) > 980 and not numbers_of(train) & numbers_of(test)
    assert numbers_of(sft) == numbers_of(train)
    for record in [*train, *test, *sft]:
        info = json.loads(record["info"])
        assert record["prompt"] == " ".join(map(str, info["numbers"])) + ":"
        assert generated.reward_fn(record["prompt"], record["completion"], info)["correct"]
        assert generated.tokenizer.encode(record["completion"])
    assert len({(record["prompt"], record["completion"]) for record in sft}) == len(sft)


@pytest.mark.slow
def test_they_are_the_published_hands(generated, published):
    made = numbers_of(rows(generated, "train")) | numbers_of(rows(generated, "test"))
    known = {tuple(sorted(hand)) for split in ("train", "test") for hand in numbers_of(rows(published, split))}
    assert made <= known and len(known) == 1362 and len(known - made) <= 20, "but those with no worked solution"


def brute_force(numbers):
    """Whether four numbers make 24: every order, every sign, every bracketing, in fractions."""
    if len(numbers) == 1:
        return numbers[0] == 24
    for i, j in itertools.permutations(range(len(numbers)), 2):
        a, b, rest = numbers[i], numbers[j], [numbers[k] for k in range(len(numbers)) if k not in (i, j)]
        results = [a + b, a - b, a * b] + ([Fraction(a) / b] if b else [])
        if any(brute_force([*rest, result]) for result in results):
            return True
    return False


HANDS = [(1, 1, 1, 1), (1, 5, 5, 5), (3, 3, 8, 8), (1, 1, 1, 8), (13, 13, 13, 13), (6, 6, 6, 6)]
HANDS += [(1, 3, 4, 6), (2, 5, 7, 13), (1, 6, 6, 11), (4, 4, 10, 10), (1, 1, 7, 7)]


@pytest.mark.parametrize("hand", HANDS)
def test_a_hand_is_solved_where_it_can_be(hand):
    found = {expression for _, expression in game24_hands.solve(hand)}
    assert bool(found) == brute_force(list(hand))
    assert all(reward.score("", text, {"numbers": list(hand)})["correct"] for text in found)


def test_the_split_does_not_move():
    hands = [{"numbers": [1, 2, 3, i % 13 + 1, i]} for i in range(1362)]
    first, again = game24_hands.split(hands), game24_hands.split(hands[::-1])
    assert {str(h) for h in first["test"]} == {str(h) for h in again["test"]}
    assert [len(first[name]) for name in ("train", "test")] == [1000, 362]
