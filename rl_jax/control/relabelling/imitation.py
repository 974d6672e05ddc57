"""Imitation by relabelling: a discriminator between the policy's steps and demonstrated ones pays the policy.

gail    r = -log(1 - D),  D = sigma(f(s, a)), binary cross-entropy                         1606.03476
airl    r = log D - log(1 - D) = f                                                          1710.11248
liayn   r = -log(1 - D), + 10 mean max(|grad f(x^)| - 1, 0)^2, x^ between both               2006.16785
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations
from rl_jax.control.relabelling.base import Learned, begin, descend, features_of, flat, mean_of
from rl_jax.rollout.envs.steps import Transitions

REWARDS = {"gail": jax.nn.softplus, "airl": lambda x: x, "liayn": jax.nn.softplus}


def gradient_penalty(score: Callable, points: chex.Array) -> chex.Array:
    """mean max(|grad_x f(x)| - 1, 0)^2, float []: 0 for a function that is 1-Lipschitz, (|w| - 1)^2 for w . x beyond.

    Source: arXiv 2006.16785, one-sided.

    Args:
      score: float [D] -> float [].
      points: float [N, D].
    """
    chex.assert_rank(points, 2)
    slopes = jnp.sqrt(jnp.sum(jnp.square(jax.vmap(jax.grad(score))(points)), axis=1) + 1e-12)
    return jnp.mean(jnp.square(jnp.maximum(slopes - 1.0, 0.0)))


def discriminator_loss(
    own: chex.Array, expert: chex.Array, labels: chex.Array, *, entropy_coef: float | chex.Array = 0.0
) -> chex.Array:
    """Binary cross-entropy of logits: 0 for the policy's steps, `labels` for the expert's; less the entropy's share.

    Args:
      own: logits of the policy's steps, float [N].
      expert: logits of the expert's, float [M].
      labels: float [M]; 1, or smoothed.
      entropy_coef: weight of the Bernoulli entropy of D.
    """
    chex.assert_equal_shape([expert, labels])
    entropy = jnp.mean(optax.sigmoid_binary_cross_entropy(own, jax.nn.sigmoid(own)))
    entropy += jnp.mean(optax.sigmoid_binary_cross_entropy(expert, jax.nn.sigmoid(expert)))
    fit = jnp.mean(jax.nn.softplus(own)) + jnp.mean(optax.sigmoid_binary_cross_entropy(expert, labels))
    return fit - 0.5 * entropy_coef * entropy


def make_objective(
    score: Callable, *, batch_size: int, labels: tuple[float, float], penalty: float, entropy_coef: float
) -> Callable:
    """(own [N, D], expert [M, D]) -> (params, key) -> loss float []: of random rows, with the gradient penalty.

    Args:
      score: (params, float [N, D]) -> logits float [N].
      batch_size: rows of each side.
      labels: the expert's are uniform in this range.
      penalty: weight of `gradient_penalty` at points between both sides; 0 (a plain number) leaves it out.
      entropy_coef: see `discriminator_loss`.
    """

    def of_rows(x: chex.Array, expert: chex.Array) -> Callable:
        def loss_fn(params, key: chex.PRNGKey) -> chex.Array:
            keys = jax.random.split(key, 4)
            own = x[jax.random.randint(keys[0], (batch_size,), 0, len(x))]
            taught = expert[jax.random.randint(keys[1], (batch_size,), 0, len(expert))]
            drawn = jax.random.uniform(keys[2], (batch_size,), minval=labels[0], maxval=labels[1])
            loss = discriminator_loss(score(params, own), score(params, taught), drawn, entropy_coef=entropy_coef)
            if isinstance(penalty, float) and penalty == 0.0:
                return loss
            share = jax.random.uniform(keys[3], (batch_size, 1))
            between = share * taught + (1.0 - share) * own
            return loss + penalty * gradient_penalty(lambda point: score(params, point[None])[0], between)

        return loss_fn

    return of_rows


def label_range(kind: str, low: float | None, high: float | None) -> tuple[float, float]:
    """The expert's smallest and largest label; None is the published one, 0.7 and 1.2 of liayn, else 1."""
    default = (0.7, 1.2) if kind == "liayn" else (1.0, 1.0)
    return default[0] if low is None else low, default[1] if high is None else high


