"""Parts of a parameter tree by path: frozen ones, and a table of what is trained and what the optimizer holds.

A pattern is a regular expression that must match the whole path of a leaf ("layers/q/kernel") or of a group above it
("layers/q", "layers"): `embed|layers/(q|k)` names the embedding and two projections.
"""

import re

import jax
import optax

from rl_jax.types import Params, path_name


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the path `name` or that of a group above it."""
    parts = name.split("/")
    return any(re.fullmatch(pattern, "/".join(parts[:depth])) for depth in range(1, len(parts) + 1))


def frozen_mask(params: Params, frozen: str) -> Params:
    """A tree of bool, True where the path matches `frozen`.

    Raises ValueError, with the paths there are, where the pattern matches nothing or leaves nothing to train.
    """
    mask = jax.tree_util.tree_map_with_path(lambda path, _: matches(frozen, path_name(path)), params)
    flags = jax.tree.leaves(mask)
    if not any(flags) or all(flags):
        names = [path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
        what = "matches no parameter" if not any(flags) else "freezes every parameter"
        raise ValueError(f"frozen={frozen!r} {what}; there are: {', '.join(names)}")
    return mask


def freeze(optimizer: optax.GradientTransformation, frozen: str) -> optax.GradientTransformation:
    """`optimizer` on the parameters that are not frozen; the others stay, and have no optimizer state.

    frozen: a pattern. `init` raises ValueError as frozen_mask does. Their gradients are still computed where the loss
    does not stop them: see stop_frozen.
    """

    def labels(params):
        return jax.tree.map(lambda frozen: "frozen" if frozen else "trained", frozen_mask(params, frozen))

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def stop_frozen(params: Params, frozen: str) -> Params:
    """`params` with gradients stopped where the path matches `frozen`: called in the loss, saves their computation."""
    mask = frozen_mask(params, frozen)
    return jax.tree.map(lambda stop, leaf: jax.lax.stop_gradient(leaf) if stop else leaf, mask, params)


def parameter_table(params: Params, opt_state: optax.OptState | None = None, *, frozen: str | None = None) -> str:
    """A text table: parameters, trained ones and bytes of every group, and the bytes of the optimizer's state.

    params, opt_state: arrays, or shapes (jax.ShapeDtypeStruct) where nothing has been made yet. frozen: a pattern.
    """
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    groups: dict[str, list[int]] = {}
    for path, leaf in leaves:
        name = path_name(path)
        row = groups.setdefault(name.rpartition("/")[0] or name, [0, 0, 0])
        trained = frozen is None or not matches(frozen, name)
        for column, amount in enumerate((leaf.size, leaf.size * trained, _num_bytes(leaf))):
            row[column] += amount
    total = [sum(column) for column in zip(*groups.values(), strict=True)]
    width = max(len("parameters"), *map(len, groups))
    head = f"{'parameters':<{width}} {'count':>16} {'trained':>16} {'bytes':>18}"
    line = "{:<{}} {:>16,} {:>16,} {:>18,}"
    rows = [line.format(name, width, *row) for name, row in groups.items()]
    share = f"{100 * total[1] / max(total[0], 1):.4g} % trained"
    rows = [head, *rows, line.format("total", width, *total) + f"  ({share})"]
    if opt_state is not None:
        size = sum(_num_bytes(leaf) for leaf in jax.tree.leaves(opt_state))
        rows.append(f"{'optimizer state':<{width}} {'':>16} {'':>16} {size:>18,}")
    return "\n".join(rows)


def _num_bytes(leaf) -> int:
    return leaf.size * leaf.dtype.itemsize
