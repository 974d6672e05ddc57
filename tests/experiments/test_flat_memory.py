"""experiments.tools.flat_memory: the counts of loops do not grow, exactly; what grows is said."""

import json
import threading
import types

import jax
import jax.numpy as jnp
import pytest

from configs import common
from experiments.parts import run as run_part
from experiments.parts.check_config import check
from experiments.tools import flat_memory
from experiments.tools.flat_memory import Reading, problems
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.mark.parametrize("program", flat_memory.PROGRAMS)
def test_every_loop_has_a_small_config(tmp_path, program):
    config = flat_memory.tiny(program, tmp_path, 20)
    check(config)
    assert config.checkpoint.every == 5 and common.DATA not in str(config)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_the_counts_of_a_loop_do_not_grow(tmp_path):
    """After the first steps each step leaves behind what it found; memory and time are not looked at here."""
    readings = flat_memory.watch("grpo", tmp_path, 9, every=1, workers=0, saves=1)
    assert [reading.step for reading in readings] == list(range(1, 9)) and readings[0].programs > 0
    assert problems(readings, tolerance=float("inf")) == []
    late = flat_memory.second_half(readings)
    assert [len({getattr(reading, name) for reading in late}) for name in ("programs", "arrays")] == [1, 1], late


def test_what_grows_is_said():
    flat = [Reading(step, 100.0, 10, 20, 30, 40) for step in range(10, 101, 10)]
    assert problems(flat, 4.0) == []
    early = [reading._replace(programs=reading.step) if reading.step <= 50 else reading for reading in flat]
    assert problems(early, 4.0) == [], "the first half is not judged"
    for name in flat_memory.COUNTS:
        grown = [reading._replace(**{name: 41}) if reading.step >= 80 else reading for reading in flat]
        assert problems(grown, 4.0) == [f"{name} grow from {getattr(flat[0], name)} to 41 (from step 80 on)"]
        passing = [reading._replace(**{name: 41}) if reading.step in (70, 90) else reading for reading in flat]
        assert problems(passing, 4.0) == [], "what comes and goes does not grow"
    for rate, said in ((3.9, []), (4.1, ["the memory grows by 4.1 MiB per 1,000 steps, over 4"])):
        assert problems([r._replace(rss_mib=50 + rate * r.step / 1000) for r in flat], 4.0) == said


class Loop:
    """As much of a Run as a Step needs."""

    total, _checkpoints = 100, types.SimpleNamespace(due=lambda step: step == 7)

    def _end(self, *args):
        pass


def test_a_watch_counts_what_a_step_leaves_behind(tmp_path):
    kept, stop = [], threading.Event()
    with flat_memory.Watch(every=2) as watch:
        for number in range(1, 7):
            if number > 4:
                kept += [open(tmp_path / "file", "w"), threading.Thread(target=stop.wait)]
                kept[-1].start()
                kept.append(jax.jit(lambda x, n=number: jnp.exp(x + n))(jnp.zeros(number)))
            run_part.Step(Loop(), number, evaluates=False).end({}, {}, {})
    stop.set()
    for thing in kept:
        thing.close() if hasattr(thing, "close") else thing.join() if hasattr(thing, "join") else None
    assert [reading.step for reading in watch.readings] == [2, 4, 6]
    before, after = watch.readings[1:]
    assert after.descriptors - before.descriptors == 2
    assert after.threads - before.threads >= 2, "jax may start some of its own at its first compilation"
    assert after.programs - before.programs >= 2 and after.arrays > before.arrays
    said = problems([before, before, after, after], float("inf"))
    assert [line.split()[0] for line in said] == list(flat_memory.COUNTS)
    run_part.Step(Loop(), 8, evaluates=False).end({}, {}, {})
    assert len(watch.readings) == 3, "outside of `with` nothing is read"


def test_the_command_prints_a_table_and_its_verdict(capsys, monkeypatch):
    readings = [Reading(step, 100.0, 10, 20, 30, 40) for step in range(1, 41)]
    monkeypatch.setattr(flat_memory, "watch", lambda *args, **kwargs: readings)
    assert flat_memory.main(["dpo", "--steps=50"]) == 0
    *printed, last = capsys.readouterr().out.strip().splitlines()
    assert json.loads(last)["problems"] == [] and "| 40 | 100.0 | 10 | 20 | 30 | 40 |" in printed
    assert "dpo, up to step 40 of 50: flat" in printed
    readings[30:] = [reading._replace(threads=21) for reading in readings[30:]]
    assert flat_memory.main(["dpo", "--steps=50"]) == 1
    assert "threads grow from 20 to 21 (from step 31 on)" in capsys.readouterr().out
