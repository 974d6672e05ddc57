"""Answers with the trace of a tool that checked them: Themis, tool-augmented reward models (arXiv 2310.01045). No jax.

    12*34=          the prompt
    408             the answer that is graded; what follows is written by the reward model, before it grades
    T: check        thought
    A: calculator   action
    I: 12*34        input of the action
    O: 408          observation: what the tool says (rl_jax.tasks.calculator)
    R: 44= 00= 88= same     rationale: the digits side by side, then whether they are equal

Themis's data (TARA) have the fields Thought, Action, Action Input and Observation in these words, and an explanation.
The products, the wrong answers (one digit is another) and the traces are made here.
"""

import itertools
import pathlib
import random
import re
from collections.abc import Iterator

import numpy as np

from rl_jax.preferences import records, sources
from rl_jax.tasks import calculator, hold_out

OBSERVED = "O"  # the first character of an observation, and of nothing else
MALFORMED = "!"  # what the tool says if the input is no expression
_CALL = re.compile(r"\nA: calculator\nI: (.*)\n$")


def observe(written: str) -> str:
    """The line that the tool adds to an answer and its trace up to the call: "O: 408"; "O: !" without a good call."""
    call = _CALL.search(written)
    try:
        return f"{OBSERVED}: {calculator.calculate(call[1])}" if call else f"{OBSERVED}: {MALFORMED}"
    except ValueError:
        return f"{OBSERVED}: {MALFORMED}"


def with_trace(expression: str, answer: str) -> str:
    """The answer and the whole trace that checks it."""
    begun = f"{answer}\nT: check\nA: calculator\nI: {expression}\n"
    seen = observe(begun)
    found = seen.removeprefix(f"{OBSERVED}: ")
    compared = (f"{a}{b}{'=' if a == b else '/'}" for a, b in itertools.zip_longest(answer, found, fillvalue="_"))
    return f"{begun}{seen}\nR: {' '.join(compared)} {'same' if found == answer else 'other'}"


def answer_of(text: str) -> str:
    """The answer in a text of `with_trace`: its first line."""
    return text.split("\n", 1)[0]


def trace_mask(
    tokens: np.ndarray, mask: np.ndarray, *, start: int, observed: int = -1, answers: bool = True
) -> np.ndarray:
    """The tokens of responses that the language-model term is about.

    Args:
      tokens: int [N, K, C] of the responses.
      mask: bool [N, K, C], which of them are there.
      start: token that ends an answer: the trace begins after the first one.
      observed: token that opens an observation, whose tokens are left out up to the next `start`; -1 keeps them, as
        Themis does.
      answers: whether the answer of the first response, the chosen one, counts, too, as it does in Themis's script.

    Returns:
      bool [N, K, C].
    """
    ends = (tokens == start) & mask
    before = np.cumsum(ends, axis=-1) - ends  # how many ends stand before each token
    kept = mask & (before > 0)
    if observed >= 0:
        lines = before[..., None] == np.arange(tokens.shape[-1] + 1)  # [N, K, C, lines]
        seen = (lines & ((tokens == observed) & mask)[..., None]).any(axis=-2)
        kept &= ~np.take_along_axis(seen, before, axis=-1)
    if answers:
        kept[:, 0] |= mask[:, 0] & (before[:, 0] == 0)
    return kept


def load(
    *,
    traces: bool = True,
    largest: int = 99,
    num_prompts: int = 4_000,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs of products, right and wrong, with the traces that check them.

    Args:
      traces: whether the responses have them; False: the answers alone, for a reward model without a tool.
      largest: factor.
      num_prompts: distinct products.
      seed: of everything that is drawn.
      test_share: the share of products in the test split, with their factors in either order.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs".

    Raises:
      ValueError: if there are fewer products than asked for.
    """
    if not 2 <= num_prompts <= largest**2 // 2:
        raise ValueError(f"num_prompts={num_prompts} must be 2..{largest**2 // 2}, half of largest={largest} squared")

    def read(path, bad, counts) -> Iterator[dict]:
        rng, seen = random.Random(f"{seed} traced"), set()
        while len(seen) < num_prompts:
            pair = rng.randint(1, largest), rng.randint(1, largest)
            if pair in seen:
                continue
            seen.add(pair)
            expression, right = f"{pair[0]}*{pair[1]}", str(pair[0] * pair[1])
            place = rng.randrange(len(right))
            digits = [d for d in "0123456789" if d != right[place] and (d != "0" or place)]
            sides = {"chosen": right, "rejected": right[:place] + rng.choice(digits) + right[place + 1 :]}
            texts = {name: with_trace(expression, text) if traces else text for name, text in sides.items()}
            yield records.parse("pairs", {"prompt": f"{expression}=", **texts, "expression": expression})

    arguments = dict(traces=bool(traces), largest=int(largest), num_prompts=int(num_prompts), seed=int(seed))
    return sources.prepare(
        "traced",
        "pairs",
        [pathlib.Path(__file__)],  # the records are made of nothing but code
        read,
        arguments=arguments,
        code=[calculator.__file__, hold_out.__file__],
        test_share=test_share,
        skip_bad_records=False,
        data_dir=data_dir,
        key=hold_out.unordered,  # 12*34 is no new product after 34*12
    )
