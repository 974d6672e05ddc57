"""Held-out numbers: exact counts, padded rows left out, the same at every call; and --skip_bad_records end to end."""

import contextlib
import gzip
import json
import shutil
import types

import jax
import numpy as np
import pytest

from configs.tasks import game24
from experiments import evaluate, grpo
from experiments.parts import flags, judging
from experiments.parts.rewards import make_rewards
from experiments.parts.setup import load_params, make_setup
from rl_jax import tasks
from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.data import readers
from tests.experiments.small import config as small_config
from tests.experiments.small import kept_signals, no_evaluations  # noqa: F401  fixtures
from tests.paths import shared_data

NUM_TEST = 20


@pytest.fixture
def setup(tmp_path):
    return make_setup(small_config(tmp_path, eval__num_prompts=NUM_TEST, eval__batch_size=8, log__sample_rows=5))


def answering(setup, right):
    """A stand-in for make_generate: `right(index of the test problem, sample)` says whether to answer correctly."""
    source = setup.task.data_source("test")
    tokenizer, length = setup.task.tokenizer, setup.config.rollout.completion_length
    numbers = {source[i]["prompt"]: i for i in range(len(source))}
    calls = []

    def generate(params, tokens, prompt_mask, key):
        calls.append((tokens.shape, jax.random.key_data(key).tolist()))
        rows, finished = [], []
        for prompt in (tokenizer.decode(row[mask].tolist()) for row, mask in zip(tokens, prompt_mask, strict=True)):
            index = numbers[prompt]
            for sample in range(setup.config.eval.samples_per_prompt):
                answer = json.loads(source[index]["info"])["answer"] + (0 if right(index, sample) else 1)
                rows.append(tokenizer.encode(str(answer), eos=True)[:length])
                finished.append(True)
        completions = np.zeros((len(rows), length), np.int32)
        mask = np.zeros(completions.shape, bool)
        for i, row in enumerate(rows):
            completions[i, : len(row)], mask[i, : len(row)] = row, True
        prompts = np.repeat(tokens, setup.config.eval.samples_per_prompt, axis=0)
        whole = np.concatenate([prompts, completions], axis=1)
        blank, finished = np.zeros(mask.shape, np.float32), np.array(finished)
        return Rollout(TokenBatch(whole, whole, whole), mask, blank, blank, finished, ~finished)

    return generate, calls


def replace_generate(setup, monkeypatch, right):
    """Puts the stand-in in the place of the sampler; returns the list of its calls."""
    generate, calls = answering(setup, right)
    monkeypatch.setattr(judging, "jit_generate", lambda made, setup: generate)
    return calls


@pytest.mark.parametrize("samples", [1, 2])
def test_pass_at_1_is_exact_and_padding_is_not_counted(setup, monkeypatch, samples):
    setup.config.eval.samples_per_prompt = samples
    # Every problem but the first is answered: the last batch (4 of 8) is filled up with copies of its first record,
    # which would add four right answers if they were counted.
    calls = replace_generate(setup, monkeypatch, lambda index, sample: index != 0 and sample == 0)
    with make_rewards(setup) as pool:
        evaluate_fn = judging.make_evaluate(setup, pool)
        metrics, rows = evaluate_fn(None)
        again = evaluate_fn(None)
    assert metrics["eval/pass@1"] == (NUM_TEST - 1) / NUM_TEST / samples
    assert metrics["eval/truncated"] == 0.0 and "eval/correct" not in metrics
    assert [shape for shape, _ in calls] == [(8, 8)] * 6, "one shape, one compilation"
    assert (metrics, rows) == again and calls[:3] == calls[3:]
    assert len({str(key) for _, key in calls[:3]}) == 3, "each batch has random numbers of its own"
    assert len(rows) == 5 and [row["reward"] for row in rows[:1]] == [0.0]
    assert {row["split"] for row in rows} == {"eval"}


