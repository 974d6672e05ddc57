"""experiments/control/replay.py: every config builds, runs resume bit for bit with their replay, sweep, and spread."""

import functools
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import replay as configs
from experiments.control import replay as control_replay
from experiments.parts import control_runs, control_setup, replay_runs
from rl_jax.control import replay_types
from rl_jax.control.replay import Replay
from rl_jax.control.transitions import Transitions
from rl_jax.envs.worlds import restless
from rl_jax.training import checkpoint
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def small(words="matching,smoke", **fields):
    """The smoke config of one seed on a network of 8, with other fields: train__total_steps=value."""
    config = configs.get_config(words)
    config.update(num_seeds=1)
    config.replay.update(capacity=128, warmup=32, batch_size=8)
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def trained(config):
    """(the state of all runs, metrics [runs] of the last row) of a whole training."""
    program = control_runs.make_program(config, replay_runs.make_replay_run)
    state = program.init()
    for _ in range(control_setup.num_updates(config) // config.log_every):
        state, metrics = program.advance(state)
        jax.block_until_ready(state)
    return jax.device_get((program.finals(state), metrics))


@pytest.mark.parametrize("method", configs.METHODS)
def test_every_method_builds(method):
    """Its networks and losses, down to their shapes; every field is one that is read."""
    usual = "aim" if method in configs.OF_NUMBERS else "matching"
    place = configs.WRITTEN_FOR.get(method, (usual,))[0]
    config = configs.get_config(f"{place},{method},smoke")
    groups = control_setup.settings_of(config)
    env = control_setup.load_env(config, config.sample.num_envs)
    method = replay_runs.build(config, groups["algorithm"], env).method
    settings = replay_runs.make_settings(config, groups, 1)
    params = jax.eval_shape(method.init, jax.random.key(0))
    assert set(params) == {"critic", "actor"} - ({"actor"} if method.actor_loss is None else set())
    assert settings.slots * env.num_envs == config.replay.capacity and float(settings.random_share(0)) in (0.0, 1.0)
    assert set(method.slow) <= set(params)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA fuses on a CPU")
def test_an_update_copies_no_replay():
    """Fused with the write, a plain read of the rows made two copies of the whole replay in each update of ddpg."""
    config = small("pendulum,ddpg,smoke", replay__capacity=4096, eval__num_episodes=0)
    init, advance, _ = replay_runs.make_replay_run(config)
    state = jax.eval_shape(lambda key: init(key, {}), jax.random.key(0))
    program = jax.jit(lambda state: advance(state, {}, 4), donate_argnums=0)
    text = program.lower(state).compile(compiler_options={"xla_cpu_multi_thread_eigen": False}).as_text()
    assert "f32[1,4096,3]" in text and not re.findall(r"= \w+\[1,4096[\d,]*\]\S* copy\(", text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(env__name="probes/aim"), "searches whole-number actions; those of probes/aim are real numbers"),
        (dict(network__members=2), "network.members=2: muzero has one model of MLPs, set it to 1"),
        (dict(network__dueling=True), "network.dueling=True: muzero has one model of MLPs, set it to False"),
        (dict(algorithm__method__search="minimax"), "algorithm.method.search='minimax' is none of gumbel, puct"),
        (dict(algorithm__method__unroll=0), "algorithm.method: simulations=16 and unroll=0 must be 1 or more"),
        (dict(algorithm__method__unroll=8), "4 warm-up steps of each environment must be at least the 13 of a draw"),
    ],
)
def test_muzero_refuses_what_it_does_not_read(fields, message):
    with pytest.raises(ValueError, match=message):
        replay_runs.make_replay_run(small("matching,muzero,smoke", **fields))


@pytest.mark.slow
def test_sac_shortens_the_pulse_from_every_seed():
    """The laser of TempoRL: 19.3 of 20 is the straight way to the shortest pulse, 11.0 that of doing nothing."""
    config = configs.get_config("laser")
    config.network.hidden, config.replay.batch_size, updates = (32, 32), 64, 150
    config.algorithm.method.temperature = 0.1
    config.train.update(gradient_steps=4, total_steps=updates * config.sample.num_envs * config.sample.num_steps)
    config.log_every = config.checkpoint.every = updates
    metrics = trained(config)[1]
    assert metrics["eval/return"].shape == (3,) and (metrics["eval/return"] > 14.0).all(), metrics["eval/return"]
    assert not metrics["nonfinite/skipped"].any()


