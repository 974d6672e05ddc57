"""experiments/control/ppo.py: the same runs by jit and pmap over devices, resumed, swept, and on a user's gymnasium."""

import contextlib
import functools
import json
import pathlib

import gymnasium
import jax
import numpy as np
import pytest

from configs.control import environments as configs
from configs.control import offline, replay
from experiments.control import ppo as control_ppo
from experiments.parts import control_relabel, control_runs, control_setup
from rl_jax.control.algorithm import Relabel
from rl_jax.envs.host_worlds import Shuttle
from rl_jax.training import checkpoint
from tests.envs.libraries import adapter, foreign
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")


def small(words="matching", **fields):
    """A config of 8 updates of 8 worlds x 8 steps on a network of 8, one row of metrics each 4 updates."""
    config = configs.get_config(words)
    config.update(num_seeds=1, log_every=4)
    config.sample.update(num_envs=8, num_steps=8)
    config.network.hidden = (8,)
    config.train.update(total_steps=512, epochs=2, minibatches=2)
    config.eval.update(num_episodes=4, max_steps=8)
    config.checkpoint.every = 4
    config.log.update(progress=False, tensorboard=False)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def trained(config):
    """(params with runs first, metrics [runs] of the last row) of a whole training."""
    program = control_runs.make_program(config)
    state = program.init()
    for _ in range(control_setup.num_updates(config) // config.log_every):
        state, metrics = program.advance(state)
        jax.block_until_ready(state)
    return jax.device_get((program.finals(state), metrics))


def assert_same(left, right, rtol=0.0):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=0.1 * rtol), left, right)


@functools.cache
def swept(**fields):
    """(params, metrics) of 4 seeds with each of 2 x 2 swept values."""
    sweep = (("algorithm.entropy_coef", (0.0, 0.3)), ("algorithm.surrogate.clip_low", (0.0, 0.2)))
    return trained(small(num_seeds=4, sweep=sweep, algorithm__normalize_rewards=True, **fields))


@pytest.mark.slow
def test_pmap_over_eight_devices_is_jit_over_the_mesh(monkeypatch):
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)  # pmap takes none, and both shall be the same to the bit
    by_jit, by_pmap = swept(mesh="seeds:8"), swept(mesh="seeds:8", spread="pmap")
    assert_same(by_jit, by_pmap)
    assert by_jit[1]["loss"].shape == (16,)
    assert len({float(x) for x in by_jit[0]["actor"]["head"]["kernel"][:, 0, 0]}) == 16  # each run is its own


@pytest.mark.slow
def test_what_is_swept_is_what_a_run_of_its_own_has(monkeypatch):
    """Which here is on one device, of four such runs: two in lockstep, and then two."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)
    params, metrics = swept(mesh="seeds:8")
    alone = dict(algorithm__normalize_rewards=True, algorithm__entropy_coef=0.3, algorithm__surrogate__clip_low=0.0)
    expected = trained(small(num_seeds=4, group=2, **alone))
    # Runs are in the order seed, entropy, clip: the third of each four is (.3, 0).
    assert_same(jax.tree.map(lambda x: x[2::4], (params, metrics)), expected, rtol=1e-4)


def test_seeds_on_devices_of_their_own_wait_for_none(monkeypatch):
    """Or their threads, one a device, could deadlock: processes.simulate_devices(independent=True) rests on it."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)  # a jit within eval_shape takes none
    asked = []
    monkeypatch.setattr(control_runs.processes, "simulate_devices", lambda *args, **kwargs: asked.append(kwargs))
    texts = {}
    for mesh in ("seeds:2", "envs:2"):
        program = control_runs.make_program(small(num_seeds=2, mesh=mesh))
        state = jax.eval_shape(program.init)

        def compiled(name, fn, mesh=mesh):
            return lambda *args: texts.setdefault(mesh, fn.lower(*args).as_text())

        program.compile(compiled, state)
    assert asked == [{"independent": True}, {"independent": False}]
    waiting = ("all_reduce", "all_gather", "all_to_all", "collective", "reduce_scatter")
    assert [any(word in texts[mesh] for word in waiting) for mesh in texts] == [False, True]


def one_of_all_worlds(state):
    """Checks 4 updates of 64 steps over eight devices: what is learned is that of all the worlds together.

    The policy hardly moves: each update takes a fifth of 64 / 2048 off the KL's coefficient, wherever the worlds are.
    """
    np.testing.assert_allclose(state.train.trackers["kl"].coef, (1 - 0.2 * 64 / 2048) ** 4, rtol=1e-5)
    assert (np.asarray(state.train.trackers["observations"].count) == 4 * 64).all()
    parts = [np.asarray(x.data).ravel() for x in state.train.params.addressable_shards]
    assert len(parts) == 8
    for part in parts[1:]:
        np.testing.assert_array_equal(part, parts[0])
    assert len(np.unique(np.asarray(state.worlds.observation))) == 2  # each device has worlds of its own


