"""Commands in words, chosen by their embedding: the loss of a high level that speaks to a low level.

    logits_c = cos(z, e_c) / max(tau, 1e-8),  loss = -log softmax(logits)_y

z is what the high level gives for an observation, e_c the embedding of a command's words, y the command that was said.
Source: arXiv 2403.12910 (Yell At Your Robot), its code (yay-robot/yay_robot, src/instructor/model.py: Instructor,
train.py: a cross entropy of the logits; tau is trained and begins at 1).
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.vectors import unit

EPS = 1e-12  # of lengths


def command_logits(embeddings: chex.Array, commands: chex.Array, temperature: float | chex.Array) -> chex.Array:
    """cos(z_b, e_c) / max(tau, 1e-8): float [B, C].

    Source: arXiv 2403.12910, src/instructor/model.py: compute_similarities.

    Args:
      embeddings: float [B, E], z.
      commands: float [C, E], e.
      temperature: tau, float or float [].
    """
    chex.assert_rank([embeddings, commands], 2)
    chex.assert_equal(embeddings.shape[1], commands.shape[1])
    return unit(embeddings, EPS) @ unit(commands, EPS).T / jnp.maximum(temperature, 1e-8)


def command_loss(
    embeddings: chex.Array, commands: chex.Array, said: chex.Array, temperature: float | chex.Array
) -> chex.Array:
    """-log softmax(cos(z, e) / tau) of the command that was said: float [B].

    Source: arXiv 2403.12910, src/instructor/train.py.

    Args:
      embeddings: float [B, E], z.
      commands: float [C, E], e.
      said: int [B], y.
      temperature: tau, float or float [].
    """
    logits = command_logits(embeddings, commands, temperature)
    chex.assert_shape(said, (len(embeddings),))
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), said[:, None], axis=1)[:, 0]
