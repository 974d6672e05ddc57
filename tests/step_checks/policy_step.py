"""What the slow steps of GRPO and PPO share: shaping, KL, weights, the loss of a minibatch, trackers, the reference.

From the equations, in torch and float64, on whole batches; nothing here reads rl_jax. `s` is a dict of settings, the
same that `recording.config_of` turns into the program's config; an ablation is another `s` for the slow code alone.
Names of `s` that only ablations use: see `test_grpo_step.ABLATIONS`.
"""

import numpy as np
import torch

from tests.step_checks import model_torch


def tensors(params):
    """Flat params as float64 tensors."""
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in params.items()}


def lora_scale(s):
    """alpha / r, times what an ablation says; 1 without adapters."""
    return s["lora"]["alpha"] / s["lora"]["rank"] * s.get("lora_factor", 1.0) if "lora" in s else 1.0


def score(params, rows, s):
    """(log-probs, entropies) [B, C] of the policy with these params."""
    return model_torch.scores(model_torch.merged(params, lora_scale(s)), rows, s["scored_at"], s["length"])


def masks(step, s):
    """(tokens, tokens of the loss) bool [B, C], and lengths int [B]."""
    lengths = torch.tensor([len(completion) for _, completion in step.rows])
    tokens = torch.arange(s["length"])[None] < lengths[:, None]
    kept = torch.tensor(step.ended) if s["mask_truncated"] else torch.ones(len(lengths), dtype=torch.bool)
    return tokens, tokens & kept[:, None], lengths


def estimate(name, log_probs, reference):
    """An estimate of the KL from samples: d = log pi - log ref; k1 d, k2 d^2 / 2, k3 exp(-d) - 1 + d."""
    d = log_probs - reference
    return {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[name]


def earned(step, states, old, reference, s):
    """(the rewards of rows, of tokens [B, C]): shaping, less the KL, the rest on a row's last token."""
    tokens, _, lengths = masks(step, s)
    rewards, shaping = torch.tensor(step.rewards), s["shaping"]
    if shaping["fn"] == "overlong":
        beyond = (lengths - (s["length"] - shaping["buffer"])) / shaping["buffer"] * shaping["penalty"]
        rewards = rewards - beyond.clamp(min=0.0)
    elif shaping["fn"] == "scaled":
        seen = states["reward_scale"]
        rewards = ((rewards - seen["mean"] * shaping["center"]) / seen["std"]).clamp(
            -shaping["bound"], shaping["bound"]
        )
    coef = states["reward_kl"]["coef"] if "reward_kl" in states else s["reward_kl_coef"]
    if s.get("no_reward_kl"):
        coef = 0.0
    left, right = (reference, old) if s.get("swapped_reward_kl") else (old, reference)
    penalty = coef * estimate(s["reward_kl"]["fn"], left, right) * tokens
    last = torch.nn.functional.one_hot(lengths - 1, s["length"]) * rewards[:, None]
    return rewards - penalty.sum(1), last - penalty


def behavior_weights(step, old, mask, s):
    """exp(log pi_old - log sampler), capped at `cap` if there is one."""
    if s["behavior_weight"]["fn"] == "none":
        return mask.to(torch.float64)
    gap = old - torch.tensor(step.sampled_log_probs)
    return torch.exp(gap).clamp(max=s["behavior_weight"].get("cap", np.inf)) * mask


class Update:
    """One minibatch: its arrays, the loss of the policy, and what the step reports of it.

    Attributes:
      rows: of the step, int [b].
      fixed: dict of arrays of the whole step: mask, old, reference, advantages, weights, sampled, group_tokens.
    """

    def __init__(self, step, rows, fixed, states, s):
        self.rows, self.s, self.states = torch.tensor(rows), s, states
        self.texts = [step.rows[row] for row in rows]
        self.fixed = {name: x[self.rows] for name, x in fixed.items()}
        self.metrics = {}

    def aggregate(self, per_token, name=None):
        """The mean of a minibatch, by the name of its aggregate."""
        mask, name = self.fixed["mask"], name or self.s["aggregate"]["fn"]
        per_token, lengths = torch.where(mask, per_token, 0.0), mask.sum(1)
        if name == "token_mean":
            return per_token.sum() / mask.sum()
        if name == "token_sum":
            return per_token.sum()
        if name == "seq_mean_token_mean":
            return (per_token.sum(1) / lengths.clamp(min=1)).sum() / (lengths > 0).sum()
        if name == "seq_mean_token_sum":
            return per_token.sum() / (lengths > 0).sum()
        assert name == "group_token_mean", name
        share = mask / self.fixed["group_tokens"].clamp(min=1)[:, None]
        return (share * per_token).sum() / share.sum()

    def policy_loss(self, params):
        """The policy's loss, with its metrics noted."""
        s, given = self.s, self.fixed
        mask = given["mask"]
        log_probs, entropy = score(params, self.texts, s)
        now = log_probs.detach()
        old = {"before": given["old"], "current": now, "behavior": given["sampled"]}[s.get("old", "before")]
        ratio = torch.exp(torch.where(mask, log_probs - old, 0.0))
        low, high = 1 - s["surrogate"]["clip_low"], 1 + s["surrogate"]["clip_high"]
        a = given["advantages"]
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(low, high)) * given["weights"]
        kl_coef = self.states["loss_kl"]["coef"] if "loss_kl" in self.states else s["kl_coef"]
        entropy_coef = self.states["entropy"]["applied"] if "entropy" in self.states else s["entropy_coef"]
        if not s.get("no_kl"):
            left, right = (log_probs, given["reference"])[:: -1 if s.get("swapped_kl") else 1]
            loss = loss + kl_coef * estimate(s["kl"]["fn"], left, right)
        if not s.get("no_entropy"):
            loss = loss - entropy_coef * entropy
        with torch.no_grad():
            gap = (now - given["sampled"])[mask]
            mean = lambda x: float(x[mask].to(torch.float64).mean())  # noqa: E731
            self.metrics |= {
                "entropy": mean(entropy),
                "ratio/mean": mean(ratio),
                "ratio/max_dev": float((ratio - 1)[mask].abs().max()),
                "clip/low": mean((a < 0) & (ratio < low)),
                "clip/high": mean((a > 0) & (ratio > high)),
                "kl/k1": mean(estimate("k1", now, given["reference"])),
                "kl/k3": mean(estimate("k3", now, given["reference"])),
                "sampler/gap_max": float(gap.abs().max()),
                "weight": float(gap.exp().mean()),
                "weight_squared": float((2 * gap).exp().mean()),
            }
        return self.aggregate(loss)


