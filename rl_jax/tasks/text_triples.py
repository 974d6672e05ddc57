"""Triples of texts for an embedding: a query, a positive that means the same, and a hard negative (GRACE).

    query     3+5-2+7=
    positive  7-2+3+5=     the same terms in another order
    negative  3+5-2+4=     one term is another

The three records of a triple follow each other: sample.prompts is dict(fn="ordered"), and the prompts of a step and of
an evaluation's batch are whole triples. The demonstrations are those of arithmetic. Source: arXiv 2510.04506, whose
texts are those of retrieval.
"""

import itertools
import json
import random
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.selection.rewriting import diversify
from rl_jax.tasks.axes import terms_of
from rl_jax.tasks.base import RecordSource, Task

ROLES = ("query", "positive", "negative")


def load(*, of: Mapping) -> Task:
    """The task arithmetic with three prompts for each of its problems.

    Args:
      of: keywords of rl_jax.tasks.load of the task arithmetic.

    Returns:
      Task. A record's info has `role`, of ROLES, `triple` (the index of its problem) and its own `answer`.
    """
    task = tasks.load(**of)

    def data_source(split: str):
        source = task.data_source(split)
        return source if split == "sft_train" else Triples(source)

    return task._replace(name="text_triples", data_source=data_source)


class Triples(RecordSource):
    """The problems of a source, each three times."""

    def __init__(self, source):
        super().__init__(source, name="text_triples", split=source.split, report=source.report)

    def __len__(self) -> int:
        return len(ROLES) * len(self._data)

    def __getitem__(self, index: int) -> dict[str, str]:
        triple, place = divmod(index, len(ROLES))
        record, role = self._data[triple], ROLES[place]
        prompt = ask(record["prompt"], role, random.Random(triple))
        totals = list(itertools.accumulate(terms_of(prompt)))[1:]
        info = json.loads(record["info"]) | {"role": role, "triple": triple, "answer": totals[-1]}
        return {"prompt": prompt, "completion": "=".join(map(str, totals)), "info": json.dumps(info)}


def ask(prompt: str, role: str, rng: random.Random) -> str:
    """The prompt of one role. prompt: of the query, "3+5-2+7=". rng: the same for the roles of a triple."""
    if role == "query":
        return prompt
    if role == "positive":
        return diversify(prompt, rng)
    terms = terms_of(prompt)
    place = rng.randrange(1, len(terms))
    digits = len(str(abs(terms[place])))
    lowest = 10 ** (digits - 1)
    other = rng.choice([n for n in range(lowest, 10 * lowest) if n != abs(terms[place])])
    terms[place] = other if terms[place] >= 0 else -other
    return str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:]) + "="