@pytest.mark.slow
def test_a_correction_of_a_cloned_policy_beats_it_and_leaves_it_as_it_was():
    """ResFiT in docking: the controller beside the goal has -7.9, and so its clone; without its bias it has -1.5."""
    config = configs.get_config("residual")
    config.num_seeds, config.network.members, config.replay.batch_size, updates = 2, 2, 64, 150
    config.network.hidden = (32, 32)
    config.train.update(gradient_steps=4, total_steps=updates * config.sample.num_envs * config.sample.num_steps)
    config.log_every = config.checkpoint.every = updates
    init, advance, params_of = replay_runs.make_replay_run(config)

    def run(key):
        first = init(key, {})
        last, metrics = advance(first, {}, updates)
        slow = last.train.trackers["slow"] | {"critic": last.train.params["critic"]}
        slow = last._replace(train=last.train._replace(params=slow))
        return *(params_of(state)["actor"] for state in (first, last, slow)), metrics["eval/return"]

    keys, _ = control_setup.runs_of(config)
    first, last, slow, found = jax.jit(lambda keys: jax.lax.map(run, keys), compiler_options=QUICK)(keys)
    for trained in (last, slow):
        jax.tree.map(np.testing.assert_array_equal, first["base"], trained["base"])
    assert np.abs(first["base"]["head"]["kernel"][0] - first["base"]["head"]["kernel"][1]).max() > 0.01
    start = np.asarray(jax.random.uniform(jax.random.key(0), (256, 2), minval=-1.0, maxval=1.0))
    for seed in range(2):
        own = jax.tree.map(lambda x, seed=seed: np.asarray(x[seed]), first["base"])
        base = -_cost(start, lambda seen, own=own: _by_numpy(own, seen))
        assert -9.0 < base < -6.0 and found[seed] > 0.6 * base, (base, found[seed])


def _cost(place: np.ndarray, policy) -> float:
    """The mean sum of squared distances over 40 steps of docking."""
    velocity, total = np.zeros(place.shape), 0.0
    for _ in range(40):
        velocity = 0.8 * velocity + 0.2 * policy(np.concatenate([place, velocity], axis=1))
        place = place + 0.3 * velocity
        total += np.mean(np.sum(place**2, axis=1))
    return total


def _by_numpy(params, x: np.ndarray) -> np.ndarray:
    """The cloned base's actions: relu layers, tanh of the head."""
    head = params["head"]
    for layer in (params[name] for name in sorted(params) if name != "head"):
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0.0)
    return np.tanh(x @ head["kernel"] + head["bias"])


@pytest.mark.slow
def test_enumerated_dqn_beats_looking_one_step_ahead():
    """Coupled arms: the myopic and the best policy's mean returns over 40 steps, by their tables, are the ends."""
    config = configs.get_config("restless")
    config.replay.update(capacity=8192, batch_size=32)
    config.train.total_steps, config.log_every, config.checkpoint.every = 250 * 32, 250, 250
    found = trained(config)[1]["eval/return"]
    rng, vectors = np.random.default_rng(0), restless.action_vectors()
    means = {}
    for policy in ("myopic", "best"):
        actions = restless.values_of(policy, discount=0.95)[1]
        full, total = (rng.random((2000, 6)) < 0.5).astype(float), 0.0
        for _ in range(40):
            pulled = vectors[actions[(full @ (2 ** np.arange(5, -1, -1))).astype(int)]]
            total = total + restless.reward_of(full, pulled, 0.2, 1.0)
            full = (1 - pulled) * np.maximum(full, rng.random((2000, 6)) < 0.3)
        means[policy] = total.mean()
    middle = 0.5 * (means["myopic"] + means["best"])
    assert (found > middle).all() and (found < means["best"] + 2.0).all(), (found, means)


@pytest.mark.slow
def test_a_run_by_integer_programs_is_the_run_by_enumeration():
    """SEQUOIA: every number of the run, acting and targets included; the first copy of the network is one of them."""
    found = {}
    for search in ("program", "enumeration"):
        config = configs.get_config("sequoia")
        config.num_seeds, config.network.hidden, config.eval.num_episodes = 1, (6,), 0
        config.replay.update(capacity=256, warmup=32, batch_size=8)
        config.sample.update(num_envs=4, num_steps=2)
        config.algorithm.target_every, config.train.total_steps = 20, 15 * 8
        config.log_every = config.checkpoint.every = 15
        config.algorithm.method.search = search
        found[search] = trained(config)
    jax.tree.map(np.testing.assert_array_equal, *found.values())


