"""Questions that need none, one or two tools, whose answers the model can grade itself: iTool's stand-in."""

import random
from collections.abc import Iterator, Sequence

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.quests import TwoTools

GUESS = "guess"  # a number of each turn (rl_jax.experience.own_judgement)
LONGEST = 6  # letters of a turn that a grader reads


def overlap(left: str, right: str) -> float:
    """The share of the smaller text's different words that the other one has, too; 0 if one has none."""
    one, other = set(left.split()), set(right.split())
    return len(one & other) / min(len(one), len(other)) if one and other else 0.0


def first_guess(said: str, right: str, *, mark: str = ")]") -> float:
    """What a turn is worth before an episode has gone through it.

        +.1 if both or neither of the two have the mark, else -.1;   + overlap(right, said) - .5;   0 for no words

    Args:
      said: the turn.
      right: the known answer, all of it.
      mark: what closes it: ")]" of a list of calls.

    Source: arXiv 2501.09766 (iTool), its code (zeng-yirong/iTool, mcts/mcts_vllm.py: get_reward).
    """
    if not said.strip():
        return 0.0
    return (0.1 if (mark in said) == (mark in right) else -0.1) + overlap(right, said) - 0.5


class GradedTools(TwoTools):
    """TwoTools' questions and some that need no tool ("28=" -> "=28"), with a judging prompt and a first guess.

    "?s eli,c4*7,=28|c4*7,=28" -> "B"      the known answer | what was said -> its grade, of iTool's four:

        A   equal to the known answer          B   another way to the same number
        C   another number, though all needed calls were made          D   anything else

    info["calls"] is how many calls the known answer has: 0, 1 or 2, the levels of the easy-to-hard warm-up. `guess` of
    each turn is its first_guess. With grades=True an answer is followed by a segment of its own, the
    judging prompt and its right grade: so recorded episodes teach the judgement that a pretrained model brings along.
    numbers: TwoTools', guess.
    A stand-in for ToolACE's calls, judged by the same model in the words of EVAL_PROMPT_with_GT (arXiv 2501.09766, its
    code zeng-yirong/iTool, mcts/utils.py).

    Args:
      bonus: as TwoTools.
      plain: share of the questions that need the calculator alone.
      none: share of the questions that need no tool.
      most: turns, without that of the grade.
      grades: whether the episode ends with the grade of its answer.
    """

    GRADES = "ABCD"  # from the best to the worst
    ALPHABET = TwoTools.ALPHABET + ",|" + GRADES
    NUMBERS = (*TwoTools.NUMBERS, GUESS)

    def __init__(
        self, *, bonus: float = 0.0, plain: float = 0.3, none: float = 0.2, most: int = 4, grades: bool = False
    ):
        super().__init__(bonus=bonus, plain=plain, most=most)
        if not 0 <= none <= 1:
            raise ValueError(f"none={none} must be from 0 to 1")
        self._none, self._grades = none, grades
        self.rewrites = grades

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """TwoTools', with their number of calls; or a number."""
        for prompt, info in super().problems(rng):
            if rng.random() < self._none:
                number = info["number"] * info["times"]
                yield f"{number}=\n", info | {"plain": True, "number": number, "times": 1, "calls": 0}
            else:
                yield prompt, info | {"calls": 1 if info["plain"] else 2}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing said."""
        super().begin(info, dice)
        self._calls, self._said, self._is_graded = int(info["calls"]), [], False

    def known(self) -> list[str]:
        """The known answer, turn by turn."""
        calls = [f"s {self._who}", f"c{self._number}*{self._times}"]
        return [*(calls[2 - self._calls :] if self._calls else []), self.right_answer()]

    def grading(self, said: Sequence[str]) -> str:
        """The judging prompt of what was said, turn by turn."""
        known = TwoTools.ALPHABET.replace("?", "").replace("\n", "")
        shown = ["".join(letter for letter in turn if letter in known)[:LONGEST] for turn in said[: self.most]]
        return f"?{','.join(self.known())}|{','.join(shown)}\n"

    def grade(self, said: Sequence[str]) -> str:
        """The right grade of what was said."""
        known, said = self.known(), list(said)
        if said == known:
            return "A"
        if said and said[-1] == known[-1]:
            return "B"
        return "C" if said and said[-1].startswith("=") and set(known[:-1]) <= set(said[:-1]) else "D"

    def state_key(self) -> str:
        """As TwoTools; of a grade what is graded."""
        return self.grading(self._said) if self._is_graded else super().state_key()

    def cut(self) -> float:
        """As TwoTools; nothing for a grade, whose answer has been paid."""
        return 0.0 if self._is_graded else super().cut()

    def step(self, said: str) -> Step:
        """A tool's answer, the end, or the judging prompt."""
        if self._is_graded:
            return Step(done=True, numbers=self.counts(malformed=float(said not in (*self.GRADES,))))
        step = super().step(said)
        self._said.append(said)
        guess = first_guess(said, " ".join(self.known()), mark="=")
        step = step._replace(numbers={**step.numbers, GUESS: guess})
        if not (step.done and self._grades):
            return step
        self._is_graded = True
        prompt = [{"role": "user", "content": self.grading(self._said)}]
        return step._replace(messages=prompt, done=False, anew=True)

    def expert(self, rng: random.Random) -> str:
        """The next turn of the known answer; the right grade."""
        if self._is_graded:
            return self.grade(self._said)
        return super().expert(rng) if self._calls else self.right_answer()

    def novice(self, rng: random.Random) -> str:
        """As TwoTools, but the right grade: a wrong one teaches nothing."""
        return self.grade(self._said) if self._is_graded else super().novice(rng)