SPREAD = dict(mesh="envs:8", algorithm__normalize_observations=True, algorithm__normalize_rewards=True)
SPREAD |= dict(train__optimizer__learning_rate=1e-3)


@pytest.mark.slow
def test_worlds_over_eight_devices_by_jit_and_pmap(monkeypatch):
    """The gradients, the whitening and the running statistics are those of all the worlds together."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)
    found = []
    for spread in ("jit", "pmap"):
        program = control_runs.make_program(small("matching,ppo_kl", **SPREAD, spread=spread))
        state, metrics = program.advance(program.init())
        one_of_all_worlds(state)
        found.append(jax.device_get((program.finals(state), metrics)))
    assert_same(*found)


@pytest.mark.slow
def test_rows_of_a_memory_over_eight_devices():
    """Minibatches are whole worlds, of which each device has one."""
    config = small("recall,gru,ppo_kl", **SPREAD, train__minibatches=1, eval__num_episodes=0)
    program = control_runs.make_program(config)
    one_of_all_worlds(program.advance(program.init())[0])


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "one_program")
def test_a_run_and_its_resumption(tmp_path, monkeypatch):
    """With all that a state can have: a memory, a KL's coefficient and running statistics."""
    rate = dict(train__optimizer__learning_rate=1e-3)  # the KL stays far below its target
    config = small("recall,gru,ppo_kl", num_seeds=2, algorithm__normalize_observations=True, **rate)
    control_ppo.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_ppo.run(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_ppo.run(config, tmp_path / "halves")
    for name in ("metrics.jsonl", "episodes.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8] and rows[1]["env_steps"] == 512
    assert {"eval/return", "runs/worst", "runs/1", "kl/coef", "entropy", "loss"} <= set(rows[1])
    each = (1 - 0.2 * 64 / 2048) ** np.arange(8).reshape(2, 4)  # the KL is far below its target: see one_of_all_worlds
    np.testing.assert_allclose([row["kl/coef"] for row in rows], each.mean(axis=1), rtol=1e-5)
    control_ppo.run(config, tmp_path / "whole")  # of a finished run nothing is left to do
    assert json.loads((tmp_path / "whole" / "final.json").read_text())["step"] == 8


class Pays(gymnasium.Env):
    """A user's own environment: one step; action 1 pays 1."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float(action), True, False, {}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_users_gymnasium_environment_is_learned_unchanged(tmp_path):
    gymnasium.register("TestPays-v0", Pays)
    try:
        config = small(train__total_steps=2048, train__optimizer__learning_rate=0.03, checkpoint__every=16)
        config.env.name = "gymnasium/TestPays-v0"
        control_ppo.run(config, tmp_path)
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert rows[0]["episode/return"] < 0.8 and rows[-1]["episode/return"] > 0.9
        recorded = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
        assert [row["step"] for row in recorded] == [0, 16, 32]
        assert recorded[-1]["actions"] == [1] and recorded[-1]["rewards"] == [1.0] and recorded[-1]["terminated"]
        with pytest.raises(ValueError, match="one run, on one device, not 2 runs: set --config.num_seeds=1$"):
            control_runs.make_program(small(num_seeds=2, env__name="gymnasium/TestPays-v0"))
    finally:
        del gymnasium.registry["TestPays-v0"]


PLAYED = []  # seeds of the episodes of Noted of which a step was taken


class Noted(Shuttle):
    """A host's environment that notes its episodes."""

    def reset(self, seed):
        self._seed = seed
        return super().reset(seed)

    def step(self, action):
        if not self._time:
            PLAYED.append(self._seed)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_resumed_run_on_the_host_plays_no_episode_twice(tmp_path, monkeypatch):
    config = small(env__name=f"host/{__name__}:Noted")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_ppo.run(config, tmp_path)
    before = len(PLAYED)
    control_ppo.run(config, tmp_path)
    assert (tmp_path / "final.json").exists() and len(PLAYED) > before >= 8
    assert len(set(PLAYED)) == len(PLAYED)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(num_seeds=3, mesh="seeds:2"), "3 runs do not divide over seeds:2"),
        (dict(mesh="envs:3"), "sample.num_envs=8 do not divide over 3"),
        (dict(mesh="data:2"), "'data:2' is not seeds:SIZE"),
        (dict(spread="map"), "neither 'jit' nor 'pmap'"),
        (dict(checkpoint__every=6), "no multiple of log_every=4"),
        (dict(mesh="seeds:2,envs:2", num_seeds=2, spread="pmap"), "pmap has one axis"),
    ],
)
def test_refusals(fields, said):
    with pytest.raises(ValueError, match=said):
        config = small(**fields)
        control_setup.num_updates(config)
        control_runs.make_program(config)


