"""What supervised fine-tuning learns of records: whose completions, and what is said of those it cuts or leaves out."""

import json
from types import SimpleNamespace

import pytest
from ml_collections import ConfigDict

from experiments.parts import encoding
from rl_jax.tokenizers import CharTokenizer


def setup_of(*, completion_length=6, **more):
    """A setup of characters, with prompts of at most 4 tokens, BOS included."""
    rollout = dict(prompt_buckets=(2, 4), completion_length=completion_length, long_prompts="stop")
    config = ConfigDict(dict(rollout=rollout, log=dict(progress=True), **more))
    return SimpleNamespace(config=config, task=SimpleNamespace(tokenizer=CharTokenizer("abcxyz")))


def learned(setup, record) -> str:
    """The text that is in the loss."""
    batch, mask = encoding.encode_sft(setup, [record])
    return setup.task.tokenizer.decode(batch.tokens[0, -mask.shape[1] :][mask[0]].tolist())


@pytest.mark.parametrize("turns", [["b", "c"], "bc", 2])
def test_a_column_named_turns_is_not_learned(turns):
    record = {"prompt": "a", "completion": "xyz", "info": json.dumps({"turns": turns})}
    assert learned(setup_of(), record) == "xyz"
    record["info"] = json.dumps({"recorded_turns": ["x", "b", "y"]})
    assert learned(setup_of(), record) == "xy"
