"""The report: self-contained, safe for hostile text, honest about what is missing, and warning when it should."""

import html.parser
import json
import math
import pathlib
import re

import jinja2
import pytest

from experiments.report import cli, run_page
from experiments.report.health import CHECKS, SHOWN_ONLY, assess
from rl_jax.runs.logging import GROUP_VIEW_FILE, METRICS_FILE, SAMPLES_FILE, TIMING_FILE, read_jsonl
from tests.experiments.synthetic_run import HOSTILE, PROMPTS, write_run

VOID = {"meta", "br", "input", "line", "circle", "path", "rect"}


class Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self._open = [], [], "", []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID or (tag == "path" and not self.get_starttag_text().endswith("/>")):
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open[-1] in VOID and self._open[-1] != tag:
                self._open.pop()
            assert self._open.pop() == tag
        else:
            assert tag in VOID

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "grpo")


@pytest.fixture(scope="module")
def page_text(workdir):
    return cli.write_report([workdir]).read_text(encoding="utf-8")


def test_page_needs_nothing_from_outside_and_runs_nothing(page_text):
    page = Page(page_text)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {"src", "srcset", "xlink:href", "action"} & names
    ids = {value for name, value in page.attributes if name == "id"}
    assert {value[1:] for name, value in page.attributes if name == "href"} <= ids  # sections of the page itself
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in page_text and "@import" not in page_text and "http:" not in page_text.lower()
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_hostile_text_is_shown_and_not_run(page_text):
    assert HOSTILE not in page_text
    assert HOSTILE in Page(page_text).text
    assert "\x07" not in page_text and r"\x07" in page_text  # control characters are written out
    assert r"\ud800" in page_text  # so is half of a surrogate pair


def test_hostile_text_anywhere_is_escaped(tmp_path):
    workdir = tmp_path / "runs" / "<b>bad"
    write_run(workdir, steps=3)
    attack = '"></title><img src=x onerror=alert(1)>'
    rows = read_jsonl(workdir / METRICS_FILE)
    (workdir / METRICS_FILE).write_text("".join(json.dumps({**row, attack: 1.0 + row["step"]}) + "\n" for row in rows))
    view = {"step": 3, "prompt": attack, "rows": [{
        "tokens": [attack], "mask": [True], "log_prob": [-1.0], "log_ratio": [None], "advantage": [1.0],
        "entropy": [0.5], "reward": None}]}  # fmt: skip
    (workdir / GROUP_VIEW_FILE).write_text(json.dumps(view) + "\n")
    record = json.loads((workdir / "run.json").read_text()) | {"task": attack, "git_commit": attack}
    (workdir / "run.json").write_text(json.dumps(record))
    page = Page(cli.write_report([workdir]).read_text())
    assert not {"img", "b>bad"} & set(page.tags)
    assert page.text.count(attack) >= 3


def test_curves_of_the_contract_are_drawn(page_text):
    captions = re.findall(r"<figcaption><b>([^<]+)<span>", page_text)
    of_control = ("episode/", "return", "success")
    logged = [name for name in run_page.CURVES if not any(part in name for part in of_control)]
    assert captions[: len(logged)] == logged
    assert {"lr", "reward/correct", "finished"} <= set(captions)


def test_before_and_after_pairs_the_same_prompts(workdir):
    table = run_page.before_and_after(read_jsonl(workdir / SAMPLES_FILE))
    assert (table["first"], table["last"]) == (0, 120)
    assert [prompt for prompt, _, _ in table["pairs"]] == [run_page.visible(prompt) for prompt in PROMPTS]
    assert {after["reward"] for _, _, after in table["pairs"]} == {"1"}
    assert {before["reward"] for _, before, _ in table["pairs"]} == {"0"}


