"""Novelty search, SERENE, TAXONS, STAX and evolution in a maze whose reward is behind two walls (2203.01027).

    python -m experiments.tools.serene --seeds=5 --budget=12000
    python -m experiments.tools.serene --search=stax --seeds=1

TAXONS and STAX are not told where an episode ended: they have a picture of it, and compare an autoencoder's codes. A
table of what each search has found with the same number of episodes: the share of seeds that were paid at all, the
best reward, and the share of a 10 x 10 raster of final places that the archive and the last population cover.
Measured with 8,000 episodes, means of two seeds: evolution has a best reward of .08 and covers .28, novelty .42 and
.58, SERENE .85 and .56, TAXONS .32 and .57, STAX .34 and .60.
"""

import argparse
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from rl_jax.control import quality_diversity, taxons
from rl_jax.envs import protocol
from rl_jax.envs.worlds import maze
from rl_jax.models.agents import features

SEARCHES = {
    "evolution": dict(by="reward", emitters=False),
    "novelty": dict(by="novelty", emitters=False),
    "serene": dict(by="novelty", emitters=True),
}
LEARNED = {"taxons": dict(emitters=False), "stax": dict(emitters=True)}
NUMBERS = quality_diversity.Numbers(population=25, sigma=0.3, chunk=500, reach=20.0, patience=30)


def make_evaluate(env: protocol.Environment, *, hidden: tuple[int, ...] = (8,), scale: float = 10.0):
    """(evaluate, P): whole episodes of policies tanh(net(s)); what one did is its last observation.

    Args:
      env: of which every episode has `env.limit` steps and nothing is random.
      hidden: widths of the policy.
      scale: of the observations' distance from .5, as params stay small.
    """
    inputs, outputs = env.observation_space.shape[0], len(env.action_space.low)
    net = features.make_net(inputs, outputs, hidden=hidden)
    first, unravel = ravel_pytree(net.init(jax.random.key(0)))
    return _compiled(env, net, unravel, scale), len(first)


def _compiled(env, net, unravel: Callable, scale: float) -> Callable:
    def episode(genome: jax.Array):
        params = unravel(genome)
        start, seen = env.reset(jax.random.key(0))

        def step(carry):
            state, seen, total, _ = carry
            action = jnp.tanh(net.apply(params, scale * (seen[None] - 0.5))[0])
            state, now = env.step(jax.random.key(0), state, action)
            return state, now.observation, total + now.reward, now.terminated | now.truncated

        first = (start, seen, jnp.float32(0.0), jnp.bool_(False))
        _, last, total, _ = jax.lax.while_loop(lambda carry: ~carry[3], step, first)
        return last, total

    return jax.jit(jax.vmap(episode))


def coverage(search: quality_diversity.Search, cells: int = 10) -> float:
    """Share of a raster of the unit square in which an archived or living policy ended."""
    places = np.concatenate([search.archive, search.population.descriptors])
    return len({tuple(cell) for cell in np.minimum((places * cells).astype(int), cells - 1)}) / cells**2


def make_autoencoder(cells: int = 12) -> taxons.Autoencoder:
    """Of pictures of final places, cells x cells pixels."""
    view = functools.partial(maze.picture, cells=cells)
    return taxons.make_autoencoder(2, make_net=features.make_net, view=view, view_size=cells**2)


def make_searches(evaluate: Callable, size: int, budget: int) -> dict[str, Callable]:
    """Name -> (seed -> Search). Arguments as for quality_diversity.run."""
    fields = dict(budget=budget, numbers=NUMBERS)
    autoencoder = make_autoencoder()

    def known(options: dict, seed: int) -> quality_diversity.Search:
        return quality_diversity.run(evaluate, size, seed=seed, **fields, **options)

    def learned(options: dict, seed: int) -> quality_diversity.Search:
        return taxons.run(evaluate, size, autoencoder, seed=seed, **fields, **options)[0]

    found = {name: functools.partial(known, options) for name, options in SEARCHES.items()}
    return found | {name: functools.partial(learned, options) for name, options in LEARNED.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--search", choices=[*SEARCHES, *LEARNED], help="only this one")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=12_000, help="episodes of each search")
    options = parser.parse_args()
    if min(options.seeds, options.budget) < 1:
        parser.error(f"--seeds={options.seeds} and --budget={options.budget} must be 1 or more")
    evaluate, size = make_evaluate(maze.environment())
    print("| search | paid | best reward | covered | episodes of emitters |\n|---|---|---|---|---|")
    searches = make_searches(evaluate, size, options.budget)
    for name in [options.search] if options.search else searches:
        found = [searches[name](seed) for seed in range(options.seeds)]
        best = [max(search.rewarded.rewards, default=0.0) for search in found]
        columns = np.mean(np.array(best) > 0), np.mean(best), np.mean([coverage(search) for search in found])
        spent = np.mean([search.exploited for search in found])
        print(f"| {name} | {columns[0]:.2f} | {columns[1]:.3f} | {columns[2]:.2f} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
