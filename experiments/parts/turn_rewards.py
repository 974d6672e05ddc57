"""config.agent.turn_rewards: what a process reward model adds to each turn of an episode (VLA-RL, arXiv 2505.18719).

    r_j = env_j + weight min(s_j, max(0, most - s_1 - ... - s_j-1)),   s_j = [p_j > 1/2]     (or p_j, if not hard)

p_j is the model's probability that turn j has reached a key state, read after the turn and what came back of it, as the
model was trained (rl_jax.preferences.milestones); after the last turn nothing comes back. The model is frozen. Its
rewards are those of training alone: evaluations and `correct` have the environment's, recorded turns have both.

An episode is paid for its first `most` key states and for no more: without the limit a gripper that opens and closes
again and again earns `weight` in each turn, however many there are. The paper sums the rewards and names no limit that
we could read, but its labels are the ends of a success's segments, each reached once; configs.agents_papers sets `most`
to how many those are, 2 to take a thing and to put it down. Without it there is no limit.

dict(fn="outcome", path=...) is WebRL's outcome model in its place: experiments/parts/outcome_model.py.
"""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.parts import outcome_model, turn_signals
from experiments.parts.judges.base import in_batches, mode_of
from experiments.parts.judges.trained import load_head, need_finished
from experiments.parts.judging import Judged
from experiments.parts.row_rewards import without_errors
from experiments.parts.setup import Setup
from rl_jax.core.types import TokenBatch
from rl_jax.models.heads import make_predict_at

KIND = "process"
FIELDS = {"path", "weight", "hard", "most"}
MODEL = "configs/preferences/vla_rl.py"  # trains what `path` names

BATCH = 64  # rows per forward pass


def settings_of(config) -> dict[str, Any]:
    """config.agent.turn_rewards; runs of before there was one have none, and those of before its limit no `most`."""
    settings = dict(config.agent.get("turn_rewards", {"fn": ""}))
    return settings if settings["fn"] == outcome_model.KIND else {"most": math.inf, **settings}


def problems(config) -> list[str]:
    """What is wrong with config.agent.turn_rewards, one text each."""
    settings, found = settings_of(config), []
    if not (name := settings.pop("fn")):
        return found
    if "state_values" in turn_signals.asked(config):
        found.append(f"agent.turn_rewards: the fresh episodes of {turn_signals.said(config)} are paid without it")
    if name == outcome_model.KIND:
        if set(settings) != outcome_model.FIELDS or not settings["path"]:
            found.append(f"agent.turn_rewards={settings} must have a path, and nothing else")
        return found
    if name != KIND:
        found.append(f"agent.turn_rewards.fn={name!r} is none of '', {KIND!r}, {outcome_model.KIND!r}")
    if set(settings) != FIELDS or not (settings["path"] and settings["weight"] > 0 and settings["most"] > 0):
        wanted = ", ".join(sorted(FIELDS))
        found.append(f"agent.turn_rewards={settings} must have {wanted}: a path, and a weight and a most above 0")
    if config.agent.get("replay", {"fn": ""})["fn"]:
        found.append("agent.turn_rewards: what agent.replay brings back has been paid by it already")
    return found


class TurnRewards:
    """A process reward model of turns.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.reward_model that reads steps (configs/preferences/vla_rl.py).
      weight: of its reward of a turn.
      hard: 1 if the probability is above 1/2, else 0, as a model that says one or the other; else the probability.
      most: key states that an episode is paid for; the first ones are.

    Raises:
      FileNotFoundError: if the folder holds no finished run.
      ValueError: if the run does not read steps, or has another tokenizer.
    """

    def __init__(self, setup: Setup, *, path: str, weight: float, hard: bool, most: float):
        what = f"agent.turn_rewards.path={path!r}"
        need_finished(path, MODEL)
        own, self._params = load_head(pathlib.Path(path), setup.config.mesh)
        if own.config.algorithm.reads != "steps":
            raise ValueError(f"{what} reads {own.config.algorithm.reads!r}: take one of {MODEL}")
        mode_of(setup, own.task.tokenizer, "", what, texts=False)
        self._size = setup.config.sample.group_size
        self._setup, self._weight, self._hard, self._paid = own, weight, hard, most
        self._most = setup.config.agent.max_turns
        predict = make_predict_at(own.model)
        self._read = jax.jit(lambda params, rows: jax.nn.softmax(predict(params, *rows), axis=-1)[..., 1])

    def __call__(self, judged: Judged) -> Judged:
        """The rows with the model's rewards in those of their turns and of the whole row, and process/... logged."""
        rollout = judged.rollout
        ends, reads = places(rollout.turns.numbers, self._most)
        batch = TokenBatch(*(np.asarray(x) for x in rollout.batch[:3]))
        prompt = batch.tokens.shape[1] - rollout.completion_mask.shape[1]
        columns = np.where(reads < 0, -1, reads + prompt).astype(np.int32)
        probs = in_batches(self._setup, self._read, self._params, (batch, columns), BATCH)
        seen = np.where(ends >= 0, probs > 0.5 if self._hard else probs, 0.0).astype(np.float32)
        turns = at_most(seen, self._paid)
        rewards, whole = rollout.turns.rewards.copy(), turns.sum(axis=1)
        rows, numbers = np.nonzero(ends >= 0)
        rewards[rows, ends[rows, numbers]] += np.float32(self._weight) * turns[rows, numbers]
        result = judged.result
        paid = (result.rewards + np.float32(self._weight) * whole).astype(np.float32)
        failed = np.asarray([record["episode"].status == "error" for record in judged.records])
        result = result._replace(
            rewards=without_errors(paid, failed, self._size),  # again: the others of its group have been paid more
            components=result.components | {"process/turns": whole, "process/seen": seen.sum(axis=1)},
        )
        return judged._replace(rollout=rollout._replace(turns=rollout.turns._replace(rewards=rewards)), result=result)


def at_most(turns: np.ndarray, most: float) -> np.ndarray:
    """What turns are paid: as much as was seen in them, until a row has had `most` in all.

    Args:
      turns: float32 [B, S], 0 or more.
      most: of a row.

    Returns:
      float32 [B, S].
    """
    before = np.cumsum(turns, axis=1) - turns
    return np.minimum(turns, np.maximum(most - before, 0.0)).astype(np.float32)


def places(numbers: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Where turns end, and where what came back of them does.

    Args:
      numbers: int32 [B, C], number of the turn on its tokens, -1 elsewhere.
      most: S, turns of an episode at most.

    Returns:
      int32 [B, S] each, columns of C, -1 if there is no such turn: the turn's last token; the last token before the
      next turn begins, or the turn's own if it is the row's last.
    """
    ends, reads = np.full((2, len(numbers), most), -1, np.int32)
    for row, of_row in enumerate(numbers):
        spoken = np.flatnonzero(of_row >= 0)
        if not len(spoken):
            continue
        last = np.append(of_row[spoken][1:] != of_row[spoken][:-1], True)
        turns, columns = of_row[spoken][last], spoken[last]
        first = spoken[np.append(True, last[:-1])]
        ends[row, turns] = columns
        reads[row, turns] = np.append(first[1:] - 1, columns[-1])
    return ends, reads


def make_turn_rewards(setup: Setup) -> Callable[[Judged], Judged]:
    """The TurnRewards or OutcomeModel of config.agent.turn_rewards; without one, rows stay as they are."""
    settings = settings_of(setup.config)
    if not (name := settings.pop("fn")):
        return lambda judged: judged
    return (outcome_model.OutcomeModel if name == outcome_model.KIND else TurnRewards)(setup, **settings)
