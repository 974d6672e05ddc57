"""Plays episodes of two cooks, one of whom is led by language models: HLA (arXiv 2312.15224).

    python -m experiments.tools.kitchen_talk
    python -m experiments.tools.kitchen_talk --slow=http://127.0.0.1:8000 --fast=http://127.0.0.1:8001 --slow_steps=4
    python -m experiments.tools.kitchen_talk --agent=fast

The left cook is the agent, which does not see the pot; the right one is a script that sees it, and says what it
needs in its own words. Agents: `hla` (a slow mind that says what the partner wants, a fast one that chooses a macro
action, an executor), `fast` (no slow mind: the partner's own words are the demand) and `slow` (the slow mind chooses,
too, after --slow_steps). Minds are servers of OpenAI's protocol, or without an address scripts: the slow one knows what
the partner means, the fast one knows only the names of macro actions. Printed: soups of each episode, beside the most
that two cooks who see everything can serve, and questions per mind. --to writes questions and answers as JSON lines.
"""

import argparse
import functools
import json
import pathlib

import jax
import numpy as np

from experiments.parts import refusals
from experiments.parts.cooks import Cook, Partner
from experiments.parts.text_models import Ask, by_server
from rl_jax.envs.worlds import kitchen, kitchen_tasks

MEANT = (("room in the pot", "bring an onion"), ("nothing to put it in", "bring a dish"))


def scripted_slow(questions) -> list[str]:
    """A slow mind that knows what Partner means, and whether it was done."""

    def answer(question: str) -> str:
        if "what they want of you" in question:
            return next((f"{task} once" for words, task in MEANT if words in question), "None")
        if "Is that all" in question:
            wanted = question.partition("Your partner wanted: ")[2].partition(" once")[0]
            return "YES" if wanted in question.partition("you did: ")[2].partition("\n")[0] else "NO"
        return scripted_fast([question])[0] if "exactly one of" in question else "Here you are."

    return [answer(question) for question in questions]


def scripted_fast(questions) -> list[str]:
    """A fast mind that takes words as they are: an action that the demand names, once if it says so, else it waits."""

    def answer(question: str) -> str:
        demand = question.partition("Your partner wants: ")[2].partition("\n")[0]
        able = question.partition("exactly one of: ")[2].partition(". Answer")[0].split(", ")
        done = question.partition("Since then you did: ")[2].partition("\n")[0]
        return next((x for x in able if x in demand and not (f"{x} once" in demand and x in done)), "wait")

    return [answer(question) for question in questions]


def play(cook: Cook, partner: Partner, *, lane: int, onions: int, cook_steps: int, limit: int) -> int:
    """Soups of one episode with the agent on the left. Arguments as of kitchen.environment; cook_steps: its `cook`."""
    moved = _moved(lane, onions, cook_steps)
    state, soups = kitchen_tasks.see(kitchen.start(lane)), 0
    for step in range(limit):
        if message := partner.speak(state):
            cook.hear(message, step)
        actions = np.array([cook.act(state, step), partner.act(state)], np.int32)
        after, served, _ = moved(state, actions)
        state, soups = kitchen_tasks.see(after), soups + int(served)
    return soups


@functools.cache
def _moved(lane: int, onions: int, cook_steps: int):
    """The kitchen's step, compiled once."""
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    step = functools.partial(kitchen.moved, lane=lane, onions=onions, cook=cook_steps)
    return jax.jit(step, compiler_options=options)


def episodes(
    agent: str, slow: Ask, fast: Ask, *, count: int, slow_steps: int, fast_steps: int, **kitchen_fields
) -> tuple[list[int], list[dict]]:
    """(soups of each episode, every question with its answer). agent: "hla", "fast" or "slow".

    Raises:
      ValueError: if the agent is unknown.
    """
    if agent not in ("hla", "fast", "slow"):
        raise ValueError(f"agent={agent!r} is none of hla, fast, slow")
    parts = {name: kitchen_fields[name] for name in ("onions", "cook_steps")}
    soups, asked = [], []
    for episode in range(count):
        delays = dict(slow_steps=slow_steps, fast_steps=slow_steps if agent == "slow" else fast_steps)
        cook = Cook(
            kitchen_tasks.LEFT,
            slow if agent == "slow" else fast,
            None if agent == "fast" else slow,
            **parts,
            **delays,
        )
        soups.append(play(cook, Partner(**parts), **kitchen_fields))
        asked += [row | {"episode": episode} for row in cook.log]
    return soups, asked


def main(argv=None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="hla", choices=("hla", "fast", "slow"))
    parser.add_argument("--slow", default="", help="address of the slow mind's server; without one a script")
    parser.add_argument("--fast", default="", help="address of the fast mind's server; without one a script")
    parser.add_argument("--slow_steps", type=int, default=4, help="steps until the slow mind's answer counts")
    parser.add_argument("--fast_steps", type=int, default=0, help="steps until the fast mind's answer counts")
    parser.add_argument("--episodes", type=int, default=3)
    parser.add_argument("--lane", type=int, default=3, help="places of each cook")
    parser.add_argument("--onions", type=int, default=1, help="that a soup needs")
    parser.add_argument("--cook", type=int, default=3, help="steps until a soup is ready")
    parser.add_argument("--limit", type=int, default=60, help="steps of an episode")
    parser.add_argument("--to", default="", help="a file for questions and answers")
    options = parser.parse_args(argv)
    least = {"episodes": 1, "lane": 2, "onions": 1, "cook": 0, "limit": 1, "slow_steps": 0, "fast_steps": 0}
    for name, number in least.items():
        if getattr(options, name) < number:
            parser.error(f"--{name}={getattr(options, name)} must be {number} or more")
    with refusals.refusing("experiments.tools.kitchen_talk"):
        run(options)


def run(options: argparse.Namespace) -> None:
    """Plays the episodes of the command line, and prints what came of them."""
    slow = by_server(url=options.slow) if options.slow else scripted_slow
    fast = by_server(url=options.fast, max_tokens=32) if options.fast else scripted_fast
    fields = dict(lane=options.lane, onions=options.onions, cook_steps=options.cook, limit=options.limit)
    delays = dict(slow_steps=options.slow_steps, fast_steps=options.fast_steps)
    soups, asked = episodes(options.agent, slow, fast, count=options.episodes, **delays, **fields)
    if options.to:
        pathlib.Path(options.to).write_text("".join(json.dumps(row) + "\n" for row in asked))
    best = kitchen.most_soups(lane=options.lane, onions=options.onions, cook=options.cook, limit=options.limit)
    counts = [sum(row["mind"] == mind for row in asked) for mind in ("slow", "fast")]
    print(
        f"{options.agent}: soups {' '.join(map(str, soups))}, {best} at best; questions per episode: "
        f"{counts[0] / len(soups):.1f} to the slow mind, {counts[1] / len(soups):.1f} to the fast one"
    )


if __name__ == "__main__":
    main()
