"""Stop strings, repetition penalty and the evaluation's own length, from the config to samples.jsonl."""

import json

import pytest

from experiments import grpo
from experiments.parts.check_config import check
from experiments.parts.encoding import whole_text
from experiments.parts.setup import sampling_of
from rl_jax import tokenizers
from rl_jax.rollout.lm.sampling import Sampling
from tests import tiny_tokenizers
from tests.experiments import small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("engine", ["lockstep", "continuous"])
def test_completions_end_at_their_stop_strings(tmp_path, engine, capsys):
    config = small.config(
        tmp_path, train__steps=2, eval__every=1, eval__num_prompts=64, eval__batch_size=64, log__sample_rows=64,
        checkpoint__every=100,
        rollout__completion_length=8, rollout__engine__name=engine,
        reward__function=small.reward(small.sevens), rollout__stop_strings=("7", "=+"), eval__stop_strings=("1",),
        rollout__repetition_penalty=1.5, eval__completion_length=3, log__print_completions=2,
    )  # fmt: skip
    grpo.run(config, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["split"] == "train"]
    ended = [row for row in trained if row["completion"].endswith(("7", "=+"))]
    assert len(ended) > 3 and all(row["finished"] and not row["truncated"] for row in ended)
    for row in trained:
        assert "7" not in row["completion"][:-1] and "=+" not in row["completion"][:-1], row
    assert {row["reward"] for row in trained} == {0.0, 1.0}
    printed = capsys.readouterr().out
    assert printed.count("train: 2 of 32 completions") == 2 and printed.count("eval: 2 of 20 completions") == 3
    evaluated = [row["completion"] for row in rows if row["split"] == "eval"]
    assert max(map(len, evaluated)) == 3 and any("7" in text[:-1] for text in evaluated)
    assert any(text.endswith("1") for text in evaluated) and not any("1" in text[:-1] for text in evaluated)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()][1:]
    # The sampler's own log-probs go into the weights: those of the penalised distribution, not the model's.
    assert all(row["sampler/gap_max"] > 0.05 and row["ratio/first_max_dev"] < 1e-5 for row in metrics)


def test_the_fields_become_the_sampling_rule(tmp_path):
    config = small.config(tmp_path, eval__repetition_penalty=1.2)
    assert sampling_of(config.eval) == Sampling(repetition_penalty=1.2) and sampling_of(config.rollout) == Sampling()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rollout__repetition_penalty", 0.0, "rollout.repetition_penalty=0.0 must be above 0"),
        ("eval__completion_length", -1, r"eval.completion_length=-1 must be 0 \(that of rollout\) or more"),
        ("eval__stop_strings", ("",), r"eval.stop_strings=\('',\) must be a tuple of texts, none empty"),
        ("rollout__stop_strings", (7,), r"rollout.stop_strings=\(7,\) must be a tuple of texts"),
    ],
)
def test_senseless_values_are_named(tmp_path, field, value, said):
    config = small.config(tmp_path)
    with pytest.raises(ValueError, match=said):
        with config.unlocked(), config.ignore_type():
            group, name = field.split("__")
            config[group][name] = value
        check(config)


def test_stop_strings_see_special_tokens(tmp_path):
    read = tokenizers.load_tokenizer(tiny_tokenizers.chatml(tmp_path / "folder"))
    ids = [*read.encode("Hello"), read.encode("<|im_start|>")[0]]
    assert whole_text(read)(ids) == "Hello<|im_start|>"
    chat = tokenizers.ChatPrompts(tokenizers.ChatTemplate.load(tmp_path / "folder", read))
    assert whole_text(chat)(ids) == "Hello<|im_start|>"
    characters = tokenizers.CharTokenizer("ab")
    assert whole_text(characters)([3, 4, 2]) == "ab"
