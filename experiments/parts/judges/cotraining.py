"""A reward model that is trained beside the policy on right answers and on the same ones made wrong (Cooper)."""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, groups_of
from experiments.parts.judges.generative import Cached, make_ask
from experiments.parts.judges.learning import Learner
from experiments.parts.judges.reward_models import folders_of, reward_model
from experiments.parts.judges.trained import need_finished
from experiments.parts.setup import Setup
from rl_jax.core.binding import resolve
from rl_jax.preferences.judge_task import fill

MODEL = "configs/preferences/cooper.py:model"  # trains what `path` names
ASSISTANT = "Rewrite the answer so that it is wrong.\n\nQuestion:\n{prompt}\n\nAnswer:\n{completion}\n\nWrong answer:\n"


def cotrained(
    setup: Setup,
    *,
    path: str,
    corrupt: str = "rl_jax.preferences.corrupted:other_number",
    assistant: str = "",
    template: str = ASSISTANT,
    max_tokens: int = 64,
    right: float = 1.0,
    batch_size: int = 64,
    retrain_every: int = 1,
    learning_rate: float = 1e-5,
) -> Judge:
    """`reward_model`, updated with -log sigma(r(x, a, y+) - r(x, a, y-)) on a pair per prompt of a step.

    y+ is the first answer of the prompt that the task's own reward, the rule, finds right; y- is y+ made wrong, by an
    assistant model or by a function, and is left out if the rule still finds it right, or fails on it. a, the reference
    answer, is what info["judge_prompt"] adds to the prompt (rl_jax.preferences.privileged). The policy's own mistakes
    are not used, as the rule may be wrong about them. Source: arXiv 2508.05613; which of several right answers it takes
    could not be read, and its code is not public here.

    Args:
      setup: of the run.
      path: workdir of a run of experiments.reward_model that reads responses.
      corrupt: import path of (text, random.Random) -> another text or None; used without an assistant.
      assistant: workdir of a run or a Hugging Face folder that writes the wrong answers, greedily; "": `corrupt` does.
      template: what the assistant is asked, with {prompt} and {completion}.
      max_tokens: longest answer of the assistant.
      right: the task's reward from which an answer is right.
      batch_size: rows per forward pass, and questions per call of the assistant.
      retrain_every: steps between updates. 0: never, a frozen model.
      learning_rate: of these updates.

    Raises:
      FileNotFoundError: if a folder holds no run.
      ValueError: if the rows cannot be read, the model cannot be trained, or the task has no rule.
    """
    for folder in folders_of(path, "cotrained"):
        need_finished(folder, MODEL)
    options = dict(batch_size=batch_size, retrain_every=retrain_every, learning_rate=learning_rate)
    judge = reward_model(setup, path=path, rows="texts", **options)
    if retrain_every and setup.task.reward_fn is None:
        raise ValueError("cotrained: the task has no reward of its own, so no rule says which answers are right")
    ask = Cached(make_ask(setup, assistant, "cotrained.assistant", max_tokens, batch_size)) if assistant else None
    return _Cotrained(judge, resolve(corrupt), ask, template, right)


class _Cotrained:
    """The judge of `cotrained`.

    Attributes:
      verify: the rule, in the worker processes of the run's rewards; judges.table.Judges.give sets it.
    """

    def __init__(self, judge: Any, corrupt: Any, ask: Any, template: str, right: float):
        self._judge, self._corrupt, self._ask = judge, corrupt, ask
        self._template, self._right = template, right
        self.learner: Learner | None = judge.learner
        self.verify: Callable[[Sequence[dict], Sequence[str]], np.ndarray] | None = None

    def __call__(self, judged: Rows) -> Verdict:
        return self._judge(judged)

    def learn(self, judged: Rows, labels: np.ndarray) -> dict[str, float]:
        """One update on a right answer of each prompt that has one, and the same made wrong."""
        groups = groups_of(judged)
        chosen = [next((row for row in rows if labels[row] >= self._right), None) for rows in groups]
        wrong, failed = self._wrong(
            [None if row is None else (judged.records[row], judged.completions[row]) for row in chosen]
        )
        live = [text is not None for text in wrong]
        pairs = [
            (judged.completions[row], text) if text is not None else ("", "")
            for row, text in zip(chosen, wrong, strict=True)
        ]
        prompts = self._judge.prompts_of([judged.records[rows.start] for rows in groups])
        numbers = {"pairs": float(np.mean(live)), "unverified": failed / len(groups)}
        return self._judge.learn_texts(prompts, pairs, live) | numbers

    def _wrong(self, right: Sequence[tuple[dict, str] | None]) -> tuple[list[str | None], int]:
        """(each right answer made wrong, None if it is not wrong for sure or there is none; how often the rule failed).

        A pair whose wrong answer the rule cannot read, or not in time, is left out: nobody knows that it is wrong. So
        is one on which another term of config.reward.terms fails, which the same workers compute.
        """
        said = None
        if self._ask is not None:
            known = [one for one in right if one is not None]
            said = iter(self._ask([fill(self._template, prompt=r["prompt"], completion=text) for r, text in known]))
        made: list[str | None] = []
        for one in right:
            text = None
            if one is not None:
                record, answer = one
                seed = zlib.crc32(f"{self.learner.seen} {record['prompt']} {answer}".encode())
                text = next(said) if said is not None else self._corrupt(answer, random.Random(seed))
            made.append(text)
        asked = [
            (place, one[0], text) for place, (one, text) in enumerate(zip(right, made, strict=True)) if text is not None
        ]
        found = self.verify([record for _, record, _ in asked], [text for _, _, text in asked])
        for (place, _, _), reward in zip(asked, found, strict=True):
            made[place] = made[place] if reward < self._right else None  # nan, of a failure, is not
        return made, int(np.isnan(found).sum())
