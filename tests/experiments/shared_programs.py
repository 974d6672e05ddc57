"""Runs of one test file share what they compile: a function of the same code and closed over the same is jitted once.

A run in this process costs three seconds, most of it tracing, lowering and compiling what the run before it has already
compiled from the same config. A file that imports the fixtures shares:

    from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures

Not for tests that count programs, and not while a test has replaced something by `monkeypatch.setattr`: what a function
finds by a global name is not in its key. So replace before the program is made.
"""

import contextlib
import dataclasses
import functools
import types

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax._src.util import HashablePartial
from ml_collections import ConfigDict

PLAIN = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType, np.dtype)
HASHED = (jax.sharding.Mesh, jax.sharding.Sharding, jax.sharding.PartitionSpec, jax.ShapeDtypeStruct, np.ufunc)
# A function of a module that is jitted (jnp.tanh) is the same only where it is the same object.
HASHED += (jax.tree_util.PyTreeDef, type(jax.jit(lambda x: x)))
UNRAVEL = HashablePartial  # what ravel_pytree gives; asked of an array, jax would start its backends on import
SMALL = 4096  # elements of an array whose values are part of a key
# What tests replace and no traced function reads: sharing goes on. (CPU_OPTIONS become an argument of jax.jit.)
NOT_TRACED = {"StopSignal", "make_evaluate", "make_loop_evaluate", "make_episode_evaluate", "make_prompts"}
NOT_TRACED |= {"compile_ahead", "CPU_OPTIONS"}
NOT_TRACED |= {"ThreadWorker", "_POLL_S"}  # of actors and links
# Of the Hub: tests/experiments/test_hub.py, redirect.
NOT_TRACED |= {"ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_DISABLE_TELEMETRY"}
NOT_TRACED |= {"HF_HUB_DISABLE_PROGRESS_BARS", "DOWNLOAD_CHUNK_SIZE", "CHECKED"}


def _of(group: str, names: str) -> tuple[str, ...]:
    return tuple(f"{group}.{name}" for name in names.split())


# What the programs that a function makes read of a run's config, where they are closed over it: the rest of it is no
# part of their key. One that reads more adds it here; test_shared_programs.py traces them with nothing else in it.
_BOTH = ("schedules", "rollout", "sample.group_size")
_LOSS = _BOTH + _of(
    "algorithm", "surrogate kl kl_coef aggregate entropy_coef entropy_aggregate perception mirror_step"
)
_CREDIT = (
    _BOTH
    + _of("algorithm", "advantage shaping reward_kl reward_kl_coef behavior_weight token_weight token_selection")
    + _of("algorithm", "entropy_weight mask_truncated row_selection")
    + _of("train", "epochs minibatches")
)
READ = {
    ("experiments.parts.perception", "make_term"): _LOSS,
    ("experiments.parts.perception", "with_terms"): _LOSS,
    ("experiments.parts.mirror", "make_term"): _LOSS,
    ("experiments.parts.mirror", "with_term"): _LOSS,
    ("experiments.parts.policy", "make_assign"): _CREDIT,
    ("experiments.parts.actor_critic", "make_assign"): _CREDIT + _of("critic", "advantage whiten bootstrap_truncated"),
    ("experiments.parts.actor_critic", "build"): _LOSS
    + ("score.chunk",)
    + _of("critic", "advantage whiten bootstrap_truncated loss support value_coef"),
}


class _NoKeyError(Exception):
    """Nothing says when two of these are the same."""


def read_of(config: ConfigDict, names) -> dict:
    """The fields `names` of a config that it has, by dotted name."""
    found = {}
    for name in names:
        part = config.to_dict()
        for step in name.split("."):
            part = part[step] if isinstance(part, dict) and step in part else None
        found |= {} if part is None else {name: part}
    return found


def _key_of_cell(fn: types.FunctionType, x):
    """key_of what a function is closed over."""
    names = READ.get((fn.__module__, fn.__qualname__.partition(".")[0]))
    return key_of(read_of(x, names) if names and isinstance(x, ConfigDict) else x)


