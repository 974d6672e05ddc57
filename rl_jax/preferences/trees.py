"""Preferences among the leaves of a tree of answers, or among answers that share nothing (arXiv 2402.10184).

    12+8-2=  --20--  20=18   20=17         tree: answers part at a step and share what comes before it
             --19--  19=17   19=27         chain: as many answers, each written on its own

A tree has `branching` ** steps leaves: at each total it goes on with the right next one and `branching` - 1 mistaken
ones. In a chain each step is right with probability 1 / branching, so that an answer is distributed as a random leaf.
The grade of an answer is the share of its steps that are right, each after the total before it. Of both, `pairs`
comparisons of two answers with different grades are drawn per prompt, so that the two cost the same labels. info has
`shared`, the number of totals that the two begin with, and the grades.
"""

import itertools
import pathlib
import random
from collections.abc import Iterator, Sequence

from rl_jax.preferences import sources
from rl_jax.preferences.generated import LARGEST, TRIES
from rl_jax.preferences.records import parse
from rl_jax.tasks import arithmetic

TOPOLOGIES = ("tree", "chain")
MISTAKES = (-10, -2, -1, 1, 2, 10)

Answer = tuple[int, ...]  # its totals


def load(
    *,
    topology: str = "tree",
    num_prompts: int = 500,
    steps: int = 3,
    branching: int = 2,
    pairs: int = 8,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs of answers to sums.

    Args:
      topology: "tree" or "chain".
      num_prompts: distinct sums.
      steps: totals of an answer, 2 to 6.
      branching: next totals at each node of a tree, 2 to 6.
      pairs: comparisons per prompt; fewer if there are not so many with different grades.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs".

    Raises:
      ValueError: if the topology is unknown or a number is out of its range.
    """
    if topology not in TOPOLOGIES:
        raise ValueError(f"topology={topology!r} is none of {', '.join(TOPOLOGIES)}")
    for name, number, most in (("steps", steps, 6), ("branching", branching, 1 + len(MISTAKES))):
        if not 2 <= number <= most:
            raise ValueError(f"{name}={number} must be 2..{most}")
    if num_prompts < 2 or pairs < 1:
        raise ValueError(f"num_prompts={num_prompts} must be at least 2, and pairs={pairs} at least 1")
    drawn = dict(topology=topology, num_prompts=int(num_prompts), steps=int(steps), branching=int(branching))
    drawn |= dict(pairs=int(pairs), seed=int(seed))

    def read(path, bad, counts) -> Iterator[dict]:
        rng, seen = random.Random(f"{seed} trees"), set()
        for _ in range(TRIES * num_prompts):
            problem = (rng.randint(1, LARGEST), *(rng.choice((1, -1)) * rng.randint(1, LARGEST) for _ in range(steps)))
            if arithmetic.canonical(problem) in seen:
                continue
            seen.add(arithmetic.canonical(problem))
            # A generator of its own for each sum, so that both topologies ask about the same ones.
            own = random.Random(f"{seed} {topology} {problem}")
            answers = grow(own, problem, branching) if topology == "tree" else write(own, problem, branching)
            yield from (parse("pairs", raw) for raw in compared(own, problem, answers, pairs))
            if len(seen) == num_prompts:
                return
        raise ValueError(f"num_prompts={num_prompts}: only {len(seen)} distinct sums of {steps} steps; lower it")

    return sources.prepare(
        "trees",
        "pairs",
        [pathlib.Path(__file__)],
        read,
        arguments=drawn,
        code=[arithmetic.__file__],
        test_share=test_share,
        skip_bad_records=False,
        data_dir=data_dir,
    )


def grow(rng: random.Random, problem: Sequence[int], branching: int) -> list[Answer]:
    """The leaves of a tree: at each total the right next one and branching - 1 mistaken ones, in random order."""
    level: list[Answer] = [()]
    for term in problem[1:]:
        grown = []
        for answer in level:
            right = (answer[-1] if answer else problem[0]) + term
            following = [right, *(right + off for off in rng.sample(MISTAKES, branching - 1))]
            grown += [(*answer, total) for total in rng.sample(following, branching)]
        level = grown
    return level


def write(rng: random.Random, problem: Sequence[int], branching: int) -> list[Answer]:
    """As many answers as a tree has leaves, each on its own; a step is right with probability 1 / branching."""
    answers = []
    for _ in range(branching ** (len(problem) - 1)):
        totals = [problem[0]]
        for term in problem[1:]:
            off = 0 if rng.random() * branching < 1 else rng.choice(MISTAKES)
            totals.append(totals[-1] + term + off)
        answers.append(tuple(totals[1:]))
    return answers


def compared(rng: random.Random, problem: Sequence[int], answers: Sequence[Answer], pairs: int) -> list[dict]:
    """The raw records of `pairs` comparisons of two answers with different grades, drawn without repetition."""
    candidates = sorted({tuple(sorted(two)) for two in itertools.combinations(answers, 2)})
    candidates = [two for two in candidates if grade(problem, two[0]) != grade(problem, two[1])]
    prompt, result = arithmetic.render(tuple(problem), worked=True)[0], []
    for two in rng.sample(candidates, min(pairs, len(candidates))):
        better, worse = sorted(two, key=lambda answer: -grade(problem, answer))
        grades = [grade(problem, better), grade(problem, worse)]
        texts = ["=".join(map(str, answer)) for answer in (better, worse)]
        margin = dict(margin=grades[0] - grades[1], grades=grades, shared=shared(better, worse))
        result.append({"prompt": prompt, "chosen": texts[0], "rejected": texts[1], **margin})
    return result


def grade(problem: Sequence[int], answer: Answer) -> float:
    """The share of steps that are right, each after the total before it."""
    befores = (problem[0], *answer)
    right = [before + term == total for before, term, total in zip(befores, problem[1:], answer, strict=False)]
    return sum(right) / len(answer)


def shared(one: Answer, other: Answer) -> int:
    """The number of totals that two answers begin with: the depth of their last common node."""
    return len(list(itertools.takewhile(lambda two: two[0] == two[1], zip(one, other, strict=True))))
