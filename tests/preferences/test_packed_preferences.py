"""Encoded preferences through rl_jax.training.packing: a prompt stands there once, scores are those of the padded
rows."""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs.preferences import given
from experiments.parts.preference_data import PreferencePacker, flat, take_rows
from rl_jax import preferences
from rl_jax.core.types import TokenBatch
from rl_jax.models.heads import make_hidden_last
from rl_jax.models.transformer.model import make_transformer
from rl_jax.tokenizers import CharTokenizer
from rl_jax.training.packing import pack
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, random_params

TOKENIZER = CharTokenizer("abcdefghijklmnopqrstuvwxyz ")


@pytest.mark.slow
def test_packed_rows_score_as_padded_ones():
    rng = np.random.default_rng(0)

    def text(length):
        return "".join(rng.choice(list(TOKENIZER.alphabet), length))

    records = []
    for _ in range(6):
        responses = [text(int(rng.integers(1, 12))) for _ in range(int(rng.integers(1, 4)))]
        rewards = [float(-place) for place in range(len(responses))]
        records.append({"prompt": text(int(rng.integers(1, 9))), "responses": responses, "rewards": rewards})
    settings = {"prompt_buckets": (10,), "completion_length": 9, "responses": 3}
    arrays, _ = preferences.encode_preferences(TOKENIZER, records, **settings)
    assert not arrays["present"].all()
    rows = preferences.rows_of(arrays)
    batch, mask = TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]), rows["completion_mask"]
    score = jax.jit(make_score(make_transformer(CONFIG), completion_length=9))
    params = random_params()
    padded = np.where(mask, score(params, batch).log_probs, 0.0)
    assert np.abs(padded).max() > 1
    packed = pack(batch, mask, share_prefix=True, row_length=48)
    # A response that is not there takes no room, and a prompt stands there once for all of its responses.
    prompts = arrays["segment_ids"][:, 0, :-9].sum()
    assert (packed.rows.segment_ids != 0).sum() == prompts + mask.sum()
    np.testing.assert_allclose(score(params, packed).log_probs, padded, atol=2e-5)


@pytest.mark.parametrize("mode", ["packed", "shared_prefix"])
def test_a_head_reads_what_an_environment_wrote_last(mode):
    """The token at each response's end, learned or not, as of padded rows; an absent response takes no room."""
    endings, records = [[True, True, False], [True, False, False, False], [False]], []
    for some in (endings, endings[1:]):
        responses = [{"ids": [5 + 5 * k + i for i in range(len(x))], "trained": x} for k, x in enumerate(some)]
        records.append({"prompt": "a", "responses": responses, "rewards": [0.0] * len(some)})
    arrays, _ = preferences.encode_preferences(TOKENIZER, records, prompt_buckets=(2,), completion_length=4)
    batch = take_rows(arrays, np.arange(2), 2, set())
    config = given.get_config("smoke")
    config.packing.mode = mode
    setup = SimpleNamespace(config=config, mesh=jax.make_mesh((1,), ("data",)))
    # Hidden states that say which token they are of.
    model = SimpleNamespace(apply=lambda params, rows: rows.tokens[..., None].astype(np.float32))
    read, present = jax.jit(functools.partial(make_hidden_last(model), {})), batch.present.reshape(-1)
    packed = PreferencePacker(setup, to_end=True)(batch).batch
    padded = read(flat(batch.batch))[present, 0]
    np.testing.assert_array_equal(padded, [7, 13, 15, 8, 10])
    np.testing.assert_array_equal(read(packed)[present, 0], padded)
    assert (np.max(packed.columns, axis=-1).reshape(-1) >= 0).tolist() == present.tolist()
