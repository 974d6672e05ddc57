"""experiments/parts/origin.py: a run goes on with what it was made of, or says what differs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import types
from unittest import mock

import jax.numpy as jnp
import pyarrow.parquet
import pytest

from experiments.parts import origin, stops, turn_replay, warm_start
from experiments.parts.budgets import length_field
from experiments.parts.episode_replay import Successes
from experiments.parts.own_code import own_code
from experiments.parts.plan_memory import PlanMemory
from experiments.parts.run import Run, claim, record_run
from rl_jax.experience import trajectory
from rl_jax.runs import disk, run_record
from rl_jax.runs.run_record import read_json
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.experiments.test_episode_replay import episode
from tests.experiments.test_run import Numbers, config, rows, saved
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.usefixtures("kept_signals")


def run(workdir, settings, program="sum", steps=None):
    """The sum of the data, as in test_run, with a record; stops after `steps`."""
    loop, data = Run(settings, workdir, program, settings.train), Numbers()
    loop.record([])
    items = loop.restore({"state": {"total": jnp.float32(0.0)}}, data)
    total = items["state"]["total"]
    with loop:
        for step in loop.steps():
            total = total + settings.rate * next(data)
            loop.stop.received = step.number == steps
            step.end({"state": {"total": total}}, {"total": float(total)}, {})
    if loop.done:
        (workdir / "final.json").write_text("{}")
    loop.close()
    return float(total)


def settings(**fields):
    found = config(rate=1.0, seed=0, name="x", mesh="", data=dict(path=""), algorithm=dict(fn="a", clip=0.2))
    for name, value in fields.items():
        group, _, last = name.rpartition("__")
        (found[group] if group else found)[last] = value
    return found


def test_a_start_is_the_checkpoint_that_was_the_newest(tmp_path):
    """Another run's params are read at every start: DPO's reference, although that run may have gone on."""
    other, mine = tmp_path / "other", tmp_path / "mine"
    (other / "checkpoints" / "40").mkdir(parents=True)
    found = settings()
    found.init_from = str(other)
    assert origin.started_from(str(other), mine) == str(other), "no run yet"
    record_run(found, mine, "sum", [])
    (other / "checkpoints" / "80").mkdir()
    assert origin.started_from(str(other), mine) == str(other / "checkpoints" / "40")
    (mine / "checkpoints" / "2").mkdir(parents=True)
    record_run(found, mine, "sum", [])  # goes on, and keeps what it was made of
    assert origin.started_from(str(other), mine) == str(other / "checkpoints" / "40")
    shutil.rmtree(other / "checkpoints" / "40")
    assert origin.started_from(str(other), mine) == str(other), "it is not there any more"
    assert origin.other_reference(mine, "a") == "", "nobody has noted one"
    with mock.patch.object(warm_start.checkpoint, "checksum", lambda params: params):
        warm_start.keep_reference(mine, "a")
        assert origin.other_reference(mine, "a") == ""
        with pytest.raises(origin.ChangedError, match=r"another reference .* \(its checkpoint 40\), or start a new"):
            warm_start.keep_reference(mine, "b")
        record_run(found, tmp_path / "next", "sum", [])  # in one process, as a notebook's second run
        warm_start.keep_reference(tmp_path / "next", "c")
        assert origin.other_reference(mine, "a") == "", "the next run's reference is its own"
    # A fork goes on with the reference of what it is a fork of.
    (other / "checkpoints" / "40").mkdir()
    forked = origin.fork(mine, tmp_path / "fork")
    record_run(found, forked, "sum", [])
    assert origin.started_from(str(other), forked) == str(other / "checkpoints" / "40")
    assert origin.other_reference(forked, "a") == "" != origin.other_reference(forked, "b")


def test_another_config_is_refused_field_by_field(tmp_path):
    run(tmp_path, settings(), steps=4)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(origin.ChangedError) as refused:
        run(tmp_path, settings(rate=2.0, algorithm__clip=0.28, checkpoint__every=1))
    said = str(refused.value)
    assert f"{tmp_path} has a run that was started with other settings:\n" in said
    assert "\n  rate: 1.0 -> 2.0\n" in said and "\n  algorithm.clip: 0.2 -> 0.28\n" in said
    assert said.count(" -> ") == 2, "checkpoint.every may change"
    assert "--fork=NEW_WORKDIR" in said and "train.steps" in said and "another --workdir" in said
    assert (tmp_path / "config.json").read_bytes() == before and saved(tmp_path)[-1] == 4


def test_a_task_that_leaves_out_records_is_another_one(tmp_path):
    """Those without an answer are left out: the prompts of the steps to come would be others, or stand elsewhere."""

    def of(skip):
        found = settings()
        with found.unlocked():
            found.task = dict(name="records", skip_bad_records=skip)
        return found

    run(tmp_path, of(False), steps=4)
    with pytest.raises(origin.ChangedError, match="task.skip_bad_records: false -> true"):
        run(tmp_path, of(True))


def test_a_folder_of_another_program_is_refused_in_one_line(tmp_path):
    run(tmp_path, settings(), steps=4)
    for check in (origin.check_config, origin.check_result):
        with pytest.raises(origin.ChangedError) as refused:
            check(settings(rate=2.0, algorithm__clip=0.28), tmp_path, "other")
        said = f"{tmp_path} has a run of another program: sum, not other. Give a new --workdir"
        assert str(refused.value) == said


def test_where_a_control_run_has_its_environments_stays(tmp_path):
    """Actions and draws have keys per part of envs:N; states of pmap have an axis of devices."""

    def of(mesh, spread="jit"):
        found = settings(mesh=mesh)
        found.spread = spread
        return found

    def refused(start, mesh, *, spread="jit"):
        record_run(of(start, spread), tmp_path / start, "control.ppo", [])
        (tmp_path / start / "checkpoints" / "2").mkdir(parents=True, exist_ok=True)
        with pytest.raises(origin.ChangedError) as error:
            origin.check_config(of(mesh), tmp_path / start, "control.ppo")
        return str(error.value)

    assert '\n  mesh: "envs:4" -> "envs:2"\n' in refused("envs:4", "envs:2")
    assert "mesh (but not envs:N of it), " in refused("envs:4", "")
    assert '\n  mesh: "seeds:2" -> "seeds:2,envs:2"\n' in refused("seeds:2", "seeds:2,envs:2")
    with pytest.raises(origin.ChangedError, match='mesh: "envs:4" -> "envs:2"'):
        origin.check_result(of("envs:2"), tmp_path / "envs:4", "control.ppo")
    origin.check_config(of("seeds:2,envs:4"), tmp_path / "envs:4", "control.ppo")
    origin.check_config(of(""), tmp_path / "seeds:2", "control.ppo")
    assert '\n  spread: "pmap" -> "jit"\n' in refused("seeds:3", "seeds:3", spread="pmap")
    origin.check_result(of("seeds:3"), tmp_path / "seeds:3", "control.ppo")  # its numbers are the same
    with pytest.raises(origin.ChangedError, match='mesh: "seeds:3" -> "seeds:2"'):
        origin.check_config(of("seeds:2", "pmap"), tmp_path / "seeds:3", "control.ppo")


def test_what_may_change_does_and_the_first_config_stays(tmp_path):
    run(tmp_path, settings(), steps=4)
    changed = settings(mesh="data:2", train__steps=9, checkpoint__every=2, eval__every=4, name="y")
    assert run(tmp_path, changed) == sum(range(9))
    assert read_json(tmp_path / "config.json")["train"]["steps"] == 7
    first, second = read_json(tmp_path / "run.json")["attempts"]
    assert "config" not in first
    assert second["config"] == {"mesh": "data:2", "train.steps": 9, "checkpoint.every": 2, "eval.every": 4, "name": "y"}
    with pytest.raises(origin.ChangedError, match=r"train\.steps: 7 -> 6"):
        run(tmp_path, settings(train__steps=6))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"train": {"optimizer": {"final_fraction": 0.0}}}, "train.optimizer.final_fraction"),
        ({"train": {"actor_optimizer": {"final_fraction": 0.1}}}, "train.actor_optimizer.final_fraction"),
        ({"algorithm": {"exploration": {"initial": 1.0, "final": 0.05, "fraction": 0.2}}}, "algorithm.exploration"),
        ({"algorithm": {"exploration": {"initial": 1.0, "final": 0.05, "fraction": 0.0}}}, ""),
        ({"algorithm": {"exploration": {"initial": 0.1, "final": 0.1, "fraction": 0.2}}}, ""),
        ({"sweep": (("train.optimizer.final_fraction", (0.0, 1.0)),)}, "train.optimizer.final_fraction"),
        ({"runs": ((0, (("algorithm.exploration.final", 0.1),)),)}, "algorithm.exploration.final"),
        ({"online": {"after": 0.5}}, "online.after"),
        ({"continual": {"values": (1, 2)}}, "continual.values"),
        ({"continual": {"values": (1, 2), "held_out": (3,)}}, ""),
        ({"algorithm": {"kl_control": {"fn": "annealed_kl"}}}, "algorithm.kl_control"),
        ({"algorithm": {"kl_control": {"fn": "annealed_kl", "updates": 8}}}, ""),
        ({"algorithm": {"kl_control": {"fn": "adaptive_kl"}}}, ""),
    ],
)
def test_a_longer_run_is_refused_if_its_length_shapes_a_course(tmp_path, fields, said):
    def of(total):
        found = config(seed=0, data=dict(path=""), algorithm={}, sweep=(), runs=())
        del found.train.steps
        found.update(fields)
        found.train.update(total_steps=total)
        return found

    record_run(of(64), tmp_path, "control.replay", [])
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    if not said:
        return origin.check_config(of(128), tmp_path, "control.replay")
    with pytest.raises(origin.ChangedError, match=r"\n  train\.total_steps: 64 -> 128\n") as refused:
        origin.check_config(of(128), tmp_path, "control.replay")
    assert f"\n  {said} is spread over all steps of the run\n" in str(refused.value)


def test_longer_text_runs_are_refused_where_a_kl_weight_is_annealed_over_them(tmp_path):
    def of(steps, **spec):
        return settings(train__steps=steps, algorithm__trackers=dict(loss_kl=dict(fn="annealed_kl", **spec)))

    run(tmp_path / "a", of(7), steps=4)
    with pytest.raises(origin.ChangedError, match=r"train\.steps: 7 -> 9\n  algorithm\.trackers\.loss_kl is spread"):
        run(tmp_path / "a", of(9))
    run(tmp_path / "b", of(7, updates=7), steps=4)
    assert run(tmp_path / "b", of(9, updates=7)) == sum(range(9))


def test_a_model_folder_is_no_workdir_and_stays_as_it_is(tmp_path):
    """A run there would rename the model's config.json, and the model could not be loaded any more."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="is the folder of a model.*give a new --workdir"):
        run(tmp_path, settings())
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert read_json(tmp_path / "config.json") == {"model_type": "llama"}


