"""configs/control/rewards.py through control.ppo: what is swept, what is resumed, and what is refused."""

import functools
import json
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from configs.control import preferences, rewards
from experiments.control import ppo as control_ppo
from experiments.parts import check_config, control_auxiliary, control_relabel, control_runs, control_setup
from rl_jax.rollout.envs.steps import collect, memoryless, start
from rl_jax.training import checkpoint
from tests.control.relabelling.rows import random_rows
from tests.experiments.one_program import one_program  # noqa: F401  a fixture
from tests.experiments.small import StopAfter, kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("quick")

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}


def small(word, **fields):
    """A config of 8 updates of 8 environments x 8 steps on a network of 8, one row of metrics each 4 updates."""
    config = rewards.get_config(f"{word},smoke")
    config.num_seeds = 1
    config.sample.update(num_envs=8, num_steps=8)
    config.network.hidden = (8,)
    config.train.update(total_steps=512, epochs=2, minibatches=2)
    config.eval.update(num_episodes=2, max_steps=4)
    with config.unlocked():
        if "demos" in config.algorithm.relabel:
            config.algorithm.relabel.demos = str(demonstration(config))
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@functools.cache
def folder() -> pathlib.Path:
    """A folder for files that live as long as the tests."""
    return pathlib.Path(tempfile.mkdtemp())


def demonstration(config) -> pathlib.Path:
    """episodes.jsonl with three episodes of 32 steps to the right in the environment of the config."""
    path = folder() / "episodes.jsonl"
    size = control_setup.load_env(config, 1).observation_space.shape[0]
    seen = np.eye(size, dtype=np.float32)[np.minimum(np.arange(33), size - 1)]
    row = {"observations": {"shape": [size], "values": seen.tolist()}, "actions": [1] * 32}
    path.write_text("".join(json.dumps(row | {"rewards": [paid] * 32}) + "\n" for paid in (0.0, 0.5, 1.0)))
    return path


def shapes_of(tree):
    """A state has the same structure, shapes and dtypes after every update."""
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def rows_like(config):
    """Shapes of a rollout of `small` in the environment of the config."""
    _, env, agent = relabel_of(config)
    state = jax.eval_shape(lambda key: start(env, key), jax.random.key(0))
    policy = memoryless(functools.partial(agent.policy, agent.init(jax.random.key(0))))
    rolled = functools.partial(collect, policy, agent.distribution, env, num_steps=8)
    return jax.eval_shape(rolled, state, jax.random.key(0))[1]


def relabel_of(config):
    env = control_setup.load_env(config, config.sample.num_envs)
    agent = control_setup.make_network(config, env, 1)
    return control_relabel.make_relabel(config.algorithm.to_dict(), env, agent, None), env, agent


@pytest.mark.parametrize("word", rewards.PLACES)
def test_every_word_is_bound_and_has_a_state(word):
    config = small(word)
    check_config.check(config)
    relabel, _, _ = relabel_of(config)
    if relabel is None:  # trains on the environment's reward, or the updater has one of its own
        ours = config.algorithm.updater.fn == "make_bilevel_update"
        assert word in ("expert", "snapshots") or config.algorithm.auxiliary.fn or ours
        return
    state = jax.eval_shape(relabel.begin, jax.random.key(0))
    after, paid = jax.eval_shape(relabel.apply, state, rows_like(config))
    assert shapes_of(after) == shapes_of(state) and paid.rewards.shape == (8, 8)
    assert relabel.measure is None or all(x.shape == () for x in jax.eval_shape(relabel.measure, after).values())
    first, second = (jax.tree.leaves(jax.eval_shape(relabel.begin, jax.random.key(seed))) for seed in (0, 1))
    assert [x.shape for x in first] == [x.shape for x in second]


def test_anchors_are_refused_where_the_updater_does_not_carry_them():
    config = small("anchored_views")
    config.algorithm.updater.fn = "make_trpo_update"
    _, env, agent = relabel_of(config)
    with pytest.raises(ValueError, match="which only algorithm.updater.fn='make_update' carries"):
        control_auxiliary.with_auxiliary(config, config.algorithm.auxiliary.to_dict(), agent, env)


