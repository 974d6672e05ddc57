"""config.judge: the judges of a run by name, and what they say together about a step's rows.

A judge of rows is a further term of the reward, beside those of config.reward.terms. Without terms it takes the place
of the task's own reward, which is then only logged, as `task`. A judge of tokens is added on the tokens.
"""

import math
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from experiments.parts import hub, judges
from experiments.parts.judges.base import Judge, Rows, Verdict
from experiments.parts.judges.learning import Learner
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind
from rl_jax.core.types import Params

TASK = "task"  # the name of the task's own reward, among the terms


class Opinion(NamedTuple):
    """What all judges say about B rows.

    Attributes:
      terms: name -> float32 [B], of the judges that reward rows.
      components: name -> float32 [B], to log.
      token_rewards: float32 [B, C], the weighted sum of the judges that reward tokens; None if there is none.
      step_ends: bool [B, C], where a judge ends a step; None if no judge says.
    """

    terms: dict[str, np.ndarray]
    components: dict[str, np.ndarray]
    token_rewards: np.ndarray | None
    step_ends: np.ndarray | None


class Judges:
    """The judges of config.judge.

    Args:
      setup: of the run.

    Attributes:
      weights: name -> weight.
      by_name: name -> Judge.
    """

    def __init__(self, setup: Setup):
        """Loads their models."""
        self.weights: dict[str, float] = {}
        self.by_name: dict[str, Judge] = {}
        for name, spec in specs_of(setup.config).items():
            spec = dict(spec)
            self.weights[name] = float(spec.pop("weight", 1.0))
            self.by_name[name] = bind(spec, judges)(setup)

    def __bool__(self) -> bool:
        """Whether there is a judge."""
        return bool(self.by_name)

    @property
    def learners(self) -> dict[str, Learner]:
        """Of the judges that are trained during the run."""
        found = {name: getattr(judge, "learner", None) for name, judge in self.by_name.items()}
        return {name: learner for name, learner in found.items() if learner is not None}

    @property
    def seeing(self) -> list[str]:
        """Names of the judges that read the policy: those with a method `see`."""
        return [name for name, judge in self.by_name.items() if hasattr(judge, "see")]

    def see(self, params: Params) -> None:
        """Shows the policy that samples the next rows to the judges that read it."""
        for name in self.seeing:
            self.by_name[name].see(params)

    def give(self, verify: Callable, grader: Callable) -> None:
        """Gives rewards to the judges that ask them about texts of their own.

        Args:
          verify: (N records, N texts) -> float32 [N], nan where it failed (rewards.Rewards.verify): the task's own
            reward, for judges with a `verify`.
          grader: (function, keywords) -> the same of that function (rewards.Rewards.grader), for judges with
            a `grade`, whose function is `graded_by`.
        """
        for judge in self.by_name.values():
            if hasattr(judge, "verify"):
                judge.verify = verify
            if hasattr(judge, "grade"):
                judge.grade = grader(*judge.graded_by)

    def learn(self, judged: Any) -> dict[str, float]:
        """Trains the judges that are due, on a step's rows. Returns judge/NAME/METRIC.

        Args:
          judged: a judging.Judged, whose components have the task's own reward, unless no learner needs labels.
        """
        metrics, labels, failed = {}, judged.result.components.get(TASK), judged.result.failed
        if labels is not None and failed is not None:
            labels = np.where(failed, np.float32(np.nan), labels)
        for name, learner in self.learners.items():
            if not learner.due():
                continue
            found = self.by_name[name].learn(judged, labels)
            metrics |= {f"judge/{name}/{key}": value for key, value in found.items()}
        return metrics

    def check_labels(self, terms: Collection[str], *, verified: bool) -> None:
        """Checks before the first step that judges which learn from labels get them.

        Args:
          terms: names of config.reward.terms.
          verified: whether the task has a reward of its own.

        Raises:
          ValueError: if the task's own reward is no component.
        """
        if TASK in terms or (verified and not terms):
            return
        mend = "leave reward.terms empty, or add {'task': {'fn': 'task'}} to it" if verified else "leave it at 0"
        why = "is no term" if verified else "does not exist: it has no verifier"
        for name, learner in self.learners.items():
            if getattr(learner, "needs_labels", True):  # a learner of your own may lack it
                raise ValueError(
                    f"judge.{name}.retrain_every: its labels are the task's own reward, which {why}; {mend}"
                )

    def __call__(self, judged: Rows) -> Opinion:
        """All verdicts on the rows.

        Raises:
          RuntimeError: if a judge gives a wrong number of rewards, or one that is not finite.
        """
        terms, components, tokens, ends = {}, {}, None, None
        shape = np.shape(judged.rollout.completion_mask)
        for name, judge in self.by_name.items():
            verdict = _checked(name, judge(judged), shape)
            components |= {f"{name}/{part}": column for part, column in verdict.components.items()}
            if verdict.rewards is not None:
                terms[name] = verdict.rewards
            if verdict.token_rewards is not None:
                components[name] = verdict.token_rewards.sum(axis=1)
                weighted = np.float32(self.weights[name]) * verdict.token_rewards
                tokens = weighted if tokens is None else tokens + weighted
            if verdict.step_ends is not None:
                ends = verdict.step_ends if ends is None else ends | verdict.step_ends
        return Opinion(terms, components, tokens, ends)


