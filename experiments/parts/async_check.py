"""Checks config.flow, and what else a run of experiments.grpo_async cannot have."""

from experiments.parts import async_columns, async_stream, policy, processes
from experiments.parts.async_flow import rule_of
from experiments.parts.async_shares import check_several
from experiments.parts.judges.table import specs_of
from rl_jax.core.binding import needs

# What experiments.grpo has and this program does not: (field, the value that is none, why).
UNSUPPORTED = (
    ("rollout.engine.name", "continuous", "only this engine takes new weights between two tokens"),
    ("rollout.window", 0, "rows in flight go on by themselves"),
    ("sample.dynamic_sampling.max_batches", 1, "groups are let in one by one; --config.flow has their number"),
    ("sample.references", 0, "the sampler has one policy"),
    ("sample.memory.last", False, "a visit's rows are of several versions"),
    ("algorithm.action_mask.top_p", 1.0, "the mask policy has no versions"),
    ("foreign", {}, "foreign rows have no versions"),
)
SEEING = ("contrastive",)  # of experiments.parts.judges, those with a method `see`


def checked(config):
    """The config itself.

    Raises:
      ValueError: if it is not one of experiments.grpo_async, naming every field, one a line.
    """
    if "flow" not in config:
        raise ValueError("config.flow is missing: start from configs/grpo_async.py, or its function `of`")
    processes.one_process("experiments.grpo_async")
    flow, problems = config.flow, []
    for name, wanted, why in UNSUPPORTED:
        value = config
        for part in name.split("."):
            value = value[part]
        if (value.to_dict() if hasattr(value, "to_dict") else value) != wanted:
            problems.append(f"{name}={value!r} does not work in experiments.grpo_async, only {wanted!r}: {why}")
    try:
        stale = rule_of(config).bound > 0
    except ValueError as error:
        problems.append(f"flow.{error}")
        stale = False
    if "greedy_rewards" in needs(policy.make_credit(config).advantage):
        name = config.algorithm.advantage.fn
        problems.append(f"algorithm.advantage={name!r} needs greedy samples of the newest policy; the sampler is older")
    if stale and not problems and not corrects(config):
        problems.append(
            f"flow.eta={flow.eta}: rows are stale, and nothing in config.algorithm knows it: the ratio is to the "
            "policy at the start of the updates. Set --config.algorithm.behavior_weight.fn=truncated, "
            "take a surrogate that asks for behavior_log_probs, or set flow.eta=0"
        )
    problems += [_seeing(name) for name, spec in specs_of(config).items() if spec.get("fn") in SEEING]
    try:
        check_several(config)
    except ValueError as error:
        problems.append(str(error))
    if flow.get("balance") and not flow.streaming:
        problems.append(
            "flow.balance=True orders the rows of a part; those of a whole batch are shuffled: set flow.streaming=True"
        )
    if flow.streaming and not problems:
        problems += async_stream.problems(config)
    if flow.columns and not problems:
        problems += async_columns.problems(config)
    if problems:
        raise ValueError("\n".join(problems))
    return config


def check_judges(rewards):
    """The rewards themselves; refuses judges of one's own, known once they are made, as `checked` does this project's.

    Args:
      rewards: of rewards.make_rewards.

    Raises:
      ValueError: if a judge reads the policy.
    """
    if found := getattr(rewards, "seeing", []):
        raise ValueError("\n".join(map(_seeing, found)))
    return rewards


def _seeing(name: str) -> str:
    return (
        f"judge.{name} reads the policy that sampled a step's rows, and here they are of several versions: leave the "
        "judge out, or use experiments.grpo"
    )


def corrects(config) -> bool:
    """Whether the loss of a stale row is not that of a fresh one."""
    rule, objective = policy.make_credit(config), policy.make_objective(config)
    weighs = config.algorithm.behavior_weight.fn != "none"
    asks = any(needs(fn) & {"behavior_log_probs", "versions"} for fn in (*rule, *objective) if callable(fn))
    return weighs or asks
