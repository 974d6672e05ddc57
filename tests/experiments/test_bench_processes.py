"""experiments.bench.processes with two real processes; how long they take is nobody's business here."""

import numpy as np
import pytest

from experiments.bench import processes

pytestmark = pytest.mark.slow


def test_two_processes_are_measured():
    assert processes.measure(2, rows=2, steps=2) > 0


def test_the_ratio_is_that_of_the_best_rounds(monkeypatch):
    seconds = iter([0.5, 0.6, 0.4, 0.9])  # the counts take turns
    monkeypatch.setattr(processes, "measure", lambda count, rows, steps: next(seconds))
    one, two = processes.measure_processes((1, 2), rows=2, steps=2, rounds=2)
    assert one == {"processes": 1, "rows": 2, "step_s": 0.4, "ratio": 1.0}
    assert two == {"processes": 2, "rows": 4, "step_s": 0.6, "ratio": 0.6 / 0.4}


def test_a_process_that_fails_is_shown(monkeypatch):
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"exit statuses \[1, 1\]"):
        processes.measure(2, rows=2, steps=1)


def test_every_process_has_rows_of_its_own():
    rows = [processes.own_rows(3, process) for process in (0, 0, 1)]
    np.testing.assert_array_equal(rows[0].batch.tokens, rows[1].batch.tokens)
    assert (rows[0].batch.tokens != rows[2].batch.tokens).any() and rows[0].advantages.shape == (3, 48)
