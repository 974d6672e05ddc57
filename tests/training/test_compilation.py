"""compilation.py: a start finds what an earlier one compiled, whatever became of it; nothing is compiled twice."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from rl_jax.training import compilation, sharding

OPTIONS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture
def events():
    """The names of JAX's events from here on, and their own settings of the cache put back afterwards."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    seen = []

    def note(name, *_, **__):
        seen.append(name.rsplit("/", 1)[1])

    jax.monitoring.register_event_listener(note)
    jax.monitoring.register_event_duration_secs_listener(note)
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
    yield seen
    compilation_cache.reset_cache()
    for name, value in before.items():
        jax.config.update(name, value)


def start(folder):
    """What a process does at its start."""
    compilation.use_cache(folder)
    compilation_cache.reset_cache()  # in one process JAX would go on with the folder that it knows


def compile_one():
    """A program that this process has not in its memory, since the function is a new one."""
    return jax.jit(lambda x: jnp.sin(x) @ x.T + 17.0)(jnp.ones((3, 3))).block_until_ready()


def entries(folder):
    """(the finished programs, the folder of this process)."""
    (kind,) = folder.iterdir()
    finished = sorted(path for path in kind.iterdir() if path.is_file())
    return finished, kind / f"{compilation.PRIVATE}{compilation.socket.gethostname()}-{os.getpid()}"


def test_the_next_start_finds_the_program(tmp_path, events):
    start(tmp_path)
    compile_one()
    finished, own = entries(tmp_path)
    assert any(path.name.startswith("jit__lambda") for path in finished)
    assert all(path.is_symlink() for path in own.iterdir()), "still where only this process finds it"
    assert sorted(path.resolve() for path in own.iterdir()) == finished
    start(tmp_path)
    events.clear()
    compile_one()
    assert events.count("cache_hits") >= 1 and "cache_misses" not in events
    assert entries(tmp_path)[0] == finished


def test_a_process_that_died_writing_leaves_nothing_torn(tmp_path, events):
    start(tmp_path)
    compile_one()
    finished, own = entries(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    torn = own.with_name(own.name.replace(str(os.getpid()), str(dead.pid)))
    other = own.with_name(own.name.replace(str(os.getpid()), str(os.getppid())))
    another_host = own.with_name(own.name.replace(str(os.getpid()), f"1-{dead.pid}"))  # whose name is ours and "-1"
    for folder in (torn, other, another_host):
        folder.mkdir()
        (folder / "jit_step-00ff-cache").write_bytes(b"half of it")
    start(tmp_path)
    assert not torn.exists() and other.exists(), "one is dead, the other writes this moment"
    assert another_host.exists(), "whether that process is alive cannot be known here"
    assert entries(tmp_path)[0] == finished


def test_the_oldest_entries_make_room(tmp_path, events):
    start(tmp_path)
    kind = entries(tmp_path)[1].parent
    for age, name in enumerate(("new", "old", "oldest")):
        (kind / f"{name}-cache").write_bytes(b"0" * 400)
        os.utime(kind / f"{name}-cache", (1e9 - age, 1e9 - age))
    (kind / "gone-cache").symlink_to(kind / "nowhere")  # listed, and then removed by another start
    compilation.use_cache(tmp_path, max_bytes=1000)
    assert [path.name for path in entries(tmp_path)[0]] == ["new-cache", "old-cache"]


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path, events):
    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    with pytest.warns(UserWarning, match="compiled programs are not cached: .*Not a directory"):
        compilation.use_cache(tmp_path / "file")
    assert jax.config.jax_compilation_cache_dir == before


def test_what_was_compiled_ahead_is_not_compiled_again(events):
    rows = sharding.batch_sharding(sharding.make_mesh(sharding.parse_mesh("data:8")))
    program = jax.jit(lambda x, y: {"sum": x + y, "last": y[-1]}, out_shardings=rows, donate_argnums=0)
    arguments = jax.device_put((jnp.ones((8, 8)), jnp.broadcast_to(jnp.arange(8.0), (8, 8))), rows)
    lines = []
    found = compilation.Ahead(lines.append)("add", program)(*arguments)
    start, end = lines
    assert start == "compiling add ... ", "it is said before the compilation"
    assert end.endswith(" s\n") and float(end.split()[0]) >= 0
    events.clear()
    real = program(*arguments)
    assert "backend_compile_duration" not in events
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), found) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), real
    )
    assert not np.any(found["sum"]) and np.all(real["sum"] >= 1.0)
    assert compilation.Ahead(lines.append)("key", jax.jit(jax.random.key))(3) is None


def test_seconds_are_those_of_the_compiler():
    before = compilation.compile_seconds()
    program = jax.jit(lambda x: jnp.cumsum(jnp.tanh(x)))
    program(jnp.ones(5))
    after = compilation.compile_seconds()
    assert after > before
    program(jnp.ones(5))
    assert compilation.compile_seconds() == after
