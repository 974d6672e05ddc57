"""Storage units over the network, against a queue that has its values itself: who may, what is refused, who dies."""

import contextlib
import random
import signal
import subprocess
import sys

import numpy as np
import pytest

from rl_jax.flow import shelf, units
from rl_jax.flow.columns import TransferQueue
from rl_jax.flow.shelf import Shelf
from rl_jax.flow.storage import StorageUnit
from rl_jax.flow.units import Units
from tests.flow.test_columns import TASKS, value_of
from tests.flow.test_flight import TOKEN, quiet_port
from tests.paths import REPO_ROOT

COUNT = 2


def units_of(folder, **fields):
    return [StorageUnit(folder / str(i), index=i, count=COUNT, token=TOKEN, **fields) for i in range(COUNT)]


@pytest.fixture
def servers(tmp_path):
    with contextlib.ExitStack() as stack:
        found = units_of(tmp_path, max_rows=8, max_put=8192)
        for unit in found:
            stack.callback(unit.close)
        yield found


def client_of(servers, token=TOKEN, **fields):
    return Units([unit.address for unit in servers], token=token, patience_s=0.0, **fields)


def same(one, other):
    assert [row.number for row in one] == [row.number for row in other]
    for ours, theirs in zip(one, other, strict=True):
        assert ours.values.keys() == theirs.values.keys()
        for name, value in ours.values.items():
            np.testing.assert_array_equal(value, theirs.values[name])
            assert type(value) is type(theirs.values[name])


def test_a_queue_over_units_is_the_queue_of_one_process(servers):
    """Random puts and takes; one task's columns are put by another process, and the controller hears of them."""
    rng, sampler, mine = random.Random(0), client_of(servers), client_of(servers)
    queue, plain = TransferQueue(TASKS, store=mine), TransferQueue(TASKS)
    rows, there = list(range(12)), set()
    for _ in range(60):
        task = rng.choice(list(TASKS))
        column = rng.choice(TASKS[task].writes or ("",))
        # The units hold 8 rows each, of 12 all in all.
        found = [n for n in rng.sample(rows, 3) if column and (n, column) not in there and n not in plain._done]
        there |= {(n, column) for n in found}
        values = {n: {column: value_of(column, n)} for n in found}
        if found and task == "sample":
            sampler.put(values), plain.put(task, values)
            news = mine.news()
            assert {n for n, columns in news.there.items() if column in columns} == set(found) and not news.gone
            queue.announce(news.there)
        elif found:
            queue.put(task, values), plain.put(task, values)
            mine.news()
        task, count = rng.choice(list(TASKS)[1:]), rng.choice((1, 3))
        assert queue.ready(task) == plain.ready(task)
        same(queue.take(task, count, at_least=1), plain.take(task, count, at_least=1))
        if rng.random() < 0.05:
            number = rng.choice(rows)
            queue.forget([number]), plain.forget([number])
            assert number in mine.news().gone
    assert queue.taken == plain.taken and all(queue.taken[task] > 3 for task in list(TASKS)[1:])
    for number in plain.numbers():
        assert number in servers[number % COUNT]._shelf._where, "row i is on unit i mod N"
    with pytest.raises(RuntimeError, match="they are in its store"):
        queue.state()
    with pytest.raises(ValueError, match="column 'odd' of row 3, which nobody writes"):
        queue.announce({3: ["odd"]})


@pytest.mark.parametrize(
    ("fields", "call", "kind", "words"),
    [
        (dict(token="another-token-of-16"), lambda u: u.put({0: {"a": 1}}), PermissionError, "refuses the token"),
        ({}, lambda u: u.put({0: {"a": np.zeros(9000, np.uint8)}}), RuntimeError, "more than 8192 bytes"),
        ({}, lambda u: u.put({1: {"a": 2.0}}), RuntimeError, "column 'a' of row 1 is there with another value"),
        (
            {},
            lambda u: u.put({n: {"a": 1} for n in range(2, 32, 2)}),
            TimeoutError,
            "no room in storage unit 0 at grpc",
        ),
        (
            {},
            lambda u: u.get([1, 3], ["a"]),
            LookupError,
            "no column 'a' of row 3: it was forgotten, or .* bring that back",
        ),
        ({}, lambda u: u.get([1], ["b"]), LookupError, "no column 'b' of row 1"),
        (dict(run="other"), lambda u: u.news(), RuntimeError, "has run=mine, and other is asked for"),
    ],
)
def test_what_is_refused(servers, fields, call, kind, words):
    client_of(servers, run="mine").put({1: {"a": np.float32([1, np.nan])}})
    with pytest.raises(kind, match=words):
        call(client_of(servers, **dict(run="mine") | fields))
    (row,) = client_of(servers, run="mine").get([1], ["a"])
    np.testing.assert_array_equal(row["a"], np.float32([1, np.nan]))
    client_of(servers, run="mine").put({1: {"a": np.float32([1, np.nan]), "b": 3}})
    assert client_of(servers, run="mine").get([1], ["b"]) == [{"b": 3}], "what is there may be put again"


