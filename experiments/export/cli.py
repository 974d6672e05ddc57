"""Writes a run's model as a folder that `transformers` opens, and uploads it to the Hugging Face Hub if told so.

    python -m experiments.export runs/hf --to=my-model                      # a new folder
    python -m experiments.export runs/hf --to=hf://ORG/NAME                 # a private repository of the Hub
    python -m experiments.export runs/hf/checkpoints/40 --to=my-model --dtype=bfloat16
    python -m experiments.export runs/hf --best --to=my-model               # by config.checkpoint.best_metric

The folder has the model (safetensors, adapters merged), adapters/ in PEFT's format if the run trained some, tokenizer
and chat template, generation_config.json and a model card, README.md, with method, data, commit, config and the last
evaluation. Read the card before an upload: the config and the command name your files.

An upload needs `pip install -e '.[hub]'` and the login of `hf auth login`. It goes to the repository after hf://, which
is created private if it does not exist (--public: public), and nowhere else.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import uuid
from typing import Any

import jax

from experiments.export import card, tokenizer_files
from experiments.parts import hub, refusals
from experiments.parts.budgets import BEST
from experiments.parts.setup import Setup, load_checkpoint, load_task, lora_config, make_setup, model_config
from experiments.parts.stored import read_config
from rl_jax import tasks
from rl_jax.core.types import Params
from rl_jax.models.hf import loading
from rl_jax.models.hf.peft import save_peft
from rl_jax.models.hf.tensor_files import DTYPES
from rl_jax.runs.logging import METRICS_FILE, read_jsonl
from rl_jax.runs.run_record import last_config, read_json

PROGRAMS = ("sft", "grpo", "grpo_async", "agents", "ppo", "dpo", "online_dpo")  # those whose model is a language model
ADAPTERS = "adapters"


class ExportError(ValueError):
    """A run cannot be exported; the message says why, and what to do."""


def run_folder(path: pathlib.Path) -> pathlib.Path:
    """The run of "RUN" or "RUN/checkpoints/STEP"."""
    return path.parent.parent if path.parent.name == "checkpoints" and path.name.isdecimal() else path


def open_run(path: pathlib.Path) -> tuple[dict[str, Any], Setup]:
    """The record (run.json) and the setup of a run. path: as for run_folder.

    Raises:
      ExportError: if there is no run, or its program trains no language model.
    """
    workdir = run_folder(path)
    if not (workdir / "config.json").is_file():
        raise ExportError(f"{workdir}: has no config.json: give the --workdir of a run")
    config, record = read_config(workdir), read_json(workdir / "run.json")
    if record["algorithm"] not in PROGRAMS:
        raise ExportError(
            f"{workdir}: is a run of experiments.{record['algorithm']}; language models are trained by "
            f"{', '.join(PROGRAMS)}"
        )
    config.reward.function = ""  # nothing is judged
    # A folder brings its tokenizer; the data need not be there any more.
    task = tasks.Task("export", None, None, None) if config.model.path else load_task(config)
    return record, make_setup(config, task)


def write_folder(path: pathlib.Path, to: pathlib.Path, *, dtype: str | None = None, license: str = "") -> list[str]:
    """Writes the folder `to`: all of it, or nothing.

    Args:
      path: RUN or RUN/checkpoints/STEP; RUN is its newest checkpoint.
      to: must not exist yet, or be empty.
      dtype: of the tensors; None is that of the params.
      license: for the card; "" leaves it out.

    Returns:
      What the folder lacks, in words.

    Raises:
      ExportError: if the run cannot be exported.
      FileExistsError: if the folder exists and is not empty.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FileExistsError(f"{to} exists and is not empty: give a new folder, or remove this one first")
    record, setup = open_run(path)
    params, host = load_checkpoint(setup, path)
    step = host["step"]  # RUN has no number, and its newest checkpoint may be damaged
    base = setup.config.model.path
    like = hub.local_folder(base, weights=False) if base else None
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.parent / f".{to.name}.{uuid.uuid4().hex}.partial"
    try:
        model_params = jax.device_get(setup.merged(params) if setup.merged else params)
        loading.save_hf(partial, model_config(setup), model_params, like=like, dtype=dtype)
        lacks = _adapters(setup, params, partial)
        lacks += [] if base else tokenizer_files.write(setup.task.tokenizer, partial)
        if not (partial / "generation_config.json").exists():
            _write_json(partial / "generation_config.json", generation_config(setup))
        text = card.card(
            to.name,
            config=last_config(run_folder(path)),
            record=record,
            step=step,
            evaluation=last_evaluation(run_folder(path), step),
            adapters=(partial / ADAPTERS).exists(),
            license=license,
            lacks=lacks,
        )
        (partial / "README.md").write_text(text, encoding="utf-8")
        os.rename(partial, to)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return lacks


def _adapters(setup: Setup, params: Params, folder: pathlib.Path) -> list[str]:
    """Writes folder/adapters, if the run has some. Returns what is lacking."""
    if not setup.merged:
        return []
    base = hub.base_model(setup.config.model.path) if setup.config.model.path else {}
    adapters = jax.device_get(params["adapters"])
    try:
        save_peft(folder / ADAPTERS, lora_config(setup.config), adapters, model_type=loading.model_type(folder), **base)
    except ValueError as error:  # PEFT cannot express them
        return [f"adapters ({error})"]
    return []


