"""The shell of every loop: signals, record, restore, logger, steps, saves, final files. The body stays in the program.

loop = Run(config, workdir, "grpo", config.train)          # from here on a signal ends the run between two steps
setup = make_setup(config)
loop.record(setup)                                         # config.json, run.json
...
items = loop.restore(checkpoint_items(state), prompts)     # the newest checkpoint, if any; else `items`
with loop:                                                 # the logger, in the first process, and the checkpoints
    for step in loop.steps():
        ...                                                # the method
        step.end(checkpoint_items(state), metrics, timings)
loop.finish(setup, state.params)                           # final.json, hf/, peft/
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import hub, origin, processes, stops
from experiments.parts.budgets import BEST, samples_per_step
from experiments.parts.clock import Clock
from experiments.parts.devices import describe
from experiments.parts.meter import Meter
from experiments.parts.processes import to_host
from experiments.parts.profiling import Trace
from experiments.parts.setup import Setup, fix_date, lora_config, model_config
from rl_jax.core import types
from rl_jax.data.writing import write_arrays
from rl_jax.models.hf import loading
from rl_jax.models.hf.peft import save_peft
from rl_jax.runs import disk
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import read_json, reopen, write_run_record
from rl_jax.training import checkpoint, compilation, distributed
from rl_jax.training.step import TrainState

# Files and folders of a complete run, as its end names them.
RESULTS = ("metrics.jsonl", "samples.jsonl", "evaluation.json", "checkpoints", "hf", "peft", "profile", "final.json")


class Run:
    """One run of a program in its workdir, from signal handlers to final files.

    Attributes:
      step: int. The last step done; after `restore` the saved step.
      stop: StopSignal. Shared with a warm start, and with a tool's other runs: no signal is lost between two.
      log: RunLogger inside `with`; silent in all processes but the first.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: pathlib.Path,
        program: str,
        settings: ConfigDict | None = None,
        *,
        total: int | None = None,
        stride: int = 1,
        eval_every: int | None = None,
        stop: checkpoint.StopSignal | None = None,
        checkpoints: dict | None = None,
    ):
        """Claims the workdir; fetches a model of the Hub, if the config names one; installs the signal handlers.

        Args:
          config: the run's config.
          workdir: its folder.
          program: the name in run.json, "grpo".
          settings: config.train or a group like it: steps, max_nonfinite_in_a_row.
          total: the number of steps, if it differs from settings.steps; may be changed before `restore`.
          stride: what one step of the loop counts: control programs do log_every updates in one.
          eval_every: steps between evaluations, if it differs from config.eval.every.
          stop: of the run that this one is a part of.
          checkpoints: keywords of Checkpointer, if they differ from config.checkpoint.

        Raises:
          disk.InUseError: if another run has the workdir.
          origin.ChangedError: if the workdir has a run with other settings.
        """
        claim(config, workdir, program)  # before a signal waits for the end of a step
        self.config, self.workdir, self.program = config, workdir, program
        self.stop, self._whole = stop or stops.shared() or checkpoint.StopSignal(), stop is None
        self.total = settings.steps if total is None else total
        self.step, self.host, self.log = 0, {}, None
        self._limit = None if settings is None else settings.max_nonfinite_in_a_row
        self._stride = stride
        self._eval_every = config.eval.every if eval_every is None else eval_every
        options = config.checkpoint.to_dict() if checkpoints is None else checkpoints
        self._options = options | {"best_metric": options.get("best_metric") or BEST}
        self._checkpoints, self._data, self._stack, self._ended = None, None, contextlib.ExitStack(), True
        self._carried, self.meter = None, Meter([], None)
        steps = config.log.get("profile_steps", ()) if self._whole else ()  # a warm start has steps of its own
        self._trace = Trace(steps, workdir / "profile", self._stack)

    def record(self, where: Setup | Iterable[jax.Device]) -> None:
        """Writes config.json and run.json, in the first process. Says where the run runs, and where its results go.

        where: the devices; or the Setup, from whose model the FLOPs of an update are counted. Its devices are those
          that train, and those of rollout.mesh that only sample.
        """
        setup = where if isinstance(where, Setup) else None
        training = list(setup.mesh.devices.flat if setup else where)
        sampling = setup.rollout.mesh.devices.flat if setup and setup.rollout else ()
        others = [device for device in sampling if device not in training]
        options = {"only_adapters": bool(setup and setup.merged), "peak": self.config.log.get("peak_flops", 0.0)}
        self.meter = Meter(training, functools.partial(model_config, setup) if setup else None, others, **options)
        devices = training + others
        record_run(self.config, self.workdir, self.program, devices)
        if setup and self._whole:
            fix_date(setup, self.workdir)
        if self._whole:
            self.say(f"{self.program} on {describe(devices)}; results go to {self.workdir}")

    def carry(self, part: Any) -> Any:
        """Puts a part with a state into every checkpoint, before `restore`. Returns it.

        Args:
          part: has carried() -> items by name, {} if there are none, and set_carried(items).
        """
        if hasattr(part, "carried") and part.carried():
            self._carried = part
        return part

    def restore(self, items: dict[str, Any], data: Any = None, *, in_place: bool = True) -> dict[str, Any]:
        """The contents of the newest checkpoint, structured like `items`; `items` themselves if nothing was saved.

        Args:
          items: name -> pytree, as `Step.end` takes them. With in_place their buffers are donated.
          data: an iterator with get_state and set_state, restored too; saved with every checkpoint.
          in_place: whether memory holds the state once, not twice, while it is read.

        Raises:
          origin.ChangedError: if the run is complete as a fork that has not trained, and its settings are its own.
        """
        self._data = data
        with disk.named(self.workdir / "checkpoints"):
            self._checkpoints = checkpoint.Checkpointer(self.workdir / "checkpoints", **self._options)
        if self._checkpoints.latest_step() is None:
            return items
        of_part = {} if self._carried is None else self._carried.carried()
        items, self.host = self._checkpoints.restore(items | of_part, in_place=in_place)
        if self._carried is not None:
            self._carried.set_carried({name: items.pop(name) for name in of_part})
        self.step = self.host["step"]
        if data is not None:
            data.set_state(self.host["data"])
        if self.done:
            self._refuse_spent()
        part = "this run" if self._whole else f"its {self.program}"  # the warm start of another program
        self.say(f"{part} is complete, at step {self.step}" if self.done else f"{part} resumes from step {self.step}")
        return items

    def _refuse_spent(self) -> None:
        wrong = ""
        if distributed.is_main():
            wrong = origin.spent(self.config, self.workdir, self.program, self.step, self.total)
        if wrong := distributed.gather(wrong)[0]:
            raise origin.ChangedError(wrong)

    def __enter__(self) -> "Run":
        """Opens the logger where `restore` put the run. The end closes it and the checkpoints, also after an error."""
        config = self.config
        if not self.done and distributed.is_main():
            reopen(self.workdir)
        options = {"progress": config.log.progress, "tensorboard": config.log.tensorboard}
        options |= {"print_completions": config.log.get("print_completions", 0)}
        if (board := config.log.get("wandb")) and board.project:
            options["wandb"] = {**board.to_dict(), "config": origin.named(config.to_dict())}
        options |= {"samples_per_step": samples_per_step(config, self.program), "total_steps": self.total}
        self._stack.enter_context(self._checkpoints)
        self.log = self._stack.enter_context(processes.run_logger(self.workdir, self.step, **options))
        return self

    def __exit__(self, *error) -> None:
        if error[1] is not None and not self._ended:
            error[1].add_note(f"This was in step {self.step} of {self.workdir}")
        if error[0] is not None:
            disk.unlock(self.workdir)
        elif not self.done:
            stops.note()
        self._stack.__exit__(*error)

    @property
    def done(self) -> bool:
        """Whether the run is complete: after its last step, or after a step that ended it early."""
        return self.step >= self.total or self.host.get("done", False)

    @property
    def ahead(self) -> Callable:
        """Compiles a program before the first step and reports it: ahead("name", jitted)(*arguments)."""
        shown = self.config.log.progress and distributed.is_main()
        return compilation.Ahead(functools.partial(print, end="", flush=True) if shown else lambda text: None)

    def begin(self, evaluate: Callable[[], tuple[dict[str, Any], list[dict]]]) -> None:
        """Logs the metrics and samples of step 0, before any training. Does nothing in a resumed run.

        Args:
          evaluate: () -> (metrics, rows of samples.jsonl); only called at step 0.
        """
        if self.step == 0:
            self.say("evaluating before the first step")  # compiles, too
            metrics, samples = evaluate()
            self.log.log(0, metrics)
            self.log.samples(0, samples)

    def steps(self) -> Iterator["Step"]:
        """The steps left, until the last one or a stop signal. Each must be ended by `Step.end`."""
        stopping, main = distributed.any_process(self.stop.received), distributed.is_main()
        if said := "" if self.done else self._trace.check(self.step, self.total):  # every process: it may raise
            self.say(said)
        while not self.done and not stopping:
            self.step += self._stride
            self._ended = False
            last = self.step >= self.total
            due = self._eval_every and self.step % self._eval_every == 0
            step = Step(self, self.step, evaluates=bool(due) or last)
            if main:
                self._trace.before(self.step - self._stride, self.step)
            yield step
            self._trace.after(self.step)
            if not self._ended:
                raise RuntimeError(f"step {self.step} was not ended: call step.end() in the loop's body")
            stopping = step.stopping

    def check_finite(self, state: TrainState, batch: Any, *, counts: bool = True, head: bool = True) -> None:
        """Counts an update's FLOPs, and stops a run whose gradients stay non-finite.

        Args:
          state: after an update.
          batch: of that update; saved to nonfinite_step_N.npz before the error.
          counts: whether `state` was updated, or only looked at.
          head: whether the update forms logits (Meter.count).

        Raises:
          FloatingPointError: if max_nonfinite_in_a_row gradients in a row were not finite.
        """
        if counts:
            self.meter.count(batch, head=head)
        if int(state.skipped_in_a_row) < self._limit:
            return
        path = self.workdir / f"nonfinite_step_{self.step}.npz"
        leaves = jax.tree_util.tree_leaves_with_path(to_host(batch))
        if distributed.is_main():
            write_arrays(path, {types.path_name(name): np.asarray(leaf) for name, leaf in leaves})
        raise FloatingPointError(
            f"{self._limit} gradients in a row were not finite, or would have made the params so; often the learning "
            f"rate is too high. The batch of step {self.step} is in {path}"
        )

    def finish(self, setup: Setup, params: types.Params, **more: types.Params) -> bool:
        """Writes the final files of a complete run (write_final). Returns whether it is complete."""
        if self.done:
            with disk.named(self.workdir):
                write_final(setup, self.workdir, self.step, params, **more)
        self.close()
        return self.done

    def close(self) -> None:
        """Says how the run has ended, and gives the workdir back."""
        self.say_end()
        disk.unlock(self.workdir)

    def say_end(self) -> None:
        """Says what a complete run wrote and how to see it, or what one that was stopped saved."""
        if self.done and self._whole:
            files = ", ".join(name for name in RESULTS if (self.workdir / name).exists())
            self.say(f"wrote {self.workdir}: {files}\nsee it with  python -m experiments.report {self.workdir}")
        elif not self.done:
            saved = f"step {self.step} is saved in {self.workdir / 'checkpoints'}" if self.step else "no step is done"
            self.say(f"stopped before the end: {saved}; run the same command again to resume")

    def say(self, text: str) -> None:
        """Prints a line, in the first process, if config.log.progress."""
        if self.config.log.progress and distributed.is_main():
            print(text, flush=True)

    def _end(self, step: "Step", items: dict[str, Any], metrics: dict, timings: dict, done: bool, host: dict) -> None:
        """Logs and, if due, saves; checks whether a signal came meanwhile, in any process."""
        self._ended = True
        self.host = {"step": self.step, "done": done, **host}
        self.log.log(self.step, metrics, timings | self.meter.rates(timings))
        step.stopping = distributed.any_process(self.stop.received)
        if self._checkpoints.due(self.step) or self.done or step.stopping:
            position = {} if self._data is None else {"data": self._data.get_state()}
            of_part = {} if self._carried is None else self._carried.carried()
            self._checkpoints.save(self.step, items | of_part, {**self.host, **position}, metrics)


