"""experiments.grpo_async: eta 0 is experiments.grpo to the byte; what is counted does not depend on kills; replay."""

import contextlib
import threading
from unittest import mock

import pytest

from configs import grpo_async as async_config
from experiments import grpo, grpo_async
from experiments.bench import asynchronous
from experiments.parts import async_flow, async_groups, async_roles
from experiments.parts import run as run_part
from rl_jax.flow import Folder
from rl_jax.runs.logging import read_jsonl
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals, reward, sevens_and_even  # noqa: F401  a fixture

FILES = ("metrics.jsonl", "samples.jsonl", "final.json", "groups.jsonl")
ENGINE = dict(name="continuous", slots=6, url="", model="", timeout_s=1.0, sync=dict(fn=""))


def of(tmp_path, flow=None, **fields):
    """The smallest run: 2 groups of 3 rows a step, rows of 1 to 16 tokens, 2 tokens a decode call."""
    fields = (
        dict(
            train__steps=5,
            rollout__completion_length=16,
            sample__prompts_per_step=2,
            sample__group_size=3,
            reward__function=reward(sevens_and_even),
            rollout__engine=ENGINE,
            eval__every=3,
            checkpoint__every=2,
            algorithm__behavior_weight=dict(fn="masked", cap=5.0),
        )
        | fields
    )
    config = small.config(tmp_path, **fields)
    with config.unlocked():
        found = async_config.of(config.copy_and_resolve_references(), **dict(decode_steps=2) | (flow or {}))
    return found.lock()


def same_files(one, other):
    """Every file of both runs is equal, byte by byte."""
    names = [name for name in FILES if (one / name).exists()]
    assert set(names) >= {"metrics.jsonl", "final.json"}
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_eta_0_is_grpo_to_the_byte(tmp_path):
    fields = dict(train__steps=2, train__minibatches=2, eval__every=1, algorithm__behavior_weight=dict(fn="none"))
    config = of(tmp_path, dict(eta=0, age=0, decode_steps=0), **fields)
    grpo_async.run(config, tmp_path / "async")
    with config.unlocked():
        like = config.copy_and_resolve_references()
        like.program = "grpo"
        del like.flow
    grpo.run(like.lock(), tmp_path / "grpo")
    same_files(tmp_path / "grpo", tmp_path / "async")


