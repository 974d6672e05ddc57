"""TRL's preference losses on numpy arrays: 1.16.0, and 0.28.0 for what the versions since then dropped.

No trainer is built: the method is called on a namespace that holds the settings and a model that answers with the given
log-probs, on one process. Settings go by the names of TRL's config classes. Log-probs and masks are [N, 2, C], chosen
first (KTO: [N, C]); what stands behind the mask is never read. A loss answers (value, gradient in log_probs), in
float64 where TRL does not cast.

    value, gradient = trl_preference.dpo_loss(log_probs, ref_log_probs, mask, loss_type=["hinge"], beta=0.1)
    value, gradient = trl_preference.kto_loss(log_probs, ref_log_probs, mask, labels, kl_log_ratios, beta=0.1)
    value, gradient = trl_preference.cpo_loss(log_probs, mask, loss_type="simpo", simpo_gamma=0.5)
    value, gradient = trl_preference.orpo_loss(log_probs, mask, beta=0.1)
    value, gradient = trl_preference.old_dpo_loss(log_probs, ref_log_probs, mask, label_smoothing=0.1)
    value, gradient = trl_preference.xpo_loss(log_probs, ref_log_probs, mask, from_model, alpha=1e-2)
    value, gradient = trl_preference.bco_losses([(log_probs, ref_log_probs, mask), ...], beta=0.1)
"""

import collections
import contextlib
import logging
import types

import numpy as np
import torch

from tests.oracles.arrays import tensor, value_and_gradient
from tests.oracles.loading import Package

_STAND_INS = (
    "accelerate",
    "datasets",
    "huggingface_hub",
    "pandas",
    "transformers",
    "trl.data_utils",
    "trl.models",
    "trl.trainer.base_trainer",
    "trl.trainer.callbacks",
    "trl.trainer.judges",
    "trl.trainer.model_config",
)


def _load(version, folder, modules, **more):
    bare = ("trl.trainer", "trl.experimental", *more.pop("bare"))
    package = Package("trl", version, bare=bare, stand_ins=(*_STAND_INS, *more.pop("stand_ins")), folder=folder)
    package.provide("transformers", TrainingArguments=type("TrainingArguments", (), {"_VALID_DICT_FIELDS": []}))
    package.provide("accelerate", logging=types.SimpleNamespace(get_logger=logging.getLogger))
    return [package.load(f"trl.{module}") for module in modules]


_dpo, _kto, _cpo, _orpo = _load(
    "1.16.0",
    "oracles",
    (
        "trainer.dpo_trainer",
        "trainer.kto_trainer",
        "experimental.cpo.cpo_trainer",
        "experimental.orpo.orpo_trainer",
    ),
    bare=("trl.experimental.cpo", "trl.experimental.orpo"),
    stand_ins=(
        "trl.chat_template_utils",
        "trl.distributed",
        "trl.import_utils",
        "trl.kernels",
        "trl.experimental.utils",
    ),
)
_dpo.disable_gradient_checkpointing = _kto.disable_gradient_checkpointing = lambda *_: contextlib.nullcontext()
_old_dpo, _old_bco, _old_xpo = _load(
    "0.28.0",
    "oracles-trl-0.28",
    ("trainer.dpo_trainer", "experimental.bco.bco_trainer", "experimental.xpo.xpo_trainer"),
    bare=("trl.experimental.bco", "trl.experimental.xpo"),
    stand_ins=("trl.import_utils", "trl.experimental.utils", "trl.experimental.online_dpo", "joblib"),
)