def test_repeated_prompts_pair_one_to_one_and_one_evaluation_has_no_after():
    def row(step, completion):
        fields = {"prompt": "p", "completion": completion, "reward": 0.5, "truncated": False}
        return {"step": step, "split": "eval", **fields}

    table = run_page.before_and_after([row(0, "a"), row(0, "b"), row(9, "c"), row(9, "d"), row(5, "middle")])
    assert [(b["text"], a["text"]) for _, b, a in table["pairs"]] == [("a", "c"), ("b", "d")]
    assert run_page.before_and_after([row(0, "a")])["pairs"][0][2] is None
    assert run_page.before_and_after([{**row(0, "a"), "split": "train"}]) is None


def test_reward_is_told_by_text_and_by_tint():
    rows = [{"reward": reward, "completion": "x", "truncated": True} for reward in (0.0, 0.5, 1.0)]
    cells = [run_page.sample_cell(row, 0.0, 1.0) for row in rows]
    assert [cell["reward"] for cell in cells] == ["0", "0.5", "1"]
    assert [cell["tint"].split(":")[1].split(";")[0] for cell in cells] == ["var(--bad)", "var(--good)", "var(--good)"]
    strengths = [int(re.search(r"strength:(\d+)%", cell["tint"]).group(1)) for cell in cells]
    assert strengths[1] < strengths[0] == strengths[2]


def test_token_view_shows_every_token_and_greys_the_masked(workdir, page_text):
    views = read_jsonl(workdir / GROUP_VIEW_FILE)
    tokens = [token for view in views for row in view["rows"] for token in row["tokens"]]
    masked = [seen for view in views for row in view["rows"] for seen in row["mask"]].count(False)
    assert page_text.count('<span class="masked"') == masked > 0
    assert page_text.count('title="token ') == len(tokens)
    assert page_text.count("masked, not part of the loss") == masked
    table_rows = re.findall(r"<td>(?:yes|no)</td>", page_text)
    assert len(table_rows) == len(tokens) and table_rows.count("<td>no</td>") == masked


def test_token_colours_follow_sign_and_size():
    row = {
        "tokens": [" ", "b", "c"], "mask": [True, True, False], "log_prob": [-1.0] * 3, "log_ratio": [1e-7, 0.0, 9.0],
        "advantage": [2.0, -1.0, 50.0], "entropy": [0.0, 1.0, 9.0], "reward": 1.0,
    }  # fmt: skip
    view = run_page.token_view({"step": 1, "prompt": "p", "rows": [row]})
    first, second, _ = view["completions"][0]["cells"]
    assert first["text"] == "␣"
    assert "--advantage:color-mix(in srgb,var(--good) 60%" in first["style"]
    assert "--advantage:color-mix(in srgb,var(--bad) 30%" in second["style"]
    assert "--log_ratio:color-mix(in srgb,var(--good) 0%" in first["style"]  # rounding noise stays pale
    assert view["scales"] == {"advantage": "2", "log_ratio": "0.01", "entropy": "1"}  # the masked token does not count


def test_tokens_of_older_versions_have_a_colour():
    row = {
        "tokens": ["a", "b"], "mask": [True, True], "log_prob": [-1.0] * 2, "log_ratio": [0.0] * 2,
        "advantage": [1.0] * 2, "entropy": [1.0] * 2, "lag": [2, 0], "reward": 1.0,
    }  # fmt: skip
    view = run_page.token_view({"step": 1, "prompt": "p", "rows": [row]})
    old, new = view["completions"][0]["cells"]
    assert ("lag", "versions behind the newest") in view["fields"] and view["scales"]["lag"] == "2"
    assert "--lag:color-mix(in srgb,var(--plain) 60%" in old["style"] and "lag 2" in old["title"]
    assert "--lag:color-mix(in srgb,var(--plain) 0%" in new["style"]
    plain = {name: value for name, value in row.items() if name != "lag"}
    assert len(run_page.token_view({"step": 1, "prompt": "p", "rows": [row, plain]})["fields"]) == 3


PLANTED = {check.metric: 0.0 if check.worst == "low" else max(2 * check.limit, 1.0) for check in CHECKS}


