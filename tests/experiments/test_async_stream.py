"""flow.streaming: a step whose parts are trained as they come is the step on the whole batch, on one process or three.

flow.columns: rows that are judged and scored as they end are those of a run without it. The runs have two samplers
under one clock (async_clock): in one process, or each in its own.
"""

import contextlib
import threading

import jax
import numpy as np
import pytest

from experiments import grpo_async
from experiments.parts import async_check, async_flow
from experiments.parts import run as run_part
from experiments.parts.setup import load_params, make_setup
from rl_jax.flow import payload
from rl_jax.flow.storage import StorageUnit
from rl_jax.flow.units import Units
from rl_jax.runs.logging import read_jsonl
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.experiments.test_async_shares import sample
from tests.experiments.test_grpo_async import of, train_to_the_end
from tests.flow.test_flight import TOKEN, quiet_port

FIELDS = dict(sample__prompts_per_step=4, train__micro_batches=2, train__steps=3, eval__every=3, seed=1)


def streamed(folder, flow=None, **fields):
    """The smallest run, of 4 groups in 2 parts, and of 2 samplers."""
    return of(folder, dict(streaming=True, samplers=2) | (flow or {}), **FIELDS | fields)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A whole run of one process."""
    folder = tmp_path_factory.mktemp("streamed")
    grpo_async.run(streamed(folder), folder / "run")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_parts_are_the_whole_batch(tmp_path, undisturbed):
    """Sums of the same terms in another order: equal up to rounding, and the same groups in every batch."""
    config = streamed(undisturbed, dict(streaming=False))
    grpo_async.run(config, tmp_path / "whole")
    folders = (undisturbed / "run", tmp_path / "whole")
    ours, theirs = ([row["groups"] for row in read_jsonl(folder / async_flow.LOG)] for folder in folders)
    assert [sorted(row) for row in ours] == theirs and ours != theirs, "a group that ends first is trained first"
    for one, other in zip(*(read_jsonl(folder / "metrics.jsonl") for folder in folders), strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == pytest.approx(other[name], rel=2e-3, abs=2e-5), name
    setup = make_setup(config)
    for one, other in zip(*(jax.tree.leaves(load_params(setup, folder)) for folder in folders), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def assert_the_files_of_one_process(config, folder, undisturbed, of_trainer, of_samplers, units=(lambda: None,) * 2):
    """A trainer and two samplers that die after so many messages end with the files of an undisturbed run.

    units: of the trainer and of a sampler, for each of their lives.
    """
    sides = [threading.Thread(target=sample, args=(config, folder, i, of_samplers[i], units[1])) for i in range(2)]
    for side in sides:
        side.start()
    try:
        train_to_the_end(config, folder, of_trainer, units[0])
    finally:
        for side in sides:
            side.join(600)
    assert of_samplers == [[], []] and of_trainer == [] and not any(side.is_alive() for side in sides)
    for name in ("samples.jsonl", "final.json", "group_view.jsonl"):
        assert (undisturbed / "run" / name).read_bytes() == (folder / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_two_samplers_and_a_trainer_that_die_inside_a_batch_are_one_process(tmp_path, undisturbed):
    config, of_trainer, of_samplers = streamed(undisturbed), [4], [[], [4]]  # messages until death: in the second batch
    assert_the_files_of_one_process(config, tmp_path, undisturbed, of_trainer, of_samplers)
    one, three = (read_jsonl(folder / "metrics.jsonl") for folder in (undisturbed / "run", tmp_path))
    # A sampler counts its own rows only.
    assert [{k: v for k, v in row.items() if not k.startswith("flow/")} for row in one] == three


def without(rows, prefix):
    """The rows of metrics.jsonl, less the metrics with this prefix."""
    return [{name: value for name, value in row.items() if not name.startswith(prefix)} for row in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_rows_that_move_by_their_columns_are_the_same_run(tmp_path, undisturbed, monkeypatch):
    """AsyncFlow's queue changes when a row is judged and scored, and no bit; also if it is stopped."""
    grpo_async.run(streamed(undisturbed, dict(columns=True)), tmp_path / "whole")
    for count in (2, 100):
        monkeypatch.setattr(run_part.checkpoint, "StopSignal", small.StopAfter(count))
        grpo_async.run(streamed(undisturbed, dict(columns=True)), tmp_path / "stopped")
    one, whole, stopped = (undisturbed / "run", tmp_path / "whole", tmp_path / "stopped")
    for name in ("samples.jsonl", "final.json", "group_view.jsonl", async_flow.LOG):
        assert (one / name).read_bytes() == (whole / name).read_bytes() == (stopped / name).read_bytes(), name
    assert (whole / "metrics.jsonl").read_bytes() == (stopped / "metrics.jsonl").read_bytes()
    rows = read_jsonl(whole / "metrics.jsonl")
    assert without(rows, "flow/rows/") == read_jsonl(one / "metrics.jsonl")
    rows = [row for row in rows if row["step"]]
    assert [row["flow/rows/train_taken"] for row in rows] == [12, 24, 36]
    for row in rows:
        ahead = {task: row[f"flow/rows/{task}_taken"] - row["flow/rows/train_taken"] for task in ("judge", "reference")}
        assert ahead["judge"] == ahead["reference"] + row["flow/rows/reference_waiting"]
        assert ahead["judge"] >= 3 * row["flow/finished"] and row["flow/rows/judge_waiting"] == 0
        assert row["flow/rows/reference_waiting"] < 6, "a micro-batch that is full does not wait"
    early = [row["flow/rows/judge_taken"] - row["flow/rows/train_taken"] - 3 * row["flow/finished"] for row in rows]
    assert max(early) > 0, "rows are judged before their group has ended"
    assert rows[0]["flow/rows/reference_taken"] > 12, "rows of later batches are scored by the reference"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_columns_wait_for_what_they_need(tmp_path):
    """A term that sees groups has whole groups; a reference that moves scores the rows of its own step."""
    terms = dict(sevens=dict(fn="task", weight=1.0), short=dict(fn="groups.relative_length", weight=0.5))
    moves = dict(algorithm__reference_schedule=dict(fn="moving_average", rate=0.5), reward__terms=terms)
    for columns in (False, True):
        config = streamed(tmp_path, dict(columns=columns, order="drop", eta=1, train_ticks=3), train__steps=2, **moves)
        grpo_async.run(config, tmp_path / str(columns))
    for name in ("samples.jsonl", "final.json", "group_view.jsonl", async_flow.LOG):
        assert (tmp_path / "False" / name).read_bytes() == (tmp_path / "True" / name).read_bytes(), name
    one, other = (read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("False", "True"))
    assert one == without(other, "flow/rows/")
    taken = [{task: row[f"flow/rows/{task}_taken"] for task in ("judge", "reference", "train")} for row in other[1:]]
    assert [row["reference"] for row in taken] == [row["train"] for row in taken] == [12, 24]
    assert all(row["judge"] % 3 == 0 for row in taken)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_trainer_with_columns_that_dies_is_one_process(tmp_path, undisturbed):
    """Two samplers and a trainer, who dies within a batch: the rows of its queue are those that wait in its link."""
    config = streamed(undisturbed, dict(columns=True))
    assert_the_files_of_one_process(config, tmp_path, undisturbed, [4], [[], []])
    one, three = (read_jsonl(folder / "metrics.jsonl") for folder in (undisturbed / "run", tmp_path))
    assert without(one, "flow/") == without(three, "flow/")


