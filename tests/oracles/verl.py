"""verl 0.9.1: its own functions, on numpy arrays.

`core_algos`, `rollout_corr`, `torch_functional` and `groupwise` are the modules of the installed package. The functions
below call them in float64; a mask is bool [B, T], a loss answers (value, gradient), the gradient with respect to its
first array. Settings go by verl's own names and have verl's own defaults: the clip range is `clip_ratio_low` and
`clip_ratio_high` (0.2); `clip_ratio` alone changes nothing, in verl too.

    value, gradient = verl.policy_loss("vanilla", log_probs, old_log_probs, advantages, mask, clip_ratio_high=0.28)
    advantages, returns = verl.advantage("rloo", rewards, mask, group_size=4)
    value, gradient = verl.aggregate(per_token, mask, "seq-mean-token-mean")
    per_token, gradient = verl.kl_penalty(log_probs, ref_log_probs, "k3+")
    value, gradient = verl.value_loss(values, returns, old_values, mask, cliprange_value=0.5)
    coefficient = verl.adaptive_kl(coefficient, current_kl, n_steps, target=6.0, horizon=10_000)
    weights = verl.rollout_weights(old_log_probs, behavior_log_probs, mask, level="sequence", threshold=2.0)
    kept = verl.rejection_mask(old_log_probs, behavior_log_probs, mask, "seq_mean_k1", threshold="0.5_2.0")
    whitened = verl.masked_whiten(values, mask, shift_mean=False)
    parts = verl.balanced_partitions(verl.workload(lengths), 4, equal_size=False)
"""

import contextlib
import dataclasses
import functools
import inspect
import types

import numpy as np
import torch

from tests.oracles.arrays import call, tensor, value_and_gradient
from tests.oracles.loading import Package


class _DataProto:
    """Where verl keeps a batch of tensors; only its rollout correction wraps one array in it."""

    @staticmethod
    def from_dict(tensors):
        return types.SimpleNamespace(batch=tensors)


_package = Package(
    "verl",
    "0.9.1",
    bare=("verl.utils", "verl.trainer", "verl.trainer.ppo", "verl.workers", "verl.workers.config"),
    stand_ins=(
        "omegaconf",
        "ray",
        "tensordict",
        "transformers",
        "verl.protocol",
        "verl.utils.device",
        "verl.utils.fs",
        "verl.utils.model",
        "verl.utils.profiler",
        "verl.utils.qat",
        "verl.utils.tensordict_utils",
    ),
)
groupwise = _package.load("verl.utils.groupwise")
torch_functional = _package.load("verl.utils.torch_functional")
_package.provide("verl.protocol", DataProto=_DataProto)
_package.provide(
    "verl.utils",
    as_torch_index=groupwise.as_torch_index,
    group_mean_std=groupwise.group_mean_std,
    hf_processor=None,
    hf_tokenizer=None,
)
_actor = _package.load("verl.workers.config.actor")
_package.provide("verl.workers.config", ActorConfig=_actor.ActorConfig)
_algorithm = _package.load("verl.trainer.config.algorithm")
core_algos = _package.load("verl.trainer.ppo.core_algos")
rollout_corr = _package.load("verl.trainer.ppo.rollout_corr_helper")


def policy_loss(
    name,
    log_probs,
    old_log_probs,
    advantages,
    mask,
    *,
    loss_agg_mode="token-mean",
    rollout_is_weights=None,
    **settings,
):
    """(value, gradient [B, T]) of one of verl's policy losses.

    Args:
      name: vanilla, dppo_tv, dppo_kl, gspo, sapo (always seq-mean-token-mean), gpg, clip_cov, kl_cov, geo_mean (always
        a mean over rows), dro, cispo, bypass_mode or reinforce. clip_cov draws its tokens at random where more are
        eligible than clip_cov_ratio allows: with clip_cov_ratio=1 it takes all of them.
      log_probs, old_log_probs: [B, T].
      advantages: [B, T], or [B] for one a row.
      rollout_is_weights: [B, T] or None.
      settings: fields of ActorConfig (clip_ratio_low, clip_ratio_high, clip_ratio_c, tau_pos, tau_neg,
        global_batch_info) or of its PolicyLossConfig (clip_cov_ratio, clip_cov_lb, clip_cov_ub, kl_cov_ratio,
        ppo_kl_coef, dro_beta, rollout_correction as a dict for bypass_mode).
    """
    if name == "reinforce":
        function = core_algos.compute_policy_loss_reinforce
    else:
        function = core_algos.get_policy_loss_fn(name)
    config = _actor_config(settings)
    old_log_probs, mask, weights = tensor(old_log_probs), tensor(mask), tensor(rollout_is_weights)
    advantages = tensor(_per_token(advantages, mask))

    def loss(log_probs):
        # bypass_mode imports another of verl's modules when it is called.
        with _package.entered() if name == "bypass_mode" else contextlib.nullcontext():
            return function(old_log_probs, log_probs, advantages, mask, loss_agg_mode, config, weights)[0]

    return value_and_gradient(loss, log_probs)