@pytest.mark.parametrize("metric", PLANTED)
def test_each_check_warns_and_only_that_one(tmp_path, metric):
    steps = 20
    at = {7: PLANTED[metric]} if not next(c.late for c in CHECKS if c.metric == metric) else dict.fromkeys(
        range(steps - 5, steps + 1), PLANTED[metric])  # fmt: skip
    calm = {"group__zero_variance": dict.fromkeys(range(steps + 1), 0.1)}
    workdir = write_run(tmp_path / "a" / "run", steps=steps, **(calm | {metric.replace("/", "__"): at}))
    rows = assess(read_jsonl(workdir / METRICS_FILE))
    assert [row["metric"] for row in rows if row["status"] == "warning"] == [metric]
    assert rows[0]["advice"] and rows[0]["meaning"]
    page = Page(cli.write_report([workdir]).read_text())
    assert page.text.count("▲ warning") == 1
    assert re.search(r"health warnings\s*1", page.text)


def test_a_calm_run_warns_of_nothing_and_an_unlogged_metric_is_named(tmp_path):
    calm = {"group__zero_variance": dict.fromkeys(range(21), 0.1)}
    rows = assess(read_jsonl(write_run(tmp_path / "run", steps=20, **calm) / METRICS_FILE))
    assert {row["status"] for row in rows} == {"ok", "shown"}
    assert len(rows) == len(CHECKS) + len(SHOWN_ONLY)
    assert {row["status"] for row in assess([{"step": 1, "loss": 0.1}])} == {"not logged"}


@pytest.mark.parametrize("metric", ["kl/k3", "sampler/gap_max", "grad_norm"])
def test_a_value_that_is_not_finite_warns_with_its_step(tmp_path, metric):
    workdir = write_run(tmp_path / "run", steps=9, **{metric.replace("/", "__"): {4: math.nan}})
    row = next(row for row in assess(read_jsonl(workdir / METRICS_FILE)) if row["metric"] == metric)
    assert (row["status"], row["judged"]) == ("warning", "not a finite number at step 4")
    cli.write_report([workdir])


def test_timing_leaves_the_compiling_step_out():
    first = {"step": 0, "step_s": 99.0, "train_s": 98.0, "compile_count": 3, "tokens_per_s": 1.0}
    later = {"step_s": 2.0, "train_s": 1.0, "rollout_s": 0.5, "compile_count": 3, "tokens_per_s": 1000.0}
    summary = run_page.timing_summary([first, {**later, "step": 1}, {**later, "step": 2, "compile_count": 4}])
    assert summary["stages"] == [("rollout", 0.25, 0.5), ("train", 0.5, 1.0), ("rest", 0.25, 0.5)]
    assert (summary["step_s"], summary["rates"]) == (2.0, [("1k", "tokens/s")])
    assert (summary["compile_count"], summary["last_compile"]) == (4, 2)


def test_utilisation_and_memory_are_among_the_rates():
    one = {"step": 1, "step_s": 2.0, "train_s": 1.0, "tokens_per_s": 800.0, "tokens_per_s_per_device": 100.0}
    one |= {"train_flops_per_s_per_device": 4e14, "mfu": 0.404, "peak_bytes_in_use": 3 * 2.0**30}
    summary = run_page.timing_summary([one])
    said = dict((what, value) for value, what in summary["rates"])
    assert said == {
        "tokens/s": "800", "sampled tokens/s per device": "100", "model FLOP/s per device in updates": "400T",
        "MFU in updates": "40.4 %",
    }  # fmt: skip
    assert summary["memory"] == [("3.00 GiB", "at most")]


