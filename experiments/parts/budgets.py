"""How much a config trains on, and which metric is its result. Does not import jax."""

from collections.abc import Callable, Mapping
from typing import Any

# Methods of control.preferences that count steps of segments, which are read more than once.
OFFLINE = ("regret", "cpl")
# A run's result is the last value of the first of these that it logged. Higher is better, except for the losses.
RESULTS = (
    "eval/pass@1",
    "eval/return",
    "eval/reward",
    "eval/rewards/accuracy",
    "eval/accuracy",
    "eval/auc",
    "eval/score",
    "episode/return",
    "reward/mean",
    "eval/loss",
    "loss",
)


def _completions(config: Mapping[str, Any]) -> int:
    return config["sample"]["prompts_per_step"] * config["sample"]["group_size"]


def _responses(config: Mapping[str, Any]) -> int:
    return config["train"]["batch_size"] * config["algorithm"]["responses"]


def _env_steps(config: Mapping[str, Any]) -> int:
    return config["sample"]["num_envs"] * config["sample"]["num_steps"]


def _env_steps_or_segments(config: Mapping[str, Any]) -> int:
    if config["preferences"]["method"] in OFFLINE:
        return 2 * config["fit"]["batch_size"] * config["segments"]["length"]
    return _env_steps(config)


# Rows that one step of each program trains on: completions, responses or env steps.
SAMPLES: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "sft": lambda config: config["sft"]["batch_size"],
    "grpo": _completions,
    "grpo_async": _completions,
    "agents": _completions,
    "masked_diffusion": _completions,
    "ppo": _completions,
    "online_dpo": _completions,
    "dpo": _responses,
    "reward_model": _responses,
    "control.ppo": _env_steps,
    "control.preferences": _env_steps_or_segments,
    "control.replay": _env_steps,
    "control.asynchronous": _env_steps,
    "control.offline": lambda config: config["train"]["batch_size"],
}

# The metric for checkpoint.keep_best, where the config names none: the first of these that an evaluation has.
BEST = tuple(name for name in RESULTS if name.startswith("eval/") and name != "eval/loss")

GROUPS = {"sft": "sft"}  # program -> the config's group with its steps, if that is not "train"


def program_of(config: Mapping[str, Any]) -> str:
    """The module under experiments/ that a config is for. Raises ValueError if its field `program` is missing."""
    if "program" not in config:
        raise ValueError("the config has no field `program`: set it, or give --program")
    return config["program"]


def module_of(program: str) -> str:
    """The module to start: experiments.PROGRAM, or PROGRAM itself if it is an import path of a user's own."""
    return program if "." in program and not program.startswith("control.") else f"experiments.{program}"


def samples_per_step(config: Mapping[str, Any], program: str | None = None) -> int | None:
    """Rows per training step: env steps, completions or responses.

    Args:
      config: nested mappings, as in config.json.
      program: if another than config.program runs: "sft".

    Returns:
      The number, or None if the config lacks the fields.
    """
    try:
        return SAMPLES[program or program_of(config)](config)
    except (KeyError, TypeError, ValueError):
        return None


def budget_of(config: Mapping[str, Any], program: str) -> dict[str, int]:
    """The most that a whole run may use.

    Args:
      config: nested mappings.
      program: the program that runs it.

    Returns:
      {"env_steps": ...} for environments; else steps, samples and, for programs that generate, completion_tokens.

    Raises:
      ValueError: if the config lacks the fields.
    """
    if "total_steps" in config.get("train", {}):
        return {"env_steps": config["train"]["total_steps"]}
    per_step = samples_per_step(config, program)
    group = config.get(GROUPS.get(program, "train"))
    if per_step is None or group is None:
        raise ValueError(f"the config has no field for how long {program} trains: see experiments/parts/budgets.py")
    result = {"steps": group["steps"], "samples": group["steps"] * per_step}
    if SAMPLES[program] is _completions:
        batches = config["sample"].get("dynamic_sampling", {"max_batches": 1})["max_batches"]
        result["completion_tokens"] = result["samples"] * batches * config["rollout"]["completion_length"]
    return result


def length_field(config: Mapping[str, Any], program: str) -> str:
    """The field, by its dotted name, that says for how long a program trains."""
    group = GROUPS.get(program, "train")
    fields = config.get(group, {})
    if "total_steps" in fields:
        return f"{group}.total_steps"
    return f"{group}.data_epochs" if fields.get("data_epochs") else f"{group}.steps"


def result_of(names: Mapping[str, Any]) -> str | None:
    """The name of the result among a run's metrics: the first of RESULTS that is present."""
    return next((name for name in RESULTS if name in names), None)
