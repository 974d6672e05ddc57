"""Several critics of states, of which the smallest counts; each learns the whole target. Named by import path.

    V = min_m V_m,   l = sum_m -sum_i p_i log softmax(logits_m)_i

The released code of WebRL (THUDM/WebRL webrl/models/critic.py, VLMDoubleCritic) has two heads on one trunk. The heads
have to begin unlike each other: models.heads.add_value_heads.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp

from rl_jax.losses import value


class Smallest(NamedTuple):
    """Critics over the same bins, whose logits lie side by side: in the place of a losses.value.Support.

    Attributes:
      each: bins of one critic.
      members: M, critics.
    """

    each: value.Support
    members: int

    @property
    def num_bins(self) -> int:
        """M K, the outputs of all critics together."""
        return self.members * self.each.num_bins

    @property
    def low(self) -> float:
        """Lowest expected return."""
        return self.each.low

    @property
    def high(self) -> float:
        """Highest expected return."""
        return self.each.high

    def split(self, logits: chex.Array) -> list[chex.Array]:
        """The logits of each critic. float [..., M K] -> M times float [..., K]."""
        chex.assert_axis_dimension(logits, -1, self.num_bins)
        return jnp.split(logits, self.members, axis=-1)

    def mean(self, logits: chex.Array) -> chex.Array:
        """min_m of the values that each critic's logits encode. float [..., M K] -> float [...]."""
        return jnp.min(jnp.stack([self.each.mean(one) for one in self.split(logits)]), axis=0)


def each_two_hot(logits: chex.Array, returns: chex.Array, mask: chex.Array, *, support: Smallest) -> value.ValueLoss:
    """The sum over critics of `value.two_hot`: none of them learns what the smallest says.

        l = sum_m -sum_i p_i log softmax(logits_m)_i,   dl/dlogits_m = softmax(logits_m) - p

    Source: THUDM/WebRL webrl/algorithms/webrl/trainer.py critic_loss, whose bins are failure and success.

    Args:
      logits: float [B, T, M K], differentiated.
      returns: float [B, T], data: gradients are stopped here. Clipped to the outer centres.
      mask: bool [B, T].
      support: bins and critics.

    Raises:
      ValueError: if the support is that of one critic.
    """
    chex.assert_rank([logits, returns, mask], [3, 2, 2])
    if not isinstance(support, Smallest):
        raise ValueError("each_two_hot is the loss of several critics: set critic.support.members to 2 or more")
    found = [value.two_hot(one, returns, mask, support=support.each) for one in support.split(logits)]
    return value.ValueLoss(sum(one.loss for one in found), jnp.zeros_like(mask))
