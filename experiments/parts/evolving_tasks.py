"""WebRL's curriculum for PPO on episodes (arXiv 2411.02337): the next phase asks tasks that are made of failed ones.

    failed in a phase -> an author writes -> the site can do it -> low <= V(s_0) <= high -> asked in the next phase

config.agent.curriculum has fn, the author ("rule", "policy", "chat" of task_authors, or "module:function"), the
author's own fields, and

    every        steps of a phase
    share        of a step's prompts that are new tasks, if there are any; the others are the task's own
    seeds        failed tasks that an author reads at once (10 in the paper)
    requests     that it gets per phase
    keep         failed tasks of a phase that are remembered, the newest
    size         new tasks of a phase, at most
    low, high    the bounds of the critic's value of a task's first state (.05 and .75)

The environment says what was asked (`instruction`) and makes a task of a new text on the pages of an old one, if it
can be done there (`instructed`). A phase without failures, or whose new tasks are all refused, asks the task's own.
What failed and what is asked is saved with the prompts: a resumed run asks the same. The released code keeps a task if
either of two critics has it within the bounds; here the value is the smaller of them, as everywhere.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts import task_authors
from experiments.parts.encoding import encode_prompts
from experiments.parts.setup import Setup
from experiments.parts.task_authors import Author
from experiments.parts.training import to_mesh
from rl_jax.core.binding import bind
from rl_jax.core.types import Params, TokenBatch
from rl_jax.envs import text
from rl_jax.experience.episodes import probing
from rl_jax.experience.prompt import Feedback, prompt_id
from rl_jax.selection import evolving

ROOM = 2**23  # of a step's key
FIELDS = ("every", "share", "seeds", "requests", "keep", "size", "low", "high")


class EvolvingPrompts:
    """Batches of prompts, some of which are the tasks of this phase; remembers which ones failed.

    Args:
      prompts: endless batches of the task's own records.
      share: of a batch that are new tasks.
      keep: failed tasks that are remembered.
      seed: of the order of new tasks.

    Attributes:
      tasks: records of this phase.
      failed: records that no episode of their last group in this phase has solved, the newest last.
    """

    def __init__(self, prompts: Iterator[list[dict]], *, share: float, keep: int, seed: int):
        self._prompts, self._share, self._keep, self._seed = prompts, share, keep, seed
        self.tasks: list[dict] = []
        self.failed: list[dict] = []
        self._phase, self._taken, self._given = 0, 0, {}

    def __iter__(self) -> "EvolvingPrompts":
        return self

    def __next__(self) -> list[dict]:
        batch = next(self._prompts)
        if self.tasks:
            count = max(1, round(self._share * len(batch)))
            batch = [*batch[: len(batch) - count], *(self._next_task() for _ in range(count))]
        self._given |= {record["id"]: record for record in batch}
        return batch

    def _next_task(self) -> dict:
        """All tasks of the phase in a random order, then in another one."""
        rounds, place = divmod(self._taken, len(self.tasks))
        order = list(range(len(self.tasks)))
        random.Random(f"{self._seed} {self._phase} {rounds}").shuffle(order)
        self._taken += 1
        return dict(self.tasks[order[place]])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompts, name)

    def feedback(self, seen: Feedback) -> None:
        """Remembers what failed; the prompts hear of their own."""
        for name, success in zip(seen.ids, seen.success, strict=True):
            failed = [self._given[name]] if name in self._given and np.max(success) < 1 else []
            self.failed = [one for one in self.failed if one["id"] != name] + failed
        del self.failed[: -self._keep]
        new = {record["id"] for record in self.tasks}
        own = [row for row, name in enumerate(seen.ids) if name not in new]
        if own:
            self._prompts.feedback(seen.of_groups(own))
        self._given = {}

    def begin(self, tasks: Sequence[dict]) -> None:
        """The next phase, with these tasks; nothing has failed in it."""
        self.tasks, self.failed = list(tasks), []
        self._phase, self._taken = self._phase + 1, 0

    def get_state(self) -> dict:
        """A JSON value."""
        own = {"tasks": self.tasks, "failed": self.failed, "phase": self._phase, "taken": self._taken}
        return {"prompts": self._prompts.get_state(), "curriculum": own}

    def set_state(self, state: dict) -> None:
        """Continues from a state."""
        self._prompts.set_state(state["prompts"])
        own = state["curriculum"]
        self.tasks, self.failed = [dict(one) for one in own["tasks"]], [dict(one) for one in own["failed"]]
        self._phase, self._taken, self._given = own["phase"], own["taken"], {}


def evolving_prompts(config, prompts: Iterator[list[dict]]) -> Iterator[list[dict]]:
    """The batches of prompts, EvolvingPrompts if config.agent.curriculum has an author."""
    settings = settings_of(config)
    if not settings["fn"]:
        return prompts
    return EvolvingPrompts(prompts, share=settings["share"], keep=settings["keep"], seed=config.seed)


def evolve(
    setup: Setup, programs: Any, learner: Any, prompts: Iterator[list[dict]], step: int, key: jax.Array
) -> dict[str, float]:
    """Begins the next phase after its last step. Returns curriculum/... metrics, {} within a phase.

    written: tasks of the author; feasible: those that the site can do, each once and none that has failed; value: the
    critic's mean of their first states; tasks: those that the next phase asks.

    Args:
      setup: of the run.
      programs: PPOPrograms, whose generate is a Player.
      learner: actor_critic.LearnerState, after the step.
      prompts: EvolvingPrompts, if the config has a curriculum.
      step: of the loop.
      key: of the step.
    """
    settings = settings_of(setup.config)
    if not settings["fn"] or step % settings["every"]:
        return {}
    failed, key = prompts.failed, jax.random.fold_in(key, ROOM)
    dice = random.Random(str(np.asarray(jax.random.key_data(key)).tolist()))
    written, found = 0, {}
    if failed:
        count = min(settings["seeds"], len(failed))
        drawn = [dice.sample(failed, count) for _ in range(settings["requests"])]
        author = Author(setup, programs.generate, learner.policy_params(), key, step)
        known = {one["id"] for one in failed}
        with probing(environment_of(setup.config)) as env:
            said = author_of(setup.config)(author, [[env.instruction(one) for one in seeds] for seeds in drawn])
            for seeds, texts in zip(drawn, said, strict=True):
                written += len(texts)
                for one in filter(None, (_task(env, dice.choice(seeds), words) for words in texts)):
                    if one["id"] not in known:
                        found[one["id"]] = one
    tasks = list(found.values())
    values = first_values(setup, programs, learner.critic_params(), tasks)
    kept = np.flatnonzero(evolving.learnable(values, low=settings["low"], high=settings["high"]))
    prompts.begin([tasks[i] for i in kept[: settings["size"]]])
    told = {"failed": len(failed), "written": written, "feasible": len(tasks), "tasks": len(prompts.tasks)}
    told |= {"value": float(values.mean())} if tasks else {}
    return {f"curriculum/{name}": float(number) for name, number in told.items()}


def _task(env: Any, site: dict, words: str) -> dict | None:
    """The record of a new task on the pages of another one's, or None; its index is the other one's."""
    made = env.instructed(site, words)
    return made and made | {"id": prompt_id(made), "source": "evolved", "index": site["index"]}


def first_values(setup: Setup, programs: Any, critic: Params, tasks: Sequence[dict]) -> np.ndarray:
    """The critic's value of each task's first state, float64 [n], in batches of a step's rows."""
    config, pad_id = setup.config, setup.task.tokenizer.pad_id
    size, length = config.sample.prompts_per_step * config.sample.group_size, config.rollout.completion_length
    found = []
    for start in range(0, len(tasks), size):
        part = tasks[start : start + size]
        tokens, mask = encode_prompts(setup, [part[i % len(part)] for i in range(size)])
        tokens = np.pad(tokens, ((0, 0), (0, length)), constant_values=pad_id)
        real = np.pad(mask, ((0, 0), (0, length)))
        positions = (np.maximum(np.cumsum(real, axis=1) - 1, 0) * real).astype(np.int32)
        rows = to_mesh(setup, TokenBatch(tokens, positions, real.astype(np.int32)))
        found.append(np.asarray(jax.device_get(programs.predict(critic, rows)))[: len(part), 0])
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


