"""experiments/tools/tune_blocks.py at toy size: the grid, the points' file, and the table's entries made from it."""

import json
import types

import jax
import pytest

from experiments.bench import device as bench
from experiments.tools import tune_blocks
from experiments.tools.tune_blocks import (
    NAMES,
    PASSES,
    SHAPES,
    Race,
    Shape,
    chosen,
    entries_of,
    merged,
    points,
    races,
    sizes_of,
)
from rl_jax.models.transformer import splash_blocks
from rl_jax.models.transformer.splash_blocks import DEFAULT, Blocks, Entry, check, fit

pytestmark = pytest.mark.usefixtures("few_objects")

SMALL = Shape(1, 2, 1, 64, (1024, 4096), (512, 1024, 2048))


def test_the_grid_is_what_the_kernel_can_have():
    """Every valid choice of one pass's sizes, with the default of the others."""
    for length in SMALL.lengths:
        default = fit(DEFAULT, queries=length, keys=length)
        for name, fields in PASSES.items():
            made = sizes_of(SMALL, length, name)
            assert len(set(made)) == len(made)
            for blocks in made:
                check(blocks, queries=length, keys=length)
                assert {k: v for k, v in blocks._asdict().items() if k not in fields} == {
                    k: v for k, v in default._asdict().items() if k not in fields
                }
    # 3 sizes of queries, 6 pairs of keys and keys at once; 2 and 3 where rows are of 1,024.
    assert [len(sizes_of(SMALL, 4096, name)) for name in PASSES] == [18, 18, 9]
    assert [len(sizes_of(SMALL, 1024, name)) for name in PASSES] == [6, 6, 4]


def fake(shape, length, blocks, name):
    """Seconds that are least at queries of 2,048 and keys of 1,024, and 512 for the gradient of keys."""
    wanted = dict(q=2048, kv=1024, kv_compute=1024, q_dkv=2048, kv_dkv=512, kv_dkv_compute=512, q_dq=1024, kv_dq=1024)
    off = {field: abs(size - wanted[field]) / 1e4 for field, size in blocks._asdict().items()}
    forward = 1.0 + sum(off[field] for field in PASSES["forward"])
    return ({"forward_s": forward} if name != "dq" else {}) | (
        {"step_s": forward + 2.0 + sum(off.values())} if name != "forward" else {}
    )


def tuned(path, run=fake, seconds=1e9, kind="TPU v5e"):
    return bench.measure(path, points([SMALL], path, kind, run), {}, seconds, names=NAMES, device=kind)


def test_the_best_of_each_pass_are_timed_together_and_become_entries(tmp_path, capsys):
    path = tmp_path / "blocks.jsonl"
    made = tuned(path)
    assert len(made) == 18 + 18 + 9 + 6 + 6 + 4 + 2 * 2, "and per length the default and the best"
    rows = bench.lines(path)
    best = chosen(rows, "TPU v5e", 64, 4096, "bfloat16")
    assert best == Blocks(2048, 1024, 1024, 2048, 512, 512, 1024, 1024)
    assert (
        chosen(rows, "TPU v5e", 64, 1024, "bfloat16").q == 1024 and chosen(rows, "TPU v4", 64, 4096, "bfloat16") is None
    )
    first, second = entries_of(races(rows), "here")
    assert (first.device, first.head_dim, first.shortest, first.longest) == ("TPU v5 lite", 128, 1024, 4095)
    assert (second.shortest, second.longest, second.blocks, second.timed) == (4096, None, best, True)
    assert second.source.startswith("here: 1.") and "times as fast as 512 at 4096" in second.source
    assert tuned(path) == [], "the file has all of them"


def test_it_goes_on_where_it_stopped_and_a_size_that_does_not_fit_is_a_line(tmp_path, capsys):
    path = tmp_path / "blocks.jsonl"

    def fails(shape, length, blocks, name):
        if max(blocks) > 1024:
            raise RuntimeError("RESOURCE_EXHAUSTED: scoped vmem limit")
        return fake(shape, length, blocks, name)

    assert tuned(path, fails, seconds=-1.0) == []
    (tmp_path / "half").write_text(path.read_text() if path.exists() else "")
    made = tuned(path, fails)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in made[:20]) + '{"point": "dkv", "le')
    assert len(tuned(path, fails)) == len(made) - 20
    assert any("scoped vmem" in row.get("error", "") for row in bench.lines(path))
    assert max(chosen(bench.lines(path), "TPU v5e", 64, 4096, "bfloat16")) == 1024


def test_sizes_that_are_not_faster_become_no_entry(tmp_path, capsys):
    path = tmp_path / "blocks.jsonl"
    tuned(path, lambda *point: {"forward_s": 1.0, "step_s": 3.0})
    assert entries_of(races(bench.lines(path)), "here") == []


