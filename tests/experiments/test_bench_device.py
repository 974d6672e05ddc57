"""experiments.bench.device at toy size: points go to the file one by one, are not repeated, and an error is a line."""

import json
import types

import pytest

from experiments.bench import device

pytestmark = pytest.mark.usefixtures("few_objects")


def lines(file) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_one_point_at_toy_size(tmp_path, capsys):
    file = tmp_path / "device.jsonl"
    todo = [point for point in device.points(("toy",), ("dot_product",), ("full",)) if point.key["point"] == "train"]
    rates = device.device_rates(64, 1)
    (found,) = device.measure(file, iter(todo), rates, 1e9)
    assert lines(file)[0]["step_s"] > 0 and found["compiler_bytes"] > 0 and "mfu" not in found
    assert found["share_of_matmul"] == pytest.approx(found["flops_per_s"] / rates["matmul_flops_per_s"])
    assert found["tokens_per_s"] == pytest.approx(2 * 16 / found["step_s"])
    assert device.measure(file, iter(todo), rates, 1e9) == [], "the file has it"


def point(number, measure):
    return device.Point({"point": "decode", "model": "toy", "rows": number}, measure)


def fails(rates):
    raise RuntimeError("RESOURCE_EXHAUSTED:\n  out of memory")


def test_an_error_is_a_line_and_the_next_point_follows(tmp_path, capsys):
    file = tmp_path / "device.jsonl"
    device.measure(file, iter([point(1, fails), point(2, lambda rates: {"step_s": 1 / 3})]), {}, 1e9)
    assert [row.get("error") or row["step_s"] for row in lines(file)] == [
        "RuntimeError: RESOURCE_EXHAUSTED: out of memory",
        0.33333,
    ]


@pytest.mark.parametrize("given", ["--models=2b", "--attention=dot_product,flash", "--remat=full,some"])
def test_a_name_that_it_does_not_know_is_refused_before_it_measures(tmp_path, capsys, monkeypatch, given):
    for name in ("device_rates", "measure"):
        monkeypatch.setattr(device, name, lambda *_: {})
    with pytest.raises(SystemExit):
        device.main([f"--to={tmp_path / 'device.jsonl'}", given])
    assert f"{given}: {given.replace('=', ',').split(',')[-1]} is none of " in capsys.readouterr().err
    assert not (tmp_path / "device.jsonl").exists()


def test_half_a_line_of_a_killed_run_is_measured_again(tmp_path, capsys):
    file = tmp_path / "device.jsonl"
    file.write_text('{"point": "decode", "model": "toy", "rows": 1, "step_s": 2.0}\n{"point": "decode", "mod')
    made = device.measure(file, iter([point(1, fails), point(2, lambda rates: {"step_s": 1.0})]), {}, 1e9)
    assert [row["rows"] for row in made] == [2]
    assert json.loads(file.read_text().splitlines()[-1])["rows"] == 2


def test_another_device_measures_its_own_points(tmp_path, capsys, monkeypatch):
    """Also beside points that were written without a device, which are of the head before them."""
    file = tmp_path / "device.jsonl"
    head, first = {"point": "device", "kind": "old"}, {"point": "decode", "model": "toy", "rows": 1, "step_s": 2.0}
    file.write_text(f"{json.dumps(head)}\n{json.dumps(first)}\n")
    made = {}
    for kind in ("old", "new", "old", "new"):
        monkeypatch.setattr(device.jax, "devices", lambda kind=kind: [types.SimpleNamespace(device_kind=kind)])
        todo = [point(n, lambda rates: {"step_s": 1.0}) for n in (1, 2)]
        found = device.measure(file, iter(todo), {}, 1e9)
        made.setdefault(kind, []).append([(row["device"], row["rows"]) for row in found])
    assert made == {"old": [[("old", 2)], []], "new": [[("new", 1), ("new", 2)], []]}


def test_after_the_time_no_point_begins(tmp_path, capsys):
    assert device.measure(tmp_path / "x", iter([point(1, fails)]), {}, -1.0) == []
    assert "the same command goes on" in capsys.readouterr().out


def test_the_points_are_the_grid():
    keys = [point.key for point in device.points(("1b", "8b"), ("dot_product",), device.REMATS)]
    assert len(keys) == 2 * (3 * 2 + 1 + 5)
    assert len({json.dumps(key, sort_keys=True) for key in keys}) == len(keys)
    whole = device.SHAPES["1b"].model
    assert 1.2e9 < device.meter.body_weights(whole) + whole.embed_dim * whole.vocab_size < 1.3e9
