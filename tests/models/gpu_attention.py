"""On a GPU: python -m tests.models.gpu_attention. cuDNN's attention against the plain one, values and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.attention import attend, attend_fused, attention_mask

B, T, H, K, h = 3, 256, 8, 2, 64


def batch(packed: bool, prefix: bool) -> TokenBatch:
    """Rows with padding; with two segments; the second of which reads the first as its prefix."""
    lengths, first = np.array([T, 200, 130]), 70
    columns = np.arange(T)[None]
    segments = np.where(columns < lengths[:, None], 1, 0)
    positions = np.where(segments, columns, 0)
    prefixes = None
    if packed or prefix:
        later = (columns >= first) & (segments > 0)
        segments = np.where(later, 2, segments)
        if not prefix:
            positions = np.where(later, columns - first, positions)
        prefixes = jnp.asarray(np.where(later, 1, 0), jnp.int32) if prefix else None
    as_int = (jnp.asarray(x, jnp.int32) for x in (np.zeros((B, T)), positions, segments))
    return TokenBatch(*as_int, prefix_ids=prefixes)


def main() -> None:
    """Prints the largest difference of each case, relative to the largest number; exits with 1 above .02."""
    keys, worst = jax.random.split(jax.random.key(0), 4), 0.0
    q, k, v, w = (jax.random.normal(key, (B, T, n, h), jnp.bfloat16) for key, n in zip(keys, (H, K, K, H), strict=True))
    for packed, prefix, window, causal in itertools.product((False, True), (False, True), (0, 40), (True, False)):
        if window and not causal:
            continue
        rows = batch(packed, prefix)
        mask = attention_mask(rows, window, causal=causal)
        real = (rows.segment_ids > 0)[..., None, None]

        def total(fn, q, k, v, real=real):
            out = fn(q, k, v)
            return jnp.sum(jnp.where(real, out * w, 0).astype(jnp.float32)), out

        def plain(q, k, v, mask=mask):
            return attend(q, k, v, mask, scale=0.1).astype(q.dtype)

        def fused(q, k, v, mask=mask, causal=causal):
            return attend_fused(q, k, v, mask, scale=0.1, causal=causal)

        wide = [x.astype(jnp.float32) for x in (q, k, v)]
        wanted = jax.jit(jax.value_and_grad(lambda *x: total(plain, *x), argnums=(0, 1, 2), has_aux=True))(*wide)
        found = jax.jit(jax.value_and_grad(lambda *x: total(fused, *x), argnums=(0, 1, 2), has_aux=True))(q, k, v)
        gaps = []
        pairs = (jax.tree.leaves((value[1], grads)) for value, grads in (wanted, found))
        for a, b in zip(*pairs, strict=True):
            a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
            if a.shape == q.shape:
                a, b = np.where(real, a, 0), np.where(real, b, 0)
            gaps.append(float(np.max(np.abs(a - b)) / np.max(np.abs(a))))
        print(dict(packed=packed, prefix=prefix, window=window, causal=causal), [f"{gap:.4f}" for gap in gaps])
        worst = max(worst, *gaps)
    print("worst", worst)
    raise SystemExit(worst > 0.02 or not np.isfinite(worst))


if __name__ == "__main__":
    main()
