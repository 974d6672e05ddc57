"""A task of a generated world: its problems, and recorded episodes to imitate.

    config.task = dict(name="rl_jax.envs.text.recorded:load", world="rl_jax.envs.text.maze:Maze", settings=dict(size=4))
    config.agent.env = dict(fn="rl_jax.envs.text.maze:Maze", size=4)

The recorded episodes are played by the world's own expert with probability `expert_share` a turn, else by its novice.
"""

import itertools
import json
import pathlib
import random
import sys
from collections.abc import Mapping
from inspect import isclass, ismodule
from typing import Any, NamedTuple

from rl_jax.core.binding import resolve
from rl_jax.data.checks import RECORDED
from rl_jax.envs.text.world import World
from rl_jax.selection import evolving
from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer


def load(
    *,
    world: str,
    settings: Mapping[str, Any] = {},
    num_train: int = 2_000,
    num_test: int = 200,
    expert_share: float = 0.5,
    seed: int = 0,
    rates: str = "",
    below: float = 0.5,
    flag: str = "search",
    written: int = 0,
    template: str = "~{tasks}",
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task. Its reward is the environment's.

    With `rates`, the info of each training prompt that has one says {flag: rate < below}: only hard prompts get the
    tool (arXiv 2508.06165; its number is not known). Prompts without a rate, and test prompts, are not changed.

    Args:
      world: "module:Class" of a World.
      settings: its keywords; those of config.agent.env.
      num_train: problems, and as many recorded episodes of them; they may repeat, since a world may have few.
      num_test: problems.
      expert_share: probability that a turn of a recorded episode is the expert's.
      seed: of problems and episodes.
      rates: a file of experiments.tools.pass_rates, measured without the tool. "": no flags.
      below: the pass rate from which on a prompt is easy.
      flag: its name in the info, which the world reads.
      written: demonstrations of an author of tasks in sft_train, for a policy that is to write them (WebRL's
        curriculum, experiments.parts.task_authors): each reads two instructions, and says one made of their words.
      template: what it reads, with {tasks}, the two instructions one after the other.
      data_dir: where the prepared dataset is stored.

    Raises:
      ValueError: if a setting is out of its range, or the class is no World.
    """
    if num_train < 1 or num_test < 1 or not 0 <= expert_share <= 1:
        raise ValueError(
            f"num_train={num_train} and num_test={num_test} must be 1 or more, expert_share={expert_share} in [0, 1]"
        )
    kind = resolve(world)
    if not (isclass(kind) and issubclass(kind, World)):
        raise ValueError(f"world={world!r} is no class of rl_jax.envs.text.world.World")
    settings = {name: value for name, value in settings.items()}

    def make():
        env, rng = kind(**settings), random.Random(seed)
        problems = list(itertools.islice(env.problems(rng), num_train + num_test))
        train, test = flagged(problems[:num_train], rates, below, flag), problems[num_train:]
        plain = {"train": [_record(*problem) for problem in train], "test": [_record(*problem) for problem in test]}
        episodes = ((info, segments(env, prompt, info, rng, expert_share)) for prompt, info in train)
        recorded = [_record(one.first, info, one) for info, found in episodes for one in found]
        recorded += [authored(env, rng.sample(plain["train"], 2), template, rng) for _ in range(written)]
        return plain | {"sft_train": recorded}, {}

    name, files = kind.__name__.lower(), [*([rates] if rates else []), *files_of(settings)]
    arguments = dict(world=world, settings=settings, num_train=int(num_train), num_test=int(num_test))
    arguments |= dict(expert_share=float(expert_share), seed=int(seed))
    arguments |= dict(below=float(below), flag=flag) if rates else {}
    arguments |= dict(written=int(written), template=template) if written else {}
    stored = base.record_splits(name, make, arguments=arguments, sources=files, code=code_of(kind), data_dir=data_dir)
    return base.Task(name, CharTokenizer(kind.ALPHABET), stored, None)


def files_of(settings: Mapping[str, Any]) -> list[pathlib.Path]:
    """The files that a world's settings name, such as lists of words: every text, alone or in a list, that is one."""
    texts = [text for value in settings.values() for text in (value if isinstance(value, (list, tuple)) else [value])]
    found = []
    for text in texts:
        if isinstance(text, str) and text:
            try:
                path = pathlib.Path(text).expanduser()
                found += [path] if path.is_file() else []
            except (OSError, RuntimeError, ValueError):  # too long for a path, or of no known home: an instruction, say
                continue
    return found


def code_of(kind: type) -> list[str]:
    """The Python files that make a world's records: all worlds here (one takes names from another), those of its bases,
    and the modules that these import as modules, but for the standard library."""
    bases = [sys.modules[one.__module__] for one in kind.__mro__]
    found = {module.__name__: module for one in bases for module in (one, *vars(one).values()) if ismodule(module)}
    outside = [found[name] for name in sorted(found) if name.partition(".")[0] not in sys.stdlib_module_names]
    here = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return [*map(str, here), evolving.__file__, *(one.__file__ for one in outside)]


def authored(env: World, seeds: list[dict], template: str, rng: random.Random) -> dict[str, str]:
    """The record of an author's demonstration: what is read of some tasks, and an instruction of their words."""
    texts = [env.instruction(one) for one in seeds]
    said = f"{evolving.similar_words(texts, rng)}?"
    return {"prompt": template.replace("{tasks}", "".join(texts)), "completion": said, "info": seeds[0]["info"]}


def flagged(problems: list[tuple[str, dict]], rates: str, below: float, flag: str) -> list[tuple[str, dict]]:
    """Problems whose info has {flag: rate < below} if the file `rates` has their prompt; unchanged without a file.

    Raises:
      ValueError: if the file is none of pass rates.
    """
    if not rates:
        return problems
    try:
        rows = json.loads(pathlib.Path(rates).read_text())
        known = {(row["prompt"], json.dumps(row["info"], sort_keys=True)): float(row["rate"]) for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"task.rates={rates}: no file of experiments.tools.pass_rates: {error!r}") from error
    found = []
    for prompt, info in problems:
        rate = known.get((prompt, json.dumps(info, sort_keys=True)))
        found.append((prompt, info if rate is None else info | {flag: rate < below}))
    return found


class Segment(NamedTuple):
    """What one row of a recorded episode holds.

    Attributes:
      first: what the model read first.
      turns: what it said and read after it, in turn; it begins and ends.
      rewards: of each thing that it said.
    """

    first: str
    turns: list[str]
    rewards: list[float]


def segments(env: World, prompt: str, info: dict, rng: random.Random, expert_share: float) -> list[Segment]:
    """One episode, a segment for each new beginning; worlds that never begin anew (Step.anew) have one."""
    env.reset(_record(prompt, info), rng.randrange(2**31))
    found = [Segment(prompt, [], [])]
    while True:
        turns = found[-1].turns
        turns.append(env.expert(rng) if rng.random() < expert_share else env.novice(rng))
        step = env.step(turns[-1])
        found[-1].rewards.append(step.reward)
        if step.done:
            return found
        text = "".join(message["content"] for message in step.messages)
        found.append(Segment(text, [], [])) if step.anew else turns.append(text)


def play(env: World, prompt: str, info: dict, rng: random.Random, expert_share: float) -> list[str]:
    """`segments` as one list: what the model says and what it reads, in turn."""
    first, *others = segments(env, prompt, info, rng, expert_share)
    return first.turns + [text for one in others for text in (one.first, *one.turns)]


def _record(prompt: str, info: dict, said: Segment | None = None) -> dict[str, str]:
    told = info | ({RECORDED: said.turns, "turn_rewards": said.rewards} if said else {})
    return {"prompt": prompt, "completion": said.turns[-1] if said else "", "info": json.dumps(told)}
