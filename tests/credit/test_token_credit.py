"""credit/token_credit.py and rollout/lm/beam.py: a token MDP solved by hand, and every completion, listed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.credit.token_credit import implicit_credit
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.rollout.lm.beam import make_beam_search

BETA, VOCAB, DEPTH = 0.7, 3, 3


def test_credit_is_the_advantage_of_the_soft_optimum():
    """Backward recursion in the token MDP: pi* = ref exp((Q - V) / beta), rewards of whole texts only."""
    rng = np.random.default_rng(0)
    rewards = {text: rng.normal() for text in itertools.product(range(VOCAB), repeat=DEPTH)}
    prefixes = [p for length in range(DEPTH) for p in itertools.product(range(VOCAB), repeat=length)]
    ref = {prefix: rng.dirichlet(np.ones(VOCAB)) for prefix in prefixes}

    def value(prefix):
        if len(prefix) == DEPTH:
            return rewards[prefix]
        q = np.array([value((*prefix, a)) for a in range(VOCAB)])
        return BETA * np.log(np.sum(ref[prefix] * np.exp(q / BETA)))

    for text, reward in rewards.items():
        ratios, gains = [], []
        for t, token in enumerate(text):
            q = np.array([value((*text[:t], a)) for a in range(VOCAB)])
            policy = ref[text[:t]] * np.exp((q - value(text[:t])) / BETA)
            assert policy.sum() == pytest.approx(1.0)
            ratios.append(np.log(policy[token] / ref[text[:t]][token]))
            gains.append(value(text[: t + 1]) - value(()))
        row, mask = jnp.array([[*ratios, np.nan]]), jnp.array([[True] * DEPTH + [False]])
        credit, gain = implicit_credit(row, mask, beta=BETA)
        advantages = [value(text[: t + 1]) - value(text[:t]) for t in range(DEPTH)]
        np.testing.assert_allclose(credit[0], [*advantages, 0.0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gain[0, :DEPTH], gains, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gain[0, -1], reward - value(()), rtol=1e-4, atol=1e-5)


EOS, PAD, TOKENS, LENGTH = 1, 0, 5, 3


@pytest.fixture(scope="module")
def small():
    sizes = dict(embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=16)
    model = make_transformer(TransformerConfig(vocab_size=TOKENS, **sizes))
    return model, jax.tree.map(lambda x: 3.0 * x, model.init(jax.random.key(0)))


def every_completion(model, params, prompt):
    """{completion: log-prob} of all texts of up to LENGTH tokens that end with an EOS or are cut off."""
    texts = itertools.product(range(TOKENS), repeat=LENGTH)
    rows = np.array([[*prompt, *text] for text in texts], np.int32)
    ones = np.ones_like(rows)
    hidden = model.apply(params, TokenBatch(rows, np.cumsum(ones, axis=1, dtype=np.int32) - 1, ones))
    logs = np.asarray(jax.nn.log_softmax(model.unembed(params, hidden)))
    found = {}
    for row, log in zip(rows, logs, strict=True):
        text, total = [], 0.0
        for t in range(len(prompt), len(row)):
            text.append(int(row[t]))
            total += log[t - 1, row[t]]
            if row[t] == EOS:
                break
        found[tuple(text)] = total
    return found


@pytest.mark.slow
def test_beams_are_the_likeliest_of_all_completions(small):
    model, params = small
    prompts = [[2, 3, 4], [4]]
    tokens = np.array([[2, 3, 4], [PAD, PAD, 4]], np.int32)
    mask = np.array([[True] * 3, [False, False, True]])
    options = dict(completion_length=LENGTH, eos_ids=(EOS,), pad_id=PAD)
    found = jax.jit(make_beam_search(model, beams=TOKENS**2, **options))(params, tokens, mask)
    greedy = jax.jit(make_beam_search(model, beams=1, **options))(params, tokens, mask)
    for row, prompt in enumerate(prompts):
        everything = every_completion(model, params, prompt)
        best = sorted(everything, key=lambda text: -everything[text])
        texts = [
            tuple(t[m].tolist())
            for t, m in zip(np.asarray(found.tokens[row]), np.asarray(found.mask[row]), strict=True)
        ]
        assert texts[:5] == best[:5] and len(set(texts)) == len(texts)
        np.testing.assert_allclose(found.log_probs[row], [everything[text] for text in texts], rtol=1e-4, atol=1e-4)
        assert (np.diff(found.log_probs[row]) <= 0).all()
        first = tuple(np.asarray(greedy.tokens[row, 0])[np.asarray(greedy.mask[row, 0])].tolist())
        np.testing.assert_allclose(greedy.log_probs[row, 0], everything[first], rtol=1e-4, atol=1e-4)
        for t in range(len(first)):  # each token is the likeliest after those before it
            heads = {text[t]: 0 for text in everything if text[:t] == first[:t]}
            mass = {
                h: np.logaddexp.reduce([p for x, p in everything.items() if x[: t + 1] == (*first[:t], h)])
                for h in heads
            }
            assert max(mass, key=mass.get) == first[t]
    with pytest.raises(ValueError, match="beams=0 and completion_length=3 must be at least 1"):
        make_beam_search(model, beams=0, **options)
