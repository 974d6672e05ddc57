"""Worlds of attempts: a program that fails its tests is tried again with guidance; a solver against an evaluator."""

import random
from collections.abc import Iterator, Sequence

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

GUIDANCE = ("none", "plan", "error", "both")
STEPS = "+-*"


def run_program(program: str, number: int) -> int | None:
    """What "*2+1" makes of a number: its steps from the left; None if it is no program of such steps."""
    if len(program) % 2 or not program:
        return None
    for step, digit in zip(program[::2], program[1::2], strict=True):
        if step not in STEPS or digit not in "0123456789":
            return None
        number = {"+": number + int(digit), "-": number - int(digit), "*": number * int(digit)}[step]
    return number


class Guided(World):
    """A program of a few steps that must pass its tests, and a teacher who helps after it has failed.

    "3>7 5>11:" -> "+4" (fails) -> "3>7 5>11:*+ 5>9" -> "*2+1" (passes)

    The first attempt reads the tests alone. If it fails, the task begins anew with guidance behind it: a plan (which
    steps, not their numbers), the environment's feedback (what the program gave at the first test that it failed), or
    both; each further attempt has that of the one before. An attempt is a trajectory of its own, with reward 1 if it
    passes all tests, shown and hidden, so its credit is that of its turn (turn_return_loo with discount 0): attempts
    under guidance are compared with attempts under guidance. numbers: correct (some attempt passed), guided (the flag
    of a turn that was spoken under guidance; of a row: above 0), alone (the first attempt passed).
    A stand-in for Agent-RLVR's repositories, with unit tests, and guidance by a language model (arXiv 2506.11425).

    Args:
      guidance: one of GUIDANCE.
      steps: of the program, 1 to 3.
      shown: tests that are shown.
      hidden: further tests.
      most: attempts.
    """

    ALPHABET = "0123456789+-*>: ?\n"
    NUMBERS = ("guided", "alone")

    def __init__(self, *, guidance: str = "both", steps: int = 2, shown: int = 2, hidden: int = 2, most: int = 2):
        super().__init__(price=0.0, most=most)
        if guidance not in GUIDANCE or not 1 <= steps <= 3 or shown < 1 or hidden < 0 or shown + hidden > 9:
            raise ValueError(
                f"guidance={guidance!r} must be one of {', '.join(GUIDANCE)}, steps={steps} from 1 to 3, "
                f"shown={shown} at least 1, hidden={hidden} not below 0, both together at most 9"
            )
        self._guidance, self._steps, self._shown, self._tests = guidance, steps, shown, shown + hidden
        self.rewrites = True

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Programs with small numbers."""
        while True:
            program = "".join(f"{rng.choice('+*')}{rng.randint(1, 4)}" for _ in range(self._steps))
            numbers = rng.sample(range(1, 10), self._tests)
            tests = [[number, run_program(program, number)] for number in numbers]
            yield f"{self._task(tests)}:\n", {"program": program, "tests": tests}

    def _task(self, tests: Sequence[Sequence[int]]) -> str:
        return " ".join(f"{number}>{result}" for number, result in tests[: self._shown])

    def begin(self, info: dict, dice: random.Random) -> None:
        """No attempt yet."""
        self._program, self._tests_now, self._hint = str(info["program"]), info["tests"], ""

    def state_key(self) -> str:
        """What the attempt reads."""
        return f"hint {self._hint}"

    def right_answer(self) -> str:
        """The program that made the tests."""
        return self._program

    def failed(self, said: str) -> tuple[int, int | None] | None:
        """(number, what the program gave) at the first test that it fails; None if it passes all."""
        for number, result in self._tests_now:
            if (given := run_program(said[:20], number)) != result:
                return number, given
        return None

    def step(self, said: str) -> Step:
        """The end, or the task with guidance."""
        guided, alone = float(bool(self._hint)), float(self.turn == 0)
        if (where := self.failed(said)) is None:
            return self.won(guided=guided, alone=alone)
        plan = self._program[::2] if self._guidance in ("plan", "both") else ""
        error = "" if self._guidance not in ("error", "both") else f"{where[0]}>{'?' if where[1] is None else where[1]}"
        self._hint = " ".join(filter(None, (plan, error[:6])))
        malformed = float(run_program(said[:20], 1) is None)
        return self.workspace(f"{self._task(self._tests_now)}:{self._hint}\n", guided=guided, malformed=malformed)

    def expert(self, rng: random.Random) -> str:
        """The program; without guidance a guess half of the time."""
        return self._program if self._hint or rng.random() < 0.5 else self.novice(rng)

    def novice(self, rng: random.Random) -> str:
        """A program of as many steps."""
        return "".join(f"{rng.choice('+*')}{rng.randint(1, 4)}" for _ in range(self._steps))


class Judged(World):
    """A solver, then an evaluator of its solution, then a judge who scores the two: three roles of one policy.

    "s7+8=" -> "15" (the solver) -> "e7+8=15?" -> "ok" or "no" (the evaluator) -> "j7+8=15?ok" -> "3" (the judge)

    Each role reads a prompt of its own and nothing else, in a segment of its own: the loss of a role is masked to its
    turn. In a further round the solver reads the last discussion, too: "s7+8=15?ok". No turn is paid here but that of a
    judge without a score of 1 to 3 (-1): `score` (-1 without one) and `role` are counted, and
    advantages.turn_rounds.zero_sum routes them: s = (score - 1) / 2 to the solver, 1 - s to the evaluator. With
    judge="scripted" there are two roles, and a judge who knows the answer: the solution stands if it is right, or if it
    is wrong and the evaluation says "ok" (nobody objected, half: score 2). numbers: correct (the last solution; only
    measured), role (1, 2, 3), score.
    CoMAS (arXiv 2510.08529): solutions, evaluations and scores by several agents, whose parts are drawn anew in each
    step; rewards and its 2 rounds as in its code (xxyQwQ/CoMAS, read in the fork wt-2048/comas: comas.py in
    marti/worlds/workflows, marti/verifiers/comas_reward.py). Its agents have weights of their own unless
    `shared_agents` is set; here they share the policy.

    Args:
      judge: "model", or "scripted".
      rounds: of the roles.
    """

    ALPHABET = "0123456789+=?sejkno \n"
    NUMBERS = ("role", "score")

    def __init__(self, *, judge: str = "model", rounds: int = 1):
        if judge not in ("model", "scripted"):
            raise ValueError(f'judge={judge!r} must be "model" or "scripted"')
        if rounds < 1:
            raise ValueError(f"rounds={rounds} must be at least 1")
        self._roles, self._rounds = 3 if judge == "model" else 2, rounds
        super().__init__(price=0.0, most=self._roles * rounds)
        self._judge, self.rewrites = judge, True

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Sums of two digits."""
        while True:
            left, right = rng.randrange(10), rng.randrange(10)
            yield f"s{left}+{right}=\n", {"question": f"{left}+{right}=", "answer": str(left + right)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing said."""
        self._question, self._right = str(info["question"]), str(info["answer"])
        self._words, self._round = [], 0

    def state_key(self) -> str:
        """Who speaks, and what was said in this round."""
        return "|".join([str(self._round * self._roles + len(self._words)), *self._words])

    def right_answer(self) -> str:
        """The solution."""
        return self._right

    def score(self) -> float:
        """Of the scripted judge, 1 to 3."""
        solution, evaluation = self._words[:2]
        if solution == self._right:
            return 3.0
        return 1.0 if evaluation == "no" else 2.0

    def step(self, said: str) -> Step:
        """The next role's prompt, or the end."""
        said, role = plain(said, self.ALPHABET), len(self._words) + 1
        self._words.append(said)
        self.turn = self._round * self._roles + role - 1
        last = self._round + 1 == self._rounds
        if role == 1:
            counts = dict(role=1.0, correct=float(last and said == self._right), malformed=float(not said.isdigit()))
            return self.workspace(f"e{self._question}{said}?\n", **counts)
        if role == 2:
            counts = dict(role=2.0, malformed=float(said not in ("ok", "no")))
            if self._judge == "model":
                return self.workspace(f"j{self._question}{self._words[0]}?{said}\n", **counts)
            return self._scored(0.0, **counts, score=self.score())
        known = said in ("1", "2", "3")
        counts = dict(role=3.0, score=float(said) if known else -1.0, malformed=float(not known))
        return self._scored(0.0 if known else -1.0, **counts)

    def _scored(self, reward: float, **counts: float) -> Step:
        """The next round, whose solver reads this one's discussion; or the end."""
        solution, evaluation = self._words[:2]
        self._words, self._round = [], self._round + 1
        if self._round == self._rounds:
            return self.lost(reward, **counts)
        return self.workspace(f"s{self._question}{solution}?{evaluation}\n", reward=reward, **counts)

    def expert(self, rng: random.Random) -> str:
        """The solution, whether it is right, and the score that a judge who knows would give."""
        if not self._words:
            return self._right
        if len(self._words) == 1:
            return "ok" if self._words[0] == self._right else "no"
        return str(int(self.score()))

    def novice(self, rng: random.Random) -> str:
        """Any number, any verdict, any score."""
        return (str(rng.randrange(19)), rng.choice(["ok", "no"]), rng.choice("123"))[len(self._words)]


def plain(said: str, letters: str) -> str:
    """At most six of the known letters, without ends of lines."""
    return "".join(letter for letter in said if letter in letters and letter != "\n")[:6]