class Step:
    """One step of a loop.

    Attributes:
      number: int, from 1.
      evaluates: whether an evaluation is due after this step: every eval_every steps (0: never), and after the last.
      clock: seconds by stage.
    """

    def __init__(self, run: Run, number: int, *, evaluates: bool):
        self.number, self.evaluates, self.stopping, self.clock, self._run = number, evaluates, False, Clock(), run

    @property
    def saves(self) -> bool:
        """Whether a checkpoint is due after this step, regardless of signals."""
        run = self._run
        return run._checkpoints.due(self.number) or self.number >= run.total

    def end(
        self,
        items: dict[str, Any],
        metrics: dict[str, Any],
        timings: dict[str, float],
        *,
        done: bool = False,
        host: dict[str, Any] | None = None,
    ) -> None:
        """Logs the step's row, and saves if it is due.

        Args:
          items: name -> pytree of arrays, the contents of a checkpoint.
          metrics: the row of metrics.jsonl.
          timings: the row of timings.jsonl.
          done: whether the run is complete before its last step.
          host: JSON values by name that are saved too; `Run.host` holds them after `restore`.
        """
        self._run._end(self, items, metrics, timings, done, host or {})


def claim(config: ConfigDict, workdir: pathlib.Path, program: str) -> None:
    """Makes this run the only one in its workdir, and refuses to go on with a run that had other settings.

    Args:
      config: of the run; its paths of the Hub are settled.
      workdir: its folder.
      program: the name in run.json.

    Raises:
      disk.InUseError: if another run has the workdir.
      origin.ChangedError: if a field differs; names each.
      ValueError: if the workdir is a model's folder.
    """
    origin.refuse_model_folder(workdir)  # before anything is written there
    if distributed.is_first():
        disk.lock(workdir)
    hub.settle(config, workdir)
    origin.check_config(config, workdir, program)


