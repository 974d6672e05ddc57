"""Prepared datasets: never stale, never torn, the same through a second process; the loader's messages."""
import json
import multiprocessing
import subprocess
import sys
import tempfile

import pytest

from rl_jax import tasks
from rl_jax.tasks import base
from tests.paths import REPO_ROOT


def make(count, calls=None, prompt="p"):
    def function():
        if calls is not None:
            calls.append(count)
        rows = [{"prompt": f"{prompt}{i} é\n", "completion": "", "info": "{}"} for i in range(count)]
        return {"train": rows, "test": rows[:1]}, {"num_skipped": 3, "skipped": ["x"]}
    return function


def test_records_come_back_as_they_went_in(tmp_path):
    source = base.record_splits("toy", make(5), arguments={}, data_dir=tmp_path)("train")
    assert len(source) == 5 and source[-1] == source[4] == {"prompt": "p4 é\n", "completion": "", "info": "{}"}
    assert [row["prompt"] for row in source] == [f"p{i} é\n" for i in range(5)]
    assert source.num_skipped == 3 and source.report["skipped"] == ["x"]
    with pytest.raises(IndexError):
        source[5]


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    base.record_splits("toy", make(2), arguments={}, data_dir=tmp_path)("train")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_splits_and_their_names(tmp_path):
    sources = base.record_splits("toy", make(5), arguments={}, data_dir=tmp_path)
    assert sources("sft_train")[2] == sources("train")[2]  # one stored split under two names
    with pytest.raises(ValueError, match=r"toy has no split 'eval'; it has \['sft_train', 'test', 'train'\]"):
        sources("eval")
    with pytest.raises(ValueError, match="split 'train' has no records"):
        base.record_splits("toy", make(0), arguments={"count": 0}, data_dir=tmp_path)
    assert len(list((tmp_path / "toy").iterdir())) == 1  # the refused one left nothing behind


def test_what_changes_the_identity(tmp_path):
    file, code, calls = tmp_path / "data.txt", tmp_path / "code.py", []
    file.write_text("a")
    code.write_text("1")

    def prepare(count, arguments):
        return len(base.record_splits("toy", make(count, calls), arguments=arguments, sources=[file], code=[code],
                                      data_dir=tmp_path)("train"))

    assert prepare(2, {"x": 1}) == 2 and prepare(3, {"x": 1}) == 2  # the same identity: not made again
    assert calls == [2]
    assert prepare(3, {"x": 2}) == 3
    file.write_text("b")
    assert prepare(4, {"x": 2}) == 4
    code.write_text("2")
    assert prepare(5, {"x": 2}) == 5
    file.write_text("a")
    code.write_text("1")
    assert prepare(6, {"x": 2}) == 3  # what was prepared before is still right
    assert calls == [2, 3, 4, 5]


def test_a_failure_leaves_nothing_and_the_next_attempt_works(tmp_path):
    def fails():
        yield {"prompt": "p", "completion": "", "info": "{}"}
        raise RuntimeError("in the middle")

    class Rows(list):
        def __iter__(self):
            return fails()

    with pytest.raises(RuntimeError, match="in the middle"):
        base.record_splits("toy", lambda: ({"train": Rows([0])}, {}), arguments={}, data_dir=tmp_path)
    assert not list((tmp_path / "toy").iterdir())
    assert len(base.record_splits("toy", make(3), arguments={}, data_dir=tmp_path)("train")) == 3


def _race(data_dir, barrier, queue):
    def slow():
        barrier.wait(600)  # all of them have seen that the dataset is missing
        return make(500)()
    source = base.record_splits("toy", slow, arguments={}, data_dir=data_dir)("train")
    queue.put([source[i]["prompt"] for i in range(500)])


@pytest.mark.slow
def test_processes_that_prepare_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_race, args=(str(tmp_path), barrier, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert results[0] == results[1] == results[2] == [f"p{i} é\n" for i in range(500)]
    assert len(list((tmp_path / "toy").iterdir())) == 1  # no temporary folder stays


def test_loader_messages():
    with pytest.raises(ValueError, match="unknown task 'chess'; the tasks are records, arithmetic, game24"):
        tasks.load("chess")
    with pytest.raises(ValueError, match="task 'tests.tasks.test_base:own' needs reward"):
        tasks.load("tests.tasks.test_base:own")


def own(*, reward, scale=1.0):
    """A task of one's own: three records, no preparation."""
    records = [{"prompt": f"{i}=", "completion": "", "info": "{}"} for i in range(3)]
    return tasks.Task("own", None, lambda split: records, lambda *_: {"reward": reward * scale})


def own_of_any(**fields):
    return tasks.Task("own", None, None, None, fields)


def no_task():
    return 3


HERE = "tests.tasks.test_base"


def test_a_task_by_import_path():
    """defects.md section 2: a task outside the checkout was impossible."""
    found = tasks.load(f"{HERE}:own", reward=2.0)
    assert found.name == "own" and found.reward_fn("", "", {}) == {"reward": 2.0}
    assert tasks.load(f"{HERE}:own_of_any", anything=1).reward_kwargs == {"anything": 1}
    assert tasks.load("rl_jax.tasks.arithmetic:load", num_train=1, num_test=1).name == "arithmetic"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (f"{HERE}:own", {}, "own' needs reward; it takes reward, scale"),
        (f"{HERE}:own", {"reward": 1.0, "digits": 2}, "takes no digits; it takes reward, scale"),
        (f"{HERE}:onw", {}, "no 'onw'; nearest: 'own'"),
        ("my_tasks_somewhere:load", {}, "no module 'my_tasks_somewhere' on sys.path"),
        (f"{HERE}:no_task", {}, "returned a int; it must return an rl_jax.tasks.Task"),
        ("own", {}, 'To use your own, write "module:function"'),
    ],
)
def test_what_is_wrong_with_a_task_of_ones_own(name, fields, message):
    with pytest.raises(ValueError, match=message):
        tasks.load(name, **fields)


def test_importing_tasks_is_cheap():
    program = ("import sys, json; from rl_jax import data; from rl_jax.tasks import arithmetic, game24, stories; "
               "print(json.dumps([m for m in ('jax', 'tensorflow_datasets', 'grain', 'scipy') if m in sys.modules]))")
    done = subprocess.run([sys.executable, "-c", program], cwd=REPO_ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
