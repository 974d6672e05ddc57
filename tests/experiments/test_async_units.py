"""--units: what trainer and sampler do with rows in storage units, and what is refused. The run: test_async_stream."""

import threading
import types

import numpy as np
import pytest

from configs import grpo_async as async_config
from experiments import grpo_async
from experiments.parts import async_check, async_serving, async_units
from experiments.parts.async_collect import by_tokens, ranks_of
from experiments.parts.async_flow import Flow
from experiments.parts.async_groups import GroupRows
from experiments.parts.async_roles import Sampler, Trainer, pack
from experiments.parts.async_serving import serve
from experiments.parts.async_units import IN_UNITS, UnitFlow, UnitSampler, UnitTrainer, completion_of, shared_with
from rl_jax.experience.admission import Counters
from rl_jax.flow import Folder
from rl_jax.flow.columns import Row
from rl_jax.flow.shelf import Shelf
from rl_jax.flow.units import News, Units
from rl_jax.rollout.lm.requests import Completion, Request
from tests.experiments.test_async_roles import Link, Stop
from tests.flow.test_flight import quiet_port

SIZE = 2


class Here:
    """What Units is over the network, over two shelves in this process."""

    def __init__(self, folder):
        self.shelves, self.known, self.ended = [Shelf(folder / str(i), index=i, count=2) for i in range(2)], set(), []
        self.seen, self.away = [("", 0)] * 2, False

    def __len__(self):
        return 2

    def put(self, rows):
        for number, values in rows.items():
            assert self.shelves[number % 2].put({number: values})

    def get(self, numbers, columns):
        return [self.shelves[number % 2].get([number], columns)[number] for number in numbers]

    def forget(self, numbers, waits=True):
        assert not (self.away and waits), "this one would wait"
        for number in () if self.away else numbers:
            self.shelves[number % 2].forget([number])
        return not self.away

    def news(self):
        there, gone = {}, []
        for index, shelf in enumerate(self.shelves):
            found = shelf.news(*self.seen[index])
            self.seen[index] = found["session"], found["last"]
            there |= dict(found["there"])
            gone += found["gone"]
        return News(there, gone)

    def end(self, timeout_s, complete):
        self.ended.append(complete)

    def close(self):
        pass


def row_of(number, length=3):
    """A row that has ended; its values tell which it is."""
    tokens = np.arange(length, dtype=np.int32) + 10 * number
    drawn = np.full(length, -number, np.float32)
    return Completion(Request(0, np.int32([7, number]), length), tokens, drawn, drawn - 1, "eos", tokens % 3)


def group_of(number, rows=(0, 1), lengths=(3, 3)):
    group = GroupRows(number, {"id": f"g{number}"}, SIZE)
    for sample in rows:
        group.rows[sample] = row_of(number * SIZE + sample, lengths[sample])
    return group


def config_of(**flow):
    config = async_config.get_config("smoke")
    config.flow.update(dict(streaming=True, columns=True, timeout_s=5.0) | flow)
    config.sample.update(group_size=SIZE, prompts_per_step=2)
    config.train.update(micro_batches=2, minibatches=1, steps=2)
    return config


class Groups:
    """The groups inside, and those to be thrown away."""

    def __init__(self):
        self.groups, self.old = [], []


@pytest.fixture
def units(tmp_path):
    found = Here(tmp_path / "units")
    yield found
    for shelf in found.shelves:
        shelf.close()


@pytest.fixture
def flow(units, monkeypatch):
    """A sampler's, whose engine is played by the test."""

    def inside(self):
        self._groups.groups = [group for group in self._groups.groups if group.number not in self._groups.old]
        return list(self._groups.groups)

    monkeypatch.setattr(Flow, "__init__", lambda self, setup: None)
    monkeypatch.setattr(Flow, "_step", lambda self: None)
    monkeypatch.setattr(Flow, "beside", lambda self, train: self._step())
    monkeypatch.setattr(Flow, "_inside", inside)
    found = UnitFlow(units, types.SimpleNamespace(config=config_of()))
    found._groups, found.counters = Groups(), Counters()
    return found


