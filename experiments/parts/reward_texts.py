"""What a language model is told about rewards as text: the task, what may be used, and how a reward did in training.

The order of the parts follows the published prompts and code of Eureka (2310.12931), whose words are not used.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.parts.chat import fenced
from rl_jax.control import reward_code

Row = dict[str, Any]
POINTS = 10  # of a curve that is shown
SHOWN_ERRORS, ERROR_CHARACTERS = 3, 400

SYSTEM = """You design rewards for reinforcement learning. From your reward an agent must learn the task as well as it \
can. Write the reward as plain assignments of arithmetic, one per line, and nothing else: no def, no import, no loop, \
no attribute, no library prefix. The last line assigns `reward`. Assign each component of the reward to a name of its \
own before it: the mean of each is reported to you after training. Give each component that is passed through exp or \
tanh a scale of its own, as a number with a name. You may use: {allowed}. A comparison is 1.0 or 0.0. Put the lines \
between ``` and ```."""
TASK = """The task: {task}
`obs` is the observation before the step, `next_obs` the one after it, `action` what was done, `task_reward` what the \
environment itself pays, `terminated` is 1.0 in the step that ends the episode for good.{names} Write the reward."""
TIPS = """Look at each component first. If the task score stays at its lowest, write another reward. If a component \
hardly changes over training, the agent cannot improve it as it is written: change its scale, write it in another way \
or leave it out. If one component is much larger than the others, bring it to their range. Then write the improved \
reward, complete, between ``` and ```."""
AGAIN = "Write the reward again, complete, between ``` and ```."
REPAIR = """That reward cannot be used: {error}
Write it again, complete, between ``` and ```."""


class Candidate(NamedTuple):
    """A reward that was proposed.

    Attributes:
      text: the reward; what is read.
      error: why it cannot be used; "" if it can.
      answer: what the server wrote, of which it is a part.
      rounds: requests in which it was repaired or criticised.
    """

    text: str
    error: str = ""
    answer: str = ""
    rounds: int = 0


def read(answer: str, known: reward_code.Known, label: str, ending: str = "") -> Candidate:
    """The candidate of an answer.

    Args:
      answer: of the server, or a line of a file.
      known: what the text may read.
      label: names it in errors.
      ending: lines that are added to its text.
    """
    text = fenced(answer) + ending
    try:
        reward_code.parse(text, known, label=label)
    except ValueError as error:
        return Candidate(text, str(error), answer)
    return Candidate(text, "", answer)


def opening(task: str, known: reward_code.Known, names: Sequence[str]) -> list[dict[str, str]]:
    """The first two messages: what is to be written, and the task."""
    entries = ", ".join(f"`{name}` is obs[{i}] and `next_{name}` next_obs[{i}]" for i, name in enumerate(names))
    text = TASK.format(task=task, names=f" {entries}." if entries else "")
    return [
        {"role": "system", "content": SYSTEM.format(allowed=known.describe())},
        {"role": "user", "content": text},
    ]


def statistics(name: str, values: Sequence[float]) -> str:
    """NAME: about ten values over training, then the largest, the mean and the smallest of all."""
    values = [math.nan if x is None else x for x in values]  # a file has null for a component that is not finite
    stride = max(len(values) // POINTS, 1)
    shown = ", ".join(f"{x:.2f}" for x in values[::stride])
    return f"{name}: {shown} (max {np.max(values):.2f}, mean {np.mean(values):.2f}, min {np.min(values):.2f})"


def trace(row: Row, *, score: bool = True) -> str:
    """The curves of a trained row: its components, the episode's length and the task's score. Eureka's reflection.

    Args:
      row: of a candidate that trained.
      score: whether the task's score is told.
    """
    curves = row["curves"]
    stride = max(len(curves["task_score"]) // POINTS, 1)
    lines = [statistics(name, values) for name, values in curves["components"].items()]
    lines += [statistics(name, curves[name]) for name in ("episode_length", "task_score")[: 2 if score else 1]]
    return (
        f"A policy was trained on this reward. Means of its components and of the evaluations, after every "
        f"{stride * row['every']} updates:\n" + "\n".join(lines)
    )


def failures(rows: Sequence[Row]) -> str:
    """What went wrong in the last generation, or ""."""
    failed = [row["error"] for row in rows if row["error"]]
    if not failed:
        return ""
    shown = "\n".join(f"- {error[:ERROR_CHARACTERS]}" for error in failed[:SHOWN_ERRORS])
    return f"Of {len(rows)} rewards {len(failed)} could not be used:\n{shown}\n"


def trajectory(episode: Row, names: Sequence[str], *, last: int) -> str:
    """A recorded episode in words: its length, return and end, and the last steps.

    Args:
      episode: row of episodes.jsonl.
      names: of the observation's entries, or ().
      last: steps that are shown.
    """
    rewards, actions, count = episode["rewards"], episode["actions"], len(episode["rewards"])
    seen = (episode["observations"] or {}).get("values")
    end = "terminated" if episode["terminated"] else "cut off"
    lines = [f"An episode of {count} steps, return {sum(rewards):.3f}, {end}. Its last steps:"]
    for i in range(max(count - last, 0), count):
        state = f"{_entries(seen[i], names)} -> {_entries(seen[i + 1], names)}" if seen else "not kept"
        lines.append(f"step {i + 1}: {state}; action {json.dumps(actions[i])}; task_reward {rewards[i]:g}")
    return "\n".join(lines)


def _entries(values: Sequence[float], names: Sequence[str]) -> str:
    """NAME=value of an observation; of many entries only those that are not 0."""
    labels = names or [f"obs[{i}]" for i in range(len(values))]
    pairs = zip(labels, values, strict=True)
    return " ".join(f"{label}={x:.3g}" for label, x in pairs if x or len(values) <= 8)


def score_of(row: Row) -> float:
    """A row's score; -inf if it has none."""
    score = row["score"]
    return score if score is not None and math.isfinite(score) else -math.inf
