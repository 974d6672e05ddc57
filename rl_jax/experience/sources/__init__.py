"""Sources of prompts: which ones come next. `config.sample.prompts = dict(fn="by_success", ...)` names one.

A function takes a PromptTable and keywords and returns a Source (sources.base): take(n), feedback(seen), state() and
restore(state). One of your own is named "module:function".
"""

from rl_jax.experience.sources.base import Source
from rl_jax.experience.sources.contexts import by_transfer
from rl_jax.experience.sources.learned import learned_value
from rl_jax.experience.sources.mixtures import exp3, learning_progress, mixture
from rl_jax.experience.sources.orders import ordered, shuffled, uniform
from rl_jax.experience.sources.stages import hard_later, one_level_after_another, promoted, staged
from rl_jax.experience.sources.success import by_success, prioritised, softmax, thompson

__all__ = [
    "Source",
    "by_success",
    "by_transfer",
    "exp3",
    "hard_later",
    "learned_value",
    "learning_progress",
    "mixture",
    "one_level_after_another",
    "ordered",
    "prioritised",
    "promoted",
    "shuffled",
    "softmax",
    "staged",
    "thompson",
    "uniform",
]
