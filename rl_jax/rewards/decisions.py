"""Item terms around other ones: which mistake was made, and a term for the records of one source alone."""

from collections.abc import Mapping

from rl_jax.rewards import extract as extraction
from rl_jax.rewards import replies, terms
from rl_jax.rewards.mathematics import right_answer


def mistake(
    prompt: str,
    completion: str,
    info: dict,
    *,
    said: str,
    extract: str | list[str] = "whole",
    answer_field: str = "answer",
) -> float:
    """1 if the answer is `said` and that is wrong, else 0: with a negative weight, what a false positive costs.

    Args:
      prompt: not read.
      completion: the text.
      info: has the right answer.
      said: the decision that is dear when it is wrong.
      extract: see rl_jax.rewards.extract.
      answer_field: the field of info.

    Raises:
      ValueError: if info has no answer.
    """
    gold = right_answer(info, answer_field)
    return float(said != gold and said in extraction.answers(completion, extract))


def only(prompt: str, completion: str, info: dict, *, source: str, of: str, **keywords) -> dict[str, float]:
    """Another item term for the records of one source; 0 for the others, whose info it could not read.

    Args:
      prompt: passed on.
      completion: passed on.
      info: "source"; passed on.
      source: the name.
      of: a short name of rl_jax.rewards.terms, or "module:function".
      **keywords: of that function.

    Returns:
      What the term returns; {"reward": 0} for another source.
    """
    if info.get("source") != source:
        return {"reward": 0.0}
    path = terms.TERMS.get(of, of)
    if not path.partition(":")[2]:
        raise ValueError(f'of={of!r} is no short name; write "module:function"')
    result = replies.resolve(path)(prompt, completion, info, **keywords)
    return dict(result) if isinstance(result, Mapping) else {"reward": result}


only.shares_process = lambda *, of, **_: replies.ours([of])
