"""Masked diffusion of a short string as a differentiable environment: the exact pretrained model, Gumbel-softmax steps.

A string of L letters of V has a prior p, a Markov chain. All positions start masked. With move chances t = 1, 1 - 1/T,
.., 0 a step from t to s samples at every position

    q = (p_theta(letter | x) (t - s), s for the mask),   x_new = softmax((log q + g) / tau),   g Gumbel
    x <- (1 - x_mask) x + x_mask x_new,     p_theta(. | x) = softmax(log p(. | x) + action)

p(. | x) is exact: the forward-backward recursion of the chain, which is Bayes over all V^L strings. The action is the
correction of the logits [L V]; 0 is the pretrained model. The last step leaves no mask in a hard string (in a soft one
m (1 - m), which the rounding ignores); its string is rounded with a straight-through gradient and paid by its share of
pairs "ab", or by an oracle of it that was learned from noisy measurements (worlds.string_oracles). Every step costs
alpha times its KL from the pretrained model,

    sum_i x_i,mask (t - s) / t KL(p_theta(. | x) || p(. | x))_i

which summed over the chain is the KL of whole paths for sampled (hard) letters. Gradients go through the last `through`
steps only; the steps before are hard samples. Source: DRAKES, arXiv 2410.13643 and ChenyuWang-Monica/DRAKES (whose code
weighs the KL by the positions that are not masked; here it is the paper's, of those that are).
"""

import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step
from rl_jax.envs.worlds import string_oracles

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
EPS = 1e-10
REWARDS = ("true", "trained", "held_out")


class Chain(NamedTuple):
    """The prior. start: of the first letter, numpy float32 [V]. moves: of the next one, numpy float32 [V, V]."""

    start: np.ndarray
    moves: np.ndarray


class Letters(NamedTuple):
    """All strings of a prior. one_hot: numpy float32 [V^L, L, V]. probs: of the strings, numpy float32 [V^L]."""

    one_hot: np.ndarray
    probs: np.ndarray


class Text(NamedTuple):
    """The state: x float32 [L, V + 1], the mask last; steps taken int32 []."""

    x: chex.Array
    step: chex.Array


def markov(letters: int, *, stay: float = 0.4) -> Chain:
    """The first letter is uniform; a letter stays with `stay`, moves on to the next one with a tenth of the rest.

    So the pair "ab" is rare in the prior. The others share what is left.
    """
    table = np.full((letters, letters), 0.9 * (1.0 - stay) / max(letters - 2, 1))
    for i in range(letters):
        table[i, i], table[i, (i + 1) % letters] = stay, 0.1 * (1.0 - stay)
    table /= table.sum(-1, keepdims=True)
    return Chain(np.full(letters, 1.0 / letters, np.float32), table.astype(np.float32))


def enumerated(prior: Chain, length: int) -> Letters:
    """All V^L strings with their probabilities: for known answers, where they are few."""
    letters = len(prior.start)
    strings = np.array(list(itertools.product(range(letters), repeat=length)))
    probs = prior.start[strings[:, 0]] * np.prod(prior.moves[strings[:, :-1], strings[:, 1:]], axis=1)
    return Letters(np.eye(letters, dtype=np.float32)[strings], probs.astype(np.float32))


def pretrained(prior: Chain, x: chex.Array) -> chex.Array:
    """p(letter | x) at each position, float32 [L, V]; for hard x exactly Bayes' rule.

    Args:
      prior: of letters.
      x: float32 [L, V + 1]; a string fits with the product of x_i of its letter, or of the mask.
    """
    fits, moves = x[:, :-1] + x[:, -1:], jnp.asarray(prior.moves)

    def scaled(message: chex.Array) -> chex.Array:
        return message / jnp.maximum(jnp.sum(message), EPS)

    def forward(before: chex.Array, fit: chex.Array):
        return (own := scaled((before @ moves) * fit)), own

    def backward(after: chex.Array, fit: chex.Array):
        return (own := scaled(moves @ (fit * after))), own

    first = scaled(jnp.asarray(prior.start) * fits[0])
    _, ahead = jax.lax.scan(forward, first, fits[1:])
    last = jnp.ones_like(first)
    _, behind = jax.lax.scan(backward, last, fits[1:], reverse=True)
    joint = jnp.concatenate([first[None], ahead]) * jnp.concatenate([behind, last[None]])
    return joint / jnp.maximum(jnp.sum(joint, axis=-1, keepdims=True), EPS)


