"""A task in words becomes a relabelling of a config, by a chat server: weighted terms, a formula, or a team's.

    python -m experiments.tools.language_rewards terms --config=configs/control/reward_code.py:pendulum \
        --url=http://127.0.0.1:8000 --workdir=runs/words --task="Keep the pendulum upright and still." --task="Softer."
    python -m experiments.tools.language_rewards formula --config=configs/control/rewards.py:formula \
        --url=http://127.0.0.1:8000 --workdir=runs/logic --task="Go to the left end, and only then to the right one."

    python -m experiments.tools.language_rewards robots --config=configs/control/agents.py:robots,ippo \
        --url=http://127.0.0.1:8000 --workdir=runs/team --task="Visit both ends, and the middle after the left one."

`terms` is Language to Rewards (2306.08647): a motion description, then calls that set terms; a further --task corrects
the ones before. `formula` is Nl2Hltl2Plan (2408.08188): a tree of tasks, the order of each one's parts, its formula;
the propositions are the places of the config's machine. `robots` is the same for several: the parts are given to the
robots of the config's world so that the plan is shortest, which is printed. The relabelling is written to relabel.json,
or the world to env.json, what was asked and answered to exchanges.jsonl, and the command that trains on it is printed.
"""

import argparse
import pathlib
import shlex
from typing import Any

from ml_collections import ConfigDict

from experiments.parts import check_config
from experiments.parts.chat import Chat
from experiments.parts.language_rewards import by_logic, by_team, by_words
from experiments.sweep.points import load_config
from rl_jax.core.visible import visible
from rl_jax.runs.logging import encode_row, write_atomically


def names_of(config: ConfigDict, given: str) -> list[str]:
    """The names of the observation's entries: those on the command line, or the config's.

    Raises:
      ValueError: if there are none.
    """
    names = [name for name in given.split(",") if name] or list(config.algorithm.relabel.get("names", ()))
    if not names:
        raise ValueError(
            "the config has no algorithm.relabel.names: give those of the observation's entries, --names=x,y"
        )
    return names


def relabelling(config: ConfigDict, options: argparse.Namespace, chat: Chat) -> dict[str, Any]:
    """The relabelling that the server writes.

    Raises:
      ValueError: if the config lacks what the server is told, or the server's answers cannot be used.
    """
    if options.kind == "terms":
        found, description = by_words(chat, options.task, names_of(config, options.names), repairs=options.repairs)
        print(f"{visible(description)}\n", flush=True)
        return found
    machine = config.algorithm.relabel.get("machine", ConfigDict()).to_dict()
    if not machine.get("places") or len(options.task) != 1:
        raise ValueError("formula needs one --task and a config with algorithm.relabel.machine.places")
    fields = dict(size=machine.get("size", 0), progress=machine.get("progress", 0.0))
    return by_logic(chat, options.task[0], machine["places"], repairs=options.repairs, **fields)


def for_team(config: ConfigDict, options: argparse.Namespace, chat: Chat) -> str:
    """Writes env.json and says the plan. Returns the command that trains on it.

    Raises:
      ValueError: if the config is of another world, or the server's answers cannot be used.
    """
    env = config.env
    if env.name != "agents/robots" or len(options.task) != 1:
        raise ValueError("robots needs one --task and a config with env.name='agents/robots'")
    world = dict(starts=tuple(env.starts), length=env.length)
    found, plan = by_team(chat, options.task[0], env.places.to_dict(), **world, repairs=options.repairs)
    whole = env.to_dict() | found
    config.env = whole
    check_config.check(config)
    write_atomically(options.workdir / "env.json", (encode_row(whole) + "\n").encode())
    print(f"{plan.steps} steps, {plan.moved} moves; the parts of each robot: {found['owners']}", flush=True)
    for robot, path in enumerate(plan.paths.T.tolist()):
        print(f"robot {robot}: {' '.join(map(str, path))}", flush=True)
    flags = [f"--config={options.config}", f"--workdir={options.workdir / 'run'}", f"--config.env={whole}"]
    return shlex.join(["python", "-m", "experiments.control.ppo", *flags])


def run(options: argparse.Namespace) -> str:
    """Writes relabel.json. Returns the command that trains on it.

    Raises:
      ValueError: if the config lacks what the server is told, or the server's answers cannot be used.
    """
    config = load_config(options.config)
    if config.program != "control.ppo":
        raise ValueError("language_rewards needs a config of experiments.control.ppo")
    options.workdir.mkdir(parents=True, exist_ok=True)
    log = options.workdir / "exchanges.jsonl"
    chat = Chat(options.url, model=options.model, temperature=options.temperature, seed=options.seed, log=log)
    if options.kind == "robots":
        return for_team(config, options, chat)
    found = relabelling(config, options, chat)
    config.algorithm.relabel = found
    check_config.check(config)
    write_atomically(options.workdir / "relabel.json", (encode_row(found) + "\n").encode())
    flags = [
        f"--config={options.config}",
        f"--workdir={options.workdir / 'run'}",
        f"--config.algorithm.relabel={found}",
    ]
    return shlex.join(["python", "-m", "experiments.control.ppo", *flags])


def main() -> None:
    """Asks the server of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("terms", "formula", "robots"))
    parser.add_argument("--config", required=True, help="of experiments.control.ppo, with the environment")
    parser.add_argument("--workdir", required=True, type=pathlib.Path)
    parser.add_argument("--url", required=True, help="of a chat server, http://127.0.0.1:8000")
    parser.add_argument("--task", required=True, action="append", help="in words; terms: further ones are corrections")
    parser.add_argument(
        "--names", default="", help="terms: of the observation's entries, x,y (the config's by default)"
    )
    parser.add_argument("--model", default="", help="the server's name for its model")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repairs", type=int, default=2, help="requests that a refused answer is sent back in")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    options = parser.parse_args()
    try:
        print(run(options))
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
