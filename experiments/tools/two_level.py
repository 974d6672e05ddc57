"""Two levels that are cloned: a high level that says commands in words, and a low level that does them.

    python -m experiments.tools.two_level corrections --seeds=3
    python -m experiments.tools.two_level driving --seeds=3

`corrections` (Yell At Your Robot, arXiv 2403.12910): a point pushed to the origin (envs.worlds.docking). The high level
is cloned from demonstrations that miss it, the low level from every command. Then, round after round, somebody watches
and corrects commands, and the high level alone is trained further on what they said. Printed is how often the robot is
at the origin at the end, on its own and with somebody who speaks. `driving` (AD-H, arXiv 2406.03474): commands found in
a driver's accelerations by rules, a planner of an instruction and what is seen, and a controller of a command and what
is seen.
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control import two_level
from rl_jax.envs.protocol import Environment
from rl_jax.envs.worlds import docking, driving, spoken
from rl_jax.models.agents.features import make_net

RADIUS, STEPS = 0.2, 40
CRUISES = (5.0, 9.0)  # m/s, of the instructions


class Round(NamedTuple):
    """alone, helped: shares of episodes that end at the origin. said: corrections per episode."""

    alone: float
    helped: float
    said: float


def make_levels(observation_size: int, actions: int, texts: tuple[str, ...], *, hidden: tuple[int, ...] = (32,)):
    """Networks of both levels (two_level.Levels) for commands in words.

    Args:
      observation_size: D.
      actions: A.
      texts: of the C commands.
      hidden: widths of both networks.
    """
    commands = spoken.embed(texts)
    size = commands.shape[1]
    low = make_net(observation_size + size, actions, hidden=hidden)
    return two_level.Levels(make_net(observation_size, size, hidden=hidden), low, commands)


def nobody(observation: jax.Array, own: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Somebody who never speaks."""
    return own, jnp.bool_(False)


def beside(rng: np.random.Generator, count: int, bias: float = 0.4) -> two_level.Said:
    """Commands of demonstrations that miss: docking.biased_pd goes to (bias, bias) in place of the origin."""
    seen = np.concatenate([rng.uniform(-1.0, 1.0, (count, 2)), 0.3 * rng.normal(size=(count, 2))], axis=1)
    said = jax.jit(lambda x: spoken.push_command(docking.biased_pd(x, bias=bias)))(seen.astype(np.float32))
    return two_level.Said(seen.astype(np.float32), np.asarray(said))


def skills(rng: np.random.Generator, count: int) -> two_level.Said:
    """Every command in every place, for the low level: it knows more than the high level asks of it."""
    said = rng.integers(0, len(spoken.PUSHES), count)
    actions = np.asarray(spoken.pushed(jnp.asarray(said))) + 0.1 * rng.normal(size=(count, 2))
    return two_level.Said(rng.uniform(-1.0, 1.0, (count, 4)).astype(np.float32), said, actions.astype(np.float32))


def corrected(
    levels: two_level.Levels, high: dict, low, data: list, key: jax.Array, *, rounds: int, episodes: int, fit
) -> list[Round]:
    """The rounds of one robot: the first is what the demonstrations alone give.

    Args:
      levels: for docking's observations and pushes.
      high: params of the high level before the demonstrations.
      low: params of the low level, which stay.
      data: [the demonstrations]; the corrections of each round are added.
      key: typed PRNG key.
      rounds: of corrections.
      episodes: that are watched in each.
      fit: two_level.high_fitter of the levels.
    """
    watch, found = watcher(docking.environment(periods=STEPS), levels, STEPS), []
    high = fit(high, data, key)
    for number in range(rounds + 1):
        key, used = jax.random.split(key)
        runs = jax.random.split(used, episodes)
        alone, helped = (watch(high, low, runs, speaks) for speaks in (False, True))
        there = [float(np.mean(np.linalg.norm(x.last[:, :2], axis=1) < RADIUS)) for x in (alone, helped)]
        new = two_level.corrections(helped)
        found.append(Round(*there, len(new.commands) / episodes))
        if number < rounds and len(new.commands):
            data.append(new)
            high = fit(high, data, used)
    return found


def watcher(env: Environment, levels: two_level.Levels, steps: int):
    """(high, low, keys [N], whether the guide speaks) -> Watched of N episodes, one program for all rounds."""

    def one(high: dict, low, key: jax.Array, speaks: bool) -> two_level.Watched:
        def speaker(observation: jax.Array, own: jax.Array):
            said, would = spoken.guided(observation, own, radius=RADIUS)
            return said, would & speaks

        return two_level.watch(env, levels, high, low, speaker, key, steps=steps)

    return jax.jit(jax.vmap(one, (None, None, 0, None)))


