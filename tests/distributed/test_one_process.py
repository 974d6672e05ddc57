"""What the seam between processes costs where there is one: nothing. And flags that do not go together are refused."""

import ctypes
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from absl.testing import flagsaver

from configs.control import environments
from experiments.parts import control_runs, processes
from rl_jax.training import distributed, sharding
from rl_jax.training.step import TrainState


@pytest.fixture
def parsed():
    """Flags as a program has them, put back at the end."""
    with flagsaver.flagsaver():
        processes.FLAGS.mark_as_parsed()
        yield processes.FLAGS
    processes.FLAGS.unparse_flags()


def test_everything_stays_as_it_is():
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2"))
    tree = {"x": np.arange(8.0), "key": jax.random.key(1)}
    assert processes.own_to_mesh(mesh, tree) is tree and processes.replicate(mesh, tree) is tree
    assert distributed.whole(tree) is tree and distributed.gather_rows(tree, np.arange(8), 8) is tree
    assert distributed.gather(3) == [3] and distributed.largest(5) == 5 and distributed.is_main()
    assert distributed.any_process(True) is True and distributed.any_process(False) is False
    np.testing.assert_array_equal(processes.rows_here(mesh, 6), np.arange(6))
    placed = distributed.place(np.arange(8.0), sharding.batch_sharding(mesh))
    assert placed.sharding == sharding.batch_sharding(mesh)
    np.testing.assert_array_equal(distributed.local_rows(placed), np.arange(8.0))
    state = TrainState(0, {}, {}, jax.random.key(5), 0, 0)
    assert processes.step_key(state, 3) == jax.random.fold_in(jax.random.key(5), 3)
    distributed.barrier("alone")
    processes.one_process("anything")
    processes.check_mesh(mesh)


def test_the_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with processes.run_logger(tmp_path / "run", 0, total_steps=3, progress=True, tensorboard=True) as log:
        log.log(1, {"loss": 1.0}, {"step_s": 1.0})
        log.samples(1, [{"prompt": ""}])
        log.group_view(1, {"rows": []})
        log.rows("more", [{"step": 1}])
        log.message("hello")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given, complaint",
    [
        (dict(num_processes=2), "--num_processes=2 needs --coordinator=HOST:PORT"),
        (dict(num_processes=2, coordinator="127.0.0.1:1", process_id=2), "a --process_id from 0 to 1"),
    ],
)
def test_flags_that_do_not_go_together(parsed, given, complaint):
    for name, value in given.items():
        setattr(parsed, name, value)
    with pytest.raises(ValueError, match=complaint):
        processes.start(supported=True)
    with pytest.raises(ValueError, match="this program runs in one process"):
        processes.start(supported=False)


def test_no_flags_start_nothing(parsed):
    processes.start(supported=False)


def test_devices_divide_over_processes(parsed):
    parsed.num_processes = 2
    with pytest.raises(ValueError, match="a mesh of 3 devices cannot be split evenly over 2 processes"):
        processes.simulate_devices(3)


@pytest.mark.parametrize("independent, count, threads", [(False, 2, "16"), (True, 2, "2"), (True, 1, None)])
def test_independent_devices_have_a_thread_each(parsed, monkeypatch, independent, count, threads):
    """Of XLA's pool, which reads NPROC once, when jax starts."""
    monkeypatch.delenv("NPROC")
    processes.simulate_devices(count, independent)
    assert os.environ.pop("NPROC", None) == threads


@pytest.mark.parametrize("plugin, threads", [(None, "1"), ("libtpu", None)])
def test_one_thread_is_for_a_cpu(monkeypatch, plugin, threads):
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: name == plugin or None)
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", None)
        processes.one_thread()
    finally:
        jax.config.update("jax_platforms", before)
    assert os.environ.pop("NPROC", None) == threads
    processes.one_thread()  # "cpu", as the tests have it
    assert os.environ.pop("NPROC") == "1"