def policy_metrics(updates):
    """Of a step, from the metrics of its updates."""
    means = {name: float(np.mean([update[name] for update in updates])) for name in updates[0]}
    first = updates[0]
    means |= {"ratio/first_max_dev": first["ratio/max_dev"], "sampler/gap_max": first["sampler/gap_max"]}
    means["sampler/ess"] = first["weight"] ** 2 / first["weight_squared"]
    return {name: value for name, value in means.items() if not name.startswith("weight")}


def data_metrics(step, s):
    """Of the rows themselves."""
    tokens, _, lengths = masks(step, s)
    groups = step.rewards.reshape(-1, s["group_size"])
    return {
        "reward/mean": float(step.rewards.mean()),
        "reward/std": float(step.rewards.std()),
        "finished": float(step.ended.mean()),
        "truncated": float((~step.ended).mean()),
        "completion_length": float(lengths.to(torch.float64).mean()),
        "mask_occupancy": float(tokens.to(torch.float64).mean()),
        "group/zero_variance": float(np.mean(groups.max(1) == groups.min(1))),
    }


def updates_of(step, s):
    """The rows of each update."""
    orders = step.orders
    count = s["minibatches"]
    if s.get("orders") == "in_order":
        orders = list(np.arange(s["rows"]).reshape(count, -1)) * s["epochs"]
    if s.get("orders") == "first_epoch_again":
        orders = orders[:count] * s["epochs"]
    return orders[: s.get("num_updates", len(orders))]


def group_tokens(mask, s):
    """The tokens of the loss in each row's group, [B]."""
    return mask.reshape(-1, s["group_size"] * mask.shape[1]).sum(1).repeat_interleave(s["group_size"])


# --- Trackers --------------------------------------------------------------------------------------------------------


def first_states(s):
    """The states before the first step, by place."""
    found = {}
    for place, spec in s["trackers"].items():
        if place in ("reward_kl", "loss_kl"):
            found[place] = {"coef": spec["initial"]}
        elif place == "entropy":
            found[place] = {"coef": spec["initial"], "applied": 0.0}
        elif place == "baseline":
            found[place] = {"value": 0.0, "updates": 0.0}
        else:
            found[place] = {"seen": np.zeros(0), "mean": 0.0, "std": 1.0}
    return found


def see_rewards(states, rewards):
    """Before their use: the mean and spread of all rewards so far."""
    if "reward_scale" not in states:
        return states
    seen = np.concatenate([states["reward_scale"]["seen"], rewards])
    std = seen.std(ddof=1) if seen.std() > 0 else 1.0
    return states | {"reward_scale": {"seen": seen, "mean": seen.mean(), "std": std}}


