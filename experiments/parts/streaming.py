"""Which choices of a config couple a batch, and so cannot be trained as its groups arrive (training.streaming).

A choice couples a batch if a group's result changes with the groups beside it: a std over the batch, a quantile, a
top-k. Nobody lists such functions here; each is tried, your own included: on two groups together, and on each alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import policy
from rl_jax import grpo
from rl_jax.core.binding import needs
from rl_jax.core.types import PolicyBatch, Rollout, TokenBatch, TokenScores
from rl_jax.credit import CreditRule, rule

LENGTH, PARTS = 6, 3  # tokens of a row, components of a reward
SLOTS = {  # field of CreditRule -> field of config.algorithm
    "shape": "shaping",
    "advantage": "advantage",
    "behavior_weight": "behavior_weight",
    "token_weight": "token_weight",
    "selection": "token_selection",
    "entropy_weight": "entropy_weight",
}


def check(config: ConfigDict) -> None:
    """Raises ValueError if groups cannot be trained as they arrive; names each reason, one a line."""
    if problems := structure(config) + couplings(config):
        raise ValueError("groups cannot be trained as they arrive:\n" + "\n".join(problems))


def structure(config: ConfigDict) -> list[str]:
    """What of the loop needs the whole batch, as sentences."""
    algorithm, train = config.algorithm, config.train
    found = {
        f"train.epochs={train.epochs}, train.minibatches={train.minibatches}": train.epochs * train.minibatches > 1,
        f"algorithm.row_selection={algorithm.row_selection.fn!r}": bool(algorithm.row_selection.fn),
        f"algorithm.entropy_aggregate={algorithm.entropy_aggregate.fn!r}": bool(algorithm.entropy_aggregate.fn),
        f"algorithm.ptx.coef={algorithm.ptx.coef}": algorithm.ptx.coef > 0,
        **{f"algorithm.trackers.{name}={spec.fn!r}": bool(spec.fn) for name, spec in algorithm.trackers.items()},
    }
    return [f"{name}: it sees the whole batch" for name, is_on in found.items() if is_on]


def couplings(config: ConfigDict) -> list[str]:
    """The choices of config.algorithm whose result for a group changes with the groups beside it, as sentences."""
    chosen, found = policy.make_credit(config), []
    size = min(config.sample.group_size, 4)
    for slot, field in SLOTS.items():
        if (fn := getattr(chosen, slot)) is None:
            continue
        if missing := sorted(needs(fn) & set(policy.SUPPLIED_BY) - {"versions", "lags"}):
            found.append(f"algorithm.{field}={config.algorithm[field].fn!r}: it asks for {', '.join(missing)}")
            continue
        own = CreditRule(advantage=_own_row)._replace(**{slot: fn})
        if not _same(lambda rows, own=own: _assign(own, rows, size), size):
            found.append(
                f"algorithm.{field}={config.algorithm[field].fn!r}: a group's result changes with the groups beside it"
            )
    objective = policy.make_objective(config)
    if not _same(lambda rows: _loss(chosen, objective, rows, size), size, total=True):
        names = ", ".join(repr(config.algorithm[name].fn) for name in ("surrogate", "kl", "aggregate"))
        found.append(f"algorithm.surrogate, kl, aggregate={names}: the loss of two groups is not the sum of theirs")
    return found


def _own_row(rewards: jax.Array) -> jax.Array:
    """An advantage that couples nothing."""
    return rewards - 0.5


def _same(fn, size: int, *, total: bool = False) -> bool:
    """Whether fn of both groups is fn of each, side by side, or (total) added up."""
    both, one, other = (fn(rows) for rows in (slice(0, 2 * size), slice(0, size), slice(size, 2 * size)))
    for whole, *halves in zip(*map(jax.tree.leaves, (both, one, other)), strict=True):
        expected = halves[0] + halves[1] if total else np.concatenate(halves)
        if np.shape(whole) != np.shape(expected) or not np.allclose(whole, expected, rtol=1e-4, atol=1e-6):
            return False
    return True


def _rows(rows: slice, size: int) -> tuple[Rollout, np.ndarray, dict]:
    """(rollout, rewards [B], arrays by name) of some rows of two groups that have little in common."""
    count = 2 * size
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(1, 4, size), rng.integers(3, LENGTH + 1, size)])
    mask = np.arange(LENGTH) < lengths[:, None]
    rewards = np.concatenate([rng.random(size), 3 + 9 * rng.random(size)]).astype(np.float32)
    per_token = {name: rng.normal(-1, 0.3, mask.shape) for name in ("mu", "log_probs", "ref_log_probs")}
    per_token |= {"entropy": rng.random(mask.shape), "sum_pi_squared": rng.random(mask.shape)}
    per_token["mu"][size:] -= 0.7
    arrays = {name: np.float32(value)[rows] for name, value in per_token.items()}
    tokens = rng.integers(1, 9, (count, LENGTH)).astype(np.int32)[rows]
    mask, behavior = mask[rows], arrays.pop("mu")
    cut = (lengths == LENGTH)[rows]
    versions = rng.integers(0, 3, (count, LENGTH)).astype(np.int32)[rows]
    rollout = Rollout(TokenBatch(tokens, tokens, tokens), mask, behavior, behavior, ~cut, cut, versions=versions)
    numbers = {"greedy_rewards": rewards * 0.5, "difficulty": rng.random(count), "best_lengths": lengths * 0.5}
    numbers |= {"greedy_lengths": lengths, "greedy_truncated": lengths == LENGTH, "divergence": rng.random(count)}
    numbers |= {"components": rng.random((count, PARTS)), "prompt_ids": np.repeat(np.arange(2), size)}
    arrays |= {
        name: value[rows] if value.dtype != float else np.float32(value[rows]) for name, value in numbers.items()
    }
    return rollout, rewards[rows], arrays | {"baseline": np.float32(0.1)}


def _assign(chosen: CreditRule, rows: slice, size: int) -> dict:
    rollout, rewards, arrays = _rows(rows, size)
    batch = rule.assign(chosen, rollout, jnp.asarray(rewards), group_size=size, key=jax.random.key(0), **arrays)
    kept = {name: value for name, value in batch.extras.items() if name in ("selected", "entropy_coefs")}
    return {"advantages": batch.advantages, "weights": batch.token_weights, "mask": batch.completion_mask, **kept}


def _loss(chosen: CreditRule, objective: grpo.Objective, rows: slice, size: int):
    rollout, _, arrays = _rows(rows, size)
    mask = jnp.asarray(rollout.completion_mask)
    advantages = jnp.where(mask, jnp.sin(jnp.float32(rollout.batch.tokens)), 0)
    number = jnp.full(len(mask), jnp.sum(jnp.any(mask, axis=1)), jnp.float32)
    tokens = jnp.full(len(mask), jnp.sum(mask.reshape(-1, size, LENGTH)[0]), jnp.float32)
    if len(mask) > size:
        tokens = jnp.repeat(jnp.sum(mask.reshape(-1, size * LENGTH), axis=1, dtype=jnp.float32), size)
    extras = {"group_tokens": tokens, "batch_rows": number, "versions": rollout.versions, "selected": mask}
    extras |= {"lags": jnp.where(mask, 2 - rollout.versions, 0), "prompt_ids": arrays["prompt_ids"]}
    mu = rollout.sampled_log_probs
    old, reference = arrays["log_probs"], arrays["ref_log_probs"]
    batch = PolicyBatch(rollout.batch, mask, advantages, old, mu, reference, jnp.ones(mask.shape), extras)
    # Of a policy far from the sampler for both groups, and of one that only the second group is far from: a bound on a
    # mean over the batch shows between groups on its two sides.
    policies = (old + 0.1, mu + 0.3 * (old - mu))
    return [grpo.loss(TokenScores(log_probs, arrays["entropy"]), batch, objective)[0] for log_probs in policies]
