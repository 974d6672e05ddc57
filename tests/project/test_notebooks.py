"""Every notebook runs, on a fresh kernel and within its time; what is committed of it is what such a run gave.

    python -m tests.project.test_notebooks

runs them all and writes their outputs, without what differs between two runs, to be committed.
"""

import os
import pathlib
import re
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.paths import REPO_ROOT

NOTEBOOKS = sorted((REPO_ROOT / "notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

# Seconds of the kernel's processor time that one cell may take. On a machine with two idle cores it takes less than
# that by the clock; on a busy one the clock measures the others.
CELL_LIMIT = 120
MAX_BYTES = 150_000
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")
# A path of the machine that ran it: it changes with each, and says who that was.
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|Users|root|work|tmp|usr|opt|var|private|mnt)/|\b[A-Z]:\\\\")

# Run by the kernel before the first cell and after the last one. The flags of conftest.py go behind those that a
# notebook sets: most of what its cells take is compiling programs that run once.
CLOCK = f"""
import os as _os, sys as _sys, time as _time
def _quick(info):
    known = _os.environ.get("XLA_FLAGS", "")
    if "jax" not in _sys.modules and {XLA_FLAGS!r} not in known:
        _os.environ["XLA_FLAGS"] = known + " " + {XLA_FLAGS!r}
get_ipython().events.register("pre_run_cell", _quick)
_used = []
get_ipython().events.register("pre_run_cell", lambda info: _used.append(-_time.process_time()))
get_ipython().events.register("post_run_cell", lambda _: _used and _used.append(_used.pop() + _time.process_time()))
"""
READ_CLOCK = "print([round(seconds, 1) for seconds in _used[:-1]])"


def run(path: pathlib.Path, folder: pathlib.Path) -> tuple[nbformat.NotebookNode, list[float]]:
    """(the notebook with its new outputs, processor seconds of each code cell). folder: where its kernel runs.

    Raises nbclient.exceptions.CellExecutionError where a cell raises.
    """
    notebook = nbformat.read(path, as_version=4)
    clock, read_clock = (nbformat.v4.new_code_cell(source) for source in (CLOCK, READ_CLOCK))
    notebook.cells = [clock, *notebook.cells, read_clock]
    # The kernel of this Python, whatever kernels the machine has registered, and this checkout's modules.
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=10 * CELL_LIMIT,
        resources={"metadata": {"path": str(folder)}},
        config=Config(KernelManager={"transport_encryption": "auto"}),
    )
    # Behind what conftest puts there: a kernel lowers its programs as quickly as all that tests start.
    places = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPO_ROOT)]))
    client.execute(env=os.environ | inline | {"PYTHONPATH": places})
    seconds = [float(x) for x in re.findall(r"[\d.]+", read_clock.outputs[0].text)]
    notebook.cells = notebook.cells[1:-1]
    return notebook, seconds


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs between two runs of the same notebook, and without what was printed to stderr.

    What a cell prints comes in pieces, as many as the clock makes of it: they are one here.
    """
    notebook.metadata = METADATA
    count = 0
    for i, cell in enumerate(notebook.cells):
        cell.metadata, cell["id"] = {}, f"cell-{i}"
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            cell.outputs = []
            for out in outputs:
                if out.output_type == "stream" and cell.outputs and cell.outputs[-1].output_type == "stream":
                    cell.outputs[-1].text += out.text
                    continue
                cell.outputs.append(out)
                out.pop("execution_count", None)
                out.get("data", {}).pop("text/plain", None)
                if "metadata" in out:
                    out.metadata = {}
    return notebook


def kinds(cell) -> list[tuple[str, list[str]]]:
    """What kind of output a cell has: its type, and the formats of what it displays."""
    return [(out.output_type, sorted(out.get("data", ()))) for out in cell.get("outputs", ())]


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """The source and every output of each cell, images apart."""
    found = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            found += [out.get("text", ""), *(value for kind, value in data.items() if kind.startswith("text/"))]
    return found


def test_they_are_found():
    assert [path.stem[:3] for path in NOTEBOOKS] == [f"0{number}_" for number in range(1, 6)]


@pytest.mark.slow
@every_notebook
def test_runs(path, tmp_path):
    notebook, seconds = run(path, tmp_path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(seconds) == len(code)
    assert max(seconds) < CELL_LIMIT, f"processor seconds by cell: {seconds}"
    committed = nbformat.read(path, as_version=4)
    for now, then in zip(cleaned(notebook).cells, committed.cells, strict=True):
        assert kinds(now) == kinds(then), "not the outputs of this source: run python -m tests.project.test_notebooks"


@every_notebook
def test_outputs_are_committed(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [out for cell in code for out in cell.outputs]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "not run once, top to bottom"
    assert any("image/png" in out.get("data", {}) for out in outputs) and any(out.get("text") for out in outputs)
    assert not [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"]
    for text in texts(notebook):
        assert not ABSOLUTE.search(text), text
    assert path.stat().st_size < MAX_BYTES
    assert notebook == cleaned(nbformat.read(path, as_version=4)), (
        "not cleaned: run python -m tests.project.test_notebooks"
    )


def test_absolute_paths_are_seen():
    for text in ("in /home/me/x", '"/tmp/tmpab/run"', "saved: C:\\\\Users\\\\me", "(/work/main/a.py)"):
        assert ABSOLUTE.search(text), text
    for text in ("1/2", "runs/a/tmp/b", "https://a.org/home/x", "configs/tasks/arithmetic.py", "a / b"):
        assert not ABSOLUTE.search(text), text


if __name__ == "__main__":
    for path in NOTEBOOKS:
        done, seconds = run(path, path.parent)
        nbformat.write(cleaned(done), path)
        print(f"{path.relative_to(REPO_ROOT)}: processor seconds by cell {seconds}", file=sys.stderr)
