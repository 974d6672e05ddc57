"""The same answer under two prompts: multi-level aware preference learning (MAPL, arXiv 2505.12845). No jax.

    intra  x_w = "Give 2 numbers. End with 17.\n4 17 8:"     y = "4 17"   keeps both
           x_l = "Give 2 numbers. End with 8.\n4 17 8:"      y            keeps one
           -log sigma(r(x_w, y) - r(x_l, y))
    inter  x   = "Give 2 numbers. End with 17.\n4 17 8:"     y_w = "4 17" before y_l = "4": it keeps more of them

Each function of FUNCTIONS writes an instruction that an answer keeps, or one that it does not, so no label is needed.
Of an intra pair the answer keeps all instructions of x_w and not all of x_l, or at least one of x_w and none of x_l.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence

from rl_jax.preferences import generated, sources

PARTS = ("original", "intra", "inter")
WORLDS = ("length", "order")
LARGEST = 99


def _other(rng: random.Random, *taken: int) -> int:
    """A number that is none of `taken`."""
    return rng.choice(sorted(set(range(1, LARGEST + 1)) - set(taken)))


def _count(numbers: Sequence[int], kept: bool, rng: random.Random) -> str:
    size = len(numbers) if kept else rng.choice([x for x in range(1, 7) if x != len(numbers)])
    return f"Give {size} numbers."


def _first(numbers: Sequence[int], kept: bool, rng: random.Random) -> str:
    return f"Start with {numbers[0] if kept else _other(rng, numbers[0])}."


def _last(numbers: Sequence[int], kept: bool, rng: random.Random) -> str:
    return f"End with {numbers[-1] if kept else _other(rng, numbers[-1])}."


def _without(numbers: Sequence[int], kept: bool, rng: random.Random) -> str:
    return f"Leave out {_other(rng, *numbers) if kept else rng.choice(numbers)}."


# The paper's G_0: (the numbers of an answer, whether it keeps the instruction, rng) -> the instruction.
FUNCTIONS: dict[str, Callable] = {"Give": _count, "Start": _first, "End": _last, "Leave": _without}


def keeps(answer: str, instruction: str) -> bool:
    """Whether an answer keeps an instruction of FUNCTIONS. Raises ValueError for another text."""
    numbers, name = [int(x) for x in answer.split()], instruction.split(" ")[0]
    asked = re.findall(r"\d+", instruction)
    if name not in FUNCTIONS or len(asked) != 1 or not numbers:
        raise ValueError(f"{instruction!r} is no instruction of {', '.join(FUNCTIONS)}, or {answer!r} has no number")
    number = int(asked[0])
    checks = {"Give": len(numbers) == number, "Start": numbers[0] == number}
    return (checks | {"End": numbers[-1] == number, "Leave": number not in numbers})[name]


def load(
    *,
    parts: Sequence[str] = PARTS,
    world: str = "length",
    num_prompts: int = 1_000,
    instructions: int = 3,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs with their intra-sample and inter-sample pairs.

    Args:
      parts: of PARTS; `original` are the pairs of the world themselves.
      world: "length" or "order", of rl_jax.preferences.generated; user 0's pairs.
      num_prompts: distinct prompts.
      instructions: most instructions of a prompt, 2 to 4; each prompt has 2 or more.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs". info has `part`, and `kept`: how many instructions each side keeps.

    Raises:
      ValueError: if a part or the world is unknown, or instructions is out of its range.
    """
    parts = (parts,) if isinstance(parts, str) else tuple(parts)
    if not parts or set(parts) - set(PARTS):
        raise ValueError(f"parts={parts} must be of {', '.join(PARTS)}")
    if world not in WORLDS:
        raise ValueError(f"world={world!r} is none of {', '.join(WORLDS)}, whose answers are lists of numbers")
    if not 2 <= instructions <= len(FUNCTIONS):
        raise ValueError(f"instructions={instructions} must be 2..{len(FUNCTIONS)}")
    options = dict(num_prompts=num_prompts, seed=seed, test_share=test_share, data_dir=data_dir)
    plain = generated.load(kind="pairs", world=world, **options)
    make = {"original": lambda record, rng, most: record, "intra": intra, "inter": inter}
    return plain._replace(
        name="instructed",
        data_source=lambda split: Instructed(plain.data_source(split), [make[x] for x in parts], parts, instructions),
    )