def record_run(config: ConfigDict, workdir: pathlib.Path, program: str, devices: Iterable[jax.Device]) -> None:
    """Writes config.json (only a new run's) and run.json, in the first process.

    Raises:
      origin.ChangedError: if the run goes on and its data is not what it was.
    """
    found, wrong, said = {}, "", ""
    if distributed.is_main():
        found = origin.made_of(config, workdir)
        wrong, said = origin.compare(workdir, found)
    if wrong := distributed.gather(wrong)[0]:
        raise origin.ChangedError(wrong)
    if not distributed.is_main():
        return
    if said:
        print(said, file=sys.stderr, flush=True)
    with disk.named(workdir):
        write_run_record(
            workdir,
            config=origin.named(config.to_dict()),
            command=[sys.executable, *sys.argv],
            task=(config.env if "env" in config else config.task).name,
            algorithm=program,
            devices=[str(device) for device in devices],
            origin=found,
            anew=not origin.begun(workdir),
            longer=origin.outgrown(config, workdir, program),
        )


def checkpoint_items(state: TrainState, **more) -> dict[str, Any]:
    """What is saved: params as an item of their own, so that another run can load only them, and the rest.

    more: further items by name; those that are None are left out.
    """
    items = {"params": state.params, "rest": state._replace(params=()), **more}
    return {name: item for name, item in items.items() if item is not None}