def advantage(name, rewards, mask, *, group_size=None, token_rewards=None, components=None, **arguments):
    """(advantages [B, T], returns [B, T]) of one of verl's advantage estimators.

    Args:
      name: gae, grpo, grpo_vectorized, gdpo, grpo_passk, reinforce_plus_plus, reinforce_plus_plus_baseline, rloo,
        rloo_vectorized, opo, remax, gpg, optimal_token_baseline or tir_optimal_token_baseline.
      rewards: [B], put on each row's last token; None with token_rewards.
      mask: bool [B, T].
      group_size: samples of one prompt, which are neighbours.
      token_rewards: [B, T], in place of `rewards`.
      components: [B, K], the rewards that gdpo normalizes one by one (in float32).
      arguments: what the estimator takes by name, arrays or numbers (epsilon, norm_adv_by_std_in_grpo, values, gamma,
        lam, reward_baselines [B], old_log_probs, sum_pi_squared, rollout_is_weights [B, T], handle_zero_tail), or
        else fields of verl's AlgoConfig (gamma of reinforce_plus_plus, gdpo_reward_weights).
    """
    function = core_algos.get_adv_estimator_fn(name)
    mask = np.asarray(mask, bool)
    parameters = inspect.signature(function).parameters
    arguments = {key: tensor(x) if np.ndim(x) else x for key, x in arguments.items()}
    fields = {key: arguments.pop(key) for key in list(arguments) if key not in parameters}
    if components is not None:
        keys = [f"component {k}" for k in range(np.shape(components)[1])]
        fields["gdpo_reward_keys"] = keys
        padded = np.concatenate([np.ones((len(mask), 1)), mask], axis=1)  # a prompt of one token
        arguments["non_tensor_batch"] = {key: np.asarray(components)[:, k] for k, key in enumerate(keys)}
        arguments["batch"] = {"prompts": tensor(mask[:, :1]), "attention_mask": tensor(padded).long()}
        rewards = np.sum(components, axis=1)
    if token_rewards is None:
        token_rewards = _on_last_token(rewards, mask)
    if group_size is not None and "index" in parameters:
        if len(mask) % group_size:
            raise ValueError(f"{len(mask)} rows are no whole number of groups of {group_size}")
        arguments["index"] = np.repeat(np.arange(len(mask) // group_size), group_size)
    if "config" in parameters:
        arguments["config"] = _algorithm.AlgoConfig(**fields)
    elif fields:
        raise TypeError(f"{name} takes no {', '.join(fields)}")
    advantages, returns = call(
        function, token_level_rewards=tensor(token_rewards), response_mask=tensor(mask), **arguments
    )
    return advantages.numpy(), returns.numpy()


def aggregate(per_token, mask, mode, **settings):
    """(value, gradient [B, T]) of verl's agg_loss: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean or
    seq-mean-token-sum-norm; settings are dp_size, batch_num_tokens, global_batch_size and loss_scale_factor."""
    mask = tensor(mask)
    return value_and_gradient(lambda x: core_algos.agg_loss(x, mask, mode, **settings), per_token)


def kl_penalty(log_probs, ref_log_probs, kind):
    """(penalty [B, T], d penalty / d log_probs [B, T]) of kind kl, k1, abs, mse, k2, low_var_kl, k3, k1+ or k3+."""
    ref_log_probs = tensor(ref_log_probs)
    return value_and_gradient(lambda x: core_algos.kl_penalty(x, ref_log_probs, kind), log_probs)


def value_loss(values, returns, old_values, mask, *, cliprange_value, loss_agg_mode="token-mean"):
    """(value, gradient with respect to `values`) of verl's clipped value loss; the arrays are [B, T]."""
    returns, old_values, mask = tensor(returns), tensor(old_values), tensor(mask)

    def loss(values):
        return core_algos.compute_value_loss(values, returns, old_values, mask, cliprange_value, loss_agg_mode)[0]

    return value_and_gradient(loss, values)


def adaptive_kl(coefficient, current_kl, n_steps, *, target, horizon):
    """The KL coefficient after one update of verl's AdaptiveKLController."""
    controller = core_algos.AdaptiveKLController(coefficient, target, horizon)
    controller.update(current_kl, n_steps)
    return float(controller.value)


def masked_whiten(values, mask, shift_mean=True):
    """[B, T] whitened over the mask (variance with n - 1, 1e-8 added to it); verl fills the padding too."""
    return call(torch_functional.masked_whiten, tensor(values), tensor(mask), shift_mean).numpy()


def rollout_weights(old_log_probs, behavior_log_probs, mask, *, level="token", threshold=2.0, batch_normalize=False):
    """Importance weights [B, T] of the trainer's policy over the sampler's, 0 behind the mask.

    Args:
      level: token or sequence.
      threshold: a number truncates the weight there (TIS); "low_high" sets weights outside to 0 (IcePop).
      batch_normalize: divide by the batch mean.
    """
    mask = tensor(mask)
    weights, _ = call(
        rollout_corr.compute_rollout_correction_weights,
        tensor(old_log_probs) - tensor(behavior_log_probs),
        mask,
        rollout_is=level,
        rollout_is_threshold=threshold,
        rollout_is_batch_normalize=batch_normalize,
    )
    return weights.numpy()


def rejection_mask(old_log_probs, behavior_log_probs, mask, kind, *, threshold):
    """The tokens, bool [B, T], that verl keeps.

    Args:
      kind: token_k1, token_k2, token_k3, seq_sum_k1 .. k3, seq_mean_k1 .. k3, seq_max_k2 or seq_max_k3; several,
        with commas between them, must all keep a token.
      threshold: the largest divergence for k2 and k3; for k1 the bounds "low_high" of the sampler's probability over
        the trainer's (a row's product or geometric mean of them), or the upper bound u, which stands for "1/u_u".
    """
    kept, _ = call(
        rollout_corr.compute_rollout_rejection_mask,
        tensor(old_log_probs) - tensor(behavior_log_probs),
        tensor(mask),
        rollout_rs=kind,
        rollout_rs_threshold=threshold,
    )
    return kept.numpy() > 0


def _actor_config(settings):
    names = {field.name for field in dataclasses.fields(_actor.PolicyLossConfig)}
    policy = {key: x for key, x in settings.items() if key in names}
    actor = {key: x for key, x in settings.items() if key not in names}
    # A strategy, a rollout count and a batch size must be named; no loss reads them.
    return _actor.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=_actor.PolicyLossConfig(**policy),
        **actor,
    )


def _per_token(advantages, mask):
    advantages = np.asarray(advantages, np.float64)
    return np.broadcast_to(advantages[:, None], mask.shape) if advantages.ndim == 1 else advantages


def _on_last_token(rewards, mask):
    """[B, T] with each row's reward on its last token (verl sums the row, so an empty row's may lie anywhere)."""
    on_token = np.zeros(mask.shape)
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    on_token[np.arange(len(mask)), last] = rewards
    return on_token


def balanced_partitions(loads, count, equal_size):
    """Lists of indices, Karmarkar-Karp's partition of the loads (ints)."""
    return _balancing().get_seqlen_balanced_partitions(loads, count, equal_size)


def workload(lengths):
    """Work of rows of these lengths (ints), up to a factor."""
    return _balancing().calculate_workload(torch.tensor(np.asarray(lengths))).tolist()


@functools.cache
def _balancing():
    return _package.load("verl.utils.seqlen_balancing")
