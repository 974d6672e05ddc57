"""checkpoint.py where files are broken or the disk is full: the checkpoint before is used, said so, and never lost."""

import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.training import checkpoint, digests
from rl_jax.training.checkpoint import Checkpointer
from tests.paths import REPO_ROOT

# Orbax leaves the other reads of a failed one to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine")


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing_to_the_collector():
    """What orbax leaves would otherwise be found in another file's test. What was there before it is passed over."""
    gc.freeze()
    yield
    gc.collect()


def items(step):
    """Arrays large enough for a file of their own, and a key, that belong to `step` alone."""
    w = jax.random.normal(jax.random.key(step), (64, 64))
    return {"params": {"w": w}, "rest": {"rng": jax.random.key(step), "step": jnp.int32(step)}}


def save(folder, *steps, **options):
    with Checkpointer(folder, every=1, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, items(step), {"step": step})


def restored(folder, step=None):
    """The step that restore uses; its arrays must be that step's, bit for bit."""
    with Checkpointer(folder, every=1) as checkpoints:
        found, host = checkpoints.restore(items(0), step)
    assert checkpoint.checksum(found) == checkpoint.checksum(items(host["step"]))
    return host["step"]


def largest_file(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncated_array(step):
    path = largest_file(step / "params")
    path.write_bytes(path.read_bytes()[:2000])


def missing_array(step):
    largest_file(step / "params").unlink()


def missing_index(step):
    (step / "params" / "manifest.ocdbt").unlink()


def garbage_metadata(step):
    (step / "rest" / "_METADATA").write_text("{garbage")


def half_a_host(step):
    (step / "host" / "metadata").write_text('{"st')


def empty_folder(step):
    for path in sorted(step.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


DAMAGES = [truncated_array, missing_array, missing_index, garbage_metadata, half_a_host, empty_folder]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_newest_gives_way_to_the_one_before(tmp_path, capfd, damage):
    save(tmp_path, 2, 4, 6, keep=3)
    damage(tmp_path / "6")
    assert restored(tmp_path) == 4
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("checkpoint ")]
    assert len(told) == 1
    assert f"checkpoint {tmp_path}/6 is damaged (" in told[0] and told[0].endswith("step 4 is used instead")
    assert (tmp_path / "6").exists(), "reading must not move or delete anything"


def as_older(folder, step):
    """The checkpoint as it was written before there were digests."""
    path = folder / str(step) / "host" / "metadata"
    host, _ = digests.unseal(step, json.loads(path.read_text()))
    path.write_text(json.dumps(host))
    shutil.rmtree(folder / str(step) / "sealed")


def other_values(folder, step):
    """Another checkpoint's arrays, whole and well-formed, under this one's host and digests."""
    save(folder / "other", step + 1)
    shutil.rmtree(folder / str(step) / "params")
    shutil.copytree(folder / "other" / str(step + 1) / "params", folder / str(step) / "params")


def test_arrays_that_are_not_those_that_were_saved_are_damage_too(tmp_path, capfd):
    save(tmp_path, 2, 4)
    other_values(tmp_path, 4)
    for like, in_place in ((items(0), False), (items(0), True), ({"params": items(0)["params"]}, False)):
        with Checkpointer(tmp_path, every=1) as checkpoints:
            assert checkpoints.restore(like, in_place=in_place)[1] == {"step": 2}
        said = capfd.readouterr().err
        assert f"checkpoint {tmp_path}/4 is damaged (params/w is not what was saved: its digest is " in said
        assert "step 2 is used instead" in said
    with Checkpointer(tmp_path, every=1) as checkpoints:
        assert checkpoints.restore({"rest": items(0)["rest"]})[1] == {"step": 4}, "nothing wrong was read"
        with pytest.raises(ValueError, match=r"can be read\. .*/4: params/w is not what.*There are steps 2, 4"):
            checkpoints.restore(items(0), 4)


def test_an_older_checkpoint_is_used_and_said_to_be_unchecked(tmp_path, capfd):
    save(tmp_path, 2)
    as_older(tmp_path, 2)
    assert restored(tmp_path) == 2
    assert f"checkpoint {tmp_path}/2 carries no digests (it is older): it is used unchecked" in capfd.readouterr().err
    save(tmp_path, 4)
    assert restored(tmp_path) == 4 and "no digests" not in capfd.readouterr().err


def test_one_whose_digests_are_gone_does_not_pass_for_an_older_one(tmp_path, capfd):
    """Another well-formed JSON file in the place of the host's state."""
    save(tmp_path, 2, 4)
    (tmp_path / "4/host/metadata").write_text('{"item_handlers": {}}')
    assert restored(tmp_path) == 2 and "its digests are missing" in capfd.readouterr().err


def test_another_dtype_is_read_in_its_own_and_checked(tmp_path, capfd):
    save(tmp_path, 2, 4)
    like = {"params": {"w": jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)}}
    with Checkpointer(tmp_path, every=1) as checkpoints:
        found, host = checkpoints.restore(like)
    assert host == {"step": 4} and found["params"]["w"].dtype == jnp.bfloat16
    assert np.array_equal(found["params"]["w"], items(4)["params"]["w"].astype(jnp.bfloat16))
    other_values(tmp_path, 4)
    with Checkpointer(tmp_path, every=1) as checkpoints:
        assert checkpoints.restore(like)[1] == {"step": 2}


