"""Verifiers of tool calls: the name, the arguments and their values against the calls that were right.

A call is written as JSON, {"name": ..., "parameters": {...}} ("arguments" is read as well), or {name: {...}} as the
Berkeley leaderboard's answers are; calls stand in <tool_call> tags, one per line or one per tag, or alone as one JSON
object or list. No Python is parsed. The truth is info["calls"], either

    [{"name": "f", "parameters": {"x": 1}}]        ToolRL: these values
    [{"f": {"x": [1, 2], "y": [3, ""]}}]           BFCL: any of these values; "" among them: may be left out
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_jax.rewards import parsing


class Call(NamedTuple):
    """A call that is right.

    Attributes:
      name: of the function.
      allowed: parameter -> values that are right.
      optional: parameters that may be left out.
      loose: whether strings are compared as BFCL does.
      types: parameter -> "integer", "float", ...; empty if the functions are not described.
    """

    name: str
    allowed: dict[str, list]
    optional: frozenset[str] = frozenset()
    loose: bool = False
    types: dict[str, str] = {}

    def expected(self, given: dict) -> set[str]:
        """The parameters that a call with these ones should have."""
        return set(self.allowed) - (self.optional - given.keys())

    def right(self, name: str, value: Any) -> bool:
        """Whether a parameter's value is one of those allowed."""
        if self.types.get(name) == "integer" and isinstance(value, float):
            return False
        compare = _loosely_same if self.loose else parsing.same
        return any(compare(value, allowed) for allowed in self.allowed[name] if not (self.loose and allowed == ""))


# --- Rewards ---------------------------------------------------------------------------------------------------------


def fine(prompt: str, completion: str, info: dict, *, low: float = -3.0, high: float = 3.0) -> dict[str, float]:
    """ToolRL: R_format + R_correct, with credit for names, parameters and values.

        s = m(names) + sum_g max_{unused p of the same name} [m(parameters) + #right values],  m = |A and B| / |A or B|
        R_correct = (high - low) s / S + low,   S = 1 + sum_g (1 + #parameters of g)

    m is of multisets; calls are matched greedily in the order of the truth. Source: arXiv 2504.13958 and its code
    (rlla.py): low -3, high 3, and 1 for the format.

    Args:
      prompt: not read.
      completion: text with calls.
      info: "calls", the truth; "response": whether an answer in words is due as well (format only).
      low: R_correct without any credit, and if the calls cannot be read.
      high: R_correct of an exact answer.

    Returns:
      reward: format + correctness; format: 0 or 1; correctness: R_correct, 0 if the truth has no calls; exact.
    """
    return _score(completion, info, low, high, _fine_share)


def intermediate(prompt: str, completion: str, info: dict, *, low: float = -3.0, high: float = 3.0) -> dict[str, float]:
    """As `fine`, with 1 for each exact call instead of credit for its parts: s = m(names) + #exact, S = 1 + #calls.

    Source: the ablation of arXiv 2504.13958 (INTERMEDIATEREWARD in its code). Arguments and result as in `fine`.
    """
    return _score(completion, info, low, high, _intermediate_share)


def coarse(prompt: str, completion: str, info: dict, *, low: float = -3.0, high: float = 3.0) -> dict[str, float]:
    """As `fine`, without partial credit: `high` if all is exact and `low` otherwise (COARSEREWARD in ToolRL's code)."""
    return _score(completion, info, low, high, lambda truth, found: 0.0)


def exact(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """1 if the calls are right in any order, and 0 otherwise; with info["calls"] empty: 1 if there is no call.

    Source: the checker of the Berkeley leaderboard (BFCL), on JSON calls: parameters that it allows to be left out may
    be, the case and the punctuation of strings do not matter, one of several allowed values is enough. Numbers are
    compared by value, unless info["functions"] says that a parameter is an integer.

    Args:
      prompt: not read.
      completion: text with calls.
      info: "calls"; "functions": BFCL's descriptions, if there are any.

    Returns:
      reward = exact; names: 1 if the right functions are called; format: 1 if calls can be read.
    """
    truth, found = read_truth(info), read_calls(completion)
    if not truth:
        right = float(found is None and "<tool_call>" not in completion)
        return {"reward": right, "exact": right, "names": right, "format": 1.0}
    if found is None:
        return {"reward": 0.0, "exact": 0.0, "names": 0.0, "format": 0.0}
    names = Counter(call.name for call in truth) == Counter(name for name, _ in found)
    right = float(_all_right(truth, found))
    return {"reward": right, "exact": right, "names": float(names), "format": 1.0}


# --- Parts -----------------------------------------------------------------------------------------------------------


def well_formed(completion: str, *, calls: bool, response: bool) -> bool:
    """ToolRL's format: <think>, then <tool_call> and <response> as due, each tag once, and nothing else.

    Source: customize_format_reward_func of its code.
    """
    parts = [r"<think>.*?</think>"]
    parts += [r"<tool_call>\n.*?\n</tool_call>"] if calls else []
    parts += [r"<response>.*?</response>"] if response else []
    due = (["tool_call"] if calls else []) + (["response"] if response else [])
    once = all(completion.count(f"<{tag}>") == completion.count(f"</{tag}>") == 1 for tag in due)
    return once and re.fullmatch(r"\n".join(parts), completion, re.DOTALL) is not None


def read_calls(completion: str, *, tagged: bool = False) -> list[tuple[str, dict]] | None:
    """[(name, parameters)] of a completion; None if there is no call (tagged: in tags) or one cannot be read."""
    blocks = parsing.blocks(completion, "<tool_call>", "</tool_call>")
    values: list = []
    for block in blocks:
        whole = parsing.read_json(block.strip())
        lines = [parsing.read_json(line) for line in block.strip().split("\n") if line.strip()]
        values += lines if whole is parsing.MISSING else whole if isinstance(whole, list) else [whole]
    if not blocks and not tagged:
        value = parsing.find_json(completion)
        values = value if isinstance(value, list) else [value]
    calls = [_read_call(value) for value in values]
    return None if not calls or None in calls else calls


def read_truth(info: dict) -> list[Call]:
    """The calls of info["calls"], in ToolRL's or BFCL's layout.

    Raises:
      ValueError: if an entry is in neither.
    """
    types = {
        function["name"]: {
            name: parameter.get("type", "") for name, parameter in function["parameters"].get("properties", {}).items()
        }
        for function in info.get("functions", ())
    }
    calls = []
    for place, entry in enumerate(info["calls"]):
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("parameters"), dict):
            calls.append(Call(entry["name"], {name: [value] for name, value in entry["parameters"].items()}))
            continue
        named = list(entry.items()) if isinstance(entry, dict) else []
        if (
            len(named) != 1
            or not isinstance(named[0][1], dict)
            or not all(isinstance(values, list) for values in named[0][1].values())
        ):
            raise ValueError(
                f'info["calls"][{place}] must be {{"name": ..., "parameters": {{...}}}} or {{NAME: {{PARAMETER: '
                f"[VALUES]}}}}, got {entry!r:.120}"
            )
        ((name, allowed),) = named
        optional = frozenset(key for key, values in allowed.items() if "" in values)
        calls.append(Call(name, dict(allowed), optional, True, types.get(name, {})))
    return calls


