"""A cook of two minds that speaks with its partner: HLA (arXiv 2312.15224) in the kitchen of rl_jax.envs.worlds.

    slow mind   the partner's message -> what they want (a demand); later: is it met, and what to say
    fast mind   demand, what is seen, what was done -> one of the macro actions that can begin
    executor    macro action -> moves (envs.worlds.kitchen_tasks)

Both minds are ask(texts) -> answers (experiments.parts.text_models). An answer of the slow mind counts `slow_steps`
steps of the kitchen after its question: until then the partner's own words are the demand. One of the fast mind counts
after `fast_steps`, in which the cook stands still. A new message, and what the slow mind makes of it, interrupt what is
done. What the cook says, once the slow mind finds a demand met, is said in that step.

Source: the paper's code (HosnLS/Hierarchical-Language-Agent, agent/mind/agent.py: HLAagent, prompt.py, call.py); the
paper's text was not read beyond its abstract. Departs: latencies are counted in steps, not in seconds; the fast mind
names an action, where there the likeliest of the available ones is taken, by a model's probabilities less a cost; one
message is remembered, not two; prompts are our own.
"""

import re
from collections import Counter
from typing import NamedTuple

from experiments.parts.text_models import Ask
from rl_jax.envs.worlds import kitchen_tasks
from rl_jax.envs.worlds.kitchen import STAY, Kitchen
from rl_jax.envs.worlds.kitchen_tasks import NAMES

RULES = (
    "Two cooks share a kitchen with a counter between them. The left cook alone reaches onions and dishes, the right "
    "one alone the pot and the window. A soup needs {onions} onion(s) in the pot, {cook} steps, a dish and the window."
)
INTENTION = (
    '{rules} You are the {side} cook. Your partner said: "{message}"\n'
    "Say in a few words what they want of you, so that who did not hear it can do it: which action, how often, "
    'or "None". Your actions are: {tasks}. Answer:'
)
MET = (
    "{rules} You are the {side} cook. Your partner wanted: {demand}\n"
    "Since then you did: {done}\n"
    "Is that all they wanted? What they want for ever is never met. Answer YES or NO. Answer:"
)
REPLY = (
    "{rules} You are the {side} cook. {seen} Your partner wanted: {demand}\n"
    "Since then you did: {done}\nSay something short and helpful to your partner. Answer:"
)
CHOICE = (
    "{rules} You are the {side} cook. {seen}\nYour partner wants: {demand}\nSince then you did: {done}\n"
    "Choose what to do now, exactly one of: {available}. Answer:"
)


class Exchange(NamedTuple):
    """An answer that is on its way.

    Attributes:
      due: step from which on it counts.
      kind: "intention", "met" or "choice".
      text: the answer.
      message: number of the partner's message that it belongs to.
    """

    due: int
    kind: str
    text: str
    message: int