def key_of(x):
    """What is equal for two values only if a program closed over them is the same. Raises _NoKeyError for others."""
    kind = type(x)
    if isinstance(x, PLAIN):
        return kind, x  # 1, 1.0 and True are equal, but not to a program
    if isinstance(x, types.FunctionType):
        with contextlib.suppress(ValueError):  # an empty cell: a function that names itself before it is made
            cells = tuple(_key_of_cell(x, cell.cell_contents) for cell in x.__closure__ or ())
            return kind, x.__code__, x.__module__, cells, key_of(x.__defaults__), key_of(x.__kwdefaults__)
        raise _NoKeyError
    if isinstance(x, functools.partial):
        return kind, key_of(x.func), key_of(x.args), key_of(x.keywords)
    if isinstance(x, UNRAVEL) and hasattr(x, "f"):
        return kind, key_of(x.f), key_of(x.args), key_of(x.kwargs)
    if isinstance(x, types.MethodType):
        return kind, key_of(x.__func__), key_of(x.__self__)
    if isinstance(x, tuple):  # a list may be there to be appended to
        return kind, tuple(map(key_of, x))
    if isinstance(x, ConfigDict):
        return kind, key_of(x.to_dict())
    if isinstance(x, dict):
        return kind, tuple((key_of(name), key_of(value)) for name, value in x.items())
    if isinstance(x, set | frozenset):
        return kind, frozenset(map(key_of, x))
    if isinstance(x, np.ndarray | np.generic) and x.size <= SMALL and x.dtype != object:
        return kind, x.shape, x.dtype, x.tobytes()
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return kind, str(x.dtype), key_of(np.asarray(jax.random.key_data(x)))
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_fully_addressable and x.size <= SMALL:
        return kind, x.weak_type, x.committed, x.sharding, key_of(np.asarray(x))
    if dataclasses.is_dataclass(x) and x.__dataclass_params__.frozen and not isinstance(x, nn.Module):
        return kind, tuple(key_of(getattr(x, field.name)) for field in dataclasses.fields(x))
    if isinstance(x, HASHED) or (isinstance(x, nn.Module) and x.scope is None):
        return kind, x
    raise _NoKeyError


class Sharing:
    """In place of jax.jit."""

    def __init__(self, jit):
        self.jit, self.known, self.on = jit, {}, True

    def __call__(self, *args, **kwargs):
        """The jitted function that has this key, if there is one. Otherwise what jax.jit gives."""
        if not self.on or not args or not isinstance(args[0], types.FunctionType | functools.partial):
            return self.jit(*args, **kwargs)
        try:
            key = key_of((args, kwargs))
            if key not in self.known:
                self.known[key] = self.jit(*args, **kwargs)
            return self.known[key]
        except (_NoKeyError, RecursionError, TypeError):  # TypeError: a part cannot be hashed
            return self.jit(*args, **kwargs)


@pytest.fixture(scope="module", autouse=True)
def sharing():
    """The Sharing of a test file: jax.jit while its tests run."""
    found = Sharing(jax.jit)
    jax.jit = found
    yield found
    jax.jit = found.jit


@pytest.fixture(autouse=True)
def share_programs(sharing, monkeypatch):
    """Shares until the test replaces something; what is compiled from then on is its own."""
    sharing.on, replace = True, pytest.MonkeyPatch.setattr

    def alone(self, target, name, *args, **kwargs):
        replaced = target.rpartition(".")[2] if isinstance(target, str) else name  # "a.module.NAME", value
        sharing.on = sharing.on and replaced in NOT_TRACED
        if not sharing.on:  # what was not traced yet would be traced with the replacement, and kept
            sharing.known = {key: fn for key, fn in sharing.known.items() if fn._cache_size()}
        return replace(self, target, name, *args, **kwargs)

    pytest.MonkeyPatch.setattr = alone
    yield
    pytest.MonkeyPatch.setattr = replace