class Servers:
    """Two storage units. The second one is away, and comes back with its folder, whenever a trainer begins again."""

    def __init__(self, folder):
        self._folder, self._ports, self.lives = folder, [quiet_port(), quiet_port()], 0
        self.units = [self._start(index) for index in range(2)]

    def _start(self, index):
        return StorageUnit(self._folder / str(index), index=index, count=2, token=TOKEN, port=self._ports[index])

    def client(self):
        return Units([f"grpc://127.0.0.1:{port}" for port in self._ports], token=TOKEN)

    def of_trainer(self):
        self.lives += 1
        if self.lives > 1:
            self.units[1].close()
            self.units[1] = self._start(1)
        return self.client()

    def close(self):
        for unit in self.units:
            unit.close()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_rows_that_move_through_storage_units_are_one_process(tmp_path, undisturbed):
    """A trainer, two samplers and two units, over the network; a trainer, a sampler and a unit die and come back."""
    config, of_trainer, of_samplers = streamed(undisturbed, dict(columns=True)), [4], [[], [4]]
    with contextlib.closing(Servers(tmp_path / "units")) as servers:
        lives = (servers.of_trainer, servers.client)
        assert_the_files_of_one_process(config, tmp_path / "run", undisturbed, of_trainer, of_samplers, lives)
        assert servers.lives == 2 and all(unit.ended(60.0) for unit in servers.units)
        shelves = [unit._shelf for unit in servers.units]
    one, all_sides = (read_jsonl(folder / "metrics.jsonl") for folder in (undisturbed / "run", tmp_path / "run"))
    assert without(one, "flow/") == without(all_sides, "flow/")
    groups = list((tmp_path / "run" / "link" / "groups").glob("*.arrow"))
    assert groups and not any(payload.from_bytes(path.read_bytes(), path).table.num_rows for path in groups)
    there = {number for shelf in shelves for number in shelf._where}
    steps = read_jsonl(tmp_path / "run" / "sampler_0" / async_flow.LOG)
    trained = {3 * group + row for step in steps for group in step["groups"] for row in range(3)}
    gone = {2 * own + i for i, shelf in enumerate(shelves) for own in (*range(shelf._gone.below), *shelf._gone.others)}
    assert trained <= there | gone and gone and gone <= trained, "all rows were in units; old ones are forgotten"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(train__micro_batches=3), "train.micro_batches=3: it is the number of parts, .*prompts_per_step=4"),
        (dict(train__micro_batches=1), "train.micro_batches=1: it is the number of parts"),
        (dict(rollout__prompt_buckets=(4, 8)), "rollout.prompt_buckets=.* keep the largest"),
        (dict(score__micro_batches=2), "score.micro_batches=2: each part is scored by itself"),
        (dict(train__minibatches=2), "train.epochs=1, train.minibatches=2: it sees the whole batch"),
        pytest.param(
            dict(algorithm__advantage=dict(fn="batch_centered")),
            "algorithm.advantage='batch_centered': .* or set flow.streaming=False",
            marks=pytest.mark.slow,
        ),
        (dict(sample__prompts__fn="thompson"), "sample.prompts='thompson': it learns from whole batches"),
    ],
)
def test_what_couples_a_batch_is_refused_by_name(tmp_path, monkeypatch, fields, words):
    if "batch_centered" not in words:  # tried on arrays, which takes a second
        monkeypatch.setattr("experiments.parts.streaming.couplings", lambda config: [])
    with pytest.raises(ValueError, match=f"flow.streaming=True trains groups as they come: {words}"):
        async_check.checked(streamed(tmp_path, dict(samplers=1), **fields))
    async_check.checked(streamed(tmp_path, dict(samplers=1, streaming=False), **fields))
