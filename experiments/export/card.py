"""The model card of an exported run: README.md with the metadata block that the Hub reads."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parts import hub

PROGRAMS = {
    "sft": "supervised fine-tuning",
    "grpo": "policy gradients with group baselines (GRPO and its relatives)",
    "grpo_async": "the same on rows of older versions (asynchronous GRPO with bounded staleness)",
    "ppo": "proximal policy optimization with a critic (PPO)",
    "dpo": "preference optimization on given answers (DPO and its relatives)",
    "agents": "GRPO on episodes of several turns in an environment of text",
    "online_dpo": "preference optimization on sampled answers (online DPO and its relatives)",
}
TERMS = ("advantage", "surrogate", "aggregate", "kl", "link", "compare", "score_map")  # of config.algorithm


def card(
    name: str,
    *,
    config: Mapping[str, Any],
    record: Mapping[str, Any],
    step: int,
    evaluation: Mapping[str, Any],
    adapters: bool,
    license: str,
    lacks: Sequence[str] = (),
) -> str:
    """The text of README.md.

    Args:
      name: of the model.
      config: of the run, nested dicts.
      record: its run.json.
      step: of the checkpoint.
      evaluation: "step" and metrics by name; empty if there is none.
      adapters: whether the folder has adapters/.
      license: "" leaves it out.
      lacks: what the folder has not, in words.
    """
    program, base = record["algorithm"], config["model"]["path"]
    metadata = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    metadata |= {"license": license} if license else {}
    metadata |= {"base_model": hub.parse(base).name} if hub.is_hub(base) else {}
    head = [f"{key}: {json.dumps(value)}" for key, value in metadata.items()]
    tags = ["tags:", "- rl_jax", f"- {json.dumps(program)}"]
    parts = ["---", *head, *tags, "---", "", f"# {name}", "", *_method(config, program, base, step)]
    if adapters:
        parts += ["", "`adapters/` has the trained adapters in PEFT's format; the weights beside it are merged."]
    parts += ["", *(f"Without {text}." for text in lacks)] if lacks else []
    parts += ["", "## Data", "", *_data(config), "", "## Evaluation", "", *_evaluation(evaluation)]
    parts += ["", "## Made with", "", *_origin(record), "", "<details><summary>The whole config</summary>", ""]
    return "\n".join([*parts, "```json", json.dumps(config, indent=2, sort_keys=True), "```", "", "</details>", ""])


TRAINED_BY = {"sft": "sft"}  # program -> the group of its optimizer, if that is not `train`


def _method(config: Mapping, program: str, base: str, step: int) -> list[str]:
    algorithm, train = config.get("algorithm", {}), config[TRAINED_BY.get(program, "train")]
    terms = {name: algorithm[name]["fn"] for name in TERMS if isinstance(algorithm.get(name), Mapping)}
    lines = [f"Trained by {PROGRAMS[program]}, with `experiments.{program}` of rl_jax.", ""]
    lines += [f"- from: {_code(base) if base else 'a model with random weights'}"]
    if program != "sft":
        lines += [f"- {name}: {_code(fn)}" for name, fn in terms.items() if fn]
    rank = config["model"]["lora"]["rank"]
    lines += [f"- steps: {step}", f"- seed: {config['seed']}"]
    lines += [f"- learning rate: {train['optimizer']['learning_rate']}", f"- LoRA rank: {rank or 'none, all weights'}"]
    return lines


def _data(config: Mapping) -> list[str]:
    groups = {"prompts": config.get("task"), "preferences": config.get("data"), "reward": config.get("reward")}
    return [f"- {name}: {_code(json.dumps(group, sort_keys=True))}" for name, group in groups.items() if group]


def _evaluation(evaluation: Mapping[str, Any]) -> list[str]:
    if not evaluation:
        return ["The run has no evaluation."]
    rows = [f"| {name} | {_number(value)} |" for name, value in sorted(evaluation.items()) if name != "step"]
    return [f"On held-out prompts, after step {evaluation['step']}.", "", "| metric | value |", "|---|---|", *rows]


def _origin(record: Mapping) -> list[str]:
    command = record["command"] if isinstance(record["command"], str) else shlex.join(record["command"])
    changed = " with uncommitted changes" if record.get("git_dirty") else ""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    devices = ", ".join(record["hardware"].get("devices", [])) or "unknown"
    return [
        f"- commit: {_code(record['git_commit'])}{changed}", f"- command: {_code(command)}",
        f"- started: {record['started']}", f"- devices: {devices}", f"- versions: {versions}",
    ]  # fmt: skip


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _code(text: Any) -> str:
    """Text as Markdown code, whatever it holds."""
    text = " ".join(str(text).split())
    ticks = "`" * (1 + max((len(run) for run in _runs(text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def _runs(text: str) -> list[str]:
    """The runs of backticks in a text."""
    return [part for part in "".join(c if c == "`" else " " for c in text).split(" ") if part]