def observe(states, rewards, metrics, s):
    """After the step: rewards as the advantage has seen them, and the step's metrics."""
    found = dict(states)
    for place, spec in s["trackers"].items():
        state = states[place]
        if place in s.get("frozen_trackers", ()):
            continue
        if place in ("reward_kl", "loss_kl"):
            error = np.clip(metrics["kl/k1"] / spec["target"] - 1, -spec["max_error"], spec["max_error"])
            found[place] = {"coef": state["coef"] * (1 + error * len(rewards) / spec["horizon"])}
        elif place == "entropy":
            below = metrics["entropy"] <= spec["target"]
            coef = np.clip(state["coef"] + (spec["step"] if below else -spec["step"]), 0.0, 1.0)
            found[place] = {"coef": coef, "applied": coef if below else 0.0}
        elif place == "baseline":
            kept = spec["decay"] if state["updates"] else 0.0
            found[place] = {
                "value": kept * state["value"] + (1 - kept) * float(np.mean(rewards)),
                "updates": state["updates"] + 1,
            }
    return found


def tracker_metrics(states):
    """tracker/PLACE/FIELD."""
    names = {"coef", "applied", "value", "mean"}
    return {f"tracker/{p}/{f}": float(x) for p, state in states.items() for f, x in state.items() if f in names}


# --- The reference ---------------------------------------------------------------------------------------------------


def mix(left, right, weight):
    """(1 - weight) left + weight right."""
    return {name: (1 - weight) * x + weight * right[name] for name, x in left.items()}


# --- The rows themselves ---------------------------------------------------------------------------------------------


def check_rows(record, s):
    """Asserts that the rows were sampled by the policy before each step, at its temperature and top-k, and rewarded."""
    before = record.first
    for step in record.steps:
        policy = {name: x for name, x in tensors(before).items() if not name.startswith("value_head/")}
        of_model = model_torch.merged(policy, lora_scale(s))
        expected, _ = model_torch.scores(of_model, step.rows, s["temperature"], s["length"], s.get("top_k", 0))
        tokens, _, _ = masks(step, s)
        np.testing.assert_allclose(step.sampled_log_probs, expected.numpy(), rtol=1e-4, atol=2e-5)
        assert not step.sampled_log_probs[~tokens.numpy()].any()
        assert len({tuple(prompt) for prompt, _ in step.rows}) > 1, "one prompt for all"
        np.testing.assert_allclose(step.rewards, step.expected_rewards, rtol=1e-6)
        before = step.params


def check_orders(record, s):
    """Asserts that each epoch of each step sees all rows once, in an order that no other epoch has."""
    count = s["minibatches"]
    places = range(0, count * s["epochs"], count)
    orders = [np.concatenate(step.orders[i : i + count]) for step in record.steps for i in places]
    assert all(len(step.orders) == count * s["epochs"] for step in record.steps)
    assert len({tuple(order) for order in orders}) == len(orders)
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(s["rows"]))
        assert (order != np.arange(s["rows"])).any()


# --- The comparison --------------------------------------------------------------------------------------------------

MOVED, METRIC = 2e-3, 2e-4  # of the largest move of a param, and relative for a metric


def differences(record, found, *, any_step=False):
    """What the slow code and the program do not agree on: name -> how many tolerances apart, above 1.

    Args:
      record: of the program.
      found: per step (params, critic, reference, metrics) of the slow code, an iterator.
      any_step: whether the first step with a difference is enough.
    """
    result = {}
    first = record.first | {
        name: np.zeros_like(x) for name, x in record.steps[0].params.items() if name.startswith("value_head/")
    }
    first_critic = first | {
        name: np.zeros_like(x) for name, x in record.steps[0].critic.items() if name.startswith("value_head/")
    }
    for number, (step, (params, critic, reference, metrics)) in enumerate(zip(record.steps, found, strict=True), 1):
        for kind, start, program, slow in (
            ("params", first, step.params, params),
            ("critic", first_critic, step.critic, critic),
            ("reference", None, step.reference, reference),
        ):
            assert set(program) == set(slow), (kind, set(program) ^ set(slow))
            for name, x in program.items():
                moved = 1e-2 if start is None else np.max(np.abs(x - start[name]))
                apart = np.max(np.abs(x - slow[name].detach().numpy())) / (MOVED * moved + 1e-7)
                result[f"step {number} {kind} {name}"] = apart
        missing = set(metrics) - set(step.metrics)
        assert not missing, missing
        for name, value in metrics.items():
            apart = abs(step.metrics[name] - value) / (METRIC * abs(value) + 2e-5)
            result[f"step {number} {name}"] = apart
        result = {name: float(apart) for name, apart in result.items() if not apart <= 1}
        if result and any_step:
            break
    return result