def instructed(cruise: jax.Array) -> Environment:
    """The road, with the instruction shown: its observation ends with one entry of two that is 1."""
    env = driving.road()
    shown = jnp.stack([cruise == x for x in CRUISES]).astype(jnp.float32)

    def reset(key: jax.Array):
        state, seen = env.reset(key)
        return state, jnp.concatenate([seen, shown])

    def step(key: jax.Array, state, action: jax.Array):
        state, now = env.step(key, state, action)
        return state, now._replace(observation=jnp.concatenate([now.observation, shown]))

    return env._replace(reset=reset, step=step)


def recorded(keys: jax.Array, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(observations [M, 7], accelerations [M], returns [N]) of the driver, half of N episodes for each instruction."""

    def one(key: jax.Array, cruise: jax.Array):
        env = instructed(cruise)
        reset_key, key = jax.random.split(key)
        state, seen = env.reset(reset_key)

        def turn(carry, key: jax.Array):
            state, seen, alive = carry
            pedal = spoken.driver(seen[None], cruise[None])[0]
            state, now = env.step(key, state, pedal[None])
            return (state, now.observation, alive & ~now.done), (seen, pedal, alive, jnp.where(alive, now.reward, 0.0))

        return jax.lax.scan(turn, (state, seen, jnp.bool_(True)), jax.random.split(key, steps))[1]

    cruises = jnp.resize(jnp.asarray(CRUISES), len(keys))
    seen, pedals, alive, paid = (np.asarray(x) for x in jax.jit(jax.vmap(one))(keys, cruises))
    return seen[alive], pedals[alive], paid.sum(axis=1)


def driven(seed: int, episodes: int = 64, steps: int = 2000, length: int = 120) -> dict[str, float]:
    """Returns of the driver and of the two levels that are cloned from it, and speeds under both instructions.

    Args:
      seed: of all that is random.
      episodes: of the driver, and of the judgement.
      steps: of each fit.
      length: steps of an episode.
    """
    keys = jax.random.split(jax.random.key(seed), 4)
    seen, pedals, paid = recorded(jax.random.split(keys[0], episodes), length)
    said = np.asarray(spoken.pedal_command(jnp.asarray(pedals)))
    shown = two_level.Said(seen, said, pedals[:, None])
    levels = make_levels(seen.shape[1], 1, spoken.PEDAL_TEXTS, hidden=(64, 64))
    fit = two_level.high_fitter(levels, steps=steps)
    high = fit(two_level.new_high(levels, keys[1]), [shown], keys[1])
    low = two_level.fit_low(levels, shown, keys[2], steps=steps)

    def one(key: jax.Array, cruise: jax.Array) -> two_level.Watched:
        return two_level.watch(instructed(cruise), levels, high, low, nobody, key, steps=length)

    runs = jax.random.split(keys[3], episodes)
    watched = jax.device_get(jax.jit(jax.vmap(one))(runs, jnp.resize(jnp.asarray(CRUISES), episodes)))
    speeds = [np.quantile(watched.observations[i::2, :, 0][watched.alive[i::2]], 0.9) for i in range(2)]
    result = {"driver": float(paid.mean()), "two levels": float(watched.rewards.sum(axis=1).mean())}
    fast = {f"speed at {cruise:g} m/s": float(driving.LIMIT * x) for cruise, x in zip(CRUISES, speeds, strict=True)}
    return result | fast


def print_corrections(seeds: int, rounds: int) -> None:
    """One line per round, means over seeds."""
    levels, found = make_levels(4, 2, spoken.PUSH_TEXTS), []
    fit = two_level.high_fitter(levels)
    for seed in range(seeds):
        rng, keys = np.random.default_rng(seed), jax.random.split(jax.random.key(seed), 3)
        low = two_level.fit_low(levels, skills(rng, 2048), keys[0])
        high, data = two_level.new_high(levels, keys[1]), [beside(rng, 512)]
        found.append(corrected(levels, high, low, data, keys[2], rounds=rounds, episodes=64, fit=fit))
    print("| round | alone | with a guide | said per episode |\n|---|---|---|---|")
    for number, row in enumerate(np.mean(found, axis=0)):
        print(f"| {number} | {row[0]:.3f} | {row[1]:.3f} | {row[2]:.2f} |")


def print_driving(seeds: int, rounds: int) -> None:
    """One line per seed. rounds: unused."""
    rows = [driven(seed) for seed in range(seeds)]
    print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(f"{x:.2f}" for x in row.values()) + " |")


PAPERS = {"corrections": print_corrections, "driving": print_driving}


def main() -> None:
    """Prints a table of one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=4, help="of corrections")
    options = parser.parse_args()
    if options.seeds < 1 or options.rounds < 0:
        parser.error(f"--seeds={options.seeds} must be 1 or more and --rounds={options.rounds} 0 or more")
    PAPERS[options.paper](options.seeds, options.rounds)


if __name__ == "__main__":
    main()