def generation_config(setup: Setup) -> dict[str, Any]:
    """The content of generation_config.json: the tokens that end a text, and the sampling of the evaluation."""
    tokenizer, fields = setup.task.tokenizer, setup.config.eval
    result = {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
    result |= {"bos_token_id": tokenizer.bos_id, "max_new_tokens": setup.config.rollout.completion_length}
    if fields.top_k == 1:
        return result | {"do_sample": False}
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return result | {"do_sample": True} | {name: fields[name] for name in names if name in fields}


def last_evaluation(workdir: pathlib.Path, step: int) -> dict[str, Any]:
    """The last row of metrics.jsonl with an evaluation, at `step` at the latest: "step" and its eval/ metrics."""
    path = workdir / METRICS_FILE
    rows = [row for row in (read_jsonl(path) if path.exists() else []) if row.get("step", 0) <= step]
    rows = [{name: row[name] for name in row if name == "step" or name.startswith("eval/")} for row in rows]
    return next((row for row in reversed(rows) if len(row) > 1), {})


def best_checkpoint(workdir: pathlib.Path) -> pathlib.Path:
    """The kept checkpoint whose step has the best of config.checkpoint.best_metric (budgets.BEST if that is "").

    Raises:
      ExportError: if no kept checkpoint's step has the metric.
    """
    settings = last_config(workdir)["checkpoint"]
    names = (settings["best_metric"],) if settings["best_metric"] else BEST
    sign = 1 if settings["best_mode"] == "max" else -1
    folders = {int(path.name): path for path in (workdir / "checkpoints").glob("*") if path.name.isdecimal()}
    rows = read_jsonl(workdir / METRICS_FILE) if (workdir / METRICS_FILE).exists() else []
    logged = {name for row in rows for name, value in row.items() if value is not None}
    name = next((name for name in names if name in logged), None)
    if name is None:
        evaluated = ", ".join(sorted(name for name in logged if name.startswith("eval/"))) or "none"
        raise ExportError(
            f"{workdir}: no step has the metric {' or '.join(names)} of checkpoint.best_metric. Metrics of its "
            f"evaluations: {evaluated}. Run the command that trained again with --config.checkpoint.best_metric=NAME "
            "(a complete run only notes it), or export RUN/checkpoints/STEP"
        )
    values = {row["step"]: sign * row[name] for row in rows if row["step"] in folders and row.get(name) is not None}
    if not values:
        raise ExportError(
            f"{workdir}: no kept checkpoint has the metric {name!r}: checkpoint.every and eval.every must meet, and "
            "checkpoint.keep_best keeps the best"
        )
    return folders[max(values, key=lambda step: (values[step], step))]


def upload(folder: pathlib.Path, repo: hub.Repo, *, public: bool) -> str:
    """Uploads the files of a folder as one commit. Returns its address.

    Args:
      folder: of write_folder.
      repo: created if it does not exist.
      public: whether a repository that is created can be read by everybody.

    Raises:
      hub.HubError: if the Hub refuses.
    """
    api = hub.hub().HfApi()
    try:
        api.create_repo(repo.name, private=not public, exist_ok=True)
        if repo.revision != hub.MAIN:
            api.create_branch(repo.name, branch=repo.revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo.name, folder_path=folder, revision=repo.revision, commit_message="Export of a run of rl_jax"
        )
    except Exception as error:  # of its HTTP client, of the Hub
        raise hub.HubError(f"{repo}: the upload failed ({hub.first_line(error)})") from error
    return str(done.commit_url)


def _write_json(path: pathlib.Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.export", description=__doc__, formatter_class=shown)
    parser.add_argument("run", metavar="RUN", help="workdir of a run, or RUN/checkpoints/STEP")
    parser.add_argument("--to", required=True, metavar="FOLDER|hf://ORG/NAME", help="where to; a folder must be new")
    parser.add_argument("--best", action="store_true", help="the best kept checkpoint, not the newest")
    parser.add_argument("--dtype", choices=sorted(DTYPES.values()), help="of the tensors; default: that of the params")
    parser.add_argument("--license", default="", help="for the model card, as in apache-2.0")
    parser.add_argument("--public", action="store_true", help="a repository that is created is public")
    options = parser.parse_args(arguments)
    path, repo = pathlib.Path(options.run), None
    try:
        if hub.is_hub(options.to):
            repo = hub.parse(options.to)
            if repo.kind != "model":
                raise ExportError(f"--to={options.to}: a model is not a data set: write hf://ORG/NAME")
            if hub.hub().get_token() is None:
                raise ExportError(f"{repo}: an upload needs your login: `hf auth login`, with a token that may write")
            to = run_folder(path) / "export" / repo.name.replace("/", "--")
            shutil.rmtree(to, ignore_errors=True)  # of an earlier upload
        else:
            to = pathlib.Path(options.to)
        path = best_checkpoint(path) if options.best else path
        lacks = write_folder(path, to, dtype=options.dtype, license=options.license)
        print(f"wrote {to}")
        for text in lacks:
            print(f"without {text}")
        if repo is not None:
            print(f"uploaded to {upload(to, repo, public=options.public)}")
    except (ValueError, OSError) as error:
        print(f"experiments.export: {refusals.said(error)}", file=sys.stderr)
        return refusals.STATUS
    return 0
