"""All tasks of reasoning-gym (PyPI reasoning_gym): a question, one answer, scored by the task itself.

config.task = dict(name="rl_jax.envs.text.adapters.problems:load", num_train=10_000, num_test=200)
config.agent.env = dict(fn="rl_jax.envs.text.adapters.reasoning:ReasoningGym", tasks=("chain_sum", "sudoku"))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.envs.text.adapters.problems import number_of
from rl_jax.envs.text.protocol import Step


class ReasoningGym:
    """One question an episode. numbers: correct (a score of 1), score, raised (the task could not read the answer).

    Args:
      tasks: names of reasoning_gym.factory.DATASETS; () is all. Problem n is one of tasks[n % len(tasks)].
      threshold: the reward is 1 from this score on, else 0; 0: the score itself. Many tasks pay a little for any
        answer (0.01), which a policy can live on.
      settings: of the tasks by name, {"chain_sum": {"max_terms": 3}}.
    """

    def __init__(
        self, *, tasks: Sequence[str] = (), threshold: float = 1.0, settings: Mapping[str, Mapping[str, Any]] = {}
    ):
        from reasoning_gym import create_dataset
        from reasoning_gym.factory import DATASETS

        tasks = (tasks,) if isinstance(tasks, str) else tuple(tasks)
        if unknown := sorted({*tasks, *settings} - set(DATASETS)):
            raise ValueError(f"tasks={tasks}: reasoning_gym has no {', '.join(unknown)}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold={threshold} must be in [0, 1]")
        self._tasks = tasks or tuple(sorted(set(DATASETS) - {"composite"}))
        self._create, self._threshold, self._settings = create_dataset, threshold, settings

    def reset(self, record: Mapping[str, Any], seed: int):
        """The question of the record's number."""
        number = number_of(record, seed)
        name = self._tasks[number % len(self._tasks)]
        settings = dict(self._settings.get(name, {}))
        self._dataset = self._create(name, size=1, seed=number, **settings)
        self._entry = self._dataset[0]
        return [{"role": "user", "content": self._entry["question"]}]

    def right_answer(self) -> str:
        """The task's own; "" if it has none to show."""
        return str(self._entry.get("answer") or "")

    def step(self, said: str) -> Step:
        """The end, with the score."""
        try:
            score, raised = float(self._dataset.score_answer(said.strip(), self._entry)), 0.0
        except Exception:  # of what the model said: several tasks parse it without a check
            score, raised = 0.0, 1.0
        reward = float(score >= self._threshold) if self._threshold else score
        return Step(reward=reward, done=True, numbers={"correct": float(score >= 1), "score": score, "raised": raised})
