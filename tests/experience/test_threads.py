"""rl_jax.experience.threads: a limited number of daemon threads, and an end that waits for none."""

import threading

import pytest

from rl_jax.experience import threads
from rl_jax.experience.threads import Threads


def test_calls_beyond_the_most_wait_and_errors_are_the_callers(monkeypatch):
    monkeypatch.setattr(threads, "MOST", 2)
    pool, gate = Threads(), threading.Event()
    held = [pool.submit(gate.wait, 5) for _ in range(2)]
    third, fourth = pool.submit(int, "7"), pool.submit(int, "x")
    assert not third.running() and not third.done()
    gate.set()
    assert third.result(5) == 7 and all(future.result(5) for future in held)
    with pytest.raises(ValueError, match="invalid literal"):
        fourth.result(5)


def test_the_end_waits_for_no_call(monkeypatch):
    monkeypatch.setattr(threads, "MOST", 1)
    pool, gate, begun = Threads(), threading.Event(), threading.Event()
    held, waiting = pool.submit(lambda: begun.set() or gate.wait(5)), pool.submit(int, "7")
    assert begun.wait(5)
    pool.shutdown(wait=True)
    assert not held.done() and waiting.cancelled()
    with pytest.raises(RuntimeError, match="after the shutdown"):
        pool.submit(int, "7")
    gate.set()
    assert held.result(5)
