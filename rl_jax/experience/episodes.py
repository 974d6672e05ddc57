"""Many episodes at once: environments on the host, one sampler for all of them. No jax.

    trajectories = play(asks, envs, dialogues, sampler, Limits(turns=4, context=256, row=192))

What is sampled for an episode depends on its number and its own past alone, so the order in which environments answer
changes nothing. An environment that raises is begun once more; if it raises again, the episode's status is "error". So
does one whose answers cannot be used (rl_jax.experience.answers).
"""

import asyncio
import concurrent.futures
import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from rl_jax.data.checks import utf8
from rl_jax.experience import answers
from rl_jax.experience.answers import EnvironmentFailed, encoded
from rl_jax.experience.branching import Moments
from rl_jax.experience.episode import Ask, Draw, Drawn, Episode, Limits
from rl_jax.experience.partners import Partner
from rl_jax.experience.threads import Threads
from rl_jax.experience.trajectory import DONE, Trajectory

CUT = "..."  # what stands for the end of an observation that was cut
NOTHING = "(nothing)"  # the key of a state that its environment describes by ""


class Sampler(Protocol):
    """Samples turns, many at once (rl_jax.rollout.lm.episodes.EngineSampler)."""

    def submit(self, draws: Sequence[Draw]) -> None:
        """Queues turns, at most one per episode."""

    def step(self) -> list[Drawn]:
        """Works for a while and returns the turns that have ended; [] if none has."""

    def release(self, number: int) -> None:
        """Told when an episode has ended."""


def play(
    asks: Sequence[Ask],
    envs: "Environments",
    dialogues: Any,
    sampler: Sampler,
    limits: Limits,
    *,
    version: int = 0,
    longest_prompt: int = 0,
    saved: Moments | None = None,
    keep: bool = True,
    partners: bool = False,
) -> list[Trajectory]:
    """Plays all episodes to their ends.

    Args:
      asks: the episodes.
      envs: their environments.
      dialogues: rl_jax.tokenizers.dialogue.Dialogues.
      sampler: of the turns.
      limits: of each episode.
      version: of the policy that samples.
      longest_prompt: tokens. 0: any.
      saved: keeps the moments before all turns after the first, and has those that Ask.after names. None: none.
      keep: False: `saved` only has those that are named.
      partners: whether environments get a partner (rl_jax.experience.partners), which the sampler speaks for, too.

    Returns:
      One trajectory per ask, in their order.

    Raises:
      ValueError: if a prompt is longer than longest_prompt, the episodes of a group begin differently, or a step
        begins the history anew in an environment that does not say `rewrites = True`.
    """
    game = _Game(envs, dialogues, sampler, limits, version, longest_prompt, saved, keep, partners)
    found = _run(game.play(asks))
    first: dict[int, tuple[Ask, Trajectory]] = {}
    for ask, trajectory in zip(asks, found, strict=True):
        other, like = first.setdefault(ask.group, (ask, trajectory))
        begun = bool(trajectory.segments and like.segments)
        if begun and not np.array_equal(trajectory.segments[0][0].ids, like.segments[0][0].ids):
            raise ValueError(
                f"samples {other.sample} and {ask.sample} of prompt {trajectory.prompt_id!r} begin with different "
                "messages: `reset` of the environment must draw everything from its seed"
            )
    return found


def _run(game) -> list[Trajectory]:
    """Runs a coroutine to its end; in a thread of its own where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_with_threads(game))
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _with_threads(game)).result()


async def _with_threads(game) -> Any:
    """Awaits a coroutine in a loop that does not wait at its end for calls in threads that hang."""
    asyncio.get_running_loop().set_default_executor(Threads())
    return await game


class Environments:
    """One environment per episode number, kept from one call of `play` to the next.

    Args:
      make: () -> an environment (rl_jax.envs.text.protocol).
    """

    def __init__(self, make: Callable[[], Any]):
        self._make, self._envs = make, {}

    def get(self, number: int) -> Any:
        """The environment of an episode's number."""
        if number not in self._envs:
            self._envs[number] = self._make()
        return self._envs[number]

    def put(self, number: int, env: Any) -> None:
        """Takes an environment for an episode's number, in place of the one that it had."""
        self.drop(number)
        self._envs[number] = env

    def drop(self, number: int) -> None:
        """Forgets an environment that failed."""
        close(self._envs.pop(number, None))

    def close(self) -> None:
        """Closes all."""
        for number in list(self._envs):
            self.drop(number)


