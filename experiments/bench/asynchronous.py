"""How much faster a run of two processes is than a synchronous one, if decode calls and train steps take a fixed time.

    python -m experiments.bench.asynchronous --seeds=5                                 # the paced engine
    python -m experiments.bench.asynchronous --token_s=0 --train_s=0 --tool_s=.5       # unpaced, rewards that wait

The program is experiments.grpo_async itself: admission, engine, link, trainer and sampler as two processes, a model of
a few thousand weights. Three things are put in their places. Rows are as long as drawn: lognormal, cut at --longest
means. A decode call takes --token_s for each token that it adds to the rows, and the updates of a step take --train_s,
as on an accelerator: what the work itself takes is a part of that time, and the rest is slept. Half of the devices
sample, half train. The synchronous run is the same program with eta=0 in one process, in which all devices do both in
turn: both take half as long.

`speed` is the synchronous run's time per batch over the asynchronous one's, after the first batches; `kept` the mean
length of what was trained on, over that of all rows up to the newest group that was trained on; `age` the oldest row in
versions; `late` the share of paced calls whose own work took longer than their time. One line of JSON a run, the last
line is a summary: mean, least and largest over the seeds.
"""

import argparse
import contextlib
import functools
import json
import pathlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

from configs import grpo_async as async_config
from experiments import grpo_async
from experiments.parts import async_flow, async_links, async_stream
from experiments.parts.async_flow import LOG
from experiments.studies.asynchrony import draw_lengths, kept_length
from experiments.tools.kills import Fork
from rl_jax import tasks
from rl_jax.runs.logging import read_jsonl, write_atomically
from rl_jax.tokenizers import CharTokenizer
from rl_jax.training import compilation

WARM_UP = 5  # batches that are not measured: the first ones find nothing begun
LIMIT_S = 1800.0  # of a run
POLL_S = 0.1  # between two looks at its processes
FIGURES = ("speed", "kept", "age", "late")


class Pace:
    """Makes calls last a given time, and counts them.

    Attributes:
      starts: seconds at the begin of each, of time.monotonic.
      ends: at their ends.
      cpu_s: processor seconds of this process at the ends.
      late: those whose own work took longer.
      own_s: seconds of the work itself.
    """

    def __init__(self):
        self.starts, self.ends, self.cpu_s, self.late, self.own_s = [], [], [], 0, 0.0

    def hold(self, begin: float, least_s: float) -> None:
        """Ends a call that began at `begin` after at least so many seconds."""
        own = time.monotonic() - begin
        self.starts.append(begin)
        self.own_s, self.late = self.own_s + own, self.late + (own > least_s)
        time.sleep(max(least_s - own, 0.0))
        self.ends.append(time.monotonic())
        self.cpu_s.append(time.process_time())


class Counted:
    """A decoding program that counts what it adds: `tokens`, of the row that gets the most in each call."""

    def __init__(self, program):
        self._program, self.tokens = program, 0

    def __call__(self, *arguments):
        state, drawn, counts = self._program(*arguments)
        self.tokens += int(np.max(counts))
        return state, drawn, counts

    def __getattr__(self, name: str):
        return getattr(self._program, name)


class PacedEngine:
    """A continuous.Engine whose rows have the lengths that were drawn, and whose steps take their time.

    Args:
      engine: samples.
      lengths: int [N, G], of the rows of group n; used again from the start if there are more groups.
      token_s: seconds for each token that a step adds to the rows.
      pace: of its steps.
    """

    def __init__(self, engine, lengths: np.ndarray, token_s: float, pace: Pace):
        self._engine, self._lengths, self._token_s, self._pace = engine, lengths.reshape(-1), token_s, pace
        engine.programs.decode_steps = self._decode = Counted(engine.programs.decode_steps)

    def submit(self, requests, key: jax.Array) -> None:
        """As the engine's, but each row gets its own length."""
        longest = [int(self._lengths[request.index % len(self._lengths)]) for request in requests]
        self._engine.submit([r._replace(max_tokens=n) for r, n in zip(requests, longest, strict=True)], key)

    def step(self, params, version: int = 0) -> list:
        """As the engine's."""
        begin, before = time.monotonic(), self._decode.tokens
        done = self._engine.step(params, version)
        self._pace.hold(begin, self._token_s * (self._decode.tokens - before))
        return done

    def __getattr__(self, name: str):
        return getattr(self._engine, name)


class _Endless(CharTokenizer):
    """A tokenizer without an end: rows end at their length."""

    eos_ids = ()


def reward(prompt: str, completion: str, info: dict, *, wait_s: float) -> dict:
    """The share of sevens, after a wait as for a tool."""
    time.sleep(wait_s)
    return {"reward": completion.count("7") / max(len(completion), 1)}


