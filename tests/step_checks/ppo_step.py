"""The steps of experiments.ppo again, slowly: from recorded rollouts to policy, critic, reference and metrics."""

import torch

from tests.step_checks import model_torch
from tests.step_checks import policy_step as parts
from tests.step_checks.model_torch import AdamW


def gae(token_rewards, values, after, mask, *, discount, lam):
    """A_t = delta_t + gamma lambda A_{t+1}, backwards over the tokens of each row; the returns are A + V."""
    result = torch.zeros_like(token_rewards)
    for row, seen in enumerate(mask):
        carried, following = 0.0, after[row]
        for t in reversed(seen.nonzero()[:, 0].tolist()):
            delta = token_rewards[row, t] + discount * following - values[row, t]
            carried = delta + discount * lam * carried
            result[row, t], following = carried, values[row, t]
    return result, (result + values) * mask


def explained(values, returns, mask):
    """1 - Var(G - V) / Var(G)."""
    v, g = values[mask], returns[mask]
    return float(1 - (g - v).var(unbiased=False) / g.var(unbiased=False))


def value_loss(update, params, s):
    """max((V - G)^2, (clip(V, V_old +- c) - G)^2) / 2, and its share of clipped tokens."""
    given, critic = update.fixed, s["critic"]
    v = model_torch.values(model_torch.merged(params, parts.lora_scale(s)), update.texts, s["length"])[:, :-1]
    near = v.clamp(given["values"] - critic["value_clip"], given["values"] + critic["value_clip"])
    error, clipped = (v - given["returns"]) ** 2, (near - given["returns"]) ** 2
    loss = torch.maximum(error, clipped) / 2
    mask = given["mask"]
    total = update.aggregate(loss)
    of = {"value/loss": float(total.detach()), "value/clipped": float((clipped > error)[mask].to(torch.float64).mean())}
    return total, of


def without_head(params):
    """The policy's own params."""
    return {name: x for name, x in params.items() if not name.startswith("value_head/")}


def with_head(params, width):
    """The first critic: a head of zeros."""
    head = {"value_head/kernel": torch.zeros(width, 1), "value_head/bias": torch.zeros(1)}
    return params | {name: x.to(torch.float64) for name, x in head.items()}


def run(record, s):
    """(params, critic, reference, metrics) of each step of the record, step by step."""
    s = {"scored_at": s["temperature"]} | s
    settings, shared = s["critic"], s["critic"]["shared"]
    params, other = parts.tensors(record.first), parts.tensors(record.other)
    reference = parts.mix(params, other, s["soup"])
    critic = with_head(params, 16)
    if shared:
        params = critic
    optimizer, of_critic = AdamW(**s["adam"]), AdamW(**settings["adam"])
    states = parts.first_states(s)
    for step in record.steps:
        if s.get("fresh_moments"):
            optimizer, of_critic = AdamW(**s["adam"]), AdamW(**settings["adam"])
        states = parts.see_rewards(states, step.rewards)
        tokens, mask, _ = parts.masks(step, s)
        read = params if shared else critic
        with torch.no_grad():
            old, _ = parts.score(without_head(params), step.rows, s)
            looked_up = without_head(params) if s.get("ref_is_policy") else reference
            of_reference, _ = parts.score(looked_up, step.rows, s)
            if s.get("policy_predicts"):
                read = params | {name: x for name, x in read.items() if name.startswith("value_head/")}
            predicted = model_torch.values(model_torch.merged(read, parts.lora_scale(s)), step.rows, s["length"])
            predicted = predicted * s.get("values_times", 1.0)
            _, token_rewards = parts.earned(step, states, old, of_reference, s)
            token_rewards = token_rewards * mask
            bootstrap = torch.tensor(~step.ended) & settings["bootstrap_truncated"]
            values = predicted[:, :-1] * mask
            a, returns = gae(
                token_rewards,
                values,
                predicted[:, -1] * bootstrap,
                mask,
                discount=settings["discount"],
                lam=settings["lam"],
            )
            metrics = {
                "reward/optimized": float(token_rewards.sum() / len(step.rows)),
                "returns/mean": float(returns[mask].mean()),
                "value/mean": float(values[mask].mean()),
                "value/explained_variance": explained(values, returns, mask),
            }
            if settings["whiten"]:
                a = torch.where(mask, (a - a[mask].mean()) / torch.sqrt(a[mask].var() + 1e-8), 0.0)
        fixed = dict(
            mask=mask,
            old=old,
            reference=of_reference,
            advantages=a,
            values=values,
            returns=returns,
            weights=parts.behavior_weights(step, old, mask, s),
            sampled=torch.tensor(step.sampled_log_probs),
            group_tokens=parts.group_tokens(mask, s),
        )
        updates, of_values = [], []
        for rows in parts.updates_of(step, s):
            update = parts.Update(step, rows, fixed, states, s)
            noted = {}

            def critics(params, update=update, noted=noted):
                total, of = value_loss(update, params, s)
                noted |= of
                return total

            def both(params, update=update, critics=critics):
                return update.policy_loss(params) + settings["value_coef"] * critics(params)

            if shared:
                params, of_update = optimizer.step(params, both)
                of_values.append(noted)
            else:
                critic, of_update = of_critic.step(critic, critics)
                of_update.pop("loss")
                of_values.append(noted | {f"critic/{name}": x for name, x in of_update.items()})
                params, of_update = optimizer.step(params, update.policy_loss)
            updates.append(update.metrics | of_update)
        metrics |= parts.policy_metrics(updates) | parts.data_metrics(step, s)
        metrics |= {name: sum(x[name] for x in of_values) / len(of_values) for name in of_values[0]}
        states = parts.observe(states, step.rewards, metrics, s)
        reference = parts.mix(reference, without_head(params), s["reference_rate"])
        yield (params, {} if shared else critic, reference, metrics | parts.tracker_metrics(states))