def test_measured_entries_replace_those_of_their_device(tmp_path):
    old = [Entry("TPU v5", 128, "bfloat16", 4096, None, DEFAULT, "a", False),
           Entry("TPU v6 lite", 128, "bfloat16", 4096, None, DEFAULT, "b", False)]  # fmt: skip
    new = [Entry("TPU v5", 128, "bfloat16", 1024, None, DEFAULT._replace(q=256), "c", True)]
    assert merged(old, new, []) == [new[0], old[1]] and merged(old, [], []) == sorted(old, key=lambda entry: entry[:4])
    path = tmp_path / "table.json"
    tune_blocks.write(merged(old, new, []), path)
    assert list(splash_blocks.table(path)) == [new[0], old[1]]


def test_an_entry_that_lost_to_the_default_goes():
    """Those of lengths that were not measured stay, and those of other devices."""
    key, best = ("TPU v5", 128, "bfloat16"), DEFAULT._replace(q=256)
    old = [Entry(*key, 1024, 4095, best, "a", True), Entry(*key, 8192, None, best, "b", False),
           Entry("TPU v6 lite", 128, "bfloat16", 1024, None, best, "c", False)]  # fmt: skip
    lost = [Race(key, 2048, 4096, best, 0.9), Race(key, 4096, None, DEFAULT, 1.0)]
    assert merged(old, [], lost) == old[1:]
    assert merged(old, [], [lost[0]._replace(length=16_384, gain=0.0)]) == [old[0], old[2]]
    assert merged(old, [], [lost[0]._replace(gain=1.1)]) == old, "it won there"


def test_the_command_writes_a_table(tmp_path, capsys):
    path, table = tmp_path / "blocks.jsonl", tmp_path / "table.json"
    tuned(path)
    table.write_text("[]")
    tune_blocks.main([f"--to={path}", "--write", f"--table={table}"])
    assert len(splash_blocks.table(table)) == 2 and "2 entries" in capsys.readouterr().out


@pytest.mark.parametrize("too_large", [False, True])
def test_the_command_takes_a_beaten_entry_out(tmp_path, capsys, too_large):
    """The default is as fast, or the best of each pass do not fit together."""
    path, table = tmp_path / "blocks.jsonl", tmp_path / "table.json"

    def run(shape, length, blocks, name):
        if too_large and name == "whole" and blocks != fit(DEFAULT, queries=length, keys=length):
            raise RuntimeError("RESOURCE_EXHAUSTED: scoped vmem limit")
        return fake(shape, length, blocks, name) if too_large else {"forward_s": 1.0, "step_s": 3.0}

    tuned(path, run)
    tune_blocks.write([Entry("TPU v5 lite", 128, "bfloat16", 4096, None, DEFAULT, "a", True)], table)
    tune_blocks.main([f"--to={path}", "--write", f"--table={table}"])
    assert splash_blocks.table(table) == () and "1 of before are not" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to=x", "--shapes=9"], "9 is none of"),
        (["--shapes=toy"], "--to=FILE is missing"),
        (["--to=x"], "no TPU here"),
    ],
)
def test_what_cannot_be_done_is_said(arguments, words, capsys):
    with pytest.raises(SystemExit):
        tune_blocks.main(arguments)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_at_toy_size(tmp_path, capsys):
    """A whole run by the interpreter: three passes, and the best of each together, which are the default here."""
    path = tmp_path / "toy.jsonl"
    tune_blocks.main([f"--to={path}", "--shapes=toy"])
    rows = bench.lines(path)
    assert [row["point"] for row in rows] == ["forward", "dkv", "dq", "whole"]
    assert all(row["device"] == jax.devices()[0].device_kind for row in rows)
    assert all((row["point"] == "dq") == ("forward_s" not in row) or row["point"] == "dkv" for row in rows)
    assert all(row["step_s"] > 0 for row in rows if row["point"] != "forward")
    assert chosen(rows, rows[0]["device"], 128, 128, "float32") == Blocks(*(128,) * 8)
    assert entries_of(races(rows), "here") == [] and SHAPES["toy"].lengths == (128,)


def test_entries_that_do_not_compile_are_named(monkeypatch):
    """What --check exits with; a compiler is not needed to see it."""
    entry = Entry("TPU v5 lite", 128, "bfloat16", 4096, 9000, DEFAULT, "a", False)
    monkeypatch.setattr(splash_blocks, "table", lambda: (entry, entry._replace(device="TPU v4")))
    monkeypatch.setattr(tune_blocks, "described", lambda topology: types.SimpleNamespace(device_kind="TPU v5e"))
    tried = []

    def compiled(device, shape, length, blocks):
        tried.append((length, shape.head_dim, blocks))
        if length > 4096:
            raise RuntimeError("too\n much")

    monkeypatch.setattr(tune_blocks, "compiled", compiled)
    assert tune_blocks.failures(tune_blocks.described("")) == (1, ["TPU v5 lite, head_dim 128, 8960 tokens: too much"])
    assert tried == [(4096, 128, None), (8960, 128, None)]
    with pytest.raises(SystemExit) as exited:
        tune_blocks.main(["--check=v5e:2x2"])
    assert exited.value.code == 1