@pytest.mark.slow
def test_sequoia_beats_looking_one_step_ahead():
    """Whose mean return over 40 steps is 16.3 (below), the best policy's 23.7."""
    config = configs.get_config("sequoia")
    config.algorithm.method.search = "enumeration"  # the same numbers as by programs, see above
    config.replay.update(capacity=8192, batch_size=32)
    config.train.total_steps, config.log_every, config.checkpoint.every = 300 * 32, 300, 300
    found = trained(config)[1]["eval/return"]
    assert (found > 17.5).all() and (found < 26.0).all(), found


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "one_program")
def test_a_run_that_is_stopped_goes_on_bit_for_bit_with_its_replay(tmp_path, monkeypatch):
    """And rainbow, which has everything that a replay can have, solves its probe from every seed."""
    config = configs.get_config("matching,rainbow")
    config.train.total_steps, config.log_every, config.checkpoint.every = 40 * 32, 20, 20
    config.log.update(progress=False, tensorboard=False)
    control_replay.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_replay.run(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_replay.run(config, tmp_path / "halves")
    for name in ("metrics.jsonl", "episodes.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [20, 40] and rows[-1]["env_steps"] == 40 * 32
    assert {"eval/return", "runs/worst", "loss", "value/mean", "explore/share"} <= set(rows[1])
    found = json.loads((tmp_path / "whole" / "final.json").read_text())["metrics"]
    assert len(found["eval/return"]) == 3 and min(found["eval/return"]) > 0.9, found["eval/return"]
    assert not any(found["nonfinite/skipped"])


def test_a_resumed_run_of_a_host_environment_joins_no_two_episodes():
    """The saved replay's newest step, slot 3 of run 0 and slot 1 of run 1, ends an episode; the worlds are the new."""
    still = jnp.zeros((2, 3, 4), bool)
    rows = Transitions(*(jnp.zeros((2, 3, 4)) for _ in range(4)), still, still)
    saved = replay_types.ReplayState((), jnp.zeros(3), Replay(rows, ()), jnp.array([4, 6]), jnp.zeros(2, jnp.int32))
    found = control_runs.with_fresh_envs(saved, saved._replace(worlds=jnp.ones(3), updates=saved.updates + 1))
    expected = np.zeros((2, 3, 4), bool)
    expected[0, :, 3] = expected[1, :, 1] = True
    np.testing.assert_array_equal(found.replay.rows.truncated, expected)
    assert (found.worlds == 1).all() and not found.updates.any() and not found.replay.rows.terminated.any()


SPREAD = dict(mesh="envs:2", algorithm__priority__exponent=0.6)


@functools.cache
def swept():
    """(program, its state and metrics at the end) of two discounts with each of two rates, on two devices."""
    config = small(**SPREAD)
    config.sweep = (("algorithm.discount", (0.5, 0.9)), ("train.optimizer.learning_rate", (1e-3, 1e-2)))
    program = control_runs.make_program(config, replay_runs.make_replay_run)
    state, metrics = program.advance(program.advance(program.init())[0])
    return program, state, metrics


@pytest.mark.slow
def test_what_is_swept_is_what_a_run_of_its_own_has(monkeypatch):
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)
    program, state, metrics = swept()
    params = jax.device_get(program.finals(state))
    assert metrics["loss"].shape == (4,)
    alone, _ = trained(small(**SPREAD, algorithm__discount=0.9, train__optimizer__learning_rate=1e-3))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[2], y[0], rtol=1e-5, atol=1e-6), params, alone)
    different = np.unique(np.asarray(params["critic"]["head"]["kernel"]).reshape(4, -1), axis=0)
    assert len(different) == 2, "in episodes of one step the discount moves nothing"


@pytest.mark.slow
def test_environments_and_replay_over_two_devices(monkeypatch):
    """Each device has its own steps and draws; the params stay equal on both."""
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", None)
    _, state, metrics = swept()
    rows = state.replay.rows.rewards
    assert rows.shape == (4, 8, 16) and {x.data.shape for x in rows.addressable_shards} == {(4, 4, 16)}
    one, two = (np.asarray(x.data) for x in rows.addressable_shards)
    assert (one != two).any()
    np.testing.assert_array_equal(*(np.asarray(x.data) for x in state.train.params["critic"].addressable_shards))
    assert np.isfinite(metrics["loss"]).all()


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        ("matching,smoke", dict(env__name="probes/aim"), "actions of probes/aim are real numbers: use td3 or sac"),
        ("aim,smoke", dict(env__name="probes/matching"), "are whole numbers: use dqn or discrete_sac"),
        ("matching,smoke", dict(network__kind="gru"), "network.kind='gru'"),
        ("matching,smoke", dict(replay__capacity=100), "replay.capacity=100 must be a multiple of sample.num_envs=8"),
        ("matching,smoke", dict(network__enumerated=True), "actions that are combinations .probes/restless."),
        ("aim,smoke", dict(network__dueling=True), "network.dueling=True and network.enumerated=False are of"),
        ("aim,smoke", dict(network__enumerated=True), "network.enumerated=True are of critics of whole-number actions"),
        ("sequoia,smoke", dict(network__activation="tanh"), "network.activation='tanh' must be 'relu'"),
        ("sequoia,smoke", dict(algorithm__method__search="guess"), "search='guess' is none of program, enumeration"),
        ("matching,smoke", dict(mesh="envs:8", replay__batch_size=12), "12 does not divide over 8"),
    ],
)
def test_refusals(words, fields, said):
    config = small(words, **fields)
    with pytest.raises(ValueError, match=said):
        replay_runs.build(config, config.algorithm.to_dict(), control_setup.load_env(config, 1))
        replay_runs.make_settings(config, control_setup.settings_of(config), 8)


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        ("learn_to_fly", dict(env__frame_stack=2), "actor_features counts from the oldest frame"),
        ("matching", {}, "network.actor_features=1: dqn acts on the whole observation in probes/matching; set it to 0"),
        ("matching,discrete_sac", {}, "network.actor_features=1: discrete_sac acts on"),
        ("matching,muzero", {}, "network.actor_features=1: muzero acts on"),
        ("expo", {}, "network.actor_features=1: expo acts on"),
        ("srl", {}, "network.actor_features=1: sequence_sac acts on"),
        ("sequoia", {}, "network.actor_features=1: sequoia acts on"),
    ],
)
def test_no_actor_sees_what_its_config_hides(words, fields, said):
    config = configs.get_config(f"{words},smoke")
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    with config.unlocked():
        config.network.actor_features = 1
    with pytest.raises(ValueError, match=said):
        replay_runs.build(config, config.algorithm.to_dict(), control_setup.load_env(config, 1))


