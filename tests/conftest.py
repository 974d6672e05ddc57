"""Every test runs on 8 simulated CPU devices, with implicit rank promotion refused and warnings as errors.

The environment is set here, before jax is loaded, and is inherited by the programs that tests start.
"""

import atexit
import gc
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py: the environment set here would come too late")
os.environ["JAX_PLATFORMS"] = "cpu"
# Un-blocked loops over simulated devices starve XLA's thread pool on two cores and hang; 16 threads do not.
os.environ["NPROC"] = "16"
# Most of the suite's time is compiling small programs that run once: XLA's older code generator and no optimizations do
# that in less than half of the time; in one part, a fifth of the rest goes: no parts are written as bitcode and read
# back. What users run is compiled with all of them in .ci/run's quick start.
_QUICK = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
if _QUICK not in os.environ.get("XLA_FLAGS", ""):  # workers inherit it; twice, it would be another program to the cache
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()
# numpy's, scipy's and torch's small products: threads of theirs that wait by spinning take the other worker's core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA and TensorStore chatter would bury a failing test

# No searches for garbage, one MLIR context for many programs: here until all is imported, and in every process that a
# test starts.
from tests.started import sitecustomize  # noqa: E402

_STARTED = str(pathlib.Path(sitecustomize.__file__).parent)
if _STARTED not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_STARTED, os.environ.get("PYTHONPATH", "")]))

import jax  # noqa: E402
from jax._src import compilation_cache, pjit  # noqa: E402

from tests import random_bits, single_operations  # noqa: E402

single_operations.install()
random_bits.install()


def _set_fields_quickly() -> None:
    """A field of a config is set without listing the attributes of `object` each time: half of what configs cost."""
    from ml_collections import ConfigDict

    taken = frozenset(dir(super(ConfigDict, ConfigDict())))  # the same for all

    def ensure(config, attribute):
        if attribute in taken:
            raise KeyError(f"{attribute} cannot be overridden.")

    if hasattr(ConfigDict, "_ensure_mutability"):  # private to ml_collections: a version without it is only slower
        ConfigDict._ensure_mutability = ensure


def _no_keys_without_a_folder() -> None:
    """Without a folder of compiled programs, nothing asks for the key of one, which jax makes all the same."""
    used = getattr(compilation_cache, "is_cache_used", None)  # private to jax: a version without it is only slower
    if used is not None:
        compilation_cache.is_cache_used = lambda backend: bool(jax.config.jax_compilation_cache_dir) and used(backend)


_set_fields_quickly()
_no_keys_without_a_folder()
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# The folder of compiled programs of the processes that tests start (programs.environment), in the environment of all
# workers. It dies with the test run: one that is kept would be faster still, but would hide what no longer compiles.
# The tests' own processes have none: without optimizations, a program is compiled as fast as it is read.
COMPILED = "RL_JAX_TESTS_COMPILED"


def pytest_configure():
    """Makes the folder once, in the process that starts the workers."""
    if not jax.config.jax_compilation_cache_dir and COMPILED not in os.environ:
        os.environ[COMPILED] = tempfile.mkdtemp(prefix="rl_jax-tests-xla-")
        atexit.register(shutil.rmtree, os.environ[COMPILED], ignore_errors=True)


def pytest_collection_finish():
    """What is imported by now stays: no search for garbage needs to pass through it. From here on this process searches
    again, which sitecustomize.py has stopped."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _room_for_jitted_functions():
    """Before a file, forgets the way into compiled programs if jax has few places left for it.

    jax keeps 8,192 of them. With all taken, a new function gets none: it is slower, and its _cache_size() stays 0.
    Nothing is compiled again.
    """
    for name in ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes"):
        places = getattr(pjit, name, None)  # private to jax: a version without it only lacks this
        if places is not None and places.size() > 0.6 * places.capacity():
            places.clear()


@pytest.fixture(autouse=True, scope="module")
def _no_folder_of_programs():
    """A file that leaves jax with a folder of compiled programs slows down all that this process still compiles."""
    before = jax.config.jax_compilation_cache_dir
    yield
    after = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before)
    assert after == before, f"the file leaves jax_compilation_cache_dir={after}"


@pytest.fixture
def quick(monkeypatch):
    """Programs of control compile without optimizations."""
    from experiments.parts import control_runs  # here: what tests replace before they import it

    options = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", options)


@pytest.fixture
def no_waiting(monkeypatch):
    """Requests that failed are sent again at once."""
    monkeypatch.setattr("rl_jax.rollout.lm.client.BACKOFF_S", 0.01)


@pytest.fixture
def few_objects():
    """For tests of what searches for garbage itself: what earlier files have left in this process is passed over. It is
    half a second for each search at the end of a worker's run."""
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files with slow tests go first, so that no worker is left alone with one at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_sessionfinish():
    """pytest searches for garbage five times at the end: once is enough to hear what it has to say."""
    gc.collect()
    gc.freeze()