def dpo_loss(
    log_probs,
    ref_log_probs,
    mask,
    *,
    loss_type=("sigmoid",),
    loss_weights=None,
    beta=0.1,
    label_smoothing=0.0,
    f_divergence_type="reverse_kl",
    f_alpha_divergence_coef=0.5,
    ld_alpha=None,
    discopop_tau=0.05,
    log_sum_sq_probs=None,
):
    """DPOTrainer._compute_loss of 1.16.

    loss_type: several are added up with loss_weights. log_sum_sq_probs: [N, 2, C], given it is WPO (use_weighting).
    alpha_divergence is taken in float32, the only precision it has a bound for.
    """
    n, _, c = mask.shape
    rows = _rows(mask)
    completion_mask = torch.tensor(np.concatenate([np.zeros((2 * n, 1)), rows], axis=1), dtype=torch.int64)
    squares = np.zeros(mask.shape) if log_sum_sq_probs is None else np.where(mask, log_sum_sq_probs, 0.0)
    dtype = torch.float32 if f_divergence_type == "alpha_divergence" else torch.float64

    def outputs(log_probs):
        zeros = torch.zeros(2 * n, c)
        return types.SimpleNamespace(
            log_probs=log_probs,
            log_sum_sq_probs=tensor(_rows(squares)),
            entropy=zeros,
            mean_logits=zeros,
            is_top1=torch.zeros(2 * n, c, dtype=torch.bool),
        )

    def loss(log_probs):
        trainer = types.SimpleNamespace(
            args=types.SimpleNamespace(gradient_checkpointing_kwargs=None, discopop_tau=discopop_tau),
            model=types.SimpleNamespace(training=True),
            ref_model=lambda **_: outputs(tensor(_rows(np.where(mask, ref_log_probs, 0.0))).to(dtype)),
            accelerator=_accelerator(),
            aux_loss_enabled=False,
            precompute_ref_logps=False,
            ld_alpha=ld_alpha,
            beta=beta,
            label_smoothing=label_smoothing,
            f_divergence_type=f_divergence_type,
            f_alpha_divergence_coef=f_alpha_divergence_coef,
            loss_types=list(loss_type),
            loss_weights=[1.0] * len(loss_type) if loss_weights is None else loss_weights,
            use_weighting=log_sum_sq_probs is not None,
            _metrics={"train": collections.defaultdict(list)},
            _total_train_tokens=0,
            _tp_size=1,
        )
        inputs = {
            "input_ids": torch.ones_like(completion_mask),
            "attention_mask": torch.ones_like(completion_mask),
            "completion_mask": completion_mask,
        }
        policy = lambda **_: outputs(_torch_rows(log_probs).to(dtype))  # noqa: E731
        return _dpo.DPOTrainer._compute_loss(trainer, policy, inputs, return_outputs=False)

    return _value_and_gradient(loss, log_probs, mask)


def kto_loss(
    log_probs,
    ref_log_probs,
    mask,
    labels,
    kl_log_ratios,
    *,
    loss_type="kto",
    beta=0.1,
    desirable_weight=1.0,
    undesirable_weight=1.0,
):
    """KTOTrainer._compute_loss of 1.16 on [N, C]. labels: bool [N]. kl_log_ratios: [N], of the mismatched pairs."""
    n, c = mask.shape
    completion_mask = torch.tensor(np.concatenate([np.zeros((n, 1)), mask], axis=1), dtype=torch.int64)

    def outputs(log_probs):
        zeros = torch.zeros(n, c)
        return types.SimpleNamespace(log_probs=log_probs, entropy=zeros, mean_logits=zeros)

    def loss(log_probs):
        policy = lambda **_: outputs(log_probs)  # noqa: E731
        trainer = types.SimpleNamespace(
            args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
            model=types.SimpleNamespace(training=True),
            ref_model=lambda **_: outputs(tensor(np.where(mask, ref_log_probs, 0.0))),
            accelerator=_accelerator(),
            aux_loss_enabled=False,
            precompute_ref_logps=False,
            calculate_KL=loss_type == "kto",
            loss_type=loss_type,
            beta=beta,
            desirable_weight=desirable_weight,
            undesirable_weight=undesirable_weight,
            _compute_kl_logps=lambda model, _: tensor(kl_log_ratios if model is policy else np.zeros(n)),
            _metrics={"train": collections.defaultdict(list)},
            _total_train_tokens=0,
            _tp_size=1,
        )
        inputs = {
            "input_ids": torch.ones_like(completion_mask),
            "attention_mask": torch.ones_like(completion_mask),
            "completion_mask": completion_mask,
            "label": torch.tensor(np.asarray(labels, np.int64)),
        }
        return _kto.KTOTrainer._compute_loss(trainer, policy, inputs, return_outputs=False)

    return _value_and_gradient(loss, log_probs, mask)


