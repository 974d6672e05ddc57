"""config.rollout.weights and .cache: a sampler in 8 bits (rl_jax.models.quantization), beside a trainer that is not.

    --config.rollout.weights=int8 --config.rollout.cache=int8 --config.algorithm.behavior_weight.fn=truncated

The weights are quantised once per update, in a compiled function, in the shards of the params, and then moved to
rollout.mesh if there is one. The rollout's log-probs are those of the quantised model; sampler/gap_max and sampler/ess
say how far it is from the trained one.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from experiments.parts import rollout_mesh
from rl_jax.core import types
from rl_jax.core.binding import bind, needs
from rl_jax.losses import policy
from rl_jax.models.quantization import KINDS, Quantized, quantize_params
from rl_jax.training import sharding

PROGRAMS = ("grpo", "ppo", "online_dpo")  # those that sample with experiments.parts.sampler


def kinds(config: ConfigDict) -> tuple[str, str]:
    """(weights, cache) of config.rollout; "" is not quantised. Runs of before there was a choice have no fields."""
    return config.rollout.get("weights", ""), config.rollout.get("cache", "")


def problems(config: ConfigDict) -> Iterator[str]:
    """What does not go with a quantised sampler, one line each."""
    if "rollout" not in config or not any(kinds(config)):
        return
    named = [f"rollout.{name}={kind!r}" for name, kind in zip(("weights", "cache"), kinds(config), strict=True) if kind]
    said = " ".join(named)
    for name, kind in zip(("weights", "cache"), kinds(config), strict=True):
        if kind and kind not in KINDS:
            yield f"rollout.{name}={kind!r} must be '' or one of {', '.join(KINDS)}"
    if (program := config.get("program")) not in (None, *PROGRAMS):
        yield f"{said}: experiments.{program} samples without it, only {', '.join(PROGRAMS)} do; set it to ''"
    if "engine" in config.rollout and config.rollout.engine.name == "openai":
        yield f"{said}: a server has its own weights and cache (vllm serve --quantization); set it to ''"
    if config.algorithm.get("action_mask", {}).get("top_p", 1.0) < 1:
        yield f"{said} does not go with algorithm.action_mask.top_p={config.algorithm.action_mask.top_p}"
    if "behavior_weight" in config.algorithm and not corrects(config):
        yield (
            f"{said}: the sampler is not the trained model, and nothing in config.algorithm corrects for it. Set "
            "--config.algorithm.behavior_weight.fn=truncated, or take a surrogate that asks for behavior_log_probs"
        )


def corrects(config: ConfigDict) -> bool:
    """Whether the objective corrects for rows that another policy than the trained one has sampled."""
    if config.algorithm.behavior_weight.fn != "none":
        return True
    try:
        return "behavior_log_probs" in needs(bind(config.algorithm.surrogate.to_dict(), policy))
    except ValueError:  # check_config says what is wrong with it
        return True


def sampling_model(setup: Any) -> types.Model:
    """The model of the run's sampler: the trained one, or with its cache in 8 bits."""
    kind = kinds(setup.config)[1]
    mesh = (setup.rollout or setup).mesh
    return sharding.model_on_mesh(setup.model.with_cache(kind), mesh) if kind else setup.model


class Quantizing:
    """A generate for trained params, of one that takes quantised ones. It holds them until the trained are dropped.

    Args:
      setup: of the run.
      make: setup whose params are the quantised ones -> generate(params, ...).
    """

    def __init__(self, setup: Any, make: Callable):
        weights = kinds(setup.config)[0]
        attached = setup.attached or (lambda params: params)
        shapes = jax.eval_shape(attached, setup.param_shapes)
        quantize = sharding.on_mesh(lambda params: quantize_params(attached(params), weights), setup.mesh)
        self.shapes = jax.eval_shape(quantize, setup.param_shapes)

        def shardings(mesh):
            return jax.tree.map(_shardings, sharding.tree_shardings(shapes, mesh), self.shapes)

        self._quantize = jax.jit(quantize, out_shardings=shardings(setup.mesh))
        layout = setup.rollout
        self._layout = layout and layout._replace(param_shardings=shardings(layout.mesh))
        self.generate = make(setup._replace(attached=None, param_shardings=shardings(setup.mesh), rollout=self._layout))
        self._known: list[weakref.ref] = []
        self._quantized = None

    def __call__(self, params: types.Params, *rest) -> types.Rollout:
        return self.generate(self.quantized(params), *rest)

    def lower(self, params: types.Params, *rest):
        """Lowers the program for these arguments, like `lower` of a jitted function."""
        return self.generate.lower(self.quantized(params), *rest)

    def quantized(self, params: types.Params) -> types.Params:
        """The quantised params, made anew only if `params` are other arrays than in the last call."""
        leaves, known = jax.tree.leaves(params), [reference() for reference in self._known]
        if len(leaves) != len(known) or not all(a is b for a, b in zip(leaves, known, strict=True)):
            self._quantized = None  # not beside the next ones
            self._quantized = rollout_mesh.place(self._layout, self._quantize(params))
            self._known = [weakref.ref(leaf, self._drop) for leaf in leaves]
        return self._quantized

    def _drop(self, gone: weakref.ref) -> None:
        if any(gone is reference for reference in self._known):  # not of params that were replaced since
            self._known, self._quantized = [], None

    def _cache_size(self) -> int:
        return self.generate._cache_size()


def _shardings(whole: NamedSharding, shape: Any):
    """Of the values that of the matrix; of the scales too, but along the inputs, of which they have one."""
    if not isinstance(shape, Quantized):
        return whole
    axes = [*whole.spec, *(None,) * (shape.values.ndim - len(whole.spec))]
    axes[-2] = None
    return Quantized(whole, NamedSharding(whole.mesh, PartitionSpec(*axes)))
