"""Asynchronous GRPO with bounded staleness: rows are sampled while the policy is trained.

    python -m experiments.grpo_async --config=configs/grpo_async.py --workdir=runs/async

Each step: groups that have finished -> rewards -> advantages -> old and reference log-probs -> updates, and beside
them decode calls for the groups to come. config.flow says how far sampling may run ahead (eta), how old a row may get
(age), what becomes of rows in flight when new weights arrive, whether groups are trained on as they end (streaming),
and whether rows are judged and scored as they end (columns). With eta=0 a run is that of experiments.grpo, bit for bit.
The same command resumes an interrupted run, with every row that was begun. --role: the same run as processes, between
which groups move, or with --units rows as they end.
"""

import contextlib
import pathlib

import jax
from absl import flags as absl_flags

from experiments.parts import async_check, async_units, flags, logged, policy, processes, references, stops, trackers
from experiments.parts.async_beats import Beat, Ended
from experiments.parts.async_collect import Scoring
from experiments.parts.async_columns import make_collector
from experiments.parts.async_links import NONE, ROLES, Secrets, make_link, room_of
from experiments.parts.async_serving import serve
from experiments.parts.async_shares import names_of, share_of, shares_clock
from experiments.parts.async_stream import Part, make_learner
from experiments.parts.async_units import make_flow_of
from experiments.parts.judging import make_evaluate
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import make_policy_batch
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.setup import fix_date, make_setup
from experiments.parts.warm_start import warm_start
from rl_jax.flow import Link
from rl_jax.tasks import Task
from rl_jax.training.checkpoint import StopSignal

absl_flags.DEFINE_string(
    "replay", None, "workdir of a run whose schedule.jsonl decides, in place of the clock", allow_override=True
)
absl_flags.DEFINE_enum("role", "both", (*ROLES, "unit"), "one process, or one of several", allow_override=True)
absl_flags.DEFINE_integer("sampler", 0, "with --role=sampler: which one of config.flow.samplers, from 0")
absl_flags.DEFINE_integer("unit", 0, "with --role=unit: which one of --units, from 0")
absl_flags.DEFINE_string("units", "", "grpc://HOST:PORT,...: storage units of rows; with flow.columns")
absl_flags.DEFINE_string(
    "link", "", "a folder (default: in workdir), grpc://HOST:PORT or grpc+tls://HOST:PORT", allow_override=True
)
absl_flags.DEFINE_string(
    "link_secrets",
    None,
    "folder of token, cert.pem and (trainer) key.pem",
    allow_override=True,
)


def run(config, workdir: pathlib.Path, *, task: Task | None = None, replay=None, link=None, units=None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    loop, setup = Run(async_check.checked(config), workdir, "grpo_async", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy.check_sizes(setup)
    loop.record(setup)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    move, ref_params = references.start(setup, params)
    (programs, state), (source, prompts) = policy.build(setup, params), policy.own_prompts(setup)
    rewards, flow = loop.carry(make_rewards(setup)), make_flow_of(setup, prompts, loop, replay, link, units)
    items = loop.restore(checkpoint_items(state, reference=ref_params), flow)
    state, ref_params = state_of(items), items.get("reference")
    with loop, rewards, flow.begun(loop.step, state.params):
        collect = make_collector(setup, async_check.check_judges(rewards), packer, flow)
        evaluate, learn = make_evaluate(setup, rewards), make_learner(loop, setup, programs, packer, collect, state)
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            _, credit_key, order_key = jax.random.split(processes.step_key(state, step.number), 3)
            scoring = Scoring(config, programs, state.params, ref_params, flow.looks(step))
            for collected, rows, scores, reference in collect(step.clock, scoring):  # flow.streaming: as groups end
                state = trackers.see(estimators, state, collected, step.number)
                made = make_policy_batch(programs.assign, collected, scores, reference, credit_key, state.trackers)
                learn.add(state.params, step.clock, Part(collected, rows, scores, *made))
            collected, scores, batch, earned = learn.whole()
            state, updates, metrics = flow.beside(learn, state, batch, order_key)
            step.clock.lap("train_s")
            metrics |= logged.step_metrics(config, collected, source, updates) | collect.gaps(collected, scores)
            state, metrics = trackers.observe_step(setup.mesh, estimators, state, collected, metrics, earned)
            if step.evaluates:
                metrics |= logged.look(loop, step, setup, evaluate, state.params, *learn.views(state.params))
            ref_params = move(ref_params, state.params, step.number)
            flow.publish(step.number, state.params)
            step.end(checkpoint_items(state, reference=ref_params), metrics, flow.timings(step, collected, learn))
    loop.finish(setup, state.params)


def run_sampler(
    config, workdir: pathlib.Path, link: Link, *, task: Task | None = None, index: int = 0, stop=None, units=None
) -> bool:
    """The other process: samples what `run` trains on, or a share, until a StopSignal. Returns whether that was all."""
    setup, share = make_setup(async_check.checked(config), task), share_of(config, index)
    fix_date(setup, workdir)
    folder = workdir / names_of(share.count)[index]
    side = async_units.make_sampler(setup, units, link, folder, share, stop)
    flow = side.make_flow(policy.own_prompts(setup)[1])
    with contextlib.closing(side), Beat(link, folder.name), contextlib.suppress(Ended):
        version = side.restore(flow)
        with flow.begun(version, side.weights(version)):
            side.save(flow)
            for step in range(version + 1, config.train.steps + 1):
                for groups in flow.parts(1):
                    side.put(flow, groups)
                if step == config.train.steps:
                    if not shares_clock(config):  # others may have ended, and the trainer
                        flow.beside(lambda: None)  # as one process, for its log
                    return True
                if side.stopping():
                    break
                flow.publish(step, flow.beside(side.weights, step))
                side.save(flow)
    return False


def main(config, workdir: pathlib.Path) -> None:
    """`run`, or `run_sampler`, with the flags of this program."""
    given = absl_flags.FLAGS
    if given.replay and given.role != "both":
        raise ValueError(f"--replay={given.replay}: one process repeats a run, and so one of two; leave out --role")
    if given.sampler and given.role != "sampler":
        raise ValueError(f"--sampler={given.sampler} is for --role=sampler, and this is --role={given.role}")
    if given.role == "unit":
        place = (workdir, given.units, given.unit, given.link_secrets)
        serve(*place, StopSignal(), steps=config.train.steps) or stops.note()
        return
    units = async_units.make_units(given.role, workdir, given.units, given.link_secrets)
    has_secrets = units is None or given.link.startswith("grpc")  # a link that is a folder has none
    secrets = Secrets.read(given.link_secrets) if has_secrets else NONE
    link = make_link(given.role, workdir, given.link, secrets, max_waiting=room_of(config))
    if given.role == "sampler":
        run_sampler(config, workdir, link, index=given.sampler, stop=StopSignal(), units=units) or stops.note()
    else:
        run(config, workdir, replay=pathlib.Path(given.replay) if given.replay else None, link=link, units=units)


if __name__ == "__main__":
    flags.main(main)
