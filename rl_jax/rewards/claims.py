"""Verifiers of sets: graded triples (STAR-R1) and facts against a checklist (KLCF)."""

import re
from collections.abc import Sequence

from rl_jax.rewards import parsing, replies

MAX_CLAIMS = 1_000


def triples(
    prompt: str,
    completion: str,
    info: dict,
    *,
    credits: Sequence[float] = (0.5, 1.5, 5.0),
    extra: float = 1.0,
    missing: float = 1.0,
) -> dict[str, float]:
    """Partial credit for (object, attribute, value) triples, and a price for too many and for too few.

        R = sum_i c(i) - extra max(0, M - N) - missing max(0, N - M)

    M triples are given, N are right. c is credits[0] for the right object, credits[1] with the right attribute, and
    credits[2] with the right value; each right triple is matched once, best matches first. The price for too many stops
    listing all that there is, that for too few stops saying nothing. Source: arXiv 2505.15804 (STAR-R1), its
    credits by a review of it; the prices are our reading.

    Args:
      prompt: not read.
      completion: its <answer> or all of it: "(object, attribute, value), ...", or JSON [[...], ...].
      info: "triples", a list of three texts each.
      credits: of a match in one, two and three places; the last one is that of a right triple.
      extra: price of each triple more than there are.
      missing: price of each triple less than there are.

    Returns:
      reward, divided by credits[2] N: 1 if all is right; correct: 1 if the sets are equal; recall and precision: shares
      of right triples; format: 1 if there is a triple, or none is due.

    Raises:
      ValueError: if info["triples"] is no list of three texts each.
    """
    truth = list(dict.fromkeys(_truth(info["triples"])))
    found = _read_triples(parsing.answer(completion))
    distinct = list(dict.fromkeys(found))
    pairs = sorted(
        ((_places(given, right), -i, -j) for i, given in enumerate(distinct) for j, right in enumerate(truth)),
        reverse=True,
    )
    used_given, used_truth, credit = set(), set(), 0.0
    for places, i, j in pairs:
        if places and i not in used_given and j not in used_truth:
            used_given.add(i)
            used_truth.add(j)
            credit += credits[places - 1]
    more = len(found) - len(truth)  # a triple said twice is one too many
    total = credit - extra * max(0, more) - missing * max(0, -more)
    right = len(set(distinct) & set(truth))
    return {
        "reward": total / (credits[2] * max(len(truth), 1)),
        "correct": float(set(found) == set(truth) and len(found) == len(truth)),
        "recall": right / len(truth) if truth else float(not found),
        "precision": right / len(found) if found else float(not truth),
        "format": float(bool(found) or not truth),
    }


def facts(
    prompt: str,
    completion: str,
    info: dict,
    *,
    beta: float = 1.0,
    extract: str = "rl_jax.rewards.claims:sentences",
    matches: str = "rl_jax.rewards.claims:contains",
) -> dict[str, float]:
    """F_beta of a text's claims with a checklist: recall of known facts, and precision of what is claimed.

        R = (1 + beta^2) P Q / (beta^2 P + Q)

    Q is the share of the checklist that some claim says, P that of the claims that the checklist or info["true"]
    supports. Source: the dual alignment of arXiv 2509.23765 (KLCF), where a model extracts and judges claims; here two
    plain functions do, which you may replace.

    Args:
      prompt: not read.
      completion: its <answer>, or all of it after the thinking.
      info: "facts", the checklist: each a text, or a list of ways to say it; "true": more that is true, not asked for.
      beta: weight of recall over precision.
      extract: "module:function", text -> claims.
      matches: "module:function", (claim, fact) -> bool.

    Returns:
      reward; recall; precision; claims: their number.

    Raises:
      ValueError: if the checklist is empty.
    """
    checklist, more = ([_ways(fact) for fact in info.get(name, [])] for name in ("facts", "true"))
    if not checklist:
        raise ValueError('info["facts"] must be a list of facts that is not empty')
    split, supports = replies.resolve(extract), replies.resolve(matches)
    claims = list(dict.fromkeys(split(parsing.answer(completion)[: parsing.MAX_CHARS])))[:MAX_CLAIMS]

    def says(claim: str, fact: Sequence[str]) -> bool:
        return any(supports(claim, way) for way in fact)

    recall = sum(any(says(claim, fact) for claim in claims) for fact in checklist) / len(checklist)
    precision = sum(any(says(claim, fact) for fact in checklist + more) for claim in claims) / max(len(claims), 1)
    return {
        "reward": f_score(precision, recall, beta=beta),
        "recall": recall,
        "precision": precision,
        "claims": float(len(claims)),
    }


def _share_process(*, extract: str = "", matches: str = "", **_) -> bool:
    return replies.ours([extract, matches])


facts.shares_process = _share_process


def f_score(precision: float, recall: float, *, beta: float = 1.0) -> float:
    """(1 + beta^2) p r / (beta^2 p + r), 0 if both are 0."""
    below = beta**2 * precision + recall
    return (1.0 + beta**2) * precision * recall / below if below else 0.0


def sentences(text: str) -> list[str]:
    """The parts of a text between sentence ends, lines, commas, semicolons and "and", as claims.

    Cut small, so that a sentence that adds an untrue part to a true one does not pass as true.
    """
    parts = (part.strip(" \t-*•") for part in re.split(r"(?<=[.!?])\s|[\n;,]|\band\b", text))
    return [part for part in parts if re.search(r"\w", part)]


def contains(claim: str, fact: str) -> bool:
    """Whether all words of a fact stand next to each other in a claim, without case and punctuation."""
    words, wanted = ([word.lower() for word in re.findall(r"\w+", text)] for text in (claim, fact))
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def _ways(fact) -> list[str]:
    ways = [fact] if isinstance(fact, str) else list(fact)
    if not ways or not all(isinstance(way, str) and re.search(r"\w", way) for way in ways):
        raise ValueError(f"a fact must be a text, or a list of ways to say it, got {fact!r:.80}")
    return ways


def _truth(value) -> list[tuple[str, str, str]]:
    rows = value if isinstance(value, list) else [value]
    if not all(
        isinstance(row, list | tuple) and len(row) == 3 and all(isinstance(x, str) for x in row) for row in rows
    ):
        raise ValueError(f'info["triples"] must be a list of [object, attribute, value], got {value!r:.120}')
    return [tuple(map(_plain, row)) for row in rows]


def _read_triples(text: str) -> list[tuple[str, str, str]]:
    value = parsing.find_json(text)
    if isinstance(value, list) and value and all(isinstance(row, list) and len(row) == 3 for row in value):
        return [tuple(_plain(str(x)) for x in row) for row in value[:MAX_CLAIMS]]
    rows = [inner.split(",") for inner in parsing.blocks(text[: parsing.MAX_CHARS], "(", ")")]
    return [tuple(map(_plain, row)) for row in rows if len(row) == 3][:MAX_CLAIMS]


def _plain(text: str) -> str:
    return text.strip().strip("\"'").lower()


def _places(given: Sequence[str], right: Sequence[str]) -> int:
    """How many places agree, from the first on: object, then attribute, then value."""
    return next((i for i in range(3) if given[i] != right[i]), 3)
