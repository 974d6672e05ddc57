"""Who labels captions beside a run: a thread that asks a language model, and the questions that it asks.

config.algorithm.relabel.annotator of by_captions is dict(captions=..., ask=..., goal=..., wait=False, batch=16):

    captions   a function of rl_jax.envs.captions, or "my_module:caption": an observation as a text
    ask        who answers: a function of experiments.parts.text_models, dict(fn="by_server", url=...) or dict(
               fn="by_words", liked=(...)), a script; or "my_module:make", a function to ask(texts) -> answers
"""

import re
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from experiments.parts import text_models
from experiments.parts.text_models import Ask
from rl_jax.core.binding import bind
from rl_jax.envs import captions
from rl_jax.preferences.judge_task import fill

LABEL = (
    "You judge messages of a game. {goal}\n"
    'Message: "{first}"\n'
    "Is what it reports a large step towards the goal? Answer YES or NO. Answer:"
)
PAIR = (
    "You judge messages of a game. {goal}\n"
    'Message 1: "{first}"\nMessage 2: "{second}"\n'
    "Which of them reports more progress towards the goal? Answer 1, 2 or NONE. Answer:"
)
# The last word of an answer that is one of these, and what it means.
LABELS = {"YES": 1.0, "NO": 0.0}
PAIRS = {"1": 0.0, "2": 1.0, "NONE": 0.5}
FIELDS = {"captions", "ask", "goal", "wait", "batch", "features"}


def make_annotator(spec: Mapping[str, Any], pairs: bool) -> tuple["Annotator", int]:
    """(the Annotator of a config, the width of its features).

    Args:
      spec: captions, ask and goal as at the head of this file; wait: whether the run waits for each answer; batch:
        questions that are asked at once; features: numbers that stand for a caption's words.
      pairs: whether questions are about two captions.

    Raises:
      ValueError: if a field is missing, unknown or out of its range.
    """
    if lacking := sorted(FIELDS - set(spec)):
        raise ValueError(f"annotator lacks {', '.join(lacking)}: set algorithm.relabel.annotator.{lacking[0]}")
    if unknown := sorted(set(spec) - FIELDS):
        raise ValueError(f"annotator has no field {', '.join(unknown)}; it has {', '.join(sorted(FIELDS))}")
    if spec["batch"] < 1 or spec["features"] < 1:
        raise ValueError(f"annotator: batch={spec['batch']} and features={spec['features']} must be 1 or more")
    made = Annotator(
        bind(spec["captions"], captions),
        bind(spec["ask"], text_models)(),
        goal=spec["goal"],
        pairs=pairs,
        wait=spec["wait"],
        batch=spec["batch"],
        features=spec["features"],
    )
    return made, spec["features"]


class Annotator:
    """Reads captions and has them judged, in a thread of its own that ends when nothing is left to ask.

    The newest questions are asked first. An answer is kept for ever: the same question is asked once in a process.

    Args:
      caption: (observation) -> text.
      ask: texts -> answers; called in the thread, or in `answers` if the run waits.
      goal: what is wanted of the player, a sentence.
      pairs: whether questions are about two captions.
      wait: whether `answers` returns with all of them. A run is then the same every time.
      batch: questions that are asked at once.
      features: W.
    """

    def __init__(
        self, caption: Callable, ask: Ask, *, goal: str, pairs: bool, wait: bool, batch: int = 16, features: int = 64
    ):
        self._caption, self._ask, self._goal, self._pairs = caption, ask, goal, pairs
        self._wait, self._batch, self._features = wait, batch, features
        self._texts, self._words = {}, {}  # of each caption by its hash
        self._lock, self._queue, self._known = threading.Lock(), [], {}
        self._asked, self._thread, self._failure = set(), None, None

    def read(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As relabelling.captions.Annotator. Hashes are CRC-32, so that they are the same after a restart."""
        hashes = np.empty(len(observations), np.uint32)
        features = np.empty((len(observations), self._features), np.float32)
        for row, observation in enumerate(observations):
            text = self._caption(observation)
            number = zlib.crc32(text.encode()) or 1
            if number not in self._words:
                self._texts[number], self._words[number] = text, words_of(text, self._features)
            hashes[row], features[row] = number, self._words[number]
        return hashes, features

    def answers(self, questions: np.ndarray, waiting: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """As relabelling.captions.Annotator. Raises what `ask` has raised in the thread."""
        asked = {row: tuple(int(x) for x in questions[row]) for row in np.flatnonzero(waiting)}
        for row, question in asked.items():
            for number, example in zip(question, examples[row], strict=True):
                if number not in self._texts:  # the run was started again
                    self._texts[number] = self._caption(example)
        found = np.full(len(questions), np.nan, np.float32)
        with self._lock:
            new = [x for x in dict.fromkeys(asked.values()) if x not in self._known and x not in self._asked]
            self._queue += new
            self._asked |= set(new)
        if self._wait:
            self._work()
        with self._lock:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            for row, question in asked.items():
                found[row] = self._known.get(question, np.nan)
            if self._queue and self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="annotator")
                self._thread.start()
        return found

    def _work(self) -> None:
        """Asks until nothing is left to ask, or something fails."""
        while True:
            with self._lock:
                batch, self._queue = self._queue[: -self._batch - 1 : -1], self._queue[: -self._batch]
                if not batch:
                    self._thread = None
                    return
            try:
                texts = [[self._texts[number] for number in question] for question in batch]
                answers = self._ask([self._question(*own) for own in texts])
                found = {question: self._read(answer) for question, answer in zip(batch, answers, strict=True)}
            except Exception as error:  # in a thread: raised where the run asks next
                with self._lock:
                    self._failure, self._thread = error, None
                    self._asked -= set(batch)
                return
            with self._lock:
                self._known |= found
                self._asked -= set(batch)

    def _question(self, first: str, second: str = "") -> str:
        return fill(PAIR if self._pairs else LABEL, goal=self._goal, first=first, second=second)

    def _read(self, answer: str) -> float:
        """What an answer means; no label, or no preference, if it does not say."""
        meanings = PAIRS if self._pairs else LABELS
        said = [word for word in re.findall(r"\w+", answer.upper()) if word in meanings]
        if not said:
            logging.warning("an annotator's answer says none of %s: %r", ", ".join(meanings), answer[:200])
        return meanings[said[-1]] if said else 0.5 * self._pairs


def words_of(text: str, size: int) -> np.ndarray:
    """How often words are in a text, float32 [size]: each is counted at the place of its hash."""
    found = np.zeros(size, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        found[zlib.crc32(word.encode()) % size] += 1.0
    return found
