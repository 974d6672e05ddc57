"""TRL 1.16.0: the `_compute_loss` methods of its trainers, on numpy arrays.

`GRPOTrainer`, `RLOOTrainer` and `GMPOTrainer` are the classes of the installed package. No trainer is built: the method
is called on a namespace that holds the settings and a model whose log-probs are the given ones, on one process and one
micro-batch. Settings go by the names of TRL's config classes and have TRL's own defaults (loss_type dapo, epsilon 0.2,
beta 0). A mask is bool [B, T], advantages are [B], or [B, T] where the method takes them; a loss answers
(value, gradient [B, T] with respect to log_probs), in float64.

    value, gradient = trl.grpo_loss(log_probs, old_log_probs, advantages, mask, loss_type="dr_grpo", epsilon_high=0.28)
    value, gradient = trl.rloo_loss(log_probs, old_log_probs, advantages, mask, epsilon=0.1)
    value, gradient = trl.gmpo_loss(log_probs, old_log_probs, advantages, mask, epsilon=0.4)
    value, gradient = trl.async_grpo_loss(log_probs, behavior_log_probs, advantages, mask, epsilon=0.2)
    kept = trl.off_policy_mask(advantages, log_probs, behavior_log_probs, mask, threshold=0.1)
    weights = trl.gamma_weights(advantages, log_ratio, mask, k_pos=2.0)
    selected = trl.high_entropy_mask(entropy, mask, quantile=0.8)
"""

import collections
import dataclasses
import functools
import types

import numpy as np
import torch

from tests.oracles.arrays import call, tensor, value_and_gradient
from tests.oracles.loading import Package

_package = Package(
    "trl",
    "1.16.0",
    bare=("trl.trainer", "trl.experimental", "trl.experimental.gmpo", "trl.experimental.async_grpo"),
    stand_ins=(
        "accelerate",
        "datasets",
        "huggingface_hub",
        "pandas",
        "transformers",
        "trl.chat_template_utils",
        "trl.data_utils",
        "trl.distributed",
        "trl.extras",
        "trl.generation",
        "trl.import_utils",
        "trl.kernels",
        "trl.models",
        "trl.trainer.callbacks",
        "trl.trainer.model_config",
    ),
)
# TRL's configs extend a list that their base class holds.
_package.provide("transformers", TrainingArguments=type("TrainingArguments", (), {"_VALID_DICT_FIELDS": []}))
_grpo = _package.load("trl.trainer.grpo_trainer")
_rloo = _package.load("trl.trainer.rloo_trainer")
_gmpo = _package.load("trl.experimental.gmpo.gmpo_trainer")
GRPOTrainer, RLOOTrainer, GMPOTrainer = _grpo.GRPOTrainer, _rloo.RLOOTrainer, _gmpo.GMPOTrainer


def grpo_loss(
    log_probs,
    old_log_probs,
    advantages,
    mask,
    *,
    ref_log_probs=None,
    entropy=None,
    behavior_log_probs=None,
    importance_sampling_ratio=None,
    num_items_in_batch=None,
    **settings,
):
    """GRPOTrainer's loss.

    Args:
      log_probs, old_log_probs: [B, T].
      ref_log_probs: [B, T], needed where beta is not 0.
      entropy: [B, T], needed by top_entropy_quantile and entropy_coef (its mean is taken off the value).
      behavior_log_probs: [B, T], the sampler's, for off_policy_mask_threshold; without them it takes old_log_probs.
      importance_sampling_ratio: [B, T] or [B, 1]; given, it is applied (use_vllm with its correction), by vespo inside
        its weight: there TRL sums its logarithm over the padding too, so it must be 1 behind the mask.
      num_items_in_batch: what dapo, cispo and vespo divide by; the tokens of this mask when it is not given.
      settings: fields of GRPOConfig: loss_type (grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo), epsilon,
        epsilon_high (epsilon when None), delta, beta, use_bias_correction_kl, importance_sampling_level (token,
        sequence), max_completion_length (of dr_grpo), top_entropy_quantile, off_policy_mask_threshold, entropy_coef,
        sapo_temperature_pos, sapo_temperature_neg, vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg.
    """
    inputs = {
        "old_per_token_logps": old_log_probs,
        "ref_per_token_logps": ref_log_probs,
        "sampling_per_token_logps": behavior_log_probs,
        "importance_sampling_ratio": importance_sampling_ratio,
        "num_items_in_batch": np.sum(mask) if num_items_in_batch is None else num_items_in_batch,
    }
    return _loss(GRPOTrainer, _grpo.GRPOConfig, log_probs, advantages, mask, inputs, entropy, settings)


def rloo_loss(log_probs, old_log_probs, advantages, mask, **settings):
    """RLOOTrainer's loss: the PPO clip on the ratio of whole sequences; settings are epsilon and epsilon_high."""
    inputs = {"old_logps": np.sum(np.where(mask, old_log_probs, 0.0), axis=1)}
    return _loss(RLOOTrainer, _rloo.RLOOConfig, log_probs, advantages, mask, inputs, None, settings)


def gmpo_loss(log_probs, old_log_probs, advantages, mask, *, ref_log_probs=None, entropy=None, **settings):
    """GMPOTrainer's loss; settings are epsilon (0.4), epsilon_high, beta, top_entropy_quantile."""
    inputs = {"old_per_token_logps": old_log_probs, "ref_per_token_logps": ref_log_probs}
    return _loss(GMPOTrainer, _gmpo.GMPOConfig, log_probs, advantages, mask, inputs, entropy, settings)