def environment_of(config) -> Any:
    """One environment of config.agent.env, which plays nothing."""
    return bind(config.agent.env.to_dict(), text)()


def settings_of(config) -> dict[str, Any]:
    """config.agent.curriculum; runs of before there was one have none."""
    return dict(config.agent.get("curriculum", {"fn": ""})) if "agent" in config else {"fn": ""}


def problems(config, env: Any) -> list[str]:
    """What is wrong with config.agent.curriculum, one text each. env: one environment."""
    settings = settings_of(config)
    if not settings["fn"]:
        return []
    if missing := [name for name in FIELDS if name not in settings]:
        return [f"agent.curriculum has no {', '.join(missing)}"]
    found = []
    for name in ("every", "seeds", "requests", "keep", "size"):
        if settings[name] < 1:
            found.append(f"agent.curriculum.{name}={settings[name]!r} must be 1 or more")
    if not 0 <= settings["low"] <= settings["high"] <= 1 or not 0 < settings["share"] <= 1:
        found.append(
            f"agent.curriculum: low={settings['low']} and high={settings['high']} must be shares in this order, "
            f"share={settings['share']} above 0 and at most 1"
        )
    if config.get("program") != "ppo":
        found.append(f"agent.curriculum asks a critic: it works in experiments.ppo, not {config.get('program')!r}")
    lacks = [name for name in ("instruction", "instructed") if not hasattr(env, name)]
    if lacks:
        found.append(f"agent.curriculum: agent.env={config.agent.env.fn!r} has no {' and no '.join(lacks)}()")
    try:
        author_of(config)
    except ValueError as error:
        found.append(f"agent.curriculum: {error}")
    return found


def author_of(config) -> Callable[[Author, Sequence[Sequence[str]]], list[list[str]]]:
    """The author of config.agent.curriculum. Raises ValueError if there is none, or a field is not its own."""
    own = {name: value for name, value in settings_of(config).items() if name not in FIELDS}
    return bind(own, task_authors)
