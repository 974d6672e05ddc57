"""Trains a policy and the small language model that tells about it, in turns: RLAdapter (arXiv 2309.17176).

    python -m experiments.tools.adapter_stages --workdir=runs/staged --stages=2
    python -m experiments.tools.adapter_stages --workdir=runs/llama --model=FOLDER --first=http://127.0.0.1:8000

Stage by stage: control.ppo goes on for --steps steps with the goals that the large model names after the adapter's
analyses; what the adapter read (the score of how well the player follows is in it) and said is recorded; then
experiments.sft fine-tunes the adapter on that, and from the next stage on the tuned one speaks, by a server of its own
(experiments.tools.serve_text). In the paper the first adapter is Llama-2 7B, and the code tunes it on all of its
analyses. A model from scratch has nothing to say: in stage 0 a script speaks (speakers.camp, wrong in --wrong of its
answers), or with --first a server. --least keeps the analyses after which the player followed at least so well.

Each program is a process, and this one uses no accelerator: the policy and the fine-tuning have it one after the other.
A tuned adapter has to speak while the policy trains, so its server is on the CPU; --speak_on=cuda puts it beside the
policy, where both fit (XLA_PYTHON_CLIENT_MEM_FRACTION=.4). WORKDIR/policy and WORKDIR/adapter_N are runs like any
other, WORKDIR/stage_N.json has the policy's metrics at the end of a stage; the same command goes on where it stopped.
Options are kept beside the results that they make: others are refused, more --stages go on.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from experiments.parts import origin, stops
from experiments.parts.text_models import Ask, by_server
from experiments.sweep.finished import check_run
from experiments.sweep.points import Point
from experiments.tools.serve_text import make_server
from rl_jax.envs import speakers
from rl_jax.envs.worlds import camp
from rl_jax.runs.logging import cut_back, read_jsonl, write_atomically
from rl_jax.runs.run_record import is_complete

RECORDS = "said.jsonl"
SHOWN = ("eval/return", "episode/return", "episode/understood")


class Front:
    """The server that the run asks; who answers changes from stage to stage. It runs no model itself.

    Attributes:
      ask: texts -> answers.
    """

    def __init__(self, port: int):
        self.ask: Ask = list
        self._server = make_server(lambda texts: self.ask(texts), lambda text, limit: text, longest=48, port=port)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> "Front":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def scripted(wrong: float) -> Ask:
    """The script of stage 0: the camp's adapter, which names a wrong need in a share of its answers."""
    plain = [word for word, _ in camp.WORDS]

    def said(text: str) -> str:
        right = speakers.camp().adapter(text)
        digest = zlib.crc32(text.encode())
        if digest % 1000 >= 1000 * wrong or " means " not in right:
            return right
        rare, _, meant = right.partition(" means ")
        others = [word for word in plain if word != meant]
        return f"{rare} means {others[digest // 1000 % len(others)]}"

    return lambda texts: [said(text) for text in texts]


def learned_from(rows: Sequence[dict[str, Any]], least: float) -> list[dict[str, Any]]:
    """Records of the adapter that it is tuned on: those whose analysis was followed at least so well.

    A row's own score is of what was said in its world before, so an analysis is scored by its world's next row; the
    last one of each world has none. Of turns that a killed run repeated the last row is taken.

    Args:
      rows: of guidance's record, in order.
      least: score that the next row must have; 0 keeps all rows, as the paper's code.

    Raises:
      ValueError: if the rows name no turn.
    """
    if rows and "turn" not in rows[0]:
        raise ValueError(f"{RECORDS} was begun by an older version, whose lines name no turn: take a new --workdir")
    rows = list({(row["world"], row["turn"]): row for row in rows}.values())
    if least <= 0.0:
        return rows
    last, kept = {}, []
    for row in rows:
        before = last.get(row["world"])
        if before is not None and row["score"] >= least:
            kept.append(before)
        last[row["world"]] = row
    return kept


