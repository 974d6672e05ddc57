"""The report of a training in environments: its seeds, its episodes, and nothing of what only texts have."""

import re

import pytest

from experiments.report import arms_page, cli, figures, run_page
from experiments.report.health import assess
from tests.experiments import episodes
from tests.experiments.test_report import Page


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return episodes.write_control_run(tmp_path_factory.mktemp("runs") / "cartpole")


@pytest.fixture(scope="module")
def text(workdir):
    return cli.write_report([workdir]).read_text()


def test_the_episodes_of_the_first_and_the_newest_policy_are_shown(text):
    page = Page(text)
    assert "An episode" in page.text and "Before training" in page.text and "After 1500 updates" in page.text
    assert page.text.count("40 steps, return 40, terminated") == 2
    assert text.count('class="reel"') == 2 and text.count('class="play"') == 1
    assert not {"script", "image", "use", "animate"} & set(page.tags)
    assert "animation-play-state:paused" in text  # nothing moves unless it is asked to


def test_what_a_text_would_have_is_not_missed(text):
    shown = Page(text).text
    for words in ("Completions", "token by token", "samples.jsonl", "Not logged", "No timings", "sampler/gap_max"):
        assert words not in shown
    assert "environment steps/s" in shown and "per logged row after the first" in shown


def test_curves_are_drawn_over_the_steps_of_the_environments(text):
    charts = re.findall(r'aria-label="([^"]+) against ([^".]+)\.', text)
    assert {axis for name, axis in charts if "seed" not in name and "#" not in name} == {"environment step"}
    assert "runs/3" not in text and "runs/worst" not in text


def test_every_seed_is_a_thin_line_behind_the_mean(text):
    chart = re.search(r'aria-label="eval/return against environment step[^"]*seeds:.*?</svg>', text, flags=re.S).group()
    thin = re.search(r'<path class="line raw series0 arm0" d="([^"]+)"', chart).group(1)
    assert thin.count("M") == 10 and 'class="band' in chart


def test_an_entropy_of_numbers_may_be_negative(workdir):
    metrics = run_page.load_run(workdir, "run").metrics
    (row,) = [row for row in assess(metrics) if row["metric"] == "entropy"]
    assert row["status"] == "shown" and row["value"] < 0.05
    (row,) = [row for row in assess([{"step": 1, "entropy": 0.01}]) if row["metric"] == "entropy"]
    assert row["status"] == "warning"


def test_arms_within_one_run_are_compared_and_its_episode_is_of_the_first(tmp_path):
    sweep = [["algorithm.entropy_coef", [0.0, 0.5]]]
    run = episodes.write_control_run(tmp_path / "swept", seeds=3, sweep=sweep, length=5)
    study = arms_page.load_study([run])
    assert [arm.rpartition(", ")[2] for arm in study.arms] == ["entropy_coef=0.0", "entropy_coef=0.5"]
    assert [found["arm"] for found in figures.episodes(study)] == [next(iter(study.arms))]
    shown = Page(cli.write_report([run]).read_text()).text
    assert "Final results" in shown and "Before training" in shown and "completions" not in shown


def test_an_environment_without_a_picture_is_told_in_a_table(tmp_path):
    run = episodes.write_control_run(tmp_path / "aim", name="probes/aim", length=3, seeds=1)
    text = cli.write_report([run]).read_text()
    assert "reel" not in text.split("</style>")[1] and 'class="play"' not in text
    assert "0.4</td>" in text and "1 step, return -0.01, terminated" in Page(text).text


def test_where_an_arm_logs_no_samples_no_chart_leaves_it_out(tmp_path, workdir):
    metrics = [{"step": step, "eval/return": 1.0 * step, "loss": 1.0} for step in (50, 100)]
    bare = arms_page.Run("bare", {}, {}, metrics, [], [], [], [])
    other = arms_page.Member("bare", 0, "bare", bare, metrics)
    members = arms_page.group([run_page.load_run(workdir, "cartpole")])
    study = arms_page.Study("x", {"seeds": members, "bare": [other]}, [], [], {}, [])
    found = figures.sections(study)
    assert found["curves"] and all(chart["along"] == "step" for chart in found["curves"])


def test_ports_that_cannot_be_had(tmp_path, workdir, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        cli.main([str(workdir), "--serve", "--port=70000"])
    assert "--port=70000 must be from 0 to 65535" in capsys.readouterr().err

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socketserver.TCPServer.server_bind", refuse)
    with pytest.raises(SystemExit, match="report: port 80 is not allowed for this user: use one above 1023"):
        cli.main([str(workdir), "--serve", "--port=80"])
