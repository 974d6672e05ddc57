"""Preferences without a best answer: learning the Nash policy of a cyclic game."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, curve, kl, make_objective, per_seed, preference_loss, seed_keys
from rl_jax.selection.extragradient import extragradient_step


def duality_gap(log_probs: chex.Array, ref: chex.Array, wins: chex.Array, beta: float) -> chex.Array:
    """2 (max_p J(p, pi) - 1/2), J(p, q) = p' P q - beta KL(p || ref) + beta KL(q || ref): 0 only at the Nash policy.

    Args:
      log_probs: log pi, float [A].
      ref: log-probs of the reference, float [A].
      wins: P(row beats column), float [A, A].
      beta: coefficient of the KL.

    Returns:
      float [].
    """
    against = wins @ jnp.exp(log_probs)
    best = beta * jax.nn.logsumexp(ref + against / beta)
    return 2.0 * (best + beta * kl(log_probs, ref) - 0.5)


def last_iterate(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], slots: Mapping, beta: float, eta: float, steps: int
) -> Outcome:
    """Three answers, each of which beats the next one; how close the last policy is to the regularised Nash policy.

    All arms descend the online IPO loss (slots of rl_jax.dpo.Objective; rewards are win probabilities against the
    opponent) over all pairs of answers, with the step size that makes it mirror descent of step size eta. A seed is a
    game (win probabilities in [.6, .95]) and a reference. Metric: log10_gap, float64. Source: arXiv 2503.08942,
    2312.00886.

    Args:
      seeds: of the games.
      arms: name -> opponent, "policy" or "mixture" (pi^(1 - eta beta) ref^(eta beta), Nash-MD), and extragradient:
        whether to step from the previous start with the opponent at the previous end (EGPO).
      slots: of the objective.
      beta: coefficient of the KL.
      eta: step size of mirror descent.
      steps: of the training.
    """
    objective, every = make_objective(slots), max(steps // 100, 1)

    def world(key):
        key_p, key_ref = jax.random.split(key)
        wins = jnp.full((3, 3), 0.5)
        for i, win in enumerate(jax.random.uniform(key_p, (3,), minval=0.6, maxval=0.95)):
            wins = wins.at[i, (i + 1) % 3].set(win).at[(i + 1) % 3, i].set(1.0 - win)
        return wins, jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (3,)))

    first, second = (x.ravel() for x in jnp.meshgrid(jnp.arange(3), jnp.arange(3), indexing="ij"))
    answers = jnp.stack([first, second], axis=1)
    sgd = optax.sgd(eta * beta * 3 / 4)  # the mean over 9 pairs has gradient 4/3 (log-ratio - win rate / beta)

    def train(wins, ref, opponent, extragradient):
        def against(logits):
            log_probs = jax.nn.log_softmax(logits)
            mixed = jax.nn.log_softmax((1 - eta * beta) * log_probs + eta * beta * ref)
            return wins @ jnp.exp(mixed if opponent == "mixture" else log_probs)

        def gradient(logits, opponent_logits):
            rewards = against(opponent_logits)[answers]
            return jax.grad(
                lambda x: preference_loss(jax.nn.log_softmax(x)[answers], ref[answers], objective, rewards=rewards)
            )(logits)

        def update(logits, _):
            if extragradient:
                logits = extragradient_step(gradient, sgd, logits, sgd.init(logits))[0]
            else:
                logits = optax.apply_updates(logits, sgd.update(gradient(logits, logits), sgd.init(logits))[0])
            return logits, duality_gap(jax.nn.log_softmax(logits), ref, wins, beta)

        return jnp.log10(jnp.maximum(jax.lax.scan(update, ref, None, length=steps)[1], 1e-17))

    values, curves = {}, {}
    with jax.enable_x64(True):
        worlds = jax.vmap(world)(seed_keys(seeds))
        for arm, choices in arms.items():
            gaps = jax.jit(jax.vmap(lambda w, r, c=choices: train(w, r, **c)))(*worlds)
            values[arm] = per_seed({"log10_gap": gaps[:, -1]})
            curves[arm] = curve(every * np.arange(1, gaps.shape[1] // every + 1), gaps[:, every - 1 :: every])
    return Outcome(values, {"log10_gap": curves})
