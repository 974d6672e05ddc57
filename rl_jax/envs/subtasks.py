"""The order of subtasks around a black-box model: RLAP as an environment of whole-number actions.

    state    s = (the text, what has been extracted so far)       action   a, the slot to extract next
    reward   |reply & reference| / |reference|, of the slot that the model has just filled
    Q(s, a) <- r + gamma mean_k max_a' Q_slow(s'_k, a'),   gamma .5     one network that reads the sequence (a, s)

A model is asked for one slot at a time, and reads the slots before it: which order is best depends on the text. The
model is a function (text) -> text and is never trained; what is trained is Q, by experiments.control.replay with
network.enumerated. Source: arXiv 2505.11893 and its code (Ding-Papa/RLAP-code), extraction of events.

Departs: Q reads hashed runs of words (`bag`) where the paper's Actor is a pretrained encoder with a head of one number.
A slot that is already filled may be chosen again, which changes and pays nothing, so it is never the best. A reply of
several values leads to a state s'_k for each: the target has the mean over them there, one of them at random here,
whose expectation is that mean. The slots are these four for every text, where its code
takes those of the event's schema. The texts and the model of the shipped config, `events`, are made up; one's own are a
function that returns a Reader of the same slots.
"""

import itertools
import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.core.binding import resolve
from rl_jax.envs.protocol import Box, Discrete

SLOTS = ("who", "what", "when", "where")


class Reader(NamedTuple):
    """A model and its texts.

    Attributes:
      ask: (text) -> text, the model.
      problem: (seed) -> (a text, slot -> the reference's value).
    """

    ask: Callable[[str], str]
    problem: Callable[[int], tuple[str, Mapping[str, str]]]


def bag(text: str, size: int, runs: Sequence[int] = (2, 3)) -> np.ndarray:
    """Which runs of words a text has, by a checksum of each: float32 [size] of 0 and 1."""
    words, found = text.split(), np.zeros(size, np.float32)
    for length in runs:
        for i in range(len(words) - length + 1):
            found[zlib.crc32(" ".join(words[i : i + length]).encode()) % size] = 1.0
    return found


def action_vectors() -> np.ndarray:
    """What the network reads of each action, float32 [4, 4]: the slot."""
    return np.eye(len(SLOTS), dtype=np.float32)


class Subtasks:
    """One text an episode, as a rl_jax.envs.host_worlds.HostEnv. It ends when all slots are filled.

    Args:
      reader: the model and its texts.
      size: places of the bag of words.
      most: choices after which an episode is truncated.
    """

    def __init__(self, reader: Reader, *, size: int = 256, most: int = 8):
        if size < 1 or most < len(SLOTS):
            raise ValueError(f"host/subtasks: size={size} must be 1 or more, most={most} {len(SLOTS)} or more")
        self.reader, self.size, self.most = reader, size, most
        self.observation_space = Box(np.zeros(size, np.float32), np.ones(size, np.float32))
        self.action_space = Discrete(len(SLOTS))

    def reset(self, seed: int) -> np.ndarray:
        """Starts the text of this seed. Returns the state's bag of words, float32 [size]."""
        self.text, self.reference = self.reader.problem(seed)
        if set(self.reference) != set(SLOTS):
            raise ValueError(f"host/subtasks: the reference has {sorted(self.reference)}, not the slots {SLOTS}")
        self.filled: dict[str, str] = {}
        self._time, self._dice = 0, random.Random(seed)
        return bag(self.state(), self.size)

    def state(self) -> str:
        """What the model reads: the slots so far, and the text."""
        return "".join(f"got {slot} = {value} . " for slot, value in self.filled.items()) + self.text

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """One subtask. Returns (bag of words float32 [size], reward, all slots are filled, the time is up)."""
        slot, reward = SLOTS[int(action)], 0.0
        self._time += 1
        if slot not in self.filled:
            reply = self.reader.ask(f"{self.state()}\n\nExtract: {slot}")
            reward = score(reply, self.reference[slot])
            self.filled[slot] = self._dice.choice(reply.split(",")).strip()
        over = len(self.filled) == len(SLOTS)
        return bag(self.state(), self.size), reward, over, not over and self._time >= self.most


def score(reply: str, reference: str) -> float:
    """|reply & reference| / |reference|, of values between commas."""
    said, wanted = ({value.strip() for value in text.split(",")} for text in (reply, reference))
    return len(said & wanted) / len(wanted)


VALUES = {"who": ("Ann", "Bob"), "what": ("fair", "race"), "when": ("May", "July"), "where": ("Oslo", "Rome")}


def event(seed: int) -> tuple[str, dict[str, str]]:
    """(text, reference) of the event of this seed.

        who is Ann .                         says the slot
        who by where : Ann Oslo , Bob Rome . says it to whoever knows `where`; the order of the two is random

    The first slot of a random order is said, each later one with probability .2, else it needs one before it.
    """
    rng = random.Random(seed)
    order, clauses, reference = rng.sample(SLOTS, len(SLOTS)), [], {}
    for i, slot in enumerate(order):
        reference[slot] = rng.choice(VALUES[slot])
        if i == 0 or rng.random() < 0.2:
            clauses.append(f"{slot} is {reference[slot]} .")
            continue
        needed = rng.choice(order[:i])
        wrong = [next(v for v in VALUES[of] if v != reference[of]) for of in (slot, needed)]
        pairs = [f"{reference[slot]} {reference[needed]}", " ".join(wrong)]
        clauses.append(f"{slot} by {needed} : {' , '.join(rng.sample(pairs, 2))} .")
    return " ".join(rng.sample(clauses, len(clauses))), reference


def needs(text: str) -> dict[str, str]:
    """slot -> the slot that it needs, of those of a text that need one."""
    return dict(re.findall(r"(\w+) by (\w+) :", text))


def read(request: str) -> str:
    """The scripted model's reply: the slot's value, or the first of two if what it needs is not known yet."""
    text, _, slot = request.rpartition("\n\nExtract: ")
    if said := re.search(rf"(?<!got ){slot} is (\w+) \.", text):
        return said.group(1)
    needed, pairs = re.search(rf"{slot} by (\w+) : (.*?) \.", text).groups()
    known = re.search(rf"got {needed} = (\w+) \.", text)
    choices = [pair.split() for pair in pairs.split(" , ")]
    return next((value for value, of in choices if known and of == known.group(1)), choices[0][0])


def expected_score(text: str, reference: Mapping[str, str], order: Sequence[str]) -> float:
    """The sum of the scores of one order of the slots, by the scripted model."""
    env = Subtasks(Reader(read, lambda seed: (text, reference)))
    env.reset(0)
    return sum(env.step(SLOTS.index(slot))[1] for slot in order)


def best_order(text: str) -> tuple[str, ...]:
    """An order in which each slot comes after the one that it needs."""
    needed = needs(text)
    return next(
        order
        for order in itertools.permutations(SLOTS)
        if all(order.index(of) < order.index(slot) for slot, of in needed.items())
    )


def events() -> Reader:
    """The scripted model and its texts."""
    return Reader(read, event)


def subtasks(*, around: str = "rl_jax.envs.subtasks:events", size: int = 256, most: int = 8) -> Subtasks:
    """A Subtasks around a model.

    Args:
      around: "module:function" of a function () -> Reader.
      size: places of the bag of words.
      most: choices after which an episode is truncated.
    """
    return Subtasks(resolve(around)(), size=size, most=most)
