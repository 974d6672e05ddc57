"""Parts of a parameter tree by path: frozen params, and a table of what is trained and what the optimizer stores.

A pattern is a regular expression that must match the whole path of a leaf ("layers/q/kernel") or of a group above it
("layers/q", "layers"): `embed|layers/(q|k)` matches the embedding and two projections.
"""

import math
import re

import jax
import optax

from rl_jax.core.types import Params, path_name


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the path `name` or that of a group above it."""
    parts = name.split("/")
    return any(re.fullmatch(pattern, "/".join(parts[:depth])) for depth in range(1, len(parts) + 1))


def frozen_mask(params: Params, frozen: str) -> Params:
    """A tree of bool, True if the path matches `frozen`.

    Raises:
      ValueError: if the pattern matches nothing, or leaves nothing to train; lists the paths.
    """
    mask = jax.tree_util.tree_map_with_path(lambda path, _: matches(frozen, path_name(path)), params)
    flags = jax.tree.leaves(mask)
    if not any(flags) or all(flags):
        names = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
        what = "matches no parameter" if not any(flags) else "freezes every parameter"
        raise ValueError(f"frozen={frozen!r} {what}; the parameters are: {', '.join(names)}")
    return mask


def freeze(optimizer: optax.GradientTransformation, frozen: str) -> optax.GradientTransformation:
    """`optimizer` on the parameters that are not frozen; the others do not change and have no optimizer state.

    `init` raises ValueError as frozen_mask does. Gradients of frozen parameters are still computed unless the loss
    stops them: see stop_frozen.

    Args:
      optimizer: of the other parameters.
      frozen: a pattern.
    """

    def labels(params):
        return jax.tree.map(lambda frozen: "frozen" if frozen else "trained", frozen_mask(params, frozen))

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def stop_frozen(params: Params, frozen: str) -> Params:
    """`params` with gradients stopped if the path matches `frozen`: called in the loss, it saves their computation."""
    mask = frozen_mask(params, frozen)
    return jax.tree.map(lambda stop, leaf: jax.lax.stop_gradient(leaf) if stop else leaf, mask, params)


def parameter_table(params: Params, opt_state: optax.OptState | None = None, *, frozen: str | None = None) -> str:
    """A text table: parameters, trained parameters and bytes of every group, and the bytes of the optimizer's state.

    If they are on several devices, also the bytes per device, the mesh axes that split them, and one line per axis with
    the share of the bytes that it splits. (Each device along an axis has a copy of what the axis does not split.)

    Args:
      params: arrays, or shapes (jax.ShapeDtypeStruct) before anything is created.
      opt_state: as params.
      frozen: a pattern.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    groups: dict[str, list] = {}
    for path, leaf in leaves:
        name = path_name(path)
        row = groups.setdefault(name.rpartition("/")[0] or name, [0, 0, 0, 0, set()])
        trained = frozen is None or not matches(frozen, name)
        for column, amount in enumerate((leaf.size, leaf.size * trained, _num_bytes(leaf), _bytes_per_device(leaf))):
            row[column] += amount
        row[4] |= set(_split_over(leaf))
    rows = list(groups.items())
    if isinstance(params, dict) and "adapters" in params:  # listed next to the params that they adapt
        rows += [(f"all of {part}", _sum(row for name, row in rows if name.startswith(part))) for part in params]
    total = _sum(groups.values())
    rows.append(("total", total))
    if opt_state is not None:
        state = jax.tree.leaves(opt_state)
        axes = {axis for leaf in state for axis in _split_over(leaf)}
        sizes = (sum(map(measure, state)) for measure in (_num_bytes, _bytes_per_device))
        rows.append(("optimizer state", [None, None, *sizes, axes]))
    mesh = next((leaf.sharding.mesh for _, leaf in leaves if _is_on_mesh(leaf)), None)
    width = max(len("parameters"), *(len(name) for name, _ in rows))
    lines = [f"{'parameters':<{width}} {'count':>16} {'trained':>16} {'bytes':>18}"]
    lines[0] += f" {'bytes per device':>18}  split over" if mesh else ""
    for name, (count, trained, size, of_device, axes) in rows:
        numbers = [f"{number:>16,}" if number is not None else " " * 16 for number in (count, trained)]
        line = f"{name:<{width}} {numbers[0]} {numbers[1]} {size:>18,}"
        if mesh:
            line += f" {of_device:>18,}  {', '.join(axis for axis in mesh.axis_names if axis in axes) or '-'}"
        line += f"  ({100 * trained / max(count, 1):.4g} % trained)" if name == "total" else ""
        lines.append(line)
    if mesh:
        lines += _axis_lines(mesh, [leaf for _, leaf in leaves], jax.tree.leaves(opt_state))
    return "\n".join(lines)


def _sum(rows) -> list:
    """The rows of a table added up, with the union of their axes."""
    *numbers, axes = zip(*rows, strict=True)
    return [*map(sum, numbers), set().union(*axes)]


def _axis_lines(mesh, params: list, state: list) -> list[str]:
    """For each mesh axis with several devices, the share of the bytes that it splits."""

    def share(leaves, axis):
        total = sum(map(_num_bytes, leaves))
        return f"{100 * sum(_num_bytes(x) for x in leaves if axis in _split_over(x)) / max(total, 1):.1f} %"

    kinds = [("parameters", params)] + ([("optimizer state", state)] if state else [])
    return [
        f"axis {axis}:{size} splits " + ", ".join(f"{share(leaves, axis)} of the {kind}" for kind, leaves in kinds)
        for axis, size in mesh.shape.items()
        if size > 1
    ]


def _num_bytes(leaf) -> int:
    return leaf.size * leaf.dtype.itemsize


def _is_on_mesh(leaf) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, jax.sharding.NamedSharding) and sharding.num_devices > 1


def _bytes_per_device(leaf) -> int:
    """The bytes of the leaf on each of its devices."""
    shape = leaf.sharding.shard_shape(leaf.shape) if _is_on_mesh(leaf) else leaf.shape
    return math.prod(shape) * leaf.dtype.itemsize


def _split_over(leaf) -> list[str]:
    """The mesh axes that split the leaf."""
    return jax.tree.leaves(tuple(leaf.sharding.spec)) if _is_on_mesh(leaf) else []
