"""How the aggregation of tokens affects lengths, and how division by the std weights easy and hard questions."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, curve, per_seed, seed_keys
from experiments.studies.policy_world import Layout, Recipe, loss_of, make_method, rows_of, score, train
from rl_jax.core.types import Rollout
from rl_jax.credit import rule

EOS, WRITE_ON, RIGHT, WRONG = range(4)
NEVER = -30.0  # logit; in effect minus infinity, but its entropy is not nan


def start_logits(stop: float, solve: chex.Array, length: int) -> chex.Array:
    """A policy that begins RIGHT with probability `solve`, else WRONG, and stops with probability `stop` per token.

    Args:
      stop: probability of stopping.
      solve: float [P].
      length: T.

    Returns:
      float [P, N, 4] of a Layout that sees "first" and has T = length.
    """
    later = np.array([np.log(stop), np.log1p(-stop), NEVER, NEVER], np.float32)
    solve = jnp.stack([jnp.full_like(solve, NEVER), jnp.full_like(solve, NEVER), jnp.log(solve), jnp.log1p(-solve)], 1)
    rest = jnp.broadcast_to(jnp.asarray(later)[None, None], (solve.shape[0], 4 * (length - 1), 4))
    return jnp.concatenate([solve[:, None], rest], axis=1)


def mean_length(logits: chex.Array, first: int, length: int) -> chex.Array:
    """The expected tokens of a completion that begins with `first`, mean over the prompts. float [P, N, 4] -> []."""
    stop = jax.nn.softmax(logits[:, 1:].reshape(logits.shape[0], length - 1, 4, 4)[:, :, first])[..., EOS]
    alive = jnp.cumprod(1.0 - stop, axis=1)  # after the 2nd, 3rd .. token
    return jnp.mean(2.0 + jnp.sum(alive[:, :-1], axis=1))


def free_length(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    length: int,
    prompts: int,
    solve: tuple[float, float],
    stop: float,
    recipe: Mapping,
) -> Outcome:
    """Answers are right or wrong by their first token and may have any length: the reward does not depend on it.

    Metrics: wrong and right, the growth of the expected length of wrong and of right answers in tokens, summed over all
    lengths; solved, the probability of a right answer at the end. Source: arXiv 2503.20783.

    Args:
      seeds: of the prompts.
      arms: name -> slots (see make_method).
      length: the limit in tokens; reaching it is not punished.
      prompts: number of prompts.
      solve: range of the initial probability of a right beginning, uniform over the prompts.
      stop: initial probability of ending after each token.
      recipe: fields of Recipe.
    """
    layout = Layout(4, length, sees="first", eos=EOS)

    def judge(key, prompts, rollout):
        return (rollout.batch.tokens[:, 1] == RIGHT).astype(jnp.float32)

    def observe(logits):
        solved = jnp.mean(jax.nn.softmax(logits[:, 0])[:, RIGHT])
        return mean_length(logits, WRONG, length), mean_length(logits, RIGHT, length), solved

    def run(method, key):
        key_world, key_run = jax.random.split(key)
        logits = start_logits(stop, jax.random.uniform(key_world, (prompts,), minval=solve[0], maxval=solve[1]), length)
        _, (wrong, right, solved), _ = train(key_run, logits, method, Recipe(judge, **recipe), layout, observe)
        metrics = {"wrong": wrong[-1] - wrong[0], "right": right[-1] - right[0], "solved": solved[-1]}
        return metrics, {"wrong_length": wrong, "right_length": right}

    values, curves = {}, {"wrong_length": {}, "right_length": {}}
    for name, slots in arms.items():
        method = make_method(slots)
        metrics, traces = jax.jit(jax.vmap(lambda key, m=method: run(m, key)))(seed_keys(seeds))
        values[name] = per_seed(metrics)
        for title, trace in traces.items():
            every = max(trace.shape[1] // 100, 1)
            curves[title][name] = curve(range(0, trace.shape[1], every), trace[:, ::every])
    return Outcome(values, curves)


def slope_on_question(method: tuple, pass_rate: chex.Array, group_size: int) -> chex.Array:
    """How strongly a group of one question pushes its pass rate p, relative to the exact gradient.

    The expected derivative of the loss with respect to the logit of the right answer, over all numbers of right answers
    in a group, divided by -p (1 - p), which is that of the expected reward.

    Args:
      method: of make_method.
      pass_rate: p, float [].
      group_size: samples per group.

    Returns:
      float [].
    """
    choices, objective = method
    layout = Layout(2, 1)

    def slope(right):
        tokens = (jnp.arange(group_size) < right).astype(jnp.int32)[:, None]
        rows, mask = rows_of(jnp.zeros(group_size, jnp.int32), tokens), jnp.ones((group_size, 1), bool)
        logits = jnp.stack([jnp.zeros(()), jnp.log(pass_rate) - jnp.log1p(-pass_rate)])[None, None]
        log_probs = score(logits, rows, layout).log_probs
        rollout = Rollout(rows, mask, log_probs, log_probs, mask[:, 0], ~mask[:, 0])
        batch = rule.assign(
            choices, rollout, tokens[:, 0].astype(jnp.float32), group_size=group_size, key=jax.random.key(0)
        )
        return jax.grad(lambda x: loss_of(x, batch, objective, layout)[0])(logits)[0, 0, 1]

    right = jnp.arange(group_size + 1)
    slopes = jax.vmap(slope)(right)
    log_chances = jax.scipy.stats.binom.logpmf(right, group_size, pass_rate)
    return -jnp.sum(jnp.exp(log_chances) * slopes) / (pass_rate * (1.0 - pass_rate))


def question_weights(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    group_size: int,
    hard: tuple[float, float],
    medium: tuple[float, float],
    easy: tuple[float, float],
    questions: int,
) -> Outcome:
    """How much more a hard or an easy question weighs in the expected update than one of medium difficulty.

    A seed samples `questions` pass rates of each kind, uniform between the two numbers. Responses are not sampled:
    groups are summed over all numbers of right answers. Metrics: hard and easy, their mean slope over that of the
    medium ones; 1 under the exact gradient. Source: arXiv 2503.20783.

    Args:
      seeds: of the pass rates.
      arms: name -> slots (see make_method).
      group_size: samples per group.
      hard: range of pass rates.
      medium: range of pass rates.
      easy: range of pass rates.
      questions: number of pass rates of each kind.
    """

    def run(method, key):
        ranges = {"hard": hard, "medium": medium, "easy": easy}
        means = {}
        for place, (name, (low, high)) in enumerate(ranges.items()):
            rates = jax.random.uniform(jax.random.fold_in(key, place), (questions,), minval=low, maxval=high)
            means[name] = jnp.mean(jax.vmap(lambda p: slope_on_question(method, p, group_size))(rates))
        return {name: means[name] / means["medium"] for name in ("hard", "easy")}

    values, curves = {}, {}
    rates = np.linspace(0.02, 0.98, 49)
    for name, slots in arms.items():
        method = make_method(slots)
        values[name] = per_seed(jax.jit(jax.vmap(lambda key, m=method: run(m, key)))(seed_keys(seeds)))
        slopes = jax.jit(jax.vmap(lambda p, m=method: slope_on_question(m, p, group_size)))(jnp.asarray(rates))
        curves[name] = curve(100 * rates, slopes[None])
    return Outcome(values, {"weight_by_percent_solved": curves})
