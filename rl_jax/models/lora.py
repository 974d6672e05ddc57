"""Low-rank adapters (LoRA, rsLoRA, DoRA) as a transform over params.

    adapters = init_lora(config, params, key)
    loss = lambda adapters, batch: ...model.apply(attach(config, params, adapters), batch)...

Only the adapters get a gradient. In a training state both are stored as {"base": params, "adapters": adapters}, with
`with_adapters` around `apply` and `partition.freeze(optimizer, "base")`. Further groups of such a state, like a value
head, are trained in full. The reference policy of a KL penalty is the base, for free.

Training and sampling `attach` the adapters: a transformer's linear layers add their product to that of the kernel, so
that no second kernel and no gradient of one is formed, and no change is rounded to a 16-bit kernel's dtype. Files and
servers get `merge`d params.
"""

import dataclasses
import re
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params, path_name
from rl_jax.models.partition import matches

VARIANTS = ("lora", "rslora", "dora")
BESIDE = r"layers/(q|k|v|o|gate|up|down)"  # layers that add their adapters themselves: transformer.blocks.Dense
_EXPERTS = "layers/experts/"  # groups whose matrices are the leaves themselves


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which kernels get an adapter, and how it is scaled.

    Attributes:
      rank: r.
      alpha: the delta is scaled by alpha / r, or by alpha / sqrt(r) for rslora.
      targets: a pattern over paths of kernels (see partition), such as "layers/(q|v)".
      variant: "lora" (arXiv 2106.09685), "rslora" (arXiv 2312.03732) or "dora" (arXiv 2402.09353).
    """

    rank: int
    alpha: float
    targets: str
    variant: str = "lora"

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank={self.rank} must be at least 1")
        if self.variant not in VARIANTS:
            raise ValueError(f"variant={self.variant!r} is none of {', '.join(VARIANTS)}")

    @property
    def scale(self) -> float:
        """The factor of the product of the two matrices."""
        return self.alpha / (self.rank**0.5 if self.variant == "rslora" else self.rank)


def kernels(params: Params) -> dict[str, chex.Array]:
    """The matrices that can have an adapter, [..., D_in, D_out], by path without "/kernel"."""
    result = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = path_name(path)
        if name.endswith("/kernel") or (name.startswith(_EXPERTS) and leaf.ndim == 4):
            result[name.removesuffix("/kernel")] = leaf
    return result


def init_lora(config: LoraConfig, params: Params, key: chex.PRNGKey) -> Params:
    """Adapters that change nothing yet, initialised as in PEFT.

    Args:
      config: which kernels.
      params: the model's.
      key: a typed key.

    Returns:
      A nested dict with, for every adapted kernel W [..., D_in, D_out]: "a", float32 [..., D_in, r], uniform in
        +-1/sqrt(D_in); "b", float32 [..., r, D_out], zero; and for DoRA "magnitude", float32 [..., D_out], the norms of
        W's columns.

    Raises:
      ValueError: if config.targets matches no kernel; lists the kernels.
    """
    every = kernels(params)
    chosen = [name for name in sorted(every) if matches(config.targets, name)]
    if not chosen:
        raise ValueError(f"targets={config.targets!r} matches no kernel; the kernels are: {', '.join(sorted(every))}")
    adapters: Params = {}
    for name, subkey in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
        *stack, d_in, d_out = every[name].shape
        bound = d_in**-0.5
        adapter = {
            "a": jax.random.uniform(subkey, (*stack, d_in, config.rank), minval=-bound, maxval=bound),
            "b": jnp.zeros((*stack, config.rank, d_out)),
        }
        if config.variant == "dora":
            adapter["magnitude"] = _column_norms(jnp.asarray(every[name], jnp.float32))[..., 0, :]
        _put(adapters, name, adapter)
    return adapters


def merge(config: LoraConfig, params: Params, adapters: Params) -> Params:
    """Params for a model's `apply`: W + scale a b; for DoRA magnitude * (W + scale a b) / |W + scale a b|.

    |.| is the norm of each column, over D_in, without gradient (DoRA, section 4.3). `params` get no gradient. Computed
    in float32, returned in each kernel's own dtype.

    Raises:
      ValueError: if an adapter's kernel is missing or has another shape, or the variant differs.
    """
    every, merged = kernels(params), jax.tree.map(jax.lax.stop_gradient, params)
    for name, adapter in adapter_groups(adapters).items():
        _check(config, every.get(name), name, adapter)
        kernel, wide = every[name], _adapted(config, every[name], adapter)
        if config.variant == "dora":
            magnitude = adapter["magnitude"].astype(jnp.float32)[..., None, :]
            wide = wide * (magnitude / jax.lax.stop_gradient(_column_norms(wide)))
        path = name.split("/") if kernel.ndim == 4 and name.startswith(_EXPERTS) else [*name.split("/"), "kernel"]
        merged = _replaced(merged, path, wide.astype(kernel.dtype))
    return merged


def _check(config: LoraConfig, kernel: chex.Array | None, name: str, adapter: dict[str, chex.Array]) -> None:
    a, b = adapter["a"], adapter["b"]
    if kernel is None or kernel.shape != (*a.shape[:-1], b.shape[-1]):
        shape = None if kernel is None else kernel.shape
        raise ValueError(f"the adapter of {name!r} is {a.shape} by {b.shape}, its kernel in the params {shape}")
    if ("magnitude" in adapter) != (config.variant == "dora"):
        raise ValueError(f"variant={config.variant!r}, but the adapter of {name!r} holds {', '.join(adapter)}")
    chex.assert_axis_dimension(a, -1, config.rank)


def attach(config: LoraConfig, params: Params, adapters: Params) -> Params:
    """Params for a transformer's `apply`, adapters beside the kernels: x W + (x lora_a) lora_b.

    What its layers cannot add themselves (head, experts, router) is merged. The values are those of `merge` up to
    rounding. `params` get no gradient.

    Args:
      config: of the adapters.
      params: of a transformer.
      adapters: as from init_lora.

    Returns:
      The params, in which an adapted group of BESIDE also holds "lora_a", float32 [L, D_in, r]; "lora_b", float32
        [L, r, D_out], with the scale; and for DoRA "lora_factor", float32 [L, D_out], magnitude / |W + scale a b|.

    Raises:
      ValueError: as merge.
    """
    groups, every = adapter_groups(adapters), kernels(params)
    beside = {name: groups.pop(name) for name in list(groups) if re.fullmatch(BESIDE, name)}
    attached = merge(config, params, nest(groups))
    for name, adapter in beside.items():
        _check(config, every.get(name), name, adapter)
        a, b = adapter["a"].astype(jnp.float32), config.scale * adapter["b"].astype(jnp.float32)
        more = {"lora_a": a, "lora_b": b}
        if config.variant == "dora":
            norms = jax.lax.stop_gradient(_column_norms(_adapted(config, every[name], adapter)))[..., 0, :]
            more["lora_factor"] = adapter["magnitude"].astype(jnp.float32) / norms
        for leaf, array in more.items():
            attached = _replaced(attached, [*name.split("/"), leaf], array)
    return attached


def merge_trained(config: LoraConfig, params: Params) -> Params:
    """`merge` of {"base": params, "adapters": adapters, ...}; further groups (heads) stay as they are."""
    return {**merge(config, params["base"], params["adapters"]), **_heads(params)}


def attach_trained(config: LoraConfig, params: Params) -> Params:
    """`attach` of {"base": params, "adapters": adapters, ...}; further groups (heads) stay as they are."""
    return {**attach(config, params["base"], params["adapters"]), **_heads(params)}


def with_adapters(config: LoraConfig, fn: Callable) -> Callable:
    """`fn(params, ...)`, a model's apply or unembed, as a function of {"base": params, "adapters": adapters}."""

    def adapted(params: Params, *args, **kwargs):
        return fn(attach_trained(config, params), *args, **kwargs)

    return adapted