def test_a_step_under_another_s_name_and_another_host_are_damage(tmp_path, capfd):
    save(tmp_path, 2, 4, 6, keep=3)
    shutil.rmtree(tmp_path / "6")
    shutil.copytree(tmp_path / "2", tmp_path / "6")
    path = tmp_path / "4" / "host" / "metadata"
    path.write_text(path.read_text().replace('"step": 4', '"step": 5', 1))
    assert restored(tmp_path) == 2
    said = capfd.readouterr().err
    assert "it is the checkpoint of step 2, not 6" in said and "the host's state is not what was saved" in said


def test_metadata_of_other_shapes_is_damage_if_the_digests_say_so(tmp_path, capfd):
    save(tmp_path, 2, 4)
    path = tmp_path / "4" / "params" / "_METADATA"
    assert '"w"' in path.read_text()
    path.write_text(path.read_text().replace("w", "v"))
    assert restored(tmp_path) == 2, "not taken for another run's config"


def test_a_step_that_is_not_there_is_said_with_those_that_are(tmp_path):
    save(tmp_path, 2, 4)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 3 under .*: there are steps 2, 4$"):
        restored(tmp_path, 3)


def test_a_metric_that_is_not_what_was_saved_ranks_nothing(tmp_path):
    best = dict(keep=1, keep_best=1, best_metric="score")
    with Checkpointer(tmp_path, every=1, **best) as checkpoints:
        for step, score in ((2, 9.0), (4, 1.0)):
            checkpoints.save(step, items(step), {"step": step}, {"score": score})
    path = tmp_path / "4" / "metric" / "metadata"
    right = path.read_text()
    for content in (right.replace("1.0", "99.0"), '{"item_handlers": {}}', None):
        path.unlink()
        if content:
            path.write_text(content)
        with pytest.warns(UserWarning, match="4/metric/metadata is damaged"):
            found = Checkpointer(tmp_path, every=1, **best)
        with found:
            assert found.best_step() == 2
        path.write_text(right)
    shutil.copytree(tmp_path / "4", tmp_path / "6.damaged")  # one that was moved aside is none to rank, nor to report
    with Checkpointer(tmp_path, every=1, **best) as found:
        assert found.best_step() == 2


def test_the_run_goes_on_and_the_damaged_one_is_moved_aside_not_deleted(tmp_path):
    save(tmp_path, 2, 4, 6, keep=3)
    for step in (4, 6):
        truncated_array(tmp_path / str(step))
    kept = largest_file(tmp_path / "6").read_bytes()
    with Checkpointer(tmp_path, every=1, keep=2) as checkpoints:
        assert checkpoints.restore(items(0))[1]["step"] == 2
        for step in (3, 4, 6):  # 3 is older than the damaged ones, 4 and 6 have their names
            checkpoints.save(step, items(step), {"step": step})
            assert checkpoints.latest_step() == step
    assert restored(tmp_path) == 6 and restored(tmp_path, 4) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"4", "6", "4.damaged", "6.damaged"}
    assert largest_file(tmp_path / "6.damaged").read_bytes() == kept


def test_one_that_is_damaged_while_the_run_is_on_is_moved_aside_too(tmp_path):
    with Checkpointer(tmp_path, every=1, keep=2) as checkpoints:
        for step in (2, 4):
            checkpoints.save(step, items(step), {"step": step})
        assert checkpoints.restore(items(0))[1]["step"] == 4  # it is complete
        truncated_array(tmp_path / "4")
        assert checkpoints.restore(items(0))[1]["step"] == 2
        checkpoints.save(3, items(3), {"step": 3})
    assert restored(tmp_path) == 3 and (tmp_path / "4.damaged").exists()