def trainer_of(units, tmp_path, link, **flow):
    return UnitTrainer(units, types.SimpleNamespace(config=config_of(**flow)), None, link, tmp_path)


def in_link(units, number, place, **changes):
    """A group as a sampler puts it: without its rows."""
    said = {"step": 1, "metrics": {}, "config": shared_with(units, config_of(**changes))}
    return pack(GroupRows(number, {"id": f"g{number}"}, 0), place, said)


def test_a_row_is_in_a_unit_when_it_has_ended_once(flow, units):
    flow._groups.groups = [group_of(3, rows=[1]), group_of(4, rows=[])]
    flow._step(), flow._step()
    assert units.news() == ({7: list(IN_UNITS)}, [])
    (found,) = units.get([7], IN_UNITS)
    row = completion_of(1, Row(7, found))
    for name, value in row_of(7)._asdict().items():
        if name != "request":
            np.testing.assert_array_equal(getattr(row, name), value)
    assert row.request.prompt.tolist() == [7, 7] and row.request.prompt.dtype == np.int32 and row.request.index == 1
    units.put = None  # it is not put again
    flow._step()


def test_rows_of_a_group_that_is_thrown_away_are_forgotten(flow, units):
    flow._groups.groups = [group_of(3, rows=[1]), group_of(4, rows=[0])]
    flow._step()
    assert set(units.news().there) == {7, 8}
    flow._groups.old = [3]
    flow._inside()
    assert units.news() == ({}, [6, 7]), "also the row that never ended"
    flow._groups.groups = [group_of(3)]
    flow._step()
    assert units.news().there == {}, "a sampler that comes back makes them again, and throws them away again"


def test_rows_beside_the_last_step_stay(flow, units):
    flow._groups.groups, flow.counters = [group_of(5)], Counters(version=1)
    flow.beside(None)
    assert units.news().there == {}
    flow.counters = Counters(version=0)
    flow.beside(None)
    assert set(units.news().there) == {10, 11}


def test_a_group_is_put_after_its_rows(units, flow, tmp_path, monkeypatch):
    """Also rows that had ended before this process began."""
    side = UnitSampler(units, types.SimpleNamespace(config=config_of()), Link(), tmp_path / "own")
    put, groups = [], [group_of(0)]
    monkeypatch.setattr(Sampler, "put", lambda self, flow, groups: put.append(dict(units.news().there)))
    side.put(flow, groups)
    assert set(put[0]) == {0, 1}
    assert side._packed(groups[0], 0, {}).table.num_rows == 0 and side._shared["--units"] == 2
    side.close()


def test_a_trainer_hears_of_rows_and_reads_columns(units, tmp_path):
    """Judged before the group has ended; the batch has the sampler's rows; forgotten when no checkpoint needs them."""
    link, told = Link(), []
    side = trainer_of(units, tmp_path, link)
    with side.telling(lambda: told.append(side.queue.numbers())):
        units.put({0: async_units.columns_of(group_of(0), row_of(0))})
        assert side._look(0, 1) == [] and side._look(0, 1) == [] and told == [[0]]
        (row,) = side.queue.take("judge", 8, at_least=1)
        assert row.values["record"] == '{"id": "g0"}' and row.values["response"].tolist() == [0, 1, 2]
        side.queue.put("judge", {0: {"reward": 1.0, "judgement": "{}"}})
        assert [group.number for group in side.groups()] == [0] and side.groups()[0].rows == [None] * SIZE
        units.put({1: async_units.columns_of(group_of(0), row_of(1))})
        link.groups = [in_link(units, 0, 0)]
        (group,) = side._take(0, 1)
    assert told[-1] == [0, 1] and group.record == {"id": "g0"}
    for sample, row in enumerate(group.rows):
        for name in ("tokens", "sampled_log_probs", "raw_log_probs", "versions"):
            np.testing.assert_array_equal(getattr(row, name), getattr(row_of(sample), name))
    side.queue.put("admission", {n: {"version": 0} for n in (0, 1)})
    side.queue.put("judge", {1: {"reward": 2.0, "judgement": "{}"}})
    assert [row.values["reward"] for row in side.queue.take("train", 2, group=SIZE)] == [1.0, 2.0]
    side.queue.forget([0, 1])
    side._link = types.SimpleNamespace(settle=lambda step: None)
    state = side.get_state()
    assert state["kept"] == [(1, [0])] and units.get([0], ["ended"]), "the checkpoint of step 1 is not there yet"
    again = trainer_of(units, tmp_path, Link())
    again.set_state(state)
    units.seen = [("", 0)] * 2  # another process
    again._poll()
    assert again.queue.numbers() == [], "a row that was trained on does not come again"
    (tmp_path / "1").mkdir()
    again._link, units.away = side._link, True
    assert again.get_state()["kept"] == [(1, [0])], "a save does not wait for a unit: it is asked again with the next"
    units.away = False
    assert again.get_state()["kept"] == [] and units.news().gone == [0, 1]


