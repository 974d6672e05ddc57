"""Absolute Zero's questions: programs of Python that the policy proposes and solves, their checks and both rewards.

A proposal is a program and an input, "def f(x):return x+2#3"; for induction, inputs of a known program, "1;2;3;4".

    deduction    program, input -> output        "def f(x):return x+2#3="      5
    abduction    program, output -> an input     "def f(x):return x+2#?=5:"    3
    induction    half of the pairs -> program    "1=3;2=4:"                    def f(x):return x+2

Host code; programs run in the sandbox (`rl_jax.rewards.code.outputs`), texts of values are read as literals only.
Source: arXiv 2505.03335; LeapLabTHU/Absolute-Zero-Reasoner (reward_managers.py, constructor.py). TRR++: self_play.
"""

import ast
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

KINDS = ("deduction", "abduction", "induction")
MALFORMED, WRONG = -1.0, -0.5
SEED = "def f(x):return x#1"  # the identity function, as there
MAX_CHARS = 10_000
Run = Callable[[str, Sequence[Any]], list[Any] | None]  # (program, inputs) -> outputs; None: it fails


class Question(NamedTuple):
    """A proposal that can be asked.

    Attributes:
      kind: of KINDS.
      prompt: of the solver.
      program: the proposed one.
      inputs: that count: the one of deduction and abduction, the hidden ones of induction.
      outputs: of these.
    """

    kind: str
    prompt: str
    program: str
    inputs: list[Any]
    outputs: list[Any]


SPARE = Question("deduction", f"{SEED}=", SEED.partition("#")[0], [1], [1])


def literal(text: str) -> tuple[bool, Any]:
    """(whether the text is a literal of Python, its value)."""
    if len(text) > MAX_CHARS:
        return False, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return True, ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False, None


def is_program(text: str) -> bool:
    """Whether a text is Python that defines a function f, and imports nothing."""
    if len(text) > MAX_CHARS:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    imports = any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree))
    return not imports and any(isinstance(node, ast.FunctionDef) and node.name == "f" for node in tree.body)


def question(
    text: str, kind: str, run: Run, *, program: str = "", num_inputs: int = 4, longest: int = 48
) -> Question | None:
    """The question of a proposal; None if it is malformed, fails, or differs between two runs.

    Args:
      text: "program#input"; for induction "input;input;...", and after a # a message that the solver is told.
      kind: one of KINDS.
      run: executes a program.
      program: of induction, whose inputs are proposed.
      num_inputs: of induction; the first half is shown, the others are hidden.
      longest: characters of the solver's prompt, all of ASCII, and of the text.

    Raises:
      ValueError: if the kind is unknown, or num_inputs is below 2.
    """
    if kind not in KINDS or num_inputs < 2:
        raise ValueError(f"kind={kind!r} must be of {', '.join(KINDS)}, and num_inputs={num_inputs} at least 2")
    if kind == "induction":
        listed, _, message = text.partition("#")
        read = [literal(part) for part in listed.split(";")]
    else:
        program, _, given = text.rpartition("#")
        message, read = "", [literal(given)]
    if not all(ok for ok, _ in read) or len(read) != (num_inputs if kind == "induction" else 1):
        return None
    if not is_program(program):
        return None
    inputs = [value for _, value in read]
    outputs = run(program, inputs)
    if outputs is None or run(program, inputs) != outputs:
        return None
    if kind == "induction":
        shown = num_inputs // 2
        pairs = ";".join(f"{a!a}={b!a}" for a, b in zip(inputs[:shown], outputs[:shown], strict=True))
        prompt = f"{pairs}{'#' if message else ''}{message}:"
        inputs, outputs = inputs[shown:], outputs[shown:]
    else:
        prompt = f"{text}=" if kind == "deduction" else f"{program}#?={outputs[0]!a}:"
    # A text is shown to proposers, too.
    fits = max(len(prompt), len(text)) <= longest and prompt.isascii()
    return Question(kind, prompt, program, inputs, outputs) if fits else None


def solver_reward(text: str, asked: Question, run: Run) -> float:
    """1 if the answer is right, -.5 if it is not, -1 if it is malformed.

        deduction: o = p(i);   abduction: p(i) = o, whatever i was proposed;   induction: q(i) = o for all hidden pairs

    Args:
      text: of the solver.
      asked: what was asked.
      run: executes a program.
    """
    if asked.kind == "induction":
        if not is_program(text):
            return MALFORMED
        return 1.0 if run(text, asked.inputs) == asked.outputs else WRONG
    ok, value = literal(text)
    if not ok:
        return MALFORMED
    found = [value] if asked.kind == "deduction" else run(asked.program, [value])
    return 1.0 if found == asked.outputs else WRONG


def proposer_rewards(questions: Sequence[Question | None], accuracy: np.ndarray, *, unlearnable: float) -> np.ndarray:
    """Learnability of each proposal.

        1 - acc for 0 < acc < 1;   `unlearnable` for acc in {0, 1};   -1 for what cannot be asked

    Args:
      questions: B, None for those that cannot be asked.
      accuracy: float [B], share of right answers; not read if there is no question.
      unlearnable: 0 is the paper's equation, -.5 its code's, which counts a learnability of 0 as wrong.

    Returns:
      float32 [B].
    """
    return np.asarray(
        [
            MALFORMED if asked is None else 1.0 - share if 0 < share < 1 else unlearnable
            for asked, share in zip(questions, accuracy, strict=True)
        ],
        np.float32,
    )
