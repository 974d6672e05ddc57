"""runs/completions.py: the table on the terminal."""

import pytest

from rl_jax.runs.completions import completions_table, one_line
from rl_jax.runs.logging import RunLogger


def row(**fields):
    plain = dict(split="eval", prompt="3+5=", completion="8", reward=1.0, finished=True, truncated=False)
    return plain | fields


def test_the_first_rows_of_each_split():
    rows = [row(), row(reward=-0.123456, completion="9 9", finished=False, truncated=True), row(prompt="unseen")]
    rows.append(row(split="train", finished=False))
    assert completions_table(40, rows, 2).splitlines() == [
        "step 40, eval: 2 of 3 completions",
        "         1  3+5=",
        "            > 8",
        "    -0.123  3+5=",
        "            > 9 9  (cut off)",
        "step 40, train: 1 of 1 completions",
        "         1  3+5=",
        "            > 8  (not finished)",
    ]


def test_long_texts_are_cut_to_the_line():
    text = "".join(str(i % 10) for i in range(300))
    lines = completions_table(0, [row(prompt=text, completion=text, finished=False, truncated=True)], 1).splitlines()
    assert all(len(line) <= 110 for line in lines)
    assert lines[1].endswith("789") and "…" in lines[1] and lines[2].startswith("            > 0123456789")
    assert "789  (cut off)" in lines[2]


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "a\nb\r", "\u202eevil", "\x07\x00", "é ☃"])
def test_nothing_steers_the_terminal(text):
    shown = one_line(text)
    assert shown.isprintable() and ("é" in shown if "é" in text else shown != text)


@pytest.mark.parametrize("progress", [True, False])
def test_the_logger_prints_them_if_asked(tmp_path, capsys, progress):
    with RunLogger(tmp_path, total_steps=1, progress=progress, tensorboard=False, print_completions=1) as log:
        log.samples(1, iter([row(), row()]))
        log.samples(2, [])
    assert capsys.readouterr().out.startswith("step 1, eval: 1 of 2 completions\n")
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 2
    with RunLogger(tmp_path / "quiet", total_steps=1, progress=False, tensorboard=False) as log:
        log.samples(1, [row()])
    assert capsys.readouterr().out == ""
