"""GTPO: tokens that good and bad answers share, and answers that the policy is too unsure of.

Named in a config by its import path, "rl_jax.advantages.conflicts:gtpo".
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered
from rl_jax.core.masked import row_means


def _shared_run(tokens: chex.Array, mask: chex.Array, good: chex.Array, bad: chex.Array) -> chex.Array:
    """True on each row's first tokens as long as a good and a bad row of its group have the same one in that column.

    Nothing is said about tokens that are not on the mask.
    int32 [P, G, C], bool [P, G, C], bool [P, G] x2 -> bool [P, G, C].
    """
    same = (tokens[:, :, None] == tokens[:, None]) & mask[:, None]  # [P, G, G, C]: row i, row j
    in_good = jnp.any(same & good[:, None, :, None], axis=2)
    in_bad = jnp.any(same & bad[:, None, :, None], axis=2)
    shared = in_good & in_bad & (good | bad)[:, :, None]
    return jnp.cumprod(shared.astype(jnp.int32), axis=2) > 0


def conflict_tokens(
    tokens: chex.Array, mask: chex.Array, advantages: chex.Array, *, group_size: int
) -> tuple[chex.Array, chex.Array]:
    """The tokens that a good and a bad answer of a group have in the same place, counted from the start or the end.

    Only unbroken runs count: the common prefix and the common suffix. A row without an advantage takes no part.

    Args:
      tokens: int32 [B, C].
      mask: bool [B, C].
      advantages: float [B]; good answers have A > 0, bad ones A < 0.
      group_size: G.

    Returns:
      (bool [B, C]: of the prefix, bool [B, C]: of the suffix).
    """
    chex.assert_equal_shape([tokens, mask])
    width = mask.shape[1]
    shape = (-1, group_size, width)
    good, bad = (side.reshape(-1, group_size) for side in (advantages > 0, advantages < 0))
    # The tokens of each row moved together, as if what is not on the mask (a tool's output) was not there.
    order = jnp.argsort(~mask, axis=1, stable=True)
    packed, lengths = jnp.take_along_axis(tokens, order, axis=1), jnp.sum(mask, axis=1, keepdims=True)
    columns = jnp.broadcast_to(jnp.arange(width), mask.shape)
    held = (columns < lengths).reshape(shape)
    turn = jnp.maximum(lengths - 1 - columns, 0)  # column d is the token d before the last, and back

    def run_of(rows: chex.Array) -> chex.Array:
        return _shared_run(rows.reshape(shape), held, good, bad).reshape(mask.shape)

    prefix = run_of(packed)
    suffix = jnp.take_along_axis(run_of(jnp.take_along_axis(packed, turn, axis=1)), turn, axis=1)
    back = jnp.argsort(order, axis=1)
    return tuple(jnp.take_along_axis(found, back, axis=1) & mask for found in (prefix, suffix))


def gtpo(
    rewards: chex.Array,
    *,
    group_size: int,
    tokens: chex.Array,
    completion_mask: chex.Array,
    entropy: chex.Array,
    threshold: float = 0.7,
    entropy_coef: float = 0.1,
    conflict_weight: float = 2.0,
) -> chex.Array:
    """GTPO: shared prefixes and suffixes are not unlearnt with bad answers; uncertain answers are left out.

        A_it = w_it (R_i - mean_g - entropy_coef H_i) / max(#conflict tokens of i, 1), 0 if H_i > threshold
        w_it = 1; on a token of a shared prefix, and again of a shared suffix, 0 in a bad answer and 2 in a good one

    H_i is the mean entropy of the row's tokens. Source: arXiv 2508.03772; winstonsmith1897/GTPO. That code counts the
    conflict tokens of a row as the longer of prefix and suffix (it compares them in opposite directions), here as both
    together; and takes the entropies of the moment, here those before the updates.

    Args:
      rewards: float [B].
      group_size: G.
      tokens: int32 [B, C].
      completion_mask: bool [B, C].
      entropy: float [B, C], in nats.
      threshold: of H_i, in nats.
      entropy_coef: in the reward's units per nat.
      conflict_weight: of a shared token of a good answer.

    Returns:
      float [B, C].

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    chex.assert_equal_shape([tokens, completion_mask, entropy])
    centred = group_centered(rewards, group_size=group_size)
    prefix, suffix = conflict_tokens(tokens, completion_mask, centred, group_size=group_size)
    uncertainty = row_means(entropy, completion_mask)
    shaped = jnp.where(uncertainty <= threshold, centred - entropy_coef * uncertainty, 0.0)
    of_conflict = jnp.where(centred > 0, conflict_weight, 0.0)[:, None]
    weight = jnp.where(prefix, of_conflict, 1.0) * jnp.where(suffix, of_conflict, 1.0)
    counts = jnp.maximum(jnp.sum(prefix | suffix, axis=1), 1)
    return jnp.where(completion_mask, weight * (shaped / counts)[:, None], 0.0)
