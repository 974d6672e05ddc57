"""The game of 24 from game24_{train,test}.jsonl.gz: "1 1 4 6:" -> "(1+4-1)*6", or "1+4=5:1 5 6,5-1=4:4 6,4*6=24".

Splits: "sft_train" has one record per (training puzzle, solution), "train" and "test" one per puzzle, with its first
solution as completion. The published solutions were found with rounded decimals ("= 23.9999808"), so an expression is
kept only if it is exactly 24 (all in the published files are). A test puzzle with the numbers of a training puzzle is
dropped.

Without a folder the puzzles are generated: every hand of four cards that makes 24 (rl_jax.tasks.game24_hands).
"""
import hashlib
import json
import pathlib
import re

from rl_jax.data import readers
from rl_jax.rewards import game24 as reward
from rl_jax.tasks import base, game24_hands
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-*/() :=,"
_STEP = re.compile(r"([0-9]+) ([-+*/]) ([0-9]+) = ([0-9]+) \(left: ([0-9 ]+)\)")
_ANSWER = re.compile(r"The answer is (.+) = [^=]+")


def read_puzzles(path, bad: readers.BadRecords, *, max_solutions: int,
                 worked: bool = False) -> tuple[list[dict], int]:
    """Reads puzzles with their exact solutions.

    Solutions are ordered by the hash of (numbers, expression): the first few are a fixed random sample.

    Args:
      path: the file.
      bad: receives records that do not have the fields of the published files; raises DataError or counts them.
      max_solutions: most solutions per puzzle.
      worked: whether solutions are in steps; those that pass through a fraction or a negative number are left out, too.

    Returns:
      ([{"numbers": four ints, "solutions": exact ones, distinct, by hash}], number of inexact solutions left out).
    """
    puzzles, num_inexact = [], 0
    for line, record in readers.read_jsonl(path, {"question": str, "answer": list}, bad):
        numbers = record["question"].split()
        if len(numbers) != 4 or not all(re.fullmatch(r"[0-9]{1,4}", number) for number in numbers):
            bad.reject(path, line, f"expected four integers, found {record['question']!r:.80}", field="question")
            continue
        numbers = [int(number) for number in numbers]
        expressions, problem = _expressions(record["answer"], worked)
        if problem:
            bad.reject(path, line, problem, field="answer")
            continue
        exact = [text for text in expressions if reward.score("", text, {"numbers": numbers})["correct"]]
        num_inexact += len(expressions) - len(exact)
        exact.sort(key=lambda text: hashlib.sha256(f"{numbers} {text}".encode()).digest())  # noqa: B023
        puzzles.append({"numbers": numbers, "solutions": exact[:max_solutions]})
    return puzzles, num_inexact


def _expressions(answers: list, worked: bool) -> tuple[list[str], str | None]:
    result: dict[str, None] = {}
    for place, answer in enumerate(answers):
        if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
            return [], f"entry {place} is not an object with a string 'text'"
        if not isinstance(answer.get("correct"), bool):
            return [], f"entry {place} has no boolean 'correct'"
        match = _ANSWER.fullmatch(answer["text"].rpartition("\n")[2])
        if match is None:
            return [], f"the last line of entry {place} is not 'The answer is EXPRESSION = VALUE'"
        if answer["correct"]:
            result.setdefault(_steps(answer["text"]) if worked else match[1].replace(" ", ""))
    return list(result), None


def _steps(text: str) -> str:
    """The lines before the answer in the verifier's format; "" if one is not in whole numbers."""
    lines = [_STEP.fullmatch(line) for line in text.split("\n")[:-1]]
    if not lines or None in lines:
        return ""
    steps = [f"{a}{sign}{b}={c}:{' '.join(sorted(left.split(), key=int))}" for a, sign, b, c, left in
             (line.groups() for line in lines)]
    return ",".join(steps).rpartition(":")[0]  # nothing is left to show after the last one


def _records(puzzle: dict, count: int) -> list[dict]:
    numbers = puzzle["numbers"]
    prompt, info = " ".join(map(str, numbers)) + ":", json.dumps({"numbers": numbers})
    return [{"prompt": prompt, "completion": solution, "info": info} for solution in puzzle["solutions"][:count]]


def load(*, path: str = "", max_solutions_per_puzzle: int = 20, worked: bool = False, skip_bad_records: bool = False,
         data_dir: str = base.DEFAULT_DATA_DIR) -> base.Task:
    """The game of 24. The sources' `report` counts what was left out.

    Args:
      path: the folder of game24_train.jsonl.gz and game24_test.jsonl.gz; "": generated puzzles.
      max_solutions_per_puzzle: most SFT records per puzzle.
      worked: whether SFT completions are in steps, one operation each.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task.

    Raises:
      ValueError: if max_solutions_per_puzzle is below 1.
      readers.DataError: if a record is bad.
    """
    if max_solutions_per_puzzle < 1:
        raise ValueError(f"max_solutions_per_puzzle must be at least 1, got {max_solutions_per_puzzle}")
    files = {split: pathlib.Path(path) / f"game24_{split}.jsonl.gz" for split in ("train", "test") if path}

    def make():
        bad, kept, seen = readers.BadRecords(skip=skip_bad_records), {"train": [], "test": []}, set()
        report = {"num_inexact_solutions": 0}
        for split in kept:
            settings = dict(max_solutions=max_solutions_per_puzzle, worked=worked and split == "train")
            if path:
                puzzles, num_inexact = read_puzzles(files[split], bad, **settings)
            else:
                puzzles, num_inexact = game24_hands.split(game24_hands.puzzles(**settings))[split], 0
            report["num_inexact_solutions"] += num_inexact
            report |= {f"num_{split}_duplicates": 0, f"num_{split}_without_solution": 0}
            for puzzle in puzzles:
                key = tuple(sorted(puzzle["numbers"]))
                if key in seen:
                    report[f"num_{split}_duplicates"] += 1
                elif not puzzle["solutions"]:
                    report[f"num_{split}_without_solution"] += 1
                else:
                    seen.add(key)  # train is read first: a test puzzle that is also in train is dropped
                    kept[split].append(puzzle)
        splits = {split: [record for puzzle in kept[split] for record in _records(puzzle, 1)] for split in kept}
        splits["sft_train"] = [record for puzzle in kept["train"]
                               for record in _records(puzzle, max_solutions_per_puzzle)]
        return splits, report | {"num_skipped": bad.num_skipped, "skipped": bad.first}

    arguments = {"max_solutions_per_puzzle": int(max_solutions_per_puzzle), "worked": bool(worked),
                 "skip_bad_records": bool(skip_bad_records)}
    code = [__file__, reward.__file__, *([] if path else [game24_hands.__file__])]
    sources = base.record_splits("game24" if path else "game24_generated", make, arguments=arguments,
                                 sources=files.values(), code=code, data_dir=data_dir)
    return base.Task("game24", CharTokenizer(ALPHABET), sources, reward.score)
