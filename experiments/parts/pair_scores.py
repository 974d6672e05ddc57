"""How trained models score given pairs: reward models, and the implicit rewards of DPO runs, by their folders."""

import inspect
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from experiments.parts.judges.base import run_of, setup_of
from experiments.parts.judges.language_models import start_of
from experiments.parts.judges.trained import RewardModel, load_reward_model, log_ratio
from experiments.parts.stored import read_config
from rl_jax import preferences
from rl_jax.credit import ensembles
from rl_jax.data import pipeline
from rl_jax.preferences.records import prompt_of
from rl_jax.runs.logging import write_atomically

PREFERENCE_PROGRAMS = ("dpo", "online_dpo")


def load_scorer(folder: str | pathlib.Path) -> tuple[RewardModel, str]:
    """A model that scores responses, and its kind.

    Args:
      folder: workdir of a run of experiments.reward_model ("explicit"), or of experiments.dpo or online_dpo
        ("implicit": beta sum_t log(pi / ref), ref what the run started from).

    Raises:
      ValueError: if the run is of another program.
      FileNotFoundError: if there is no run.
    """
    folder = pathlib.Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: give the workdir of a run")
    program = read_config(folder).get("program", "reward_model")
    loaders = {"reward_model": ("explicit", _explicit)} | dict.fromkeys(PREFERENCE_PROGRAMS, ("implicit", _implicit))
    if program not in loaders:
        raise ValueError(f"{folder} is a run of {program}; give runs of {', '.join(loaders)}")
    kind, load = loaders[program]
    return load(folder), kind


def _explicit(folder: pathlib.Path) -> RewardModel:
    return load_reward_model(folder, mesh="")


def _implicit(folder: pathlib.Path) -> RewardModel:
    setup, model = run_of(setup_of(folder, ""), folder)
    config = setup.config
    if "encode" not in config:  # of online_dpo, which encodes prompts as the policy's programs do
        config.encode = dict(truncate="left", identical="drop")
    members = log_ratio(setup)
    params = {"model": model, "reference": start_of(setup, folder)}
    return RewardModel(
        lambda params, batch: members(params, batch)[:, 0],
        members,
        params,
        setup.task.tokenizer,
        config,
        setup,
        ensembles.mean,
    )


def read_pairs(
    name: str, path: str, split: str, limit: int = 0, data_dir: str = "", *, one_prompt: bool = False
) -> list[dict]:
    """Records of pairs.

    Args:
      name: of rl_jax.preferences ("jsonl", "generated", "hh", ...).
      path: its file or folder; "" if it needs none.
      split: "train", "test", or "all" of them.
      limit: most records; 0: all.
      data_dir: where it is prepared; "": the usual place.
      one_prompt: refuse records whose responses have prompts of their own, which a JSONL file of pairs cannot hold.

    Raises:
      ValueError: if the records are no pairs, there is none, or one has a prompt per response with `one_prompt`.
    """
    options = ({"path": path} if path else {}) | ({"data_dir": data_dir} if data_dir else {})
    splits = [split]
    if split == "all":  # in one split if the set can be had that way
        takes = name in preferences.LOADERS and "test_share" in inspect.signature(preferences.LOADERS[name]).parameters
        options, splits = (options | {"test_share": 0.0}, ["train"]) if takes else (options, ["test"])
    data = preferences.load(name, **options)
    if data.kind != "pairs":
        raise ValueError(f"{name} are {data.kind}, and pairs are needed")
    records = []
    for part in splits:
        source = data.data_source(part)
        records += [record for batch in pipeline.eval_batches(source, 256, len(source)) for record in batch]
    if not records:
        raise ValueError(f"{name} {path}: there is no record in the split {split!r}")
    own = next((place for place, record in enumerate(records) if "prompts" in record), None)
    if one_prompt and own is not None:
        raise ValueError(
            f"{name} {path}: the responses of record {own} have prompts of their own (`prompts`), and what is written "
            "here has one prompt per pair: give other pairs"
        )
    return records[:limit] if limit else records


def gaps(model: RewardModel, records: Sequence[dict]) -> np.ndarray:
    """r(first response) - r(second) of each pair, float32 [N]; each after its own prompt (records.prompt_of)."""
    prompts = [prompt_of(record, k) for k in (0, 1) for record in records]
    responses = [record["responses"][k] for k in (0, 1) for record in records]
    first, second = model.score_texts(prompts, responses).reshape(2, -1)  # of one call, as an ensemble may couple rows
    return first - second


def write_jsonl(path: pathlib.Path, rows: Sequence[dict]) -> None:
    """One JSON object per line. Refuses to replace a file.

    Raises:
      FileExistsError: if there is one.
    """
    if path.exists():
        raise FileExistsError(f"{path} is there already: name another file, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
