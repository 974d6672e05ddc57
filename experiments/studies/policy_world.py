"""The common setting of the policy-gradient studies: prompts, completions of a few tokens, and a tabular policy.

A policy is logits [P, N, V]: the next token for each of P prompts and N contexts. There are so few completions that
expectations can be summed over all of them. Methods run through rl_jax.credit.assign and rl_jax.grpo.loss. A row is a
TokenBatch with the prompt's number in its first column, followed by the T tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax import advantages, grpo, token_weights
from rl_jax.core import trackers
from rl_jax.core.binding import bind
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule, shaping
from rl_jax.losses import aggregate, kl, policy

MODULES = {
    rule.CreditRule: dict(
        shape=shaping,
        reward_kl=kl,
        advantage=advantages,
        behavior_weight=token_weights,
        token_weight=token_weights,
        selection=token_weights,
    ),
    grpo.Objective: dict(surrogate=policy, kl=kl, aggregate=aggregate),
}


class Layout(NamedTuple):
    """What a completion is, and what its policy sees. Static.

    Attributes:
      vocab: V.
      length: T.
      sees: "everything", all tokens so far; "first", the first token and the position; "place", only the position.
      eos: the token that ends a completion, or None if all have T tokens.
    """

    vocab: int
    length: int
    sees: str = "everything"
    eos: int | None = None

    @property
    def contexts(self) -> int:
        """N."""
        counts = {
            "everything": sum(self.vocab**t for t in range(self.length)),
            "first": 1 + (self.length - 1) * self.vocab,
            "place": self.length,
        }
        return counts[self.sees]

    def context_of(self, tokens: chex.Array) -> chex.Array:
        """The table row from which each token is sampled, given the earlier tokens. int [B, T] -> int [B, T]."""
        chex.assert_shape(tokens, (None, self.length))
        place = jnp.broadcast_to(jnp.arange(self.length)[None], tokens.shape)
        if self.sees == "place":
            return place
        if self.sees == "first":
            return jnp.where(place == 0, 0, 1 + (place - 1) * self.vocab + tokens[:, :1])
        columns, start, code = [], 0, jnp.zeros(tokens.shape[:1], tokens.dtype)
        for t in range(self.length):
            columns.append(start + code)
            start, code = start + self.vocab**t, code * self.vocab + tokens[:, t]
        return jnp.stack(columns, axis=1)

    def mask_of(self, tokens: chex.Array) -> chex.Array:
        """The tokens up to and including the EOS. int [B, T] -> bool [B, T]."""
        if self.eos is None:
            return jnp.ones(tokens.shape, bool)
        ended = jnp.cumsum(tokens == self.eos, axis=1) - (tokens == self.eos)
        return ended == 0

    def completions(self) -> chex.Array:
        """All completions if none ends early, int [V^T, T], in the order of `completion_of`."""
        place = jnp.arange(self.length)
        codes = jnp.arange(self.vocab**self.length)
        return codes[:, None] // (self.vocab ** (self.length - 1 - place))[None] % self.vocab

    def completion_of(self, tokens: chex.Array) -> chex.Array:
        """The index of each row among all completions. int [B, T] -> int [B]."""
        powers = self.vocab ** (self.length - 1 - jnp.arange(self.length))
        return jnp.sum(tokens * powers[None], axis=1)

    def log_probs(self, logits: chex.Array) -> chex.Array:
        """log pi of all completions, for a policy that sees everything. float [P, N, V] -> float [P, V^T]."""
        table, start = jax.nn.log_softmax(logits), 0
        result = jnp.zeros((logits.shape[0], 1), logits.dtype)
        for t in range(self.length):
            stop = start + self.vocab**t
            result = (result[:, :, None] + table[:, start:stop]).reshape(logits.shape[0], -1)
            start = stop
        return result


def make_method(slots: Mapping[str, Any]) -> tuple[rule.CreditRule, grpo.Objective]:
    """GRPO without a KL, with other choices in the named slots of CreditRule and Objective (functions by name).

    Raises:
      ValueError: if neither has a slot of that name.
    """
    made = []
    unknown = set(slots) - {name for kind in MODULES for name in kind._fields}
    if unknown:
        raise ValueError(f"unknown slots of a method: {', '.join(sorted(unknown))}")
    for kind, modules in MODULES.items():
        chosen = {name: spec for name, spec in {"kl_coef": 0.0, **slots}.items() if name in kind._fields}
        made.append(kind(**{n: bind(spec, modules[n]) if n in modules else spec for n, spec in chosen.items()}))
    return tuple(made)


def score(logits: chex.Array, batch: TokenBatch, layout: Layout) -> TokenScores:
    """The policy's log-probs and entropies of the rows' tokens. float [P, N, V], rows [B, 1 + T] -> [B, T]."""
    prompts, tokens = batch.tokens[:, :1], batch.tokens[:, 1:]
    table = jax.nn.log_softmax(logits[prompts, layout.context_of(tokens)])
    log_probs = jnp.take_along_axis(table, tokens[..., None], axis=-1)[..., 0]
    return TokenScores(log_probs, -jnp.sum(jnp.exp(table) * table, axis=-1))


def rows_of(prompts: chex.Array, tokens: chex.Array) -> TokenBatch:
    """int [B], int [B, T] -> rows [B, 1 + T]."""
    rows = jnp.concatenate([prompts[:, None], tokens], axis=1)
    return TokenBatch(rows, jnp.broadcast_to(jnp.arange(rows.shape[1])[None], rows.shape), jnp.ones_like(rows))


def sample(key: chex.PRNGKey, logits: chex.Array, prompts: chex.Array, layout: Layout) -> Rollout:
    """Samples one completion per prompt.

    Args:
      key: of the samples.
      logits: float [P, N, V].
      prompts: int [B].
      layout: of the completions.
    """
    # Inversion: samples of similar policies are similar, so that arms share their random numbers.
    draws = jax.random.uniform(key, (layout.length, prompts.shape[0]))

    def draw(tokens, place_and_draw):
        place, uniform = place_and_draw
        context = jnp.take(layout.context_of(tokens), place, axis=1)
        cumulative = jnp.cumsum(jax.nn.softmax(logits[prompts, context]), axis=-1)
        token = jnp.sum(uniform[:, None] * cumulative[:, -1:] >= cumulative, axis=-1, dtype=jnp.int32)
        return tokens.at[:, place].set(jnp.minimum(token, layout.vocab - 1)), None

    blank = jnp.zeros((prompts.shape[0], layout.length), jnp.int32)
    tokens = jax.lax.scan(draw, blank, (jnp.arange(layout.length), draws))[0]
    mask, rows = layout.mask_of(tokens), rows_of(prompts.astype(jnp.int32), tokens)
    log_probs = score(logits, rows, layout).log_probs
    finished = jnp.any(mask & (tokens == layout.eos), axis=1) if layout.eos is not None else jnp.all(mask, axis=1)
    return Rollout(rows, mask, log_probs, log_probs, finished, ~finished)


def greedy_rewards(reward: Callable, layout: Layout) -> Callable:
    """What the likeliest completions earn, the likeliest token each time: a Recipe's `named` for ReMax."""

    def named(key: chex.PRNGKey, logits: chex.Array, prompts: chex.Array) -> dict[str, chex.Array]:
        greedy = sample(key, 1e5 * (logits - jnp.max(logits, axis=-1, keepdims=True)), prompts, layout)
        return {"greedy_rewards": reward(key, prompts, greedy)}

    return named


