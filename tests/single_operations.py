"""Single operations of jax without a program of their own: numpy computes them, to the same bits.

An operation outside jit (jnp.zeros, x[1:], x * y, a reshape) is compiled by XLA for each shape, which takes 15 ms; the
tests have 26,000 of them. Those that only move data, compare, work on integers or are rounded once, as IEEE 754 says,
have one right result: conftest.py lets numpy compute it. XLA's, as for users, are sums of floats, exponentials,
products of matrices, two roundings in one function, zeros or not-a-numbers of which one is chosen, numbers below the
normal ones (it flushes them), what jax.debug_nans and debug_infs look for, and every function under jit with more than
a few operations. What is called again and again is compiled after all. test_single_operations.py compares all of them
with XLA, bit by bit.
"""

import weakref

import jax
import numpy as np
from jax._src import config, core, pjit
from jax._src.interpreters import pxla
from jax._src.sharding_impls import UNSPECIFIED, SingleDeviceSharding

MOST_EQUATIONS, MOST_ELEMENTS, MOST_CALLS = 12, 1 << 14, 60
GUARDS = (config.transfer_guard_host_to_device, config.transfer_guard_device_to_host)
DTYPES = {np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float32")}


class NotHere(Exception):
    """Its result is XLA's business."""


def _normal(*arrays) -> None:
    """Raises NotHere if a number lies between 0 and the smallest normal one, which XLA takes for 0."""
    for x in arrays:
        if x.dtype.kind == "f" and np.any((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)):
            raise NotHere


def _one_meant(*arrays) -> None:
    """Raises NotHere if it is open which of two zeros, or of a number and a not-a-number, a largest one is."""
    if any(x.dtype.kind == "f" and np.any(np.isnan(x) | (x == 0)) for x in arrays):
        raise NotHere


def _exact(function):
    """A function of numbers that has no rounding."""

    def run(*arrays, **params):
        _normal(*arrays)
        return function(*arrays)

    return run, 0


def _rounded(function):
    """A function of numbers that IEEE 754 rounds once."""

    def run(*arrays, **params):
        result = function(*arrays)
        _normal(*arrays, result)
        return result

    return run, 1


def _chosen(function):
    """max, min."""

    def run(*arrays, **params):
        _one_meant(*arrays)
        _normal(*arrays)
        return function(*arrays)

    return run, 0


def _integers(function):
    """A function of integers and bools only."""

    def run(*arrays, **params):
        if any(x.dtype.kind == "f" for x in arrays):
            raise NotHere
        return function(*arrays)

    return run, 0


def _reduced(function, kinds: str, **keywords):
    """A reduction of what it does not matter in which order: numbers of these kinds of dtypes."""

    def run(x, *, axes, **params):
        if x.dtype.kind not in kinds or 0 in x.shape:
            raise NotHere
        _one_meant(x)
        _normal(x)
        return function(x, axis=tuple(axes), **keywords).astype(x.dtype)

    return run, 0


def _broadcast(x, *sizes, shape, broadcast_dimensions, sharding=None):
    if sizes or sharding is not None:
        raise NotHere
    wide = [1] * len(shape)
    for place, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[place] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _reshape(x, *sizes, new_sizes, dimensions, sharding=None):
    if sizes or dimensions is not None or sharding is not None:
        raise NotHere
    return x.reshape(new_sizes)


def _slice(x, *, start_indices, limit_indices, strides):
    steps = strides or (1,) * x.ndim
    return x[tuple(slice(*part) for part in zip(start_indices, limit_indices, steps, strict=True))]


def _dynamic_slice(x, *starts, slice_sizes):
    if len(starts) != x.ndim:
        raise NotHere
    begins = [min(max(int(start), 0), n - size) for start, n, size in zip(starts, x.shape, slice_sizes, strict=True)]
    return x[tuple(slice(begin, begin + size) for begin, size in zip(begins, slice_sizes, strict=True))]


def _split(x, *, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _convert(x, *, new_dtype, sharding=None, **params):
    new_dtype = np.dtype(new_dtype)
    if sharding is not None or new_dtype not in DTYPES or (x.dtype.kind == "f" and new_dtype.kind in "iu"):
        raise NotHere
    _normal(x)
    return x.astype(new_dtype)


def _power(x, *, y):
    if y != 2 or x.dtype.kind != "f":
        raise NotHere
    return np.square(x)


def _select(which, *cases):
    if which.dtype != bool or len(cases) != 2:
        raise NotHere
    return np.where(which, cases[1], cases[0])


def _iota(*sizes, dtype, shape, dimension, sharding=None):
    if sizes or sharding is not None or np.dtype(dtype) not in DTYPES:
        raise NotHere
    numbers = np.arange(shape[dimension]).astype(dtype)
    return _broadcast(numbers, shape=shape, broadcast_dimensions=(dimension,))


def _divide(x, y):
    if x.dtype.kind != "f":
        raise NotHere
    return np.divide(x, y)


# name of the primitive -> (function of arrays and parameters, roundings of floats)
OPERATIONS = {
    "broadcast_in_dim": (_broadcast, 0),
    "reshape": (_reshape, 0),
    "squeeze": (lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)), 0),
    "transpose": (lambda x, *, permutation: np.transpose(x, permutation), 0),
    "rev": (lambda x, *, dimensions: np.flip(x, tuple(dimensions)), 0),
    "slice": (_slice, 0),
    "dynamic_slice": (_dynamic_slice, 0),
    "split": (_split, 0),
    "concatenate": (lambda *xs, dimension: np.concatenate(xs, dimension), 0),
    "select_n": (_select, 0),
    "iota": (_iota, 0),
    "copy": (lambda x: x, 0),
    "stage": (lambda x: x, 0),
    "convert_element_type": (_convert, 1),
    "add": _rounded(np.add),
    "sub": _rounded(np.subtract),
    "mul": _rounded(np.multiply),
    "div": _rounded(_divide),
    "square": _rounded(np.square),
    "sqrt": _rounded(np.sqrt),
    "integer_pow": (_power, 1),
    "neg": _exact(np.negative),
    "abs": _exact(np.abs),
    "is_finite": _exact(np.isfinite),
    "eq": _exact(np.equal),
    "ne": _exact(np.not_equal),
    "lt": _exact(np.less),
    "le": _exact(np.less_equal),
    "gt": _exact(np.greater),
    "ge": _exact(np.greater_equal),
    "max": _chosen(np.maximum),
    "min": _chosen(np.minimum),
    "and": _integers(np.bitwise_and),
    "or": _integers(np.bitwise_or),
    "xor": _integers(np.bitwise_xor),
    "not": _integers(np.invert),
    "reduce_sum": _reduced(np.sum, "iu"),
    "reduce_max": _reduced(np.max, "iuf"),
    "reduce_min": _reduced(np.min, "iuf"),
    "reduce_and": _reduced(np.all, "b"),
    "reduce_or": _reduced(np.any, "b"),
}