def cpo_loss(
    log_probs, mask, *, loss_type="sigmoid", beta=0.1, label_smoothing=0.0, cpo_alpha=1.0, simpo_gamma=0.5, alpha=0.0
):
    """CPOTrainer.get_batch_loss_metrics of 1.16: sigmoid, hinge, ipo, simpo; alpha is AlphaPO's."""
    settings = dict(
        loss_type=loss_type,
        beta=beta,
        label_smoothing=label_smoothing,
        cpo_alpha=cpo_alpha,
        simpo_gamma=simpo_gamma,
        alpha=alpha,
    )
    return _without_reference(_cpo.CPOTrainer, ("cpo_loss", "concatenated_forward"), log_probs, mask, settings)


def orpo_loss(log_probs, mask, *, beta=0.1):
    """ORPOTrainer.get_batch_loss_metrics of 1.16, the likelihood on the completion (its attention mask); float32."""
    methods = ("odds_ratio_loss", "concatenated_forward")
    return _without_reference(_orpo.ORPOTrainer, methods, log_probs, mask, {"beta": beta, "padding_value": 0})


def _without_reference(trainer_class, methods, log_probs, mask, settings):
    n = len(mask)
    labels = torch.tensor(np.where(np.concatenate([np.zeros((2 * n, 1)), _rows(mask)], axis=1), 1, -100))
    batch = {
        "concatenated_input_ids": torch.ones_like(labels),
        "concatenated_attention_mask": (labels != -100).to(torch.int64),
        "concatenated_labels": labels.to(torch.int64),
        "chosen_labels": labels[:n],
    }

    def loss(log_probs):
        trainer = types.SimpleNamespace(
            accelerator=_accelerator(),
            is_encoder_decoder=False,
            aux_loss_enabled=False,
            pad_token_id=0,
            concatenated_inputs=lambda *_, **__: batch,
            get_batch_logps=trainer_class.get_batch_logps,
            **settings,
        )
        for name in methods:
            setattr(trainer, name, types.MethodType(getattr(trainer_class, name), trainer))
        model = lambda *_, **__: types.SimpleNamespace(logits=_logits(log_probs, mask))  # noqa: E731
        return trainer_class.get_batch_loss_metrics(trainer, model, batch)[0]

    return _value_and_gradient(loss, log_probs, mask)


def old_dpo_loss(
    log_probs,
    ref_log_probs,
    mask,
    *,
    loss_type=("sigmoid",),
    beta=0.1,
    label_smoothing=0.0,
    reference_free=False,
    rpo_alpha=None,
    f_divergence_type="reverse_kl",
    f_divergence_params=None,
):
    """DPOTrainer.get_batch_loss_metrics of 0.28; f_divergence_type reverse_kl, js_divergence, alpha_divergence."""
    n = len(mask)
    lengths = torch.tensor(_rows(mask).astype(np.int64))
    batch = {
        "prompt_input_ids": torch.ones(2 * n, 1, dtype=torch.int64),
        "prompt_attention_mask": torch.ones(2 * n, 1, dtype=torch.int64),
        "completion_input_ids": lengths.clone(),
        "completion_attention_mask": lengths.clone(),
    }
    sums = np.where(mask, ref_log_probs, 0.0).sum(axis=2)
    if "ipo" in loss_type:
        sums = sums / mask.sum(axis=2)
    inputs = {"prompt_input_ids": batch["prompt_input_ids"][:n]}
    inputs |= {"ref_chosen_logps": tensor(sums[:, 0]), "ref_rejected_logps": tensor(sums[:, 1])}

    def loss(log_probs):
        logits = _logits(log_probs, mask)
        trainer = types.SimpleNamespace(
            args=types.SimpleNamespace(use_liger_kernel=False, rpo_alpha=rpo_alpha, ld_alpha=None, discopop_tau=0.05),
            accelerator=_accelerator(),
            aux_loss_enabled=False,
            is_encoder_decoder=False,
            padding_free=False,
            use_logits_to_keep=False,
            use_weighting=False,
            use_num_logits_to_keep=False,
            max_length=None,
            pad_token_id=0,
            loss_type=list(loss_type),
            loss_weights=None,
            beta=beta,
            label_smoothing=label_smoothing,
            reference_free=reference_free,
            f_divergence_type=_old_dpo.FDivergenceType(f_divergence_type),
            f_divergence_params=f_divergence_params,
            running=_running(_old_dpo),
            concatenated_inputs=lambda *_, **__: {key: value.clone() for key, value in batch.items()},
        )
        for name in ("concatenated_forward", "dpo_loss"):
            setattr(trainer, name, types.MethodType(getattr(_old_dpo.DPOTrainer, name), trainer))
        model = lambda ids, **_: types.SimpleNamespace(logits=logits[:, : ids.shape[1]])  # noqa: E731
        losses, _ = _old_dpo.DPOTrainer.get_batch_loss_metrics(trainer, model, inputs)
        return losses.mean()

    return _value_and_gradient(loss, log_probs, mask)


