"""Optimizers by name: config.train.optimizer.rule. Each is a function rate -> optax transformation.

b1, b2, eps and weight_decay are those of the optimizer's fields where a function names them; its other keywords stand
beside `fn`.
"""

import re

import jax
import optax
from optax import contrib

from rl_jax.core.types import path_name

# Stacked matrices of the layers: [L, in, out], and those of experts [L, E, in, out], but not their router.
_OF_MUON = re.compile(r"(.*/)?layers/(?!experts/router/)(.*/)?(kernel|experts/(gate|up|down))")


def adamw(
    rate: optax.Schedule, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """AdamW: Adam with decoupled weight decay. Source: arXiv 1711.05101.

    Args:
      rate: update -> learning rate.
      b1: decay of the mean of the gradients.
      b2: decay of the mean of their squares.
      eps: added to the root of the mean square.
      weight_decay: per update, times the rate.
    """
    return optax.adamw(rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)


def lion(
    rate: optax.Schedule, *, beta_update: float = 0.9, beta_mean: float = 0.99, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Lion: the sign of a mixture of gradient and mean; one state per param. Source: arXiv 2302.06675.

    Its rate is about a tenth of AdamW's, its weight decay ten times as large.

    Args:
      rate: update -> learning rate.
      beta_update: weight of the mean in the update.
      beta_mean: decay of the mean of the gradients.
      weight_decay: per update, times the rate.
    """
    return optax.lion(rate, b1=beta_update, b2=beta_mean, weight_decay=weight_decay)


def adafactor(
    rate: optax.Schedule, *, min_size: int = 128, relative: bool = False, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Adafactor: mean squares by rows and columns, without a mean. Source: arXiv 1804.04235.

    Args:
      rate: update -> learning rate.
      min_size: matrices with a smaller side keep all their mean squares.
      relative: whether updates are relative to a param's own size, as in the paper.
      weight_decay: per update, times the rate.
    """
    decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
    return optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=min_size),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms() if relative else optax.identity(),
        decay,
        optax.scale_by_learning_rate(rate),
    )


def muon(
    rate: optax.Schedule,
    *,
    beta: float = 0.95,
    steps: int = 5,
    rms: float = 0.2,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    """Muon: orthogonalised momentum for the layers' matrices, AdamW for everything else (embedding, head, adapters).

    Each expert's matrix is one of the layers' matrices. Their router gets AdamW. Updates have AdamW's root mean square, so AdamW's rates fit. Source: arXiv 2502.16982.

    Args:
      rate: update -> learning rate.
      beta: decay of the momentum.
      steps: iterations of the orthogonalisation (Newton-Schulz).
      rms: root mean square of an update at rate 1.
      b1: of AdamW.
      b2: of AdamW.
      eps: of AdamW.
      weight_decay: per update, times the rate.
    """
    return contrib.muon(
        rate, beta=beta, ns_steps=steps, eps=eps, weight_decay=weight_decay, consistent_rms=rms, adam_b1=b1, adam_b2=b2,
        adam_weight_decay=weight_decay, muon_weight_dimension_numbers=_matrices,
    )  # fmt: skip


def sgd(rate: optax.Schedule, *, momentum: float = 0.0, weight_decay: float = 0.0) -> optax.GradientTransformation:
    """Stochastic gradient descent.

    Args:
      rate: update -> learning rate.
      momentum: decay of the sum of the gradients; 0 keeps no state.
      weight_decay: per update, times the rate.
    """
    decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
    return optax.chain(decay, optax.sgd(rate, momentum=momentum or None))


def _matrices(params):
    """Muon's axes of each param: the last two of a layer's kernel or experts, [.., in, out]; None for the others."""

    def axes(path, leaf):
        of_layer = _OF_MUON.fullmatch(path_name(path)) and leaf.ndim > 2
        return contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1) if of_layer else None

    return jax.tree_util.tree_map_with_path(axes, params)
