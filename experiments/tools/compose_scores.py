"""GPC (arXiv 2510.01068): two diffusion or flow policies composed at test time, with a weight found by rollouts.

    python -m experiments.tools.compose_scores
    python -m experiments.tools.compose_scores opposite --process=diffusion --rollouts=1000

    f = w f_1 + (1 - w) f_2 at each denoising step,   w of 0, .1, ..., 1 with the most successes in a task

No training: each policy's prediction is exact for what it was "trained" on (rl_jax.envs.worlds.denoising), and each is
wrong in its own way. Tasks: `opposite` (the errors cancel at w = .5), `unequal` (at w = .75), `broken` (the second one
is noise: w = 1). A rollout succeeds if its action is within .4 of the target. The best weight is of the rollouts of
the search, and is reported on fresh ones.
"""

import argparse
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.worlds import denoising

TARGET, NEAR, STEPS = np.float32([0.5, -0.5]), 0.4, 20
WEIGHTS = np.linspace(0.0, 1.0, 11).astype(np.float32)
# What the two policies of a task were trained on: the offset of their action, and its deviation.
TASKS = {
    "opposite": (((0.6, 0.0), 0.15), ((-0.6, 0.0), 0.15)),
    "unequal": (((0.0, 0.2), 0.15), ((0.0, -0.6), 0.15)),
    "broken": (((0.0, 0.0), 0.15), ((1.0, 1.0), 1.0)),
}


class Found(NamedTuple):
    """A task's result: success rates of the search by weight [11], the best weight, and its rate on fresh rollouts."""

    rates: np.ndarray
    best: float
    fresh: float


def search(task: str, *, process: str, rollouts: int, seed: int) -> Found:
    """Success rates over the grid of weights, all in one program, and of the best one again.

    Args:
      task: one of TASKS.
      process: "flow" or "diffusion".
      rollouts: per weight.
      seed: of the rollouts.
    """
    first, second = (
        denoising.Mixture((TARGET + np.float32(offset))[None], deviation) for offset, deviation in TASKS[task]
    )
    schedule = denoising.schedule_of(process, STEPS, 0.7)

    def rate(weight: jax.Array, key: jax.Array) -> jax.Array:
        sample = functools.partial(denoising.sample_composed, process=process, schedule=schedule, count=rollouts)
        away = jnp.linalg.norm(sample(first, second, weight, key) - TARGET[None], axis=-1)
        return jnp.mean((away < NEAR).astype(jnp.float32))

    rates_of = jax.jit(jax.vmap(rate, in_axes=(0, None)))
    search_key, fresh_key = jax.random.split(jax.random.key(seed))
    rates = np.asarray(rates_of(WEIGHTS, search_key))
    best = int(np.argmax(rates))
    return Found(rates, float(WEIGHTS[best]), float(rates_of(WEIGHTS, fresh_key)[best]))


def table(found: dict[str, Found]) -> str:
    """A Markdown table of the tasks."""
    lines = ["| task | first alone | second alone | best w | composed |", "|---|---|---|---|---|"]
    for task, x in found.items():
        lines.append(f"| {task} | {x.rates[-1]:.3f} | {x.rates[0]:.3f} | {x.best:.1f} | {x.fresh:.3f} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    """Prints the table of the tasks on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; none is all")
    parser.add_argument("--process", choices=denoising.PROCESSES, default="flow")
    parser.add_argument("--rollouts", type=int, default=500, help="per weight of the search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    unknown = sorted(set(options.tasks) - set(TASKS))
    if unknown or options.rollouts < 1:
        parser.error(
            f"tasks {unknown} are not in {', '.join(TASKS)}"
            if unknown
            else f"--rollouts={options.rollouts} must be 1 or more"
        )
    settings = dict(process=options.process, rollouts=options.rollouts, seed=options.seed)
    print(table({task: search(task, **settings) for task in options.tasks or TASKS}))


if __name__ == "__main__":
    main()