def run_stages(
    workdir: pathlib.Path,
    front: Front,
    *,
    stages: int,
    steps: int,
    least: float,
    train: Callable,
    tune: Callable,
    serve: Callable,
    first: str = "a script",
) -> list[dict[str, float]]:
    """The loop. Returns the policy's metrics at the end of each stage that is complete.

    Args:
      workdir: of all runs.
      front: who is asked; its `ask` is that of stage 0.
      stages: fine-tunings; the policy has one stage more.
      steps: of the policy per stage.
      least: see `learned_from`.
      train: ({field of the policy's config: value}, folder) -> whether it is complete; goes on with the run there.
      tune: (records file, folder, folder of the adapter before or None) -> whether it is complete.
      serve: (folder of an adapter) -> (ask, close).
      first: who `front` asks in stage 0, in words.

    Raises:
      ValueError: if nothing is left to learn from.
      ChangedError: if a stage was begun, or its data chosen, with other options.
    """
    found, before = [], 0
    for stage in range(stages + 1):
        options, begun = workdir / f"stage_{stage}_options.json", workdir / f"stage_{stage}.json"
        said = {"--steps": steps} | ({} if stage else {"--first, --wrong": first})
        origin.keep(options, said, made=options.exists() or begun.exists())
        ended = _end_of(stage, workdir, front, steps, train, serve)
        if ended is None:
            break
        found.append(ended["metrics"])
        if stage == stages:
            break
        folder, data = workdir / f"adapter_{stage + 1}", workdir / f"said_{stage + 1}.jsonl"
        origin.keep(workdir / f"said_{stage + 1}_options.json", {"--least": least}, made=data.exists())
        if not data.exists():
            rows = learned_from(read_jsonl(workdir / RECORDS)[before : ended["records"]], least)
            if not rows:
                raise ValueError(f"stage {stage}: no analysis was followed with a score of {least}: lower --least")
            write_atomically(data, "".join(json.dumps(row) + "\n" for row in rows).encode())
        before = ended["records"]
        if not tune(data, folder, workdir / f"adapter_{stage}" if stage else None):
            break
    return found


def _end_of(
    stage: int, workdir: pathlib.Path, front: Front, steps: int, train: Callable, serve: Callable
) -> dict[str, Any] | None:
    """The policy's "metrics" at the end of a stage, and the number of "records" by then; None if it was stopped.

    They are written when the stage is complete, and a stage that has them is not run again.
    """
    mark, records, policy = workdir / f"stage_{stage}.json", workdir / RECORDS, workdir / "policy"
    if mark.exists():
        return json.loads(mark.read_text())
    cut_back(records, sys.maxsize)  # half a line of a run that was killed
    close = None
    if stage:
        front.ask, close = serve(workdir / f"adapter_{stage}")
    try:
        fields = {"train.total_steps": steps * (stage + 1), "env.guide.record": str(records)}
        if not train(fields | {"env.guide.adapter.url": front.url}, policy):
            return None
    finally:
        if close is not None:
            close()
    count = len(read_jsonl(records)) if records.exists() else 0
    ended = {"metrics": read_jsonl(policy / "metrics.jsonl")[-1], "records": count}
    write_atomically(mark, (json.dumps(ended) + "\n").encode())
    return ended


def ran(config: str, program: str, fields: dict[str, Any], folder: pathlib.Path) -> bool:
    """Runs a program in a process of its own. Returns False if a signal ended it early.

    Args:
      config: file and arguments.
      program: of experiments, "control.ppo".
      fields: of its config, by dotted names.
      folder: its workdir.

    Raises:
      RuntimeError: if it fails.
    """
    status = stops.wait(_point(config, program, fields, folder).command(folder))
    if status not in (0, stops.STOPPED):
        raise RuntimeError(f"experiments.{program} in {folder} ended with {status}; the same command goes on")
    return status == 0


def _point(config: str, program: str, fields: dict[str, Any], folder: pathlib.Path) -> Point:
    """What `ran` runs."""
    return Point(folder.name, fields, folder.name, 0, config, program)


def tuned(data: pathlib.Path, folder: pathlib.Path, before: pathlib.Path | None, *, model: str, steps: int) -> bool:
    """Fine-tunes an adapter, as `tuning` says, unless it is complete. Returns whether it is complete now.

    Raises:
      ChangedError: if it is complete with other settings; names the fields.
    """
    word, fields = tuning(data, model, before, steps)
    check_run(folder, _point(f"configs/task.py:{word}", "sft", fields, folder))
    return is_complete(folder) or ran(f"configs/task.py:{word}", "sft", fields, folder)


