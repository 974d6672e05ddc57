"""experiments/bench/scale.py: figures of one device that are what arithmetic says."""

import json

import pytest

from experiments.bench import scale

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures():
    """Of one device and of two, 4 rows each."""
    return [scale.measure(count, "fsdp", rows=4) for count in (1, 2)]


def test_a_device_s_work_stays_and_its_parameters_halve(figures):
    one, two = figures
    assert (one["rows"], two["rows"]) == (4, 8)
    assert two["gflops"] == pytest.approx(one["gflops"])
    assert two["arguments_mib"] == pytest.approx(one["arguments_mib"] / 2, rel=0.01)
    assert two["peak_mib"] < one["peak_mib"]


def test_only_several_devices_send(figures):
    """Two gather a half of the parameters at least once, and add up a half of their gradients."""
    one, two = figures
    assert one["sent"] == {} and one["collectives"] == 0
    assert set(two["sent"]) == {"fsdp"} and two["collectives"] > 0
    parameters = one["arguments_mib"] / 3  # and two moments
    assert 2 * parameters / 2 < two["sent_mib"] < 6 * parameters / 2


def test_table_and_lines(figures):
    header, *rows = scale.table(figures).splitlines()
    assert header.split() == list(scale.COLUMNS)
    assert [row.split()[0] for row in rows] == ["fsdp:1", "fsdp:2"] and rows[0].split()[1] == "4"
    assert json.loads(json.dumps(figures)) == figures
