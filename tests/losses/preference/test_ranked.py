"""losses/preference/compare/ranked.py: SuperHF against torch, as its code has it. CRRAFT: test_constraints."""

import jax
import jax.numpy as jnp
import numpy as np
import torch

from rl_jax.losses.preference.compare import ranked
from rl_jax.selection import pair_selection


def test_superhf_is_a_token_mean_of_likelihood_and_kl():
    """openfeedback/superhf's finetune_language_model for one row: CE of the model, and kl_loss of its logits."""
    rng = np.random.default_rng(0)
    lengths, vocabulary = (3, 1, 5), 6
    mask = np.arange(5) < np.array(lengths)[:, None]
    logits, original = rng.normal(size=(2, 3, 5, vocabulary))
    tokens = rng.integers(0, vocabulary, (3, 5))
    x = torch.tensor(logits, requires_grad=True)
    expected = []
    for i, length in enumerate(lengths):
        online, base = (torch.log_softmax(y, dim=1) for y in (x[i, :length], torch.tensor(original[i, :length])))
        cross_entropy = torch.nn.functional.nll_loss(online, torch.tensor(tokens[i, :length]))
        kl = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)(online, base)
        expected.append(cross_entropy + 0.35 * kl)
    (slope,) = torch.autograd.grad(sum(expected), x)

    def losses(logits):
        log_pi, log_ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(jnp.asarray(original))
        chosen = jnp.take_along_axis(log_pi, tokens[:, :, None], axis=2)[..., 0]
        kl = jnp.sum(jnp.exp(log_ref) * (log_ref - log_pi), axis=2)
        more = dict(log_probs=jnp.where(mask, chosen, 0.0)[:, None], lengths=jnp.asarray(lengths, float)[:, None])
        more["sequence_kl"] = jnp.sum(jnp.where(mask, kl, 0.0), axis=1)[:, None]
        return ranked.superhf(jnp.zeros((3, 1)), jnp.ones((3, 1), bool), None, **more)

    with jax.enable_x64(True):
        np.testing.assert_allclose(losses(logits), torch.stack(expected).detach().numpy(), rtol=1e-9)
        found = jax.grad(lambda x: losses(x).sum())(jnp.asarray(logits))
        np.testing.assert_allclose(found, slope.numpy(), rtol=1e-7, atol=1e-12)


def test_superhf_reads_the_first_response_only():
    """Of two; a first one that is not there, or has no token, has no loss."""
    rng = np.random.default_rng(1)
    log_probs, kl = -rng.uniform(0.1, 3, (3, 2, 4)), rng.uniform(0, 2, (3, 2))
    lengths, present = np.array([[4.0, 2.0], [3.0, 1.0], [0.0, 4.0]]), np.array([[1, 1], [0, 1], [1, 1]], bool)
    log_probs = np.where(np.arange(4) < lengths[..., None], log_probs, 0.0)
    kl[2, 0] = 0.0
    expected = [(-log_probs[0, 0].sum() + 0.35 * kl[0, 0]) / 4, 0.0, 0.0]
    more = {name: jnp.asarray(x) for name, x in dict(log_probs=log_probs, lengths=lengths, sequence_kl=kl).items()}
    found = ranked.superhf(jnp.full((3, 2), jnp.nan), jnp.asarray(present), None, **more)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_best_stands_alone():
    rewards = jnp.array([[0.1, 0.9, 0.5], [2.0, 2.0, 1.0]])
    found = pair_selection.best(rewards, jax.random.key(0))
    np.testing.assert_array_equal(found.indices, [[[1]], [[0]]])
    assert found.present.shape == (2, 1, 1) and found.present.all()