class Instructed:
    """The pairs of user 0 of a source, each once for every part; `inter` has those whose answers `differ`.

    Attributes:
      kind: "pairs".
      name: "instructed".
      split: of the source.
      report: of the source, and num_alike: pairs that are not in `inter`.
      num_skipped: of the source.
    """

    def __init__(self, source, makers: Sequence[Callable], parts: Sequence[str], most: int):
        """makers: (record, rng, most) -> record, of each part."""
        self._source, self._makers, self._parts, self._most = source, makers, parts, most
        self._places, alike = [], 0  # (of the source, part)
        for place in range(len(source)):
            record = source[place]
            if record["info"]["user"] == 0:
                apart = differ(*record["responses"])
                alike += not apart
                self._places += [(place, part) for part, name in enumerate(parts) if apart or name != "inter"]
        self.kind, self.name, self.split = "pairs", "instructed", source.split
        self.report, self.num_skipped = {**source.report, "num_alike": alike}, source.num_skipped

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict:
        place, part = self._places[range(len(self))[index]]
        record = self._source[place]
        rng = random.Random(f"{self._parts[part]} {record['prompt']}")
        made = self._makers[part](record, rng, self._most)
        return made | {"info": {**made["info"], "part": self._parts[part]}}


def intra(record: Mapping, rng: random.Random, most: int) -> dict:
    """A pair of prompts for one of the two answers, the better prompt first."""
    answer = rng.choice(record["responses"])
    numbers = [int(x) for x in answer.split()]
    names = rng.sample(sorted(FUNCTIONS), rng.randint(2, most))
    if rng.random() < 0.5:  # all before some
        better, worse = len(names), rng.randrange(len(names))
    else:  # some before none
        better, worse = rng.randint(1, len(names)), 0
    prompts = []
    for count in (better, worse):
        kept = set(rng.sample(names, count))
        lines = [FUNCTIONS[name](numbers, name in kept, rng) for name in names]
        prompts.append(" ".join(lines) + "\n" + record["prompt"])
    return {
        **record,
        "prompt": prompts[0],
        "prompts": prompts,
        "responses": [answer, answer],
        "margin": 0.0,
        "info": {"kept": [better, worse], "asked": len(names)},
    }


def differ(answer: str, other: str) -> bool:
    """Whether instructions tell two answers apart: by their lengths, their first or their last numbers."""
    numbers, others = answer.split(), other.split()
    return (len(numbers), numbers[0], numbers[-1]) != (len(others), others[0], others[-1])


def inter(record: Mapping, rng: random.Random, most: int) -> dict:
    """The two answers under one prompt: the one that keeps all of its instructions before one that does not.

    Raises:
      ValueError: if the answers do not `differ`.
    """
    if not differ(*record["responses"]):
        raise ValueError(f"no instruction tells {' from '.join(map(repr, record['responses']))}: leave the pair out")
    responses = rng.sample(record["responses"], 2)
    numbers = [int(x) for x in responses[0].split()]
    while True:
        names = rng.sample(sorted(FUNCTIONS), rng.randint(2, most))
        lines = [FUNCTIONS[name](numbers, True, rng) for name in names]
        kept = [sum(keeps(answer, line) for line in lines) for answer in responses]
        if kept[1] < kept[0]:
            break
    prompt = " ".join(lines) + "\n" + record["prompt"]
    info = {"kept": kept, "asked": len(names)}
    return {**record, "prompt": prompt, "responses": responses, "margin": 0.0, "info": info}
