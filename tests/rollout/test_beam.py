"""rollout/lm/beam.py: every completion of a table, listed. On a network: tests/credit/test_token_credit.py."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.rollout.lm.beam import make_beam_search

VOCAB, EOS, PAD, C = 4, 1, 0, 2
TABLE = np.random.default_rng(0).normal(0, 1.5, (5, VOCAB, VOCAB)).astype(np.float32)  # by position and token
MODEL = SimpleNamespace(
    vocab_size=VOCAB,
    apply=lambda params, batch: params[batch.positions, batch.tokens],
    unembed=lambda params, hidden: hidden,
)


def test_beams_are_the_likeliest_of_all_completions_of_a_table():
    """Of a prompt of two tokens and of one beside a hole; an end is a token, and what follows it is none."""
    tokens, mask = jnp.array([[2, 3], [PAD, 3]]), jnp.array([[True, True], [False, True]])
    beams = VOCAB**C
    search = make_beam_search(MODEL, beams=beams, completion_length=C, eos_ids=(EOS,), pad_id=PAD)
    found = jax.jit(search)(TABLE, tokens, mask)
    log_probs = np.asarray(jax.nn.log_softmax(TABLE))
    for row, length in enumerate((2, 1)):
        listed = {}
        for text in itertools.product(range(VOCAB), repeat=C):
            said = text[: text.index(EOS) + 1] if EOS in text else text
            before = (3, *said)
            listed[said] = sum(log_probs[length - 1 + t, before[t], said[t]] for t in range(len(said)))
        best = sorted(listed, key=lambda text: -listed[text])
        rows = zip(np.asarray(found.tokens[row]), np.asarray(found.mask[row]), strict=True)
        texts = [tuple(t[real].tolist()) for t, real in rows]
        assert texts[: len(best)] == best and len(best) < beams
        np.testing.assert_allclose(found.log_probs[row, : len(best)], [listed[x] for x in best], rtol=1e-5)
        assert np.all(np.asarray(found.log_probs[row, len(best) :]) == -np.inf)
        assert np.all(np.asarray(found.tokens[row])[~np.asarray(found.mask[row])] == PAD)


def test_beams_and_completions_have_at_least_one():
    make_beam_search(MODEL, beams=1, completion_length=1, eos_ids=())
    for bad in (dict(beams=0, completion_length=1), dict(beams=1, completion_length=0)):
        with pytest.raises(ValueError, match=f"beams={bad['beams']} and completion_length={bad['completion_length']}"):
            make_beam_search(MODEL, eos_ids=(), **bad)
