"""sft.py: the mean negative log-prob of completion tokens, and that training on it learns a text by heart."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax import sft
from rl_jax.core.types import TokenScores
from rl_jax.losses import aggregate
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training.scoring import make_score
from rl_jax.training.step import init_state, make_train_step
from tests.tiny import CONFIG, token_batch

LOG_PROBS = jnp.array([[-1.0, -2.0, -3.0], [-4.0, jnp.nan, jnp.nan]])
MASK = jnp.array([[True, True, True], [True, False, False]])


def test_mean_over_tokens_and_over_rows():
    scores = TokenScores(LOG_PROBS, -LOG_PROBS / 2)
    loss, metrics = sft.loss(scores, MASK)
    assert (loss.total, loss.count) == (10.0, 4.0)
    assert metrics["entropy"].value() == 1.25
    by_row, _ = sft.loss(scores, MASK, aggregate=aggregate.seq_mean_token_mean)
    assert by_row.value() == 3.0  # (2 + 4) / 2


def test_gradient_is_minus_one_over_the_count_on_the_mask_and_zero_behind_it():
    gradient = jax.grad(lambda x: sft.loss(TokenScores(x, jnp.zeros_like(x)), MASK)[0].value())(LOG_PROBS)
    np.testing.assert_allclose(gradient, np.where(MASK, -0.25, 0.0))


def test_learns_four_rows_by_heart():
    """From log(64) = 4.2 nats a token to under 0.1: the loss, the scorer and the train step fit together."""
    model = make_transformer(CONFIG)
    batch = token_batch([12, 9, 10, 12], 12, left=False)
    mask = batch.segment_ids[:, 4:] > 0
    score = make_score(model, completion_length=8)
    optimizer = optax.adam(1e-2)

    def loss_fn(params, data):
        tokens, mask = data
        return sft.loss(score(params, tokens), mask)

    step = jax.jit(make_train_step(loss_fn, optimizer, max_grad_norm=1.0), donate_argnums=0)
    state = init_state(model.init(jax.random.key(0)), optimizer, jax.random.key(1))
    losses = []
    for _ in range(60):
        state, metrics = step(state, (batch, mask))
        losses.append(float(metrics["loss"]))
    assert 3.5 < losses[0] < 5 and losses[-1] < 0.1
