"""A language model plans and a small network drives: AD-H (arXiv 2406.03474) on the road of rl_jax.envs.worlds.driving.

    python -m experiments.tools.driving_talk
    python -m experiments.tools.driving_talk --planner=http://127.0.0.1:8000 --episodes=8
    python -m experiments.tools.driving_talk --write=runs/drives.jsonl       # prompts and commands, for experiments.sft

A driver is recorded under two instructions; rules find one of four commands in each of its accelerations
(envs.worlds.spoken). The controller, a network of command and observation, is cloned from that. The planner reads the
instruction and what is seen, both as text, and answers with a command every --every steps. It is a server of OpenAI's
protocol, or without --planner a script that reads the same text. A planner of one's own: fine-tune a model on --write's
file (configs/task.py), and serve it (experiments.tools.serve_text). The paper's planner is a multimodal model that sees
images; its rules were not read.
"""

import argparse
import json
import pathlib
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import refusals
from experiments.parts.text_models import Ask, by_server
from experiments.tools.two_level import CRUISES, instructed, make_levels, recorded
from rl_jax.control import two_level
from rl_jax.envs.worlds import driving, spoken
from rl_jax.runs.logging import write_atomically

QUESTION = (
    "Drive at {cruise:g} m/s and keep your distance. Your speed is {speed:.1f} m/s. The car in front is {gap:.0f} m "
    "ahead at {lead:.1f} m/s. Command:"
)
NUMBERS = re.compile(r"Drive at (\S+) m/s.*speed is (\S+) m/s.*front is (\S+) m ahead at (\S+) m/s")


def question(observation: np.ndarray) -> str:
    """What the planner reads of an observation of `two_level.instructed`, float32 [7]."""
    return QUESTION.format(
        cruise=CRUISES[int(np.argmax(observation[5:]))],
        speed=driving.LIMIT * observation[0],
        gap=50.0 * observation[1] - driving.CAR,
        lead=driving.LIMIT * observation[2],
    )


def scripted(questions: Sequence[str]) -> list[str]:
    """A planner that reads the numbers and says the command of what spoken.driver would do."""
    cruise, speed, gap, lead = np.float32([NUMBERS.search(text).groups() for text in questions]).T
    seen = [speed / driving.LIMIT, (gap + driving.CAR) / 50.0, lead / driving.LIMIT]
    seen = np.stack([*seen, np.zeros_like(speed), np.zeros_like(speed)], axis=1)
    said = spoken.pedal_command(spoken.driver(jnp.asarray(seen), jnp.asarray(cruise)))
    return [spoken.PEDAL_TEXTS[i] for i in said.tolist()]


def command_of(answer: str, before: int) -> int:
    """The command that an answer names, the longest name first; the one `before` if it names none."""
    places = sorted(range(len(spoken.PEDAL_TEXTS)), key=lambda i: -len(spoken.PEDAL_TEXTS[i]))
    return next((i for i in places if spoken.PEDAL_TEXTS[i] in answer.lower()), before)


def shown(key: jax.Array, episodes: int, length: int) -> tuple[two_level.Said, np.ndarray]:
    """(recorded drives with the commands that rules find in them, the driver's returns [N])."""
    seen, pedals, paid = recorded(jax.random.split(key, episodes), length)
    said = np.asarray(spoken.pedal_command(jnp.asarray(pedals)))
    return two_level.Said(seen, said, pedals[:, None]), paid


def drive(levels, low, planner: Ask, key: jax.Array, *, episodes: int, length: int, every: int) -> np.ndarray:
    """Returns of episodes with the planner, float [N]; half of them for each instruction.

    Args:
      levels: two_level.Levels of the commands.
      low: params of the controller.
      planner: texts -> answers; asked about all episodes at once.
      key: typed PRNG key.
      episodes: N.
      length: steps of an episode.
      every: steps between questions.
    """
    env = jax.vmap(lambda cruise, key: instructed(cruise).reset(key))
    cruises = jnp.resize(jnp.asarray(CRUISES), episodes)
    start_key, key = jax.random.split(key)
    state, seen = env(cruises, jax.random.split(start_key, episodes))

    @jax.jit
    def step(state, seen, said, alive, key):
        action = two_level.done_under(levels, low, seen, said)
        turn = lambda cruise, *told: instructed(cruise).step(*told)  # noqa: E731
        state, now = jax.vmap(turn)(cruises, jax.random.split(key, episodes), state, action)
        return state, now.observation, alive & ~now.done, jnp.where(alive, now.reward, 0.0)

    said, alive, total = np.full(episodes, 2, np.int32), jnp.ones(episodes, bool), np.zeros(episodes)
    for number in range(length):
        if number % every == 0:
            rows = np.flatnonzero(alive)
            if not len(rows):
                break
            answers = planner([question(x) for x in np.asarray(seen)[rows]])
            said = said.copy()
            said[rows] = [command_of(text, int(before)) for text, before in zip(answers, said[rows], strict=True)]
        state, seen, alive, paid = step(state, seen, said, alive, jax.random.fold_in(key, number))
        total += np.asarray(paid)
    return total


def write(path: pathlib.Path, seen: np.ndarray, said: np.ndarray) -> int:
    """Writes the planner's demonstrations as JSON lines. Returns how many different ones there are."""
    pairs = dict.fromkeys((question(x), f" {spoken.PEDAL_TEXTS[y]}") for x, y in zip(seen, said.tolist(), strict=True))
    rows = [{"prompt": prompt, "completion": text, "answer": text} for prompt, text in pairs]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return len(rows)


def main(argv=None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planner", default="", help="address of the planner's server; without one a script")
    parser.add_argument("--chat", action="store_true", help="ask it in chats; else it continues the text")
    parser.add_argument("--every", type=int, default=2, help="steps between questions")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--recorded", type=int, default=64, help="episodes of the driver")
    parser.add_argument("--length", type=int, default=120, help="steps of an episode")
    parser.add_argument("--fit", type=int, default=2000, help="steps of the controller's cloning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", default="", help="a file for the planner's demonstrations; nothing is driven then")
    options = parser.parse_args(argv)
    if min(options.every, options.episodes, options.recorded, options.length, options.fit) < 1:
        parser.error("--every, --episodes, --recorded, --length and --fit must be 1 or more")
    keys = jax.random.split(jax.random.key(options.seed), 3)
    drives, paid = shown(keys[0], options.recorded, options.length)
    if options.write:
        count = write(pathlib.Path(options.write), drives.observations, drives.commands)
        return print(f"{count} demonstrations in {options.write}")
    levels = make_levels(drives.observations.shape[1], 1, spoken.PEDAL_TEXTS, hidden=(64, 64))
    low = two_level.fit_low(levels, drives, keys[1], steps=options.fit)
    fields = dict(episodes=options.episodes, length=options.length, every=options.every)
    with refusals.refusing("experiments.tools.driving_talk"):
        planner = by_server(url=options.planner, chat=options.chat, max_tokens=16) if options.planner else scripted
        total = drive(levels, low, planner, keys[2], **fields)
    print(
        f"driver {paid.mean():.1f}, planner and controller {total.mean():.1f} ({total.min():.1f} to {total.max():.1f})"
    )


if __name__ == "__main__":
    main()
