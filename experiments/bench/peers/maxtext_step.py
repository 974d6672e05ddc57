"""MaxText's train step, compiled for a described slice: PYTHON maxtext_step.py WORK.json FOLDER -> FOLDER's files.

PYTHON is 3.12 with MaxText's source on its path and its packages (experiments.bench.pod_step says how to set it up). No
TPU is needed. WORK.json has `topology` ("v5e-64", as MaxText names it), `model` ("llama3.1-8b"), `length` (tokens of a
row), `rows` (per chip, of a micro-batch), `micro_batches` and `settings`, which override those of MaxText's base.yml.

It makes the step as maxtext.trainers.pre_train.train_compile does, whose command keeps no text. FOLDER gets
compiled.txt (the HLO) and step.json: the work, the mesh's axes that are longer than 1, the compiler's memory figures,
parameters, versions, and the seconds that it took; if the compiler refuses the step, `refused` and its message instead.
"""

import importlib.metadata
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
# As train_compile.main sets it before libtpu loads.
FLAGS = os.environ.get("LIBTPU_INIT_ARGS", "")
os.environ["LIBTPU_INIT_ARGS"] = FLAGS + " --xla_tpu_spmd_rng_bit_generator_unsafe=true"

import jax  # noqa: E402
from flax.linen import partitioning  # noqa: E402
from maxtext.configs import pyconfig  # noqa: E402
from maxtext.trainers.pre_train import train, train_compile  # noqa: E402
from maxtext.utils import maxtext_utils, sharding  # noqa: E402

jax.config.update("jax_default_prng_impl", "unsafe_rbg")
work, folder = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
settings = {
    "compile_topology": work["topology"],
    "compile_topology_num_slices": 1,
    "model_name": work["model"],
    "max_target_length": work["length"],
    "per_device_batch_size": work["rows"],
    "gradient_accumulation_steps": work["micro_batches"],
    "dataset_type": "synthetic",
    "enable_checkpointing": False,
    "attention": "flash",
    "remat_policy": "full",
    "run_name": "pod_step",
    "base_output_directory": str(folder),
} | work["settings"]
base = pathlib.Path(pyconfig.__file__).with_name("base.yml")
config = pyconfig.initialize(["", str(base), *(f"{name}={value}" for name, value in settings.items())])

mesh = train_compile.get_topology_mesh(config)
arguments, keywords, state, _, model = train_compile.get_shaped_inputs(mesh, config)
params, state = sharding.maybe_update_params_sharding_with_opt(config, state)
inputs = sharding.build_zero1_input_state_mesh_shardings(config, state, params)
data = sharding.get_input_data_sharding(config, mesh)
step = maxtext_utils.get_functional_train_with_signature(train.train_step, data, inputs, model, config, params)

sizes = [(x.size, str(x.dtype)) for x in jax.tree.leaves(arguments[0]) if hasattr(x, "size")]
found = {
    "work": work,
    "settings": {name: str(value) for name, value in settings.items()},
    "mesh": {name: size for name, size in mesh.shape.items() if size > 1},
    "state": {kind: sum(size for size, one in sizes if one == kind) for kind in sorted({kind for _, kind in sizes})},
    "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu", "flax")},
}
start = time.perf_counter()
try:
    rules = partitioning.axis_rules(config.logical_axis_rules)
    function, shard_in, shard_out, static, donated = step
    compiled = train_compile.jit_and_compile(
        function, arguments, keywords, mesh, shard_in, shard_out, static, donated, config, rules
    )
except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
        raise
    found["refused"] = str(error)
else:
    memory = compiled.memory_analysis()
    found["peak_bytes"] = memory.peak_memory_in_bytes
    (folder / "compiled.txt").write_text(compiled.as_text())
found["compile_s"] = time.perf_counter() - start
(folder / "step.json").write_text(json.dumps(found, indent=1))
