"""Verifier of JSON answers against info["answer"], without a schema: which keys are there, which values are right."""

from typing import Any

from rl_jax.rewards import parsing


def exact(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """1 if the answer is the JSON value info["answer"], else 0.

    Args:
      prompt: not read.
      completion: the answer is its last <answer>, code block, or {...} or [...].
      info: "answer", the JSON value.

    Returns:
      reward = exact, and the components of `match`.
    """
    scores = match(prompt, completion, info)
    return scores | {"reward": scores["exact"]}


def match(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Partial credit: |A and B| / |A or B| of the (path, value) leaves of the answer and of the truth.

    Leaves that are left out count against it, and so do leaves that are made up.

    Args:
      prompt: not read.
      completion: the answer is its last <answer>, code block, or {...} or [...].
      info: "answer", the JSON value.

    Returns:
      reward = values, the share above; keys: the same for the paths alone; exact: 1 if all is equal; format: 1 if
      there is JSON.
    """
    found, truth = parsing.find_json(completion), info["answer"]
    if found is parsing.MISSING:
        return dict.fromkeys(("reward", "values", "keys", "exact", "format"), 0.0)
    paths, true_paths = leaves(found), leaves(truth)
    common = paths.keys() & true_paths.keys()
    union = len(paths.keys() | true_paths.keys())
    right = sum(parsing.same(paths[path], true_paths[path]) for path in common)
    # A leaf with a wrong value is two different (path, value) pairs.
    values = right / (union + len(common) - right)
    exactly = float(parsing.same(found, truth))
    return {"reward": values, "values": values, "keys": len(common) / union, "exact": exactly, "format": 1.0}


def leaves(value: Any, path: tuple = ()) -> dict[tuple, Any]:
    """path -> value of everything that is no object or list with entries; {(): value} of a bare value."""
    result, todo = {}, [(path, value)]
    while todo:
        at, node = todo.pop()
        if isinstance(node, dict) and node:
            todo += [((*at, key), child) for key, child in node.items()]
        elif isinstance(node, list) and node:
            todo += [((*at, place), child) for place, child in enumerate(node)]
        else:
            result[at] = node
    return result