def config_of(work: dict[str, Any], folder: pathlib.Path):
    """The config of a run. work: as `make_work` gives it. folder: for the prepared data."""
    config = async_config.get_config("smoke")
    config.model.update(embed_dim=16, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=16, mlp_dim=16)
    config.task.update(num_train=1_000, num_test=20, data_dir=str(folder / "data"))
    config.sample.update(prompts_per_step=work["prompts"], group_size=work["group_size"])
    config.rollout.update(completion_length=int(work["mean"] * work["longest"]), temperature=1.0, top_k=0, top_p=1.0)
    config.rollout.engine.slots = work["prompts"] * work["group_size"]
    config.flow.update(decode_steps=work["decode_steps"], schedule=work["schedule"], **work["flow"])
    if work["token_s"]:
        config.flow.train_ticks = max(round(work["train_s"] / work["token_s"] / work["decode_steps"]), 1)
    config.train.update(steps=work["steps"], epochs=1, minibatches=1, micro_batches=1)
    config.algorithm.update(mask_truncated=False)
    config.sft.steps = 0
    config.eval.update(every=0, num_prompts=4, batch_size=4)
    config.checkpoint.every = work["steps"]
    config.reward.num_workers = 0
    config.log.update(progress=False, tensorboard=False)
    return config.lock()


def task_of(config, wait_s: float) -> tasks.Task:
    """Sums whose answers never end by themselves. wait_s: of each row's reward."""
    task = tasks.load(**config.task.to_dict())
    return task._replace(
        tokenizer=_Endless(task.tokenizer.alphabet), reward_fn=reward, reward_kwargs={"wait_s": wait_s}
    )


def run_role(config, task: tasks.Task, role: str, workdir: pathlib.Path, lengths, *, token_s=0.0, train_s=0.0) -> None:
    """Runs one role of a run to its end, paced, and writes what was counted.

    Args:
      config: of the run.
      task: of the run.
      role: "both", "trainer" or "sampler".
      workdir: of the run.
      lengths: int [N, G], of the rows of group n.
      token_s: see PacedEngine.
      train_s: seconds of a step's updates.
    """
    decode, train, make_engine, update = Pace(), Pace(), async_flow.make_engine, async_stream.update

    def paced_engine(*arguments, **options):
        return PacedEngine(make_engine(*arguments, **options), lengths, token_s, decode)

    def paced_update(*arguments):
        begin = time.monotonic()
        result = jax.block_until_ready(update(*arguments))
        train.hold(begin, train_s)
        return result

    link = async_links.make_link(role, workdir, "")
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(async_flow, "make_engine", paced_engine))
        stack.enter_context(mock.patch.object(async_stream, "update", paced_update))
        if role == "sampler":
            grpo_async.run_sampler(config, workdir, link, task=task)
        else:
            grpo_async.run(config, workdir, task=task, link=link)
    counted = {name: vars(pace) for name, pace in (("decode", decode), ("train", train)) if pace.starts}
    write_atomically(workdir / f"pace_{role}.json", json.dumps(counted).encode())


def roles_of(eta: int) -> tuple[str, ...]:
    """The processes of a run: one if it is synchronous, else two."""
    return ("trainer", "sampler") if eta else ("both",)


def together(roles: tuple[str, ...], workdir: pathlib.Path, run: Callable[[str], None]) -> float:
    """Runs the roles of a run as processes. Returns the processor seconds they took.

    Args:
      roles: of the run.
      workdir: of the run; made. What a process prints goes to ROLE.txt.
      run: called with a role, in its process.

    Raises:
      RuntimeError: if a process fails; the message has the end of what it printed.
      TimeoutError: if one is not done after LIMIT_S seconds.
    """
    workdir.mkdir(parents=True)
    before, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() + LIMIT_S
    left = {role: Fork(functools.partial(run, role), workdir / f"{role}.txt") for role in roles}
    started = list(left.values())
    try:
        while left:
            for role, process in list(left.items()):
                if process.poll():
                    said = (workdir / f"{role}.txt").read_text()[-3000:]
                    raise RuntimeError(f"the {role} ended with status {process.returncode}:\n{said}")
                if process.returncode == 0:
                    del left[role]
            if time.monotonic() > end:
                raise TimeoutError(f"{', '.join(left)} of {workdir} not done after {LIMIT_S} s")
            time.sleep(POLL_S)
    finally:
        for process in started:
            process.kill()
            process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def paces_of(workdir: pathlib.Path, roles: tuple[str, ...]) -> dict[str, dict]:
    """What the processes of a run have counted: "decode" and "train" -> the attributes of a Pace."""
    found: dict[str, dict] = {}
    for role in roles:
        found |= json.loads((workdir / f"pace_{role}.json").read_text())
    return found


def lengths_of(work: dict[str, Any]) -> np.ndarray:
    """Rows' lengths by group: int [N, G], enough for all groups that are ever let in."""
    groups = work["prompts"] * (work["steps"] + work["flow"]["eta"] + 1)
    sizes = {name: work[name] for name in ("group_size", "mean", "longest")}
    return draw_lengths(work["seed"], work["sigma"], groups, **sizes).astype(int)


