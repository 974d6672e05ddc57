"""Actors, policy worker and trainer at the same time, for environments that live on the host; by V-trace (SRL).

    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:shuttle
    python -m experiments.control.asynchronous --config=configs/control/asynchronous.py:cartpole \
        --config.actors.count=4 --config.sample.num_envs=32 --config.actors.kind=process

Actors step environments in threads or processes; the policy acts for all of them in one forward while others are
stepped (a ring), or each actor has it (config.actors.inference). While a batch is trained on, the next is sampled with
older weights, which V-trace corrects. With config.flow.schedule=counted the same config gives the same bits, whatever
the number of actors, threads or processes, and the same command resumes an interrupted run bit for bit. --role: the
same run as a trainer, policy workers and actors, on one machine or several.
"""

import functools
import pathlib

import jax
from absl import flags as absl_flags

from experiments.parts import control_actors, control_learner, control_roles, flags, stops
from experiments.parts.async_links import NONE, Secrets, make_link, make_server
from experiments.parts.control_loop import finish
from experiments.parts.run import Run
from rl_jax.flow import Link
from rl_jax.flow.requests import RequestServer, answer_requests
from rl_jax.rollout.actors.workers import answered_frame
from rl_jax.training.checkpoint import StopSignal

ROLES = ("both", "trainer", "policy", "actor")
absl_flags.DEFINE_string(
    "replay", None, "workdir of a run whose schedule.jsonl decides, in place of the clock", allow_override=True
)
absl_flags.DEFINE_enum(
    "role", "both", ROLES, "one process, or one of several with the same config", allow_override=True
)
absl_flags.DEFINE_integer("policy", 0, "with --role=policy: which one of config.actors.policies, from 0")
absl_flags.DEFINE_integer("actor", 0, "with --role=actor: which one of config.actors.count, from 0")
absl_flags.DEFINE_string(
    "link",
    "",
    "a folder (default: in workdir), grpc://HOST:PORT or grpc+tls://HOST:PORT; an actor's is its policy worker's",
    allow_override=True,
)
absl_flags.DEFINE_string(
    "listen", "", "with --role=policy: grpc://HOST:PORT for its actors; without it, it starts them"
)
absl_flags.DEFINE_string(
    "link_secrets", None, "folder of token, cert.pem, key.pem, listen_cert.pem, listen_key.pem", allow_override=True
)


def run(config, workdir: pathlib.Path, *, link: Link | None = None, replay: pathlib.Path | None = None) -> None:
    """Trains in `workdir`. Raises ValueError if the config is for another program.

    Args:
      config: of this program.
      workdir: of the run.
      link: the trainer's side, if policy workers are other processes.
      replay: folder of a run whose schedule is followed.
    """
    learner = control_learner.make_learner(checked(config))
    loop = Run(config, workdir, config.program, config.train, total=learner.total)
    source = make_source(config, workdir, learner, link, replay, loop.stop)
    feed = control_learner.Feed(source, config.sample.num_envs)
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


def make_source(config, workdir: pathlib.Path, learner, link: Link | None, replay: pathlib.Path | None, stop):
    """Where segments come from: actors of this process, or policy workers behind a link."""
    if link is not None:
        return control_roles.LinkedSegments(config, link, workdir / "checkpoints", stop)
    recorded = None
    if replay is not None:
        recorded = control_actors.read_schedule(replay)
        control_roles.check_replay(config, replay)
    return control_actors.OwnSegments(config, workdir, learner.act, learner.total, recorded)


def run_policy(
    config,
    workdir: pathlib.Path,
    link: Link,
    *,
    index: int = 0,
    server: RequestServer | None = None,
    stop: StopSignal | None = None,
) -> bool:
    """A policy worker: acts for actors with the trainer's weights. Returns whether it has made all segments.

    Args:
      config: of this program.
      workdir: of the run; its own folder is there.
      link: its side of the link to the trainer.
      index: which one, from 0.
      server: where its actors come to; None starts them here.
      stop: ends it after the segment that it is at.
    """
    agent = control_actors.make_agent(checked(config))[0]
    act, total = control_actors.make_forward(config, agent), control_learner.num_updates(config)
    options = dict(index=index, total=total, server=server, stop=stop)
    folder = workdir / control_roles.name_of(index)
    with control_roles.PolicyWorker(config, link, folder, act, **options) as worker:
        for number in worker.segments():
            worker.put(worker.make(number))
    return worker.complete


def run_actor(config, address: str, secrets: Secrets, *, index: int = 0, stop: StopSignal | None = None) -> bool:
    """An actor: steps environments for the policy worker at `address`. Returns whether that has made all segments.

    Once `stop` is received it ends when the policy worker does, which may need it to end its segment.
    """
    handle = functools.partial(answered_frame, control_actors.make_stage(checked(config)).handle)
    return answer_requests(
        address,
        handle,
        token=secrets.token,
        worker=str(index),
        words=control_roles.shared(config),
        patience_s=config.flow.timeout_s,
        tls_root=secrets.certificate,
        stopping=lambda: stop is not None and stop.received,
    )


def checked(config):
    """The config itself. Raises ValueError if it is for another program."""
    if config.program != "control.asynchronous":
        raise ValueError(f"this config is for python -m experiments.{config.program}")
    return config


def main(config, workdir: pathlib.Path) -> None:
    """`run`, `run_policy` or `run_actor`, with the flags of this program."""
    given = absl_flags.FLAGS
    control_roles.check_flags(checked(config), given)
    known, over_network = Secrets.read(given.link_secrets), given.link.startswith("grpc")
    if given.role == "actor":
        run_actor(config, given.link, known, index=given.actor, stop=StopSignal()) or stops.note()
        return
    if given.role == "policy":
        check = functools.partial(control_roles.differences, control_roles.shared(config))
        own = Secrets.read(given.link_secrets, own="listen_")
        server = make_server(given.listen, own, check) if given.listen else None
        link = make_link("sampler", workdir, given.link, known if over_network or not server else NONE)
        run_policy(config, workdir, link, index=given.policy, server=server, stop=StopSignal()) or stops.note()
        return
    link = make_link(given.role, workdir, given.link, known, keep=control_roles.keep_of(config))
    run(config, workdir, link=link, replay=pathlib.Path(given.replay) if given.replay else None)


if __name__ == "__main__":
    flags.main(main)
