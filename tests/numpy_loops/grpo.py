"""GRPO as DeepSeekMath (2402.03300) eq. 3 and 4 print it, twice: numpy loops, and torch for the gradient."""

import math

import numpy as np

from tests.numpy_loops import advantages as advantage_reference
from tests.numpy_loops import kl, policy


def grpo_loss(log_probs, old_log_probs, ref_log_probs, rewards, mask, *, group_size, clip, kl_coef, eps=1e-6):
    """-J_GRPO: mean over prompts of 1/G sum_i 1/|o_i| sum_t (surrogate - kl_coef * k3). Every row has a token."""
    a = advantage_reference.group_relative(rewards, group_size, eps=eps)
    prompts = len(a) // group_size
    total = 0.0
    for prompt in range(prompts):
        for g in range(group_size):
            i = prompt * group_size + g
            row = 0.0
            for t in range(mask.shape[1]):
                if mask[i, t]:
                    ratio = math.exp(float(log_probs[i, t]) - float(old_log_probs[i, t]))
                    bounded = min(max(ratio, 1 - clip[0]), 1 + clip[1])
                    row += min(ratio * a[i], bounded * a[i])
                    row -= kl_coef * kl.k3(float(log_probs[i, t]), float(ref_log_probs[i, t]))
            total += row / int(mask[i].sum()) / group_size / prompts
    return -total


def grpo_metrics(log_probs, old_log_probs, behavior_log_probs, ref_log_probs, advantages, entropy, mask, *, clip):
    """What grpo.loss reports, as plain means and maxima over the tokens of the mask."""
    _, _, low, high = policy.clipped_surrogate(log_probs, old_log_probs, advantages, mask, *clip)
    on = np.asarray(mask)
    ratio = np.exp(np.asarray(log_probs, np.float64) - old_log_probs)[on]
    gap = (np.asarray(log_probs, np.float64) - behavior_log_probs)[on]
    return {
        "kl/k1": kl.per_token(kl.k1, log_probs, ref_log_probs, mask)[on].mean(),
        "kl/k3": kl.per_token(kl.k3, log_probs, ref_log_probs, mask)[on].mean(),
        "entropy": np.asarray(entropy, np.float64)[on].mean(),
        "ratio/mean": ratio.mean(),
        "ratio/max_dev": max(abs(r - 1) for r in ratio),
        "sampler/gap_max": max(abs(g) for g in gap),
        "sampler/weight": np.mean([math.exp(g) for g in gap]),
        "sampler/weight_squared": np.mean([math.exp(2 * g) for g in gap]),
        "clip/low": low[on].mean(),
        "clip/high": high[on].mean(),
    }


def torch_grpo(logits, tokens, old_log_probs, ref_log_probs, rewards, mask, *, group_size, clip, kl_coef, eps=1e-6):
    """The same from logits [B, T, V] by torch's autograd, in float64. Returns (loss, dloss/dlogits) as numpy.

    Prompt by prompt and completion by completion, on slices and not on masks, so that it shares no trick with ours.
    """
    import torch

    logits = torch.tensor(np.asarray(logits), dtype=torch.float64, requires_grad=True)
    old, ref, rewards = (
        torch.tensor(np.asarray(x), dtype=torch.float64) for x in (old_log_probs, ref_log_probs, rewards)
    )
    objective = torch.zeros((), dtype=torch.float64)
    prompts = len(rewards) // group_size
    for prompt in range(prompts):
        rows = range(prompt * group_size, (prompt + 1) * group_size)
        r = rewards[list(rows)]
        a = (r - r.mean()) / (r.std() + eps)  # torch.std divides by G - 1
        for g, i in enumerate(rows):
            n = int(mask[i].sum())
            chosen = torch.tensor(np.asarray(tokens[i, :n]), dtype=torch.int64)
            log_probs = torch.log_softmax(logits[i, :n], dim=-1).gather(1, chosen[:, None])[:, 0]
            ratio = torch.exp(log_probs - old[i, :n])
            surrogate = torch.minimum(ratio * a[g], torch.clamp(ratio, 1 - clip[0], 1 + clip[1]) * a[g])
            log_r = ref[i, :n] - log_probs
            objective = objective + (surrogate - kl_coef * (log_r.exp() - log_r - 1)).mean() / group_size / prompts
    loss = -objective
    loss.backward()
    return loss.item(), logits.grad.numpy()
