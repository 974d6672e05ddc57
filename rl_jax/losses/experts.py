"""Gates of experts: the k best of E, their load, a loss for even loads, and one for gates that know the task.

    s     = softmax over the k largest of x, 0 elsewhere
    load  = sum_n P(z_ne + std_ne eps > the k-th largest of the others)          differentiable, of noisy gates
    even  = cv2(sum_n s_n) + cv2(load),  cv2(x) = var(x) / mean(x)^2
    tasks = 1/2 CE(q_1 W k_2^T) + 1/2 CE(q_2 W k_1^T)                            halves of a batch, of the same tasks

Source: arXiv 1701.06538 (noisy top-k) and 2506.05426 (T2MIR; NJU-RL/T2MIR, algorithms/moe.py). There the load asks
whether the noise alone is above the k-th logit; here, as in 1701.06538, whether the noisy logit is.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses.contrastive import info_nce


def top_scores(logits: chex.Array, chosen: int) -> chex.Array:
    """softmax over the `chosen` largest logits of each row, 0 elsewhere: float [N, E] -> float [N, E]."""
    chex.assert_rank(logits, 2)
    least = jax.lax.top_k(logits, chosen)[0][:, -1:]
    return jax.nn.softmax(jnp.where(logits >= least, logits, -1e30), axis=1)


def noisy_load(clean: chex.Array, noisy: chex.Array, std: chex.Array, chosen: int) -> chex.Array:
    """P(expert e is among the chosen if its own noise is drawn again): float [N, E].

    Args:
      clean: float [N, E], logits without noise.
      noisy: float [N, E], logits that the choice was made of.
      std: float [N, E], of the noise.
      chosen: k, below E.
    """
    chex.assert_equal_shape([clean, noisy, std])
    best = jax.lax.top_k(noisy, chosen + 1)[0]
    last_in, first_out = best[:, chosen - 1 : chosen], best[:, chosen : chosen + 1]
    # An expert that is in must stay above the first one out, one that is out must pass the last one in.
    return jax.scipy.stats.norm.cdf((clean - jnp.where(noisy > first_out, first_out, last_in)) / std)


def cv_squared(x: chex.Array) -> chex.Array:
    """var(x) / mean(x)^2, the variance over n - 1: float [n] -> float []. 0 if all are the same."""
    chex.assert_rank(x, 1)
    return jnp.var(x, ddof=1) / (jnp.square(jnp.mean(x)) + 1e-10)


def even_loads(scores: chex.Array, loads: chex.Array, mask: chex.Array) -> chex.Array:
    """cv2 of the experts' importance + cv2 of their load, over the real tokens: float [].

    Args:
      scores: float [N, E], of `top_scores`.
      loads: float [N, E], of `noisy_load`.
      mask: bool [N].
    """
    chex.assert_equal_shape([scores, loads])
    chex.assert_shape(mask, scores.shape[:1])
    return sum(cv_squared(jnp.sum(jnp.where(mask[:, None], x, 0.0), axis=0)) for x in (scores, loads))


def task_contrast(queries: chex.Array, keys: chex.Array, weight: chex.Array, task: chex.Array) -> chex.Array:
    """1/2 CE(q_1 W k_2^T) + 1/2 CE(q_2 W k_1^T), halves 1 and 2 of a batch: row i of both is of one task. float [B/2].

    Another row of the same task is no wrong answer and is left out; in the paper a batch has no such rows.

    Args:
      queries: float [B, E], what the gate says of an episode.
      keys: float [B, E], the same of the slow gate; without a gradient.
      weight: float [E, E], W.
      task: int [B/2], of the rows of a half.
    """
    chex.assert_equal_shape([queries, keys])
    half = len(queries) // 2
    chex.assert_shape(task, (half,))
    keys = jax.lax.stop_gradient(keys)
    same = (task[:, None] == task[None, :]) & ~jnp.eye(half, dtype=bool)

    def side(q: chex.Array, k: chex.Array) -> chex.Array:
        return info_nce(jnp.where(same, -1e30, q @ weight @ k.T))

    return 0.5 * side(queries[:half], keys[half:]) + 0.5 * side(queries[half:], keys[:half])
