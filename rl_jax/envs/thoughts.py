"""A navigator around a black-box model: RL of Thoughts (RLoT) as an environment of whole-number actions.

    state    s = (A1, A2, A3, B1, B2, C1, C2) / 3    the model's own marks, 0 to 3, of its last step
    action   one of BLOCKS: reason, decompose, debate, refine, terminate
    reward   the process reward of the new step, in [0, 1], while it goes on;   1 or 0 for the answer, at the end

A block is a pattern of requests to the model; what it says becomes a step of the text, which the next request begins
with. The episode ends when the model says that the text has the answer, with `terminate`, or after `most` blocks. The
model is a function (text) -> text and is never trained: what is trained is the navigator, by experiments.control.replay
(double DQN with two heads, under 3000 weights, gamma .9).

Source: arXiv 2505.14140 and its code (haohaoqian/RL-LLM-Reasoning), whose blocks, marks, rewards and end these are; its
requests say the same in longer words, and the files of its network are not published. A first `refine` is `reason`
there as here. The model, its marks and the process reward (there Math-Shepherd) of the shipped config are stand-ins:
rl_jax.envs.clerk. One's own are a function that returns a BlackBox.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.core.binding import resolve
from rl_jax.envs.protocol import Box, Discrete

BLOCKS = ("reason", "decompose", "debate", "refine", "terminate")
MARKS = ("A1", "A2", "A3", "B1", "B2", "C1", "C2")
# What is asked of the model, after the text so far.
REQUESTS = {
    "reason": "Reason exactly one more step, not more.",
    "decompose": "List the subtasks whose results together solve the rest, as '### Subtask1: ...'; do not solve them.",
    "subtask": "Solve this subtask only. ",
    "summarise": "Summarise the results of these subtasks, without new reasoning.",
    "plans": "Propose three different plans for the next step, as '### Plan1: ...'; do not carry them out.",
    "compare": "Compare these plans and say 'The most promising plan is Plan[INDEX]'. ",
    "follow": "Take exactly one more step by this plan. ",
    "refine": "Check the last step and put it right where it is wrong, without new reasoning.",
    "finished": "Finished? Say yes if the text has the final answer to the whole problem, else no.",
    "answer": "Answer the problem, ending with 'The answer is ...'.",
    "rate": "Rate the last step, 1 false, 2 unsure, 3 true, 0 if it does not apply, as 'A1=[SCORE]': A1 it follows "
    "from the problem, A2 it is clear, A3 its calculation is right, B1 much is left to reason, B2 there are several "
    "ways to go on, C1 the answer is near, C2 all that it uses is known.",
}


class BlackBox(NamedTuple):
    """A model and what judges it.

    Attributes:
      ask: (text) -> text, the model.
      process_reward: (problem, its steps) -> the score of the last step, in [0, 1].
      problem: (seed) -> (text of a problem, its answer).
    """

    ask: Callable[[str], str]
    process_reward: Callable[[str, Sequence[str]], float]
    problem: Callable[[int], tuple[str, str]]


def marks_of(reply: str) -> np.ndarray:
    """The marks that a reply gives, 0 for those that it leaves out: float32 [7], in [0, 1]."""
    between = r"(?:(?![ABC][1-3])[:=\[a-zA-Z\s])*"  # and no other mark's name
    found = [re.search(rf"{name}{between}([0-3])(?![0-9])", reply) for name in MARKS]
    return np.asarray([int(match.group(1)) / 3 if match else 0.0 for match in found], np.float32)


def listed(reply: str) -> list[str]:
    """The parts of a reply that lists some with "###", without what it says before; the whole reply if it has none."""
    _, marked, rest = reply.partition("###")
    return [part.strip() for part in rest.split("###") if marked and part.strip()] or [reply]


class Thoughts:
    """One problem an episode, as a rl_jax.envs.host_worlds.HostEnv.

    Args:
      box: the model and what judges it.
      most: blocks of an episode; one more gives the answer, whatever it is.
    """

    def __init__(self, box: BlackBox, *, most: int = 5):
        if most < 1:
            raise ValueError(f"host/thoughts: most={most} must be 1 or more")
        self.box, self.most = box, most
        size = len(MARKS)
        self.observation_space = Box(np.zeros(size, np.float32), np.ones(size, np.float32))
        self.action_space = Discrete(len(BLOCKS))
        self._do = {"reason": self._reason, "decompose": self._decompose, "debate": self._debate}
        self._do["refine"] = lambda: self._ask("refine")

    def reset(self, seed: int) -> np.ndarray:
        """Starts the problem of this seed. Returns the marks of its text, float32 [7]."""
        self.problem, self.right = self.box.problem(seed)
        self.steps: list[str] = []
        self.blocks: list[str] = []
        self.reply = ""
        self._marks = marks_of(self._ask("rate"))
        return self._marks

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """One block, or the answer. Returns (marks float32 [7], reward, whether it was the answer, False)."""
        block = BLOCKS[int(action)]
        if block == "refine" and not self.steps:
            block = "reason"
        if block == "terminate" or len(self.blocks) >= self.most:
            return self._answered()
        self.blocks.append(block)
        self.steps.append(self._do[block]())
        if "yes" in self._ask("finished").lower():
            return self._answered()
        self._marks = marks_of(self._ask("rate"))
        reward = float(np.clip(self.box.process_reward(self.problem, self.steps), 0.0, 1.0))
        return self._marks, reward, False, False

    def _answered(self) -> tuple[np.ndarray, float, bool, bool]:
        self.reply = self._ask("answer").rpartition("answer is")[2].strip(" .:\n\t")
        return self._marks, float(self.reply == self.right), True, False

    def _ask(self, request: str, of: str = "", more: Sequence[str] = ()) -> str:
        """The model's reply to a request, after the problem, its steps and `more` of them; `of` ends the request."""
        text = [self.problem, *(f"STEP{i}: {said}" for i, said in enumerate([*self.steps, *more], 1))]
        return self.box.ask("\n".join(text) + f"\n\n{REQUESTS[request]}{of}")

    def _reason(self) -> str:
        return self._ask("reason")

    def _decompose(self) -> str:
        """Subtasks, each solved with the results of those before it, and a summary of them."""
        results: list[str] = []
        for part in listed(self._ask("decompose")):
            results.append(self._ask("subtask", part, results))
        return self._ask("summarise", more=results)

    def _debate(self) -> str:
        """Plans, the best of which is followed; the first one if the model names none."""
        plans = listed(self._ask("plans"))
        named = re.search(r"promising plan is\s*[Pp]lan\s*\[?([0-9]+)", self._ask("compare", " ".join(plans)))
        index = int(named.group(1)) - 1 if named else 0
        return self._ask("follow", plans[index if 0 <= index < len(plans) else 0])


def thoughts(*, around: str = "rl_jax.envs.clerk:clerk", most: int = 5) -> Thoughts:
    """A Thoughts around a model.

    Args:
      around: "module:function" of a function () -> BlackBox.
      most: blocks of an episode.
    """
    return Thoughts(resolve(around)(), most=most)
