"""A transformer that compiles in a second, ragged rows of tokens for it, and a model that counts."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Model, TokenBatch
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from tests.paths import shared_data

CONFIG = TransformerConfig(
    vocab_size=64, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=48
)


def random_params(config=CONFIG, seed=0):
    """Params with embeddings twice those of init: the logits then spread over several nats and no test passes
    because every token is as likely as every other."""
    params = make_transformer(config).init(jax.random.key(seed))
    noise = np.random.default_rng(seed)
    scales = [params["final_norm"], params["layers"]["attention_norm"], params["layers"]["mlp_norm"]]
    for norm in scales:
        norm["scale"] = norm["scale"] * noise.uniform(0.5, 1.5, norm["scale"].shape).astype(np.float32)
    params["embed"]["embedding"] *= 2.0
    for name in ("o", "down"):  # branches as strong as the stream they add to: else every token repeats itself
        params["layers"][name]["kernel"] *= 2.0
    if "head" in params:
        params["head"]["kernel"] *= 2.0
    return params


def prompts(lengths, width, vocab_size=64, seed=0):
    """Left-padded random prompts: tokens int32 [B, width], mask bool [B, width]. A row's tokens depend on its index
    and length only, not on the width; ids 0 to 2 are left for pad, BOS and EOS."""
    tokens, mask = np.zeros((len(lengths), width), np.int32), np.zeros((len(lengths), width), bool)
    for row, length in enumerate(lengths):
        tokens[row, width - length :] = np.random.default_rng((seed, row)).integers(3, vocab_size, length)
        mask[row, width - length :] = True
    return jnp.array(tokens), jnp.array(mask)


def token_batch(lengths, width, *, left=True, vocab_size=64, seed=0):
    """A TokenBatch of random rows, padded on the left or on the right."""
    tokens, mask = map(np.asarray, prompts(lengths, width, vocab_size, seed))
    if not left:
        tokens, mask = tokens.copy(), mask.copy()
        for row, length in enumerate(lengths):
            tokens[row], mask[row] = np.roll(tokens[row], length - width), np.roll(mask[row], length - width)
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0) * mask
    return TokenBatch(jnp.array(tokens), jnp.array(positions, jnp.int32), jnp.array(mask, jnp.int32))


def max_difference(left, right):
    """The largest |left - right| over all leaves of two pytrees of one structure."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)))) for a, b in pairs)


def stories_path() -> pathlib.Path:
    """The published 260K checkpoint, or a skip."""
    return shared_data("models/stories260K.bin")


@functools.cache
def stories_texts(number):
    """The first `number` stories of the shared sample."""
    import gzip

    path = shared_data("text/tinystories_2MiB.txt.gz")
    return [s.strip() for s in gzip.decompress(path.read_bytes()).decode().split("<|endoftext|>")[:number]]


def counting_model(vocab_size=16, on_decode=lambda: None) -> Model:
    """A model whose next token is always the last one + 1: what engine does is then known by heart.

    on_decode is called on the host once for every decode step.
    """

    def apply(params, batch):
        return batch.tokens[..., None].astype(jnp.float32)

    def unembed(params, hidden):
        return 100.0 * jax.nn.one_hot(hidden[..., 0].astype(jnp.int32) + 1, vocab_size)

    def prefill(params, batch):
        empty = jnp.zeros(batch.tokens.shape)
        return apply(params, batch), (empty, empty)

    def decode(params, tokens, positions, cache, column, visible):
        jax.debug.callback(on_decode)
        return tokens[:, None].astype(jnp.float32), cache

    def init_cache(batch, length):
        return jnp.zeros((batch, length)), jnp.zeros((batch, length))

    return Model(lambda key: {}, apply, unembed, prefill, decode, init_cache, vocab_size)
