"""experiments/control/offline.py: a run and its resumption, data from files and from control.ppo, and refusals."""

import functools
import json
from unittest import mock

import jax
import numpy as np
import pytest

from configs.control import environments, preferences
from configs.control import offline as configs
from experiments.control import offline as control_offline
from experiments.control import ppo as control_ppo
from experiments.parts import (
    budgets,
    control_record,
    control_segments,
    control_setup,
    offline_data,
    offline_runs,
)
from rl_jax import envs
from rl_jax.data import transitions
from rl_jax.training import checkpoint
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def tiny(words, **fields):
    """configs/control/offline.py:WORDS,smoke on networks of 8 units."""
    config = configs.get_config(f"{words},smoke")
    config.network.hidden = (8,)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.usefixtures("kept_signals", "one_program")
@pytest.mark.slow
def test_a_run_and_its_resumption(tmp_path, monkeypatch):
    """td3_bc on pointmass: target networks, a delayed policy, and the data are all restored."""
    config = tiny("pointmass,td3_bc")
    control_offline.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_offline.run(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_offline.run(config, tmp_path / "halves")
    for name in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8]
    assert rows[1]["env_steps"] == 8 * budgets.samples_per_step(config)
    assert {"eval/return", "eval/normalized", "eval/improvement", "data/return"} <= set(rows[1])


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.slow
def test_a_run_of_ppo_is_recorded_and_read(tmp_path):
    """control.ppo writes transitions at update 0 and at each checkpoint; control.offline takes the folder."""
    config = environments.get_config("matching,smoke")
    config.network.hidden = (8,)
    config.update(num_seeds=1)
    config.record.update(path=str(tmp_path / "data"), num_envs=4, num_steps=8)
    control_ppo.run(config, tmp_path / "ppo")
    parts = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert parts == ["settings.json", "step_00000000.npz", "step_00000004.npz", "step_00000008.npz"]
    recorded = transitions.read(tmp_path / "data")
    assert len(recorded.rewards) == 3 * 4 * 8 and recorded.metadata["env"] == "probes/matching"
    assert recorded.metadata["behaviours"][2] == "control_matching, seed 0, update 8"
    right = recorded.observations[:, 0] == 2.0 * recorded.actions - 1.0
    np.testing.assert_array_equal(recorded.rewards, np.where(right, 1.0, -1.0))
    config = tiny("matching,bc", dataset__path=str(tmp_path / "data"))
    loaded = loaded_of(config)
    assert loaded.data.behaviour.tolist() == recorded.behaviour.tolist()
    np.testing.assert_allclose(loaded.behaviour_return, recorded.rewards.mean(), rtol=1e-6)


def loaded_of(config):
    networks = offline_data.make_offline_networks(config, control_setup.load_env(config, 1))
    load = offline_data.make_loader(config, networks, 0.9)
    return jax.jit(load, compiler_options=QUICK)(jax.random.key(0))


def file_of(tmp_path, **fields):
    rng = np.random.default_rng(0)
    arrays = dict(
        observations=rng.normal(size=(6, 4)), actions=np.zeros((6, 2)), rewards=np.ones(6),
        next_observations=rng.normal(size=(6, 4)), terminated=np.zeros(6, bool), truncated=np.arange(6) % 3 == 2,
    )  # fmt: skip
    transitions.write(tmp_path / "a.npz", transitions.check("a", arrays | fields, {}))
    return str(tmp_path / "a.npz")