def test_an_evaluation_is_written_whole_or_not_at_all(tmp_path, monkeypatch, capsys):
    """Killed before the file is in its place, it leaves the earlier one."""
    task = types.SimpleNamespace(tokenizer=None)
    setup = types.SimpleNamespace(init_params=lambda: None, task=task)
    monkeypatch.setattr(evaluate, "left_out", lambda setup: {"num_too_long": 3})
    for name in ("need_reward", "need_params"):
        monkeypatch.setattr(evaluate, name, lambda config: None)
    monkeypatch.setattr(evaluate, "make_setup", lambda config, task: setup)
    monkeypatch.setattr(evaluate, "with_data", lambda setup: setup)
    monkeypatch.setattr(evaluate, "make_rewards", lambda setup: contextlib.nullcontext())
    monkeypatch.setattr(evaluate, "make_any_evaluate", lambda setup, rewards: lambda params: ({"eval/reward": 0.5}, []))
    config, path = types.SimpleNamespace(init_from=""), tmp_path / "evaluation.json"
    assert evaluate.run(config, tmp_path) == json.loads(path.read_text())["metrics"] == {"eval/reward": 0.5}
    assert json.loads(path.read_text())["left_out"] == {"num_too_long": 3}
    path.write_text("earlier")
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(config, tmp_path)
    assert path.read_text() == "earlier"
    assert "0.5000" in capsys.readouterr().out  # what an hour has found is not lost with the disk
    monkeypatch.setattr(evaluate, "make_any_evaluate", lambda *_: pytest.fail("evaluated before the disk was tried"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file/here cannot be written: a file is where a folder is needed"):
        evaluate.run(config, tmp_path / "file/here")


def test_what_is_not_evaluated_is_counted(tmp_path):
    """Red before: questions that were too long were left out of a test of contamination, and nothing said so."""
    source, config = Sized(range(500)), small_config(tmp_path, eval__num_prompts=300)
    source.report = {"num_too_long": 7, "num_unfit": 2, "num_skipped": 0}
    setup = types.SimpleNamespace(config=config, task=types.SimpleNamespace(data_source={"test": source}.get))
    assert evaluate.left_out(setup) == {"num_too_long": 7, "eval.num_prompts": 200}
    source.report["num_too_long"], config.eval.num_prompts = 0, 500
    assert evaluate.left_out(setup) == {}
    source.num_skipped = 3
    assert evaluate.left_out(setup) == {"num_skipped": 3}


class Sized(list):
    """A source with a report."""


def test_a_full_last_batch_and_a_limit(setup, monkeypatch):
    setup.config.eval.update(num_prompts=16, batch_size=8)
    replace_generate(setup, monkeypatch, lambda index, sample: index % 4 == 0)
    with make_rewards(setup) as pool:
        metrics, _ = judging.make_evaluate(setup, pool)(None)
    assert metrics["eval/pass@1"] == 4 / 16


@pytest.mark.slow
def test_the_model_itself_gives_the_same_numbers_at_every_call(setup):
    params = setup.init_params()
    with make_rewards(setup) as pool:
        evaluate_fn = judging.make_evaluate(setup, pool)
        first, second = evaluate_fn(params), evaluate_fn(params)
        assert first == second
        with make_rewards(setup) as other:
            assert judging.make_evaluate(setup, other)(params) == first
    assert 0.0 <= first[0]["eval/pass@1"] <= 1.0 and first[0]["eval/completion_length"] <= 4


def test_params_of_a_run_that_is_not_there(setup, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoints there; run experiments.sft or .grpo first"):
        load_params(setup, tmp_path / "nothing")


@pytest.fixture
def damaged(tmp_path):
    """A copy of the real puzzles in which line 3 of the training file is cut off."""
    folder = tmp_path / "math"
    folder.mkdir()
    for split in ("train", "test"):
        shutil.copy(shared_data(f"math/game24_{split}.jsonl.gz"), folder)
    path = folder / "game24_train.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    lines[2] = lines[2][: len(lines[2]) // 2].rstrip(b"\n") + b"\n"
    path.write_bytes(gzip.compress(b"".join(lines[:200])))
    return folder


def test_a_damaged_line_stops_or_is_counted(damaged, tmp_path):
    settings = dict(path=str(damaged), data_dir=str(tmp_path / "data"))
    with pytest.raises(readers.DataError, match=r"game24_train\.jsonl\.gz, line 3"):
        tasks.load("game24", **settings)
    source = tasks.load("game24", skip_bad_records=True, **settings).data_source("train")
    assert source.num_skipped == 1 and "line 3" in source.report["skipped"][0]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals", "no_evaluations")
def test_the_flag_counts_it_in_the_metrics(damaged, tmp_path, monkeypatch):
    """Without it the program stops as the task does (above)."""
    config, like = game24.get_config("smoke"), small_config(tmp_path)
    for group in ("model", "sft", "train", "eval", "log", "reward"):
        config[group] = like[group]
    config.task.update(path=str(damaged), data_dir=str(tmp_path / "data"))
    config.rollout.update(completion_length=4, prompt_buckets=(16,))
    config.train.steps = 1
    given = dict(config=config.lock(), workdir=str(tmp_path / "run"), skip_bad_records=True)
    given |= dict(compile_cache="", profile=None, fork="")
    monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**given))
    monkeypatch.setattr(flags.stops, "_stopped", False)  # by another file of this process
    monkeypatch.setattr(flags.processes, "start", lambda *, supported: None)  # it reads flags of its own
    assert flags.start(grpo.run) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["data/skipped_records"] == 1
