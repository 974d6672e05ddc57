"""Several agents in control.ppo and control.replay: configs, runs, metrics per agent, and what each program refuses."""

import json

import jax
import numpy as np
import pytest

from configs.control import agents as configs
from experiments.control import ppo as control_ppo
from experiments.control import replay as control_replay
from experiments.parts import control_agents, control_runs, control_setup, replay_runs
from rl_jax.envs.worlds import matrix_games
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")

WORDS = [f"{world},{method}" for world in configs.WORLDS for method in (*configs.POLICIES, *configs.VALUES)]
WORDS = [words for words in WORDS if words not in ("zero_sum,vdn", "zero_sum,qmix")]


@pytest.mark.parametrize("words", WORDS)
def test_every_config_fits_its_world(words):
    config = configs.get_config(words)
    env = control_setup.load_env(config, 4, learning=True)
    team = words.endswith(("vdn", "qmix"))
    assert env.num_envs == (4 if team else 4 * env.agents.count)
    if config.program == "control.replay":
        built = replay_runs.build(config, config.algorithm.to_dict(), env)
        replay_runs.make_settings(config, control_setup.settings_of(config), 1)
        assert set(jax.eval_shape(built.method.init, jax.random.key(0))) == {"critic"}
        return
    central = words.endswith("mappo")
    assert config.network.actor_features == (env.agents.own if central else 0)
    agent = control_setup.make_network(config, env, 1)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    widths = [shapes[name]["layer_0"]["kernel"].shape[0] for name in ("actor", "critic")]
    assert widths == [env.agents.own, env.observation_space.shape[0]]
    assert (widths[0] < widths[1]) == central  # the state is the critic's alone
    if words.startswith("kitchen"):
        judged = control_setup.load_env(config, 4)
        assert config.env.shaping == 1.0 and judged.observation_space.shape == env.observation_space.shape


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize(("program", "words"), [(control_ppo, "kitchen,mappo"), (control_replay, "two_step,qmix")])
def test_a_run_of_each_program(tmp_path, program, words):
    config = configs.get_config(f"{words},smoke")
    program.run(config.lock(), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert np.isfinite(rows[-1]["loss"]) and rows[-1]["env_steps"] == config.train.total_steps
    assert ("eval/agent_1" in rows[-1]) == (program is control_ppo)
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert np.shape(episodes[-1]["actions"][0]) == (() if program is control_ppo else (2,))


@pytest.mark.slow
def test_a_zero_sum_game_ends_near_its_value():
    """Uniform play has an exploitability of 0.5, circling around the equilibrium one of 2 and more."""
    config = configs.get_config("zero_sum")
    config.update(num_seeds=3, group=3)
    program = control_runs.make_program(config)
    state = program.init()
    for _ in range(control_setup.num_updates(config) // config.log_every):
        state, metrics = program.advance(state)
    np.testing.assert_allclose(metrics["eval/agent_0"], -metrics["eval/agent_1"])
    np.testing.assert_array_equal(metrics["eval/return"], 0.0)
    env = control_setup.load_env(config, 1)
    agent, params = control_setup.make_network(config, env, 1), program.finals(state)
    seen = env.reset(jax.random.key(0))[1]
    table = np.array(config.env.payoffs)
    for i in range(3):
        outputs = agent.policy(jax.tree.map(lambda x: x[i], params), seen)  # noqa: B023
        row, column = np.asarray(jax.nn.softmax(outputs))
        assert matrix_games.exploitability(table, row, column) < 0.2
        assert row @ table @ column == pytest.approx(0.2, abs=0.05)


def test_metrics_of_each_agent():
    env = control_setup.load_env(configs.get_config("zero_sum"), 2)
    found = control_agents.agent_metrics(env, np.array([1.0, -1.0, 3.0, -3.0]))
    assert found == {"eval/agent_0": 2.0, "eval/agent_1": -2.0}
    team = control_setup.load_env(configs.get_config("two_step,qmix"), 2)
    assert control_agents.agent_metrics(team, np.ones(2)) == {}


def test_refusals():
    with pytest.raises(ValueError, match="share a reward"):
        configs.get_config("zero_sum,qmix")
    with pytest.raises(ValueError, match="at most one"):
        configs.get_config("ippo,mappo")
    config = configs.get_config("kitchen")
    config.env.agents = None
    with pytest.raises(ValueError, match="set env.agents.fn"):
        control_setup.load_env(config, 2)
    config = configs.get_config("two_step,qmix")
    env = control_setup.load_env(config, 2)
    for group, name, value, message in (
        ("algorithm", "method", dict(fn="dqn"), "has one action"),
        ("env", "frame_stack", 2, "env.frame_stack=1"),
        ("network", "kind", "gru", "network.kind='mlp'"),
    ):
        other = configs.get_config("two_step,qmix")
        other[group][name] = value
        with pytest.raises(ValueError, match=message):
            replay_runs.build(other, other.algorithm.to_dict(), env)
