"""Real single-token pairs whose optimum is known: Anthropic's persona statements, answered with " Yes" or " No".

Where a response is one token, a statement's two answers are a bandit with two arms, and its label_confidence says how
often the first is right. Then the margin h = logit(policy) - logit(reference) has a closed-form optimum for each loss,
and gradient descent on rl_jax.dpo.loss has to arrive there, statement by statement.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import dpo, preferences
from rl_jax.core.types import PreferenceBatch, TokenScores
from rl_jax.losses.preference import links
from tests.paths import shared_data

BETA, NUMBER, TAU = 0.5, 64, 0.25


@pytest.fixture(scope="module")
def statements(tmp_path_factory):
    """(label confidence [N] of the chosen answer, chosen answer is " Yes" [N]) of real statements."""
    source = preferences.load(
        "persona", path=str(shared_data("prefs")), data_dir=str(tmp_path_factory.mktemp("tfds"))
    ).data_source("train")
    records = sorted((source[i] for i in range(len(source))), key=lambda record: record["label_prob"])
    records = records[:: len(records) // NUMBER][:NUMBER]  # from doubtful to sure
    assert all(sorted(record["responses"]) == [" No", " Yes"] for record in records)
    confidence = np.array([record["label_prob"] for record in records], np.float32)
    return confidence, np.array([record["responses"][0] == " Yes" for record in records])


def margins(logits, reference, yes):
    """h [N] of the chosen answer. logits: of " Yes"."""
    sign = jnp.where(yes, 1.0, -1.0)
    return sign * (logits - reference)


def descend(objective, confidence, yes, *, steps=4000, rate=2.0):
    """The policies' logits of " Yes" [N] after gradient descent from the reference."""
    reference = jnp.linspace(-1.0, 1.0, NUMBER)

    def log_probs(logits):
        both = jnp.stack([jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)], axis=1)  # " Yes", " No"
        return jnp.where(yes[:, None], both, both[:, ::-1])[:, :, None]

    def loss(logits):
        there = jnp.ones((NUMBER, 2), bool)
        batch = PreferenceBatch(
            batch=None,
            completion_mask=there[:, :, None],
            present=there,
            rewards=jnp.tile(jnp.array([[1.0, 0.0]]), (NUMBER, 1)),
            ref_log_probs=log_probs(reference),
            extras={"label_probs": jnp.asarray(confidence)},
        )
        scores = log_probs(logits).reshape(2 * NUMBER, 1)
        return dpo.loss(TokenScores(scores, jnp.zeros_like(scores)), batch, objective)[0].total

    step = jax.jit(lambda _, logits: logits - rate * jax.grad(loss)(logits))
    return jax.lax.fori_loop(0, steps, step, reference), reference


def test_soft_labels_end_at_the_log_odds_of_the_confidence(statements):
    """beta h = log(p / (1 - p)): pi / ref is tilted by exactly what the labels say."""
    confidence, yes = statements
    wanted = np.log(confidence / (1 - confidence))
    assert np.ptp(wanted) > 1.0 and 0 < yes.mean() < 1
    logits, reference = descend(dpo.Objective(beta=BETA, link=links.soft_label), confidence, yes, steps=8000)
    np.testing.assert_allclose(BETA * margins(logits, reference, yes), wanted, atol=2e-3)


def test_smoothed_labels_end_at_the_same_margin(statements):
    """cDPO: beta h = log((1 - eps) / eps), whatever the statement."""
    confidence, yes = statements
    link = functools.partial(links.logistic, label_smoothing=0.2)
    logits, reference = descend(dpo.Objective(beta=BETA, link=link), confidence, yes)
    np.testing.assert_allclose(BETA * margins(logits, reference, yes), np.log(4.0), atol=2e-3)


def test_ipo_ends_at_half_of_the_inverse_of_tau(statements):
    """h = 1 / (2 tau)."""
    confidence, yes = statements
    link = functools.partial(links.square, target=1 / (2 * TAU))
    logits, reference = descend(dpo.Objective(beta=1.0, link=link), confidence, yes, steps=2000, rate=0.2)
    np.testing.assert_allclose(margins(logits, reference, yes), 1 / (2 * TAU), atol=2e-3)


def test_dpo_itself_does_not_end(statements):
    confidence, yes = statements
    early, reference = descend(dpo.Objective(beta=BETA), confidence, yes, steps=500)
    late, _ = descend(dpo.Objective(beta=BETA), confidence, yes, steps=4000)
    assert jnp.min(margins(late, reference, yes) - margins(early, reference, yes)) > 1.0
