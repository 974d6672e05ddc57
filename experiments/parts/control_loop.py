"""The loop of all programs in environments. make_run gives one run as pure functions."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from experiments.parts.budgets import samples_per_step
from experiments.parts.control_auxiliary import with_auxiliary
from experiments.parts.control_objectives import one_policy
from experiments.parts.control_runs import make_program, make_run, row_of, with_fresh_envs
from experiments.parts.control_setup import NETWORKS, load_env, make_algorithm, make_network, num_updates, settings_of
from experiments.parts.episodes import EPISODES, episode_row
from experiments.parts.processes import to_host
from experiments.parts.run import Run
from rl_jax import control, envs
from rl_jax.rollout.envs.episode import record_episode
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.training import checkpoint, distributed
from rl_jax.training.step import TrainState


def make_recorder(config) -> Callable:
    """Makes a function that records an episode of the first run's current policy.

    Args:
      config: of the run.

    Returns:
      recorded(state of all runs, updates) -> rows of episodes.jsonl: one, or none if eval.num_episodes is 0.
    """
    if not config.eval.num_episodes:
        return lambda state, step: []
    env = load_env(config, 1, fresh_starts=0)
    algorithm = make_algorithm(settings_of(config))._replace(minibatches=1)
    agent = make_network(config, env, algorithm.objective.num_outputs())
    agent = with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, env).agent
    keywords = NETWORKS[config.network.kind][1]
    env = envs.scalarized(env) if env.objectives else env
    policy_of = control.make_update(agent, env, algorithm, optax.identity(), num_steps=1, **keywords)[2]

    def record(train: TrainState):
        state = control.ControlState(one_policy(train), (), ())
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 2), train.step)
        memory = agent.initial_state(env.num_envs)
        episode = dict(max_steps=config.eval.max_steps, greedy=config.eval.greedy, memory=memory)
        return record_episode(policy_of(state), agent.distribution, env, key, **episode)

    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None  # compiles faster
    compiled = jax.jit(record, compiler_options=options)
    first = (0, 0) if config.spread == "pmap" else 0

    def recorded(state: control.ControlState, step: int) -> list[dict[str, Any]]:
        episode = compiled(to_host(jax.tree.map(lambda x: x[first], state.train)))
        return [episode_row(jax.device_get(episode), step=step, env=config.env.name)]

    return recorded


def check_finite(loop: Run, train: TrainState, limit: int) -> None:
    """Stops a program whose runs all diverge; one that diverges does not stop the others.

    Args:
      loop: knows the step.
      train: TrainState of all runs.
      limit: gradients in a row.

    Raises:
      FloatingPointError: if, in every run, the last `limit` gradients were not finite.
    """
    stuck = int(np.min(jax.device_get(to_host(train.skipped_in_a_row))))
    if stuck >= limit:
        raise FloatingPointError(
            f"{stuck} gradients in a row were not finite in any run, up to step {loop.step}, or would have made its "
            "params so"
        )


def train(config, workdir: pathlib.Path, make_run: Callable = make_run, record: Callable = make_recorder) -> None:
    """Compile, restore the latest checkpoint if any, loop, save.

    Args:
      config: of the program.
      workdir: where the run is written.
      make_run: makes one run; the default is PPO's (control_runs.make_run).
      record: (config) -> recorder of episodes.
    """
    loop = Run(config, workdir, config.program, total=num_updates(config), stride=config.log_every, eval_every=1)
    program, recorded = make_program(config, make_run), record(config)
    loop.record(jax.devices())
    if (steps := loop.total * samples_per_step(config)) > config.train.total_steps:
        loop.say(
            f"train.total_steps={config.train.total_steps:,} becomes {steps:,}: whole calls of log_every="
            f"{config.log_every} updates, {samples_per_step(config):,} steps each"
        )
    fresh = program.init()
    state = loop.restore({"state": fresh}, in_place=program.pure)["state"]
    if loop.step and not program.pure:
        # Envs on the host begin anew, since the saved observations are not theirs, and not as at step 0.
        state = with_fresh_envs(state, program.init(loop.step))
    del fresh
    metrics, env_steps = loop.host.get("metrics", {}), samples_per_step(config)
    with loop:
        if loop.step == 0:
            loop.log.rows(EPISODES, recorded(state, 0))
        if not loop.done:
            program.compile(loop.ahead, state)
        for step in loop.steps():
            state, measured = program.advance(state)
            measured = jax.device_get(to_host(measured))
            step.clock.lap("train_s")
            check_finite(loop, state.train, config.max_nonfinite_in_a_row)
            metrics = {name: x.tolist() for name, x in measured.items()}
            seconds = step.clock.totals(0)["train_s"]
            total = config.log_every * env_steps * len(measured["loss"])
            row = row_of(measured) | {"env_steps": step.number * env_steps}  # of a single run
            if config.runs:
                loop.log.rows("runs", [metrics | {"step": step.number}])
            if step.saves:
                loop.log.rows(EPISODES, recorded(state, step.number))
            timings = {"train_s": seconds, "env_steps_per_s": total / seconds}
            step.end({"state": state}, row, timings, host={"metrics": metrics})
    finish(loop, program.finals(state), metrics)


def finish(loop: Run, params: Any, metrics: dict[str, list[float]]) -> None:
    """Writes final.json if the run is complete, and prints each run's return."""
    if not loop.done:
        return loop.close()
    # On every process: the checksum gathers the params of all.
    final = {"step": loop.step, "params_sha256": checkpoint.checksum(params), "metrics": metrics}
    if not distributed.is_main():
        return
    with disk.named(loop.workdir):
        write_atomically(loop.workdir / "final.json", (json.dumps(final) + "\n").encode())
    shown = metrics["eval/return" if "eval/return" in metrics else "episode/return"]
    print(f"{len(shown)} runs, mean return of each: {' '.join(f'{x:.1f}' for x in shown)}")
    loop.close()
