"""The arrays that travel between the stages, each a NamedTuple with a shape on every field.

Layout of a row: the prompt is padded on the LEFT to P tokens and the completion on the RIGHT to C tokens, so that
T = P + C and the completion always begins at column P. Decoding then writes one cache column for all rows, and the
scorer runs the head on the last C columns only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax

Params = Any  # a nested dict of arrays
Metrics = dict[str, Any]  # name -> masked.Mean, divided once by the train step


def path_name(path) -> str:
    """A pytree path as "params/layers/q/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


class TokenBatch(NamedTuple):
    """Rows of tokens as a model reads them.

    tokens: int32 [B, T].
    positions: int32 [B, T]. Position of each token inside its own sequence; 0 at the first real token.
    segment_ids: int32 [B, T]. 0 is padding; tokens attend only inside their own segment (packed rows have several).
    prefix_ids: int32 [B, T]. A further segment of the row, standing before it, that a token attends to: the prompt
        that several completions share. 0 is none; None where no token has one.
    """

    tokens: chex.Array
    positions: chex.Array
    segment_ids: chex.Array
    prefix_ids: chex.Array | None = None


class Packed(NamedTuple):
    """The same B rows with the padding taken out: S parts of R rows of T, and where each scored token is read.

    Each part is packed for itself (a device's share of a micro-batch), and holds B / S rows of what was packed; the
    results of the parts, one after the other, are [B, C] again (see packing.pack).
    rows: TokenBatch of [S, R, T].
    sources: int32 [S, N]. The place, in the part's [R * T], whose hidden state predicts scored token n.
    targets: int32 [S, N]. Those tokens; the first ones are real, the rest is padding.
    counts: int32 [S]. How many are real.
    places: int32 [S, B / S, C]. The n of each completion token; -1 where none is scored.
    """

    rows: TokenBatch
    sources: chex.Array
    targets: chex.Array
    counts: chex.Array
    places: chex.Array


class Rollout(NamedTuple):
    """What the sampler returns for B = prompts x G rows; the G samples of a prompt are neighbours.

    batch: TokenBatch of [B, P + C]: prompt and completion.
    completion_mask: bool [B, C]. True on sampled tokens, the EOS included.
    sampled_log_probs: float32 [B, C]. Log-prob under the distribution sampled from (after temperature, top-k, top-p).
    raw_log_probs: float32 [B, C]. Log-prob under the model itself (temperature 1, nothing cut off).
    finished: bool [B]. The row ended with an EOS.
    truncated: bool [B]. The row was cut off at C tokens.
    """

    batch: TokenBatch
    completion_mask: chex.Array
    sampled_log_probs: chex.Array
    raw_log_probs: chex.Array
    finished: chex.Array
    truncated: chex.Array


class PolicyBatch(NamedTuple):
    """What a policy-gradient recipe trains on.

    batch: TokenBatch of [B, P + C], or the same rows Packed.
    completion_mask: bool [B, C]. The tokens that the loss sees.
    advantages: float32 [B, C].
    old_log_probs: float32 [B, C]. The proximal policy's, by the trainer's own forward. None where a batch gets one
        update only: the policy that is differentiated is then the proximal one, the ratio is 1, a forward is saved.
    behavior_log_probs: float32 [B, C]. The sampler's own, for corrections and metrics.
    ref_log_probs: float32 [B, C]. The reference policy's. None where no term compares with one: a forward is saved.
    token_weights: float32 [B, C]. What the policy term is multiplied with (not the regularisers). None is 1.
    selected: bool [B, C]. The tokens that a surrogate treats differently (losses.policy.kl_cov), chosen over the batch.
    group_tokens: float32 [B]. The tokens of the row's whole group (losses.aggregate.group_token_mean).
    batch_rows: float32 [B]. How many rows of the whole update have a token (losses.aggregate.token_sum).
    kl_coefs, entropy_coefs: float32 [B]. Weights of the regularisers where a controller moves them, the same on every
        row; arrays, so that a new value is no new program. None takes the objective's constants.
    """

    batch: TokenBatch | Packed
    completion_mask: chex.Array
    advantages: chex.Array
    old_log_probs: chex.Array | None
    behavior_log_probs: chex.Array
    ref_log_probs: chex.Array | None
    token_weights: chex.Array | None = None
    selected: chex.Array | None = None
    group_tokens: chex.Array | None = None
    batch_rows: chex.Array | None = None
    kl_coefs: chex.Array | None = None
    entropy_coefs: chex.Array | None = None


class PreferenceBatch(NamedTuple):
    """What a preference recipe trains on: N prompts with K responses each, the best one first; C tokens a response.

    A pair is K = 2, chosen and rejected; a labelled response is K = 1; a ranking is K > 2.
    batch: TokenBatch of [N, K, P + C], or the same N * K rows, prompt by prompt, Packed.
    completion_mask: bool [N, K, C]. The tokens of the response, its EOS included.
    present: bool [N, K]. False where a prompt has fewer responses than K.
    rewards: float32 [N, K]. What each response is worth: a judge's reward, a ranking's grade; for K = 1 the label, 1
        desirable and 0 not. Of a pair that is only ordered: 1 and 0.
    ref_log_probs: float32 [N, K, C]. Of the reference. None where no term compares with one: a forward is saved.
    prev_log_probs: float32 [N, K, C]. Of a second reference, the policy of the last iteration (INPO). Mostly None.
    extras: name -> array with N first. What a slot asks for by name: margins, label noise, statistics of the whole
        batch (losses.preference.couple). Split over micro-batches with the rows.
    """

    batch: TokenBatch | Packed
    completion_mask: chex.Array
    present: chex.Array
    rewards: chex.Array
    ref_log_probs: chex.Array | None = None
    prev_log_probs: chex.Array | None = None
    extras: dict[str, chex.Array] = {}


class TokenScores(NamedTuple):
    """Per-token results of the trainer's forward on the last C columns.

    log_probs: float32 [B, C]. Of the tokens that stand there.
    entropy: float32 [B, C]. Of the distribution that each of those tokens was drawn from, in nats.
    """

    log_probs: chex.Array
    entropy: chex.Array


class Model(NamedTuple):
    """A network as pure functions over `params` (see models/transformer.py).

    init: (key) -> params.
    apply: (params, TokenBatch) -> hidden [B, T, D]; never logits, so that nobody forms [B, T, V] by accident.
    unembed: (params, hidden [..., D]) -> float32 logits [..., V].
    prefill, decode: the same forward with the KV cache as an explicit argument and result (see rollout/engine.py).
    init_cache: (batch, length) -> cache. Every leaf of a cache has rows first.
    vocab_size: V.
    extend: (params, TokenBatch [B, T], cache, columns, visible) -> hidden [B, T, D], cache: T tokens a row behind what
        the cache holds, each row at a column of its own (see models/decoding.py). None: the model has lockstep
        decoding only.
    unstack: params -> params that decode, extend and unembed take as well, made once for many steps; None has none.
    """

    init: Callable
    apply: Callable
    unembed: Callable
    prefill: Callable
    decode: Callable
    init_cache: Callable
    vocab_size: int
    extend: Callable | None = None
    unstack: Callable | None = None
