"""Programs of Python to propose and to solve, generated: the warm start of Absolute Zero, and its held-out questions.

Demonstrations are proposals and solutions of the three kinds of rl_jax.selection.program_play, about functions such as
"def f(x):return x*3+2". They stand for the pretraining of the paper's base model; held out are solutions only.
"""

import functools
import hashlib
import json
import random
import string
from collections.abc import Mapping

from rl_jax.rewards import code
from rl_jax.rewards.sandbox import start
from rl_jax.selection import program_play
from rl_jax.selection.program_play import Question
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer

ALPHABET = string.ascii_letters + string.digits + " \n" + string.punctuation
TEST_IN = 5  # of so many programs, one is held out
ASKED = {"deduction": "deduce? ", "abduction": "abduce? ", "induction": "inputs? "}


def score(prompt: str, completion: str, info: Mapping, *, sandbox: str = "", cpu_s: float = 1.0) -> dict[str, float]:
    """1 for a right solution, else 0. info: fields of program_play.Question; `solver_reward` decides.

    Args:
      prompt: not read.
      completion: of the solver.
      info: kind, prompt, program, inputs and outputs.
      sandbox: a backend of sandbox.start.make; "": the first that holds.
      cpu_s: seconds of CPU of the program.
    """
    run = functools.partial(code.outputs, sandbox=sandbox, cpu_s=cpu_s)
    asked = Question(**{name: info[name] for name in Question._fields})
    return {"reward": float(program_play.solver_reward(completion.strip(), asked, run) == 1)}


score.prepare = lambda sandbox="", **_: start.kept(sandbox)


def load(
    *, num_train: int = 2_000, num_test: int = 200, seed: int = 0, data_dir: str = base.DEFAULT_DATA_DIR
) -> base.Task:
    """The task.

    Args:
      num_train: questions; as many proposals are demonstrated.
      num_test: questions about other programs.
      seed: of the questions.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a size is below 1.
    """
    if num_train < 1 or num_test < 1:
        raise ValueError(f"num_train and num_test must be at least 1, got {num_train} and {num_test}")
    arguments = dict(num_train=int(num_train), num_test=int(num_test), seed=int(seed))
    files = [__file__, program_play.__file__]
    sources = base.record_splits(
        "program_play", lambda: (make(**arguments), {}), arguments=arguments, code=files, data_dir=data_dir
    )
    return base.Task("program_play", CharTokenizer(ALPHABET), sources, score)


def make(*, num_train: int, num_test: int, seed: int) -> dict[str, list[dict]]:
    """The records of each split."""
    rng, splits = random.Random(seed), {"train": [], "test": [], "sft_train": []}
    while len(splits["train"]) < num_train or len(splits["test"]) < num_test:
        program, values = _draw(rng)
        held_out = hashlib.sha256(program.encode()).digest()[0] % TEST_IN == 0
        split, most = ("test", num_test) if held_out else ("train", num_train)
        if len(splits[split]) == most:
            continue
        kind, inputs = rng.choice(program_play.KINDS), rng.sample(range(10), 4)
        outputs = [values[x] for x in inputs]

        def run(_, asked, values=values):  # our own program: no sandbox is needed to know it
            return [values[x] for x in asked]

        text = ";".join(map(str, inputs)) if kind == "induction" else f"{program}#{inputs[0]}"
        asked = program_play.question(text, kind, run, program=program)
        right = {"deduction": str(outputs[0]), "abduction": str(inputs[0]), "induction": program}[kind]
        record = {"prompt": asked.prompt, "completion": right, "info": json.dumps(asked._asdict())}
        splits[split].append(record)
        if split == "train":
            other, _ = _draw(rng)
            example = other if kind == "induction" else f"{other}#{rng.randint(0, 9)}"
            proposal = record | {"prompt": f"{ASKED[kind]}{example}\n", "completion": text}
            splits["sft_train"] += [record, proposal]
    return splits


def _draw(rng: random.Random) -> tuple[str, list[int]]:
    """(a program, its outputs for 0 to 9)."""
    a, b, sign = rng.randint(1, 5), rng.randint(0, 9), rng.choice("+-")
    return f"def f(x):return x*{a}{sign}{b}", [x * a + (b if sign == "+" else -b) for x in range(10)]
