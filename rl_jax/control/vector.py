"""Several objectives in a finite MDP: exact vector values, fronts by constrained policies, the worst-off group.

V^pi = (I - gamma P_pi)^-1 R_pi, [S, K];  J_k = start . V_k
stage 1   max w . J for a few w                                                              C-MORL 2410.02236
stage 2   max J_i + 1 / t sum_{j != i} log(J_j - beta J_j(start)), from the least crowded points
maxmin    theta <- theta + eta grad J_u, u = argmin_u J_u                                    2402.08925
"""

from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.stats import pareto

BARRIER_FLOOR = 1e-3  # the barrier's argument is at least this: outside of the constraint it pulls back


def returns(
    logits: chex.Array,
    rewards: chex.Array,
    transition_probs: chex.Array,
    start_probs: chex.Array,
    *,
    discount: float,
) -> chex.Array:
    """J of the policy softmax(logits), float [K]: exact and differentiable.

    Args:
      logits: float [S, A].
      rewards: float [S, A, K].
      transition_probs: float [S, A, S]; what is missing to 1 ends the episode.
      start_probs: float [S].
      discount: gamma.
    """
    chex.assert_rank([logits, rewards, transition_probs], [2, 3, 3])
    policy = jax.nn.softmax(logits)
    moves = jnp.einsum("sa,sat->st", policy, transition_probs)
    paid = jnp.einsum("sa,sak->sk", policy, rewards)
    values = jnp.linalg.solve(jnp.eye(len(moves)) - discount * moves, paid)
    return start_probs @ values


def barrier(found: chex.Array, bounds: chex.Array, objective: chex.Array, *, sharpness: float = 20.0) -> chex.Array:
    """J_i + 1 / t sum_{j != i} log(J_j - bound_j), float []: IPO's interior-point objective.

    Source: arXiv 2410.02236 with t = 20. Below BARRIER_FLOOR the log goes on as a line, so that a violated bound has a
    gradient (their code clamps it, which has none).

    Args:
      found: J, float [K].
      bounds: float [K].
      objective: i, int [].
      sharpness: t.
    """
    slack = found - bounds
    inside = jnp.log(jnp.maximum(slack, BARRIER_FLOOR))
    line = jnp.log(BARRIER_FLOOR) + (slack - BARRIER_FLOOR) / BARRIER_FLOOR
    terms = jnp.where(slack > BARRIER_FLOOR, inside, line)
    own = jnp.arange(len(found)) == objective
    return jnp.sum(jnp.where(own, found, terms / sharpness))


def ascended(objective: Callable, logits: chex.Array, *, steps: int, learning_rate: float = 0.1) -> chex.Array:
    """logits after `steps` of Adam upwards on objective (logits) -> float []."""
    optimizer = optax.adam(learning_rate)

    def step(carry, _):
        x, state = carry
        updates, state = optimizer.update(-jax.grad(objective)(x), state)
        return (optax.apply_updates(x, updates), state), None

    return jax.lax.scan(step, (logits, optimizer.init(logits)), None, steps)[0][0]


def first_stage(
    value_of: Callable, weights: chex.Array, shape: tuple[int, ...], key: chex.PRNGKey, *, steps: int = 300
) -> chex.Array:
    """One policy for each weight vector, trained on w . J: logits float [M, *shape].

    Args:
      value_of: logits -> J, float [K].
      weights: float [M, K].
      shape: of the logits.
      key: for the first logits.
      steps: of Adam.
    """
    first = 0.01 * jax.random.normal(key, (len(weights), *shape))
    return jax.vmap(lambda x, w: ascended(lambda y: w @ value_of(y), x, steps=steps))(first, weights)


def second_stage(
    value_of: Callable,
    policies: chex.Array,
    *,
    rounds: int = 3,
    picked: int = 4,
    share: float = 0.9,
    sharpness: float = 20.0,
    steps: int = 60,
    most: int = 200,
) -> tuple[chex.Array, np.ndarray]:
    """Fills the front: the least crowded policies move on along each objective, held above a share of the others.

    Args:
      value_of: logits -> J, float [K]. All J have to be positive for the bounds to be below them.
      policies: float [M, ...], of the first stage.
      rounds: of picking and moving.
      picked: policies per round.
      share: beta.
      sharpness: t.
      steps: of Adam per move.
      most: policies kept, the least crowded ones.

    Returns:
      (policies of the front [F, ...], their J float [F, K]).
    """
    objectives = jax.eval_shape(value_of, policies[0]).shape[0]

    @jax.jit
    def moved(x: chex.Array, index: chex.Array) -> chex.Array:
        bounds = share * value_of(x)
        return ascended(lambda y: barrier(value_of(y), bounds, index, sharpness=sharpness), x, steps=steps)

    each = jax.jit(jax.vmap(value_of))
    kept = policies
    for _ in range(rounds):
        kept, values = _filtered(kept, np.asarray(each(kept)), most)
        order = np.argsort(-pareto.crowding(values), kind="stable")[:picked]
        new = [moved(kept[i], jnp.int32(k)) for i in order for k in range(objectives)]
        kept = jnp.concatenate([kept, jnp.stack(new)])
    return _filtered(kept, np.asarray(each(kept)), most)


