"""experiments/parts/run.py: steps, saves, stops and restarts, once for all programs."""

import datetime
import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from experiments.parts import run as run_module
from experiments.parts import stops
from experiments.parts.run import Run, write_final
from experiments.parts.setup import Setup, fix_date
from rl_jax import tokenizers
from rl_jax.models import lora
from rl_jax.models.hf import loading, peft
from rl_jax.runs import run_record
from rl_jax.training import checkpoint
from tests import tiny_tokenizers
from tests.experiments import tiny_folder
from tests.experiments.small import kept_signals  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("kept_signals")


class Numbers:
    """Data whose position is saved: 0, 1, 2, ..."""

    def __init__(self):
        self.position = 0

    def __next__(self) -> int:
        self.position += 1
        return self.position - 1

    def get_state(self) -> dict:
        return {"position": self.position}

    def set_state(self, state: dict) -> None:
        self.position = state["position"]


def config(**fields) -> ConfigDict:
    settings = dict(steps=7, max_nonfinite_in_a_row=2)
    every = dict(every=3, keep=2, keep_every=0, keep_best=0, best_metric="x", best_mode="max")
    return ConfigDict(
        dict(
            train=settings,
            eval=dict(every=2),
            checkpoint=every,
            task=dict(name="numbers"),
            log=dict(progress=False, tensorboard=False),
        )
        | fields
    )


def run(workdir, settings=None, stop_after=None, **options):
    """Sums the data: (the sum, the loop, the steps that it took, those that were evaluated)."""
    settings = settings or config()
    loop, data, seen, evaluated = Run(settings, workdir, "sum", settings.train, **options), Numbers(), [], []
    items = loop.restore({"state": {"total": jnp.float32(0.0)}}, data)
    total = items["state"]["total"]
    with loop:
        loop.begin(lambda: ({"total": 0.0}, []))
        for step in loop.steps():
            total = total + next(data)
            seen.append(step.number)
            evaluated += [step.number] if step.evaluates else []
            loop.stop.received = step.number == stop_after
            step.clock.lap("train_s")
            step.end({"state": {"total": total}}, {"total": float(total)}, step.clock.totals(1))
    return float(total), loop, seen, evaluated


def rows(workdir) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def saved(workdir) -> list[int]:
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal())


def test_a_whole_run(tmp_path):
    total, loop, seen, evaluated = run(tmp_path)
    assert total == sum(range(7)) and loop.done and seen == list(range(1, 8))
    assert evaluated == [2, 4, 6, 7], "the last step is evaluated, too"
    assert [row["step"] for row in rows(tmp_path)] == list(range(8))
    assert saved(tmp_path) == [6, 7], "every third and the last one, of which two are kept"


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path, stop_after):
    whole = run(tmp_path / "whole")[0]
    _, loop, seen, _ = run(tmp_path / "cut", stop_after=stop_after)
    assert not loop.done and seen[-1] == stop_after == saved(tmp_path / "cut")[-1]
    total, loop, seen, _ = run(tmp_path / "cut")
    assert total == whole and loop.done and seen == list(range(stop_after + 1, 8))
    assert [row["total"] for row in rows(tmp_path / "cut")] == [row["total"] for row in rows(tmp_path / "whole")]