def test_units_know_a_trainer_from_its_begin_on(units, tmp_path, monkeypatch):
    """It compiles before it asks for a row, and a unit that is told to stop meanwhile waits for it."""
    monkeypatch.setattr(Trainer, "begun", lambda *_: None)
    side, asked = trainer_of(units, tmp_path, Link()), []
    monkeypatch.setattr(units, "news", lambda: asked.append(None) or News({}, []))
    assert side.begun(0, {}) is side and len(asked) == 1
    side.begun(2, {})
    assert len(asked) == 1, "the units of a run that is complete need not be there"


@pytest.mark.parametrize(("keep", "since"), [(2, 5000), (1, 5100), (9, 100), (None, 100)])
def test_checkpoints_that_are_kept_for_good_need_no_rows(units, tmp_path, keep, since):
    """checkpoint.keep_every and keep_best: of a run with them, the oldest would stay for ever, and every row."""
    for step in (100, 4900, 5000, 5100):
        (tmp_path / str(step)).mkdir()
    (tmp_path / "5200.orbax-checkpoint-tmp").mkdir()
    config, settled, steps = config_of(), [], (1, 100, 101, 5000, 5001, 5100, 5101)
    config.checkpoint.keep = keep
    side = UnitTrainer(units, types.SimpleNamespace(config=config), None, Link(), tmp_path)
    side._link = types.SimpleNamespace(settle=settled.append)
    side._kept = {step: [step] for step in steps}
    assert side.get_state()["kept"] == [(step, [step]) for step in steps if step > since]
    assert settled == [since]


def test_rows_that_do_not_fit_are_refused_at_the_start():
    config = config_of(eta=1)  # 4 rows a step
    config.train.steps, config.checkpoint.every, config.checkpoint.keep = 1 << 20, 10, 2
    assert async_units.most_rows(config) == 4 * (4 * 10 + 2)
    config.checkpoint.every = (1 << 16) + 1
    async_units.check(config, 2)
    words = (
        "with checkpoint.every=65537 and checkpoint.keep=2 each of 1 storage units must keep 1048600 rows.* save more"
    )
    with pytest.raises(ValueError, match=words):
        async_units.check(config)
    config.checkpoint.keep = None
    with pytest.raises(ValueError, match="checkpoint.keep=None each of 2 storage units must keep 2097156 rows"):
        async_units.check(config, 2)
    config.train.steps = 100
    async_units.check(config)


def test_a_trainer_that_lost_a_step_gets_its_rows_again(units, tmp_path):
    units.put({n: async_units.columns_of(group_of(0), row_of(n)) for n in (0, 1)})
    for _ in range(2):  # it dies before its checkpoint
        units.seen = [("", 0)] * 2
        side = trainer_of(units, tmp_path, Link(groups=[in_link(units, 0, 0)]))
        assert [row.tokens[0] for row in side._take(0, 1)[0].rows] == [0, 10]


