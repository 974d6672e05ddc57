"""A whole run and the two halves of another, of the same config, by one program.

Three runs in this process would trace, lower and compile the same program three times, which is nearly all that they
cost.
"""

import pytest

from experiments.control import ppo as control_ppo
from experiments.control import replay as control_replay
from experiments.parts import control_loop


def once(make):
    """`make`(config, ...), called once for each config and further arguments."""
    made = {}

    def known(config, *more):
        key = (make, repr(config.to_dict()), *more)
        if key not in made:
            made[key] = make(config, *more)
            return made[key]
        found = made[key]  # a Program that is compiled, or a recorder
        return found._replace(compile=lambda ahead, state: None) if hasattr(found, "compile") else found

    return known


@pytest.fixture
def one_program(monkeypatch):
    """Within a test, runs of experiments.parts.control_loop with equal configs have one Program and one recorder."""
    train, recorders = control_loop.train, {}

    def shared(config, workdir, make_run=control_loop.make_run, record=control_loop.make_recorder):
        train(config, workdir, make_run, recorders.setdefault(record, once(record)))

    monkeypatch.setattr(control_loop, "make_program", once(control_loop.make_program))
    for place in (control_loop, control_ppo, control_replay):
        monkeypatch.setattr(place, "train", shared)