def _read_call(value: Any) -> tuple[str, dict] | None:
    if not isinstance(value, dict):
        return None
    if "name" in value:
        name, given = value["name"], value.get("parameters", value.get("arguments"))
    elif len(value) == 1:
        ((name, given),) = value.items()
    else:
        return None
    return (name, given) if isinstance(name, str) and isinstance(given, dict) else None


def _score(completion: str, info: dict, low: float, high: float, share) -> dict[str, float]:
    truth = read_truth(info)
    due = bool(info.get("response", not truth))
    formed = float(well_formed(completion, calls=bool(truth), response=due))
    correctness, right = 0.0, 0.0
    if truth:
        found = read_calls(completion, tagged=True)
        right = float(found is not None and _all_right(truth, found))
        correctness = low if found is None else high if right else (high - low) * share(truth, found) + low
    return {"reward": formed + correctness, "format": formed, "correctness": correctness, "exact": right}


def _fine_share(truth: Sequence[Call], found: Sequence[tuple[str, dict]]) -> float:
    """s / S of `fine`."""
    score, most, unused = _match([c.name for c in truth], [name for name, _ in found]), 1.0, list(found)
    for call in truth:
        best, best_call, size = 0.0, None, len(call.expected({}))
        for candidate in unused:
            if candidate[0] != call.name:
                continue
            given = candidate[1]
            expected = call.expected(given)
            credit = _match(expected, given) + sum(n in given and call.right(n, given[n]) for n in expected)
            if credit > best:
                best, best_call, size = credit, candidate, len(expected)
        if best_call is not None:
            unused.remove(best_call)
        score, most = score + best, most + 1.0 + size
    return score / most


def _intermediate_share(truth: Sequence[Call], found: Sequence[tuple[str, dict]]) -> float:
    """s / S of `intermediate`."""
    score, unused = _match([c.name for c in truth], [name for name, _ in found]), list(found)
    for call in truth:
        exact_call = next((candidate for candidate in unused if _is_right(call, candidate)), None)
        if exact_call is not None:
            unused.remove(exact_call)
            score += 1.0
    return score / (1.0 + len(truth))


def _match(first, second) -> float:
    """|A and B| / |A or B| of multisets; 1 if both are empty."""
    a, b = Counter(list(first)), Counter(list(second))
    common = (a & b).total()
    return common / (a.total() + b.total() - common) if a or b else 1.0


def _is_right(call: Call, found: tuple[str, dict]) -> bool:
    name, given = found
    return name == call.name and given.keys() == call.expected(given) and all(call.right(n, given[n]) for n in given)


def _all_right(truth: Sequence[Call], found: Sequence[tuple[str, dict]]) -> bool:
    """Whether the calls can be paired so that each is right: a maximum matching, since one may fit two truths."""
    if len(truth) != len(found):
        return False
    partner: dict[int, int] = {}  # index of a found call -> index of the truth that it is paired with

    def place(index: int, seen: set[int]) -> bool:
        for other, candidate in enumerate(found):
            if other not in seen and _is_right(truth[index], candidate):
                seen.add(other)
                if other not in partner or place(partner[other], seen):
                    partner[other] = index
                    return True
        return False

    return all(place(index, set()) for index in range(len(truth)))


def _loosely_same(value: Any, allowed: Any) -> bool:
    """Equality as BFCL has it: strings without case, spaces and , . / - _ * ^, inside lists and objects too."""
    if isinstance(value, str) and isinstance(allowed, str):
        return _plain(value) == _plain(allowed)
    if isinstance(value, list) and isinstance(allowed, list):
        return len(value) == len(allowed) and all(map(_loosely_same, value, allowed))
    if isinstance(value, dict) and isinstance(allowed, dict):
        # Inside an object of the truth each key has its own list of allowed values.
        lists = {key: options if isinstance(options, list) else [options] for key, options in allowed.items()}
        due = {key for key, options in lists.items() if "" not in options}
        return due <= value.keys() <= lists.keys() and all(
            any(_loosely_same(value[key], option) for option in lists[key]) for key in value
        )
    return parsing.same(value, allowed)


def _plain(text: str) -> str:
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