def state_of(items: dict[str, Any]) -> TrainState:
    """The TrainState from the items of checkpoint_items."""
    return items["rest"]._replace(params=items["params"])


def write_final(setup: Setup, workdir: pathlib.Path, step: int, params: types.Params, **more: types.Params) -> None:
    """Writes workdir/final.json, which marks the run as complete and holds the checksum of its params.

    A model from a Hugging Face folder is also saved as one: workdir/hf, with its adapters in workdir/peft. Folders of
    other params are replaced: the run was made longer, or was killed before its final.json.

    Args:
      setup: of the run.
      workdir: its folder.
      step: the last step.
      params: of the model.
      **more: other params for the checksum.
    """
    path, main, record = hub.local_folder(setup.config.model.path), distributed.is_main(), workdir / "final.json"
    final = {"step": step, "params_sha256": checkpoint.checksum({"policy": params, **more} if more else params)}
    known = main and record.is_file() and read_json(record) == final

    def lacks(name: str) -> bool:
        return distributed.any_process(main and not (known and (workdir / name).exists()))

    if path and lacks("hf"):
        model_params = to_host(setup.merged(params) if setup.merged else params, main_only=True)
        if main:
            config = loading.read_config(path, ignore=setup.config.model.ignore_fields)
            _replace_folder(workdir / "hf", lambda new: loading.save_hf(new, config, model_params, like=path))
    if path and setup.merged and lacks("peft"):
        adapters = to_host(params["adapters"], main_only=True)
        if main:
            named = {"model_type": loading.model_type(path), **hub.base_model(setup.config.model.path)}
            settings = lora_config(setup.config)
            try:
                _replace_folder(workdir / "peft", lambda new: save_peft(new, settings, adapters, **named))
            except ValueError as error:  # PEFT cannot express them: hf/ has them merged
                shutil.rmtree(workdir / "peft", ignore_errors=True)  # of other params
                print(f"{workdir} is without peft/: {error}", file=sys.stderr, flush=True)
    if main:
        write_atomically(record, (json.dumps(final) + "\n").encode())


def _replace_folder(folder: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Puts what `write` makes in the place of a folder, whose old content stays until all of the new one is there."""
    scratch = folder.with_name(f".{folder.name}")
    shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed here
    try:
        write(scratch / "new")
        if folder.exists():
            os.rename(folder, scratch / "old")
        os.rename(scratch / "new", folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