def test_only_numbers_can_be_swept():
    config = small()
    config.sweep = (("train.epochs", (1, 2)),)
    with pytest.raises(ValueError, match="config.train.epochs is no float field"):
        control_runs.make_program(config)


def test_an_advantage_without_a_discount_in_the_config_has_its_functions_own():
    config, asked = small(), []
    settings, env = control_setup.settings_of(config), control_setup.load_env(config, 2)
    fields, agent = settings["algorithm"], control_setup.make_network(config, env, 1)

    def relabel(*, discount):
        asked.append(discount)
        return Relabel(tuple, lambda state, rows: (state, rows))

    fields.update(relabel=dict(fn=relabel), advantage=dict(fn="rl_jax.advantages.steps:gae", lam=0.9))
    control_relabel.make_relabel(fields, env, agent, None)
    assert asked == [0.99] and control_setup.make_algorithm(settings).discount == 0.99
    fields["advantage"] = dict(fn=lambda *rows: rows)
    with pytest.raises(ValueError, match="has no discount.*set algorithm.advantage.discount"):
        control_setup.make_algorithm(settings)


# Those of brax, craftax and playground take up to a quarter of a minute to trace; navix is not traced down to shapes
# alone. tests/envs/test_libraries.py steps all of these libraries. Of the others, what tests/control trains or
# test_a_long_corridor_is_walked_... (test_control_levels.py) is not traced here, too.
STEPPED = ("ant", "cartpole_balance", "craftax", "craftax_classic", "empty_room")
TRAINED = ("matching", "recall", "privileged", "corridor")
PLACES = [place for place in configs.ENVIRONMENTS if place not in STEPPED + TRAINED]
CONFIGS = [*PLACES, *(f"matching,{method}" for method in configs.METHODS), "cartpole,smoke"]


@pytest.mark.slow
@pytest.mark.parametrize("words", CONFIGS)
def test_every_config_traces(words):
    """The whole of a run's program, down to its shapes; every field is one that is read."""
    config = configs.get_config(words)
    config.network.hidden = (8,)
    library = config.env.name.partition("/")[0]
    with contextlib.nullcontext() if library in ("gymnax", "probes") else foreign():
        traced(config, library)


def traced(config, library):
    if library != "probes":
        adapter(library)
    init, advance, _ = control_runs.make_run(config)
    state = jax.eval_shape(lambda: init(jax.random.key(0), {}))
    after, metrics = jax.eval_shape(lambda state: advance(state, {}, 1), state)
    assert jax.tree.structure(after) == jax.tree.structure(state) and "eval/return" in metrics
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


def test_words_that_do_not_go_together():
    with pytest.raises(ValueError, match="one environment, one method and one memory"):
        configs.get_config("cartpole,pendulum")
    with pytest.raises(ValueError, match="use a2c with inventory, the same store"):
        configs.get_config("hdpo,a2c")
    with pytest.raises(ValueError, match="this config is for python -m experiments.control.preferences"):
        control_ppo.run(small(program="control.preferences"), pathlib.Path("unused"))
    with pytest.raises(ValueError, match="'cartpol'.*cartpole"):
        configs.get_config("cartpol")


def test_few_rows_of_a_gradient_step():
    found = [configs.get_config("cartpole"), configs.get_config("breakout"), replay.get_config("cartpole")]
    found += [offline.get_config("pointmass")]
    assert [control_runs.few_rows(config) for config in found] == [True, False, True, False]  # 256, 1,024, 64, any
    found[2].update(group=8, num_seeds=4)
    assert control_runs.few_rows(found[2])  # of 4 runs: 256
    found[2].num_seeds = 8
    assert not control_runs.few_rows(found[2])


@pytest.mark.parametrize(
    "fields, independent, alone",
    [
        (dict(), True, True),
        (dict(group=64, num_seeds=64), True, False),  # 2,048 rows at once
        (dict(group=64, num_seeds=2, mesh="seeds:2"), True, False),
        (dict(mesh="envs:2"), False, False),
    ],
)
def test_one_thread_is_for_few_rows_or_seeds_of_their_own_devices(monkeypatch, fields, independent, alone):
    asked = []
    monkeypatch.setattr(control_runs.processes, "simulate_devices", lambda _, independent: asked.append(independent))
    monkeypatch.setattr(control_runs.processes, "one_thread", lambda: asked.append("one thread"))
    with pytest.raises(ZeroDivisionError):
        control_runs.make_program(small(**fields), lambda *_, **__: 1 / 0)
    assert asked == [independent, *["one thread"] * alone]
