"""The checks that are on by default: for each metric its meaning, when to worry, and the run's value."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple


class Check(NamedTuple):
    """When a metric causes a warning.

    Attributes:
      metric: its name in metrics.jsonl.
      worst: "high" or "low", the bad side.
      limit: warn beyond it.
      late: test the mean over the last fifth of the run, instead of the worst value (for exactness checks).
      meaning: one plain line.
      advice: what to look at after a warning.
    """

    metric: str
    worst: str
    limit: float
    late: bool
    meaning: str
    advice: str


CHECKS = (
    Check("ratio/first_max_dev", "high", 1e-3, False,
          "On the first minibatch the policy has not moved, so every ratio must be 1.",
          "The old log-probs use other weights, another mask or another temperature than the loss."),
    Check("sampler/gap_max", "high", 1e-3, False,
          "Sampler and trainer must give a sampled token the same log-prob.",
          "Look at the KV cache, positions and temperature; in bfloat16 a gap near 0.01 is rounding."),
    Check("sampler/ess", "low", 0.9, False,
          "Effective share of the samples after correcting for the sampler's distribution (1 is perfect).",
          "The sampler is stale or off-policy: synchronise it more often or truncate the importance weights."),
    Check("clip/low", "high", 0.3, True,
          "Share of tokens or actions clipped because their ratio fell too far.",
          "Lower the learning rate or take fewer updates on each batch."),
    Check("clip/high", "high", 0.3, True,
          "Share of tokens or actions clipped because their ratio rose too far.",
          "Lower the learning rate or take fewer updates on each batch."),
    Check("entropy", "low", 0.05, True,
          "Mean entropy of the policy's distribution of the next token or action, in nats.",
          "The policy hardly explores any more: raise the upper clip, the temperature or an entropy bonus."),
    Check("group/zero_variance", "high", 0.8, True,
          "Share of groups whose samples all got the same reward: they give no gradient.",
          "The prompts are too easy or too hard for this policy: change the difficulty or the samples per prompt."),
    Check("truncated", "high", 0.2, True,
          "Share of completions cut off at the length limit.",
          "Raise the limit or reward brevity: a cut-off answer counts as wrong."),
    Check("nonfinite/skipped", "high", 0.0, False,
          "Updates that were skipped because a gradient was nan or infinite.",
          "Look at the step before the first skip: learning rate, log of zero, overflow."),
    Check("reward/timeouts", "high", 0.0, False,
          "Reward calls that exceeded the time limit and got the failure reward.",
          "Raise the time limit, or look for completions that make the verifier slow."),
    Check("reward/errors", "high", 0.0, False,
          "Reward calls that raised or crashed and got the failure reward.",
          "Mend the reward function or leave such completions out."),
    Check("data/skipped_records", "high", 0.0, False,
          "Bad records that were left out (--skip_bad_records).",
          "File and line are in the run's log."),
)
SHOWN_ONLY = {  # no limit is right for every run; a value that is not finite still causes a warning
    "kl/k1": "Mean log-ratio to the reference policy (unbiased, noisy).",
    "kl/k3": "The same divergence by an estimator that is never negative.",
    "mask_occupancy": "Share of token slots that are in the loss; the rest is padding.",
    "grad_norm": "Norm of the gradient before clipping.",
}


def acts(metrics: Sequence[dict[str, Any]]) -> bool:
    """Whether a run acts in environments instead of writing text: it logs env_steps."""
    return any("env_steps" in row for row in metrics)


def assess(metrics: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per health metric, warnings first.

    A value that is not finite causes a warning. The entropy has no limit for runs in environments: that of a good
    policy may be near 0, and for continuous actions it may be negative.

    Args:
      metrics: the rows of metrics.jsonl.

    Returns:
      Dicts with metric, status ("warning", "ok", "shown", "not logged"), value (the tested value), judged (how it was
      obtained, in words), limit (in words), meaning, advice and points (for a sparkline).
    """
    in_worlds = acts(metrics)
    rows = [
        _assess_one(check._replace(limit=-math.inf) if in_worlds and check.metric == "entropy" else check, metrics)
        for check in CHECKS
    ]
    unlimited = (Check(name, "high", math.inf, True, meaning, "") for name, meaning in SHOWN_ONLY.items())
    rows += [_assess_one(check, metrics) for check in unlimited]
    order = ("warning", "ok", "shown", "not logged")
    return sorted(rows, key=lambda row: order.index(row["status"]))


def points_of(rows: Sequence[dict[str, Any]], name: str, along: str = "step") -> list[tuple[float, float | None]]:
    """(step, value) for each row with the metric; the value is None if it was not finite.

    Args:
      rows: of metrics.jsonl.
      name: the metric.
      along: the field used as the step.
    """
    return [(row[along], row[name]) for row in rows if name in row and along in row]


def _assess_one(check: Check, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    points = points_of(metrics, check.metric)
    values = [value for _, value in points if value is not None]
    has_limit = math.isfinite(check.limit)
    limit = f"{'above' if check.worst == 'high' else 'below'} {check.limit:g}" if has_limit else ""
    row = {"metric": check.metric, "meaning": check.meaning, "limit": limit, "points": points}
    row.update(advice="", value=None, judged="")
    if not points:
        return {**row, "status": "not logged"}
    if len(values) < len(points):
        # The value was nan or infinite: the run may survive it (the step is skipped), but it always matters.
        judged = f"not a finite number at step {next(step for step, value in points if value is None):g}"
        return {**row, "status": "warning", "judged": judged, "advice": check.advice}
    if check.late:
        late = values[-max(len(values) // 5, 1) :]
        row.update(value=sum(late) / len(late), judged=f"mean of the last {len(late)} logged")
    else:
        pick = max if check.worst == "high" else min
        step, row["value"] = pick(points, key=lambda point: point[1])
        row["judged"] = f"worst, at step {step:g}"
    if not has_limit:
        return {**row, "status": "shown"}
    bad = row["value"] > check.limit if check.worst == "high" else row["value"] < check.limit
    return {**row, "status": "warning" if bad else "ok", "advice": check.advice if bad else ""}
