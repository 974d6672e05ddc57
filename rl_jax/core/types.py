"""The arrays that travel between the stages, each a NamedTuple with a shape on every field.

Layout of a row: the prompt is padded on the LEFT to P tokens and the completion on the RIGHT to C tokens, so that
T = P + C and the completion always begins at column P. Decoding then writes one cache column for all rows, and the
scorer runs the head on the last C columns only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import chex
import jax

Params = Any  # a nested dict of arrays
Metrics = dict[str, Any]  # name -> masked.Mean, divided once by the train step


def path_name(path) -> str:
    """A pytree path as "params/layers/q/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def own_extras(cls):
    """Class decorator for a NamedTuple with `extras`: None becomes a new dict, so no two batches share one."""
    new = cls.__new__

    def __new__(kind, *args, **fields):
        batch = new(kind, *args, **fields)
        return batch if batch.extras is not None else batch._replace(extras={})

    cls.__new__ = staticmethod(__new__)
    return cls


class TokenBatch(NamedTuple):
    """Rows of tokens as a model reads them."""

    tokens: chex.Array
    """int32 [B, T]."""
    positions: chex.Array
    """int32 [B, T]. Position of each token in its own sequence; 0 at the first real token."""
    segment_ids: chex.Array
    """int32 [B, T]. 0 is padding; tokens attend only inside their own segment (packed rows have several)."""
    prefix_ids: chex.Array | None = None
    """int32 [B, T]. An earlier segment of the row that the token also attends to: the prompt that several completions
    share. 0 is none; None if no token has one."""
    allowed: chex.Array | None = None
    """uint8 [B, C, V / 8]. Bits of the tokens that might have been sampled in each of the last C columns, which a Score
    stays inside of (models.nucleus); None: all of them."""
    routes: chex.Array | None = None
    """int16 [B, T, L, k]. Experts that ran for each token in each layer when it was sampled, which a forward runs again
    (arXiv 2510.11370); -1: the router chooses. None: it chooses for all tokens."""


class Packed(NamedTuple):
    """The same B rows with the padding taken out: S parts of R rows of T, and where each scored token is read.

    Each part (a device's share of a micro-batch) is packed on its own and holds B / S of the rows; the results of the
    parts, concatenated, are [B, C] again (see packing.pack).
    """

    rows: TokenBatch
    """TokenBatch of [S, R, T]."""
    sources: chex.Array
    """int32 [S, N]. Index into the part's [R * T] of the hidden state that predicts scored token n."""
    targets: chex.Array
    """int32 [S, N]. Those tokens; the first ones are real, the rest is padding."""
    counts: chex.Array
    """int32 [S]. Number of real targets."""
    places: chex.Array
    """int32 [S, B / S, C]. The n of each completion token; -1 if the token is not scored."""
    columns: chex.Array
    """int32 [S, B / S, C + 1]. Index into the part's [R * T] of the prompt's last token, then of each completion token;
    -1 for tokens that are not in `rows`, those after the last scored one. Heads of values and rewards read there."""


class StepInputs(NamedTuple):
    """N single steps in environments as an agent reads them; each is in the place of a row of one token."""

    observations: chex.Array
    """float32 [N, *shape], normalised."""
    actions: chex.Array
    """[N, ...]. What is scored."""


class SequenceInputs(NamedTuple):
    """Rows of T steps in environments as an agent with memory reads them; a step is in the place of a token."""

    observations: chex.Array
    """float32 [B, T, *shape], normalised."""
    actions: chex.Array
    """[B, T, ...]. What is scored."""
    first: chex.Array
    """bool [B, T]. True at the first step of an episode."""
    memory: Any
    """The agent's state before each row, a pytree with B first."""


Inputs = TokenBatch | Packed | StepInputs | SequenceInputs  # what a Score reads: each kind of model has its own


