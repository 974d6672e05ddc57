"""What a policy is told about an answer of its own before it answers again: (answer, info, right, *, ...) -> str.

The critiques of stronger models (GPT-4o in arXiv 2506.03106) are replaced by rules on the record's `info`.
"""

from collections.abc import Mapping


def verdict(
    answer: str, info: Mapping, right: bool, *, if_right: str = "The answer is right.", if_wrong: str = "It is wrong."
) -> str:
    """Only whether the answer is right (the numerical critique of arXiv 2506.03106)."""
    return if_right if right else if_wrong


def right_answer(
    answer: str,
    info: Mapping,
    right: bool,
    *,
    field: str = "answer",
    text: str = "The answer is {verdict}. The right answer is {answer}.",
) -> str:
    """Whether it is right, and the right answer from info[field] (critique with ground truth, arXiv 2506.03106).

    Raises:
      ValueError: if the record's info has no such field.
    """
    if field not in info:
        raise ValueError(
            f"critique right_answer: info has no {field!r}; it has: {', '.join(sorted(info)) or 'nothing'}"
        )
    return text.format(verdict="right" if right else "wrong", answer=info[field])
