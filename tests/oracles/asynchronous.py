"""Losses for stale rows of frameworks that are not installed, in torch float64: written anew from what they compute.

AReaL (Apache-2.0, areal/utils/functional/functional.py:ppo_actor_loss_fn at 2274616 and
areal/trainer/ppo/actor.py:compute_prox_logp_approximations at 00ed924) and prime-rl (Apache-2.0,
src/prime_rl/trainer/rl/loss.py:default_loss_fn at 559b447). They work on one row of tokens there; here on [B, T] with a
mask, which is the same sum. Nothing here imports rl_jax.
"""

import torch

from tests.oracles.arrays import tensor, value_and_gradient


def areal_loss(
    log_probs,
    proximal,
    behavior_log_probs,
    advantages,
    mask,
    *,
    eps_clip=0.2,
    eps_clip_higher=None,
    c_clip=None,
    upper=None,
):
    """ppo_actor_loss_fn with rejection_sampling level token, action mask, metric ratio: (value, gradient).

    Args:
      proximal: [B, T], or a function of log_probs without gradient, as _resolve_proximal_logp has it.
      upper: bound of the rejection sampling; None leaves it out.
    """
    behavior, advantages = tensor(behavior_log_probs), tensor(advantages)
    mask = torch.tensor(mask)
    count = mask.count_nonzero() or 1  # of the mask before anything is rejected

    def loss(log_probs):
        prox = proximal(log_probs.detach()) if callable(proximal) else tensor(proximal)
        kept, weight = mask, torch.ones_like(behavior)
        if upper is not None:
            weight = torch.exp(prox - behavior)
            kept = mask & (weight <= upper)
            weight = torch.where(kept, weight, 0.0)
        ratio = torch.where(kept, torch.exp(log_probs - prox), 0.0)
        high = eps_clip if eps_clip_higher is None else eps_clip_higher
        per_token = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1.0 - eps_clip, 1.0 + high))
        if c_clip is not None:
            per_token = torch.min(per_token, torch.sign(advantages) * c_clip * advantages)
        return torch.where(kept, per_token * weight, 0.0).sum() / count

    return value_and_gradient(loss, log_probs)


def areal_loglinear(behavior_log_probs, versions, current_version):
    """compute_prox_logp_approximations with method "loglinear", as the `proximal` of areal_loss."""
    behavior, versions = tensor(behavior_log_probs), torch.tensor(versions)

    def approximation(log_probs):
        gap, whole = (current_version - 1) - versions, current_version - versions
        drawn = (versions >= 0) & (whole > 0)
        alpha = torch.where(drawn, gap / torch.where(whole == 0, 1, whole), 0.0).clamp(0.0, 1.0)
        return behavior + alpha * (log_probs - behavior)

    return approximation


def prime_rl_loss(log_probs, inference_log_probs, advantages, mask, *, low=0.2, high=0.2, adv_tau=1.0, kl_tau=1e-3):
    """default_loss_fn over rl_scale, the number of its tokens: (value, gradient)."""
    inference, advantages, mask = tensor(inference_log_probs), tensor(advantages), torch.tensor(mask)

    def loss(log_probs):
        log_ratio = log_probs - inference
        moved = torch.exp(log_probs) - torch.exp(inference)
        dropped = torch.where(advantages > 0, moved > high, moved < -low)
        policy = (mask & ~dropped) * adv_tau * advantages * torch.exp(log_ratio)
        return (-policy + kl_tau * mask * log_ratio**2).sum() / mask.sum()

    return value_and_gradient(loss, log_probs)
