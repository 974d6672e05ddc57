"""Rubrics: several criteria with weights, vetoes and saturation make one item term.

A criterion is a table with one of

    regex=...           1 if the pattern is found in the completion (flags i, m, s: "(?i)...")
    absent=...          1 if it is not found
    fn=...              an item term by its short name (rl_jax.rewards.terms), or, in a config, "module:function";
                        **keywords go to it

and with weight (1.0), veto (False: whether a value below 1 makes the whole reward 0), scale (None: saturation, see
`saturate`) and a name. They are compositions of rl_jax.rewards.compose, for criteria that belong to a record.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards import parsing, replies, terms

FIELDS = {"name", "regex", "absent", "fn", "weight", "veto", "scale"}


def score(
    prompt: str,
    completion: str,
    info: dict,
    *,
    criteria: Sequence[Mapping] = (),
    interactions: Sequence[Sequence] = (),
    veto_value: float = 0.0,
) -> dict[str, float]:
    """R = v sum_k w_k f_k(r_k) / sum_k w_k + sum over pairs of w_ab r_a r_b, v = 0 if a vetoing criterion is not met.

    With v = 0 the reward is `veto_value`, interactions included. Source: arXiv 2508.12790 (Rubicon): veto, saturation
    and interactions are its means, their formulas are not published, these are our reading. Without any of them it is
    the weighted mean.

    Args:
      prompt: passed on.
      completion: passed on; patterns are searched in its <answer>, or in all of it after the thinking.
      info: "rubric", criteria of this record, after those of the config; passed on.
      criteria: of all records.
      interactions: (name, name, weight) of pairs of criteria; pairs of which the record lacks one are left out.
      veto_value: reward of a vetoed completion.

    Returns:
      reward; vetoed: whether there was a veto; the value of each criterion under its name (replies.as_name).

    Raises:
      ValueError: if there is no criterion, or one is not of the form above.
    """
    rows = [*criteria, *info.get("rubric", [])]
    if not rows:
        raise ValueError('there is no criterion: give criteria=[...], or info["rubric"]')
    answer, values, total, weights, vetoed = parsing.answer(completion), {}, 0.0, 0.0, False
    for place, row in enumerate(rows):
        _check(row, place, own=place < len(criteria))
        value, weight = _value(row, prompt, completion, info, answer), float(row.get("weight", 1.0))
        vetoed |= bool(row.get("veto", False)) and not value >= 1.0
        total += weight * saturate(value, row.get("scale"))
        weights += weight
        values[row.get("name", f"criterion_{place}")] = value
    if not weights:
        raise ValueError("the weights of the criteria add up to 0")
    reward = total / weights
    reward += sum(w * values[a] * values[b] for a, b, w in interactions if a in values and b in values)
    named = {replies.as_name(str(name)): value for name, value in values.items()}
    return {"reward": veto_value if vetoed else reward, "vetoed": float(vetoed), **named}


def _share_process(*, criteria: Sequence[Mapping] = (), **_) -> bool:
    return replies.ours(str(row.get("fn", "")) for row in criteria)


score.shares_process = _share_process


def count(prompt: str, completion: str, info: dict, *, word: str) -> float:
    """How often a word is in a completion, whatever its case. As a criterion it wants a scale: it has no end."""
    return float(len(re.findall(rf"\b{re.escape(word)}\b", completion, re.IGNORECASE)))


def saturate(value: float, scale: float | None) -> float:
    """s (1 - exp(-r / s)) for r > 0: slope 1 at 0, never above s. Values below 0, and without a scale, stay."""
    return -scale * math.expm1(-value / scale) if scale and value > 0 else value


def _value(row: Mapping, prompt: str, completion: str, info: dict, answer: str) -> float:
    if "regex" in row:
        return float(re.search(row["regex"], answer[: parsing.MAX_CHARS]) is not None)
    if "absent" in row:
        return float(re.search(row["absent"], answer[: parsing.MAX_CHARS]) is None)
    fn = replies.resolve(terms.TERMS.get(row["fn"], row["fn"]))
    result: Any = fn(prompt, completion, info, **{key: value for key, value in row.items() if key not in FIELDS})
    return float(result["reward"] if isinstance(result, Mapping) else result)


def _check(row: Mapping, place: int, *, own: bool) -> None:
    kinds = [kind for kind in ("regex", "absent", "fn") if kind in row]
    if len(kinds) != 1:
        raise ValueError(f"criterion {place} must have one of regex, absent, fn, got {row!r:.120}")
    if kinds != ["fn"] and (unknown := sorted(set(row) - FIELDS)):
        raise ValueError(f"criterion {place} has no field {', '.join(unknown)}; fields: {', '.join(sorted(FIELDS))}")
    if kinds == ["fn"] and ":" not in terms.TERMS.get(row["fn"], row["fn"] if own else ""):
        # A record is data: it may not name any function that there is.
        write = '; write "module:function"' if own else ", and a record's criterion has no other functions"
        raise ValueError(f"criterion {place}: fn={row['fn']!r} is no short name of a reward term{write}")
    if kinds != ["fn"]:
        try:
            re.compile(row[kinds[0]])
        except re.error as error:
            raise ValueError(f"criterion {place}: {kinds[0]}={row[kinds[0]]!r} is no pattern: {error}") from error
    scale = row.get("scale")
    if scale is not None and not scale > 0:
        raise ValueError(f"criterion {place}: scale={scale} must be above 0")
