"""Every test runs on 8 simulated CPU devices, with implicit rank promotion refused and warnings as errors.

The environment is set here, before jax is loaded, and is inherited by the programs that tests start.
"""

import atexit
import os
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
# that in less than half of the time. What users run is compiled with all of them in .ci/run's quick start.
_QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}".strip()
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA and TensorStore chatter would bury a failing test

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiled programs are shared inside one test process only, in a folder that dies with it. A cache kept from run to
# run is faster still, but jax writes its entries in place: a test process killed half-way (we kill some on purpose)
# would leave a torn entry that every later run trips over.
_cache = tempfile.mkdtemp(prefix="rl_jax-tests-xla-")
atexit.register(shutil.rmtree, _cache, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", _cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files with slow tests go first, so that no worker is left alone with one at the end."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)