class Plan:
    """What is known of a jaxpr: whether numpy may compute it, and how often it did.

    Args:
      closed: the jaxpr of an operation or of a function under jit.
    """

    def __init__(self, closed: core.ClosedJaxpr):
        self.calls, roundings = 0, self._roundings(closed)
        self.here = roundings is not None and roundings <= 1

    def _roundings(self, closed: core.ClosedJaxpr) -> int | None:
        """How often a float is rounded, or None if an operation, a dtype or a size is not for numpy."""
        equations, total = closed.jaxpr.eqns, 0
        if closed.effects or closed.consts or len(equations) > MOST_EQUATIONS:
            return None
        for aval in (*closed.in_avals, *closed.out_avals, *(var.aval for eqn in equations for var in eqn.outvars)):
            if not (isinstance(aval, core.ShapedArray) and aval.dtype in DTYPES) or aval.size > MOST_ELEMENTS:
                return None
        for eqn in equations:
            if eqn.primitive.name == "jit":
                inner = self._roundings(eqn.params["jaxpr"]) if _anywhere(**eqn.params) else None
            elif eqn.primitive.name in OPERATIONS:
                dtypes = {atom.aval.dtype for atom in (*eqn.invars, *eqn.outvars)}
                same = eqn.primitive.name == "convert_element_type" and len(dtypes) == 1
                inner = 0 if same or eqn.outvars[0].aval.dtype.kind != "f" else OPERATIONS[eqn.primitive.name][1]
            else:
                inner = None
            if inner is None:
                return None
            total += inner
        return total