class Judged(NamedTuple):
    """State of `by_discriminator`.

    Attributes:
      learned: of the discriminator.
      own: float32 []. Mean D of the policy's last steps.
      expert: float32 []. Mean D of the expert's.
    """

    learned: Learned
    own: chex.Array
    expert: chex.Array


def by_discriminator(
    *,
    observation_size: int,
    distribution,
    make_net: Callable,
    demos: str = "",
    last: int = 1,
    kind: str = "gail",
    observations_only: bool = False,
    penalty_coef: float | None = None,
    label_low: float | None = None,
    label_high: float | None = None,
    entropy_coef: float = 0.001,
    hidden: tuple[int, ...] = (64, 64),
    learning_rate: float = 5e-4,
    steps: int = 4,
    batch_size: int = 64,
    keep: float = 0.0,
    axis_name=None,
) -> Relabel:
    """Pays steps for looking like demonstrated ones.

    Source: arXiv 1606.03476 (gail), 1710.11248 (airl), 2006.16785 (liayn: penalty 10, labels from U(0.7, 1.2)).
    Departs: liayn is off-policy there: control.adversaries; airl's discriminator is f without the policy's log-prob.

    Args:
      observation_size: numbers in an observation.
      distribution: of the policy's actions.
      make_net: models.agents.features.make_net.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      last: episodes of it, the last ones.
      kind: "gail", "airl" or "liayn".
      observations_only: compares (s, s') instead of (s, a).
      penalty_coef: of the gradient penalty; None is 10 for liayn and 0 for the others.
      label_low: smallest label of the expert; None is 0.7 for liayn and 1 for the others.
      label_high: largest; None is 1.2 for liayn and 1 for the others.
      entropy_coef: weight of D's entropy.
      hidden: widths of the discriminator.
      learning_rate: of Adam.
      steps: per batch.
      batch_size: rows of each side per step.
      keep: weight of the environment's reward.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the kind is unknown, or the demonstrations are of other sizes.
    """
    if kind not in REWARDS:
        raise ValueError(f"by_discriminator: kind={kind!r} is none of {', '.join(REWARDS)}")
    shown = demonstrations.read(demos, last=last)
    if shown.observations.shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown.observations.shape[1]} numbers, but {observation_size} here")
    expert = _expert(shown, distribution, observations_only)
    net, optimizer = make_net(expert.shape[1], 1, hidden=hidden), optax.adam(learning_rate)
    smooth = kind == "liayn"
    penalty = (10.0 if smooth else 0.0) if penalty_coef is None else penalty_coef
    labels = label_range(kind, label_low, label_high)

    def score(params, x: chex.Array) -> chex.Array:
        return net.apply(params, x)[:, 0]

    objective = make_objective(score, batch_size=batch_size, labels=labels, penalty=penalty, entropy_coef=entropy_coef)

    def init(key: chex.PRNGKey) -> Judged:
        net_key, key = jax.random.split(key)
        return Judged(begin(net.init(net_key), optimizer, key), jnp.float32(0.5), jnp.float32(0.5))

    def apply(state: Judged, rows: Transitions) -> tuple[Judged, Transitions]:
        x = features_of(rows, distribution)
        if observations_only:
            x = jnp.concatenate([flat(rows.observations), flat(rows.next_observations)], axis=1)
        learned = descend(objective(x, expert), state.learned, optimizer, steps=steps, axis_name=axis_name)
        logits = score(learned.params, x)
        rewards = REWARDS[kind](logits).reshape(rows.rewards.shape) + keep * rows.rewards
        own, taught = jax.nn.sigmoid(logits), jax.nn.sigmoid(score(learned.params, expert))
        moved = Judged(learned, mean_of(own, axis_name), jnp.mean(taught))
        return moved, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    def measure(state: Judged) -> dict[str, chex.Array]:
        return {"relabel/own": state.own, "relabel/expert": state.expert}

    return Relabel(init, apply, seeded=True, measure=measure)


def _expert(shown: demonstrations.Demonstrations, distribution, observations_only: bool) -> chex.Array:
    """The demonstrated steps as the discriminator reads them, float32 [M, D]."""
    if observations_only:
        return jnp.concatenate([shown.observations, shown.next_observations], axis=1)
    actions = jnp.asarray(shown.actions)
    if jnp.issubdtype(actions.dtype, jnp.integer):
        actions = jax.nn.one_hot(actions, distribution.num_outputs)
    return jnp.concatenate([jnp.asarray(shown.observations), actions.reshape(len(actions), -1)], axis=1)
