"""checkpoint.py: what is saved comes back bit for bit, on any mesh; a save that was cut off is as if never begun."""

import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import checkpoint, sharding
from rl_jax.training.checkpoint import Checkpointer, StopSignal, checksum
from rl_jax.training.step import init_state
from tests.tiny import CONFIG


def _state(mesh_text="", seed=0):
    """A whole TrainState on a mesh, with moments that are not zero."""
    params = make_transformer(CONFIG).init(jax.random.key(seed))
    optimizer = optax.adamw(1e-3)
    state = init_state(params, optimizer, jax.random.key(7 + seed))
    _, opt_state = optimizer.update(jax.tree.map(lambda p: p * 0.1 + 1e-3, params), state.opt_state, params)
    state = state._replace(opt_state=opt_state, step=jnp.int32(5 + seed))
    mesh = sharding.make_mesh(sharding.parse_mesh(mesh_text))
    return jax.device_put(state, sharding.tree_shardings(state, mesh))


def _items(state):
    return {"params": state.params, "opt_state": state.opt_state, "rest": {"rng": state.rng, "step": state.step}}


def _saved(folder, steps=(2,), mesh_text="", keep=2):
    checkpoints = Checkpointer(folder, every=2, keep=keep)
    for step in steps:
        checkpoints.save(step, _items(_state(mesh_text, seed=step)), {"step": step, "data": {"next_index": 3 * step}})
    checkpoints.close()


def _assert_same(left, right):
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(left), jax.tree_util.tree_leaves_with_path(right), strict=True
    ):
        assert a.dtype == b.dtype and a.sharding == b.sharding, path
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


@pytest.mark.slow
@pytest.mark.parametrize("saved, restored", [("", ""), ("data:2,fsdp:2,tensor:2", "tensor:4"),
                                             ("fsdp:8", "")])  # fmt: skip
def test_comes_back_bit_for_bit_on_any_mesh(tmp_path, saved, restored):
    _saved(tmp_path, mesh_text=saved)
    checkpoints = Checkpointer(tmp_path, every=2)
    like = _items(_state(restored, seed=99))
    items, host = checkpoints.restore(like)
    checkpoints.close()
    assert host == {"step": 2, "data": {"next_index": 6}}
    _assert_same(items, _items(_state(restored, seed=2)))
    assert checksum(items) == checksum(_items(_state(saved, seed=2)))
    draws = [float(jax.random.uniform(key)) for key in (items["rest"]["rng"], _state(seed=2).rng)]
    assert draws[0] == draws[1]


def test_what_is_restored_in_place_is_not_there_twice(tmp_path):
    _saved(tmp_path)
    like = _items(_state(seed=99))
    with Checkpointer(tmp_path, every=2) as checkpoints:
        items, _ = checkpoints.restore(like, in_place=True)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(like))
    _assert_same(items, _items(_state(seed=2)))


def test_only_the_items_asked_for_are_read(tmp_path):
    _saved(tmp_path)
    checkpoints = Checkpointer(tmp_path, every=1)
    expected = _state(seed=2).params
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), expected)
    items, host = checkpoints.restore({"params": shapes})
    checkpoints.close()
    assert items.keys() == {"params"} and host["step"] == 2
    _assert_same(items["params"], expected)


@pytest.mark.slow
def test_steps_that_are_kept_and_found(tmp_path):
    _saved(tmp_path, steps=(2, 4, 6), keep=2)
    checkpoints = Checkpointer(tmp_path, every=2)
    assert checkpoints.latest_step() == 6
    assert [checkpoints.due(step) for step in (1, 2, 3, 4)] == [False, True, False, True]
    items, _ = checkpoints.restore(_items(_state()), step=4)
    assert items["rest"]["step"] == 9
    checkpoints.save(6, _items(_state(seed=50)), {"step": -1})  # there already: left as it is
    assert checkpoints.restore(_items(_state()))[1]["step"] == 6
    checkpoints.close()
    assert not (tmp_path / "2").exists() and (tmp_path / "4").exists()


def test_no_checkpoint_is_said_with_the_folder(tmp_path):
    checkpoints = Checkpointer(tmp_path / "none", every=1)
    assert checkpoints.latest_step() is None
    with pytest.raises(FileNotFoundError, match="no checkpoint under .*none"):
        checkpoints.restore(_items(_state()))
    checkpoints.close()


@pytest.mark.slow
def test_a_save_that_was_cut_off_is_not_there(tmp_path):
    """A process killed while it wrote step 6 leaves a folder under orbax's temporary name, with a part of the files."""
    _saved(tmp_path, steps=(2, 4))
    half = tmp_path / "6.orbax-checkpoint-tmp-1789"
    shutil.copytree(tmp_path / "4", half)
    shutil.rmtree(half / "params")
    checkpoints = Checkpointer(tmp_path, every=2)
    assert checkpoints.latest_step() == 4
    items, host = checkpoints.restore(_items(_state()))
    assert host["step"] == 4
    _assert_same(items, _items(_state(seed=4)))
    checkpoints.save(6, _items(_state(seed=6)), {"step": 6})  # and it can be written after all
    assert checkpoints.restore(_items(_state()))[1] == {"step": 6}
    checkpoints.close()


def test_the_save_holds_the_values_of_the_moment_of_the_call(tmp_path):
    """The next step donates the arrays while they are still being written."""
    checkpoints = Checkpointer(tmp_path, every=1)
    state, expected = _state("fsdp:8"), _state("fsdp:8")
    checkpoints.save(1, _items(state), {})
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)(state.params)
    jax.block_until_ready(doubled)
    items, _ = checkpoints.restore(_items(expected))
    checkpoints.close()
    _assert_same(items, _items(expected))


def test_checksum_changes_with_a_single_bit():
    tree = {"a": np.arange(6, dtype=np.float32), "rng": jax.random.key(0)}
    before = checksum(tree)
    assert before == checksum({"a": jnp.arange(6.0), "rng": jax.random.key(0)})
    for byte in (0, 13, 23):
        changed = tree["a"].copy()
        changed.view(np.uint8)[byte] ^= 1
        assert checksum(tree | {"a": changed}) != before
    others = [tree | {"rng": jax.random.key(1)}, tree | {"a": tree["a"].reshape(2, 3)},
              tree | {"a": tree["a"].view(np.int32)}, {"b": tree["a"], "rng": tree["rng"]}]  # fmt: skip
    assert len({before, *map(checksum, others)}) == 5


@pytest.fixture
def handlers():
    """Puts the process's own handlers back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_becomes_a_question_and_the_second_one_stops(handlers, monkeypatch, number):
    stop = StopSignal()
    assert not stop.received
    os.kill(os.getpid(), number)
    assert stop.received
    if number == signal.SIGTERM:
        os.kill(os.getpid(), number)  # the same, passed on by the parent
        monkeypatch.setattr(checkpoint, "SAME_S", -1.0)  # time goes by
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
