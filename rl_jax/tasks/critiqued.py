"""Critiques as demonstrations: critique fine-tuning on one problem (arXiv 2506.03295).

    prompt "3+5-2+7=8=6?"      a problem and a candidate solution
    target "3+5=8,8-2=6:W8=6=13"   the critique: each step checked, the verdict, and if it is wrong the right solution
    loss = -log p(critique | problem, candidate)

The model is trained on critiques of many candidates of few problems and asked to solve other ones. The prompts of the
other splits are the task's own. Candidates are right solutions, those that stop early and those with mistaken steps, or
come from a file of sampled ones (rankings.jsonl of experiments.best_of_n). A critic is a function (prompt, candidate,
info) -> text; in the paper seven language models, here `sums`, which can check, or `verdict`.
"""

import itertools
import json
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence

from rl_jax import tasks
from rl_jax.core.binding import resolve
from rl_jax.data import readers
from rl_jax.rewards.arithmetic import read
from rl_jax.tasks.axes import terms_of
from rl_jax.tasks.base import RecordSource, Task
from rl_jax.tokenizers import CharTokenizer

ALPHABET = "0123456789+-=?,:RW"
TEMPLATE = "{prompt}{candidate}?"
MISTAKES = (-10, -2, -1, 1, 2, 10)
TRIES = 50  # draws for each candidate


def load(
    *,
    of: Mapping,
    problems: int = 1,
    candidates: int = 100,
    path: str = "",
    critic: str = "rl_jax.tasks.critiqued:sums",
    template: str = TEMPLATE,
    alphabet: str = ALPHABET,
    seed: int = 0,
) -> Task:
    """A task whose demonstrations are critiques of candidate solutions.

    Args:
      of: keywords of rl_jax.tasks.load, its name among them.
      problems: the first ones of the training split; 0: all of its demonstrations.
      candidates: of each problem, about 100 in the paper; 0: the demonstration itself, whatever it is worth.
      path: a JSONL file of sampled candidates, {"prompt", "responses": [...]}; "": of sums they are generated.
      critic: import path of (prompt, candidate, info) -> the critique.
      template: what the critic is asked, with {prompt} and {candidate}; without the latter the model is asked to
        solve, as a control is.
      alphabet: the characters of the tokenizer; "": the task's own.
      seed: of the candidates.

    Returns:
      Task. Its other splits and its reward are the task's own.

    Raises:
      ValueError: if a number is negative, or the template lacks {prompt}.
    """
    if problems < 0 or candidates < 0:
        raise ValueError(f"problems={problems} and candidates={candidates} must be 0 or more")
    if "{prompt}" not in template:
        raise ValueError(f"template={template!r} must have {{prompt}}")
    task, write = tasks.load(**of), resolve(critic)

    def data_source(split: str) -> RecordSource:
        if split != "sft_train":
            return task.data_source(split)
        source = task.data_source("train" if problems else "sft_train")
        chosen = [source[place] for place in range(min(problems, len(source)) if problems else len(source))]
        return Critiqued(source, pairs_of(chosen, candidates, path, seed), write, template)

    own = CharTokenizer(alphabet) if alphabet else task.tokenizer
    return task._replace(name=f"critiqued_{task.name}", tokenizer=own, data_source=data_source)


class Critiqued(RecordSource):
    """Critiques of candidates, one record for each."""

    def __init__(self, source, pairs: Sequence[tuple[Mapping, str]], critic: Callable, template: str):
        """source: of the task. pairs: (record, candidate). critic, template: see `load`."""
        super().__init__(pairs, name="critiqued", split="sft_train", report=source.report)
        self._critic, self._template = critic, template

    def __getitem__(self, index: int) -> dict[str, str]:
        record, candidate = self._data[range(len(self))[index]]
        asked = self._template.replace("{prompt}", record["prompt"], 1).replace("{candidate}", candidate, 1)
        critique = self._critic(record["prompt"], candidate, json.loads(record["info"]))
        return {**record, "prompt": asked, "completion": critique}


def pairs_of(records: Sequence[Mapping], count: int, path: str, seed: int) -> list[tuple[Mapping, str]]:
    """(record, candidate) of all candidates.

    Raises:
      ValueError: if the file has no candidate for these problems.
    """
    if path:
        by_prompt, bad, found = {record["prompt"]: record for record in records}, readers.BadRecords(), []
        for line, row in readers.read_objects(pathlib.Path(path), bad):
            responses = row.get("responses")
            if not isinstance(responses, list) or not all(isinstance(text, str) for text in responses):
                bad.reject(path, line, "expected a list of texts", field="responses")
            if row.get("prompt") in by_prompt:
                found += [(by_prompt[row["prompt"]], text) for text in responses[: count or None]]
        if not found:
            raise ValueError(
                f"{path}: no line has a prompt of the {len(records)} problems: sample those, or raise problems"
            )
        return found
    if not count:
        return [(record, record["completion"]) for record in records]
    rng = random.Random(f"{seed} candidates")
    return [(record, text) for record in records for text in solutions(record["prompt"], count, rng)]


def solutions(prompt: str, count: int, rng: random.Random) -> list[str]:
    """Up to `count` different candidates of a sum, the right one first: mistaken steps, from which the rest goes on."""
    terms = terms_of(prompt)
    found = dict.fromkeys(["=".join(map(str, list(itertools.accumulate(terms))[1:]))])
    for _ in range(TRIES * count):
        totals = [terms[0]]
        for term in terms[1:]:
            totals.append(totals[-1] + term + (rng.choice(MISTAKES) if rng.random() < 0.3 else 0))
        found.setdefault("=".join(map(str, totals[1 : rng.randint(2, len(totals))])))
        if len(found) >= count:
            break
    return list(found)[:count]


def sums(prompt: str, candidate: str, info: Mapping) -> str:
    """Each total checked up to the first mistake, "3+5=8,8-2=6", then ":R", or ":W" and the right totals."""
    terms = terms_of(prompt)
    right = list(itertools.accumulate(terms))[1:]
    checks, before = [], terms[0]
    for term, total, said in zip(terms[1:], right, candidate.split("="), strict=False):
        checks.append(f"{before}{term:+d}={total}")
        before = total
        if read(said) != total:
            break
    whole = "=".join(map(str, right))
    return ",".join(checks) + (":R" if candidate == whole else ":W" + whole)


def verdict(prompt: str, candidate: str, info: Mapping) -> str:
    """ "1" if the candidate is info["reference"] or info["answer"], else "0"."""
    return str(int(candidate == str(info.get("reference", info.get("answer")))))


def solution(prompt: str, candidate: str, info: Mapping) -> str:
    """The right totals of a sum, whatever the candidate is: a control."""
    return "=".join(map(str, list(itertools.accumulate(terms_of(prompt)))[1:]))


def candidate(prompt: str, candidate: str, info: Mapping) -> str:
    """The candidate itself: plain fine-tuning on it."""
    return candidate