def test_medians_and_the_last_steps_memory_are_told_apart():
    rows = [{"step": n, "step_s": 2.0, "tokens_per_s": 8.0, "bytes_in_use": n * 2.0**30} for n in (1, 2, 3)]
    templates = jinja2.FileSystemLoader(pathlib.Path(cli.__file__).with_name("templates"))
    macros = jinja2.Environment(loader=templates, undefined=jinja2.StrictUndefined).get_template("parts.html").module
    page = macros.timing({"timing": run_page.timing_summary(rows), "acts": False})
    assert "; 8 tokens/s (medians); 3.00 GiB in use on the fullest device (after the last step)." in page


def test_sampling_beside_the_updates_is_a_stage():
    rows = [{"step": n, "step_s": 4.0, "train_s": 1.0, "beside_s": 3.0} for n in (1, 2)]
    stages = run_page.timing_summary(rows)["stages"]
    assert [(label, share) for label, share, _ in stages] == [("train", 0.25), (run_page.STAGES["beside_s"], 0.75)]


@pytest.mark.parametrize(
    ("name", "notice"),
    [
        ("run.json", "run.json"),
        (METRICS_FILE, "No metrics: metrics.jsonl"),
        (TIMING_FILE, "No timings"),
        (SAMPLES_FILE, "No held-out completions"),
        (GROUP_VIEW_FILE, "No per-token view"),
    ],
)
def test_a_missing_file_is_named(tmp_path, name, notice):
    workdir = write_run(tmp_path / "run", steps=3)
    (workdir / name).unlink()
    text = Page(cli.write_report([workdir]).read_text()).text
    assert notice in text and f"Missing from this run's folder: {name}" in text


def test_a_run_that_has_only_begun_gives_a_page_and_a_folder_that_is_no_run_does_not(tmp_path, capsys):
    with pytest.raises(SystemExit, match="report: no run at .*has none of run.json, config.json, metrics.jsonl"):
        cli.main([str(tmp_path)])
    assert not list(tmp_path.iterdir())
    (tmp_path / "config.json").write_text("{}")
    text = Page(cli.write_report([tmp_path], tmp_path / "out" / "page.html").read_text()).text
    for name in ("run.json", METRICS_FILE, TIMING_FILE, SAMPLES_FILE, GROUP_VIEW_FILE):
        assert name in text


def test_runs_are_laid_over_each_other(tmp_path):
    runs = [write_run(tmp_path / k / "grpo", steps=20, seed=int(k), learning_rate=0.1 * int(k)) for k in "123"]
    text = cli.write_report(runs, tmp_path / "all.html").read_text()
    chart = re.search(r"<figcaption><b>reward/mean.*?</figure>", text, flags=re.S).group()
    dashes = re.findall(r'class="line series\d" stroke-dasharray="([^"]+)"', chart)
    assert len(dashes) == len(set(dashes)) == 3
    assert all(f"{seed}/grpo" in Page(text).text for seed in "123")
    assert not (runs[0] / "report.html").exists()


def test_labels_are_as_long_as_it_takes_to_tell_runs_apart(tmp_path):
    alike = [tmp_path / "a" / "x" / "grpo", tmp_path / "b" / "x" / "grpo"]
    assert run_page.run_labels(alike) == ["a/x/grpo", "b/x/grpo"]
    assert run_page.run_labels([tmp_path / "a" / "grpo"]) == ["a/grpo"]
    with pytest.raises(ValueError, match="named twice"):
        run_page.run_labels([tmp_path, tmp_path / "."])


def test_the_command_line_prints_the_page_and_explains_what_is_wrong(tmp_path, capsys):
    workdir = write_run(tmp_path / "run", steps=3)
    cli.main([str(workdir)])
    assert capsys.readouterr().out.strip() == str(workdir / "report.html")
    with pytest.raises(SystemExit, match="no run at .*elsewhere"):
        cli.main([str(tmp_path / "elsewhere")])
    lines = (workdir / METRICS_FILE).read_text().splitlines(keepends=True)
    (workdir / METRICS_FILE).write_text(lines[0] + "{torn\n" + lines[1])
    with pytest.raises(SystemExit, match=r"metrics\.jsonl:2: damaged line"):
        cli.main([str(workdir)])
