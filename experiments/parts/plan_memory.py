"""What an A* over plans is told (rl_jax.experience.a_star): a memory of solved tasks, and what it has imagined so far.

The memory begins with demonstrations of the task that were rewarded, and grows by what the run has solved: the episodes
of earlier steps in WORKDIR/trajectories (agent.record). Nothing is carried but the files, so a resumed run remembers
what it would have remembered.
"""

import inspect
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.parts import turn_signals
from experiments.parts.setup import Setup
from rl_jax.data.checks import RECORDED
from rl_jax.experience import a_star
from rl_jax.experience.episode import Ask
from rl_jax.experience.prompt import info_of
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER, of_step

ROOM = 2**19  # numbers of imagined episodes begin here
ASKED = {"memory", "imagined"}
TERMS = ("alpha", "beta", "named")


def asked(config) -> set[str]:
    """What the rule of config.agent.branching asks for: "memory", "imagined"."""
    choose = turn_signals.chooser(config)
    if choose is None:
        return set()
    # Not binding.needs, which knows arrays: ARPO's `tokens` is a number with a default.
    found = inspect.signature(choose).parameters
    return {name for name in ASKED & set(found) if found[name].default is inspect.Parameter.empty}


def problems(config) -> list[str]:
    """What is wrong with a memory that config.agent.branching asks for, one text each."""
    try:
        names = asked(config)
    except (ValueError, TypeError):
        return []  # turn_signals.problems says what
    if "memory" in names and not config.agent.record:
        return [f"agent.branching={config.agent.branching.fn!r} remembers recorded episodes: set agent.record=True"]
    return []


class PlanMemory:
    """Plans that solved their tasks, each once.

    Args:
      folder: WORKDIR/trajectories; None: the demonstrations are all.
      demonstrations: what it begins with.
      above: the reward that a solved episode exceeds.
      terms: settings of a_star.answer.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        demonstrations: Sequence[a_star.Plan],
        above: float,
        terms: Mapping[str, float] = {},
    ):
        self._folder, self._above, self._terms = folder, above, dict(terms)
        self._read, self._kept = 0, dict.fromkeys(demonstrations)

    def of(self, newest: int) -> list[a_star.Plan]:
        """The plans, the oldest first. newest: number of the last step whose episodes count."""
        for step in range(self._read + 1, newest + 1 if self._folder else 0):
            for one in of_step(self._folder, step, "agent.branching"):
                if one.reward > self._above and one.status != "error":
                    self._kept.setdefault(a_star.plan_of(one))
            self._read = step
        return list(self._kept)

    def metrics(self, played: Sequence[Trajectory], group_size: int) -> dict[str, float]:
        """How many plans are known, and the mean reward of the groups' answers: their plans of the least f.

        Args:
          played: groups of group_size, side by side.
          group_size: G.
        """
        earned = []
        for start in range(0, len(played), group_size):
            group = played[start : start + group_size]
            chosen = a_star.answer(group, memory=list(self._kept), **self._terms)
            earned.append(group[chosen].reward if chosen >= 0 else 0.0)
        return {"episode/plans_known": float(len(self._kept)), "episode/plan_reward": float(np.mean(earned))}


def memory_of(setup: Setup, workdir: pathlib.Path | None) -> PlanMemory | None:
    """The memory of a run's A*; None if no rule asks for one.

    Args:
      setup: of the run; its task's demonstrations are those of the warm start.
      workdir: of the run; None: there are no recorded episodes.
    """
    if "memory" not in asked(setup.config):
        return None
    parameters = inspect.signature(turn_signals.chooser(setup.config)).parameters
    rule = {name: parameter.default for name, parameter in parameters.items()}  # what is bound is a default, too
    plans = demonstrated(setup, rule["demonstrations"], rule["above"])
    terms = {name: rule[name] for name in TERMS}
    return PlanMemory(workdir / FOLDER if workdir else None, plans, rule["above"], terms)


def demonstrated(setup: Setup, count: int, above: float) -> list[a_star.Plan]:
    """The plans of the first `count` demonstrations that earned more than `above`, as the policy would say them."""
    encode, source, found = setup.task.tokenizer.encode_continuation, setup.task.data_source("sft_train"), []
    for place in range(len(source)):
        if len(found) == count:
            break
        info = info_of(source[place])
        if sum(info["turn_rewards"]) > above:
            said = (np.asarray(encode(text, eos=True), np.int32) for text in info[RECORDED][::2])
            found.append(tuple(ids.tobytes() for ids in said))
    return found


def to_imagine(
    records: Sequence[dict],
    seeds: Sequence[int],
    groups: Sequence[Sequence[Trajectory]],
    known: Sequence[Mapping[a_star.Plan, int]],
    group_size: int,
) -> list[tuple[Ask, a_star.Plan]]:
    """The episodes that imagine the rest of each plan that can be gone on from and whose rest is not known yet.

    Each begins in a copy of the world after the plan, whose answers are real; what it does there is to be dropped.

    Args:
      records: a group's prompt.
      seeds: of a group's environments.
      groups: the episodes so far.
      known: of a group: plan -> length of the whole plan.
      group_size: G; episode n of group g is number g * G + n.
    """
    found: list[tuple[Ask, a_star.Plan]] = []
    for group, played in enumerate(groups):
        for plan, place in a_star.beginnings(played).items():
            if place is not None and plan and plan not in known[group]:
                number, after = ROOM + len(found), (group * group_size + place[0], place[1])
                found.append((Ask(number, records[group], group, len(found), seeds[group], after), plan))
    return found
