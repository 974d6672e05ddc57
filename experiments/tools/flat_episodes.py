"""Whether many episodes at once leave anything behind: rounds of 512 episodes of 8 turns on a tiny model.

    python -m experiments.tools.flat_episodes                        # 512 episodes at once, 12 rounds
    python -m experiments.tools.flat_episodes --episodes=64 --rounds=4

Each round plays all episodes at once with params of its own, through the Player of experiments.agents (the continuous
engine, its held slots, one environment per episode), and checks that none is lost or doubled. After each round the
memory, open files, threads, compiled programs and live arrays are read; the second half of the rounds is judged as in
experiments.tools.flat_memory. The last line is JSON; the exit code is 1 if something grows.
"""

import argparse
import contextlib
import json
import pathlib
import random
import sys
import tempfile
import time

import jax

from configs import agents, common
from experiments.parts.players import Player
from experiments.parts.setup import Setup, make_setup
from experiments.tools import flat_memory
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World
from rl_jax.experience.trajectory import Trajectory

GROUP = 8  # episodes of a prompt
TURNS = 8
ROW = 120  # tokens of an episode after its prompt


class Echo(World):
    """Answers whatever is said, `most` times. Few letters: a new model ends its turns soon."""

    ALPHABET = "ab"

    def __init__(self, *, most: int = TURNS):
        super().__init__(price=0.0, most=most)

    def problems(self, rng: random.Random):
        """All have one prompt."""
        while True:
            yield "a", {}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing to set."""

    def step(self, said: str) -> Step:
        """The answer."""
        return self.answer("b")

    def expert(self, rng: random.Random) -> str:
        """One letter."""
        return "a"

    novice = expert


def config_of(folder: pathlib.Path, turns: int = TURNS):
    """The config of a tiny model in the world Echo."""
    here = "experiments.tools.flat_episodes:Echo"
    config = agents.base("flat")
    config.task = dict(name="rl_jax.envs.text.recorded:load", world=here, settings=dict(most=turns), num_train=4,
                       num_test=1, expert_share=1.0, data_dir=str(folder / "data"))  # fmt: skip
    config.agent.update(max_turns=turns)
    config.agent.env = dict(fn=here, most=turns)
    config.model = common.transformer(
        embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16, tied_head=False
    )
    config.rollout.update(completion_length=ROW, prompt_buckets=(2,))
    config.log.update(progress=False, tensorboard=False)
    return config


def play_round(player: Player, setup: Setup, episodes: int, number: int) -> list[Trajectory]:
    """One round of `episodes`.

    Args:
      player: of at least as many episodes.
      setup: of the run.
      episodes: a multiple of GROUP.
      number: of the round: its key and its params are its own.

    Raises:
      RuntimeError: if an episode is lost or doubled, or did not come to its end.
    """
    records = [{"prompt": "a", "info": "{}", "id": str(n)} for n in range(episodes // GROUP)]
    params = setup.init_params()
    params = jax.tree.map(lambda x: x * (1 + 1e-3 * number), params)  # as after an update: other arrays
    found = player.play(params, records, jax.random.key(number), group_size=GROUP)
    places = [(t.group, t.sample) for t in found]
    if places != [divmod(n, GROUP) for n in range(episodes)]:
        raise RuntimeError(f"round {number}: episodes were lost, doubled or out of order: {places}")
    if failed := [t for t in found if t.status not in ("done", "tokens", "context")]:
        raise RuntimeError(f"round {number}: {len(failed)} episodes ended as {failed[0].status}: {failed[0].error}")
    return found


def watch(folder: pathlib.Path, episodes: int, rounds: int) -> tuple[list[flat_memory.Reading], dict]:
    """Plays the rounds. Returns what was read after each, and what the episodes were.

    Args:
      folder: for the prepared data.
      episodes: at once; a multiple of GROUP.
      rounds: how many.

    Raises:
      ValueError: if the episodes do not make whole groups.
    """
    if episodes < GROUP or episodes % GROUP or rounds < 1:
        raise ValueError(f"--episodes={episodes} must be a multiple of {GROUP}, and --rounds={rounds} 1 or more")
    setup = make_setup(config_of(folder))
    readings, turns, tokens, full, seconds = [], 0, 0, 0, []
    with contextlib.closing(Player(setup, episodes)) as player, flat_memory.Watch(1) as found:
        for number in range(1, rounds + 1):
            began = time.monotonic()
            played = play_round(player, setup, episodes, number)
            seconds.append(time.monotonic() - began)
            turns += sum(len(t.turns) for t in played)
            full += sum(len(t.turns) == TURNS for t in played)
            tokens += sum(t.count("sampled") for t in played)
            del played
            readings.append(found.read(number))
    count = episodes * rounds
    return readings, dict(
        episodes=count, turns=turns / count, full=full / count, tokens=tokens / count,
        seconds=sorted(seconds)[len(seconds) // 2], compile_count=player._cache_size(),
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512, help=f"at once, a multiple of {GROUP}")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tolerance", type=float, default=1000.0, help="MiB of memory per 1,000 rounds")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rl_jax-episodes-") as folder:
        try:
            readings, told = watch(pathlib.Path(folder), options.episodes, options.rounds)
        except ValueError as error:
            parser.error(str(error))
    found = flat_memory.problems(readings, options.tolerance)
    print(flat_memory.table(readings))
    print(f"\n{told['episodes']} episodes, {options.episodes} at once, none lost or doubled; {told['turns']:.2f} turns "
          f"and {told['tokens']:.0f} sampled tokens each, {told['full']:.1%} with all {TURNS} turns; "
          f"{told['seconds']:.2f} s a round: " + ("; ".join(found) if found else "flat"))  # fmt: skip
    print(json.dumps({"tool": "flat_episodes", "options": vars(options), "problems": found, **told,
                      "readings": [list(reading) for reading in readings]}))  # fmt: skip
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
