"""A hint is worth what a frozen model makes of it: directional stimulus prompting (arXiv 2302.11520)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.parts.judges import generative, voting
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts
from experiments.parts.setup import Setup
from rl_jax.preferences.judge_task import fill
from rl_jax.rewards import replies, terms
from rl_jax.rewards.pool import function_name

TEMPLATE = "{prompt}{hint}"


def stimulus(
    setup: Setup,
    *,
    path: str,
    reward: str = "task",
    template: str = TEMPLATE,
    answer: str = "{output}",
    votes: int = 4,
    temperature: float = 0.7,
    max_tokens: int = 16,
    keywords: Mapping[str, Any] | None = None,
) -> Judge:
    """The mean reward of what a frozen model answers when it is given the policy's completion as a hint.

        R(x, z) = 1/n sum_i reward(x, y_i),   y_i ~ p_frozen(. | x, z)

    Args:
      setup: of the run.
      path: the frozen model: workdir of a run or a Hugging Face folder.
      reward: of its answer: "task", the task's own, a short name of rl_jax.rewards.terms, or "module:function".
      template: what the frozen model is asked, with {prompt} and {hint}.
      answer: the text that is rewarded, with {hint} and {output}.
      votes: n; 4 in the paper's code.
      temperature: of its answers; 0.7.
      max_tokens: longest answer.
      keywords: of the reward.

    Raises:
      FileNotFoundError: if the folder is neither.
      ValueError: if votes is below 1, a template lacks {hint} or {output}, or there is no such reward.
    """
    if votes < 1 or "{hint}" not in template or "{output}" not in answer:
        raise ValueError(f"stimulus: votes={votes} must be at least 1, template has {{hint}}, answer has {{output}}")
    fn, given = reward_of(setup, reward), dict(keywords or {})
    if reward == "task":
        graded_by = fn, dict(setup.task.reward_kwargs) | given
    else:  # a term, which returns a number or components
        graded_by = terms.score_item, {"terms": [["reward", function_name(fn), given]]}
    ask = generative.Cached(voting.make_votes(setup, path, votes, temperature, max_tokens, "stimulus.path"))
    return _Stimulus(ask, template, answer, graded_by, float(setup.config.reward.failure_reward))


class _Stimulus:
    """The judge of `stimulus`.

    Attributes:
      graded_by: (the reward function, its keywords).
      grade: (N records, N texts) -> float32 [N], nan where it failed: the reward in worker processes of its own, within
        the limits of config.reward; judges.table.Judges.give sets it.
    """

    def __init__(
        self, ask: Callable, template: str, answer: str, graded_by: tuple[Callable, dict[str, Any]], failure: float
    ):
        self._ask, self._template, self._answer, self._failure = ask, template, answer, failure
        self.graded_by = graded_by
        self.grade: Callable[[Sequence[dict], Sequence[str]], np.ndarray] | None = None

    def __call__(self, judged: Rows) -> Verdict:
        hints = judged.completions
        asked = zip(judge_prompts(judged.records), hints, strict=True)
        outputs = self._ask([fill(self._template, prompt=prompt, hint=hint) for prompt, hint in asked])
        rows = [
            (record, hint, output)
            for record, hint, of in zip(judged.records, hints, outputs, strict=True)
            for output in of
        ]
        texts = [fill(self._answer, hint=hint, output=output) for _, hint, output in rows]
        found = self.grade([record for record, *_ in rows], texts)
        failed = np.isnan(found).reshape(len(hints), -1)
        rewards = np.where(failed, np.float32(self._failure), found.reshape(failed.shape))
        shares = failed.mean(axis=1, dtype=np.float32)
        return Verdict(rewards.mean(axis=1), components={"spread": rewards.std(axis=1), "failed": shares})


def reward_of(setup: Setup, name: str):
    """The function of a reward. Raises ValueError if there is none of that name."""
    if name == "task":
        if setup.task.reward_fn is None:
            raise ValueError(f"stimulus.reward='task': the task {setup.task.name} has no reward of its own")
        return setup.task.reward_fn
    path = terms.TERMS.get(name, name)
    if not path.partition(":")[2]:
        raise ValueError(f'stimulus.reward={name!r} is no short name; write "module:function"')
    return replies.resolve(path)