def test_before_the_first_checkpoint_settings_may_be_mended(tmp_path):
    record_run(settings(), tmp_path, "sum", [])
    run(tmp_path, settings(rate=3.0), steps=4)
    assert read_json(tmp_path / "config.json")["rate"] == 3.0
    assert read_json(tmp_path / "config_1.json")["rate"] == 1.0, "the first attempt keeps its own"
    with pytest.raises(origin.ChangedError, match=r"rate: 3\.0 -> 1\.0"):
        run(tmp_path, settings())


def test_fields_of_another_version_of_the_code_are_said_not_refused(tmp_path, capsys, monkeypatch):
    run(tmp_path, settings(), steps=4)
    newer = settings()
    newer.algorithm.more = 1
    with pytest.raises(origin.ChangedError, match=r"algorithm\.more: \(absent\) -> 1"):
        run(tmp_path, newer)
    monkeypatch.setattr(origin, "code_sha256", lambda: "other")
    assert run(tmp_path, newer) == sum(range(7))
    out, err = capsys.readouterr()
    assert "algorithm.more" in out
    assert err.count(f"{tmp_path}: the code has changed since this run was started (at commit ") == 1


def test_own_functions_are_a_part_of_what_a_run_is_made_of(tmp_path, capsys, monkeypatch):
    """A module of one's own that the config names lies outside of the code that is hashed as the package's."""
    monkeypatch.syspath_prepend(str(tmp_path))
    own, folder = tmp_path / "origin_own_loss.py", tmp_path / "run"
    package = tmp_path / "origin_own_rewards"
    package.mkdir()
    (package / "__init__.py").write_text("from origin_own_rewards.inner import score\n")
    (package / "inner.py").write_text("raise AssertionError('is not imported')\n")
    own.write_text("raise AssertionError('is not imported')\n")
    of = settings(algorithm__fn="origin_own_loss:loss")
    of.env = dict(name="gymnasium/origin_own_rewards.inner:World-v0")
    of.terms = (dict(fn="rl_jax.rewards.exact:score"), dict(fn="origin_own_rewards:score"), "no_such_module:score")
    run(folder, of, steps=4)
    code = read_json(folder / "run.json")["origin"]["own_code"]
    assert sorted(code) == ["origin_own_loss", "origin_own_rewards", "origin_own_rewards.inner"]
    run(folder, of, steps=5)
    assert capsys.readouterr().err == ""
    own.write_text("sign = -1\n")
    said = "the code of origin_own_loss has changed since this run was started"
    run(folder, of)
    assert capsys.readouterr().err.count(f"{folder}: {said}") == 1
    origin.check_result(of, folder, "sum")  # as of a sweep's point that is finished
    assert said in capsys.readouterr().err
    (package / "inner.py").write_text("")
    origin.check_result(of, folder, "sum")
    assert "origin_own_loss, origin_own_rewards, origin_own_rewards.inner has changed" in capsys.readouterr().err
    record = read_json(folder / "run.json")
    del record["origin"]["own_code"]  # as of an older version
    (folder / "run.json").write_text(json.dumps(record))
    origin.check_result(of, folder, "sum")
    run(folder, of)
    assert capsys.readouterr().err == ""


