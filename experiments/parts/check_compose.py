"""Whether config.reward.compose names terms that config.reward.terms has: it is tried on no rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rl_jax.core.binding import bind, supply
from rl_jax.rewards import compose

OURS = "rl_jax."  # what an import path of this code begins with
NAMELESS = "weighted_sum"  # in the place of what is not tried


def problems(spec: Any, weights: Mapping[str, float]) -> Iterator[str]:
    """What a composition says against terms of these names; nothing if it is one of a user, which may need rows.

    Args:
      spec: of config.reward.compose: a name, a function, or a mapping with its keywords.
      weights: name -> w of each term.
    """
    if _is_own(spec):
        return
    try:
        fn = bind(_without_own(spec), compose)
    except ValueError:
        return  # as check_config says of every field that names a function
    try:
        supply(fn, {"sources": [], "infos": []})({name: np.zeros(0, np.float32) for name in weights}, weights)
    except (TypeError, ValueError) as error:
        yield f"reward.compose: {error}"


def _is_own(spec: Any) -> bool:
    fn = spec.get("fn") if isinstance(spec, Mapping) else spec
    return not isinstance(fn, str) or (":" in fn and not fn.startswith(OURS))


def _without_own(spec: Any) -> Any:
    """`spec`, with the sum in place of a user's own function inside it."""
    if not isinstance(spec, Mapping) or "of" not in spec:
        return spec
    return {**spec, "of": NAMELESS if _is_own(spec["of"]) else _without_own(spec["of"])}