def test_units_in_another_order_or_twice_are_refused(servers, tmp_path):
    with pytest.raises(
        RuntimeError, match="storage unit has index=0, and 1 is asked for: give all sides the same units"
    ):
        client_of(servers[::-1]).put({1: {"a": 1}})
    with pytest.raises(ValueError, match="one or more, each once"):
        client_of([servers[0], servers[0]])
    with pytest.raises(ValueError, match="without TLS"):
        units_of(tmp_path / "open", host="0.0.0.0")
    servers[1].close()
    with pytest.raises(ValueError, match="of storage unit 1 of 2, not of 0 of 3"):
        Shelf(tmp_path / "1", index=0, count=3)
    shelf.disk.unlock(tmp_path / "1")


def test_a_unit_that_is_away_is_missed_and_comes_back_the_same(tmp_path):
    """With its folder: rows, their order and what was forgotten. With another folder: the row that is lost is named."""
    port = quiet_port()
    unit = StorageUnit(tmp_path / "0", token=TOKEN, port=port)
    client = client_of([unit])
    client.put({n: {"a": n * 0.1} for n in (5, 2, 9)})
    client.put({5: {"b": "x"}, 2: {"b": "y"}})
    assert client.news() == ({5: ["a", "b"], 2: ["a", "b"], 9: ["a"]}, [])
    client.forget([2, 3])
    unit.close()
    with pytest.raises(TimeoutError, match="no answer of storage unit 0 at grpc://127.0.0.1.*start it again, with its"):
        client.get([5], ["a"])
    unit = StorageUnit(tmp_path / "0", token=TOKEN, port=port)
    client._patience = 60.0
    assert client.get([5, 9], ["a"]) == [{"a": 0.5}, {"a": 9 * 0.1}] and client.get([5], ["b"]) == [{"b": "x"}]
    client.put({3: {"a": 1.0}, 2: {"a": 0.2}})
    assert client.news() == ({5: ["a", "b"], 9: ["a"]}, [2]), "another process: all that is there, and what went"
    assert client.news() == ({}, []) and not unit.ended(0.0)
    client.end()
    assert unit.ended(60.0)
    unit.close()
    unit = StorageUnit(tmp_path / "new", token=TOKEN, port=port)
    with pytest.raises(LookupError, match="no column 'a' of row 9: it was forgotten, or the unit has lost"):
        client.get([9], ["a"])
    assert client.news() == ({}, [5, 9])
    unit.close()
    client.close()


def test_a_unit_knows_whether_a_controller_is_there(servers):
    """Its word that it leaves is of its last life: who comes back asks for news."""
    client = client_of(servers)
    client._patience = 60.0
    client.put({0: {"a": 1.0}, 1: {"a": 1.0}})
    assert not servers[0].attended, "a sampler asks for none"
    client.news()
    assert servers[0].attended and servers[1].attended
    client.end(complete=False)
    assert not servers[0].attended and not servers[1].ended(0.0)
    client.news()
    assert servers[0].attended


def test_a_unit_that_is_away_holds_nobody_who_does_not_wait(servers):
    client = client_of(servers)
    client._patience = 60.0
    client.put({n: {"a": 1.0} for n in range(4)})
    client.wait = None  # would be an error
    servers[0].close()
    assert not client.forget([0, 1, 2], waits=False)
    client.end()
    assert servers[1].ended(0.0), "the one behind it hears it"
    client.wait = client._wait
    assert list(servers[1]._shelf._where) == [3]
    assert client.forget([3], waits=False) and servers[1]._shelf._where == {}


