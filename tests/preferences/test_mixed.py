"""preferences/mixed.py: several sources as one, in even shares, and what is left out is held out."""

import json

import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.preferences import mixed, places

PARTS = {
    "sums": dict(name="generated", world="sums", num_prompts=60, test_share=0.3),
    "moods": dict(name="generated", world="moods", num_prompts=20, test_share=0.3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("mixed"))


def load(folder, **more):
    return preferences.load("mixed", **dict(parts=PARTS, data_dir=folder) | more)


def records(found, split):
    source = found.data_source(split)
    return [source[place] for place in range(len(source))]


def test_all_records_of_all_parts_once_and_each_with_its_parts_name(folder):
    for split in ("train", "test"):
        found = records(load(folder), split)
        for name, spec in PARTS.items():
            alone = records(preferences.load(**spec, data_dir=folder), split)
            mine = [record for record in found if record["info"]["file"] == name]
            assert [record["info"] for record in mine] == [r["info"] | {"file": name} for r in alone]
            assert [r["prompt"] for r in mine] == [r["prompt"] for r in alone] and len(alone) > 1


def test_the_first_part_of_a_split_has_each_parts_share():
    order = mixed.spread({"long": 30, "short": 10})
    assert sorted(order) == sorted([("long", i) for i in range(30)] + [("short", i) for i in range(10)])
    for count in (8, 20, 32):
        share = np.mean([name == "short" for name, _ in order[:count]])
        assert abs(share - 0.25) <= 1 / count
    assert [place for name, place in order if name == "short"] == list(range(10))


def test_a_part_that_is_left_out_is_tested_and_not_trained_on(folder):
    found = load(folder, leave_out="moods")
    assert {record["info"]["file"] for record in records(found, "train")} == {"sums"}
    assert records(found, "test") == records(load(folder), "test")
    assert "'sums': " in repr(found.data_source("train")) and found.data_source("train").num_skipped == 0


def test_a_record_of_a_file_keeps_its_place(tmp_path):
    """Red before: a message named "record 3" of the mixture, whose file nobody knew."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(dict(prompt=f"{i}", chosen="a", rejected="b")) + "\n" for i in range(9)))
    parts = {"a": dict(name="jsonl", path=str(path), test_share=0.0)}
    found = preferences.load("mixed", parts=parts, data_dir=str(tmp_path)).data_source("train")
    assert places.place_of(found, 3) == f"{path}, line {int(found[3]['prompt']) + 1}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (dict(parts={}), "each with the name of a dataset"),
        (dict(parts={"sums": dict(world="sums")}), "each with the name of a dataset"),
        (dict(leave_out="sums,mood"), "leave_out='sums,mood' must name some of sums, moods, and not all"),
        (dict(leave_out="sums,moods"), "and not all"),
        (dict(parts=PARTS | {"one": PARTS["sums"] | dict(kind="labels")}), "different kinds"),
        (dict(parts={"x": dict(name="sums")}), "unknown preferences 'sums'; the names are .*mixed"),
    ],
)
def test_parts_that_do_not_fit(folder, more, said):
    with pytest.raises(ValueError, match=said):
        load(folder, **more)