class Turns(NamedTuple):
    """The turns of B episodes, one row each."""

    numbers: chex.Array
    """int32 [B, C]. Which turn a sampled token is of, from 0; -1 on all other tokens."""
    rewards: chex.Array
    """float32 [B, C]. Reward of each turn, on its last token; 0 elsewhere. A row's sum is the row's reward."""
    state_keys: chex.Array
    """int32 [B, C]. Number of the state in which the turn was spoken: within a group, equal for equal states. -1 where
    the environment has none, and on tokens that were not sampled."""
    counts: dict[str, chex.Array] = {}
    """name -> float32 [B, C]. What the environment counted in each turn, on its last token; 0 elsewhere."""
    signals: dict[str, chex.Array] = {}
    """name -> array with B first: what credit asks for by its own name, as branches (rl_jax.core.names)."""


class Rollout(NamedTuple):
    """What the sampler returns for B = prompts x G rows; the G samples of a prompt are neighbours."""

    batch: TokenBatch
    """TokenBatch of [B, P + C]: prompt and completion."""
    completion_mask: chex.Array
    """bool [B, C]. True on sampled tokens, the EOS included."""
    sampled_log_probs: chex.Array
    """float32 [B, C]. Under the distribution sampled from (after temperature, top-k, top-p)."""
    raw_log_probs: chex.Array
    """float32 [B, C]. Under the model itself (temperature 1, nothing cut off)."""
    finished: chex.Array
    """bool [B]. The row ended with an EOS."""
    truncated: chex.Array
    """bool [B]. The row was cut off at C tokens."""
    token_rewards: chex.Array | None = None
    """float32 [B, C]. Rewards of tokens, steps or turns, added to the row's own reward. None if there are none."""
    versions: chex.Array | None = None
    """int32 [B, C]. Version of the policy that sampled each token. None if all were sampled by the newest policy."""
    step_ends: chex.Array | None = None
    """bool [B, C]. Last token of each step that token_rewards reward. None: where they are not 0."""
    foreign: chex.Array | None = None
    """bool [B]. Rows that the policy did not sample for their prompt just now (selection.foreign_rows). None if it
    sampled all."""
    turns: Turns | None = None
    """The turns of episodes, whose completion_mask has holes where an environment speaks. None for single answers."""


@own_extras
class PolicyBatch(NamedTuple):
    """What a policy-gradient recipe trains on."""

    batch: Inputs
    """What the Score reads: TokenBatch of [B, P + C], or the same rows Packed; in environments StepInputs of B steps,
    C = 1, or SequenceInputs of B rows of C steps."""
    completion_mask: chex.Array
    """bool [B, C]. Tokens that the loss sees; in environments, steps."""
    advantages: chex.Array
    """float32 [B, C]."""
    old_log_probs: chex.Array | None
    """float32 [B, C]. The proximal policy's, from the trainer's own forward. None for a single update per batch (the
    ratio is exactly 1), which saves a forward pass."""
    behavior_log_probs: chex.Array
    """float32 [B, C]. The sampler's own, for corrections and metrics."""
    ref_log_probs: chex.Array | None
    """float32 [B, C]. The reference policy's. None if no term compares with it, which saves a forward pass."""
    token_weights: chex.Array | None = None
    """float32 [B, C]. Factors of the policy term (not of the regularizers). None is 1."""
    extras: dict[str, chex.Array] | None = None
    """name -> array with B first: what a function of the objective asks for by name (rl_jax.core.names). Split over
    minibatches and micro-batches with the rows; data, without gradient. None becomes a new dict."""


