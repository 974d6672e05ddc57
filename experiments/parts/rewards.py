"""config.reward: what scores the samples of a step. The task's own reward, or named terms that are composed.

    --config.reward.terms=my_rewards:score                         # one term, named after its function
    --config.reward.terms=math,0.2*my_rewards:brief                # two, with weights
    --config.reward.terms="{'right': {'fn': 'math', 'weight': 1.0}, 'brief': {'fn': 'my_rewards:brief', 'limit': 40}}"

Item terms run in worker processes, group terms here; each is logged as reward/NAME and, times its weight, as
reward/NAME/weighted. config.reward.compose makes one reward of them (rl_jax.rewards.compose). Learned judges
(config.judge, experiments.parts.judges) are further terms; they run on the rows of all processes, in `finish`.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from experiments.parts.failures import Failures
from experiments.parts.judges.table import TASK, Judges
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind, resolve, supply
from rl_jax.core.types import Params, Rollout
from rl_jax.experience.prompt import info_of
from rl_jax.rewards import compose
from rl_jax.rewards.pool import RewardPool, RewardResult, function_name
from rl_jax.rewards.terms import Term, load_terms, score_group, score_item
from rl_jax.tasks import Task
from rl_jax.training import distributed


class Rows(NamedTuple):
    """Completions to score, on the host; those of a prompt are neighbours.

    Attributes:
      rollout: numpy leaves [B, ...].
      records: B records, {"prompt", "info" (JSON), ...}.
      completions: B texts.
      group_size: completions per prompt.
    """

    rollout: Rollout
    records: list[dict]
    completions: list[str]
    group_size: int


class Rewards:
    """Scores Rows; a context manager, which owns the worker processes.

    Attributes:
      failures: Failures, those of the run so far.

    Args:
      settings: config.reward.
      terms: of settings.terms; none: the task's own reward, as it is.
      task: whose reward that is; None if there are terms.
      judges: of config.judge; None: none.
      composition: of the terms; None: settings.compose.
    """

    def __init__(
        self,
        settings: ConfigDict,
        terms: list[Term],
        task: Task | None = None,
        judges: Judges | None = None,
        composition: Mapping | None = None,
    ):
        self._config, self._terms, self._judges = settings, terms, judges
        self.failures = Failures()
        names = ("num_workers", "time_limit_s", "failure_reward")
        options = {name: settings[name] for name in names}
        options["memory_gb"] = settings.get("memory_gb", 4.0)  # runs of before it have none (experiments.reverify)
        self._options, self._graders = options, []
        items = [[t.name, t.path, t.keywords] for t in terms if not t.is_group]
        self._pool = None
        if not terms and task.reward_fn is not None:
            self._pool = RewardPool(task.reward_fn, kwargs=task.reward_kwargs, **options)
        elif items:
            self._pool = RewardPool(score_item, kwargs={"terms": items}, **options)
        self._compose = bind(composition or settings.compose.to_dict(), compose)
        if judges:
            judges.give(self.verify, self.grader)

    def __enter__(self) -> "Rewards":
        return self

    def __exit__(self, *exception) -> None:
        for pool in (self._pool, *self._graders):
            if pool is not None:
                pool.close()

    def __call__(self, rows: Rows) -> RewardResult:
        """The rewards of `rows`, and each term as a component."""
        prompts, infos = [r["prompt"] for r in rows.records], [r["info"] for r in rows.records]
        count = len(prompts)
        result = RewardResult(np.zeros(count, np.float32), {}, 0, 0, None, np.zeros(count, bool))
        if self._pool is not None:
            result = self._pool(prompts, rows.completions, infos)
        return self._composed(rows, result) if self._terms else result

    def _composed(self, rows: Rows, result: RewardResult) -> RewardResult:
        infos = [info_of(record) for record in rows.records]
        zeros = np.zeros(len(infos), np.float32)  # of a term that failed on every row
        values = {t.name: result.components.get(t.name, zeros) for t in self._terms if not t.is_group}
        for term in self._terms:
            if term.is_group:
                values[term.name], errors = _by_group(term, rows, infos, values)
                result = _with_errors(result, errors)
        if self._judges:  # they are terms, too: `finish` composes
            return result._replace(components=result.components | values)
        weights = {term.name: term.weight for term in self._terms}
        return self._total(rows.records, result, values, weights)

    def _total(
        self, records: list[dict], result: RewardResult, values: Mapping[str, np.ndarray], weights: Mapping[str, float]
    ) -> RewardResult:
        """The result with the composed reward, and each term as a component."""
        infos, sources = [info_of(record) for record in records], [r.get("source", "") for r in records]
        total = supply(self._compose, {"sources": sources, "infos": infos})(values, weights)
        if result.failed is not None:
            total = np.where(result.failed, np.float32(self._config.failure_reward), total)
        weighted = {f"{name}/weighted": np.float32(weights[name]) * value for name, value in values.items()}
        components = dict(sorted((result.components | dict(values) | weighted).items()))  # the order of the pool's
        return result._replace(rewards=total.astype(np.float32), components=components)

    @property
    def sees_groups(self) -> bool:
        """Whether a term needs all samples of a prompt."""
        return any(term.is_group for term in self._terms)

    def carried(self) -> dict[str, Any]:
        """What judges have learned, as an item of a checkpoint; {} if none does (Run.carry)."""
        learners = self._judges.learners if self._judges else {}
        return {"judges": {name: learner.carried() for name, learner in learners.items()}} if learners else {}

    def set_carried(self, items: Mapping[str, Any]) -> None:
        """Puts back what `carried` gave."""
        for name, of_learner in items.get("judges", {}).items():
            self._judges.learners[name].set_carried(of_learner)

    @property
    def seeing(self) -> list[str]:
        """Names of the judges that read the policy (judges.table.Judges.seeing)."""
        return self._judges.seeing if self._judges else []

    def see(self, params: Params) -> None:
        """Shows the policy that samples the next rows to the judges that read it (judges.table.Judges.see)."""
        if self._judges:
            self._judges.see(params)

    def verify(self, records: Sequence[dict], completions: Sequence[str]) -> np.ndarray:
        """The task's own reward of texts that are no rows of a step, by the same workers and within the same limits.

        Process 0 scores them for all, since a text that is late in one process may not be in another.

        Args:
          records: N of them.
          completions: N texts.

        Returns:
          float32 [N], nan where the reward failed.
        """

        def task_rewards(result: RewardResult) -> np.ndarray:
            zeros = np.zeros_like(result.rewards)  # of a term that failed on every text
            return result.components.get(TASK, zeros) if self._terms else result.rewards

        return _of_texts(self._pool, records, completions, task_rewards)

    def grader(self, fn: Callable, keywords: Mapping) -> Callable[[Sequence[dict], Sequence[str]], np.ndarray]:
        """`verify` by another reward function, in workers of its own within the same limits.

        It raises RuntimeError, in every process, if the function fails on all texts of a call.
        """
        pool = RewardPool(fn, kwargs=dict(keywords), **self._options)
        self._graders.append(pool)

        def grade(records: Sequence[dict], texts: Sequence[str]) -> np.ndarray:
            first = []
            found = _of_texts(pool, records, texts, lambda result: first.append(result.first_error) or result.rewards)
            if len(texts) and np.isnan(found).all():
                why = f": {first[0]}" if first else ""  # process 0 knows
                raise RuntimeError(f"the reward of a judge failed on all {len(texts)} texts that it was given{why}")
            return found

        return grade

    def learn(self, judged: Any) -> dict[str, float]:
        """Trains the judges that are due after a step. Returns their metrics (judges.table.Judges.learn)."""
        return self._judges.learn(judged) if self._judges else {}

    def finish(self, judged: Any) -> Any:
        """The judging.Judged of all processes' rows with what the judges say; unchanged without judges.

        A judge of rows is a further term. Without terms it replaces the task's own reward, which is logged as `task`; a
        judge of tokens is added to it.
        """
        if not self._judges:
            return judged
        opinion, result, failed = self._judges(judged), judged.result, judged.result.failed
        zeros = np.zeros_like(result.rewards)
        values = {t.name: result.components.get(t.name, zeros) for t in self._terms}
        weights = {t.name: t.weight for t in self._terms}
        if not self._terms and self._pool is not None:
            values, weights = {TASK: result.rewards}, {TASK: 0.0 if opinion.terms else 1.0}
            if opinion.terms:  # a row whose verifier failed has the judges' reward, too, but is no label
                result, failed = result._replace(failed=None), failed if self._judges.learners else None
        weights |= {name: self._judges.weights[name] for name in opinion.terms}
        result = result._replace(components=result.components | opinion.components)
        if values or opinion.terms:
            result = self._total(judged.records, result, values | opinion.terms, weights)
        rollout = judged.rollout._replace(token_rewards=opinion.token_rewards, step_ends=opinion.step_ends)
        return judged._replace(rollout=rollout, result=result._replace(failed=failed))


def _of_texts(pool: RewardPool, records: Sequence[dict], texts: Sequence[str], values: Callable) -> np.ndarray:
    """float32 [N]: values(RewardResult) of texts that are no rows of a step; nan where it failed. Process 0 scores."""
    found = None
    if distributed.is_main() and texts:
        prompts, infos = [record["prompt"] for record in records], [record["info"] for record in records]
        result = pool(prompts, texts, infos)
        found = np.where(result.failed, np.nan, values(result)).tolist()
    return np.array(distributed.gather(found)[0] or (), np.float32)


def _by_group(
    term: Term, rows: Rows, infos: list[dict], values: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, list[str | None]]:
    """A group term, group by group: float32 [B], and B messages, None where it did not fail."""
    rollout, found, errors = rows.rollout, [], []
    masks = rollout.completion_mask
    all_columns = {
        "completions": rows.completions,
        "prompts": [record["prompt"] for record in rows.records],
        "infos": infos,
        "prompt_ids": [record.get("id", record["prompt"]) for record in rows.records],
        "lengths": masks.sum(axis=1).tolist(),
        "truncated": rollout.truncated.tolist(),
    }
    if rollout.batch is not None:  # what is read from samples.jsonl has no tokens
        sampled = rollout.batch.tokens[:, -masks.shape[1] :]
        all_columns["completion_ids"] = [ids[mask].tolist() for ids, mask in zip(sampled, masks, strict=True)]
    for start in range(0, len(infos), rows.group_size):
        part = slice(start, start + rows.group_size)
        columns = {name: column[part] for name, column in all_columns.items()}
        columns["terms"] = {name: value[part].tolist() for name, value in values.items()}
        of_group = score_group(term, columns)
        found.append(of_group.values)
        errors += of_group.errors
    return np.concatenate([np.zeros(0, np.float32), *found]), errors


def _with_errors(result: RewardResult, errors: Sequence[str | None]) -> RewardResult:
    """The result in which the rows with a message have failed, too. errors: B of them, None without a failure."""
    rows = np.array([error is not None for error in errors], bool)
    failed = result.failed | rows
    new, first = rows & ~result.failed, int(np.argmax(failed)) if failed.any() else 0
    # The message that is shown is that of the first row that failed.
    first_error = errors[first] if len(new) and new[first] else result.first_error
    return result._replace(failed=failed, num_errors=result.num_errors + int(new.sum()), first_error=first_error)


def make_rewards(setup: Setup, *, judged: bool = True) -> Rewards | contextlib.nullcontext:
    """What scores a run's samples, as a context manager. Gives None if there is no reward at all.

    Args:
      setup: of the run.
      judged: whether the judges of config.judge are part of it. Without them, terms are added up, since the
        composition may name a judge.

    Raises:
      ValueError: if a term is wrong, or a judge learns from labels that there are not.
    """
    settings, task = setup.config.reward, setup.task
    judges = Judges(setup) if judged else None
    if not settings.terms and not judges and task.reward_fn is None:
        return contextlib.nullcontext()
    alone = not judged and bool(setup.config.get("judge"))
    composition = {"fn": "weighted_sum"} if alone else None
    terms = load_terms(with_task(settings.terms.to_dict(), task), resolve)
    if judges:
        judges.check_labels([term.name for term in terms], verified=task.reward_fn is not None)
    return Rewards(settings, terms, task, judges, composition)


def with_task(spec: Mapping[str, Mapping], task: Task) -> dict:
    """The terms with fn "task" replaced by the task's own reward function and keywords."""
    result = {}
    for name, fields in spec.items():
        if isinstance(fields, Mapping) and fields.get("fn") == TASK:
            if task.reward_fn is None:
                why = f": {task.no_reward}" if task.no_reward else ""
                raise ValueError(f"reward.terms.{name}.fn={TASK!r}: the task has no reward of its own{why}")
            fields = {**task.reward_kwargs, **fields, "fn": function_name(task.reward_fn)}
        result[name] = fields
    return result