def async_grpo_loss(log_probs, behavior_log_probs, advantages, mask, **settings):
    """AsyncGRPOTrainer's loss of one packed row; advantages are [B, T], settings are epsilon and epsilon_high."""
    module = _async_grpo()
    mask, tokens = np.asarray(mask, bool), int(np.sum(mask))

    def on_tokens(array):
        return tensor(np.asarray(array)[mask])[None]

    ones = torch.ones(1, tokens, dtype=torch.int64)
    inputs = {name: ones for name in ("attention_mask", "input_ids", "position_ids", "shift_labels")}
    inputs |= {"token_index": torch.arange(tokens)[None], "segment_id": torch.tensor(np.nonzero(mask)[0])[None]}
    inputs |= {"old_log_probs": on_tokens(behavior_log_probs), "advantages": on_tokens(advantages)}
    inputs |= {name: torch.tensor([float(tokens)]) for name in ("global_n_tokens", "global_n_forward_tokens")}
    inputs |= {f"tree_{name}": ones for name in ("kv_index", "cu_seqlens_q", "cu_seqlens_k")}
    inputs |= {"mean_seq_len": torch.ones(1), "tree_max_seqlens": torch.ones(1, 2)}

    def loss(log_probs):
        trainer = _trainer(module.AsyncGRPOConfig, settings)
        for name in ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s"):
            setattr(trainer, f"_step_{name}", 0.0)
        selected = log_probs[torch.tensor(mask)]
        outputs = types.SimpleNamespace(log_probs=selected, entropy=torch.zeros_like(selected))
        return module.AsyncGRPOTrainer.compute_loss(trainer, lambda **arguments: outputs, inputs)

    leaf = tensor(log_probs).requires_grad_()
    value = loss(leaf)  # not in `arrays.call`: its metrics want float32 as the default
    return float(value.detach()), torch.autograd.grad(value, leaf)[0].numpy()


@functools.cache
def _async_grpo():
    return _package.load("trl.experimental.async_grpo.async_grpo_trainer")


def off_policy_mask(advantages, log_probs, behavior_log_probs, mask, *, threshold):
    """The rows, bool [B], that the mask of DeepSeek-V3.2 keeps; advantages are [B]."""
    kept = call(
        GRPOTrainer.get_off_policy_mask,
        tensor(advantages)[:, None],
        tensor(log_probs),
        tensor(behavior_log_probs),
        tensor(mask),
        threshold,
    )
    return kept.numpy()[:, 0] > 0


def gamma_weights(advantages, log_ratio, mask, *, importance_sampling_ratio=None, **settings):
    """VESPO's weight of each row, [B]; settings are k_pos, lambda_pos, k_neg and lambda_neg (2, 3, 3, 2)."""
    weights = call(
        GRPOTrainer.get_gamma_weights,
        tensor(advantages)[:, None],
        tensor(log_ratio),
        tensor(mask),
        tensor(importance_sampling_ratio),
        **settings,
    )
    return weights.numpy()[:, 0]


def high_entropy_mask(entropy, mask, *, quantile):
    """The tokens, bool [B, T], whose entropy is at or above that quantile of the masked ones (taken in float32)."""
    trainer = types.SimpleNamespace(accelerator=_accelerator())
    return call(GRPOTrainer.get_high_entropy_mask, trainer, tensor(entropy), tensor(mask), quantile).numpy()


def _loss(trainer_class, config_class, log_probs, advantages, mask, inputs, entropy, settings):
    inputs = {key: tensor(x) for key, x in inputs.items() if x is not None}
    mask = torch.tensor(np.asarray(mask, np.int64))  # TRL's masks are integers
    inputs |= {
        "prompt_ids": torch.ones(len(mask), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.int64),
        "completion_ids": torch.ones_like(mask),
        "completion_mask": mask,
        "advantages": tensor(advantages),
    }
    entropy = torch.zeros(mask.shape, dtype=torch.float64) if entropy is None else tensor(entropy)

    def loss(log_probs):
        trainer = _trainer(config_class, settings)
        trainer.use_vllm = "importance_sampling_ratio" in inputs
        trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (log_probs, entropy, None)
        trainer.get_high_entropy_mask = types.MethodType(GRPOTrainer.get_high_entropy_mask, trainer)
        trainer.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
        trainer.get_gamma_weights = GRPOTrainer.get_gamma_weights
        return trainer_class._compute_loss(trainer, trainer.model, inputs)

    return value_and_gradient(loss, log_probs)


def _trainer(config_class, settings):
    """What the methods read from `self`: TRL's defaults, overridden by the settings; one process, one micro-batch."""
    defaults = {
        field.name: field.default
        for field in dataclasses.fields(config_class)
        if field.default is not dataclasses.MISSING
    }
    unknown = set(settings) - set(defaults)
    if unknown:
        raise TypeError(f"{config_class.__name__} has no {', '.join(sorted(unknown))}")
    args = types.SimpleNamespace(**(defaults | {"steps_per_generation": 1} | settings))
    return types.SimpleNamespace(
        **vars(args)
        | {
            "args": args,
            "model": types.SimpleNamespace(training=True),
            "accelerator": _accelerator(),
            "epsilon_low": args.epsilon,
            "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
            "current_gradient_accumulation_steps": 1,
            "aux_loss_enabled": False,
            "_entropy_bonus_enabled": getattr(args, "entropy_coef", 0.0) != 0.0,
            "_metrics": {"train": collections.defaultdict(list)},
        }
    )


def _accelerator():
    """One process: nothing to gather from another."""
    return types.SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        reduce=lambda x, reduction: x,
        pad_across_processes=lambda x, dim, pad_index: x,
    )