def loss_of(logits: chex.Array, batch: PolicyBatch, objective: grpo.Objective, layout: Layout) -> tuple:
    """rl_jax.grpo.loss and its metrics, divided by their counts."""
    result, metrics = grpo.loss(score(logits, batch.batch, layout), batch, objective)
    return result.value(), {name: x.value() for name, x in metrics.items()}


class Recipe(NamedTuple):
    """How a policy is trained. Static except for the arrays in `reward`.

    Attributes:
      reward: (key, prompts int [B], Rollout) -> float [B].
      groups: prompts per step, newly sampled.
      group_size: G.
      minibatches: updates per step, each on its part of the rows.
      steps: of the training.
      learning_rate: of the descent.
      candidates: sampled prompts from which a step takes its groups, those with differing rewards first (DAPO's dynamic
        sampling).
      lag: samples come from the policy `lag` steps ago.
      old: the old policy of the loss. "proximal": the policy at the step's start. "behavior": the one that sampled.
      sampler: logits [P, N, V] -> those sampled from.
      ref: logits of the reference, if a term needs it.
      reward_kl_coef: of the KL in the reward.
      tracker: what the advantage remembers of earlier steps, see `make_tracker`.
      optimizer: "sgd", or "adam", under which the scale of an advantage does not matter.
      named: (key, logits, prompts int [B]) -> further arrays for the rule of credit, by name.
    """

    reward: Callable
    groups: int
    group_size: int
    minibatches: int
    steps: int
    learning_rate: float
    candidates: int = 0
    lag: int = 0
    old: str = "proximal"
    sampler: Callable = lambda logits: logits
    ref: chex.Array | None = None
    reward_kl_coef: float = 0.0
    tracker: trackers.Tracker | None = None
    optimizer: str = "sgd"
    named: Callable | None = None


class Step(NamedTuple):
    """The statistics of a step.

    Attributes:
      drawn: number of samples, float [].
      clip_low: fraction of tokens, mean over updates, [].
      clip_high: fraction of tokens, mean over updates, [].
    """

    drawn: chex.Array
    clip_low: chex.Array
    clip_high: chex.Array


def make_tracker(spec: Mapping[str, Any] | None, **known) -> trackers.Tracker | None:
    """A tracker of rl_jax.core.trackers, or of an import path, with the keywords that it knows; None for None."""
    return None if spec is None else bind(spec, trackers, **known)()


def remembered(state: Any, prompts: chex.Array) -> dict[str, chex.Array]:
    """What an advantage gets from a tracker's state, by name. prompts: int [B]."""
    return state.named(prompts) if hasattr(state, "named") else {"baseline": state.values(prompts)}


