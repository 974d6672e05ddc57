"""Which program a config is for, how much it trains on, and what its result is called. Loads no jax.

The groups of a config say which program reads it: `env` control_ppo, `critic` ppo, `grpo` grpo, and so on.
"""

from collections.abc import Mapping
from typing import Any

# (group, program), the first that a config has: online_dpo and ppo have the groups of dpo and grpo, too, and
# control_preferences has those of control_ppo.
GROUPS = (
    ("preferences", "control_preferences"),
    ("frontier", "preferences"),
    ("best_of_n", "best_of_n"),
    ("env", "control_ppo"),
    ("reward_model", "reward_model"),
    ("online", "online_dpo"),
    ("dpo", "dpo"),
    ("critic", "ppo"),
    ("grpo", "grpo"),
)
# The methods of control_preferences whose steps are those of segments, seen again and again.
OFFLINE = ("regret", "cpl")
# A run's result is the last value of the first of these that it has logged; all but the losses are better when higher.
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


def program_of(config: Mapping[str, Any]) -> str:
    """The module under experiments/ that a config is for. Raises ValueError where its groups do not say."""
    for group, program in GROUPS:
        if group in config:
            return program
    known = ", ".join(group for group, _ in GROUPS)
    raise ValueError(f"the config has none of the groups {known}: name its program with --program")


def samples_per_step(config: Mapping[str, Any], program: str | None = None) -> int | None:
    """Rows that a step trains on: steps of environments, completions or responses; None where a config does not say.

    config: nested mappings, a config.json, too. program: where it is another than program_of(config): "sft".
    """
    try:
        program = program or program_of(config)
        if program == "control_preferences" and config["preferences"]["method"] in OFFLINE:
            return 2 * config["fit"]["batch_size"] * config["segments"]["length"]
        if program in ("control_ppo", "control_preferences"):
            return config["num_envs"] * config["num_steps"]
        if program == "sft":
            return config["sft"]["batch_size"]
        if program in ("grpo", "ppo"):
            return config["grpo"]["prompts_per_step"] * config["grpo"]["group_size"]
        if program == "online_dpo":
            return config["online"]["prompts_per_step"] * config["online"]["group_size"]
        if program in ("dpo", "reward_model"):
            return config[program]["batch_size"] * config[program]["responses"]
    except (KeyError, TypeError, ValueError):
        pass
    return None


def budget_of(config: Mapping[str, Any], program: str) -> dict[str, int]:
    """What a whole run may use: {"env_steps": ...} of an environment's program, or steps, samples and, for programs
    that generate, completion_tokens at most. Raises ValueError for a program whose config does not say."""
    if program in ("control_ppo", "control_preferences"):
        return {"env_steps": config["total_steps"]}
    group = {"ppo": "grpo", "online_dpo": "dpo"}.get(program, program)
    per_step = samples_per_step(config, program)
    if per_step is None or group not in config:
        raise ValueError(
            f"the config does not say how much {program} trains on: add it to experiments/parts/programs.py"
        )
    steps = config[group]["steps"]
    found = {"steps": steps, "samples": steps * per_step}
    if program in ("grpo", "ppo", "online_dpo"):
        batches = 1 if program == "online_dpo" else config["grpo"]["dynamic_sampling"]["max_batches"]
        found["completion_tokens"] = found["samples"] * batches * config["rollout"]["completion_length"]
    return found


def result_of(names: Mapping[str, Any]) -> str | None:
    """The name of the result among a run's metrics: the first of RESULTS that is there."""
    return next((name for name in RESULTS if name in names), None)
