"""credit.rule with mask_truncated: what still sees the rows that were cut off, and what does not."""

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Rollout, TokenBatch
from rl_jax.credit import rule
from rl_jax.testing.batches import ragged_batch

GROUP, CUT = 4, np.isin(np.arange(8), (0, 5))


def test_shaping_and_advantage_see_rows_cut_off_and_weights_and_selection_do_not():
    """Their rewards and lengths belong to their group; no weight, selection or sum of the loss counts their tokens."""
    batch, seen = ragged_batch(4), {}
    blank = np.zeros(batch.mask.shape, np.int32)
    tokens = TokenBatch(blank, blank, blank)
    rollout = Rollout(tokens, batch.mask, batch.old_log_probs, batch.old_log_probs, ~CUT, jnp.asarray(CUT))

    def shape(rewards, lengths, truncated, key):
        seen["shape"] = lengths
        return rewards

    def advantage(rewards, *, lengths, truncated, completion_mask):
        seen.update(lengths=lengths, truncated=truncated, advantage=completion_mask)
        return rewards

    def watched(name):
        def weight(mask, *, advantages):
            seen[name] = mask
            return mask.astype(jnp.float32)

        return weight

    names = ("behavior_weight", "token_weight", "selection", "entropy_weight")
    choices = rule.CreditRule(
        shape=shape, advantage=advantage, mask_truncated=True, **{name: watched(name) for name in names}
    )
    arrays = dict(log_probs=batch.log_probs, ref_log_probs=batch.ref_log_probs, reward_kl_coef=0.5)
    rewards = jnp.arange(8.0)
    found = rule.assign(choices, rollout, rewards, group_size=GROUP, key=jax.random.key(0), **arrays)
    whole, kept = np.asarray(batch.mask), np.asarray(batch.mask) & ~CUT[:, None]
    for name in ("shape", "lengths"):
        np.testing.assert_array_equal(seen[name], whole.sum(1), err_msg=name)
    np.testing.assert_array_equal(seen["truncated"], CUT)
    for name in (*names, "advantage"):
        np.testing.assert_array_equal(seen[name], kept, err_msg=name)
    np.testing.assert_array_equal(found.completion_mask, kept)
    np.testing.assert_array_equal(found.extras["selected"], kept)
    np.testing.assert_array_equal(found.extras["group_tokens"], np.repeat(kept.reshape(2, -1).sum(1), GROUP))
    earned = rule.token_rewards(choices, rollout, rewards, group_size=GROUP, key=jax.random.key(0), **arrays)
    penalty = np.where(whole, batch.log_probs - batch.ref_log_probs, 0.0).sum(1)
    np.testing.assert_allclose(earned.rows, np.arange(8.0) - 0.5 * penalty, rtol=1e-4, atol=1e-5)