def test_weights_are_swept_inside_one_program():
    """Candidates of a reward as traced numbers, on Language to Rewards' residuals: r' = -n(x) - w |a|^2 with each w."""
    config = small("residuals")
    settings, (_, env, agent) = control_setup.settings_of(config), relabel_of(config)
    rows = random_rows(actions=1)
    rows = rows._replace(actions=rows.outputs)

    def rewards_with(weight):
        values = control_setup.with_values(settings, {"algorithm.relabel.weights.effort": weight})
        relabel = control_relabel.make_relabel(values["algorithm"], env, agent, None)
        return relabel.apply(relabel.begin(jax.random.key(0)), rows)[1].rewards

    both = jax.vmap(rewards_with)(np.array([0.0, 2.0], np.float32))
    action = agent.distribution.to_env(rows.actions)[..., 0]
    seen, weights = np.asarray(rows.next_observations), config.algorithm.relabel.weights
    paid = -weights.upright * 0.5 * (seen[..., 0] - 1.0) ** 2 - weights.still * 0.5 * seen[..., 2] ** 2
    np.testing.assert_allclose(both, np.stack([paid, paid - 2.0 * action**2]), rtol=1e-5, atol=1e-5)


RESUMED = {
    "liayn": (dict(algorithm__relabel__hidden=(8,), algorithm__relabel__steps=1), {"relabel/own", "relabel/expert"}),
    # phi moves from the fourth of eight updates on, in both halves.
    "barfi": (dict(algorithm__updater__outer_start=3), {"phi/auxiliary", "phi/discount", "entropy"}),
}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "one_program")
@pytest.mark.parametrize("word", RESUMED)
def test_a_run_and_its_resumption(word, tmp_path, monkeypatch):
    fields, measured = RESUMED[word]
    config = small(word, num_seeds=1, **fields)
    control_ppo.run(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "StopSignal", StopAfter())
        control_ppo.run(config, tmp_path / "halves")
    assert not (tmp_path / "halves" / "final.json").exists()
    control_ppo.run(config, tmp_path / "halves")
    for name in ("metrics.jsonl", "final.json"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert measured <= set(last)


def trained(config, updates):
    """The metrics [runs] after so many updates, all runs in one program."""
    config.log_every = config.checkpoint.every = updates
    config.train.total_steps = updates * config.sample.num_envs * config.sample.num_steps
    init, advance, _ = control_runs.make_run(config)
    mapped = jax.jit(
        lambda *args: jax.lax.map(lambda own: advance(init(*own), own[1], updates)[1], args), compiler_options=QUICK
    )
    return mapped(*control_setup.runs_of(config))


@pytest.mark.slow
def test_barfi_learns_that_its_auxiliary_reward_misleads():
    """The goal is reached; on r_p + r_aux, which an outer rate of 0 leaves, the policy stays at the place that pays."""
    config = rewards.get_config("barfi")
    config.num_seeds = 2
    config.sweep = (("algorithm.updater.outer_rate", (0.02, 0.0)),)
    found = trained(config, 60)
    learned, summed = ({name: np.mean(x[part::2]) for name, x in found.items()} for part in (0, 1))
    assert learned["eval/return"] > 0.85 and learned["phi/auxiliary"] < 0.9 and learned["phi/bonus"] < 0.0, found
    assert summed["eval/return"] < 0.3 and summed["phi/auxiliary"] == 1.0, found


@pytest.mark.slow
def test_parl_reaches_a_goal_that_only_preferences_tell():
    """Seeds with the right labels, and with every label turned round (beta below 0)."""
    config = rewards.get_config("parl")
    config.num_seeds = 2
    config.sweep = (("algorithm.updater.design.beta", (5.0, -5.0)),)
    found = trained(config, 60)
    right, turned = ({name: np.mean(x[part::2]) for name, x in found.items()} for part in (0, 1))
    assert right["eval/return"] > 0.85 and right["reward/accuracy"] > 0.7, found
    assert turned["eval/return"] < 0.4 and turned["reward/accuracy"] < 0.5, found


TOUR = [1] * 2 + [0] * 4 + [1] * 4 + [0] * 4 + [1] * 2  # to all four stops


def toured(actions, noise):
    """A row of episodes.jsonl: these actions on the tour of the config, and noise [17, n] beside what is seen."""
    place, reached, seen, paid = 2, 0, [], []
    for action, beside in zip([None, *actions], noise, strict=True):
        place = min(max(place + (0 if action is None else 2 * action - 1), 0), 4)
        arrived = reached < 4 and place == (4 if reached % 2 == 0 else 0)
        reached += arrived
        paid.append(arrived / 4)
        seen.append([*np.eye(5)[place].tolist(), *np.eye(5)[reached].tolist(), *beside.tolist()])
    return {"observations": {"shape": [len(seen[0])], "values": seen}, "actions": actions, "rewards": paid[1:]}


@pytest.mark.slow
def test_the_transport_that_preferences_taught_trains_a_policy_amid_noise(tmp_path):
    """RAPL, paid by codes of a fitted encoder, against the same encoder as it was drawn, two seeds each."""
    config, rng = rewards.get_config("rapl"), np.random.default_rng(0)
    rows = []
    for share in np.linspace(0.0, 1.0, 40):  # of the right actions; the others are random
        actions = [a if rng.random() < share else int(rng.integers(2)) for a in TOUR]
        rows.append(json.dumps(toured(actions, rng.uniform(-2.0, 2.0, (17, config.env.distractors)))))
    (tmp_path / "tours.jsonl").write_text("\n".join(rows) + "\n")
    config.num_seeds = 2
    with config.unlocked():
        fast = dict(iterations=10, updates=120, batch_size=12)
        config.algorithm.relabel.update(demos=str(tmp_path / "tours.jsonl"), **fast)
    config.eval.update(num_episodes=16, max_steps=16)
    config.sweep = (("algorithm.relabel.learning_rate", (0.01, 0.0)),)
    found = trained(config, 40)
    aligned, drawn = ({name: np.asarray(x[part::2]) for name, x in found.items()} for part in (0, 1))
    reached, unaligned = aligned["eval/return"].mean(), drawn["eval/return"].mean()
    assert reached > 0.75 and reached > unaligned + 0.15, (reached, unaligned)
    assert (aligned["relabel/agreement"] > 0.9).all() and (drawn["relabel/agreement"] < 0.75).all()


@pytest.mark.slow
def test_a_demonstration_of_the_tour_is_followed_to_its_end(tmp_path):
    """ADS, without the environment's reward: all stops in order, and k moves from 3 steps of 17 to nearly all."""
    config = rewards.get_config("ads")
    (tmp_path / "tour.jsonl").write_text(json.dumps(toured(TOUR, np.zeros((17, 0)))) + "\n")
    config.num_seeds = 2
    config.algorithm.relabel.demos = str(tmp_path / "tour.jsonl")
    config.eval.update(num_episodes=8, max_steps=16)
    found = trained(config, 40)
    assert (found["eval/return"] > 0.9).all() and (found["relabel/horizon"] > 10).all(), found


@pytest.mark.slow
def test_progress_that_a_demonstration_taught_finds_what_the_sparse_reward_does_not(tmp_path):
    """Robo-Dopamine on a corridor of 80: four seeds with it, without it, and of a network that was not fitted."""
    config = rewards.get_config("progress")
    config.env.length = 80
    size = config.env.length + 1
    row = {"observations": {"shape": [size], "values": np.eye(size).tolist()}, "actions": [1] * (size - 1)}
    (tmp_path / "straight.jsonl").write_text(json.dumps(row) + "\n")
    config.num_seeds = 2
    with config.unlocked():
        more = dict(updates=400, hidden=(32,), learning_rate=0.01)
        config.algorithm.relabel.update(demos=str(tmp_path / "straight.jsonl"), **more)
    config.eval.update(num_episodes=4, max_steps=160)
    names = ("algorithm.relabel.scale", "algorithm.relabel.learning_rate")
    arms = ((1.0, 0.01), (0.0, 0.01), (1.0, 0.0))
    config.runs = tuple((seed, tuple(zip(names, arm, strict=True))) for arm in arms for seed in range(4))
    found = {name: np.asarray(x).reshape(-1, 4) for name, x in trained(config, 30).items()}
    shaped, sparse, drawn = found["eval/return"]
    # Without a reward a policy may drift to the end: two of four seeds did.
    worst = max(sparse.mean(), drawn.mean())
    assert shaped.min() > 0.9 and worst < shaped.mean() - 0.3, (shaped, sparse, drawn)


def test_a_reward_of_ones_own_and_what_is_refused():
    config = small("potential")
    config.algorithm.relabel = dict(fn="tests.experiments.test_control_rewards:nothing")
    with pytest.raises(ValueError, match="gives tuple, not a control Relabel"):
        relabel_of(config)
    config.algorithm.relabel = dict(fn="by_potential")
    with pytest.raises(ValueError, match=r"needs potential: set algorithm\.relabel\.potential"):
        relabel_of(config)
    config.algorithm.relabel = dict(fn="by_magic")
    with pytest.raises(ValueError, match="has no function 'by_magic'"):
        check_config.check(config)
    config = preferences.get_config("spo,cycle,smoke")
    config.algorithm.relabel = dict(fn="by_potential", potential="place")
    with pytest.raises(ValueError, match="pays rewards of its own; leave it empty"):
        control_runs.make_run(config, relabel=control_relabel.algorithm.Relabel(tuple, lambda state, rows: rows))


def nothing():
    """Not a Relabel."""
    return ()