def _anywhere(*, in_shardings, out_shardings, donated_invars, compiler_options_kvs, ctx_mesh, **params) -> bool:
    """Whether a function under jit says nothing of where and how it is computed."""
    chosen = any(s is not UNSPECIFIED for s in (*in_shardings, *out_shardings))
    return not (chosen or any(donated_invars) or compiler_options_kvs) and ctx_mesh.empty


def _run(closed: core.ClosedJaxpr, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a jaxpr."""
    known = dict(zip(closed.jaxpr.invars, arrays, strict=True))

    def read(atom):
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, core.Literal) else known[atom]

    for eqn in closed.jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "jit":
            results = _run(eqn.params["jaxpr"], inputs)
        else:
            found = OPERATIONS[eqn.primitive.name][0](*inputs, **eqn.params)
            results = found if eqn.primitive.multiple_results else [found]
        known |= {var: np.asarray(result) for var, result in zip(eqn.outvars, results, strict=True)}
    return [read(atom) for atom in closed.jaxpr.outvars]


def _results(args, closed: core.ClosedJaxpr) -> list[jax.Array]:
    """What the compiled program would return, on the first device. Raises NotHere if an argument is bound to others."""
    device = jax.local_devices()[0]
    if any(state.value not in (None, "allow") for state in (config.default_device, *GUARDS)):
        raise NotHere
    for x in args:
        if isinstance(x, jax.Array) and (x._committed or x.is_deleted() or x.devices() != {device}):
            raise NotHere
    arrays = [np.asarray(x, aval.dtype) for x, aval in zip(args, closed.in_avals, strict=True)]
    with np.errstate(all="ignore"):
        results = _run(closed, arrays)
    floats = [x for x in results if x.dtype.kind == "f"]
    errors = [*[np.isnan] * config.debug_nans.value, *[np.isinf] * config.debug_infs.value]
    if any(is_error(x).any() for x in floats for is_error in errors):
        raise NotHere  # jax's way into programs is what raises FloatingPointError
    return [  # copies: what is donated later must be nobody else's
        pxla.batched_device_put(aval, SingleDeviceSharding(device), [np.array(x)], [device], committed=False)
        for aval, x in zip(closed.out_avals, results, strict=True)
    ]


def quickly(compiled_call):
    """Wraps jax's way into compiled programs: single operations do without one."""
    plans = weakref.WeakKeyDictionary()

    def call(*args, jaxpr: core.ClosedJaxpr, **params):
        plan = plans.get(jaxpr)
        if plan is None:
            plan = plans[jaxpr] = Plan(jaxpr)
        if plan.here and plan.calls < MOST_CALLS and _anywhere(**params):
            plan.calls += 1
            try:
                return _results(args, jaxpr), None, None, []
            except NotHere:
                plan.here = False
        return compiled_call(*args, jaxpr=jaxpr, **params)

    return call


def install() -> None:
    """From here on in this process. The function is private to jax: a version without it is only slower."""
    if hasattr(pjit, "_pjit_call_impl_python"):
        pjit._pjit_call_impl_python = quickly(pjit._pjit_call_impl_python)
