"""ARPO's experience replay for episodes (arXiv 2505.16282): a group that failed gets one of its prompt's successes.

    std(R) < std and mean(R) < mean, and the buffer of the prompt is not empty:  one row of the least R <- a success

The buffer holds, for each prompt, the last `size` different episodes with R > above of earlier steps, as recorded in
WORKDIR/trajectories (agent.record), with the log-probs that they were drawn with. Nothing is carried but the files, so
a resumed run replays what it would have replayed.
"""

import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER, of_step

KIND, FAMILIAR = "successes", "familiar"  # the second: parts/familiar_episodes.py
PROGRAMS = {KIND: "agents", FAMILIAR: "ppo"}
FIELDS = {KIND: {"size", "above", "std", "mean"}, FAMILIAR: {"batches", "above", "low", "high"}}


def problems(config) -> list[str]:
    """What is wrong with config.agent.replay, one text each."""
    agent, found = config.agent, []
    settings = settings_of(config)
    if not (name := settings.pop("fn")):
        return found
    if name not in FIELDS:
        return [f"agent.replay.fn={name!r} is none of '', {', '.join(map(repr, FIELDS))}"]
    counted = "size" if name == KIND else "batches"
    if set(settings) != FIELDS[name] or settings[counted] < 1:
        found.append(f"agent.replay={settings} must have {', '.join(sorted(FIELDS[name]))}, and {counted} 1 or more")
    elif name == FAMILIAR and not 0 <= settings["low"] <= settings["high"] <= 1:
        found.append(f"agent.replay: low={settings['low']} and high={settings['high']} must be shares in this order")
    if config.get("program") != PROGRAMS[name]:
        found.append(f"agent.replay.fn={name!r} works in experiments.{PROGRAMS[name]}, not {config.get('program')!r}")
    if name == FAMILIAR and config.algorithm.row_selection.fn:
        found.append("agent.replay: the rows of algorithm.row_selection are a step's own, take one of the two")
    if not agent.record:
        found.append("agent.replay reads the episodes that were recorded: set agent.record=True")
    others = {"state_rollouts": agent.state_rollouts, "partner": agent.partner, "branching.fn": agent.branching.fn}
    for name, value in others.items():
        if value:
            found.append(f"agent.{name}={value!r} does not go with agent.replay, whose episodes were played earlier")
    return found


class Successes:
    """The buffer.

    Args:
      folder: WORKDIR/trajectories.
      size: of each prompt's buffer.
      above: the reward that a success exceeds.
      std: a failed group's std is below it.
      mean: and its mean is below this.
    """

    def __init__(self, folder: pathlib.Path, *, size: int, above: float, std: float, mean: float):
        self._folder, self._size, self._above, self._std, self._mean = folder, size, above, std, mean
        self._read, self._kept = 0, {}

    def of(self, prompt_id: str, newest: int) -> list[Trajectory]:
        """The successes of a prompt, the oldest first. newest: number of the last step whose episodes count."""
        for step in range(self._read + 1, newest + 1):
            for one in of_step(self._folder, step, "agent.replay"):
                kept = self._kept.setdefault(one.prompt_id, [])
                if one.reward > self._above and one.status != "error" and not any(same(one, other) for other in kept):
                    kept.append(one)
                    del kept[: -self._size]
            self._read = step
        return self._kept.get(prompt_id, [])

    def fill(self, played: Sequence[Trajectory], group_size: int, step: int) -> tuple[list[Trajectory], list[int]]:
        """(the episodes of a step, a success in each group that failed if there is one; the places of the replayed).

        Args:
          played: groups of group_size, side by side.
          group_size: G.
          step: number of the step; it decides which success is drawn.
        """
        result, replayed = list(played), []
        for start in range(0, len(result), group_size):
            rewards = np.asarray([one.reward for one in result[start : start + group_size]])
            if not (rewards.std() < self._std and rewards.mean() < self._mean):
                continue
            known = self.of(result[start].prompt_id, step - 1)
            if known:
                place = start + int(np.argmin(rewards))
                drawn = random.Random(f"{step} {start}").choice(known)
                result[place] = drawn._replace(group=result[place].group, sample=result[place].sample)
                replayed.append(place)
        return result, replayed


def same(one: Trajectory, other: Trajectory) -> bool:
    """Whether two episodes are the same tokens."""
    return ids(one) == ids(other)


def ids(one: Trajectory) -> bytes:
    """All tokens of an episode."""
    return b"|".join(np.asarray(span.ids, np.int32).tobytes() for spans in one.segments for span in spans)


def successes(config, workdir: pathlib.Path) -> Successes | None:
    """The buffer of config.agent.replay, or None."""
    settings = settings_of(config)
    return Successes(workdir / FOLDER, **settings) if settings.pop("fn") == KIND else None


def settings_of(config) -> dict[str, Any]:
    """config.agent.replay; runs of before there was one have none."""
    return dict(config.agent.get("replay", {"fn": ""}))


def adds_rows(config) -> bool:
    """Whether a step may have more rows, and so more updates, than its own: those that are learned from again."""
    return "agent" in config and settings_of(config)["fn"] == FAMILIAR
