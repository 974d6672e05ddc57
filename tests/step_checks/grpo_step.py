"""The steps of experiments.grpo again, slowly: from recorded rollouts to params, reference and metrics."""

import torch

from tests.step_checks import policy_step as parts
from tests.step_checks.model_torch import AdamW


def advantages(rewards, states, s):
    """A of each row: (R - mean of the group) / (std + eps), or R - the baseline of earlier steps."""
    if s["advantage"]["fn"] == "tracked_baseline":
        return rewards - states["baseline"]["value"]
    groups = rewards.reshape(-1, s["group_size"])
    centered, std = groups - groups.mean(1, keepdim=True), groups.std(1, keepdim=True, unbiased=s.get("ddof", 1) == 1)
    flat = (centered / (std + 1e-6) if s.get("divide", True) else centered).reshape(-1)
    return torch.where((std > 1e-6).repeat_interleave(s["group_size"]), flat, 0.0)


def run(record, s):
    """(params, {}, reference, metrics) of each step of the record, step by step."""
    s = {"scored_at": s["temperature"]} | s
    params, other = parts.tensors(record.first), parts.tensors(record.other)
    reference = parts.mix(params, other, s["soup"])
    optimizer, states = AdamW(**s["adam"]), parts.first_states(s)
    for step in record.steps:
        if s.get("fresh_moments"):
            optimizer = AdamW(**s["adam"])
        states = parts.see_rewards(states, step.rewards)
        tokens, mask, _ = parts.masks(step, s)
        with torch.no_grad():
            old, _ = parts.score(params, step.rows, s)
            of_reference, _ = parts.score(params if s.get("ref_is_policy") else reference, step.rows, s)
            rewards, _ = parts.earned(step, states, old, of_reference, s)
            if s.get("trackers_too_early"):
                states = parts.observe(states, rewards.numpy(), {"kl/k1": 1.0, "entropy": 0.0}, s)
            a = advantages(rewards, states, s)
        fixed = dict(
            mask=mask,
            old=old,
            reference=of_reference,
            advantages=a[:, None] * mask,
            weights=parts.behavior_weights(step, old, mask, s),
            sampled=torch.tensor(step.sampled_log_probs),
            group_tokens=parts.group_tokens(tokens if s.get("group_tokens_of_all") else mask, s),
        )
        updates = []
        for rows in parts.updates_of(step, s):
            update = parts.Update(step, rows, fixed, states, s)
            params, metrics = optimizer.step(params, update.policy_loss)
            updates.append(update.metrics | metrics)
        metrics = parts.policy_metrics(updates) | parts.data_metrics(step, s)
        states = parts.observe(states, rewards.numpy(), metrics, s)
        reference = parts.mix(reference, params, s["reference_rate"])
        yield (params, {}, reference, metrics | parts.tracker_metrics(states))