def measure(work: dict[str, Any], folder: pathlib.Path, workdir: pathlib.Path) -> dict[str, float]:
    """Runs to the end, in one process (eta=0) or two, and what came of it.

    Args:
      work: as `make_work` gives it.
      folder: for the prepared data.
      workdir: of the run; made.

    Returns:
      batch_s (seconds per batch), kept, age, late, and the counts batches, version (of the last batch), tokens (per
      row, as trained), cpu_s (processor seconds of the run).

    Raises:
      RuntimeError: if a process fails.
      TimeoutError: if it does not end.
    """
    share = 1.0 if work["flow"]["eta"] else 0.5  # all devices do both in turn
    seconds = {name: share * work[name] for name in ("token_s", "train_s")}

    def run(role):
        config = config_of(work, folder)  # here, since what reads a task's files must not be forked
        task = task_of(config, work["tool_s"] / (work["prompts"] * work["group_size"]))
        run_role(config, task, role, workdir, lengths_of(work), **seconds)

    roles = roles_of(work["flow"]["eta"])
    cpu_s = together(roles, workdir, run)
    return figures(work, workdir, roles) | {"cpu_s": cpu_s}


def figures(work: dict[str, Any], workdir: pathlib.Path, roles: tuple[str, ...], warm_up: int = WARM_UP) -> dict:
    """What a finished run's files say. See `measure`. warm_up: first batches that are not timed."""
    paces = paces_of(workdir, roles)
    schedule = read_jsonl((workdir / "sampler" if len(roles) > 1 else workdir) / LOG)
    rows = [row for row in read_jsonl(workdir / "metrics.jsonl") if "completion_length" in row]
    lengths, taken = lengths_of(work), [number for row in schedule for number in row["groups"]]
    times = paces["train"]["starts"][warm_up:]
    calls = sum(len(pace["starts"]) for pace in paces.values())
    return {
        "batch_s": (times[-1] - times[0]) / (len(times) - 1),
        "kept": kept_length(taken, lengths),
        "age": max(row.get("lag/row_max", 0.0) for row in rows),
        "late": sum(pace["late"] for pace in paces.values()) / calls,
        "batches": len(schedule),
        "version": schedule[-1]["step"] - 1,
        "tokens": statistics.fmean(row["completion_length"] for row in rows),
    }


def make_work(options: argparse.Namespace, sigma: float, eta: int, seed: int) -> dict[str, Any]:
    """All that a run needs to know, of JSON values."""
    names = (
        "prompts",
        "group_size",
        "mean",
        "longest",
        "steps",
        "decode_steps",
        "schedule",
        "token_s",
        "train_s",
        "tool_s",
    )
    flow = {"eta": eta, "age": options.age if eta else 0, "order": "ready"}
    return {name: getattr(options, name) for name in names} | {"sigma": sigma, "seed": seed, "flow": flow}


def summary(lines: list[dict]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """sigma -> eta -> figure -> [mean, least, largest] over the seeds."""
    found: dict[str, dict] = {}
    for line in lines:
        into = found.setdefault(f"{line['sigma']:g}", {}).setdefault(f"eta{line['eta']}", {})
        for name in FIGURES:
            into.setdefault(name, []).append(line[name])
    return {
        sigma: {
            arm: {name: [round(f(v), 4) for f in (statistics.fmean, min, max)] for name, v in of.items()}
            for arm, of in arms.items()
        }
        for sigma, arms in found.items()
    }


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sigmas", default="0.25,0.75,1.25", help="of the log of a row's length")
    parser.add_argument("--etas", default="2,8", help="versions that sampling runs ahead; 0 is always measured")
    parser.add_argument("--age", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --first_seed on")
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--schedule", choices=("free", "counted"), default="free")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--mean", type=int, default=16, help="tokens of a row")
    parser.add_argument("--longest", type=float, default=8.0, help="where lengths are cut, in means")
    parser.add_argument("--decode_steps", type=int, default=2, help="tokens of a decode call, at most")
    parser.add_argument("--steps", type=int, default=35)
    parser.add_argument("--token_s", type=float, default=0.04)
    parser.add_argument("--train_s", type=float, default=1.28, help="of a step's updates; 2 rows of mean length")
    parser.add_argument("--tool_s", type=float, default=0.0, help="that the rewards of a batch wait, in all")
    options = parser.parse_args(arguments)
    if options.steps < WARM_UP + 2:
        parser.error(f"--steps={options.steps}: the first {WARM_UP} batches are not measured, so {WARM_UP + 2} or more")
    etas, lines = [int(eta) for eta in options.etas.split(",")], []
    with tempfile.TemporaryDirectory(prefix="rl_jax-asynchronous-") as name:
        folder = pathlib.Path(name)
        if not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(folder / "xla")
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for sigma in map(float, options.sigmas.split(",")):
                synchronous = None
                for eta in (0, *etas):
                    work = make_work(options, sigma, eta, seed)
                    line = measure(work, folder, folder / f"{seed}_{sigma:g}_{eta}")
                    synchronous = synchronous or line["batch_s"]
                    line = {"sigma": sigma, "eta": eta, "seed": seed, "speed": synchronous / line["batch_s"], **line}
                    print(json.dumps({key: round(value, 4) for key, value in line.items()}), flush=True)
                    lines.append(line)
    print(json.dumps({"bench": "asynchronous", "options": vars(options), "summary": summary(lines)}))


if __name__ == "__main__":
    main()
