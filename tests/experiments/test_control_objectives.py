"""experiments/control/ppo.py with several objectives: its metrics, its refusals, and what fronts reach."""

import json

import jax
import numpy as np
import pytest

from configs.control import objectives as configs
from experiments.parts import control_objectives, control_runs, control_setup
from experiments.sweep import runner, tune
from rl_jax.control import pareto_search
from rl_jax.envs.worlds import treasure
from rl_jax.stats import pareto
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.usefixtures("quick")


def measured(config):
    """(the metrics of each row, [runs] each, the state of all runs)."""
    program = control_runs.make_program(config)
    state, rows = program.init(), []
    for _ in range(control_setup.num_updates(config) // config.log_every):
        state, metrics = program.advance(state)
        rows.append(jax.device_get(metrics))
    return rows, state


def test_metrics_of_a_front_are_those_of_numpy():
    config = configs.get_config("treasure,c_morl")
    config.algorithm.updater.size = 12
    rng = np.random.default_rng(0)
    returns = np.stack([rng.uniform(1, 20, size=24), -rng.uniform(1, 24, size=24)], axis=1).astype(np.float32)
    found = control_objectives.front_metrics(config, returns)
    points = (returns[:12] + returns[12:]) / 2  # environment b has policy b % 12
    assert found["eval/hypervolume"] == pytest.approx(pareto.hypervolume(points, (0, -25)), rel=1e-5)
    utility = pareto.expected_utility(points, pareto.weight_grid(2, 10))
    assert found["eval/expected_utility"] == pytest.approx(utility, rel=1e-4)
    assert found["eval/front"] == len(pareto.front(points))
    with pytest.raises(ValueError, match="multiple of 12"):
        control_objectives.front_metrics(config, returns[:13])


def test_an_evaluation_needs_its_reference_and_its_grid():
    returns = np.ones((24, 2), np.float32)
    for fields, message in (
        (dict(reference=()), r"eval.reference=\(\) must be 2 numbers"),
        (dict(parts=0), "eval.parts=0 must be 1 or more"),
    ):
        config = configs.get_config("two_aims,c_morl")
        config.eval.update(fields)
        with pytest.raises(ValueError, match=message):
            control_objectives.front_metrics(config, returns)


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(actor_features=2), "network.actor_features=2 .* hides the weights"),
        (dict(kind="gru"), "network.kind='gru'.*several objectives need network.kind=mlp"),
        (dict(kind="transformer"), "network.kind='transformer'.*several objectives need network.kind=mlp"),
    ],
)
def test_networks_that_do_not_fit_several_objectives_are_refused(fields, message):
    config = configs.get_config("arms,conditioned")
    env = control_setup.load_env(config, 2, learning=True)
    config.network.update(fields)
    with pytest.raises(ValueError, match=message):
        control_setup.make_network(config, env, 1)


def test_objectives_and_updaters_that_do_not_fit_are_refused():
    config = configs.get_config("treasure")
    config.algorithm.updater = dict(fn="make_update")
    with pytest.raises(ValueError, match="has 2 objectives: set algorithm.updater.fn to one of"):
        control_setup.load_env(config, 2)
    assert control_setup.load_env(config, 2, weights=(1.0, 1.0)).objectives == 0
    config = configs.get_config("treasure,conditioned")
    assert control_setup.load_env(config, 2, learning=True).observation_space.shape == (24,)
    with pytest.raises(ValueError, match="go together"):
        control_setup.load_env(config, 2, preferences=None)
    with pytest.raises(ValueError, match="pays one reward"):
        config.env = dict(name="probes/matching", features=(), frame_stack=1, at_reset="repeat")
        control_setup.load_env(config, 2)


def small(words, **fields):
    config = configs.get_config(words)
    config.update(num_seeds=1, log_every=20, group=2)
    with config.unlocked():
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@pytest.mark.slow
def test_constrained_extension_raises_the_hypervolume():
    """C-MORL's claim, on a front that is not concave: weighted sums find its ends, the second stage goes between."""
    config = small("two_aims,c_morl", train__total_steps=140 * 64)
    config.algorithm.updater.update(first=60, length=10, share=0.8)
    rows, state = measured(config)
    first, second = (rows[i]["eval/hypervolume"] for i in (2, -1))  # after updates 60 and 140
    best = pareto.hypervolume(treasure.two_aims_front(), (0.0, 0.0))
    assert (second > 1.2 * first).all()
    assert (second > 0.8 * best).all() and (second < best).all()
    # The last round: bounds below the start, which is of the archive; Adam starts again, its schedule goes on.
    search, train = state.train.trackers["search"], state.train
    starts = np.asarray(search.archive.points)[:, np.arange(6) // 2]
    np.testing.assert_allclose(search.bounds, pareto_search.bounds_of(starts, 0.8), rtol=1e-5)
    np.testing.assert_array_equal(train.params, np.asarray(search.archive.params)[:, np.arange(6) // 2])
    adam, schedule = train.opt_state
    assert set(np.ravel(adam.count)) == {0}
    assert set(np.ravel(schedule.count)) == set(np.ravel(train.step)) == {140 * 16}


@pytest.mark.slow
def test_one_policy_for_all_preferences_finds_the_front_of_a_small_sea():
    """Three columns: the best returns of all weights of the grid, by enumeration."""
    config = small("treasure,conditioned", env__columns=3, train__total_steps=40 * 1024)
    config.algorithm.entropy_coef = 0.01
    found = measured(config)[0][-1]
    best = pareto.expected_utility(treasure.front("convex", 3), pareto.weight_grid(2, 10))
    assert 0.95 * best < found["eval/expected_utility"] < 1.001 * best
    assert found["eval/front"] >= 2


def test_a_search_is_tuned_by_its_hypervolume(monkeypatch, tmp_path):
    """arXiv 2310.16487: the mean hypervolume over tuning seeds chooses, other seeds report. The runs take no time."""
    monkeypatch.chdir(REPO_ROOT)
    ran = set()

    def run(self):
        for task in (task for task in self._tasks if not (task.workdir / "final.json").exists()):
            fields = dict(part.removeprefix("--config.").split("=", 1) for part in task.command[4:] if "=" in part)
            ran.add(int(fields["seed"]))
            task.workdir.mkdir(parents=True)
            share = float(fields["algorithm.updater.share"])
            row = {"step": 1, "eval/hypervolume": -((share - 0.7) ** 2), "eval/return": share}
            (task.workdir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            for name in ("run.json", "final.json"):
                (task.workdir / name).write_text("{}")
        return 0

    monkeypatch.setattr(runner.Runner, "run", run)
    command = ["--config=configs/control/objectives.py:two_aims,c_morl", "--space=extension", "--trials=10"]
    command += ["--metric=eval/hypervolume", "--tuning_seeds=2", "--seeds=2", f"--workdir={tmp_path}"]
    assert tune.main(command) == 0
    found = json.loads((tmp_path / "tuning.json").read_text())["only"]
    assert found["metric"] == "eval/hypervolume" and ran == {10000, 10001, 0, 1}
    trials = json.loads((tmp_path / "tuning/only/trials.json").read_text())["trials"]
    assert found["value"] == max(trial["value"] for trial in trials)
    assert abs(found["params"]["algorithm.updater.share"] - 0.7) < 0.15