def test_a_step_older_than_the_newest_is_refused_not_skipped(tmp_path):
    save(tmp_path, 2, 4)
    with pytest.raises(ValueError, match="step 3 cannot be written .*step 4 is already saved, and only the newest"):
        save(tmp_path, 3)
    assert restored(tmp_path) == 4


def test_an_array_without_elements_is_refused_by_name(tmp_path):
    with (
        Checkpointer(tmp_path, every=1) as checkpoints,
        pytest.raises(ValueError, match="step 1 cannot be written: arrays without elements: state/empty"),
    ):
        checkpoints.save(1, {"state": {"empty": jnp.zeros((0, 3))}}, {"step": 1})


def test_all_damaged_is_an_error_that_names_each(tmp_path):
    save(tmp_path, 2, 4)
    half_a_host(tmp_path / "2")
    missing_index(tmp_path / "4")
    with pytest.raises(ValueError, match=r"(?s)no checkpoint can be read.*/4: .*NOT_FOUND.*/2: .*JSON.*away to start"):
        restored(tmp_path)
    with pytest.raises(ValueError, match=r"no checkpoint can be read.*/2: "):  # one that is asked for has no stand-in
        restored(tmp_path, 2)


def test_another_form_is_no_damage(tmp_path):
    save(tmp_path, 2, 4)
    with Checkpointer(tmp_path, every=1) as checkpoints:
        for wrong in ({"w": jnp.zeros((32, 64))}, {"w": jnp.zeros((64, 64)), "b": jnp.zeros(3)}):
            with pytest.raises(ValueError, match=r"/4 is of a run with other shapes; use that run.s config: "):
                checkpoints.restore({"params": wrong})


def test_rests_of_a_save_that_was_cut_off_go_at_the_next_save_only(tmp_path, capfd):
    save(tmp_path, 2)
    rest = tmp_path / "4.orbax-checkpoint-tmp"
    (rest / "params").mkdir(parents=True)
    assert restored(tmp_path) == 2 and rest.exists(), "the folder of a run that is saving this moment"
    save(tmp_path, 6)
    assert not rest.exists() and restored(tmp_path) == 6
    assert f"{rest} is left over from an interrupted save; it is removed" in capfd.readouterr().err


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    save(tmp_path, 2, keep=1)
    usage = checkpoint.shutil.disk_usage(tmp_path)._replace(free=12_345)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage)
    with Checkpointer(tmp_path, every=1, keep=1) as checkpoints:
        with pytest.raises(OSError, match=r"step 4 cannot be written under .*disk is full.*1,064,9\d\d bytes.*12,345 "
                                          r"bytes are free. The checkpoints of steps \[2\] are untouched"):  # fmt: skip
            checkpoints.save(4, items(4), {"step": 4})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["2"] and restored(tmp_path) == 2


WRITER = """
    import resource, sys, jax, jax.numpy as jnp
    from rl_jax.training.checkpoint import Checkpointer
    with Checkpointer(sys.argv[1], every=1, keep=1) as checkpoints:
        for step in (2, 4):
            items = {"params": {"w": jax.random.normal(jax.random.key(step), (256, 256))}}
            checkpoints.save(step, items, {"step": step})
            if step == 2:
                assert checkpoints.restore(items)[1]["step"] == 2  # it is complete
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        while True:
            checkpoints.due(5)
"""


@pytest.mark.slow
def test_a_write_that_fails_in_the_background_stops_the_run_and_leaves_the_old_one(tmp_path):
    """Files of the process may not grow past 100,000 bytes: the operating system refuses the write, as a full disk."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    done = subprocess.run(command, cwd=REPO_ROOT, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"OSError: the checkpoint of step 4 cannot be written under {tmp_path} (")
    assert "File too large" in last and "The checkpoints of steps [2] are untouched" in last
    with Checkpointer(tmp_path, every=1) as checkpoints:
        found, host = checkpoints.restore({"params": {"w": jnp.zeros((256, 256))}})
    assert host["step"] == 2
    assert np.array_equal(found["params"]["w"], jax.random.normal(jax.random.key(2), (256, 256)))


def test_the_loops_own_error_is_the_one_to_see(tmp_path, monkeypatch):
    def fail(self):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint.ocp.CheckpointManager, "close", fail)
    with pytest.raises(KeyError, match="of the loop"), Checkpointer(tmp_path, every=1):
        raise KeyError("of the loop")
    with pytest.raises(OSError, match="no space left"), Checkpointer(tmp_path, every=1):
        pass