def test_what_is_lost_or_differs_is_named(units, tmp_path):
    units.put({0: async_units.columns_of(group_of(0), row_of(0))})
    side = trainer_of(units, tmp_path, Link(groups=[in_link(units, 0, 0)]))
    with pytest.raises(
        LookupError, match="row 1 of group 0 is not in storage unit 1, .* bring back that unit's folder"
    ):
        side._take(0, 1)
    alone = Trainer(types.SimpleNamespace(config=config_of()), None, Link(groups=[in_link(units, 0, 0)]), tmp_path)
    with pytest.raises(ValueError, match="1 fields differ: --units=None here, 2 there"):
        alone._take(0, 1)


def test_units_hear_that_a_trainer_leaves_and_if_the_run_is_whole(units, tmp_path):
    for version, error, ended in ((1, None, False), (2, ValueError("x"), False), (2, None, True)):
        link = Link()
        link.say = lambda *_: True
        side = trainer_of(units, tmp_path, link)
        side.counters = Counters(version=version)
        with side._beat:
            pass
        side._beat = types.SimpleNamespace(__exit__=lambda *_: None)
        side.__exit__(type(error) if error else None, error, None)
        assert units.ended.pop() == ended and not units.ended


def test_a_unit_is_served_until_the_run_is_complete(tmp_path, capsys):
    addresses, stop = f"grpc://127.0.0.1:1,grpc://127.0.0.1:{quiet_port()}", Stop(False)
    assert not serve(tmp_path, addresses, 1, None, Stop(True), steps=2)
    client = async_units.make_units("trainer", tmp_path, addresses, None)
    found = []
    side = threading.Thread(target=lambda: found.append(serve(tmp_path, addresses, 1, None, stop, steps=2)))
    side.start()
    client.put({1: {"a": 1.0}})
    client._units[1].attempt(client._entering(1), lambda options: [client._units[1].ask("end", options)], 60.0)
    side.join(60)
    client.close()
    assert found == [True] and list((tmp_path / "unit_1" / "rows").glob("*.arrow"))
    assert (tmp_path / "units_token").stat().st_mode & 0o77 == 0, "the first one has made their secret"
    assert "storage unit 1 of 2 at grpc://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("calls", "step_s", "polls"),
    [
        ([True] * 5 + [False], 1.0, 6),  # until the trainer has said that it leaves
        ([True] * 99, 200.0, 4),  # it was killed: the signal comes at the first poll, and 600 s are over three later
        ([False], 1.0, 1),
    ],
)
def test_a_stopped_unit_leaves_after_its_trainer(tmp_path, monkeypatch, calls, step_s, polls):
    """SIGTERM comes to all at once, and a trainer and its samplers end their step through the units."""
    now, stop, asked = [0.0], Stop(False), []

    class Unit:
        address = "grpc://127.0.0.1:1"

        def __init__(self, *args, **fields):
            pass

        def ended(self, timeout_s):
            stop.received = True
            asked.append(now[0])
            now[0] += step_s
            return False

        attended = property(lambda self: calls[len(asked) - 1])

        def close(self):
            pass

    monkeypatch.setattr(async_serving, "StorageUnit", Unit)
    assert not serve(tmp_path, Unit.address, 0, None, stop, steps=2, clock=lambda: now[0])
    assert len(asked) == polls