@pytest.mark.usefixtures("kept_signals")
def test_a_run_without_a_reference_begins(tmp_path, monkeypatch):
    """algorithm.measure_kl=false: there is no reference to restore."""

    def begun(*_):
        raise Died

    monkeypatch.setattr(async_flow.Flow, "begun", begun)
    with pytest.raises(Died):
        grpo_async.run(of(tmp_path, algorithm__measure_kl=False), tmp_path / "run")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A whole run of eta 2 that was never stopped."""
    folder = tmp_path_factory.mktemp("undisturbed")
    grpo_async.run(of(folder), folder / "run")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path, undisturbed, monkeypatch):
    """Stopped after the third step: what was begun is neither lost nor sampled anew."""
    config = of(undisturbed)
    for count in (3, 100):
        monkeypatch.setattr(run_part.checkpoint, "StopSignal", small.StopAfter(count))
        grpo_async.run(config, tmp_path / "run")
    same_files(undisturbed / "run", tmp_path / "run")
    schedules = [read_jsonl(folder / "run" / async_flow.LOG) for folder in (undisturbed, tmp_path)]
    assert schedules[0] == schedules[1]


@pytest.mark.slow
def test_rows_are_of_several_versions_and_within_the_bound(undisturbed):
    rows = [row for row in read_jsonl(undisturbed / "run" / "metrics.jsonl") if row["step"]]
    assert max(row["lag/row_max"] for row in rows) in range(1, 9)
    assert max(row["lag/versions_per_row"] for row in rows) > 1
    for row in rows:
        shares = [value for name, value in row.items() if name.startswith("lag/tokens/")]
        assert len(shares) == 9 and sum(shares) == pytest.approx(1.0)
        assert row["sampler/gap/0"] < 1e-5 or row["lag/tokens/0"] == 0.0
    taken = [number for row in read_jsonl(undisturbed / "run" / async_flow.LOG) for number in row["groups"]]
    assert len(taken) == len(set(taken)) == 10


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_paced_run_keeps_its_lengths(tmp_path):
    """experiments.bench.asynchronous at the smallest size: batches, versions, ages and lengths, as they were drawn."""
    config, flow = of(tmp_path, train__steps=6, reward__function=""), {"eta": 2, "age": 8, "order": "ready"}
    work = dict(prompts=2, group_size=3, mean=5, longest=3.2, steps=6, seed=0, sigma=0.75, flow=flow)
    lengths, task = asynchronous.lengths_of(work), asynchronous.task_of(config, 0.0)
    asynchronous.run_role(config, task, "both", tmp_path / "run", lengths)
    found = asynchronous.figures(work, tmp_path / "run", ("both",), warm_up=2)
    schedule = read_jsonl(tmp_path / "run" / async_flow.LOG)
    taken = [number for row in schedule for number in row["groups"]]
    assert found["batches"] == 6 and found["version"] == 5 and len(set(taken)) == len(taken) == 12
    assert schedule[-1]["dropped"] == 0 and max(taken) < schedule[-1]["admitted"] <= 2 * (2 + 6)
    assert 0 < found["age"] <= 8 and found["late"] == 1.0  # without a pace, all is late
    assert found["tokens"] == pytest.approx(lengths[taken].mean())
    calls = len(asynchronous.paces_of(tmp_path / "run", ("both",))["decode"]["starts"])
    assert calls == schedule[-1]["end"]


class Died(RuntimeError):
    """What kills a side, between two of its messages."""


class Mortal:
    """A side of a link whose process dies at its `after`-th message."""

    def __init__(self, link, after):
        self._link, self._left = link, after

    def __getattr__(self, name):
        method = getattr(self._link, name)
        if name in ("close", "lost_s"):
            return method
        return lambda *args, **fields: self._count(name) or method(*args, **fields)

    def _count(self, name):
        self._left -= name in ("publish", "acknowledge", "put", "weights", "settle")
        if self._left < 0:
            raise Died


def sample_to_the_end(config, workdir, deaths):
    """A sampler that is started again whenever it dies."""
    while True:
        with contextlib.suppress(Died):
            link = Mortal(Folder(workdir / "link", role="sampler"), deaths.pop(0) if deaths else 10_000)
            return grpo_async.run_sampler(config, workdir, link)


def train_to_the_end(config, workdir, deaths, units=lambda: None):
    while not (workdir / "final.json").exists():
        with contextlib.suppress(Died), contextlib.closing(Folder(workdir / "link", role="trainer")) as folder:
            link = Mortal(folder, deaths.pop(0) if deaths else 10_000)
            grpo_async.run(config, workdir, link=link, units=units())


@contextlib.contextmanager
def sampling(config, workdir, deaths=()):
    """A sampler beside; at the end it must be done."""
    side = threading.Thread(target=sample_to_the_end, args=(config, workdir, deaths))
    side.start()
    try:
        yield
    finally:
        side.join(600)
    assert not side.is_alive()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_two_processes_that_die_are_one_to_the_byte(tmp_path, undisturbed):
    """Each side a thread here, over a folder; each dies between two messages and comes back from what it wrote."""
    config, of_trainer, of_sampler = of(undisturbed), [6], [2]
    with sampling(config, tmp_path / "run", of_sampler):
        train_to_the_end(config, tmp_path / "run", of_trainer)
    assert not of_trainer and not of_sampler, "each death was died"
    same_files(undisturbed / "run", tmp_path / "run")


@pytest.fixture
def slow_weights():
    """The weights of version 1 arrive after a decode call beside the training, however busy the machine is.

    What is replaced is traced by no program: not by monkeypatch, which would end the sharing of programs.
    """
    called, side = threading.Event(), async_roles.Sampler
    step, put, weights = async_groups.Groups.step, side.put, side.weights
    with contextlib.ExitStack() as stack:
        for where, name, fn in (
            (async_groups.Groups, "step", lambda *args: (step(*args), called.set())[0]),
            (side, "put", lambda *args: (put(*args), called.clear())[0]),
            (side, "weights", lambda self, v: weights(self, v) if v != 1 or called.wait(600) else None),
        ):
            stack.enter_context(mock.patch.object(where, name, fn))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "slow_weights")
def test_a_free_run_of_two_is_repeated_by_one(tmp_path):
    """Wall clocks decide how much is sampled beside a train step; by its log, one process gives the same bits."""
    config = of(tmp_path, dict(schedule="free"), train__steps=3)
    with sampling(config, tmp_path / "free"):
        train_to_the_end(config, tmp_path / "free", [])
    grpo_async.run(config, tmp_path / "again", replay=tmp_path / "free")
    same_files(tmp_path / "free", tmp_path / "again")
    rows = read_jsonl(tmp_path / "free" / "sampler" / async_flow.LOG)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["beside"], "rows are decoded while the next weights are on their way"
    assert read_jsonl(tmp_path / "again" / async_flow.LOG) == rows