def test_devices_of_several_processes_wait_for_each_other(parsed, monkeypatch):
    monkeypatch.delenv("NPROC")
    parsed.num_processes = 2
    before = jax.config.jax_num_cpu_devices
    try:
        processes.simulate_devices(2 * before, independent=True)
    finally:
        jax.config.update("jax_num_cpu_devices", before)
    assert os.environ.pop("NPROC") == "16"


def test_what_works_in_one_process_only(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="rollout.engine.name='openai' works in one process only, but there are 2"):
        processes.one_process("rollout.engine.name='openai'")
    with pytest.raises(ValueError, match=r"leaves processes \[1\] without a device"):
        processes.check_mesh(sharding.make_mesh(sharding.parse_mesh("data:2")))


@pytest.mark.parametrize(
    "fields, complaint",
    [
        (dict(spread="pmap"), "spread='pmap' works in one process only, but there are 2: set --config.spread=jit"),
        (dict(mesh="seeds:2"), r"leaves processes \[1\] without a device: make --config.mesh as large as"),
        (
            dict(env=dict(name="gymnasium/CartPole-v1")),
            "env.name='gymnasium/CartPole-v1', which lives on the host, works in one process only.*leave out --dist",
        ),
    ],
)
def test_what_environments_refuse_on_several_processes(fields, complaint, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    config = environments.get_config("matching,smoke")
    config.update(fields)
    with pytest.raises(ValueError, match=complaint):
        control_runs.make_program(config)


@pytest.mark.parametrize(
    ("shape", "spec", "axis"),
    [((6, 8, 16), (None, "fsdp", "tensor"), 0), ((8, 6), ("fsdp", None), 1), ((8, 16), ("tensor", "fsdp"), 0)],
    ids=["stacked layers", "split rows", "all split"],
)
def test_an_array_comes_to_the_host_in_pieces(shape, spec, axis):
    """Two indices of an axis at a time, and no device ever has the whole array."""
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:4,tensor:2"))
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placed = jax.device_put(values, jax.NamedSharding(mesh, jax.P(*spec)))
    limit = 2 * values.nbytes // shape[axis] + 1
    found, count = np.full(shape, np.nan, np.float32), 0
    for index, piece in distributed.pieces(placed, limit):
        found[index], count = piece, count + 1
        assert piece.nbytes <= limit and len(index) == axis + 1
    np.testing.assert_array_equal(found, values)
    assert count == shape[axis] // 2
    whole = f"f32[{','.join(map(str, shape))}]"
    start = 2 if all(spec) else None
    program = distributed._slice_program(sharding.replicated(mesh), axis, 2, start)
    arguments = (placed,) if all(spec) else (placed, 2)
    assert whole not in program.lower(*arguments).compile().as_text()


def test_what_has_no_axis_is_one_piece():
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:4"))
    for value in (np.float32(3.0), np.zeros((0, 4), np.float32)):
        ((index, piece),) = distributed.pieces(jax.device_put(value, sharding.replicated(mesh)))
        assert index == () and piece.shape == value.shape


@pytest.mark.parametrize("plugin, asked", [(None, True), ("libtpu", False)])
def test_freed_memory_is_kept_where_a_cpu_computes(monkeypatch, plugin, asked):
    calls = []
    library = types.SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: name == plugin or None)
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", None)
        processes.keep_memory()
        del library.mallopt  # another C library, another system
        processes.keep_memory()
    finally:
        jax.config.update("jax_platforms", before)
    assert calls == ([(-1, -1), (-4, 0), (-8, 1)] if asked else [])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="needs glibc")
def test_a_step_gets_the_pages_of_the_one_before():
    """In a process of its own: runs of a program with a buffer of 64 MB, which glibc gives back otherwise."""
    script = """
import resource, sys
import jax, jax.numpy as jnp
from experiments.parts import processes
if sys.argv[1] == "keep":
    processes.keep_memory()
step = jax.jit(lambda x: jnp.sum(jnp.cos(x * jnp.arange(2.0**24)).reshape(4096, 4096) @ jnp.ones(4096)))
for x in range(40):
    if x == 20:  # the heap has found its size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(float(x)).block_until_ready()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = [
        int(subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "leave")
    ]
    assert faults[0] < faults[1] / 3
