"""Reference log-probs on disk: found again by content, never for other params or rows, made again where damaged."""

import shutil
import warnings

import jax
import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.model import make_transformer
from rl_jax.tokenizers import CharTokenizer
from rl_jax.training import checkpoint
from rl_jax.training.ref_log_prob_cache import ReferenceCache
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, random_params

IDENTITY = {"params": "sha", "temperature": 1.0}


def rows(count=7, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.arange(4) < rng.integers(0, 5, (count, 2, 1))
    tokens = rng.integers(3, 60, (count, 2, 9)).astype(np.int32)
    return {"tokens": tokens, "positions": tokens % 9, "segment_ids": tokens % 2, "completion_mask": mask}


class Score:
    """tokens / 7 of the last columns, and what was asked for."""

    def __init__(self):
        self.shapes = []

    def __call__(self, batch):
        self.shapes.append(batch["tokens"].shape)
        return batch["tokens"][..., -4:].astype(np.float32) / 7


def test_what_is_scored_once_is_read_afterwards(tmp_path):
    score, arrays = Score(), rows()
    cache = ReferenceCache(tmp_path / "cache", IDENTITY)
    made = cache.get_or_make(arrays, score, batch_size=3)
    assert score.shapes == [(3, 2, 9)] * 3 and cache.made == 1
    expected = np.where(arrays["completion_mask"], arrays["tokens"][..., -4:].astype(np.float32) / 7, 0)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == np.float32 and made.shape == (7, 2, 4)
    again = ReferenceCache(tmp_path / "cache", dict(reversed(IDENTITY.items())))  # another process, another order
    np.testing.assert_array_equal(again.get_or_make(arrays, score, batch_size=5), made)
    assert len(score.shapes) == 3 and again.made == 0
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [again.path(arrays).name]


def test_fewer_rows_than_a_batch(tmp_path):
    score, arrays = Score(), rows(2)
    found = ReferenceCache(tmp_path, IDENTITY).get_or_make(arrays, score, batch_size=5)
    assert score.shapes == [(5, 2, 9)] and found.shape == (2, 2, 4)


@pytest.mark.parametrize("name", ["tokens", "positions", "segment_ids", "completion_mask"])
def test_other_rows_are_other_files(tmp_path, name):
    cache, score, arrays = ReferenceCache(tmp_path, IDENTITY), Score(), rows()
    cache.get_or_make(arrays, score, batch_size=7)
    changed = arrays | {name: arrays[name].copy()}
    changed[name][3, 1, 2] = ~changed[name][3, 1, 2] if name == "completion_mask" else changed[name][3, 1, 2] + 1
    cache.get_or_make(changed, score, batch_size=7)
    assert cache.made == 2 and cache.path(changed) != cache.path(arrays)
    cache.get_or_make({key: value.reshape(7, 2, 1, -1) for key, value in arrays.items()}, score, batch_size=7)
    assert cache.made == 3  # the same bytes in another shape


@pytest.mark.parametrize("changed", [{"params": "other"}, {"temperature": 0.5}, {"dtype": "bfloat16"}])
def test_another_identity_is_another_file(tmp_path, changed):
    score, arrays = Score(), rows()
    ReferenceCache(tmp_path, IDENTITY).get_or_make(arrays, score, batch_size=7)
    cache = ReferenceCache(tmp_path, IDENTITY | changed)
    cache.get_or_make(arrays, score, batch_size=7)
    assert cache.made == 1 and len(list(tmp_path.iterdir())) == 2
    # Even a file that was given the wrong name is not read.
    shutil.copy(ReferenceCache(tmp_path, IDENTITY).path(arrays), cache.path(arrays))
    with pytest.warns(UserWarning, match="is damaged and is rebuilt"):
        cache.get_or_make(arrays, score, batch_size=7)
    assert cache.made == 2


def test_the_identity_names_its_params(tmp_path):
    with pytest.raises(ValueError, match="identity needs 'params'"):
        ReferenceCache(tmp_path, {"temperature": 1.0})


@pytest.mark.parametrize("damage", ["cut", "empty", "text", *range(0, 1000, 90)])
def test_a_damaged_file_is_reported_and_made_again(tmp_path, damage):
    cache, score, arrays = ReferenceCache(tmp_path, IDENTITY), Score(), rows(60)
    made = cache.get_or_make(arrays, score, batch_size=60)
    path = cache.path(arrays)
    raw = bytearray(path.read_bytes())
    assert len(raw) > 1000
    if isinstance(damage, int):
        raw[damage] ^= 0xFF
    path.write_bytes({"cut": bytes(raw[:-100]), "empty": b"", "text": b"hello"}.get(damage, bytes(raw)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cache.get_or_make(arrays, score, batch_size=60)
    np.testing.assert_array_equal(found, made)
    # A bit of a zip's date may change and harm nothing; whatever harms is said, with the file's name.
    assert cache.made == 1 + len(caught) and all(str(path) in str(item.message) for item in caught)
    if not isinstance(damage, int) or damage > 200:
        assert len(caught) == 1
    np.testing.assert_array_equal(cache.get_or_make(arrays, score, batch_size=60), made)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda batch: np.zeros((7, 2, 5)), r"score returned \(7, 2, 5\) for a mask of \(7, 2, 4\)"),
        (lambda batch: np.full((7, 2, 4), np.nan), r"a log-prob of rows 0\.\.6 is not finite"),
    ],
)
def test_a_broken_score_leaves_no_file(tmp_path, score, message):
    cache = ReferenceCache(tmp_path, IDENTITY)
    with pytest.raises(ValueError, match=message):
        cache.get_or_make(rows(), score, batch_size=7)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        cache.get_or_make(rows(), score, batch_size=0)
    assert not list(tmp_path.iterdir()) and cache.made == 0


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("rl_jax.training.ref_log_prob_cache.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        ReferenceCache(tmp_path, IDENTITY).get_or_make(rows(), Score(), batch_size=7)
    assert not list(tmp_path.iterdir())


def test_as_a_program_uses_it(tmp_path):
    """The docstring's use: a model's scores of encoded pairs; other params are another reference."""
    tokenizer = CharTokenizer("abcdef")
    records = [
        {"prompt": "ab" * place, "responses": ["c" * place, "de"], "rewards": [1.0, 0.0]} for place in range(1, 6)
    ]
    arrays, _ = preferences.encode_preferences(tokenizer, records, prompt_buckets=(12,), completion_length=6)
    score = jax.jit(make_score(make_transformer(CONFIG), completion_length=6))

    def reference(params):
        def score_rows(part):
            flat = preferences.rows_of(part)
            batch = TokenBatch(flat["tokens"], flat["positions"], flat["segment_ids"])
            return np.asarray(score(params, batch).log_probs).reshape(part["completion_mask"].shape)

        cache = ReferenceCache(tmp_path, {"params": checkpoint.checksum(params), "temperature": 1.0})
        return cache.get_or_make(arrays, score_rows, batch_size=2), cache.made

    first, second = random_params(), random_params(seed=1)
    (made, one), (read, none), (other, again) = reference(first), reference(first), reference(second)
    assert (one, none, again) == (1, 0, 1)
    np.testing.assert_array_equal(made, read)
    assert np.abs(made - other).max() > 0.1 and not made[~arrays["completion_mask"]].any()
