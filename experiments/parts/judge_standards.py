"""The standards of a judge of writing, tuned by an adversary and by known verdicts, in the words of a chat server.

    S_G   how a writer hides flaws              S_D   what the judge looks at
    each round: for some queries the writer writes an answer with hidden flaws by S_G, and the judge says by S_D whether
    it is good. If it says bad, S_G is rewritten with the judge's advice to the writer; if it says good, S_D with the
    flaws. Then some answers whose verdict is known are judged; each mistake is reflected on, and S_D rewritten.

Source: "Igniting Creative Writing in Small Language Models", arXiv 2508.21476, and its code, adversarial/main.py of
weixiaolong94-hub/Igniting-Creative-Writing-in-Small-Language-Models: this loop, batches of 4, at most 10 standards. The
words of the prompts are ours, in English, and so are the first standards; the queries there are for greetings.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.parts.chat import Chat, fenced, says
from experiments.parts.language_rewards import answered

MOST = 10  # standards
FLAWS = (
    "Write something that would fit any occasion, with nothing personal.",
    "Use a phrase that everybody uses.",
    "Leave out a detail of what was asked for.",
    "Be brief, and name no feeling.",
    "Take a tone that does not suit the occasion.",
)
STANDARDS = (
    "The answer is what was asked for.",
    "It says something sincere, not a formula of politeness.",
    "Words and tone suit the occasion and the people.",
    "It is not a cliche.",
    "Grammar and sense are right.",
    "It is about this person or event, not a template.",
)
WRITE = """Write a poor answer that looks good, to train a judge. Hide flaws in it by these rules:
{flaws}
What is asked for: {query}
Answer with a JSON object and nothing else: {{"response": the answer, "flaws": how you followed the rules}}"""
JUDGE = """Judge a piece of writing by these standards:
{standards}
What was asked for: {query}
The answer: {response}
Answer with a JSON object and nothing else: {{"verdict": "Good" or "Bad", "why": why, "advice": for Bad, how a writer \
could hide such flaws better, as a rule}}"""
REFLECT = """A judge of writing was wrong. What was asked for: {query}
The answer: {response}
The judge said {verdict}, because: {why}
It is {label}. Answer with a JSON object and nothing else: {{"why": what misled the judge, "advice": how its standards \
should change}}"""
REWRITE = """Improve a list of rules with some advice: take up what is new in it, make rules clearer, join those that \
say the same, leave out what contradicts it. Ten rules at most.
The rules:
{rules}
The advice: {advice}
Answer with a JSON object and nothing else: {{"rules": [the rules, one text each]}}"""
VERDICT = """Judge a piece of writing by these standards:
{standards}
What was asked for: {prompt}
The answer: {completion}
Is it good? Answer 1 for yes, 0 for no:"""


class Tuned(NamedTuple):
    """What came of it.

    Attributes:
      flaws: S_G, the writer's rules.
      standards: S_D, the judge's.
      rounds: for each round {"caught", "fooled", "right", "wrong"}: answers with hidden flaws that the judge called bad
        and good, known ones that it judged rightly and wrongly.
    """

    flaws: tuple[str, ...]
    standards: tuple[str, ...]
    rounds: tuple[dict[str, int], ...]


def read_fields(answer: str, *names: str) -> dict[str, Any]:
    """The JSON object of an answer, whose fields of these names are texts.

    Raises:
      ValueError: if it is none, or a field is missing or empty.
    """
    try:
        found = json.loads(fenced(answer))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is no JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(n), str) and found[n].strip() for n in names):
        raise ValueError(f"the answer must be a JSON object with the texts {', '.join(names)}")
    return found


def read_verdict(answer: str) -> dict[str, Any]:
    """A judge's answer. Raises ValueError if its verdict is neither Good nor Bad, or Bad comes without advice."""
    found = read_fields(answer, "verdict", "why")
    if found["verdict"] not in ("Good", "Bad"):
        raise ValueError(f"verdict={found['verdict']!r} is neither Good nor Bad")
    return read_fields(answer, "verdict", "why", *(["advice"] if found["verdict"] == "Bad" else []))


