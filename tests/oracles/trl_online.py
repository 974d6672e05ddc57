"""TRL 0.28.0's NashMDTrainer on numpy arrays; 1.13.0, the last release with it, has the same code to the letter.

value, gradient = trl_online.nash_md_loss(log_probs, ref_log_probs, mask, probability, beta=0.1)
log_probs = trl_online.geometric_mixture(logits, ref_logits, mixture_coef=0.5)
"""

import logging
import types

import numpy as np
import torch

from tests.oracles.arrays import call, tensor, value_and_gradient
from tests.oracles.loading import Package

_package = Package(
    "trl",
    "0.28.0",
    bare=("trl.trainer", "trl.experimental", "trl.experimental.nash_md"),
    stand_ins=(
        "accelerate",
        "datasets",
        "huggingface_hub",
        "pandas",
        "transformers",
        "trl.data_utils",
        "trl.experimental.judges",
        "trl.experimental.online_dpo",
        "trl.experimental.utils",
        "trl.import_utils",
        "trl.models",
        "trl.trainer.base_trainer",
        "trl.trainer.callbacks",
        "trl.trainer.judges",
        "trl.trainer.model_config",
    ),
    folder="oracles-trl-0.28",
)
_package.provide("accelerate", logging=types.SimpleNamespace(get_logger=logging.getLogger))
_nash_md = _package.load("trl.experimental.nash_md.nash_md_trainer")


def nash_md_loss(log_probs, ref_log_probs, mask, probability, *, beta=0.1):
    """NashMDTrainer._compute_losses: the mean over [N, C] samples of the policy; its KL term goes token by token.

    probability: [N], of beating the opponent. Answers (value, gradient in log_probs), in float64.
    """
    refs = tensor(np.where(mask, ref_log_probs, 0.0))

    def loss(log_probs):
        trainer = types.SimpleNamespace(beta=beta)
        return _nash_md.NashMDTrainer._compute_losses(trainer, log_probs, refs, tensor(probability))[0]

    return value_and_gradient(loss, np.where(mask, log_probs, 0.0))


def geometric_mixture(logits, ref_logits, *, mixture_coef=0.5):
    """GeometricMixtureWrapper.forward: the log-probs [..., V] of the opponent that answers a Nash-MD policy."""

    def model(of):
        return lambda: types.SimpleNamespace(logits=tensor(of))

    wrapper = types.SimpleNamespace(model=model(logits), ref_model=model(ref_logits), mixture_coef=mixture_coef)
    with torch.no_grad():
        return call(_nash_md.GeometricMixtureWrapper.forward, wrapper).logits.numpy()