def test_a_complete_run_is_left_alone(tmp_path):
    run(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    total, loop, seen, _ = run(tmp_path)
    assert total == sum(range(7)) and loop.done and seen == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_run_keeps_the_date_of_its_first_start_in_its_prompts(tmp_path):
    """A template that writes the date would change every prompt over midnight, or when a run goes on the next day."""
    folder = tiny_tokenizers.llama3(tmp_path / "model")
    tokenizer = tokenizers.load_tokenizer(folder)
    mesh = types.SimpleNamespace(devices=np.array(jax.devices()[:1]))

    def prompt(workdir, **options):
        prompts = tokenizers.ChatPrompts(tokenizers.ChatTemplate.load(folder, tokenizer))
        setup = Setup(config(), mesh, types.SimpleNamespace(tokenizer=prompts), *[None] * 4)
        loop = Run(setup.config, workdir, "sum", setup.config.train, **options)
        loop.record(setup)
        loop.close()
        return prompts.template.render([{"role": "user", "content": "Hello"}])

    assert f"Today: {datetime.datetime.now(datetime.UTC):%d %b %Y}\n" in prompt(tmp_path / "run")
    record = run_record.read_json(tmp_path / "run" / "run.json")
    (tmp_path / "run" / "run.json").write_text(json.dumps(record | {"started": "2024-07-26T23:59:59+00:00"}))
    assert "Today: 26 Jul 2024\n" in prompt(tmp_path / "run")
    prompts = tokenizers.ChatPrompts(tokenizers.ChatTemplate.load(folder, tokenizer))
    fix_date(Setup(None, mesh, types.SimpleNamespace(tokenizer=prompts), *[None] * 4), tmp_path / "run/checkpoints/3")
    assert "Today: 26 Jul 2024\n" in prompts.template.render([{"role": "user", "content": "Hello"}])


def test_more_steps_go_on(tmp_path):
    run(tmp_path)
    total, _, seen, _ = run(tmp_path, config(train=dict(steps=9, max_nonfinite_in_a_row=2)))
    assert total == sum(range(9)) and seen == [8, 9]


def test_a_loop_may_end_before_its_last_step(tmp_path):
    settings = config()
    for attempt in range(2):
        loop = Run(settings, tmp_path, "sum", settings.train)
        loop.restore({"state": {"x": jnp.zeros(2)}})
        assert loop.done == (attempt == 1)
        with loop:
            for step in loop.steps():
                step.end({"state": {"x": jnp.ones(2)}}, {}, {}, done=step.number == 2, host={"best": [1.5]})
        assert loop.done and loop.step == 2 and loop.host["best"] == [1.5]


def test_strides_count_several_updates(tmp_path):
    settings = config()
    loop = Run(settings, tmp_path, "sum", total=9, stride=3, eval_every=1)
    loop.restore({"state": {"x": jnp.zeros(2)}})
    with loop:
        numbers = []
        for step in loop.steps():
            numbers.append((step.number, step.evaluates, step.saves))
            step.end({"state": {"x": jnp.zeros(2)}}, {}, {})
    assert numbers == [(3, True, True), (6, True, True), (9, True, True)]


def test_a_step_that_is_not_ended_is_an_error(tmp_path):
    settings = config()
    loop = Run(settings, tmp_path, "sum", settings.train)
    loop.restore({"state": {"x": jnp.zeros(2)}})
    with loop, pytest.raises(RuntimeError, match="step 1 was not ended"):
        for _ in loop.steps():
            pass


class Skipped:
    """A TrainState as far as check_finite reads it."""

    def __init__(self, count: int):
        self.skipped_in_a_row = np.int32(count)


def test_gradients_that_are_not_finite_stop_the_run_and_keep_the_batch(tmp_path):
    settings = config()
    loop = Run(settings, tmp_path, "sum", settings.train)
    loop.step = 4
    loop.check_finite(Skipped(1), {"x": jnp.ones(3)})
    with pytest.raises(FloatingPointError, match="2 gradients in a row .* batch of step 4"):
        loop.check_finite(Skipped(2), {"x": jnp.ones(3)})
    with np.load(tmp_path / "nonfinite_step_4.npz") as kept:
        np.testing.assert_array_equal(kept["x"], np.ones(3))


def test_the_state_is_held_once_when_it_is_restored(tmp_path, monkeypatch):
    run(tmp_path)
    asked = []
    restore = checkpoint.Checkpointer.restore

    def spy(self, items, *args, **options):
        asked.append(options)
        return restore(self, items, *args, **options)

    monkeypatch.setattr(checkpoint.Checkpointer, "restore", spy)
    run(tmp_path)
    assert asked == [{"in_place": True}]


def test_the_log_is_closed_if_the_loop_raises(tmp_path):
    settings = config()
    loop = Run(settings, tmp_path, "sum", settings.train)
    loop.restore({"state": {"x": jnp.zeros(2)}})
    with pytest.raises(KeyError, match="mine"), loop:
        for step in loop.steps():
            step.end({"state": {"x": jnp.zeros(2)}}, {"x": 1.0}, {})
            if step.number == 4:
                raise KeyError("mine")
    assert saved(tmp_path)[-1] == 3 and [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]


def test_no_evaluation_but_after_the_last_step(tmp_path):
    assert run(tmp_path, config(eval=dict(every=0)))[3] == [7]


@pytest.mark.parametrize(("steps", "stop_after"), [((2, 3), None), ((2, 7), 4)])
def test_steps_are_profiled(tmp_path, monkeypatch, steps, stop_after):
    """From the beginning of the first to the end of the last, or of the run."""
    events = []
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: events.append(folder))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: events.append(len(rows(tmp_path)) - 1))
    log = dict(progress=False, tensorboard=False, profile_steps=steps)
    run(tmp_path, config(log=log), stop_after=stop_after)
    assert events == [str(tmp_path / "profile"), stop_after or steps[1]]
    run(tmp_path, config(log=log))  # resumed behind its beginning
    assert len(events) == 2


