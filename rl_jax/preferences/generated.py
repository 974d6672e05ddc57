"""Preferences that are made here, from a seed: they need no file, and who is right is known.

worlds of one user, whose best response is right:
    sums    "12+8-2+6=" -> "20=18=24", the running totals. A wrong response has one wrong step and goes on from there:
            "20=19=25". Its grade is the share of totals before the mistake. Also as labelled steps.
    moods   "Mia saw a red bird in the park." -> " She was glad. The bird was mean. It was a nice day."
            The grade is the share of good sentences (rl_jax.rewards.lexicon).
worlds of two users with opposed tastes, who see the same prompts; {"user": 0 or 1} in info says whose a record is:
    order   "4 17 8 3:" -> "3 4 8 17". User 0 wants numbers to rise, user 1 to fall: user 0's grade is the share of
            pairs of numbers that stand in rising order, user 1's is 1 minus that.
    length  "4 17 8 3:" -> "4 17". The first numbers of the list: user 0 wants few, user 1 many.

Every prompt has `responses` responses with different grades in [0, 1]. What a record is made of:
    pairs     the best one for the user, and one of the others, with their grades as rewards (1 and 0 where annotators
              vote, who may choose the worse one). margin: the difference of the grades.
    rankings  all of them, with their grades as rewards.
    labels    two records a prompt: the best one (true), and one of the others (false).
    steps     of sums alone: "12+8=20", "20-2=19", ... and the place of the first wrong one, in half of the records.
info has the grades, in the order of the responses, and of a sum its answer. No two prompts hold the same numbers, so
that none is on both sides of the split in another order.
"""

import math
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rl_jax.preferences import jsonl, sources
from rl_jax.preferences.records import KINDS, parse
from rl_jax.tasks import arithmetic, moods

SHARPNESS = 4.0  # an annotator is right with probability sigmoid(SHARPNESS * difference of the grades)
LARGEST = 20  # number of a sum
TRIES = 100  # draws for each prompt that is asked for


class Drawn(NamedTuple):
    """A prompt with graded responses.

    key: what it is up to the order of its numbers. responses: (text, grade), best first for user 0. steps: of a sum,
    the steps of a solution and the place of its first wrong one, or None.
    """

    key: str
    prompt: str
    responses: list[tuple[str, float]]
    info: dict
    steps: tuple[list[str], int | None] | None = None