def test_a_file_is_read(tmp_path):
    loaded = loaded_of(tiny("pointmass,bc", dataset__path=file_of(tmp_path), dataset__returns=(0.0, 3.0)))
    assert loaded.data.time.tolist() == [0, 1, 2, 0, 1, 2] and loaded.data.to_go.tolist() == [3, 2, 1, 3, 2, 1]
    np.testing.assert_allclose(loaded.data.returns[:3], [1 + 0.9 + 0.81, 1.9, 1.0], rtol=1e-6)
    assert loaded.behaviour_return == 3.0 and loaded.references.tolist() == [0.0, 3.0]
    assert offline_data.scores(jax.numpy.float32(1.5), loaded)["eval/normalized"] == 50.0


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        ("pointmass,iql", dict(mesh="envs:2"), "offline runs have no envs to spread"),
        ("pointmass,iql", dict(eval__num_episodes=0), "eval.num_episodes=0 must be 1 or more"),
        ("pointmass,iql", dict(dataset__behaviours=("best",), dataset__shares=(1.0,)), "'best' is none of expert"),
        ("pointmass,iql", dict(dataset__shares=(1.0,)), "give one share above 0 for each"),
        ("pointmass,iql", dict(dataset__num_envs=2), "dataset.num_envs=2 is less than one for each of 3"),
        ("pointmass,iql", dict(env__name="probes/drive"), "'probes/drive' has no scripted behaviour"),
        ("pointmass,iql", dict(dataset__path="nowhere.npz"), "nowhere.npz: no such file"),
        ("pointmass,iql", dict(dataset__returns=(1.0,)), "must be two returns"),
        ("pointmass,iql", dict(dataset__mixing=(0.5, 0.5)), "the data have 3 sources; give a share of 0 or more"),
        ("pointmass,iql", dict(dataset__mixing=(0.0, 0.0, 0.0)), "give a share of 0 or more for each"),
        ("pointmass,dt", dict(dataset__mixing=(1.0, 1.0, 1.0)), "algorithm.fn='dt' draws its batches without it"),
        ("pointmass,iql,labelled_only", dict(dataset__mixing=(1.0, 1.0, 1.0)), "labels.fill=False draws its batches"),
        ("pointmass,oppo,labelled_only", {}, "algorithm.fn='oppo' would learn from the hidden actions' zeros"),
        ("pointmass,iql,labelled_only,fqe", {}, "ope would learn from the hidden actions' zeros"),
        ("pointmass,dt,preferred", {}, "algorithm.fn='dt' needs the environment's returns"),
        ("pointmass,region_dt,preferred", {}, "algorithm.fn='region_dt' needs the environment's returns"),
        ("pointmass,iql,preferred,fqe", {}, "ope needs the environment's returns"),
        ("matching,bc", dict(algorithm__fn="td3_bc"), "needs continuous ones, not 2"),
        ("cartpole,iql,online", dict(env__name="host/shuttle", num_seeds=2), "lives on the host: .* not 2 runs"),
        ("pointmass,dual_tv", dict(algorithm__divergence="js"), "divergence='js' is none of chi2, tv"),
        ("pointmass,iql", dict(program="control.ppo"), "this config is for python -m experiments.control.ppo"),
    ],
)
def test_refusals(words, fields, said, tmp_path):
    config = tiny(words, **fields)
    if fields.get("algorithm__fn"):
        config.algorithm = configs.METHODS["td3_bc"]
    with pytest.raises(ValueError, match=said):
        control_offline.run(config, tmp_path)


def test_files_that_do_not_fit_the_environment(tmp_path):
    path = file_of(tmp_path, actions=np.zeros((6, 3)))
    with pytest.raises(
        ValueError, match=r"a.npz, field 'actions': shape \(3,\) per step, but probes/pointmass has \(2,\)"
    ):
        loaded_of(tiny("pointmass,bc", dataset__path=path))
    with pytest.raises(
        ValueError, match=r"field 'observations': shape \(4,\) per step, but probes/matching has \(1,\)"
    ):
        loaded_of(tiny("matching,bc", dataset__path=path))


def test_words_that_do_not_go_together():
    with pytest.raises(ValueError, match="one method and one word for the labels, not bc, iql"):
        configs.get_config("bc,iql")
    with pytest.raises(ValueError, match="td3_bc is for continuous actions, cartpole has a finite set"):
        configs.get_config("cartpole,td3_bc")


@pytest.mark.parametrize("make", ["dataset", "record", "segments"])
def test_what_is_trained_on_is_of_the_environment_that_is_trained_in(make, monkeypatch):
    """Not of the one with env.judged, which evaluations have."""

    class SeenError(Exception):
        """Carries the environment's own keywords."""

    def load(name, count, **fields):
        raise SeenError(fields)

    monkeypatch.setattr(envs, "load_vector", load)
    monkeypatch.setattr(control_segments, "make_teacher", lambda *args: None)
    if make == "dataset":
        config, call = configs.get_config("pointmass,td3_bc,smoke"), offline_data.collected
    elif make == "record":
        config, call = environments.get_config("matching,smoke"), control_record.make_gather
    else:
        config = preferences.get_config("matching,smoke")
        call = functools.partial(control_segments.make_gather, setup=mock.Mock())
    with config.unlocked():
        config.env.judged = dict(wind=7.0)
    with pytest.raises(SeenError) as seen:
        call(config)
    assert "wind" not in seen.value.args[0]


def test_a_swept_clip_of_the_gradient_is_the_one_that_clips():
    config = tiny("matching,iql", sweep=(("train.max_grad_norm", (1e-6, 10.0)),), num_seeds=1)
    init, advance, params = offline_runs.make_offline_run(config)
    keys, values = control_setup.runs_of(config)
    both = jax.vmap(lambda key, value: params(advance(init(key, value), value, 2)[0]))
    small, large = (jax.tree.map(lambda x, run=run: x[run], jax.jit(both)(keys, values)) for run in (0, 1))
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), small, large)))
