"""Products for rl_jax.envs.text.calculator: "12*34=", with recorded episodes to imitate.

A recorded episode calls the calculator in `call_share` of the cases, and half of these calls are malformed. All others
guess: a number of about the right size. So a model that imitates them solves about half of call_share.
"""

import json
import random
import re

from rl_jax.data.checks import RECORDED
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-*=c?!"  # a call begins with "c", an answer of the calculator with "?"
_EXPRESSION = re.compile(r"(\d{1,9})([+*-])(\d{1,9})")


def calculate(expression: str) -> int:
    """The value of NUMBER OPERATOR NUMBER.

    Raises:
      ValueError: if it is anything else.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise ValueError(f"{expression!r:.60} is not NUMBER OPERATOR NUMBER, as 12*34")
    left, operator, right = int(match[1]), match[2], int(match[3])
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


def load(
    *,
    digits: int = 3,
    num_train: int = 20_000,
    num_test: int = 500,
    call_share: float = 0.3,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task. Its reward is the environment's.

    Args:
      digits: most digits of a factor.
      num_train: distinct problems.
      num_test: distinct problems, none of them among the others.
      call_share: share of the recorded episodes with a call.
      seed: of the problems and the episodes.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task.

    Raises:
      ValueError: if a setting is out of its range.
    """
    pairs = (10**digits - 1) ** 2
    if not 1 <= digits <= 4 or not 0 <= call_share <= 1:
        raise ValueError(f"digits={digits} must be 1 to 4, and call_share={call_share} from 0 to 1")
    if num_train < 1 or num_test < 1 or num_train + num_test > pairs // 2:
        most = f"1 or more, at most {pairs // 2} in all"
        raise ValueError(f"num_train={num_train} and num_test={num_test} must be {most}")

    def make():
        rng = random.Random(seed)
        chosen = dict.fromkeys((_factor(rng, digits), _factor(rng, digits)) for _ in range(4 * (num_train + num_test)))
        chosen = list(chosen)[: num_train + num_test]
        if len(chosen) < num_train + num_test:
            raise ValueError(f"digits={digits} has too few distinct problems: lower num_train={num_train}")
        train, test = chosen[:num_train], chosen[num_train:]
        recorded = [_record(pair, _episode(pair, rng, call_share)) for pair in train]
        plain = {"train": [_record(pair) for pair in train], "test": [_record(pair) for pair in test]}
        return plain | {"sft_train": recorded}, {}

    arguments = dict(digits=digits, num_train=num_train, num_test=num_test, call_share=float(call_share), seed=seed)
    sources = base.record_splits("calculator", make, arguments=arguments, code=[__file__], data_dir=data_dir)
    return base.Task("calculator", CharTokenizer(ALPHABET), sources, None)


def _factor(rng: random.Random, digits: int) -> int:
    return rng.randrange(1, 10**digits)


def _record(pair: tuple[int, int], turns: list[str] | None = None) -> dict[str, str]:
    """turns: of the model and of the environment in turn; the model begins and ends."""
    info = {"answer": pair[0] * pair[1]} | ({RECORDED: turns} if turns else {})
    return {"prompt": f"{pair[0]}*{pair[1]}=", "completion": turns[-1] if turns else "", "info": json.dumps(info)}


def _episode(pair: tuple[int, int], rng: random.Random, call_share: float) -> list[str]:
    """One recorded episode."""
    product = pair[0] * pair[1]
    guess = str(rng.randrange(1, 2 * product + 1))
    drawn = rng.random()
    if drawn < call_share / 2:
        return [f"c{pair[0]}*{pair[1]}", f"?{product}=", str(product)]
    if drawn < call_share:
        wrong = rng.choice([f"{pair[0]}*", f"*{pair[1]}", f"{pair[0]}**{pair[1]}", f"{pair[0]}"])
        return [f"c{wrong}", "?!=", guess]
    return [guess]