def adapter_groups(adapters: Params, above: str = "") -> dict[str, dict[str, chex.Array]]:
    """The adapters by the path of their kernel: "layers/q" -> {"a", "b"} or {"a", "b", "magnitude"}."""
    if "a" in adapters and "b" in adapters:
        return {above: adapters}
    result = {}
    for name, below in adapters.items():
        result |= adapter_groups(below, f"{above}/{name}" if above else name)
    return result


def nest(groups: dict[str, dict[str, chex.Array]]) -> Params:
    """The inverse of adapter_groups."""
    adapters: Params = {}
    for name, adapter in groups.items():
        _put(adapters, name, adapter)
    return adapters


def _adapted(config: LoraConfig, kernel: chex.Array, adapter: dict[str, chex.Array]) -> chex.Array:
    """W + scale a b in float32. W gets no gradient."""
    a, b = adapter["a"].astype(jnp.float32), adapter["b"].astype(jnp.float32)
    product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.stop_gradient(jnp.asarray(kernel)).astype(jnp.float32) + config.scale * product


def _column_norms(kernel: chex.Array) -> chex.Array:
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=-2, keepdims=True))


def _heads(params: Params) -> Params:
    return {name: group for name, group in params.items() if name not in ("base", "adapters")}


def _put(tree: Params, name: str, value) -> None:
    *above, last = name.split("/")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _replaced(params: Params, path: list[str], leaf: chex.Array) -> Params:
    """A copy of the nested dict with one leaf changed or added; the caller's own dict is not modified."""
    name, *below = path
    return {**params, name: _replaced(params[name], below, leaf) if below else leaf}