def specs_of(config) -> dict[str, dict[str, Any]]:
    """config.judge as a dict."""
    return config.judge.to_dict()


def check(specs: Mapping[str, Any], terms: Mapping[str, Any]) -> None:
    """Checks config.judge before anything is loaded.

    Args:
      specs: of config.judge.
      terms: of config.reward.terms.

    Raises:
      ValueError: if an entry names no judge, has a wrong keyword or weight, or the name of a term.
    """
    for name, spec in specs.items():
        if not isinstance(spec, Mapping) or not spec.get("fn"):
            known = ", ".join(judges.__all__)
            raise ValueError(f"judge.{name}={spec!r} must be a dict(fn=..., weight=1.0, ...); the judges are {known}")
        weight = spec.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"judge.{name}.weight={weight!r} must be a finite number")
        if name in terms or (name == TASK and not terms):
            term = f"reward.terms.{name}" if terms else "the task's own reward (reward.terms is empty)"
            raise ValueError(f"judge.{name} and {term} have one name: each is a column of its own; rename one of them")
        try:
            bind({key: value for key, value in spec.items() if key != "weight"}, judges)
        except ValueError as error:
            raise ValueError(f"judge.{name}: {error}") from error


def need_models(specs: Mapping[str, Any]) -> None:
    """Checks that the folders of the judges' models exist, before a warm start: the models are loaded after it.

    Args:
      specs: of config.judge.

    Raises:
      FileNotFoundError: if one has no config.json.
    """
    for name, spec in specs.items():
        path = spec.get("path", "") if spec["fn"] in judges.__all__ else ""  # a judge of your own has its own keywords
        for folder in path.split(",") if isinstance(path, str) else path:
            own = pathlib.Path(folder).name == "sft"  # WORKDIR/sft is written by this run's own warm start
            if folder and not own and not hub.is_hub(folder) and not (pathlib.Path(folder) / "config.json").is_file():
                raise FileNotFoundError(
                    f"judge.{name}.path={folder!r} is no folder of a model: {spec['fn']} needs the --workdir of a "
                    "finished run (experiments.reward_model trains reward models) or a Hugging Face folder"
                )


def _checked(name: str, verdict: Verdict, shape: tuple[int, int]) -> Verdict:
    """The verdict as float32. Raises RuntimeError if its shapes are wrong or a number is not finite."""
    rewards, tokens = verdict.rewards, verdict.token_rewards
    if rewards is None and tokens is None:
        raise RuntimeError(f"judge.{name} rewards neither rows nor tokens")
    for what, array, expected in (("rewards", rewards, shape[:1]), ("token_rewards", tokens, shape)):
        if array is not None and np.shape(array) != expected:
            raise RuntimeError(f"judge.{name} gives {what} of shape {np.shape(array)} for {expected}")
        if array is not None and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(shape[0], -1).all(axis=1))[0])
            raise RuntimeError(f"judge.{name}: the {what} of row {row} are not finite")
    rewards = None if rewards is None else np.asarray(rewards, np.float32)
    return verdict._replace(rewards=rewards, token_rewards=None if tokens is None else np.asarray(tokens, np.float32))
