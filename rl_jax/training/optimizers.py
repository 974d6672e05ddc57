"""Optimizers by name: config.train.optimizer.rule. Each is a function rate -> optax transformation.

b1, b2, eps, weight_decay and decayed are those of the optimizer's fields where a function names them; its other
keywords stand beside `fn`. decayed says which params decay, on which libraries disagree:

    "all"         every trained param, as torch's AdamW and verl's FSDP
    "matrices"    not the norms' scales, biases and DoRA's magnitudes. transformers' Trainer leaves out norms and biases
"""

import re
from collections.abc import Callable

import jax
import optax
from optax import contrib

from rl_jax.core.types import path_name

# Stacked matrices of the layers: [L, in, out], and those of experts [L, E, in, out], but not their router.
DECAYED = ("all", "matrices")
_VECTORS = ("scale", "bias", "magnitude")  # last parts of their paths
_OF_MUON = re.compile(r"(.*/)?layers/(?!experts/router/)(.*/)?(kernel|experts/(gate|up|down))")


def adamw(
    rate: optax.Schedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decayed: str = "all",
) -> optax.GradientTransformation:
    """AdamW: Adam with decoupled weight decay. Source: arXiv 1711.05101.

    Args:
      rate: update -> learning rate.
      b1: decay of the mean of the gradients.
      b2: decay of the mean of their squares.
      eps: added to the root of the mean square.
      weight_decay: per update, times the rate.
      decayed: "all" or "matrices".
    """

    def make(amount):
        return optax.adamw(rate, b1=b1, b2=b2, eps=eps, weight_decay=amount)

    return _decaying(make, weight_decay, decayed)


def lion(
    rate: optax.Schedule,
    *,
    beta_update: float = 0.9,
    beta_mean: float = 0.99,
    weight_decay: float = 0.0,
    decayed: str = "all",
) -> optax.GradientTransformation:
    """Lion: the sign of a mixture of gradient and mean; one state per param. Source: arXiv 2302.06675.

    Its rate is about a tenth of AdamW's, its weight decay ten times as large.

    Args:
      rate: update -> learning rate.
      beta_update: weight of the mean in the update.
      beta_mean: decay of the mean of the gradients.
      weight_decay: per update, times the rate.
      decayed: "all" or "matrices".
    """

    def make(amount):
        return optax.lion(rate, b1=beta_update, b2=beta_mean, weight_decay=amount)

    return _decaying(make, weight_decay, decayed)


def adafactor(
    rate: optax.Schedule,
    *,
    min_size: int = 128,
    relative: bool = False,
    weight_decay: float = 0.0,
    decayed: str = "all",
) -> optax.GradientTransformation:
    """Adafactor: mean squares by rows and columns, without a mean. Source: arXiv 1804.04235.

    Args:
      rate: update -> learning rate.
      min_size: matrices with a smaller side keep all their mean squares.
      relative: whether updates are relative to a param's own size, as in the paper.
      weight_decay: per update, times the rate.
      decayed: "all" or "matrices".
    """

    def make(amount):
        return optax.chain(
            optax.scale_by_factored_rms(min_dim_size_to_factor=min_size),
            optax.clip_by_block_rms(1.0),
            optax.scale_by_param_block_rms() if relative else optax.identity(),
            optax.add_decayed_weights(amount) if amount else optax.identity(),
            optax.scale_by_learning_rate(rate),
        )

    return _decaying(make, weight_decay, decayed)


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
    decayed: str = "all",
) -> optax.GradientTransformation:
    """Muon: orthogonalised momentum for the layers' matrices, AdamW for everything else (embedding, head, adapters).

    Each expert's matrix is one of the layers' matrices. Their router gets AdamW. Updates have AdamW's root mean square,
    so AdamW's rates fit. Source: arXiv 2502.16982.

    Args:
      rate: update -> learning rate.
      beta: decay of the momentum.
      steps: iterations of the orthogonalisation (Newton-Schulz).
      rms: root mean square of an update at rate 1.
      b1: of AdamW.
      b2: of AdamW.
      eps: of AdamW.
      weight_decay: per update, times the rate.
      decayed: "all" or "matrices".
    """

    def make(amount):
        return contrib.muon(
            rate, beta=beta, ns_steps=steps, eps=eps, weight_decay=amount, consistent_rms=rms, adam_b1=b1,
            adam_b2=b2, adam_weight_decay=amount, muon_weight_dimension_numbers=_matrices,
        )  # fmt: skip

    return _decaying(make, weight_decay, decayed)


def sgd(
    rate: optax.Schedule, *, momentum: float = 0.0, weight_decay: float = 0.0, decayed: str = "all"
) -> optax.GradientTransformation:
    """Stochastic gradient descent.

    Args:
      rate: update -> learning rate.
      momentum: decay of the sum of the gradients; 0 keeps no state.
      weight_decay: per update, times the rate.
      decayed: "all" or "matrices".
    """

    def make(amount):
        decay = optax.add_decayed_weights(amount) if amount else optax.identity()
        return optax.chain(decay, optax.sgd(rate, momentum=momentum or None))

    return _decaying(make, weight_decay, decayed)


def _decaying(make: Callable, weight_decay: float, decayed: str) -> optax.GradientTransformation:
    """make(weight_decay) of the params that decay, and make(0.0) of the others."""
    if decayed not in DECAYED:
        raise ValueError(f"decayed={decayed!r} is none of {', '.join(DECAYED)}")
    if decayed == "all":
        return make(weight_decay)

    def labels(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "vectors" if path_name(path).rpartition("/")[2] in _VECTORS else "matrices", params
        )

    return optax.partition({"matrices": make(weight_decay), "vectors": make(0.0)}, labels)


def _matrices(params):
    """Muon's axes of each param: the last two of a layer's kernel or experts, [.., in, out]; None for the others."""

    def axes(path, leaf):
        of_layer = _OF_MUON.fullmatch(path_name(path)) and leaf.ndim > 2
        return contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1) if of_layer else None

    return jax.tree_util.tree_map_with_path(axes, params)