@own_extras
class PreferenceBatch(NamedTuple):
    """What a preference recipe trains on: N prompts with K responses each, the best one first; C tokens per response.

    A pair is K = 2, chosen and rejected; a labelled response is K = 1; a ranking is K > 2.
    """

    batch: Inputs
    """What the Score reads: TokenBatch of [N, K, P + C], or the same N * K rows, prompt by prompt, Packed; in
    environments StepInputs of [N, K, C], K segments of C steps each."""
    completion_mask: chex.Array
    """bool [N, K, C]. Tokens of the response, its EOS included; in environments, steps of the segment."""
    present: chex.Array
    """bool [N, K]. False if the prompt has fewer responses than K."""
    rewards: chex.Array
    """float32 [N, K]. A judge's reward, a ranking's grade; for K = 1 the label, 1 desirable and 0 not; for a pair that
    is only ordered 1 and 0."""
    ref_log_probs: chex.Array | None = None
    """float32 [N, K, C]. The reference policy's. None if no term compares with it, which saves a forward pass."""
    prev_log_probs: chex.Array | None = None
    """float32 [N, K, C]. A second reference's, the policy of the last iteration (INPO). Mostly None."""
    extras: dict[str, chex.Array] | None = None
    """name -> array with N first: what a slot asks for by name (rl_jax.core.names), such as margins, label noise,
    statistics of the whole batch (losses.preference.batch_stats). Split over micro-batches. None becomes a new dict."""


class TokenScores(NamedTuple):
    """All that a policy or preference loss sees of a model: the results of a Score on C tokens per row.

    A token is whatever was sampled in one turn: for a language model one of the last C columns, for an agent a step.
    """

    log_probs: chex.Array
    """float32 [B, C]. Of the tokens."""
    entropy: chex.Array
    """float32 [B, C]. Of the distribution that each of those tokens was sampled from, in nats."""
    sum_pi_squared: chex.Array | None = None
    """float32 [B, C]. Sum over the vocabulary of pi^2 of that distribution. None unless the Score was made with it."""


class Score(Protocol):
    """The seam between what acts and what learns: score(params, inputs) -> TokenScores, differentiable in params.

    training.scoring.make_score gives it for language models, models.agents.scoring.make_score for agents. Losses take
    TokenScores (and values) and never run a model, so the same loss trains all of them. A new kind of model, such as a
    diffusion policy with its K denoising turns as C = K tokens, brings inputs and a Score of its own and no loss.
    """

    def __call__(self, params: Params, inputs: Inputs, /) -> TokenScores:
        """Scores the tokens of `inputs`, B rows with C tokens each."""


class Model(NamedTuple):
    """A network as pure functions over `params` (see models/transformer)."""

    init: Callable
    """(key) -> params."""
    apply: Callable
    """(params, TokenBatch) -> hidden [B, T, D]; never logits, so that [B, T, V] is not formed by accident. It may
    take a third argument `places` (see core.packed_rows.hidden_at)."""
    unembed: Callable
    """(params, hidden [..., D]) -> float32 logits [..., V]."""
    prefill: Callable
    """The same forward that also fills a KV cache (see rollout/lm/engine.py)."""
    decode: Callable
    """The same forward for one column, with the KV cache as argument and result."""
    init_cache: Callable
    """(batch, length) -> cache. Every leaf of a cache has rows first."""
    vocab_size: int
    """V."""
    extend: Callable | None = None
    """(params, TokenBatch [B, T], cache, columns, visible) -> hidden [B, T, D], cache: T more tokens per row, each row
    at a column of its own (see models/transformer/decoding.py). None if the model decodes in lockstep only."""
    unstack: Callable | None = None
    """params -> params that decode, extend and unembed also take, made once for many steps. None if there is none."""
    split_head: Callable | None = None
    """params -> `unembed` as a core.split_head.SplitHead on the context's mesh, or None if nothing is split there. A
    model with another `unembed` needs another `split_head`; without one, a score gathers the head."""
    routes: Callable | None = None
    """cache -> int16 [B, S, L, k], the experts that ran for the token of each column; -1 if there was none yet. None if
    the cache does not record them."""
    causal: bool = True
    """Whether hidden states read only tokens before them. False: log-probs of next tokens and caches are refused."""
    with_cache: Callable | None = None
    """kind -> the Model whose caches are in 8 bits (models/quantization.py). None if there is none."""