def xpo_loss(log_probs, ref_log_probs, mask, from_model, *, loss_type="sigmoid", beta=0.1, alpha=1e-5):
    """XPOTrainer._compute_losses of 0.28. from_model: bool [N], the chosen response is the policy's own."""
    refs = tensor(np.where(mask, ref_log_probs, 0.0))
    chosen = torch.tensor(np.asarray(from_model))

    def loss(log_probs):
        def of_model(x):
            return torch.where(chosen[:, None], x[:, 0], x[:, 1])

        def of_reference(x):
            return torch.where(chosen[:, None], x[:, 1], x[:, 0])

        trainer = types.SimpleNamespace(args=types.SimpleNamespace(loss_type=loss_type), beta=beta, alpha=alpha)
        arrays = of_model(log_probs), of_reference(log_probs), of_reference(refs), of_model(refs)
        return _old_xpo.XPOTrainer._compute_losses(trainer, *arrays, chosen)[0]

    return _value_and_gradient(loss, log_probs, mask)


def bco_losses(batches, *, beta=0.1, rejected_weights=None):
    """BCOTrainer.bco_loss of 0.28 on batches [N, 2, C] one after the other: the sum over responses / N of the last.

    rejected_weights: [N], the density ratios that the trainer would get from its classifier (UDM).
    """
    running = _running(_old_bco)

    def loss(log_probs, ref_log_probs, mask):
        trainer = types.SimpleNamespace(
            beta=beta,
            running=running,
            match_underlying_distribution=rejected_weights is not None,
            _get_udm_weight=lambda _: tensor(rejected_weights),
        )
        policy, reference = log_probs.sum(2), tensor(np.where(mask, ref_log_probs, 0.0)).sum(2)
        sums = policy[:, 0], policy[:, 1], reference[:, 0], reference[:, 1]
        return _old_bco.BCOTrainer.bco_loss(trainer, *sums, None, None)[0].sum() / len(mask)

    for log_probs, ref_log_probs, mask in batches:
        last = _value_and_gradient(lambda x, ref=ref_log_probs, mask=mask: loss(x, ref, mask), log_probs, mask)
    return last


def _value_and_gradient(loss, log_probs, mask):
    """Of a loss that reads zeros behind the mask, as TRL's model gives them, whatever stands there."""
    real = tensor(mask)
    return value_and_gradient(lambda x: loss(x * real), np.where(mask, log_probs, 0.0))


def _running(module):
    """RunningMoments as a trainer has it at its first step."""
    return module.RunningMoments(_accelerator())


def _rows(x):
    """[N, 2, C] -> [2N, C], all chosen ones first."""
    return np.concatenate([x[:, 0], x[:, 1]])


def _torch_rows(x):
    return torch.cat([x[:, 0], x[:, 1]])


def _logits(log_probs, mask):
    """Logits [2N, 1 + C, 2] in which token 1 has the given log-prob, and 1/2 behind the mask."""
    rows, real = _torch_rows(log_probs), torch.tensor(_rows(mask))
    rows = torch.where(real, rows, torch.full_like(rows, np.log(0.5)))
    logits = torch.stack([torch.log(-torch.expm1(rows)), rows], dim=-1)
    return torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1)


def _accelerator():
    """One process: nothing to gather from another."""
    return types.SimpleNamespace(
        device=torch.device("cpu"), use_distributed=False, gather=lambda x: x, gather_for_metrics=lambda x: x
    )