def test_sequoia_refuses_actions_without_a_budget():
    config = small("aim,smoke")
    algorithm = config.algorithm.to_dict() | dict(method=dict(fn="sequoia", search="program"))
    with pytest.raises(ValueError, match="sequoia needs binary actions of a budget"):
        replay_runs.build(config, algorithm, control_setup.load_env(config, 1))


@pytest.mark.parametrize("place", configs.ENVIRONMENTS)
def test_the_numbers_of_every_environment_go_together_in_smoke_too(place):
    method = replay_types.OffPolicy(None, None, None, lambda *_: None, ())
    for words in (place, f"{place},smoke"):
        config = configs.get_config(words)
        settings = replay_runs.make_settings(config, control_setup.settings_of(config), 1)
        replay_types.check(settings, config.sample.num_steps, method)


def test_every_number_of_the_settings_can_be_swept():
    config = small()
    groups = control_setup.settings_of(config)
    names = ("algorithm.exploration.fraction", "train.max_grad_norm", "algorithm.tau", "algorithm.priority.exponent")

    def run(values):
        swept = control_setup.with_values(groups, dict(zip(names, values, strict=True)))
        settings = replay_runs.make_settings(config, swept, 1)
        return settings.random_share(jnp.int32(2)), settings.max_grad_norm, settings.tau

    share, norm, tau = jax.jit(run)(jnp.float32([0.5, 3.0, 0.25, 0.0]))
    explore = config.algorithm.exploration
    expected = explore.initial + 2 / (0.5 * control_setup.num_updates(config)) * (explore.final - explore.initial)
    np.testing.assert_allclose([share, norm, tau], [expected, 3.0, 0.25], rtol=1e-6)


def test_words_that_do_not_go_together():
    for word in ("dueling", "rainbow"):
        with pytest.raises(ValueError, match=f"{word} has a head per action, and the network of restless"):
            configs.get_config(f"restless,{word}")
    with pytest.raises(ValueError, match="one environment and one method"):
        configs.get_config("cartpole,pendulum")
    with pytest.raises(ValueError, match="sac does not fit cartpole, whose actions are choices"):
        configs.get_config("cartpole,sac")
    assert configs.get_config("redq").env.name == "gymnax/Pendulum-v1"
    assert configs.get_config("breakout,c51").algorithm.head.high == 30.0
    with pytest.raises(ValueError, match="residual corrects the controller of docking; there is none for aim"):
        configs.get_config("aim,residual")
    with pytest.raises(ValueError, match="this config is for python -m experiments.control.ppo"):
        control_replay.run(small(program="control.ppo"), pathlib.Path("unused"))


@pytest.mark.parametrize("words", ["residual", "liayn"])
def test_demonstrations_that_do_not_fit(words, tmp_path):
    """Only docking has a controller to show; a file's episodes must be of the environment's sizes."""
    config = configs.get_config(f"{words},smoke")
    group = config.algorithm["base" if words == "residual" else "imitation"]
    (tmp_path / "episodes.jsonl").write_text('{"observations": {"values": [[0, 0], [1, 1]]}, "actions": [[0.5]]}\n')
    for place, demos, said in (
        ("probes/aim", "", "only docking has a controller"),
        (config.env.name, "episodes", "of a step"),
    ):
        group.demos = str(tmp_path / f"{demos}.jsonl") if demos else ""
        config.env.name = place
        with pytest.raises(ValueError, match=said):
            replay_runs.make_replay_run(config)
