"""Trains a policy and the small language model that tells about it, in turns: RLAdapter (arXiv 2309.17176).

    python -m experiments.tools.adapter_stages --workdir=runs/staged --stages=2
    python -m experiments.tools.adapter_stages --workdir=runs/llama --model=FOLDER --first=http://127.0.0.1:8000

Stage by stage: control.ppo goes on for --steps steps with the goals that the large model names after the adapter's
analyses; what the adapter read (the score of how well the player follows is in it) and said is recorded; then
experiments.sft fine-tunes the adapter on that, and from the next stage on the tuned one speaks, by a server of its own
(experiments.tools.serve_text). In the paper the first adapter is Llama-2 7B, and the code tunes it on all of its
analyses. A model from scratch has nothing to say: in stage 0 a script speaks (speakers.camp, wrong in --wrong of its
answers), or with --first a server. --least keeps the analyses after which the player followed at least so well.

WORKDIR/policy and WORKDIR/adapter_N are runs like any other; the same command goes on where it was stopped.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from configs import task as task_config
from configs.control import guides as guide_config
from experiments import sft
from experiments.control import ppo as control_ppo
from experiments.parts.text_models import Ask, by_server
from experiments.tools.serve_text import make_server
from rl_jax.envs import speakers
from rl_jax.envs.worlds import camp
from rl_jax.runs.logging import read_jsonl

RECORDS = "said.jsonl"


class Front:
    """The server that the run asks; who answers changes from stage to stage. It runs no model itself.

    Attributes:
      ask: texts -> answers.
    """

    def __init__(self, port: int):
        self.ask: Ask = list
        self._server = make_server(lambda texts: self.ask(texts), lambda text, limit: text, port=port)
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
    last one of each world has none.

    Args:
      rows: of guidance's record, in order.
      least: score that the next row must have; 0 keeps all rows, as the paper's code.
    """
    if least <= 0.0:
        return list(rows)
    last, kept = {}, []
    for row in rows:
        before = last.get(row["world"])
        if before is not None and row["score"] >= least:
            kept.append(before)
        last[row["world"]] = row
    return kept


def run_stages(
    config,
    workdir: pathlib.Path,
    front: Front,
    *,
    stages: int,
    steps: int,
    least: float,
    train: Callable = control_ppo.run,
    tune: Callable,
    serve: Callable,
) -> list[dict[str, float]]:
    """The loop. Returns the policy's last row of metrics of each stage.

    Args:
      config: of control.ppo with env.guide, whose adapter is asked at front.url.
      workdir: of all runs.
      front: who is asked; its `ask` is that of stage 0.
      stages: fine-tunings; the policy has one stage more.
      steps: of the policy per stage.
      least: see `learned_from`.
      train: (config, folder) -> None, goes on with the run in the folder.
      tune: (records file, folder, folder of the adapter before or None) -> whether it is complete.
      serve: (folder of an adapter) -> (ask, close).

    Raises:
      ValueError: if nothing is left to learn from.
    """
    records, found, close = workdir / RECORDS, [], None
    config.env.guide.record = str(records)
    try:
        for stage in range(stages + 1):
            config.train.total_steps = steps * (stage + 1)
            before = len(read_jsonl(records)) if records.exists() else 0
            train(config, workdir / "policy")
            found.append(read_jsonl(workdir / "policy" / "metrics.jsonl")[-1])
            if stage == stages or found[-1]["env_steps"] < config.train.total_steps:  # the end, or a signal
                break
            folder, data = workdir / f"adapter_{stage + 1}", workdir / f"said_{stage + 1}.jsonl"
            if not data.exists():
                rows = learned_from(read_jsonl(records)[before:], least)
                if not rows:
                    raise ValueError(f"stage {stage}: no analysis was followed with a score of {least}: lower --least")
                data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            if not tune(data, folder, workdir / f"adapter_{stage}" if stage else None):
                break
            if close is not None:
                close()
            front.ask, close = serve(folder)
    finally:
        if close is not None:
            close()
    return found


def served(folder: pathlib.Path) -> tuple[Ask, Callable]:
    """(ask, close) of a run that answers in a process of its own."""
    command = [sys.executable, "-m", "experiments.tools.serve_text", str(folder), "--port=0", "--max_tokens=48"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if " answers at " in line:
            url = line.rpartition(" ")[2].strip()
            return by_server(url=url, chat=False, max_tokens=48, timeout_s=600.0, concurrency=1), process.terminate
    raise RuntimeError(f"experiments.tools.serve_text {folder} ended with {process.wait()} before it answered")


def main(argv=None) -> None:
    """The command."""
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
    options = parser.parse_args(argv)
    workdir = pathlib.Path(options.workdir)
    workdir.mkdir(parents=True, exist_ok=True)

    def tune(data: pathlib.Path, folder: pathlib.Path, before: pathlib.Path | None) -> bool:
        return sft.run(sft_config(data, options.model, before, options.sft_steps), folder)

    with Front(options.port) as front:
        front.ask = by_server(url=options.first) if options.first else scripted(options.wrong)
        config = guide_config.get_config("camp,staged")
        config.env.guide.adapter.url = front.url
        numbers = dict(stages=options.stages, steps=options.steps, least=options.least)
        found = run_stages(config, workdir, front, **numbers, tune=tune, serve=served)
    for stage, row in enumerate(found):
        said = {name: round(row[name], 3) for name in ("eval/return", "episode/return", "episode/understood")}
        print(f"stage {stage}: {said}")


def sft_config(data: pathlib.Path, model: str, before: pathlib.Path | None, steps: int):
    """The config of a fine-tuning: configs/task.py, adapters on a pretrained model, or a small model from scratch."""
    config = task_config.get_config("lora" if model else "scratch")
    config.task.path, config.init_from = str(data), str(before) if before else ""
    config.sft.steps = steps
    config.sft.eval_every = steps
    config.eval.update(num_prompts=16, batch_size=16)
    if model:
        config.model.path = model
    else:
        config.model.update(embed_dim=64, num_layers=2, num_heads=2, num_kv_heads=2, mlp_dim=128)
        config.sft.batch_size = 16
        config.rollout.update(completion_length=48, prompt_buckets=(256,))
    return config


if __name__ == "__main__":
    main()
