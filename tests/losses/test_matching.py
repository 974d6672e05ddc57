"""losses/contrastive.py matching: several right candidates, and info_nce where only one is."""

import jax.numpy as jnp
import numpy as np

from rl_jax.losses import contrastive


def test_equal_captions_are_all_right():
    scores = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    alone = np.eye(4, dtype=bool)
    right = alone.copy()
    right[0, 2] = right[2, 0] = True
    probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = [-np.mean(np.log(probs[i][right[i]])) for i in range(4)]
    np.testing.assert_allclose(contrastive.matching(jnp.asarray(scores), jnp.asarray(right)), expected, rtol=1e-5)
    same = contrastive.info_nce(jnp.asarray(scores))
    np.testing.assert_allclose(contrastive.matching(jnp.asarray(scores), jnp.asarray(alone)), same, rtol=1e-5)