def test_a_unit_that_did_not_hear_the_end_finds_it_on_the_disk(tmp_path, monkeypatch):
    """Not the end of the same run before it was given more steps."""
    asked = []

    def ended(self, timeout_s):
        asked.append(None)
        (tmp_path / "final.json").write_text(f'{{"step": {len(asked)}}}')
        assert len(asked) < 9
        return False

    monkeypatch.setattr(async_serving.StorageUnit, "ended", ended)
    assert serve(tmp_path, f"grpc://127.0.0.1:{quiet_port()}", 0, None, Stop(False), steps=4)
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda path: async_units.check(config_of(columns=False)), "--units: .* set --config.flow.columns=True"),
        (lambda path: async_units.check(config_of(schedule="free")), "flow.schedule='free': a sampler that comes back"),
        (lambda path: async_units.make_units("both", path, "grpc://a:1", None), "one process has no storage units"),
        (lambda path: async_units.make_units("trainer", path, "a:1", path), "--units=a:1: give grpc://HOST:PORT"),
        (lambda path: async_units.make_units("trainer", path, "grpc://a:1", None), "give --link_secrets=FOLDER"),
        (lambda path: serve(path, "grpc://a:1", 1, path, None, steps=2), "--unit=1: .* has 1 addresses"),
        (lambda path: serve(path, "grpc+tls://a:1", 0, path, None, steps=2), "no unit_cert.pem or no unit_key.pem"),
        (lambda path: serve(path, "grpc://0.0.0.0:1", 0, path, None, steps=2), "without TLS"),
        (
            lambda path: async_check.checked(config_of(streaming=False, columns=False, balance=True)),
            "flow.balance=True",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, call, words):
    (tmp_path / "token").write_text("a-token-of-this-test")
    with pytest.raises(ValueError, match=words):
        call(tmp_path)
    assert async_units.make_units("trainer", tmp_path, "", None) is None
    assert isinstance(async_units.make_units("trainer", tmp_path, "grpc://a:1,grpc://b:1", str(tmp_path)), Units)


def test_a_part_is_ordered_so_that_devices_have_as_many_tokens():
    groups = [group_of(n, lengths=lengths) for n, lengths in enumerate([(9, 8), (1, 1), (7, 9), (2, 1)])]
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        found, heaviest = by_tokens([groups[n] for n in order], 2)
        halves = {frozenset(group.number for group in half) for half in (found[:2], found[2:])}
        assert halves == {frozenset({0, 1}), frozenset({2, 3})} and heaviest == pytest.approx(1.0)
    assert by_tokens(groups[:2], 2)[1] == pytest.approx(2 * 21 / 27)
    assert by_tokens(groups, 1)[0] == groups
    setup = types.SimpleNamespace(config=config_of(), mesh=types.SimpleNamespace(shape={"data": 1}))
    assert ranks_of(setup) == 1
    setup.mesh.shape["data"] = 2
    with pytest.raises(
        ValueError, match="flow.balance=True: the 1 groups of a part .* not a multiple of the 2 devices"
    ):
        ranks_of(setup)


@pytest.mark.parametrize("role", ["trainer", "sampler", "unit"])
@pytest.mark.parametrize("complete", [True, False])
def test_the_command_line_reaches_each_side(tmp_path, monkeypatch, role, complete):
    """A folder as link and units over the network: the secret is the units'."""
    (tmp_path / "token").write_text("a-token-of-this-test")
    given = dict(replay=None, role=role, sampler=0, unit=1, link="", link_secrets=str(tmp_path))
    given |= dict(units="grpc://127.0.0.1:1,grpc://127.0.0.1:2")
    monkeypatch.setattr(grpo_async, "absl_flags", types.SimpleNamespace(FLAGS=types.SimpleNamespace(**given)))
    monkeypatch.setattr(grpo_async, "StopSignal", lambda: None)
    called, noted = [], []

    def end(*args, **fields):
        called.append((args, fields))
        return complete

    monkeypatch.setattr(grpo_async, "run", end)
    monkeypatch.setattr(grpo_async, "run_sampler", end)
    monkeypatch.setattr(grpo_async, "serve", end)
    monkeypatch.setattr(grpo_async.stops, "note", lambda: noted.append(True))
    grpo_async.main(config_of(), tmp_path)
    ((args, fields),) = called
    if role == "unit":
        assert args == (tmp_path, given["units"], 1, str(tmp_path), None) and fields == {"steps": 2}
    else:
        assert len(fields["units"]) == 2 and fields["units"]._units[0]._token == "a-token-of-this-test"
        link = fields["link"] if role == "trainer" else args[2]
        assert isinstance(link, Folder)
        link.close()
    assert bool(noted) == (not complete and role != "trainer")
