"""Functions whose Python runs once per shape, however often a program asks for their shapes and their values."""

import functools
from collections.abc import Callable

import jax

_inlined = functools.partial(jax.jit, inline=True)  # no program of its own: its operations are those of its caller


def traced_once(fn: Callable) -> Callable:
    """fn, traced once for all arguments of the same structure, shapes and dtypes.

    For a function that a program needs twice: for the shapes of what it returns, by jax.eval_shape, and in the body of
    a scan. The program is the same as without, and half of its tracing is saved.

    Args:
      fn: pure, of pytrees of arrays to a pytree of arrays.

    Returns:
      The same function. Its numbers come back as arrays.
    """
    return _inlined(fn)
