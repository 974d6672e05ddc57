"""The study of a front of policies: what its stages add to the hypervolume."""

from collections.abc import Mapping, Sequence

import jax

from configs.control import objectives as configs
from experiments.parts import control_runs, control_setup
from experiments.studies.base import Outcome, per_seed
from rl_jax.envs.worlds import treasure
from rl_jax.stats import pareto


def front_stages(
    seeds: Sequence[int], *, arms: Mapping[str, str], updates: int, first: int, length: int, share: float
) -> Outcome:
    """Trains the fronts of configs/control/objectives.py on the bandit of two aims, whose front is known.

    Metrics: hypervolume above (0, 0); missing, what it lacks of the exact front's; utility, the expected one. Each
    policy makes the same number of updates of as many episodes. stage1 and c_morl train a policy for each weight of a
    grid, and the front is that of their archive; conditioned trains one, and its front is that of eval's weights.
    Source: arXiv 2410.02236.

    Args:
      seeds: of the runs.
      arms: name -> the config's method.
      updates: of each policy.
      first: of them in stage 1.
      length: of a round of stage 2.
      share: beta.
    """
    best, values = pareto.hypervolume(treasure.two_aims_front(), (0.0, 0.0)), {}
    for arm, method in arms.items():
        config = configs.get_config(f"two_aims,{method}")
        config.update(log_every=updates, group=len(seeds), runs=tuple((seed, ()) for seed in seeds))
        config.checkpoint.every = updates
        config.train.total_steps = updates * config.sample.num_envs * config.sample.num_steps
        if method in ("stage1", "c_morl"):
            config.algorithm.updater.update(first=first, length=length, share=share)
        program = control_runs.make_program(config)
        state = program.init()
        for _ in range(control_setup.num_updates(config) // updates):
            state, metrics = program.advance(state)
        found = jax.device_get(metrics)
        volume = found["eval/hypervolume"]
        values[arm] = per_seed(
            {"hypervolume": volume, "missing": best - volume, "utility": found["eval/expected_utility"]}
        )
    return Outcome(values)
