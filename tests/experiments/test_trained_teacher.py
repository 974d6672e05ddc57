"""env.snapshots.run through control.ppo: a trained teacher, a student that starts where it has been, and refusals."""

import functools
import json
import pathlib
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import rewards
from experiments.control import ppo as control_ppo
from experiments.parts import control_setup, trained_teacher
from rl_jax.envs import snapshots
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
LENGTH = 8
pytestmark = pytest.mark.usefixtures("kept_signals", "quick")


def small(**fields):
    """A corridor of 8 steps to the right; fields as env__snapshots__run."""
    config = rewards.get_config("snapshots,smoke")
    config.env.length = LENGTH
    config.env.snapshots.update(episodes=4, every=2, max_steps=32, clusters=3)
    config.sample.update(num_envs=8, num_steps=16)
    config.network.hidden = (8,)
    config.train.update(epochs=2, minibatches=2)
    config.train.optimizer.learning_rate = 1e-2
    config.eval.update(num_episodes=8, max_steps=32)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@functools.cache
def taught():
    """The folder of a teacher, two runs of plain PPO."""
    folder = pathlib.Path(tempfile.mkdtemp()) / "teacher"
    steps = dict(train__total_steps=60 * 128, log_every=60, checkpoint__every=60)
    control_ppo.run(small(env__snapshots__until=0, **steps), folder)
    return folder


def in_a_cell(places):
    return jax.nn.one_hot(places, LENGTH + 1)


@pytest.mark.slow
def test_the_teacher_is_the_policy_that_ended_with_the_highest_return(tmp_path):
    """It walks right and expects the end's reward; the other run, made the best, is another teacher."""
    env = control_setup.envs.load("probes/corridor", length=LENGTH)
    teacher = trained_teacher.restored(str(taught()), env)
    keys = jax.random.split(jax.random.key(0), 512)
    cells = in_a_cell(jnp.arange(512) % LENGTH)
    right = jax.jit(jax.vmap(teacher.act), compiler_options=QUICK)(keys, cells)
    values = teacher.value(in_a_cell(jnp.arange(LENGTH)))
    assert right.mean() > 0.8, right.mean()
    np.testing.assert_allclose(values, 0.99 ** np.arange(LENGTH)[::-1], atol=0.05)
    shutil.copytree(taught(), tmp_path / "other")
    final = json.loads((taught() / "final.json").read_text())
    best = int(np.argmax(final["metrics"]["eval/return"]))
    final["metrics"]["eval/return"] = [float(i != best) for i in range(2)]
    (tmp_path / "other" / "final.json").write_text(json.dumps(final))
    assert trained_teacher.read(tmp_path / "other")[1] == 1 - best
    other = trained_teacher.restored(str(tmp_path / "other"), env).value(in_a_cell(jnp.arange(LENGTH)))
    assert (other != values).any()


@pytest.mark.slow
def test_a_student_starts_where_the_teacher_has_been(tmp_path):
    steps = dict(train__total_steps=4 * 128, eval__num_episodes=0)
    config = small(env__snapshots__run=str(taught()), num_seeds=1, **steps)
    env = control_setup.envs.load("probes/corridor", length=LENGTH)
    teacher = trained_teacher.restored(str(taught()), env)
    options = dict(episodes=4, every=2, max_steps=32, clusters=3, value=teacher.value)
    made = snapshots.collected(env, teacher.act, jax.random.key(0), **options)
    want = snapshots.vectorize_from(env, 64, made, until=100, limit=100).reset(jax.random.key(1))[1]
    seen = control_setup.load_env(config, 64, learning=True).reset(jax.random.key(1))[1]
    np.testing.assert_array_equal(seen, want)
    starts, places = (set(np.argmax(np.asarray(x), axis=1)) for x in (seen, made.observations))
    assert starts == places and max(places) >= LENGTH - 2
    control_ppo.run(config, tmp_path / "student")
    assert json.loads((tmp_path / "student" / "final.json").read_text())["step"] == 4
    # A student is a teacher, without its own one.
    path = tmp_path / "student" / "config.json"
    path.write_text(path.read_text().replace(str(taught()), "/gone"))
    assert "/gone" in path.read_text()
    next_one = trained_teacher.restored(str(tmp_path / "student"), env)
    assert next_one.value(in_a_cell(jnp.arange(LENGTH))).shape == (LENGTH,)


def written(folder, **fields):
    """A finished run's config.json and final.json, without its checkpoints."""
    config = small(**fields)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "final.json").write_text(json.dumps({"step": 8, "metrics": {"eval/return": [0.5, 0.25]}}))
    return str(folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(program="control.replay"), "is of control.replay, network.kind='mlp' and spread='jit'"),
        (dict(network__kind="gru"), "is of control.ppo, network.kind='gru'"),
        (dict(env__frame_stack=2), "must read single observations as they are"),
        (dict(env__length=5), r"is of probes/corridor, observations \(6,\) and .*: here are observations \(9,\)"),
        ({}, "no checkpoint under"),
    ],
)
def test_refusals(fields, said, tmp_path):
    config = small(env__snapshots__run=written(tmp_path / "teacher", **fields))
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        control_ppo.run(config, tmp_path / "student")


def test_a_run_that_is_not_finished(tmp_path):
    with pytest.raises(ValueError, match="nowhere' is no finished run: train a teacher with python -m experiments.con"):
        control_ppo.run(small(env__snapshots__run="nowhere"), tmp_path)
