"""rl_jax/data/append_lines.py: whole lines after whatever a killed writer left."""

import concurrent.futures

import pytest

from rl_jax.data.append_lines import append_lines


def test_lines_are_appended_to_a_file_that_need_not_be_there(tmp_path):
    path = tmp_path / "lines"
    append_lines(path, ["a", "é"])
    append_lines(str(path), iter(["b"]))
    append_lines(path, [])
    assert path.read_text(encoding="utf-8") == "a\né\nb\n"


@pytest.mark.parametrize(
    ("left", "kept", "cut"),
    [(b"a\nb", "a\n", 1), (b"torn", "", 4), (b"a\n\n" + b"x" * 70000, "a\n\n", 70000), (b"a\nb\r", "a\n", 2)],
)
def test_a_torn_last_line_is_cut_and_said(tmp_path, left, kept, cut):
    path = tmp_path / "lines"
    path.write_bytes(left)
    with pytest.warns(UserWarning, match=rf"lines: cut {cut} bytes of a last line that was not written"):
        append_lines(path, ["new"])
    assert path.read_text() == f"{kept}new\n"


def test_two_writers_do_not_cut_each_other(tmp_path):
    path = tmp_path / "lines"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: append_lines(path, [str(i) * 5000] * 3), range(40)))
    assert sorted(path.read_text().splitlines()) == sorted(str(i) * 5000 for i in range(40) for _ in range(3))
