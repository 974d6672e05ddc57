"""parts/control_record.py: a folder of recorded transitions is one run's."""

import json

import jax
import jax.numpy as jnp
import pytest

from configs.control import environments
from experiments.parts import control_loop, control_record, origin
from rl_jax.control.transitions import Transitions
from rl_jax.data import transitions


@pytest.fixture(autouse=True)
def played(monkeypatch):
    """Without environments: 2 rows of 3 steps."""
    shape = (2, 3)
    seen, never = jnp.zeros((*shape, 1)), jnp.zeros(shape, bool)
    rows = Transitions(seen, jnp.zeros(shape, int), jnp.zeros(shape), seen, never, never)
    monkeypatch.setattr(control_record, "make_gather", lambda config: lambda state: jax.device_get(rows))
    monkeypatch.setattr(control_loop, "make_recorder", lambda config: lambda state, step: [])


def tiny(folder, **fields):
    config = environments.get_config("matching,smoke")
    with config.unlocked():
        config.record.path = str(folder)
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


def test_a_folder_with_the_recordings_of_another_run_is_refused(tmp_path):
    folder = tmp_path / "data"
    control_record.make_recorder(tiny(folder, seed=4))  # which wrote nothing: the next one may have the folder
    recorded = control_record.make_recorder(tiny(folder))
    recorded(None, 0), recorded(None, 8)
    with pytest.raises(origin.ChangedError, match="seed: 0 -> 1") as error:
        control_record.make_recorder(tiny(folder, seed=1))
    assert str(error.value).splitlines()[-1] == "Give the old ones back, or give a new --config.record.path"
    assert str(folder) in str(error.value)
    again = control_record.make_recorder(tiny(folder, name="b", checkpoint__every=8))  # resumed, or elsewhere: its own
    again(None, 8)
    assert sorted(path.name for path in folder.iterdir()) == [
        "settings.json",
        "step_00000000.npz",
        "step_00000008.npz",
    ]
    assert len(transitions.read(folder).rewards) == 2 * 6
    assert "record.path" not in json.loads((folder / "settings.json").read_text())["settings"]["record"]


def test_a_longer_run_goes_on_unless_its_length_shapes_it(tmp_path):
    """A learning rate that decays to the end, as by default, is another one in a longer run."""
    more = 2 * tiny("").train.total_steps
    constant = dict(train__optimizer__final_fraction=1.0)
    control_record.make_recorder(tiny(tmp_path / "a", **constant))(None, 0)
    control_record.make_recorder(tiny(tmp_path / "a", train__total_steps=more, **constant))
    control_record.make_recorder(tiny(tmp_path / "b"))(None, 0)
    with pytest.raises(origin.ChangedError, match="train.total_steps"):
        control_record.make_recorder(tiny(tmp_path / "b", train__total_steps=more))


def test_recordings_whose_run_is_not_known_are_refused(tmp_path):
    control_record.make_recorder(tiny(tmp_path / "a"))(None, 0)
    (tmp_path / "a" / "settings.json").unlink()
    with pytest.raises(origin.ChangedError, match="no settings were kept.*give a new --config.record.path"):
        control_record.make_recorder(tiny(tmp_path / "a"))


def test_processes_besides_the_first_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(control_record.distributed, "is_main", lambda: False)
    control_record.make_recorder(tiny(tmp_path / "a"))(None, 0)
    assert not (tmp_path / "a").exists()