def test_a_step_that_counts_many_is_profiled_if_it_reaches_the_first(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr("jax.profiler.start_trace", lambda folder: events.append("start"))
    monkeypatch.setattr("jax.profiler.stop_trace", lambda: events.append(rows(tmp_path)[-1]["step"]))
    log = dict(progress=False, tensorboard=False, profile_steps=(3, 5))
    run(tmp_path, config(log=log), stride=2, total=8)
    assert events == ["start", 6]


def test_the_meter_and_the_record_have_the_devices_that_only_sample(tmp_path, monkeypatch):
    def mesh(*devices):
        return types.SimpleNamespace(devices=np.array(devices, object))

    task = types.SimpleNamespace(tokenizer=None)
    setup = Setup(*[None] * len(Setup._fields))._replace(mesh=mesh("a", "b"), task=task)
    separate, shared = (types.SimpleNamespace(mesh=mesh(*names)) for names in (("c", "d"), ("b", "a")))
    made, said = [], []
    monkeypatch.setattr(run_module, "Meter", lambda devices, sizes, others=(), **_: made.append((devices, others)))
    monkeypatch.setattr(run_module, "record_run", lambda *arguments: said.append(arguments[-1]))
    monkeypatch.setattr(run_module, "describe", str)
    monkeypatch.setattr(run_module, "claim", lambda *_: None)
    loop = Run(config(), tmp_path, "sum", config().train)
    made.clear()  # one without devices, until `record`
    for rollout in (separate, shared, None):
        loop.record(setup._replace(rollout=rollout))
    loop.record(["a"])
    assert made == [(["a", "b"], ["c", "d"]), *[(["a", "b"], [])] * 2, (["a"], [])]
    assert said == [["a", "b", "c", "d"], ["a", "b"], ["a", "b"], ["a"]]


def test_every_process_refuses_steps_that_cannot_be_profiled(tmp_path, monkeypatch):
    """Or the first one would raise, and the others wait for it."""
    loop = Run(
        config(log=dict(progress=False, tensorboard=False, profile_steps=(8, 9))), tmp_path, "sum", config().train
    )
    monkeypatch.setattr(run_module.distributed, "is_main", lambda: False)
    with pytest.raises(ValueError, match="the run ends at step 7"):
        next(loop.steps())


def test_steps_after_the_end_cannot_be_profiled(tmp_path):
    log = dict(progress=False, tensorboard=False, profile_steps=(8, 9))
    with pytest.raises(ValueError, match=r"profile_steps=\(8, 9\): the run ends at step 7"):
        run(tmp_path, config(log=log))


@pytest.fixture
def adapted(tmp_path):
    """(setup of a run that trains adapters on a tiny folder, its params)."""
    folder = tiny_folder.qwen3(tmp_path / "model")
    fields = dict(rank=2, alpha=4.0, targets="layers/q", variant="lora")
    adapters = lora.LoraConfig(**fields)
    base = loading.load(folder)[1]
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"made_by": "me"}))
    setup = Setup(*[None] * len(Setup._fields))._replace(
        config=ConfigDict(dict(model=dict(path=str(folder), lora=fields, ignore_fields=("made_by",)))),
        merged=functools.partial(lora.merge_trained, adapters),
    )
    return setup, {"base": base, "adapters": lora.init_lora(adapters, base, jax.random.key(0))}