def pair_share(x: chex.Array) -> chex.Array:
    """The number of pairs "ab" over the largest possible, float []. x: float32 [L, V], its letters 0 and 1."""
    return jnp.sum(x[:-1, 0] * x[1:, 1]) / (len(x) // 2)


def step_kl(probs: chex.Array, base: chex.Array, masked: chex.Array, rate: chex.Array) -> chex.Array:
    """sum_i masked_i rate KL(probs_i || base_i), float [].

    Args:
      probs: float32 [L, V].
      base: float32 [L, V].
      masked: float32 [L].
      rate: (t - s) / t, float [].
    """
    each = jnp.sum(probs * (jnp.log(probs + EPS) - jnp.log(base + EPS)), axis=-1)
    return rate * jnp.sum(masked * each)


def soft_step(
    x: chex.Array, probs: chex.Array, gumbel: chex.Array, t: chex.Array, s: chex.Array, *, tau: float
) -> chex.Array:
    """One step of Gumbel-softmax from move chance t to s, float32 [L, V + 1].

    Args:
      x: float32 [L, V + 1].
      probs: p_theta, float32 [L, V].
      gumbel: float32 [L, V + 1].
      t: float [].
      s: float [].
      tau: temperature; 0 is the hard sample, without a gradient.
    """
    q = jnp.concatenate([probs * (t - s), jnp.broadcast_to(s, (len(x), 1))], axis=-1)
    logits = jnp.log(q + EPS) + gumbel
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), x.shape[-1])
    new = jax.nn.softmax(logits / tau, axis=-1) if tau else hard
    masked = x[:, -1:]
    return (1.0 - masked) * x + masked * new


def environment(
    *,
    letters: int = 4,
    length: int = 5,
    steps: int = 6,
    tau: float = 0.5,
    alpha: float = 0.02,
    through: int = 0,
    reward: str = "true",
    samples: int = 1000,
    noise: float = 0.3,
    ridge: float = 1.0,
    seed: int = 0,
) -> Environment:
    """The chain as an Environment.

    Args:
      letters: V.
      length: L.
      steps: T.
      tau: temperature of the Gumbel-softmax; 0 samples hard letters, for evaluation.
      alpha: weight of the KL from the pretrained model.
      through: last steps that gradients go through; 0 is all.
      reward: "true", the share of pairs; "trained" or "held_out", what an oracle that was learned thinks it is.
      samples: measured strings of both oracles together.
      noise: standard deviation of a measurement.
      ridge: of the oracles' regression.
      seed: of the measurements.

    Raises:
      ValueError: if a number is out of range, or the reward is unknown.
    """
    if letters < 2 or length < 2 or letters * length > 5000:
        raise ValueError(f"letters={letters}, length={length}: 2 or more of each, and their product at most 5000")
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r} is none of {', '.join(REWARDS)}")
    if steps < 1 or tau < 0.0 or alpha < 0.0 or not 0 <= through <= steps:
        raise ValueError(f"steps={steps}, tau={tau}, alpha={alpha}, through={through}: 1 or more, 0 or more, to steps")
    prior, first_soft, pay = markov(letters), steps - (through or steps), pair_share
    if reward != "true":
        oracles = string_oracles.make_oracles(
            *prior, length=length, samples=samples, noise=noise, ridge=ridge, seed=seed
        )
        pay = functools.partial(string_oracles.predicted, oracles[reward == "held_out"])

    def observe(text: Text) -> chex.Array:
        return jnp.concatenate([text.x.reshape(-1), (1.0 - text.step / steps).reshape(1)])

    def reset(key: chex.PRNGKey):
        text = Text(jnp.zeros((length, letters + 1)).at[:, -1].set(1.0), jnp.int32(0))
        return text, observe(text)

    def step(key: chex.PRNGKey, text: Text, action: chex.Array):
        t, s = 1.0 - text.step / steps, 1.0 - (text.step + 1) / steps
        t = jnp.maximum(t, 1.0 / steps)  # a state past its end is replaced, but its gradient must be finite
        base = pretrained(prior, text.x)
        probs = jax.nn.softmax(jnp.log(base + EPS) + action.reshape(length, letters), axis=-1)
        gumbel = jax.random.gumbel(key, (length, letters + 1))
        x = soft_step(text.x, probs, gumbel, t, jnp.maximum(s, 0.0), tau=tau)
        if first_soft:
            hard = jax.lax.stop_gradient(soft_step(text.x, probs, gumbel, t, jnp.maximum(s, 0.0), tau=0.0))
            x = jnp.where(text.step < first_soft, hard, x)
        done = text.step + 1 >= steps
        rounded = jax.nn.one_hot(jnp.argmax(x[:, :-1], axis=-1), letters)
        paid = pay(x[:, :-1] + jax.lax.stop_gradient(rounded - x[:, :-1]))
        cost = alpha * step_kl(probs, base, text.x[:, -1], (t - s) / t)
        text = Text(x, text.step + 1)
        return text, Step(observe(text), jnp.where(done, paid, 0.0) - cost, done, NO)

    size = length * (letters + 1) + 1
    anything = Box(np.full(length * letters, -np.inf, np.float32), np.full(length * letters, np.inf, np.float32))
    return Environment(reset, step, Box(np.zeros(size, np.float32), np.ones(size, np.float32)), anything)
