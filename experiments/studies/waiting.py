"""Waiting against dropping: a policy learns answers of very different lengths while it samples the next ones.

rl_jax.experience.admission decides who begins and what a batch is, rl_jax.credit and rl_jax.grpo train; time is decode
calls: each gives every running row one token, and a train step lasts a fixed number of them.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome
from experiments.studies.policy_world import Layout, loss_of, make_method, rows_of, score
from rl_jax.core.types import Rollout
from rl_jax.credit import rule
from rl_jax.experience import admission
from rl_jax.experience.admission import Counters, Rule

EOS, RIGHT, WRONG = range(3)


class World(NamedTuple):
    """Prompts whose answers need so many right tokens, then EOS.

    Attributes:
      needed: int [P], n.
      hard: bool [P]. The quarter of the prompts that need most.
      length: T, the most tokens of a row.
    """

    needed: np.ndarray
    hard: np.ndarray
    length: int

    def reward(self, prompts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """1 for n right tokens and then EOS. prompts: int [B]. tokens: int [B, T], EOS behind the end. float32 [B]."""
        place, needed = np.arange(self.length)[None], self.needed[prompts][:, None]
        wanted = np.where(place < needed, RIGHT, EOS)
        return (tokens == wanted).all(axis=1, where=place <= needed).astype(np.float32)

    def chance(self, logits: np.ndarray) -> np.ndarray:
        """The probability of reward 1. logits: float [P, T, 3]. float [P]."""
        table, place = log_softmax(logits), np.arange(self.length)[None]
        wanted = np.where(place < self.needed[:, None], RIGHT, EOS)
        chosen = np.take_along_axis(table, wanted[..., None], axis=-1)[..., 0]
        return np.exp(np.sum(chosen, axis=1, where=place <= self.needed[:, None]))

    def mean_length(self, logits: np.ndarray) -> np.ndarray:
        """The expected tokens of a row. logits: float [P, T, 3]. float [P]."""
        alive = np.cumprod(1.0 - np.exp(log_softmax(logits))[:, :-1, EOS], axis=1)
        return 1.0 + alive.sum(axis=1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log pi, along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def make_world(prompts: int, *, mean: float, sigma: float, length: int) -> World:
    """Prompts at the quantiles of a lognormal distribution of lengths, cut at `length` - 1.

    Args:
      prompts: P.
      mean: right tokens that a prompt needs, before the cut.
      sigma: of their log.
      length: T.
    """
    normal = np.array([statistics.NormalDist().inv_cdf((i + 0.5) / prompts) for i in range(prompts)])
    needed = np.clip(np.ceil(mean * np.exp(sigma * normal - sigma**2 / 2)), 1, length - 1).astype(int)
    return World(needed, np.arange(prompts) >= prompts - prompts // 4, length)


def start_logits(world: World, solve: float, rng: np.random.Generator, noise: float) -> np.ndarray:
    """A policy that solves every prompt equally often, however long its answer: float32 [P, T, 3].

    The token that is wanted has solve^(1 / (n + 1)) at each place, the two others share the rest.

    Args:
      world: of the prompts.
      solve: the probability of a right answer without the noise.
      rng: of the noise.
      noise: its standard deviation, in logits.
    """
    place = np.arange(world.length)[None]
    wanted = np.where(place < world.needed[:, None], RIGHT, EOS)
    right = np.broadcast_to(solve ** (1.0 / (world.needed[:, None] + 1)), wanted.shape)
    logits = np.log(np.repeat((1.0 - right)[..., None] / 2, 3, axis=-1))
    np.put_along_axis(logits, wanted[..., None], np.log(right)[..., None], axis=-1)
    return (logits + noise * rng.standard_normal(logits.shape)).astype(np.float32)


class Rows:
    """The rows of a group: what was sampled so far."""

    def __init__(self, prompt: int, version: int, offered: float, size: int, length: int):
        self.prompt, self.version, self.offered, self.left = prompt, version, offered, size
        self.oldest: int | None = None
        self.tokens = np.zeros((size, length), np.int32)  # EOS
        self.log_probs = np.zeros((size, length), np.float32)
        self.lengths = np.zeros(size, int)


class Sampler:
    """Decode calls over a fixed number of slots, groups let in and taken by the program's own admission.

    Args:
      rule: of admission.
      world: of the prompts.
      group_size: G.
      rng: of the prompts' order and the tokens.
    """

    def __init__(self, rule: Rule, world: World, group_size: int, rng: np.random.Generator):
        self.rule, self._world, self._size, self._rng = rule, world, group_size, rng
        self.counters, self.time, self.ages = Counters(), 0, 0
        self.inside: dict[int, Rows] = {}
        self._order: list[int] = []
        self._queue: deque[tuple[int, int]] = deque()
        self._running: list[tuple[int, int]] = []
        self.offered: list[float] = []  # by group: expected tokens of a row, under the policy that it began with
        self.newest = -1

    def publish(self, version: int, logits: np.ndarray) -> None:
        """New weights: every row goes on with them from its next token on."""
        self._table, self._means = log_softmax(logits), self._world.mean_length(logits)
        self.counters = self.counters._replace(version=version)

    def groups(self) -> list[admission.Group]:
        """What admission sees, less what is too old, which is thrown away."""
        now = self.counters.version
        found = [
            admission.Group(number, now if rows.oldest is None else rows.oldest, not rows.left)
            for number, rows in self.inside.items()
        ]
        if old := set(admission.too_old(self.rule, now, found)):
            self.inside = {number: rows for number, rows in self.inside.items() if number not in old}
            self._running = [entry for entry in self._running if entry[0] not in old]
            self._queue = deque(entry for entry in self._queue if entry[0] not in old)
            self.counters = self.counters._replace(dropped=self.counters.dropped + len(old))
        return [group for group in found if group.number not in old]

    def admit(self) -> None:
        """Lets in as many groups as there is room for."""
        for _ in range(admission.room(self.rule, self.counters, self.groups())):
            if not self._order:
                self._order = self._rng.permutation(len(self._world.needed)).tolist()
            number, prompt = self.counters.admitted, self._order.pop()
            self.offered.append(float(self._means[prompt]))
            self.inside[number] = Rows(prompt, self.counters.version, self.offered[-1], self._size, self._world.length)
            self._queue.extend((number, sample) for sample in range(self._size))
            self.counters = self.counters._replace(admitted=number + 1)

    def call(self) -> None:
        """One decode call."""
        self.admit()
        self.time += 1
        while self._queue and len(self._running) < self.rule.batch * self._size:
            self._running.append(self._queue.popleft())
        if not self._running:
            return
        rows = [(self.inside[number], sample) for number, sample in self._running]
        place = np.array([group.lengths[sample] for group, sample in rows])
        table = self._table[np.array([group.prompt for group, _ in rows]), place]
        cumulative = np.cumsum(np.exp(table), axis=-1)
        drawn = (self._rng.random(len(rows))[:, None] * cumulative[:, -1:] >= cumulative).sum(axis=-1).clip(max=WRONG)
        still = []
        for entry, (group, sample), at, token, row in zip(self._running, rows, place, drawn, table, strict=True):
            group.tokens[sample, at], group.log_probs[sample, at] = token, row[token]
            group.lengths[sample] = at + 1
            group.oldest = self.counters.version if group.oldest is None else group.oldest
            if token == EOS or at + 1 == self._world.length:
                group.left -= 1
            else:
                still.append(entry)
        self._running = still

    def take(self) -> list[Rows]:
        """The next batch; decodes until it is there."""
        self.admit()
        while (numbers := admission.next_batch(self.rule, self.counters, self.groups())) is None:
            self.call()
        self.counters = self.counters._replace(taken=self.counters.taken + len(numbers))
        taken = [self.inside.pop(number) for number in numbers]
        self.ages = max(self.ages, *(self.counters.version - rows.oldest for rows in taken))
        self.newest = max(self.newest, *numbers)
        return taken


def make_step(method: tuple, layout: Layout, group_size: int, learning_rate: float) -> Callable:
    """(logits, prompts [B], tokens [B, T], mask [B, T], sampled_log_probs [B, T], rewards [B]) -> new logits."""
    choices, objective = method

    @jax.jit
    def step(logits, prompts, tokens, mask, sampled_log_probs, rewards):
        chex.assert_equal_shape([tokens, mask, sampled_log_probs])
        rows, finished = rows_of(prompts, tokens), jnp.any(mask & (tokens == EOS), axis=1)
        before = score(logits, rows, layout)
        rollout = Rollout(rows, mask, sampled_log_probs, sampled_log_probs, finished, ~finished)
        known = dict(group_size=group_size, key=jax.random.key(0), log_probs=before.log_probs)
        batch = rule.assign(choices, rollout, rewards, **known)._replace(old_log_probs=before.log_probs)
        slope = jax.grad(lambda x: loss_of(x, batch, objective, layout)[0])(logits)
        return logits - learning_rate * slope

    return step


def waiting_dropping(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    slots: Mapping,
    prompts: int,
    mean: float,
    sigma: float,
    length: int,
    solve: float,
    noise: float,
    groups: int,
    group_size: int,
    train: int,
    steps: int,
    learning_rate: float,
) -> Outcome:
    """What becomes of prompts that need long answers, if stale groups are waited for or thrown away.

    At the start all prompts are solved equally often. Metrics: kept, mean length of the rows that were trained on, over
    the expected length of the rows of all groups up to the newest of them, each under the policy that it began with;
    hard and easy, the probability of a right answer on the quarter of the prompts that need most and on the others, at
    the end; hard_timed, that of hard at the time when the fastest arm ends; age, the oldest row; dropped, groups thrown
    away over groups let in; time, decode calls per step.

    Args:
      seeds: of the initial policy, the prompts' order and the tokens.
      arms: name -> eta, age, order.
      slots: of the method (see policy_world.make_method).
      prompts: P.
      mean: right tokens that a prompt needs, on average before the cut.
      sigma: of their log.
      length: T.
      solve: initial probability of a right answer.
      noise: of the initial logits.
      groups: B, per batch.
      group_size: G.
      train: decode calls that fit beside a train step.
      steps: batches.
      learning_rate: of the descent.
    """
    world = make_world(prompts, mean=mean, sigma=sigma, length=length)
    step = make_step(make_method(slots), Layout(3, length, sees="place", eos=EOS), group_size, learning_rate)
    found = {name: [] for name in arms}
    for seed in seeds:
        for name, fields in arms.items():
            rng = np.random.default_rng(seed)
            logits = start_logits(world, solve, rng, noise)
            sampler = Sampler(Rule(groups, **fields).check(), world, group_size, rng)
            found[name].append(_run(sampler, world, step, logits, train=train, steps=steps))
    values, curves = {}, {"hard": {}}
    for name, rows in found.items():
        ends = np.array([min(found[arm][i]["times"][-1] for arm in arms) for i in range(len(rows))])
        values[name] = {key: np.array([row[key] for row in rows]) for key in rows[0] if key not in ("times", "traces")}
        values[name]["hard_timed"] = np.array(
            [np.interp(end, row["times"], row["traces"]) for row, end in zip(rows, ends, strict=True)]
        )
        trace, every = np.mean([row["traces"] for row in rows], axis=0), max(steps // 50, 1)
        curves["hard"][name] = [(float(i), float(trace[i])) for i in range(0, steps + 1, every)]
    return Outcome(values, curves)


def _run(sampler: Sampler, world: World, step: Callable, logits: np.ndarray, *, train: int, steps: int) -> dict:
    """One run: its metrics, and the chance on hard prompts after each step with the time."""
    sampler.publish(0, logits)
    times, traces, tokens = [0.0], [float(world.chance(logits)[world.hard].mean())], []
    for version in range(1, steps + 1):
        batch = sampler.take()
        prompts = np.repeat([rows.prompt for rows in batch], len(batch[0].tokens))
        drawn = np.concatenate([rows.tokens for rows in batch])
        lengths = np.concatenate([rows.lengths for rows in batch])
        mask = np.arange(world.length)[None] < lengths[:, None]
        log_probs = np.concatenate([rows.log_probs for rows in batch])
        new = step(logits, prompts, drawn, mask, log_probs, world.reward(prompts, drawn))
        for _ in range(train):
            sampler.call()
        logits = np.asarray(new)
        sampler.publish(version, logits)
        tokens.append(float(lengths.mean()))
        times.append(float(sampler.time))
        traces.append(float(world.chance(logits)[world.hard].mean()))
    chance = world.chance(logits)
    return {
        "kept": np.mean(tokens) / np.mean(sampler.offered[: sampler.newest + 1]),
        "hard": float(chance[world.hard].mean()),
        "easy": float(chance[~world.hard].mean()),
        "age": float(sampler.ages),
        "dropped": sampler.counters.dropped / sampler.counters.admitted,
        "time": sampler.time / steps,
        "times": times,
        "traces": traces,
    }