def remember(tracker: trackers.Tracker, state: Any, prompts: chex.Array, rewards: chex.Array, moved: chex.Array) -> Any:
    """The tracker's state after a step.

    Args:
      tracker: of a Recipe.
      state: before the step.
      prompts: int [B].
      rewards: float [B], as the advantage sees them.
      moved: float [B], mean |change of log-prob| since the last step.
    """
    return tracker.update(state, *((prompts, rewards, moved) if hasattr(state, "values") else (rewards,)))


def collect(key: chex.PRNGKey, logits: chex.Array, recipe: Recipe, layout: Layout) -> tuple:
    """(Rollout, rewards [B], drawn): the step's groups from the sampling policy."""
    key_prompts, key_tokens, key_reward = jax.random.split(key, 3)
    count = max(recipe.candidates, recipe.groups)
    chosen = jnp.resize(jax.random.permutation(key_prompts, logits.shape[0]), count)
    prompts = jnp.repeat(chosen, recipe.group_size)
    rollout = sample(key_tokens, recipe.sampler(logits), prompts, layout)
    rewards = recipe.reward(key_reward, prompts, rollout)
    if not recipe.candidates:
        return rollout, rewards, jnp.float32(count * recipe.group_size)
    groups = rewards.reshape(count, recipe.group_size)
    idle = jnp.max(groups, axis=1) == jnp.min(groups, axis=1)
    order = jnp.argsort(idle, stable=True)[: recipe.groups]
    last = jnp.max(jnp.where(idle[order], count - 1, order))  # groups are sampled until there are enough
    rows = (order[:, None] * recipe.group_size + jnp.arange(recipe.group_size)[None]).reshape(-1)
    drawn = (last + 1).astype(jnp.float32) * recipe.group_size
    return jax.tree.map(lambda x: x[rows], rollout), rewards[rows], drawn


def train(
    key: chex.PRNGKey, logits: chex.Array, method: tuple, recipe: Recipe, layout: Layout, observe: Callable
) -> tuple[chex.Array, Any, Step]:
    """Trains by the recipe.

    Args:
      key: of the training.
      logits: float [P, N, V].
      method: of make_method.
      recipe: how to train.
      layout: of the completions.
      observe: logits -> pytree, called before each step and at the end; its results are stacked.

    Returns:
      (last logits, stacked observations, stacked Steps).
    """
    choices, objective = method
    optimizer = {"sgd": optax.sgd, "adam": optax.adam}[recipe.optimizer](recipe.learning_rate)

    def step(carry, key):
        (logits, state), past, memory = carry
        key_data, key_credit, key_rows = jax.random.split(key, 3)
        rollout, rewards, drawn = collect(key_data, past[0], recipe, layout)
        before = score(logits, rollout.batch, layout)
        reference = None if recipe.ref is None else score(recipe.ref, rollout.batch, layout).log_probs
        known = dict(
            group_size=recipe.group_size,
            key=key_credit,
            ref_log_probs=reference,
            log_probs=before.log_probs,
            reward_kl_coef=recipe.reward_kl_coef,
        )
        prompts = rollout.batch.tokens[:, 0]
        named = remembered(memory[0], prompts) if memory else {}
        if recipe.named is not None:
            named |= recipe.named(jax.random.fold_in(key, 3), logits, prompts)  # 0 to 2 are split off
        batch = rule.assign(choices, rollout, rewards, entropy=before.entropy, **known, **named)
        if memory:
            moved = jnp.mean(jnp.abs(before.log_probs - score(memory[1], rollout.batch, layout).log_probs), axis=1)
            earned = rule.token_rewards(choices, rollout, rewards, **known, **named).rows
            memory = remember(recipe.tracker, memory[0], prompts, earned, moved), logits
        olds = {"proximal": before.log_probs, "behavior": rollout.sampled_log_probs}
        batch = batch._replace(old_log_probs=olds[recipe.old])
        order = jax.random.permutation(key_rows, rewards.shape[0])
        parts = jax.tree.map(lambda x: x[order].reshape(recipe.minibatches, -1, *x.shape[1:]), batch)

        def update(carry, part):
            slope, metrics = jax.grad(loss_of, has_aux=True)(carry[0], part, objective, layout)
            updates, state = optimizer.update(slope, carry[1])
            return (optax.apply_updates(carry[0], updates), state), metrics

        (new, state), metrics = jax.lax.scan(update, (logits, state), parts)
        means = (jnp.mean(metrics[name]) for name in ("clip/low", "clip/high"))
        past = jnp.concatenate([past[1:], new[None]])
        return ((new, state), past, memory), (observe(logits), Step(drawn, *means))

    past = jnp.broadcast_to(logits[None], (recipe.lag + 1, *logits.shape))
    memory = () if recipe.tracker is None else (recipe.tracker.init(), logits)
    start = (logits, optimizer.init(logits)), past, memory
    ((logits, _), *_), (seen, steps) = jax.lax.scan(step, start, jax.random.split(key, recipe.steps))
    seen = jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), seen, observe(logits))
    return logits, seen, steps
