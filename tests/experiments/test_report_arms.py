"""Reports of several seeds: what is an arm, whether the numbers are the seeds' own, and what a reader is warned of."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy import stats as scipy_stats

from experiments.report import arms_page, cli, figures
from rl_jax.runs.logging import METRICS_FILE, RunLogger
from rl_jax.runs.run_record import write_run_record
from tests.experiments.synthetic_run import RATES, final_score, write_run, write_sweep
from tests.experiments.test_report import Page


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"), steps=20)


@pytest.fixture(scope="module")
def study(sweep):
    return arms_page.load_study([sweep])


@pytest.fixture(scope="module")
def text(sweep):
    return cli.write_report([sweep]).read_text()


def scores(rate):
    return [final_score(rate, seed) for seed in range(5)]


def test_the_points_of_a_sweep_become_its_arms(study):
    assert list(study.arms) == [f"lr={rate}" for rate in RATES]
    assert [[member.seed for member in members] for members in study.arms.values()] == [list(range(5))] * 3
    assert (study.title, study.waiting) == ("learning_rates", [])
    assert arms_page.config_table(study)["rows"] == [("optimizer.learning_rate", ["0.0001", "0.001", "0.01"])]


def test_the_final_table_holds_the_seeds_iqm_mean_and_range(study):
    rows = figures.final_table(study, "eval/pass@1")
    for row, rate in zip(rows, RATES, strict=True):
        values = scores(rate)
        middle, low, high = map(float, re.findall(r"[\d.]+", row["iqm"]))
        assert middle == pytest.approx(scipy_stats.trim_mean(values, 0.25), abs=1e-3) and low < middle < high
        assert float(row["mean"].split(" ")[0]) == pytest.approx(np.mean(values), abs=1e-3)
        assert row["range"] == f"{min(values):.3g} to {max(values):.3g}"
    pairs = [(x > y) + 0.5 * (x == y) for x in scores(RATES[1]) for y in scores(RATES[0])]
    assert [float(row["better"].split(" ")[0]) for row in rows[1:]] == pytest.approx([np.mean(pairs), 1.0], abs=1e-3)
    assert rows[0]["better"] == "(baseline)"
    assert [row["tried"] for row in rows] == ["not recorded", "12, on 2 other seeds", "not recorded"]


def test_a_curve_is_the_iqm_at_each_step_within_its_band(study, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures.charts, "line_chart", lambda series, **more: drawn.update(more, series=series))
    figures.curve(study, "eval/pass@1", "step")
    for rate in RATES:
        points, band = drawn["series"][f"lr={rate}"], drawn["bands"][f"lr={rate}"]
        assert [step for step, _ in points] == [step for step, _, _ in band] == list(range(0, 21, 4))
        for (step, value), (_, low, high) in zip(points, band, strict=True):
            expected = scipy_stats.trim_mean(scores(rate), 0.25) * (0.2 + 0.8 * step / 20)
            assert value == pytest.approx(expected) and low <= value <= high


def test_over_time_each_seed_keeps_its_last_value():
    def member(seconds, values):
        timing = [{"step": step, "step_s": 60.0 * s} for step, s in enumerate(seconds)]
        metrics = [{"step": step, "reward/mean": value} for step, value in enumerate(values)]
        run = arms_page.Run("run", {}, {}, metrics, timing, [], [], [])
        return arms_page.Member("arm", 0, "run", run, metrics)

    # Minutes since the first row: 0, 1, 2 and 0, 2, 4. The second seed's clock is the slower one.
    found = figures.align([member([9, 1, 1], [1.0, 2.0, 3.0]), member([5, 2, 2], [4.0, 5.0, 6.0])],
                                 "reward/mean", "minute")  # fmt: skip
    np.testing.assert_allclose(found.along, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(found.values, [[1.0, 2.0, 3.0], [4.0, 4.0, 5.0]])


def test_a_seed_that_has_logged_nothing_yet_does_not_hide_its_arm():
    run = arms_page.Run("run", {}, {}, [], [], [], [], [])
    rows = [[{"step": s, "reward/mean": float(s)} for s in steps] for steps in ([], [1, 2, 3], [1, 3, 4])]
    found = figures.align([arms_page.Member("a", 0, "run", run, row) for row in rows], "reward/mean", "step")
    np.testing.assert_array_equal(found.along, [1, 3])
    np.testing.assert_array_equal(found.values, [[1, 3], [1, 3]])
    assert figures.align([arms_page.Member("a", 0, "run", run, [])], "reward/mean", "step") is None


def test_wall_time_and_samples_are_used_where_they_are_logged():
    timing = [{"step": 1, "step_s": 1.0, "wall_s": 60.0, "samples": 8}, {"step": 2, "step_s": 1.0, "wall_s": 180.0}]
    run = arms_page.Run("run", {}, {}, [], timing, [], [], [])
    assert figures.minutes_of(run) == {1: 0.0, 2: 2.0}
    assert figures.samples_of(arms_page.Member("a", 0, "run", run, [])) == {1: 8}
    rows = [{"step": 1, "env_steps": 512}]
    assert figures.samples_of(arms_page.Member("a", 0, "run", run, rows)) == {1: 512}


def test_the_page_shows_every_section(text):
    page = Page(text)
    for words in ("Performance profile", "Every seed", "Configurations", "Health", "Completions", "lr=0.01,seed=4",
                  "12, on 2 other seeds", "Budgets", "interval of the IQM is too narrow"):
        assert (words in page.text) == (words != "Budgets"), words
    assert "script" not in page.tags and text.count('class="band') >= 6
    assert len(re.findall(r"aria-label=\"lr=[\d.]+,seed=\d: eval/pass@1", text)) == 15
    entropy = re.search(r"<code>entropy</code>.*?</tr>", text[text.index('id="health"') :], flags=re.S).group()
    assert "▲ 5 of 5" in entropy and entropy.count("✓ ok") == 2


def test_points_without_a_run_and_unequal_budgets_are_said(tmp_path):
    write_sweep(tmp_path, seeds=2, steps=20, waiting=1)
    short = tmp_path / "points" / "lr=0.001,seed=0" / METRICS_FILE
    short.write_text("".join(short.read_text().splitlines(keepends=True)[:10]))
    state = {"lr=0.001,seed=1": {"state": "failed"}, "lr=0.001,seed=0": {"state": "complete"}}
    (tmp_path / "state.json").write_text(json.dumps({"points": state}))
    record = json.loads((short.parent / "run.json").read_text())
    (short.parent / "run.json").write_text(json.dumps(record | {"folded": "folded/x"}))
    text = Page(cli.write_report([tmp_path]).read_text()).text
    assert "1 points have failed: lr=0.001,seed=1" in text and "that of the whole program" in text
    assert "1 of 6 points have no run yet: lr=0.01,seed=1" in text and "5 of 6" in text
    assert "Budgets differ: the runs end after 9 to 20" in text


def test_a_sweep_that_has_not_begun_gives_a_page(tmp_path):
    write_sweep(tmp_path, seeds=1, waiting=3)
    page = Page(cli.write_report([tmp_path]).read_text())
    assert "No run has logged a metric yet" in page.text
    ids = {value for name, value in page.attributes if name == "id"}
    assert {value[1:] for name, value in page.attributes if name == "href"} <= ids


def test_runs_that_differ_in_their_seed_only_are_one_arm(tmp_path):
    kinds = [("a", 0.1, 0), ("b", 0.1, 1), ("c", 0.2, 0), ("d", 0.2, 1)]
    runs = [write_run(tmp_path / name / "grpo", steps=2, seed=s, learning_rate=rate) for name, rate, s in kinds]
    arms = arms_page.load_study(runs).arms
    assert {arm: [member.seed for member in row] for arm, row in arms.items()} == {
        "learning_rate=0.1": [0, 1],
        "learning_rate=0.2": [0, 1],
    }
    assert "interquartile mean" in cli.write_report(runs, tmp_path / "x.html").read_text()
    assert "runs compared" in cli.write_report([runs[0], runs[2]], tmp_path / "y.html").read_text()


def test_arms_whose_fields_look_the_same_stay_two(tmp_path):
    """None and "none", 1 and "1": one name would make two arms one."""
    runs = [write_run(tmp_path / f"{kind}{seed}" / "grpo", steps=2, seed=seed) for kind in "abc" for seed in (0, 1)]
    for run, value in zip(runs, (None, None, "none", "none", 0.5, 0.5), strict=True):
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | {"decay": value}))
    arms = {arm: [m.name for m in row] for arm, row in arms_page.load_study(runs).arms.items()}
    named = {name: [f"{name[0]}{seed}/grpo" for seed in (0, 1)] for name in ("a0/grpo", "b0/grpo")}
    assert arms == named | {"decay=0.5": ["c0/grpo", "c1/grpo"]}


def test_a_run_made_twice_is_not_two_seeds(tmp_path):
    runs = [write_run(tmp_path / f"{when}{seed}" / "grpo", steps=2, seed=seed) for when in "ab" for seed in (0, 1)]
    arms = {arm: [m.name for m in row] for arm, row in arms_page.load_study(runs).arms.items()}
    assert arms == {"a0/grpo": ["a0/grpo", "a1/grpo"], "b0/grpo": ["b0/grpo", "b1/grpo"]}
    assert "runs compared" in cli.write_report([runs[0], runs[2]], tmp_path / "x.html").read_text()
    for run in runs:
        (run / "config.json").unlink()  # nobody knows what they are seeds of
    assert [len(row) for row in arms_page.load_study(runs).arms.values()] == [1] * 4


def test_two_sweeps_of_one_name_stay_two(tmp_path):
    sweeps = [write_sweep(tmp_path / name / "lr", seeds=1, steps=4) for name in "ab"]
    arms = arms_page.load_study(sweeps).arms
    assert list(arms) == [f"{name}/lr: lr={rate}" for name in "ab" for rate in RATES]


def test_seeds_that_diverged_or_never_measured_are_named():
    def member(name, values):
        run = arms_page.Run(name, {}, {}, [], [], [], [], [])
        return arms_page.Member("a", 0, name, run, [{"step": s, "loss": v} for s, v in enumerate(values)])

    members = [member("fine", [1.0, 2.0]), member("hole", [None, 2.0]), member("gone", [1.0, None]), member("none", [])]
    study = arms_page.Study("x", {"a": members}, [], [], {}, [])
    left_out, diverged = [text for text in figures.notices(study, "loss") if "4 seeds" in text]
    assert left_out.startswith("1 of 4") and left_out.endswith(": none")
    assert diverged.startswith("The last loss of 1 of 4") and diverged.endswith(": gone")


def test_the_listed_runs_of_one_control_program_keep_their_own_fields(tmp_path):
    config = {"seed": 0, "num_seeds": 1, "sweep": [], "runs": [[7, [["train.lr", 0.1]]], [8, [["train.lr", 0.2]]]]}
    write_run_record(tmp_path, config=config, command="x", task="cartpole", algorithm="control.ppo")
    with RunLogger(tmp_path, total_steps=1, progress=False, tensorboard=False) as log:
        log.log(1, {"runs/0": 1.0, "runs/1": 2.0, "eval/return": 1.5})
    members = arms_page.expand(arms_page.load_run(tmp_path, "run"), "", 0)
    assert [(m.arm, m.seed, m.metrics[-1]["eval/return"]) for m in members] == [("lr=0.1", 7, 1.0), ("lr=0.2", 8, 2.0)]


@pytest.mark.parametrize(
    ("fields", "hidden"),
    [
        (dict(num_seeds=70, sweep=[]), 66),
        (dict(num_seeds=3, sweep=[["train.lr", [0.1, 0.2]]]), 2),
        (dict(num_seeds=1, sweep=[], runs=[[seed, []] for seed in range(5)]), 1),
        (dict(num_seeds=4, sweep=[]), 0),
    ],
)
def test_the_number_of_runs_that_a_program_does_not_log_is_said(tmp_path, fields, hidden):
    write_run_record(tmp_path, config={"seed": 0} | fields, command="x", task="cartpole", algorithm="control.ppo")
    with RunLogger(tmp_path, total_steps=1, progress=False, tensorboard=False) as log:
        log.log(1, {f"runs/{index}": 1.0 for index in range(4)} | {"eval/return": 1.0})
    said = [text for text in figures.notices(arms_page.load_study([tmp_path]), "eval/return") if "first 64" in text]
    assert [text.partition(" of the runs within ")[0] for text in said] == [str(hidden)] * bool(hidden)


def test_the_runs_of_one_control_program_are_seeds_of_what_it_swept(tmp_path):
    config = {"seed": 0, "num_seeds": 2, "sweep": [["algorithm.entropy_coef", [0.0, 0.5]]]}
    write_run_record(tmp_path, config=config, command="x", task="cartpole", algorithm="control.ppo")
    with RunLogger(tmp_path, total_steps=2, progress=False, tensorboard=False) as log:
        for step in (1, 2):
            each = {f"runs/{index}": 10.0 * index + step for index in range(4)}
            log.log(step, each | {"eval/return": 16.5, "env_steps": 100 * step}, {"train_s": 1.0})
    members = arms_page.expand(arms_page.load_run(tmp_path, "run"), "", 0)
    assert [(m.arm, m.seed, m.metrics[-1]["eval/return"]) for m in members] == [
        ("entropy_coef=0.0", 0, 2.0),
        ("entropy_coef=0.5", 0, 12.0),
        ("entropy_coef=0.0", 1, 22.0),
        ("entropy_coef=0.5", 1, 32.0),
    ]


def test_the_metric_can_be_chosen(study):
    assert figures.choose_metric(study, None) == "eval/pass@1"
    assert figures.choose_metric(study, "kl/k3") == "kl/k3"
    with pytest.raises(ValueError, match="no run has logged 'kl/k9'; logged: clip/high"):
        figures.choose_metric(study, "kl/k9")


@pytest.mark.parametrize(
    ("logged", "chosen"),
    [
        (("entropy", "kl/k3", "grad_norm", "loss", "eval/rewards/accuracy"), "eval/rewards/accuracy"),
        (("entropy", "kl/k1", "loss"), "loss"),
        (("entropy", "kl/k1", "grad_norm", "completion_length"), None),
    ],
)
def test_arms_are_never_ranked_by_entropy_or_kl(study, logged, chosen):
    member = next(iter(study.arms.values()))[0]
    dpo = member._replace(metrics=[{"step": 1} | dict.fromkeys(logged, 1.0)])
    assert figures.choose_metric(study._replace(arms={"a": [dpo]}), None) == chosen


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"points": []}, "'points' is not a list"),
        ({"points": [{"name": "a"}]}, "point 0 has no workdir"),
        ({"points": ["a"]}, "point 0 has no name and no workdir"),
        ({"points": [{"name": "a", "workdir": "../elsewhere"}]}, "outside of the sweep's folder"),
    ],
)
def test_a_damaged_sweep_is_named(tmp_path, change, complaint):
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "x", **change}))
    with pytest.raises(SystemExit, match=r"sweep\.json.*" + complaint):
        cli.main([str(tmp_path)])


def test_hostile_names_are_escaped(sweep, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(sweep, folder)
    attack = '"><img src=x onerror=alert(1)>'
    content = json.loads((folder / "sweep.json").read_text())
    for point in content["points"][:5]:
        point["arm"] = attack
    (folder / "sweep.json").write_text(json.dumps(content | {"name": attack, "config": attack, "command": attack}))
    page = Page(cli.write_report([folder]).read_text())
    assert "img" not in page.tags and page.text.count(attack) > 5


def test_what_the_runs_wrote_stays_as_it_is(tmp_path):
    write_sweep(tmp_path, seeds=1, steps=4)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    page = cli.write_report([tmp_path])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != page} == before


def test_of_losses_the_lowest_is_named(study):
    intervals, health = {"a": (1.0, 0.9, 1.1), "b": (2.0, 1.9, 2.1)}, {"warned": 0, "runs": 2}
    for metric, said in (("eval/loss", "lowest IQM of eval/loss: a"), ("eval/reward", "highest IQM of eval/reward: b")):
        assert said in dict(figures._tiles(study, metric, intervals, health))