def test_a_function_of_a_script_is_hashed_with_its_file(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("1")
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = None
    assert own_code({"fn": "__main__:loss"}) == {}, "of a notebook"
    main.__file__ = str(script)
    assert list(own_code({"fn": "__main__:loss"})) == ["__main__"]


def test_other_data_is_refused_with_its_files(tmp_path):
    path, folder = tmp_path / "pairs.jsonl", tmp_path / "run"
    path.write_text("one\n")
    of = settings(data__path=f"a={path}@2")
    run(folder, of, steps=4)
    data = read_json(folder / "run.json")["origin"]["data"]
    assert list(data) == [str(path)] and data[str(path)]["bytes"] == 4
    path.write_text("two\n")
    with pytest.raises(
        origin.ChangedError, match=rf"with other data:\n  {path}: 4 bytes, sha256 \w+ -> 4 bytes, sha256 "
    ):
        run(folder, of)
    path.unlink()
    with pytest.raises(origin.ChangedError, match=r"-> \(absent\)"):
        run(folder, of)
    path.write_text("one\n")
    assert run(folder, of) == sum(range(7))


def test_data_files_are_those_of_folders_globs_and_lists(tmp_path):
    for name in ("a/x.jsonl", "a/b/y.jsonl", "z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    of = settings(data=dict(path=f"{tmp_path}/z.js*, n={tmp_path}/a", name=str(tmp_path / "z.jsonl")))
    found = origin.data_files(of)
    assert sorted(found) == [f"{tmp_path}/a/b/y.jsonl", f"{tmp_path}/a/x.jsonl", f"{tmp_path}/z.jsonl"]
    assert origin.data_files(settings(data__path="hf://datasets/a/b@main/c.jsonl")) == {}


def test_an_older_run_goes_on_and_says_what_is_not_known(tmp_path, capsys):
    run(tmp_path, settings(), steps=4)
    record = read_json(tmp_path / "run.json")
    del record["origin"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert run(tmp_path, settings()) == sum(range(7))
    assert f"{tmp_path} was begun by an older version" in capsys.readouterr().err


def test_a_warm_start_is_bound_by_its_own_fields_only(tmp_path):
    of = settings(sft=dict(steps=3), train__steps=3)
    run(tmp_path / "sft", of, program="sft", steps=3)
    other = settings(sft=dict(steps=3), train__steps=3, algorithm__clip=0.3)
    origin.check_config(other, tmp_path / "sft", "sft")
    with pytest.raises(origin.ChangedError, match="seed: 0 -> 1"):
        origin.check_config(settings(sft=dict(steps=3), seed=1), tmp_path / "sft", "sft")


@pytest.mark.parametrize(
    ("changed", "stop_at", "said"),
    [
        (dict(algorithm__masking="uniform"), 1.1, "algorithm.masking"),
        (dict(rollout__long_prompts="cut"), 1.1, "rollout.long_prompts"),
        (dict(packing__mode="packed"), 1.1, "packing.mode"),
        (dict(eval__num_prompts=7), 1.1, ""),
        (dict(eval__num_prompts=7), 0.3, "eval.num_prompts"),
        (dict(reward__failure_reward=0.5), 0.3, "reward.failure_reward"),
        (dict(reward__num_workers=2, eval__every=5), 0.3, ""),
    ],
)
def test_a_warm_start_is_bound_by_what_its_loss_and_its_end_read(tmp_path, changed, stop_at, said):
    of = dict(
        algorithm=dict(masking="count", clip=0.2),
        rollout=dict(long_prompts="drop"),
        packing=dict(mode="padded"),
        eval=dict(every=2, num_prompts=64),
        reward=dict(failure_reward=0.0, num_workers=0),
        sft=dict(steps=3, stop_at=stop_at),
    )
    record_run(settings(**of), tmp_path, "sft", [])
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    with pytest.raises(origin.ChangedError, match=rf"\n  {said}: ") if said else contextlib.nullcontext():
        origin.check_config(settings(**of, **changed), tmp_path, "sft")


def test_a_fork_begins_with_the_newest_checkpoint_and_has_its_own_settings(tmp_path, capsys):
    old, new = tmp_path / "old", tmp_path / "new"
    run(old, settings(), steps=4)
    (old / "sft" / "checkpoints" / "1").mkdir(parents=True)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert origin.fork(old, new) == new
    assert f"{new} begins with step 4 of {old}" in capsys.readouterr().out
    assert run(new, settings(rate=2.0), steps=5) == sum(range(4)) + 2.0 * 4
    assert read_json(new / "run.json")["origin"]["forked_from"] == {"workdir": str(old), "step": 4}
    assert read_json(new / "config.json")["rate"] == 2.0 and (new / "sft/checkpoints/1").is_dir()
    assert [row["step"] for row in rows(new)] == [1, 2, 3, 4, 5]
    assert origin.fork(old, new) == new, "the same command goes on"
    assert run(new, settings(rate=2.0)) == sum(range(4)) + 2.0 * (4 + 5 + 6)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before
    assert origin.fork(old, new, first=False) == new


def test_a_fork_has_the_warm_start_and_the_reference_of_its_run(tmp_path):
    """The SFT in its folder is complete there, with a record of its own; DPO compares with the same reference."""
    old, new, found = tmp_path / "old", tmp_path / "new", settings(sft=dict(steps=3), init_from="")

    def start(workdir, params):
        with mock.patch.object(warm_start.checkpoint, "checksum", lambda params: params):
            record_run(found, workdir, "dpo", [])
            assert run(workdir / "sft", found, program="sft") == 0 + 1 + 2
            return warm_start.keep_reference(workdir, params)

    found.train.steps = 3
    start(old, "a")
    (old / "checkpoints" / "2").mkdir(parents=True)
    for _ in range(2):  # the second start is a resumed one
        origin.fork(old, new)
        assert start(new, "a") == "a" and saved(new / "sft")[-1] == 3
    with pytest.raises(origin.ChangedError, match="another reference"):
        start(new, "b")
    assert read_json(new / "run.json")["origin"]["forked_from"] == {"workdir": str(old), "step": 2}
    with pytest.raises(ValueError, match=r"sft is not empty: give a new folder"):
        origin.fork(old, new / "sft")
    shutil.rmtree(new)
    origin.fork(old, new)
    os.remove(new / "sft" / "run.json")  # of a run of before there were records
    start(new, "a")
    assert read_json(new / "sft" / "run.json")["origin"]["forked_from"] == {"part": True}


def test_a_fork_of_other_settings_without_a_step_left_is_refused(tmp_path):
    """It would be complete at once, with the params of the run that it is a fork of."""
    old, new = tmp_path / "old", tmp_path / "new"
    run(old, settings(), steps=4)
    run(old, settings())
    for changed, total in ((dict(rate=2.0), 7), (dict(train__steps=5), 5), (dict(eval__every=1), 7)):
        with pytest.raises(origin.ChangedError) as refused:
            run(origin.fork(old, new), settings(**changed))
        name = next(iter(changed)).replace("__", ".")
        lines = str(refused.value).splitlines()
        assert f"newest checkpoint of {old} is at step 7 of {total}, so" in lines[0] and len(lines) == 2
        assert lines[0].endswith(": raise train.steps") and lines[1].startswith(f"  {name}: ")
        assert not (new / "final.json").exists()
    # Nothing of the fork's own was made, so the same command with more steps is a new run of these settings.
    assert run(origin.fork(old, new), settings(rate=2.0, train__steps=8)) == sum(range(7)) + 2.0 * 7
    assert read_json(new / "config.json")["train"]["steps"] == 8
    with pytest.raises(origin.ChangedError, match=r"started with other settings:\n  rate: 2\.0 -> 3\.0"):
        run(origin.fork(old, new), settings(rate=3.0, train__steps=8))
    assert run(origin.fork(old, tmp_path / "same"), settings(name="y")) == sum(range(7)), "a copy"
    assert run(origin.fork(old, tmp_path / "same"), settings(name="y")) == sum(range(7)), "which is complete"


def test_the_field_that_makes_a_run_longer_is_that_of_its_program():
    lasting = {"train": {"total_steps": 9}}, {"train": {"steps": 4, "data_epochs": 1.5}}, {"train": {"data_epochs": 0}}
    assert [length_field(one, "dpo") for one in lasting] == ["train.total_steps", "train.data_epochs", "train.steps"]
    assert length_field({"train": {"steps": 4}, "sft": {"steps": 2}}, "sft") == "sft.steps"


@pytest.mark.parametrize("links", [True, False])
def test_a_fork_takes_recorded_episodes_up_to_its_checkpoint(tmp_path, links):
    """A replay reads them from step 1 on; where one is missing, it says so. Files of one disk are not copied."""
    old, new = tmp_path / "old", tmp_path / "new"
    run(old, settings(), steps=4)
    (old / "trajectories").mkdir()
    for step in (1, 2, 4, 5):
        table = trajectory.to_table([episode("a", 1.0, step)])
        pyarrow.parquet.write_table(table, old / f"trajectories/{step:08d}.parquet")
    (old / "trajectories/notes.txt").write_text("x")
    none = mock.patch.object(origin.os, "link", side_effect=OSError(18, "Invalid cross-device link"))
    with contextlib.nullcontext() if links else none:
        origin.fork(old, new)
    found = sorted((new / "trajectories").iterdir())
    assert [path.name for path in found] == [f"{step:08d}.parquet" for step in (1, 2, 4)]
    assert all(path.samefile(old / "trajectories" / path.name) == links for path in found)
    readers = {
        "agent.replay": lambda newest: Successes(new / "trajectories", size=9, above=0, std=1, mean=1).of("a", newest),
        "agent.branching": PlanMemory(new / "trajectories", [], above=0.5).of,
        "critic.replay": lambda newest: turn_replay.transitions(new / "trajectories", newest, 9, {}),
    }
    for name, read in readers.items():
        assert len(read(2)) == 2
        with pytest.raises(FileNotFoundError, match=f"00000003.parquet: {name} .* step 3 are not there. .*--fork"):
            read(4)


def test_forks_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="--fork: no checkpoint under"):
        origin.fork(tmp_path / "none", tmp_path / "new")
    run(tmp_path / "old", settings(), steps=4)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(ValueError, match="full is not empty: give a new folder"):
        origin.fork(tmp_path / "old", tmp_path / "full")
    origin.fork(tmp_path / "old", tmp_path / "new")
    shutil.copytree(tmp_path / "old", tmp_path / "third")
    with pytest.raises(ValueError, match="new is the fork of another run, .*old"):
        origin.fork(tmp_path / "third", tmp_path / "new")
    with pytest.raises(TimeoutError, match="the first process has not made it"):
        origin.fork(tmp_path / "old", tmp_path / "later", first=False, patience_s=0.0)


def test_a_stop_is_noted_and_a_complete_run_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(stops, "_stopped", False)
    run(tmp_path, settings(), steps=7)
    assert stops.status() == 0, "a signal in the last step stops nothing"
    run(tmp_path / "cut", settings(), steps=4)
    assert stops.status() == stops.STOPPED == 75


def test_a_finished_run_that_is_made_longer_and_stopped_is_not_complete(tmp_path):
    """Else sweeps and judges would take its last checkpoint for a result."""
    longer = settings(train__steps=12)
    run(tmp_path, settings())
    assert run_record.run_state(tmp_path)[0] == "complete"
    claim(longer, tmp_path, "sum")
    record_run(longer, tmp_path, "sum", [])  # and is killed before its first step
    disk.unlock(tmp_path)
    assert not run_record.is_complete(tmp_path) and run_record.run_state(tmp_path)[0] == "running"
    assert [one["state"] for one in read_json(tmp_path / "run.json")["attempts"]] == ["complete", "running"]
    run(tmp_path, longer, steps=9)
    assert not run_record.is_complete(tmp_path) and saved(tmp_path)[-1] == 9
    assert run(tmp_path, longer) == sum(range(12)) and run_record.is_complete(tmp_path)
    assert [row["step"] for row in rows(tmp_path)] == list(range(1, 13))


def test_a_final_file_of_fewer_steps_goes_when_the_run_goes_on(tmp_path):
    run(tmp_path, settings())
    (tmp_path / "run.json").unlink()  # nothing says at which length it was complete
    run(tmp_path, settings(train__steps=12), steps=9)
    assert not run_record.is_complete(tmp_path)


PROGRAM = """
import sys
sys.argv = ["program", "--config=configs/tasks/arithmetic.py:smoke", *sys.argv[1:]]
from absl import flags as absl_flags
from experiments.parts import flags
from experiments.parts.run import claim

def run(config, workdir):
    claim(config, workdir, "grpo")
    print("claimed", workdir, flush=True)

flags.main(run)
"""


@pytest.mark.slow
def test_a_second_program_is_refused_without_a_traceback(tmp_path):
    """This process has the folder. (That a stopped program exits with 75 is test_resume.py's.)"""
    command = [sys.executable, "-c", PROGRAM, f"--workdir={tmp_path}", "--compile_cache="]
    claim(settings(), tmp_path, "grpo")
    try:
        second = subprocess.run(command, input="", capture_output=True, text=True, cwd=REPO_ROOT, timeout=600)
    finally:
        disk.unlock(tmp_path)
    assert second.returncode == 2 and "claimed" not in second.stdout and "Traceback" not in second.stderr
    assert f"process {os.getpid()} on " in second.stderr


def test_a_result_that_is_no_run_keeps_its_settings_beside_it(tmp_path, monkeypatch):
    settings = {"seed": 0, "train": {"steps": 3}, "name": "a", "--beta": float("inf"), "--file": tmp_path / "b"}
    path = tmp_path / "of" / "settings.json"
    origin.keep(path, settings | {"seed": 1}, made=False)
    origin.keep(path, settings, made=False)  # nothing was made with the first ones
    origin.keep(path, settings | {"name": "b"}, made=True)  # which moves no number
    with pytest.raises(origin.ChangedError) as error:
        origin.keep(path, settings | {"train": {"steps": 4}, "--beta": 2.0}, made=True)
    lines = str(error.value).splitlines()
    assert lines[0].startswith(f"{path}: made with other settings")
    assert sorted(lines[1:-1]) == ["  --beta: Infinity -> 2.0", "  train.steps: 3 -> 4"]
    with pytest.raises(origin.ChangedError, match="new: .absent. -> 1"):
        origin.keep(path, settings | {"new": 1}, made=True)
    monkeypatch.setattr(origin, "code_sha256", lambda: "other")
    origin.keep(path, settings | {"new": 1}, made=True)  # a field that only one of two versions of the code has
    path.unlink()
    with pytest.raises(origin.ChangedError, match="no settings were kept"):
        origin.keep(path, settings, made=True)
