"""experiments.tools.runs, and that pandas and DuckDB read what runs write."""

import json
import math

import duckdb
import numpy as np
import pandas
import pytest

from experiments.tools import runs as program
from rl_jax.runs.logging import PARQUET_FILES, RunLogger, export_parquet
from rl_jax.runs.parquet import write_parquet
from rl_jax.runs.run_record import write_run_record


def make_run(workdir, *, lr=0.1, steps=3, result=1.0, complete=True, task="sums"):
    config = {"seed": 0, "algorithm": {"kl_coef": lr / 10}, "name": "n"}
    config["train"] = {"optimizer": {"learning_rate": lr}}
    write_run_record(workdir, config=config, command="x", task=task, algorithm="grpo")
    with RunLogger(workdir, total_steps=steps, progress=False, tensorboard=False, samples_per_step=8) as log:
        log.log(0, {"eval/pass@1": 0.0})
        for step in range(1, steps + 1):
            metrics = {"loss": math.nan if step == 2 else 1.0 / step, "eval/pass@1": result * step / steps}
            log.log(step, metrics, {"step_s": 0.5})
            log.samples(step, [{"prompt": "a", "completion": "é\ud800", "reward": 1, "finished": True}])
    if complete:
        (workdir / "final.json").write_text("{}")


@pytest.fixture
def tree(tmp_path):
    """Three runs, one of them unfinished, and three damaged folders."""
    make_run(tmp_path / "a", lr=0.1, result=0.5)
    make_run(tmp_path / "deep" / "b", lr=0.2, result=0.75)
    make_run(tmp_path / "c", lr=0.3, complete=False, task="stories")
    for name, file, content in (
        ("no_json", "run.json", "{"),
        ("no_rows", "metrics.jsonl", '{"step": 1}\n{bro\n{"step": 2}\n'),
        ("no_record", "config.json", "{}"),
        ("odd", "run.json", '{"attempts": [3]}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    (tmp_path / "a" / "checkpoints" / "run.json").mkdir(parents=True)
    return tmp_path


def said(capsys, *arguments) -> str:
    assert program.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_every_folder_is_listed_damaged_ones_too(tree, capsys):
    lines = said(capsys, tree).splitlines()
    rows = {line.split()[0]: line.split() for line in lines[1:8]}
    assert lines[0].split() == ["name", "program", "task", "state", "step", "result", "age"]
    assert rows["a"][1:7] == ["grpo", "sums", "complete", "3", "eval/pass@1", "0.5"]
    assert rows["deep/b"][6] == "0.75" and rows["c"][2:4] == ["stories", "running"]
    assert {name for name, row in rows.items() if "damaged" in row} == {"no_json", "no_rows", "no_record", "odd"}
    assert any("damaged no_json: " in line and "run.json: damaged file" in line for line in lines)
    assert any("damaged no_record: " in line and "run.json: missing" in line for line in lines)
    assert program.main([str(tree / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("config.algorithm.kl_coef>0.015", ["c", "deep/b"]),
        ("config.algorithm.kl_coef>0.015 and state=complete", ["deep/b"]),
        ("metrics.eval/pass@1 <= 0.5", ["a"]),
        ("task != sums and program = grpo", ["c"]),
        ("name ~ deep", ["deep/b"]),
        ("state = 'damaged'", ["no_json", "no_record", "no_rows", "odd"]),
        ("config.seed == 0 and config.name='n' and step>=3", ["a", "c", "deep/b"]),
        ("task > 3", []),
    ],
)
def test_where(tree, capsys, condition, names):
    assert [row["name"] for row in json.loads(said(capsys, tree, "--where", condition, "--json"))] == names


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ("config.algorithm.kl_coeff>0", "a field 'config.algorithm.kl_coeff'; near it: config.algorithm.kl_coef"),
        ("step", "'step' is not a condition: write FIELD OP VALUE"),
        ("step>", "'step>' is not a condition"),
        ("__import__('os')", "is not a condition"),
    ],
)
def test_a_condition_that_is_none(tree, capsys, condition, complaint):
    assert program.main([str(tree), "--where", condition]) == 2
    assert complaint in capsys.readouterr().err


def test_compare_and_diff(tree, capsys):
    a, b = tree / "a", tree / "deep" / "b"
    lines = [line.split() for line in said(capsys, "--compare", a, b).splitlines()]
    assert lines[0] == ["metric", str(a), str(b), "difference"]
    assert ["eval/pass@1", "0.5", "0.75", "0.25"] in lines
    lines = [line.split() for line in said(capsys, "--diff", a, b).splitlines()]
    assert ["train.optimizer.learning_rate", "0.1", "0.2"] in lines
    assert all(line[0].startswith(("algorithm.", "train.")) for line in lines[1:]), lines
    assert said(capsys, "--diff", a, a) == "no differences\n"
    assert program.main(["--diff", str(a), str(tree / "none")]) == 2


def test_pandas_and_duckdb_read_a_run(tree):
    frame = pandas.read_parquet(tree / "a" / "metrics.parquet")
    assert list(frame["step"]) == [0, 1, 2, 3] and frame["step"].dtype == np.int64
    assert frame["samples"].dropna().tolist() == [8, 16, 24] and frame["wall_s"].dropna().is_monotonic_increasing
    assert frame["timing/step_s"].dropna().tolist() == [0.5] * 3
    assert frame["loss"].isna().tolist() == [True, False, True, False]
    assert frame["eval/pass@1"].tolist() == pytest.approx([0.0, 0.5 / 3, 1.0 / 3, 0.5])
    query = f"""select step, samples, "eval/pass@1" as solved, isnan(loss) as bad
                from read_parquet('{tree}/**/metrics.parquet', filename=true)
                where filename like '%/a/%' order by step"""
    rows = duckdb.sql(query).fetchall()
    assert rows[0] == (0, None, 0.0, None) and rows[2] == (2, 16, pytest.approx(1 / 3), True)
    # The JSON lines are read as they are, too.
    lines = duckdb.sql(f"select max(step), count(*) from read_json_auto('{tree}/a/metrics.jsonl')").fetchall()
    assert lines == [(3, 4)]
    samples = pandas.read_parquet(tree / "a" / "samples.parquet")
    assert samples["completion"].tolist() == ["é?"] * 3 and samples["finished"].dtype == bool


def test_export_makes_what_a_killed_run_has_not(tree, capsys):
    for name in PARQUET_FILES:
        (tree / "a" / name).unlink()
    assert said(capsys, tree, "--export").startswith("7 runs: ")
    assert (tree / "a" / "metrics.parquet").exists()
    frame = pandas.read_parquet(tree / "runs.parquet").set_index("name")
    assert frame.loc["deep/b", "config.train.optimizer.learning_rate"] == 0.2
    assert frame.loc["a", "metrics.eval/pass@1"] == 0.5 and frame.loc["odd", "state"] == "damaged"
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2"):
        export_parquet(tree / "no_rows")
    (tree / "a" / "timing.jsonl").write_text("{bro\n")
    assert program.main([str(tree), "--export"]) == 0
    assert "a was not exported: " in capsys.readouterr().err
    # Runs of other programs have other columns.
    write_parquet(tree / "c" / "metrics.parquet", [{"step": 1, "other": 2.0}])
    query = f"select count(*), count(other) from read_parquet('{tree}/**/metrics.parquet', union_by_name=true)"
    assert duckdb.sql(query).fetchall() == [(9, 1)]


def test_an_export_of_no_run_is_said(tree, capsys):
    assert program.main([str(tree), "--export"]) == 0
    before = (tree / "runs.parquet").read_bytes()
    capsys.readouterr()
    assert program.main([str(tree), "--export", "--where=config.seed=5"]) == 2
    read = capsys.readouterr()
    assert "runs.parquet was not written: no run that meets --where in" in read.err and not read.out
    assert (tree / "runs.parquet").read_bytes() == before


def test_a_resumed_run_has_one_clock_and_no_stale_copy(tmp_path):
    make_run(tmp_path, steps=2)
    before = pandas.read_parquet(tmp_path / "metrics.parquet")["wall_s"].max()
    options = dict(total_steps=3, progress=False, tensorboard=False)
    log = RunLogger(tmp_path, resume_step=1, **options)
    assert not (tmp_path / "metrics.parquet").exists()
    log.log(2, {"loss": 1.0}, {"step_s": 0.5})
    log.close()
    after = pandas.read_parquet(tmp_path / "metrics.parquet")
    first = after["wall_s"][1]
    assert after["step"].tolist() == [0, 1, 2] and first <= before and after["wall_s"][2] >= first
    RunLogger(tmp_path, resume_step=2, **options).close()
    assert pandas.read_parquet(tmp_path / "metrics.parquet")["step"].tolist() == [0, 1, 2]


def test_columns_of_every_kind(tmp_path):
    rows = [
        {"i": 1, "f": 1.5, "b": True, "t": "x", "mixed": 1, "nested": [1, 2], "big": 2**70},
        {"i": None, "f": 2, "b": None, "mixed": "y", "nested": {"a": 1}, "late": 3},
    ]
    write_parquet(tmp_path / "x.parquet", rows)
    described = f"(describe select * from '{tmp_path}/x.parquet')"
    kinds = duckdb.sql(f"select column_name, column_type from {described}").fetchall()
    assert dict(kinds) == {
        "i": "BIGINT",
        "f": "DOUBLE",
        "b": "BOOLEAN",
        "t": "VARCHAR",
        "mixed": "VARCHAR",
        "nested": "VARCHAR",
        "big": "DOUBLE",
        "late": "BIGINT",
    }
    assert duckdb.sql(f"select nested, late from '{tmp_path}/x.parquet'").fetchall() == [
        ("[1, 2]", None),
        ('{"a": 1}', 3),
    ]
    write_parquet(tmp_path / "none.parquet", [])
    assert not (tmp_path / "none.parquet").exists()
