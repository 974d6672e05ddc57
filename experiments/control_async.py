"""Actors, policy worker and trainer at the same time, for environments that live on the host; by V-trace (SRL).

    python -m experiments.control_async --config=configs/control/asynchronous.py:shuttle
    python -m experiments.control_async --config=configs/control/asynchronous.py:cartpole --config.actors.count=4 \
        --config.sample.num_envs=32 --config.actors.kind=process

Actors step environments in threads or processes; the policy acts for all of them in one forward while others are
stepped (a ring), or each actor has it (config.actors.inference). While a batch is trained on, the next is sampled with
older weights, which V-trace corrects. With config.flow.schedule=counted the same config gives the same bits, whatever
the number of actors, threads or processes, and the same command resumes an interrupted run bit for bit.
"""

import pathlib

import jax

from experiments.parts import control_actors, control_learner, flags
from experiments.parts.control_loop import finish
from experiments.parts.run import Run


def run(config, workdir: pathlib.Path) -> None:
    """Trains in `workdir`. Raises ValueError if the config is for another program."""
    if config.program != "control_async":
        raise ValueError(f"this config is for python -m experiments.{config.program}")
    learner = control_learner.make_learner(config)
    loop = Run(config, workdir, config.program, config.train, total=learner.total)
    feed = control_learner.Feed(config, control_actors.make_actors(config, workdir, learner.act), learner.total)
    evaluate = control_learner.make_evaluate(config, learner.act)
    loop.record(jax.devices()[:1])
    state = learner.init()
    items = loop.restore({"state": state, "versions": feed.first_versions(state.params)}, feed)
    (state, versions), metrics = (items["state"], items["versions"]), loop.host.get("metrics", {})
    with loop, feed.begun(loop.step, versions):
        loop.begin(lambda: (evaluate(state.params, 0), []))
        for step in loop.steps():
            segment = feed.take()
            step.clock.lap("sample_s")
            state, measured = learner.update(state, segment.rows)
            versions = feed.publish(step.number, versions, state.params)
            step.clock.lap("train_s", state)
            loop.check_finite(state, segment.rows)
            metrics = feed.measure(segment) | {name: float(x) for name, x in jax.device_get(measured).items()}
            if step.evaluates:
                metrics |= evaluate(state.params, step.number)
            metrics["env_steps"] = step.number * segment.rows.rewards.size
            feed.write(loop.log, segment)
            items = {"state": state, "versions": versions}
            step.end(items, metrics, step.clock.totals(0), host={"metrics": metrics})
    finish(loop, learner.unravel(state.params), {name: [x] for name, x in metrics.items()})


if __name__ == "__main__":
    flags.main(run)