def load(
    *,
    kind: str = "pairs",
    world: str = "sums",
    num_prompts: int = 2_000,
    responses: int = 4,
    annotators: int = 0,
    chat: bool = False,
    equations: bool = True,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated preferences.

    Args:
      kind: "pairs", "rankings", "labels" or "steps".
      world: "sums", "moods", "order" or "length".
      num_prompts: distinct prompts; with two users each prompt has a record of each.
      responses: of each prompt, 2 to 6, with as many different grades.
      annotators: of pairs, an odd number who vote on which is better; label_prob is the share of the majority, which
        may be wrong (its margin is then 0). 0: the better one is chosen, label_prob is 1.
      chat: prompts are messages.
      equations: whether a step is an equation, "12+8=20", or the total alone, "20", as the task arithmetic writes it.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences.

    Raises:
      ValueError: an unknown kind or world, a number out of its range, or a world that has not so many prompts.
    """
    if world not in WORLDS:
        raise ValueError(f"world={world!r} is none of {', '.join(WORLDS)}")
    if kind not in KINDS or (kind == "steps" and world != "sums"):
        raise ValueError(
            f"kind={kind!r}: generated {world} come as pairs, rankings, labels{', steps' * (world == 'sums')}"
        )
    if not 2 <= responses <= 6:
        raise ValueError(f"responses must be 2..6, got {responses}")
    if num_prompts < 2:
        raise ValueError(f"num_prompts must be at least 2, got {num_prompts}")
    if annotators < 0 or (annotators and (annotators % 2 == 0 or kind != "pairs")):
        raise ValueError(f"annotators={annotators} must be 0, or odd and with kind='pairs': they vote on pairs")
    drawn = {"world": world, "num_prompts": int(num_prompts), "responses": int(responses), "seed": int(seed)}

    def read(path, bad, counts) -> Iterator[dict]:
        for problem, user in draw(**drawn, users=USERS.get(world, (None,))):
            # A generator of its own for each record: one more draw in one does not change the others.
            rng = random.Random(f"{seed} {kind} {problem.key} {user}")
            if not equations and problem.steps:
                totals = [step.rpartition("=")[2] for step in problem.steps[0]]
                problem = problem._replace(steps=(totals, problem.steps[1]))
            for raw in MAKERS[kind](rng, problem, user, annotators):
                prompt = [{"role": "user", "content": problem.prompt}] if chat else problem.prompt
                more = problem.info if user is None else {**problem.info, "user": user}
                yield parse(kind, {"prompt": prompt, **raw, **more})

    arguments = {**drawn, "annotators": int(annotators), "chat": bool(chat)}
    return sources.prepare(
        "generated",
        kind,
        [pathlib.Path(__file__)],  # the records are made of nothing but code
        read,
        arguments=arguments | ({} if equations else {"equations": False}),
        code=[arithmetic.__file__, *moods.CODE],
        test_share=test_share,
        skip_bad_records=False,
        data_dir=data_dir,
    )


def load_given(
    *,
    path: str = "",
    kind: str = "pairs",
    columns: Mapping[str, str] | None = None,
    sort_by_reward: bool = False,
    contradictions: str = "stop",
    test_share: float = 0.1,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """The records of the files `path`, as `jsonl` reads them; without a path generated sums of the same kind."""
    common = dict(kind=kind, test_share=test_share, data_dir=data_dir)
    if not path:
        return load(**common)
    common |= dict(columns=columns, sort_by_reward=sort_by_reward, contradictions=contradictions)
    common |= dict(skip_bad_records=skip_bad_records)
    return jsonl.load(path=path, **common)


def draw(
    *, world: str, num_prompts: int, responses: int, seed: int, users: tuple[int | None, ...] = (None,)
) -> Iterator[tuple[Drawn, int | None]]:
    """Yields (what is drawn, user) for each of num_prompts prompts and each user.

    Raises ValueError if the world has fewer prompts than asked for.
    """
    rng, seen = random.Random(f"{seed} {world}"), set()
    for _ in range(TRIES * num_prompts):
        problem = WORLDS[world](rng, responses)
        if problem.key in seen:
            continue
        seen.add(problem.key)
        for user in users:
            yield problem, user
        if len(seen) == num_prompts:
            return
    raise ValueError(
        f"num_prompts={num_prompts}: {TRIES} tries for each gave only {len(seen)} distinct {world}; lower it"
    )


# --- Worlds: (rng, number of responses) -> Drawn -----------------------------------------------------------------


def _sums(rng: random.Random, count: int) -> Drawn:
    problem = [rng.randint(1, LARGEST)]
    for _ in range(max(count, 3) - 1):  # a total less than numbers: so many grades below 1
        problem.append(rng.choice((1, -1)) * rng.randint(1, LARGEST))
    prompt, right = arithmetic.render(tuple(problem), worked=True)
    totals = [int(total) for total in right.split("=")]
    places = sorted(rng.sample(range(len(totals)), count - 1), reverse=True)
    wrong = {place: _mistaken(totals, place, rng) for place in places}
    texts = [(right, 1.0)] + [(_joined(wrong[place]), place / len(totals)) for place in places]
    mistake = rng.choice((None, rng.choice(places)))
    shown = totals if mistake is None else wrong[mistake]
    befores = [problem[0], *shown]
    steps = [f"{before}{term:+d}={after}" for before, term, after in zip(befores, problem[1:], shown, strict=False)]
    return Drawn(arithmetic.canonical(tuple(problem)), prompt, texts, {"answer": totals[-1]}, (steps, mistake))


def _mistaken(totals: list[int], place: int, rng: random.Random) -> list[int]:
    """The totals with a wrong one at `place`, from which the rest goes on."""
    off = rng.choice((-10, -2, -1, 1, 2, 10))
    return totals[:place] + [total + off for total in totals[place:]]


def _joined(totals: list[int]) -> str:
    return "=".join(map(str, totals))


def _moods(rng: random.Random, count: int) -> Drawn:
    prompt, person, thing = moods.draw_prompt(rng)
    sentences = max(count, 3) - 1
    texts = []
    for num_good in sorted(rng.sample(range(sentences + 1), count), reverse=True):
        plan = [place < num_good for place in range(sentences)]
        rng.shuffle(plan)
        texts.append((moods.draw_rest(rng, person, thing, plan), num_good / sentences))
    return Drawn(prompt, prompt, texts, {})


def _order(rng: random.Random, count: int) -> Drawn:
    numbers = rng.sample(range(1, 100), 4)
    result: dict[int, list[int]] = {6: sorted(numbers), 0: sorted(numbers, reverse=True)}
    while len(result) < count:
        chosen = rng.sample(numbers, len(numbers))
        result.setdefault(_rising(chosen), chosen)
    texts = [(_listed(result[rising]), rising / 6) for rising in sorted(result, reverse=True)]
    return Drawn(_listed(sorted(numbers)), _listed(numbers) + ":", texts, {})


def _rising(numbers: list[int]) -> int:
    """How many of the pairs stand in rising order."""
    return sum(a < b for place, a in enumerate(numbers) for b in numbers[place + 1 :])


def _length(rng: random.Random, count: int) -> Drawn:
    numbers = rng.sample(range(1, 100), max(count, 4))
    longest = len(numbers)
    lengths = sorted({1, longest, *rng.sample(range(2, longest), count - 2)})
    texts = [(_listed(numbers[:length]), 1 - (length - 1) / (longest - 1)) for length in lengths]
    return Drawn(_listed(sorted(numbers)), _listed(numbers) + ":", texts, {})


def _listed(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


WORLDS: dict[str, Callable[[random.Random, int], Drawn]] = {
    "sums": _sums,
    "moods": _moods,
    "order": _order,
    "length": _length,
}
USERS = {"order": (0, 1), "length": (0, 1)}


# --- Kinds: (rng, what is drawn, user, annotators) -> the fields of its records in a file ----------------------------


def _graded(problem: Drawn, user: int | None) -> list[tuple[str, float]]:
    """(text, the user's grade), best first."""
    if user != 1:
        return problem.responses
    return [(text, 1.0 - grade) for text, grade in reversed(problem.responses)]


def _pairs(rng, problem: Drawn, user, annotators: int) -> list[dict]:
    graded = _graded(problem, user)
    better, worse = graded[0], rng.choice(graded[1:])
    margin, label_prob = better[1] - worse[1], 1.0
    rewards = {"chosen_reward": better[1], "rejected_reward": worse[1]}
    if annotators:
        rewards = {}  # of responses that the vote only orders
        right = 1.0 / (1.0 + math.exp(-SHARPNESS * margin))
        votes = sum(rng.random() < right for _ in range(annotators))
        label_prob = max(votes, annotators - votes) / annotators
        if 2 * votes < annotators:
            better, worse, margin = worse, better, 0.0
    said = {"label_prob": label_prob, "margin": margin, "grades": [better[1], worse[1]]}
    return [{"chosen": better[0], "rejected": worse[0], **rewards, **said}]


def _rankings(rng, problem: Drawn, user, annotators: int) -> list[dict]:
    texts, grades = zip(*_graded(problem, user), strict=True)
    return [{"responses": list(texts), "rewards": list(grades), "grades": list(grades)}]


def _labels(rng, problem: Drawn, user, annotators: int) -> list[dict]:
    graded = _graded(problem, user)
    rows = [(graded[0], True), (rng.choice(graded[1:]), False)]
    return [{"completion": text, "label": label, "grades": [grade]} for (text, grade), label in rows]


def _steps(rng, problem: Drawn, user, annotators: int) -> list[dict]:
    steps, mistake = problem.steps
    return [{"steps": steps, "mistake_index": mistake}]


MAKERS = {"pairs": _pairs, "rankings": _rankings, "labels": _labels, "steps": _steps}
