"""A scripted clerk in place of a language model, for rl_jax.envs.thoughts: it calculates, and errs.

    PROBLEM: 6 +3 *12 ~5     start with 6, add 3, multiply by 12, go to the nearest multiple of 5

"+" is plain and is best reasoned step by step; "*" is complex and is best decomposed; "~" has several ways and is best
debated (SKILL). A step that is wrong spoils all that comes after it unless it is refined at once. The clerk's marks say
what comes next and, seven times in ten, whether the last step is right. What it says depends on the text alone: its
chance is a checksum of what it reads.
"""

import math
import random
import re
import zlib
from collections.abc import Sequence

from rl_jax.envs.thoughts import REQUESTS, BlackBox

# How the operation is asked for -> its kind -> the probability of a right result.
SKILL = {
    "reason": {"+": 0.95, "*": 0.4, "~": 0.4},
    "subtask": {"+": 0.8, "*": 0.95, "~": 0.4},
    "follow": {"+": 0.8, "*": 0.4, "~": 0.95},
    "answer": {"+": 0.95, "*": 0.4, "~": 0.4},  # all that is left at once
}
MENDS, UNSURE, MOST_SUBTASKS = 0.8, 0.3, 2
RESULT = re.compile(r"=> (-?\d+) \((\d+)\)")  # the value, and how many operations are done


def operations(problem: str) -> tuple[int, list[str]]:
    """(the start, the operations) of a problem's text."""
    first, *rest = problem.partition("PROBLEM: ")[2].split()
    return int(first), rest


def applied(operation: str, value: int) -> int:
    """The right result of an operation."""
    number = int(operation[1:])
    return {"+": value + number, "*": value * number, "~": number * round(value / number)}[operation[0]]


def chance(*texts: str) -> float:
    """A number in [0, 1) that depends on the texts."""
    return zlib.crc32("|".join(texts).encode()) / 2**32


def problem(seed: int) -> tuple[str, str]:
    """(text, answer) of the problem of this seed: five to seven operations."""
    rng = random.Random(seed)
    most = {"+": 20, "*": 9, "~": 9}
    chosen = [f"{kind}{rng.randint(2, most[kind])}" for kind in rng.choices("+*~", k=rng.randint(5, 7))]
    value = start = rng.randint(2, 20)
    for operation in chosen:
        value = applied(operation, value)
    return f"PROBLEM: {start} {' '.join(chosen)}", str(value)


def process_reward(question: str, steps: Sequence[str]) -> float:
    """The probability that the clerk comes to the right answer from the last step by reasoning alone; 0 after an error.

    That is what Math-Shepherd's scores estimate (arXiv 2312.08935).
    """
    value, wanted = operations(question)
    found = RESULT.findall(steps[-1])
    if not found:
        return 0.0
    said, count = (int(number) for number in found[-1])
    for operation in wanted[:count]:
        value = applied(operation, value)
    return math.prod(SKILL["reason"][operation[0]] for operation in wanted[count:]) * (value == said)


class _Read:
    """What a text says: the problem, and the values of its steps so far."""

    def __init__(self, text: str):
        self.text = text
        self.start, self.operations = operations(text.partition("\n")[0])
        found = [(int(count), int(value)) for value, count in RESULT.findall(text)]
        self.values = {0: self.start} | dict(found)  # a refined step stands for the one before it
        self.count = found[-1][0] if found else 0

    def next(self, of: int = 0) -> str:
        """The kind of the next operation, or of one further on; "" after the last."""
        return "".join(self.operations[self.count + of : self.count + of + 1])[:1]

    def done(self, how: str) -> str:
        """The next operation, right as often as the clerk's skill says."""
        if not self.next():
            return f"=> {self.values[self.count]} ({self.count})"
        right = applied(self.operations[self.count], self.values[self.count])
        errs = chance(self.text, how) >= SKILL[how][self.next()]
        return f"=> {right + errs} ({self.count + 1})"

    def last_is_right(self) -> bool:
        """Whether the last operation's value follows from the one before it."""
        before = self.values.get(self.count - 1)
        if not self.count or before is None:
            return True
        return applied(self.operations[self.count - 1], before) == self.values[self.count]


def ask(text: str) -> str:
    """The clerk's reply to one of the requests of rl_jax.envs.thoughts."""
    said, _, request = text.rpartition("\n\n")
    (name,) = [name for name, sentence in REQUESTS.items() if request.startswith(sentence)]
    return REPLIES[name](_Read(said), request)


def _subtasks(read: _Read, request: str) -> str:
    left = read.operations[read.count : read.count + MOST_SUBTASKS]
    return " ".join(f"### Subtask{i}: {operation}" for i, operation in enumerate(left, 1)) or "### Subtask1: nothing"


def _summary(read: _Read, request: str) -> str:
    """All values of the subtasks, so that a refinement still sees where the last one began."""
    return " ".join(f"=> {read.values[k]} ({k})" for k in sorted(read.values)[-2:] if k)


def _refined(read: _Read, request: str) -> str:
    if read.last_is_right() or chance(read.text, "refine") >= MENDS:
        return f"=> {read.values[read.count]} ({read.count})"
    return f"=> {applied(read.operations[read.count - 1], read.values[read.count - 1])} ({read.count})"


def _answer(read: _Read, request: str) -> str:
    while read.next():
        value, count = RESULT.findall(read.done("answer"))[0]
        read.count = int(count)
        read.values[read.count] = int(value)
        read.text += value
    return f"The answer is {read.values[read.count]}."


def _marks(read: _Read, request: str) -> str:
    left, begun = len(read.operations) - read.count, read.count > 0
    calculation = 2 if chance(read.text, "rate") < UNSURE else 3 if read.last_is_right() else 1
    marks = {"A1": 3 * begun, "A2": 3 * begun, "A3": calculation * begun}
    marks |= {"B1": 3 if read.next() == "*" else 1, "B2": 3 if read.next() == "~" else 1}
    marks |= {"C1": 3 if left <= 1 else 2 if left == 2 else 1, "C2": 3}
    return " ".join(f"{name}={mark}" for name, mark in marks.items())


REPLIES = {
    "reason": lambda read, request: read.done("reason"),
    "decompose": _subtasks,
    "subtask": lambda read, request: read.done("subtask"),
    "summarise": _summary,
    "plans": lambda read, request: "### Plan1: up ### Plan2: down ### Plan3: the nearer",
    "compare": lambda read, request: "The most promising plan is Plan3",
    "follow": lambda read, request: read.done("follow"),
    "refine": _refined,
    "finished": lambda read, request: "no" if read.next() else "yes",
    "answer": _answer,
    "rate": _marks,
}


def clerk() -> BlackBox:
    """The clerk, its problems, and the process reward that knows them."""
    return BlackBox(ask, process_reward, problem)