def read_rules(answer: str) -> tuple[str, ...]:
    """The rules of an answer, each on one line. Raises ValueError if there are none, or more than MOST."""
    try:
        found = json.loads(fenced(answer))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the answer is no JSON: {error}") from None
    rules = found.get("rules") if isinstance(found, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, str) and rule.strip() for rule in rules):
        raise ValueError('the answer must be {"rules": [texts]}')
    if not 1 <= len(rules) <= MOST:
        raise ValueError(f"there are {len(rules)} rules: 1 to {MOST}")
    return tuple(" ".join(rule.split()) for rule in rules)


def listed(rules: Sequence[str]) -> str:
    """Rules as a text, a line each."""
    return "\n".join(f"- {rule}" for rule in rules)


def tune(
    chat: Chat,
    queries: Sequence[str],
    known: Sequence[dict[str, str]],
    *,
    rounds: int,
    size: int = 4,
    seed: int = 0,
    repairs: int = 2,
    flaws: Sequence[str] = FLAWS,
    standards: Sequence[str] = STANDARDS,
) -> Tuned:
    """Runs the loop at the top of this file.

    Args:
      chat: the server, writer and judge at once.
      queries: what may be asked for.
      known: {"query", "response", "label": "Good" or "Bad"}; none: no reflection.
      rounds: of the loop.
      size: queries, and known answers, of a round; fewer if there are no more.
      seed: of which these are.
      repairs: requests that a refused answer is sent back in.
      flaws: S_G to start from.
      standards: S_D to start from.

    Raises:
      ValueError: if there is no query, a known answer lacks a field, or an answer of the server stays refused.
    """
    if not queries:
        raise ValueError("there is no query")
    for place, entry in enumerate(known):
        if not {"query", "response", "label"} <= set(entry) or entry["label"] not in ("Good", "Bad"):
            raise ValueError(f"known answer {place} must have query, response and a label that is Good or Bad")
    draws, flaws, standards, counts = random.Random(seed), tuple(flaws), tuple(standards), []

    def ask(text: str, read: Callable[[str], Any]) -> Any:
        return answered(chat, [says("user", text)], read, repairs)[0]

    def rewritten(rules: Sequence[str], advice: str) -> tuple[str, ...]:
        return ask(REWRITE.format(rules=listed(rules), advice=advice), read_rules)

    def judged(query: str, response: str) -> dict[str, Any]:
        return ask(JUDGE.format(standards=listed(standards), query=query, response=response), read_verdict)

    for _ in range(rounds):
        count = dict(caught=0, fooled=0, right=0, wrong=0)
        drawn = draws.sample(list(queries), min(size, len(queries)))
        read = lambda answer: read_fields(answer, "response", "flaws")  # noqa: E731
        written = [ask(WRITE.format(flaws=listed(flaws), query=query), read) for query in drawn]
        verdicts = [judged(query, answer["response"]) for query, answer in zip(drawn, written, strict=True)]
        for answer, verdict in zip(written, verdicts, strict=True):
            if verdict["verdict"] == "Bad":
                count["caught"] += 1
                flaws = rewritten(flaws, verdict["advice"])
            else:
                count["fooled"] += 1
                standards = rewritten(standards, answer["flaws"])
        shown = draws.sample(list(known), min(size, len(known)))
        verdicts = [judged(entry["query"], entry["response"]) for entry in shown]
        for entry, verdict in zip(shown, verdicts, strict=True):
            if verdict["verdict"] == entry["label"]:
                count["right"] += 1
                continue
            count["wrong"] += 1
            told = {name: entry[name] for name in ("query", "response", "label")}
            question = REFLECT.format(**told, verdict=verdict["verdict"], why=verdict["why"])
            advice = ask(question, lambda answer: read_fields(answer, "why", "advice"))["advice"]
            standards = rewritten(standards, advice)
        counts.append(count)
    return Tuned(flaws, standards, tuple(counts))


def judge_of(standards: Sequence[str], path: str) -> dict[str, Any]:
    """config.judge's entry for a language model that judges by these standards: 1 for good, 0 for not.

    Args:
      standards: S_D.
      path: the judge: workdir of a run or a Hugging Face folder.
    """
    told = listed(standards).replace("{", "(").replace("}", ")")  # braces are for what is filled in
    template = VERDICT.replace("{standards}", told)
    return dict(fn="pointwise", path=path, template=template, pattern="[01]", low=0.0, high=1.0, max_tokens=4)