def close(env: Any) -> None:
    """Closes an environment that has something to close. What it raises is a warning: its episodes are over."""
    try:
        if hasattr(env, "close"):
            env.close()
    except Exception as error:
        warnings.warn(f"{type(env).__name__}.close: {type(error).__name__}: {error}", stacklevel=2)


@contextlib.contextmanager
def probing(env: Any) -> Iterator[Any]:
    """Gives an environment that is only asked something, and closes it."""
    try:
        yield env
    finally:
        close(env)


class _Game:
    """One call of `play`."""

    def __init__(self, envs, dialogues, sampler, limits, version, longest_prompt, saved, keep, partners):
        self._envs, self._dialogues, self._sampler = envs, dialogues, sampler
        self._limits, self._version, self._longest_prompt = limits, version, longest_prompt
        self._saved, self._keep = saved, keep and saved is not None
        self._partners, self._waiting = partners, {}
        self._new: list[Draw] = []
        self._moved = asyncio.Event()

    async def play(self, asks: Sequence[Ask]) -> list[Trajectory]:
        tasks = [asyncio.ensure_future(self._episode(ask)) for ask in asks]
        for task in tasks:
            task.add_done_callback(lambda _: self._moved.set())
        try:
            while not all(task.done() for task in tasks):
                await self._advance()
                for task in tasks:
                    if task.done():
                        task.result()  # what it raised ends the others
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _advance(self) -> None:
        """Lets environments answer, then samples; waits if there is nothing to sample."""
        for _ in range(2):
            await asyncio.sleep(0)
        if not self._waiting:
            await self._moved.wait()
            self._moved.clear()
            return
        if self._new:
            self._sampler.submit(sorted(self._new, key=lambda draw: draw.number))
            self._new = []
        for drawn in self._sampler.step():
            self._waiting.pop(drawn.number).set_result(drawn)

    async def _draw(self, draw: Draw) -> Drawn:
        self._new.append(draw)
        self._waiting[draw.number] = asyncio.get_running_loop().create_future()
        self._moved.set()
        return await self._waiting[draw.number]

    async def _episode(self, ask: Ask) -> Trajectory:
        for last in (False, True):
            episode = Episode(ask, self._version)
            try:
                if ask.after is None:
                    talk = await self._begin(ask, episode)
                else:
                    env, talk, earlier = self._saved.take(*ask.after)
                    self._envs.put(ask.number, env)
                    episode = earlier.copy(ask)
                await self._play(ask, self._envs.get(ask.number), episode, talk)
                self._sampler.release(ask.number)
                return episode.ended()
            except EnvironmentFailed as error:
                self._envs.drop(ask.number)
                self._sampler.release(ask.number)
                if self._keep:
                    self._saved.forget(ask.number)
                if last:
                    return episode.failed(error.__cause__)
        raise AssertionError("unreachable")

    async def _begin(self, ask: Ask, episode: Episode):
        """The dialogue of an episode that begins at the prompt."""
        env = await answers.answer(self._envs.get, ask.number)  # which makes it, and may need a server that is away
        if self._partners:
            env.partner = Partner(self._dialogues, self._draw, ask, self._limits, lambda: bool(episode.segments))
        opening = await answers.answer(env.reset, ask.record, ask.seed, seconds=self._limits.seconds)
        if not isinstance(opening, str):
            answers.check_messages(f"{type(env).__name__}.reset", opening)
        talk = encoded(self._dialogues.start, opening)
        self._check_prompt(talk.ids, ask)
        episode.begin(talk.ids)
        return talk

    async def _play(self, ask: Ask, env: Any, episode: Episode, talk: Any) -> None:
        limits = self._limits
        while True:
            if self._keep and episode.turns:
                self._saved.keep(ask.number, env, talk, episode)
            key = await self._state(env)
            room = episode.room(limits)
            last = len(episode.turns) + 1 >= limits.turns
            drawn = await self._draw(episode.draw(ask.number, room, last))
            step = await answers.answer(env.step, encoded(talk.said, drawn.tokens), seconds=limits.seconds)
            answers.check_step(env, step)
            answers.check_history(env, step)
            episode.add_turn(drawn, step, key)
            if step.done and (limits.turns > 1 or drawn.reason != "length"):
                episode.status = DONE
            elif drawn.reason == "length":  # in the only turn whatever the environment says, as of an answer in grpo
                episode.status = "tokens"
            elif last:
                episode.status = "turns"
            else:
                fitting = self._anew if step.anew else self._fitting
                talk, ids = fitting(talk, drawn.tokens, list(step.messages), episode)
                if ids is not None:
                    episode.begin(ids) if step.anew else episode.observe(ids, limits)
            if episode.status != "running":
                if episode.status != DONE and not step.done and hasattr(env, "cut"):
                    last_reward = await answers.answer(env.cut, seconds=limits.seconds)
                    answers.check_reward(f"{type(env).__name__}.cut", last_reward)
                    episode.add_reward(last_reward)
                return

    async def _state(self, env: Any) -> str:
        """The key of the state; "" if the environment has no state_key(), so one that returns "" gets NOTHING."""
        if not hasattr(env, "state_key"):
            return ""
        key = await answers.answer(env.state_key, seconds=self._limits.seconds)
        return utf8(str(key)) or NOTHING

    def _fitting(self, talk, sampled, messages: list, episode: Episode):
        """The dialogue and the ids of an answer, cut if the limits say so; ids None if it ends the episode."""
        limits = self._limits
        after, ids = encoded(talk.answer, sampled, messages)
        most = limits.observation or limits.context
        if limits.overflow == "cut" and not episode.fits(len(ids), limits):
            most = min(most, episode.left(limits) // 2)  # the rest is for the turns that follow
        while len(ids) > most:
            if not _cut_longest(messages):
                break
            after, ids = encoded(talk.answer, sampled, messages)
        if limits.tokens and episode.count("sampled") >= limits.tokens:
            episode.status = "tokens"
        elif not episode.fits(len(ids), limits) and not (
            limits.overflow == "drop_oldest" and episode.fits_anew(len(ids), limits)
        ):
            episode.status = "context"
        return after, ids if episode.status == "running" else None

    def _anew(self, talk, sampled, messages: list, episode: Episode):
        """The dialogue and the ids of a new beginning, as `_fitting`. It is never cut."""
        del talk, sampled
        after = encoded(self._dialogues.start, messages)
        if self._limits.tokens and episode.count("sampled") >= self._limits.tokens:
            episode.status = "tokens"
        elif not episode.can_begin(len(after.ids), self._limits):
            episode.status = "context"
        return after, after.ids if episode.status == "running" else None

    def _check_prompt(self, ids: Sequence[int], ask: Ask) -> None:
        limit = self._longest_prompt
        if not len(ids) or (limit and len(ids) > limit):
            raise ValueError(
                f"the prompt {ask.record.get('id', '')!r} has {len(ids)} tokens in its environment; 1 to {limit} fit: "
                "add a wider bucket to rollout.prompt_buckets"
            )


def _cut_longest(messages: list) -> bool:
    """Halves the longest content, in place, marking its end. Returns False if there is nothing left to cut."""
    if not messages:
        return False
    place = max(range(len(messages)), key=lambda i: len(messages[i].get("content") or ""))
    text = (messages[place].get("content") or "").removesuffix(CUT)
    if not text:
        return False
    messages[place] = {**messages[place], "content": text[: len(text) // 2] + CUT}
    return True
