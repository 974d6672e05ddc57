"""Item terms for a sequence of actions on a screen, each `name(argument)`: every kind has a rule of its own."""

import difflib
import re
from collections.abc import Sequence

from rl_jax.rewards import extract as extraction

_ACTION = re.compile(r"([a-z_]+)\(([^()]*)\)")


def by_type(
    prompt: str,
    completion: str,
    info: dict,
    *,
    field: str = "actions",
    similar: Sequence[str] = ("write",),
    type_share: float = 0.2,
) -> dict[str, float]:
    """The mean over the actions, in their order, of what each one's kind pays; 0 for another kind.

        kind is right         type_share
        and its argument      + (1 - type_share) * (1 if it is the same; in `similar` kinds the share of it that is)

    Missing and superfluous actions pay 0. Our reading of CRAFT-GUI's rewards by task: its formulas are not known to us.

    Args:
      prompt: not read.
      completion: "tap(save) write(hello)"; other text between the actions is not read.
      info: has the right actions, [[name, argument], ...].
      field: the field of info.
      similar: kinds whose argument may be partly right, as a text that is typed.
      type_share: what the right kind alone pays, from 0 to 1.

    Returns:
      reward; correct, whether all is right; actions, how many were read.

    Raises:
      ValueError: if info has no actions, or type_share is out of its range.
    """
    right = info.get(field)
    if not isinstance(right, list) or not right or not all(isinstance(a, list) and len(a) == 2 for a in right):
        raise ValueError(f"info[{field!r}] must be a list of [name, argument], found {right!r:.80}")
    if not 0 <= type_share <= 1:
        raise ValueError(f"type_share must lie in [0, 1], got {type_share}")
    if len(completion) > extraction.MAX_COMPLETION:
        return {"reward": 0.0, "correct": 0.0, "actions": 0.0}
    done = [(name, argument.strip()) for name, argument in _ACTION.findall(completion)]
    paid = 0.0
    for (name, argument), (kind, wanted) in zip(done, right, strict=False):
        if name == kind:
            same = float(argument == wanted)
            if kind in similar:
                same = difflib.SequenceMatcher(None, argument, wanted, autojunk=False).ratio()
            paid += type_share + (1 - type_share) * same
    correct = float(done == [tuple(action) for action in right])
    return {"reward": paid / max(len(done), len(right)), "correct": correct, "actions": float(len(done))}