def saved_step(workdir, params):
    """final.json's step, if hf/ and peft/ are of these params."""
    merged = np.asarray(loading.load(workdir / "hf", ignore=("made_by",))[1]["layers"]["q"]["kernel"])
    adapter = peft.load_peft(workdir / "peft", params["base"], model_type="qwen3")[1]["layers"]["q"]
    np.testing.assert_allclose(adapter["b"], params["adapters"]["layers"]["q"]["b"], rtol=1e-6)
    expected = params["base"]["layers"]["q"]["kernel"] + 2.0 * (adapter["a"] @ adapter["b"])
    np.testing.assert_allclose(merged, expected, rtol=1e-5, atol=1e-6)
    assert not [path.name for path in workdir.iterdir() if path.name.startswith(".")], "nothing half-written is left"
    return json.loads((workdir / "final.json").read_text())["step"]


def moved(params, by):
    return params | {"adapters": jax.tree.map(lambda x: x + by, params["adapters"])}


def test_the_folders_of_a_run_that_is_made_longer_are_of_its_last_step(adapted, tmp_path):
    (setup, params), workdir = adapted, tmp_path / "run"
    for step in (4, 6):
        params = moved(params, 0.1)
        write_final(setup, workdir, step, params)
        assert saved_step(workdir, params) == step
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.*") if path.parent != workdir}
    write_final(setup, workdir, 6, params)  # a complete run is started again
    assert before == {path: path.stat().st_mtime_ns for path in before}, "and nothing is written twice"


def test_a_kill_between_the_two_folders_leaves_none_out(adapted, tmp_path, monkeypatch):
    (setup, params), workdir = adapted, tmp_path / "run"
    write_final(setup, workdir, 4, params)
    params = moved(params, 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "save_peft", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_final(setup, workdir, 6, params)
    write_final(setup, workdir, 6, params)
    assert saved_step(workdir, params) == 6
    peft_folder = workdir / "peft"
    peft_folder.rename(tmp_path / "elsewhere")  # of before there was a check of its own
    write_final(setup, workdir, 6, params)
    assert saved_step(workdir, params) == 6


def test_adapters_that_peft_cannot_express_do_not_keep_a_run_from_its_end(adapted, tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ValueError("no form")

    monkeypatch.setattr(run_module, "save_peft", refuse)
    (setup, params), workdir = adapted, tmp_path / "run"
    write_final(setup, workdir, 4, params)
    assert (workdir / "hf").is_dir() and (workdir / "final.json").is_file() and not (workdir / "peft").exists()
    assert f"{workdir} is without peft/: no form" in capsys.readouterr().err


def test_the_runs_of_a_tool_have_its_stop_signal(tmp_path):
    """And are whole runs all the same."""
    with stops.sharing(checkpoint.StopSignal()) as stop:
        first, second = (run(tmp_path / name, stop_after=4)[1] for name in ("first", "second"))
    assert first.stop is second.stop is stop and (first.step, second.step) == (4, 0) and first._whole
    assert run(tmp_path / "first")[1].stop is not stop