def _filtered(policies: chex.Array, values: np.ndarray, most: int) -> tuple[chex.Array, np.ndarray]:
    index = pareto.front(values)
    index = index[np.argsort(-pareto.crowding(values[index]), kind="stable")[:most]]
    return policies[index], values[index]


def maxmin(value_of: Callable, logits: chex.Array, *, steps: int = 400, learning_rate: float = 0.1) -> chex.Array:
    """Ascends the return of the group that is worst off, chosen anew in each step: logits like the first ones.

    Source: arXiv 2402.08925 (MaxMin-RLHF), each step's u* = argmin_u J_u. One group is plain ascent.

    Args:
      value_of: logits -> J of each group, float [U].
      logits: float [...].
      steps: of gradient ascent, with a rate that falls as 1 / sqrt(step): a subgradient method.
      learning_rate: of the first step.
    """

    def step(x: chex.Array, count: chex.Array):
        slope = jax.grad(lambda y: jnp.min(value_of(y)))(x)
        return x + learning_rate / jnp.sqrt(count + 1.0) * slope, None

    return jax.lax.scan(step, logits, jnp.arange(steps, dtype=jnp.float32))[0]


def grouped(
    pairs: chex.Array, annotators: chex.Array, count: int, rewards: chex.Array, *, rounds: int = 10, steps: int = 100
) -> tuple[chex.Array, chex.Array]:
    """Rewards of U groups of annotators by hard expectation maximisation: (rewards [U, A], group of each int [N_ann]).

    Source: arXiv 2402.08925 algorithm 2: E: an annotator belongs to argmax_u sum log sigma(r_u(w) - r_u(l)); M: a
    Bradley-Terry fit per group.

    Args:
      pairs: int [P, 2], the preferred arm first.
      annotators: int [P], who said so.
      count: number of annotators.
      rewards: float [U, A], first guess; two equal ones stay equal.
      rounds: of E and M.
      steps: of Adam per M.
    """

    def likelihood(table: chex.Array) -> chex.Array:
        return jax.nn.log_sigmoid(table[:, pairs[:, 0]] - table[:, pairs[:, 1]])  # [U, P]

    def turn(table: chex.Array, _):
        sums = jax.ops.segment_sum(likelihood(table).T, annotators, count)  # [annotators, U]
        group = jnp.argmax(sums, axis=1)
        mine = jax.nn.one_hot(group[annotators], len(table)).T

        def fit(x: chex.Array) -> chex.Array:
            return jnp.sum(likelihood(x) * mine) - 0.05 * jnp.sum(jnp.square(x))

        return ascended(fit, table, steps=steps), group

    table, groups = jax.lax.scan(turn, rewards, None, rounds)
    return table, groups[-1]


def best_of(log_probs: chex.Array, scores: chex.Array, samples: int) -> chex.Array:
    """log of the distribution of the best of N samples of a policy by scores, float [A]: what cloning them learns.

    P(best is a) = F(a)^N - (F(a) - p(a))^N with F(a) the mass of arms that score no more; equal scores share.

    Args:
      log_probs: float [A].
      scores: float [A].
      samples: N.
    """
    chex.assert_equal_shape([log_probs, scores])
    probs = jnp.exp(log_probs)
    below = jnp.sum(jnp.where(scores[None] < scores[:, None], probs[None], 0.0), axis=1)
    tied = jnp.sum(jnp.where(scores[None] == scores[:, None], probs[None], 0.0), axis=1)
    mass = (below + tied) ** samples - below**samples
    return jnp.log(jnp.maximum(mass * probs / tied, 1e-30))


def directional(
    log_probs: chex.Array, rewards: chex.Array, directions: Sequence[Sequence[float]], samples: int, rounds: int
) -> chex.Array:
    """Policies conditioned on a direction v after rounds of rejection sampling by v . r, log probs float [V, A].

    Source: arXiv 2402.18571 (Directional Preference Alignment): sample v, sample N answers, keep the best by v . r, and
    fine-tune on it with v in the prompt. Here the fine-tuning is exact; v = (1, 0) is best of N on the first reward.

    Args:
      log_probs: float [A], of the first policy.
      rewards: float [A, K].
      directions: float [V, K].
      samples: N.
      rounds: iterations.
    """
    vectors = jnp.asarray(directions)

    def one(vector: chex.Array) -> chex.Array:
        current = log_probs
        for _ in range(rounds):
            current = best_of(current, rewards @ vector, samples)
        return current

    return jax.vmap(one)(vectors)