def test_long_rows_are_put_in_several_calls(servers, monkeypatch):
    """A sampler that comes back puts all rows that it has at once, more than a unit takes (8192 bytes)."""
    monkeypatch.setattr(units, "MOST_BYTES", 4096, raising=False)
    client = client_of(servers)
    client._patience = 60.0
    rows = {2 * n: {"a": np.full(size, n, np.uint8)} for n, size in enumerate([1500, 1500, 1500, 4200, 9, 9])}
    client.put(rows)
    for row, number in zip(client.get(list(rows), ["a"]), rows, strict=True):
        np.testing.assert_array_equal(row["a"], rows[number]["a"])
    assert sorted(map(len, servers[0]._shelf._left.values())) == [1, 1, 2, 2]
    text = {2 * n: {"b": "é" * 1500} for n in range(6)}
    client.put(text)
    assert [row["b"] for row in client.get(list(text), ["b"])] == ["é" * 1500] * 6


def test_of_a_file_no_more_is_read_than_is_asked_for(tmp_path, monkeypatch):
    """A unit that is opened again reads no values; rows that are put again are compared, each once."""
    rows = {n: {"a": np.arange(n), "b": f"row {n}"} for n in range(30)}
    side, read = Shelf(tmp_path), []
    assert side.put(rows) and side.put({n: {"c": 0.5} for n in rows})
    side.forget([4])
    side.close()
    plain = shelf.from_table
    monkeypatch.setattr(shelf, "from_table", lambda table: read.append(table.num_rows) or plain(table))
    side = Shelf(tmp_path)
    assert read == [] and {n: sorted(columns) for n, columns in side.news("", 0)["there"]} == {
        n: ["a", "b", "c"] for n in rows if n != 4
    }
    assert side.put({n: values | {"c": 0.5} for n, values in rows.items()}) and sum(read) == 2 * 29
    found = side.get([7, 5], ["c", "a"])
    assert read[2:] == [2, 2] and list(found) == [7, 5] and found[5]["c"] == 0.5
    np.testing.assert_array_equal(found[7]["a"], np.arange(7))
    with pytest.raises(ValueError, match="column 'b' of row 9 is there with another value"):
        side.put({8: {"b": "row 8"}, 9: {"b": "row 8"}})
    side.close()
    path = tmp_path / "rows" / "000000000000.arrow"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="000000000000.arrow: truncated or no rows"):
        Shelf(tmp_path)
    shelf.disk.unlock(tmp_path)


SERVER = """
import os, signal, sys
from rl_jax.flow import files
from rl_jax.flow.storage import StorageUnit
port, folder, at = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rename, count = files.rename, 0
def dying(partial, path):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(partial, path)
    if count == at + 1:
        os.kill(os.getpid(), signal.SIGKILL)
files.rename = dying
unit = StorageUnit(folder, token="a-token-of-this-test", port=port)
print(unit.address, flush=True)
unit.ended(600)
unit.close()
"""


@pytest.mark.slow
def test_a_unit_killed_with_9_loses_nothing(tmp_path):
    """Before a file is there, and after, when nobody was told; who puts and forgets does so again."""
    port, expected, number, client = quiet_port(), {}, 0, None
    for at in (6, 4, 99):
        command = [sys.executable, "-c", SERVER, str(port), str(tmp_path), str(at if at != 4 else at - 1)]
        with subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True) as process:
            address = process.stdout.readline().strip()
            client = client or Units([address], token=TOKEN, patience_s=0.0)
            while number < 12 and process.poll() is None:
                with contextlib.suppress(TimeoutError):
                    client.put({number: {"a": np.full(3, number)}})
                    if number % 4 == 3:
                        client.forget([number - 1])
                    expected[number] = number
                    number += 1
            if number == 12:
                client._patience = 60.0
                rows = [n for n in expected if n % 4 != 2]
                found = client.get(rows, ["a"])
                assert set(client.news().there) == set(rows)
                client.end()
            process.wait(timeout=120)
        assert process.returncode == (0 if at == 99 else -signal.SIGKILL)
    for one, values in zip(rows, found, strict=True):
        np.testing.assert_array_equal(values["a"], np.full(3, one))
