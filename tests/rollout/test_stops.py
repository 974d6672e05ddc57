"""Stop strings: rows that are cut on the host equal those of an engine that stops there itself."""

import jax
import numpy as np
import pytest

from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.generate import ContinuousGenerate
from rl_jax.rollout.lm.requests import cut_at_stops, first_stop
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, prompts, random_params

PIECES = ["a", "b", "ab", "ba", "#", "##", "", "é"]
PAD = 6


def text(ids):
    return "".join(PIECES[i] for i in ids)


def naive(tokens, stops):
    """The first length whose text has a stop string, by trying all of them."""
    return next((n for n in range(1, len(tokens) + 1) if any(stop in text(tokens[:n]) for stop in stops)), None)


def random_rollout(seed, rows=6, prompt=3, length=9):
    rng = np.random.default_rng(seed)
    mask = np.arange(length)[None] < rng.integers(0, length + 1, rows)[:, None]
    real = np.concatenate([rng.random((rows, prompt)) < 0.7, mask], axis=1)
    tokens = np.where(real, rng.integers(0, len(PIECES), real.shape), PAD).astype(np.int32)
    positions = (np.maximum(np.cumsum(real, axis=1) - 1, 0) * real).astype(np.int32)
    log_probs = [np.where(mask, -rng.random(mask.shape), 0).astype(np.float32) for _ in range(3)]
    finished = rng.random(rows) < 0.5
    batch = TokenBatch(tokens, positions, real.astype(np.int32))
    versions = np.where(mask, 3, 0).astype(np.int32)
    return Rollout(batch, mask, *log_probs[:2], finished, ~finished, log_probs[2], versions)


@pytest.mark.parametrize("seed", range(20))
def test_rows_end_at_the_first_stop_string(seed):
    stops, rollout = [("##", "ba"), ("bab",), ("é",), ("#", "##")][seed % 4], random_rollout(seed)
    found, prompt = cut_at_stops(rollout, text, stops, pad_id=PAD), 3
    for row, mask in enumerate(rollout.completion_mask):
        sampled = rollout.batch.tokens[row, prompt:][mask].tolist()
        end = naive(sampled, stops)
        kept = len(sampled) if end is None else end
        assert found.completion_mask[row].tolist() == [i < kept for i in range(len(mask))]
        assert found.batch.tokens[row, prompt:].tolist() == sampled[:kept] + [PAD] * (len(mask) - kept)
        for name in ("sampled_log_probs", "raw_log_probs", "token_rewards", "versions"):
            before, after = getattr(rollout, name)[row], getattr(found, name)[row]
            assert after.dtype == before.dtype and after[kept:].max(initial=0) == after[kept:].min(initial=0) == 0
            np.testing.assert_array_equal(after[:kept], before[:kept])
        for x, y in zip(found.batch[:3], rollout.batch[:3], strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x[row, :prompt], y[row, :prompt], err_msg="the prompt")
        assert found.batch.segment_ids[row, prompt:].tolist() == found.completion_mask[row].astype(int).tolist()
        assert found.batch.positions[row, prompt + kept :].tolist() == [0] * (len(mask) - kept)
        assert (found.finished[row], found.truncated[row]) == (
            (rollout.finished[row], rollout.truncated[row]) if end is None else (True, False)
        )
    again = cut_at_stops(found, text, stops, pad_id=PAD)
    jax.tree.map(np.testing.assert_array_equal, again, found)


def test_without_stop_strings_nothing_is_touched():
    rollout = random_rollout(0)
    assert cut_at_stops(rollout, None, (), pad_id=PAD) is rollout


@pytest.mark.parametrize("seed", range(30))
def test_the_first_stop_of_a_later_part(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, len(PIECES), 12).tolist()
    expected = naive(tokens, ("ab#", "é"))
    for start in range(12 if expected is None else expected):
        assert first_stop(text, tokens, ("ab#", "é"), start) == expected


@pytest.mark.slow
def test_both_engines_give_the_same_rows_also_under_a_repetition_penalty():
    """And the behavior log-probs stay those of the distribution that was sampled from, the raw ones the model's."""
    model, sampling, eos = make_transformer(CONFIG), Sampling(0.9, repetition_penalty=1.4), tuple(range(5, 64, 16))
    options = dict(completion_length=12, group_size=3, sampling=sampling, eos_ids=eos, pad_id=1)
    given = (random_params(), *prompts([6, 2, 8, 1, 7], 8), jax.random.key(3))

    def decode(ids):
        return "".join(chr(ord("0") + i) for i in ids)

    stops = tuple(chr(ord("0") + i) for i in range(2, 64, 6))
    whole = jax.device_get(jax.jit(make_generate(model, **options))(*given))
    cut = cut_at_stops(whole, decode, stops, pad_id=1)
    shorter = cut.completion_mask.sum(axis=1) < whole.completion_mask.sum(axis=1)
    assert 3 < shorter.sum() < 15 and cut.finished[shorter].all() and not cut.truncated[shorter].any()
    engine = dict(prompt_length=8, slots=4, sizes=(4, 2), chunk=4, steps=5, decode_text=decode)
    continuous = ContinuousGenerate(model, stop_strings=stops, **engine, **options)
    found = continuous(*given)
    for field in ("batch", "completion_mask", "finished", "truncated"):
        jax.tree.map(np.testing.assert_array_equal, getattr(found, field), getattr(cut, field))
    for field in ("sampled_log_probs", "raw_log_probs"):
        np.testing.assert_allclose(getattr(found, field), getattr(cut, field), atol=1e-5)
    mask, raw = cut.completion_mask, jax.jit(make_score(model, completion_length=12))(given[0], cut.batch).log_probs
    np.testing.assert_allclose(np.where(mask, raw, 0), cut.raw_log_probs, atol=1e-5)
    # The distribution with the penalty, token by token, in numpy.
    hidden = model.apply(given[0], TokenBatch(*(np.asarray(x) for x in cut.batch[:3])))
    logits = np.asarray(model.unembed(given[0], hidden), np.float64)
    for row in range(0, 15, 4):
        for column in np.flatnonzero(mask[row]):
            place = 8 + column
            before = cut.batch.tokens[row, :place][cut.batch.segment_ids[row, :place] > 0]
            scaled = logits[row, place - 1].copy()
            seen = np.unique(before)
            scaled[seen] = np.where(scaled[seen] > 0, scaled[seen] / 1.4, scaled[seen] * 1.4)
            scaled /= 0.9
            expected = scaled[cut.batch.tokens[row, place]] - np.logaddexp.reduce(scaled)
            assert abs(expected - cut.sampled_log_probs[row, column]) < 1e-4
