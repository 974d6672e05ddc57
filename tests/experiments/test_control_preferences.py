"""experiments/control/preferences.py: every method learns from preferences what it should, resumes, and refuses."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest

from configs.control import preferences as configs
from experiments.control import preferences as control_preferences
from experiments.parts import budgets, control_segments, control_setup
from rl_jax.control import segments
from rl_jax.data import transitions
from rl_jax.training import checkpoint
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def small(words, **fields):
    """A config of a network of 16 units, with these fields, "segments.length" as segments__length."""
    config = configs.get_config(words)
    config.network.hidden = (16,)
    config.log.update(progress=False, tensorboard=False)
    if "reward" in config:
        config.reward.update(members=2, hidden=(16,))
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def trained(config, turned=(False,)):
    """The metrics [seeds, turned] of the last row of a whole training, of one row, by one program.

    turned: whether every label is turned round, by segments.flip_rate=1.
    """
    updates = control_setup.num_updates(config)
    config.log_every = config.checkpoint.every = updates
    if len(turned) > 1:
        config.segments.flip_rate = 1.0
    labelled = segments.labelled_pairs
    init, advance, _ = control_preferences.METHODS[config.preferences.method](config)
    keys, values = control_setup.runs_of(config)

    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def whole(key, values, turned):
        def either(*args, flip_rate, **more):
            return jnp.where(turned, labelled(*args, flip_rate=flip_rate, **more), labelled(*args, **more))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "labelled_pairs", either)
            return advance(init(key, values), values, updates)[1]

    return jax.device_get(jax.jit(whole, compiler_options=QUICK)(keys, values, jnp.asarray(turned)))


PROBE = dict(num_seeds=3, eval__num_episodes=64)
ONLINE = PROBE | dict(sample__num_envs=16, sample__num_steps=32, train__total_steps=60 * 16 * 32)
OFFLINE = PROBE | dict(segments__num_envs=16, segments__num_steps=64, segments__num_pairs=500, segments__held_out=100)
BUDGETS = {
    "reward,matching": ONLINE | OFFLINE | dict(fit__updates=150),
    "cpl,matching": OFFLINE | dict(train__total_steps=200 * 128),
    # 300 pairs of walks of 3 steps in a gridworld of 16 places that pays at its goal only.
    "regret": OFFLINE | dict(segments__num_envs=8, segments__num_pairs=300, train__total_steps=200 * 128 * 3),
}


@functools.cache
def outcomes(words):
    """The metrics of three seeds by right labels, and by the same data with every label turned round."""
    found = trained(small(words, **BUDGETS[words]), turned=(False, True))
    return [{name: x[:, index] for name, x in found.items()} for index in (0, 1)]


@pytest.mark.slow
def test_a_reward_is_learned_and_then_maximised():
    found = outcomes("reward,matching")[0]
    assert (found["eval/return"] > 0.9).all() and (found["eval/learned_return"] > 0.5).all(), found
    # Of random pairs half are equally good, and a quarter the same: 5/8 is all that there is to know.
    assert (found["reward/accuracy"] > 0.55).all()


@pytest.mark.slow
def test_cpl_learns_the_policy_itself():
    found = outcomes("cpl,matching")[0]
    assert (found["eval/return"] > 0.9).all(), found


@pytest.mark.slow
def test_reversed_labels_teach_the_contrary():
    """The same data and budget, every label turned round."""
    for words, most in (("reward,matching", -0.5), ("cpl,matching", 0.0), ("regret", 0.5)):
        assert (outcomes(words)[1]["eval/return"] < most).all(), words


@pytest.mark.slow
def test_regret_finds_the_goal_where_partial_returns_see_too_little():
    assert (outcomes("regret")[0]["eval/return"] > 0.95).all()
    model = "partial_return"
    found = trained(small("regret", **BUDGETS["regret"], segments__label__fn=model, tabular__model=model))
    assert (found["eval/return"] < 0.5).any(), found


@pytest.mark.slow
def test_self_play_solves_the_probe():
    found = trained(small("spo,matching", **ONLINE))
    assert (found["eval/return"] > 0.9).all(), found


def tiny(words, **fields):
    """configs/control/preferences.py:WORDS,smoke on small networks and few worlds."""
    config = small(f"{words},smoke", sample__num_envs=4, sample__num_steps=8, network__hidden=(8,), **fields)
    if config.preferences.method in ("spo", "reward"):
        config.train.total_steps = 8 * 4 * 8
    if "segments" in config:
        config.segments.update(num_envs=4, num_steps=32)
    return config


@pytest.mark.usefixtures("kept_signals", "one_program")
@pytest.mark.slow
@pytest.mark.parametrize("words", ["cpl,matching", "reward,matching"])
def test_a_run_and_its_resumption(words, tmp_path, monkeypatch):
    """The two kinds of states: the segments, and what PPO carries, a learned reward among it as is spo's queue."""
    config = tiny(words)
    if words == "reward,matching":  # cpl has nothing to record
        config.record.update(path=str(tmp_path / "data"), num_envs=2, num_steps=5)
    control_preferences.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_preferences.run(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_preferences.run(config, tmp_path / "halves")
    for name in ("metrics.jsonl", "episodes.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [4, 8]
    recorded = [len(transitions.read(path).rewards) for path in sorted((tmp_path / "data").glob("step_*.npz"))]
    assert recorded == ([10] * 3 if config.record.path else [])
    assert rows[1]["env_steps"] == 8 * budgets.samples_per_step(config) and "eval/return" in rows[1]


CONFIGS = [*configs.METHODS, "spo,cycle", "reward,aim"]


@pytest.mark.slow
@pytest.mark.parametrize("words", CONFIGS)
def test_every_config_traces(words):
    """The whole of a run's program, down to its shapes."""
    config = configs.get_config(words)
    init, advance, _ = control_preferences.METHODS[config.preferences.method](config)
    state = jax.eval_shape(lambda: init(jax.random.key(0), {}))
    after, metrics = jax.eval_shape(lambda state: advance(state, {}, 1), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert "eval/return" in metrics and control_setup.num_updates(config) > 0
    assert budgets.program_of(config) == "control.preferences"


@pytest.mark.parametrize("words", ["reward,matching", "spo,matching"])
def test_methods_that_play_need_no_evaluation(words):
    """eval.num_episodes=0, down to the shapes."""
    config = tiny(words, eval__num_episodes=0)
    init, advance, _ = control_preferences.METHODS[config.preferences.method](config)
    state = jax.eval_shape(lambda: init(jax.random.key(0), {}))
    metrics = jax.eval_shape(lambda state: advance(state, {}, 1), state)[1]
    assert "episode/return" in metrics and not [name for name in metrics if name.startswith("eval/")]


RATES = (("train.optimizer.learning_rate", (1e-4, 1e-1)),)
UNKNOWN = (("algorithm.entropy_coef", (0.0, 0.1)), ("algorithm.no_such_field", (0.0,)))


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        ("regret,cartpole", {}, "the regret model solves finite MDPs, probes/gridworld"),
        ("reward", dict(segments__label__fn="taste"), "'taste' is none of partial_return, regret"),
        ("cpl", dict(algorithm__normalize_observations=True), "segments are read as they come"),
        ("cpl", dict(mesh="envs:2"), "cpl has no envs to spread"),
        ("cpl,matching", dict(sweep=RATES), "cpl does not read config.train.optimizer.learning_rate, only a teacher"),
        ("regret", dict(runs=((0, (("train.x", 1.0),)),)), "regret does not read config.train.x, only a teacher"),
        ("cpl", dict(sweep=UNKNOWN), "config.algorithm.no_such_field is no float field"),
        ("cpl", dict(record__path="data"), "record.path='data': cpl records no transitions"),
        ("regret", dict(record__path="data"), "record.path='data': regret records no transitions"),
        ("cpl", dict(eval__num_episodes=0), "eval.num_episodes=0 must be 1 or more"),
        ("regret", dict(eval__num_episodes=0), "eval.num_episodes=0 must be 1 or more"),
        ("cpl,corridor", dict(segments__teacher_steps=0), "the regret needs a trained critic"),
        ("cpl", dict(algorithm__normalize_rewards=True), "cannot be measured on scaled rewards"),
        ("regret", dict(tabular__model="taste"), "tabular.model='taste' is none of partial_return, regret"),
        ("reward", dict(preferences__method="dagger"), "'dagger' is none of reward, regret, cpl, spo"),
        ("spo", dict(spo__preference__fn="less"), "no function 'less'"),
    ],
)
def test_refusals(words, fields, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        control_preferences.run(small(words, **fields), tmp_path)


def test_words_that_do_not_go_together():
    with pytest.raises(ValueError, match="at most one method and one environment, not cpl, spo"):
        configs.get_config("cpl,spo")
    with pytest.raises(ValueError, match="'cartpol'.*cartpole"):
        configs.get_config("cartpol")


def test_regret_by_a_critic_takes_the_swept_discount_that_the_critic_was_trained_with(monkeypatch):
    config = small("reward,matching", segments__label__fn="regret", segments__teacher_steps=1, segments__num_steps=32)
    setup, seen = control_segments.make_agent_setup(config), []

    def advantages_by(config, setup, teacher, discount):
        seen.append(discount)
        return lambda rows: rows.rewards

    monkeypatch.setattr(control_segments, "make_teacher", lambda config, agent: lambda key, values: agent.init(key))
    monkeypatch.setattr(control_segments, "advantages_by", advantages_by)
    gather = control_segments.make_gather(config, setup)
    jax.eval_shape(lambda key: gather(key, {"algorithm.advantage.discount": 0.25}), jax.random.key(0))
    assert seen == [0.25]