def served(folder: pathlib.Path, platform: str) -> tuple[Ask, Callable]:
    """(ask, close) of a run that answers in a process of its own. platform: of jax there, "cpu"; "": the default."""
    command = [sys.executable, "-m", "experiments.tools.serve_text", str(folder), "--port=0", "--max_tokens=48"]
    chosen = os.environ | ({"JAX_PLATFORMS": platform} if platform else {})
    # A session of its own: what a terminal sends would end it at once, while the policy still asks and saves.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=chosen, start_new_session=True)

    def close() -> None:
        process.terminate()
        process.wait()  # it has let go of its device

    try:
        for line in process.stdout:
            if " answers at " in line:
                url = line.rpartition(" ")[2].strip()
                return by_server(url=url, chat=False, max_tokens=48, timeout_s=600.0, concurrency=1), close
    except BaseException:  # stopped while it loads: nobody else would close it
        close()
        raise
    raise RuntimeError(f"experiments.tools.serve_text {folder} ended with {process.wait()} before it answered")


def main(argv=None) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--stages", type=int, default=2, help="fine-tunings of the adapter")
    parser.add_argument("--steps", type=int, default=10_240, help="steps of the policy per stage")
    parser.add_argument("--least", type=float, default=0.0, help="score from which on an analysis is learned from")
    parser.add_argument("--wrong", type=float, default=0.0, help="share of stage 0's analyses that are wrong")
    parser.add_argument("--first", default="", help="address of the first adapter; without one a script")
    parser.add_argument("--model", default="", help="Hugging Face folder of the adapter; without one a small model")
    parser.add_argument("--sft_steps", type=int, default=300, help="steps of each fine-tuning")
    parser.add_argument("--port", type=int, default=8123, help="where the policy's run asks")
    parser.add_argument("--speak_on", default="cpu", help="JAX_PLATFORMS of a tuned adapter's server")
    options = parser.parse_args(argv)
    workdir = pathlib.Path(options.workdir)
    workdir.mkdir(parents=True, exist_ok=True)

    def train(fields: dict[str, Any], folder: pathlib.Path) -> bool:
        return ran("configs/control/guides.py:camp,staged", "control.ppo", fields, folder)

    def tune(data: pathlib.Path, folder: pathlib.Path, before: pathlib.Path | None) -> bool:
        return tuned(data, folder, before, model=options.model, steps=options.sft_steps)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(stops.STOPPED))  # between programs: the server is closed
    with Front(options.port) as front:
        front.ask = by_server(url=options.first) if options.first else scripted(options.wrong)
        numbers = dict(stages=options.stages, steps=options.steps, least=options.least)
        numbers["first"] = "a server" if options.first else f"a script, {options.wrong:g} wrong"
        serve = lambda folder: served(folder, options.speak_on)  # noqa: E731
        try:
            found = run_stages(workdir, front, **numbers, train=train, tune=tune, serve=serve)
        except origin.ChangedError as error:
            print(f"experiments.tools.adapter_stages: {error}", file=sys.stderr)
            return 2
    for stage, row in enumerate(found):
        print(f"stage {stage}: { ({name: round(row[name], 3) for name in SHOWN}) }")
    return 0 if len(found) > options.stages else stops.STOPPED


def tuning(data: pathlib.Path, model: str, before: pathlib.Path | None, steps: int) -> tuple[str, dict[str, Any]]:
    """A fine-tuning: (the word of configs/task.py, fields of that config).

    Args:
      data: the records.
      model: a pretrained folder, which gets adapters; "": a small model from scratch.
      before: the run that it begins with; None: none.
      steps: of it.
    """
    fields: dict[str, Any] = {"task.path": str(data), "init_from": str(before) if before else ""}
    fields |= {"sft.steps": steps, "sft.eval_every": steps, "eval.num_prompts": 16, "eval.batch_size": 16}
    if model:
        return "lora", fields | {"model.path": model}
    small = dict(embed_dim=64, num_layers=2, num_heads=2, num_kv_heads=2, mlp_dim=128)
    fields |= {f"model.{name}": size for name, size in small.items()}
    return "scratch", fields | {
        "sft.batch_size": 16,
        "rollout.completion_length": 48,
        "rollout.prompt_buckets": (256,),
    }


if __name__ == "__main__":
    sys.exit(main())