class Cook:
    """One cook. Call `hear` with what the partner says, and `act` once per step.

    Args:
      cook: kitchen_tasks.LEFT or RIGHT.
      fast: the fast mind.
      slow: the slow mind; None: the partner's own words are the demand, and stay it until they say something else.
      onions: that a soup needs.
      cook_steps: until it is ready.
      slow_steps: steps until the slow mind's answer counts.
      fast_steps: steps until the fast mind's answer counts.
      patience: macro actions after which a demand is given up.

    Attributes:
      said: what the cook has said, (step, text).
      log: every question, {"step", "mind", "kind", "question", "answer"}.
    """

    def __init__(
        self,
        cook: int,
        fast: Ask,
        slow: Ask | None,
        *,
        onions: int,
        cook_steps: int,
        slow_steps: int = 0,
        fast_steps: int = 0,
        patience: int = 15,
    ):
        if min(slow_steps, fast_steps) < 0 or patience < 1:
            raise ValueError(f"{slow_steps=} and {fast_steps=} must be 0 or more, {patience=} 1 or more")
        self._cook, self._fast, self._slow = cook, fast, slow
        self._parts = dict(onions=onions, cook_steps=cook_steps)
        self._delays = {"slow": slow_steps, "fast": fast_steps}
        self._patience = patience
        self._rules = dict(rules=RULES.format(onions=onions, cook=cook_steps), side=("left", "right")[cook])
        self._coming: list[Exchange] = []
        self._task, self._demand, self._message, self._done = "", "", 0, []
        self.said, self.log = [], []

    def hear(self, message: str, step: int) -> None:
        """The partner speaks."""
        self._message, self._demand, self._done, self._task = self._message + 1, message, [], ""
        self._coming = []  # what was asked about an older message does not count any more
        if self._slow is not None:
            tasks = ", ".join(kitchen_tasks.TASKS[self._cook])
            self._send("slow", "intention", INTENTION.format(**self._rules, message=message, tasks=tasks), step)

    def act(self, state: Kitchen, step: int) -> int:
        """The move of this step. state: numpy (kitchen_tasks.see)."""
        for answer in [x for x in self._coming if x.due <= step]:
            self._coming.remove(answer)
            self._take(answer, state, step)
        for _ in range(len(kitchen_tasks.TASKS[self._cook])):
            if not self._task:
                if any(x.kind == "choice" for x in self._coming):
                    return STAY
                self._choose(state, step)
                if not self._task:
                    return STAY
            move = kitchen_tasks.move(state, self._cook, self._task, **self._parts)
            if not move.stuck:
                if move.finishes:
                    self._finish(state, step)
                return move.action
            self._task = ""  # it cannot go on: another one
        return STAY

    def _finish(self, state: Kitchen, step: int) -> None:
        if self._task != "wait":
            self._done.append(self._task)
        self._task = ""
        if len(self._done) >= self._patience:
            self._demand, self._done = "", []
        elif self._slow is not None and self._demand and self._done and not self._coming:
            self._send("slow", "met", MET.format(**self._rules, demand=self._demand, done=self._told_done()), step)

    def _take(self, answer: Exchange, state: Kitchen, step: int) -> None:
        if answer.kind == "choice":
            self._task = chosen(answer.text, kitchen_tasks.available(state, self._cook, **self._parts))
        elif answer.kind == "intention":
            self._demand = "" if answer.text.strip(" .\"'").lower() in ("none", "") else answer.text.strip()
            self._task, self._done = "", []
        elif re.findall(r"\b(YES|NO)\b", answer.text.upper())[-1:] == ["YES"]:
            seen = kitchen_tasks.told(state, self._cook, **self._parts)
            question = REPLY.format(**self._rules, seen=seen, demand=self._demand, done=self._told_done())
            self.said.append((step, self._ask("slow", "reply", question, step)))
            self._demand, self._done = "", []

    def _choose(self, state: Kitchen, step: int) -> None:
        able = kitchen_tasks.available(state, self._cook, **self._parts)
        question = CHOICE.format(
            **self._rules,
            seen=kitchen_tasks.told(state, self._cook, **self._parts),
            demand=self._demand or "nothing in particular",
            done=self._told_done(),
            available=", ".join(able),
        )
        self._send("fast", "choice", question, step)
        for answer in [x for x in self._coming if x.kind == "choice" and x.due <= step]:
            self._coming.remove(answer)
            self._take(answer, state, step)

    def _send(self, mind: str, kind: str, question: str, step: int) -> None:
        text = self._ask(mind, kind, question, step)
        self._coming.append(Exchange(step + self._delays[mind], kind, text, self._message))

    def _ask(self, mind: str, kind: str, question: str, step: int) -> str:
        answer = (self._slow if mind == "slow" else self._fast)([question])[0]
        self.log.append({"step": step, "mind": mind, "kind": kind, "question": question, "answer": answer})
        return answer

    def _told_done(self) -> str:
        times = Counter(self._done).items()
        return ", ".join(task if n == 1 else f"{task} ({n} times)" for task, n in times) or "nothing"


def chosen(answer: str, able: list[str]) -> str:
    """The macro action that an answer names last; the first one that can begin if it names none."""
    places = {task: answer.lower().rfind(task) for task in able}
    named = [task for task in able if places[task] >= 0]
    return max(named, key=places.get) if named else able[0]


class Partner:
    """A scripted right cook, who sees the pot and says what it needs, once each time, and not in names of actions."""

    WORDS = {"onion": "There is room in the pot.", "dish": "The soup is on its way, and I have nothing to put it in!"}

    def __init__(self, *, onions: int, cook_steps: int):
        self._parts, self._need = dict(onions=onions, cook_steps=cook_steps), ""

    def speak(self, state: Kitchen) -> str:
        """What it says now; "" if there is nothing new."""
        held = [NAMES[int(x)] for x in (*state.counters, state.hands[kitchen_tasks.RIGHT])]
        full = int(state.pot) >= self._parts["onions"]
        need = "dish" if full and "a dish" not in held else "onion" if not full and "an onion" not in held else ""
        before, self._need = self._need, need
        return self.WORDS[need] if need and need != before else ""

    def act(self, state: Kitchen) -> int:
        """Serves if it can, else plates, else cooks."""
        able = kitchen_tasks.available(state, kitchen_tasks.RIGHT, **self._parts)
        order = ("serve the soup", "plate the soup", "cook an onion", "wait")
        task = next(task for task in order if task in able)
        return kitchen_tasks.move(state, kitchen_tasks.RIGHT, task, **self._parts).action
