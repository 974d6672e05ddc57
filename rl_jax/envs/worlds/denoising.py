"""Denoising as an environment: a mixture of Gaussians in the plane, whose noised score is known in closed form.

x_t = signal_t x_0 + noise_t e. With components N(m_k, s^2) of equal weight,

    v_t = signal_t^2 s^2 + noise_t^2,   w_k ~ exp(-|x - signal_t m_k|^2 / (2 v_t)),
    E[x_0 | x] = sum_k w_k (m_k + signal_t s^2 / v_t (x - signal_t m_k)),
    score      = (signal_t E[x_0 | x] - x) / noise_t^2

so the pretrained model is exact and needs no net. An episode is a chain of T steps from noise to x_0. A step is

    x' = keep_t x + push_t f_t(x) + std_t a,      f_t the exact prediction (of the noise, or of the velocity)

The action a is in units of the step's own noise: a ~ N(0, I) is the pretrained model, and N(push_t / std_t u, I) is a
model that predicts f_t + u. So log N(a; ., I) is the log-prob of x' up to a constant, and KL(model || pretrained) of a
step is |mean of a|^2 / 2. Only x_0 is paid, according to a prompt, which is a direction. `noised` is for
learning from given samples: a policy whose mean is the action that it returns has predicted the noise in x_t, and the
error of any other prediction is |a - mean| std_t / push_t.

Observation: x [2], the direction [2], the time in [0, 1], push_t / std_t, std_t, |dt|, and the steps left (0 with a
jump); the last one's bound in the Box is T. Sources: DDPO, arXiv 2305.13301 (the chain as an MDP); Flow-GRPO, arXiv
2505.05470 (its SDE); ImageReward, 2304.05977 (ReFL, the jump).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
PROCESSES, REWARDS = ("flow", "diffusion"), ("half", "along", "cosine")


class Mixture(NamedTuple):
    """Gaussians of equal weight. means: numpy float32 [K, 2]. deviation: s, of each coordinate."""

    means: np.ndarray
    deviation: float


class Schedule(NamedTuple):
    """What the T steps of a chain need, numpy float32 [T] each, the noisiest first.

    Attributes:
      time: 1 at the noisiest.
      signal: of x_t before the step.
      noise: of x_t before the step.
      keep: of x in the mean of x'.
      push: of the prediction in the mean of x'.
      std: of x'.
      span: |dt|.
    """

    time: np.ndarray
    signal: np.ndarray
    noise: np.ndarray
    keep: np.ndarray
    push: np.ndarray
    std: np.ndarray
    span: np.ndarray


class Chain(NamedTuple):
    """The state: x float32 [2], the prompt's direction float32 [2], steps taken and the last step, int32 []."""

    x: chex.Array
    direction: chex.Array
    step: chex.Array
    end: chex.Array


def ring(modes: int = 8, radius: float = 2.0, deviation: float = 0.2) -> Mixture:
    """The Mixture with its modes on a circle, the first one half a gap above the x axis."""
    angles = 2.0 * np.pi * (np.arange(modes) + 0.5) / modes
    return Mixture((radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)).astype(np.float32), deviation)


def clean_mean(mixture: Mixture, x: chex.Array, signal: chex.Array, noise: chex.Array) -> chex.Array:
    """E[x_0 | x], float [2]; see above.

    Args:
      mixture: of x_0.
      x: float [2].
      signal: float [].
      noise: float [].
    """
    spread = signal**2 * mixture.deviation**2 + noise**2
    off = x[None] - signal * mixture.means
    weights = jax.nn.softmax(-jnp.sum(jnp.square(off), axis=-1) / (2.0 * spread), axis=-1)
    means = mixture.means + signal * mixture.deviation**2 / spread * off
    return jnp.sum(weights[:, None] * means, axis=0)


def score(mixture: Mixture, x: chex.Array, signal: chex.Array, noise: chex.Array) -> chex.Array:
    """grad_x log p_t(x) of the noised mixture, float [2]. Arguments as of clean_mean."""
    return (signal * clean_mean(mixture, x, signal, noise) - x) / noise**2


def predict(process: str, mixture: Mixture, x: chex.Array, signal: chex.Array, noise: chex.Array) -> chex.Array:
    """E[e | x] of a "diffusion", E[e - x_0 | x] of a "flow": float [2]. Arguments as of clean_mean."""
    clean = clean_mean(mixture, x, signal, noise)
    predicted = (x - signal * clean) / noise
    return predicted - clean if process == "flow" else predicted


def flow_schedule(steps: int, *, eta: float = 0.7, shift: float = 3.0) -> Schedule:
    """Flow-GRPO's SDE for x_t = (1 - t) x_0 + t e: sigma_t = eta sqrt(t / (1 - t)), t shifted towards the noise.

        x' = x - v dt - sigma_t^2 / (2 t) (x + (1 - t) v) dt + sigma_t sqrt(dt) a

    Args:
      steps: T.
      eta: the noise level.
      shift: t <- shift t / (1 + (shift - 1) t), of Stable Diffusion 3.
    """
    even = np.linspace(1.0, 0.0, steps + 1)
    times = shift * even / (1.0 + (shift - 1.0) * even)
    t, span = times[:-1], times[:-1] - times[1:]
    sigma = eta * np.sqrt(t / (1.0 - np.where(t == 1.0, times[1], t)))
    keep = 1.0 - sigma**2 / (2.0 * t) * span
    push = -(1.0 + sigma**2 * (1.0 - t) / (2.0 * t)) * span
    return _rows(t, 1.0 - t, t, keep, push, sigma * np.sqrt(span), span)


def diffusion_schedule(steps: int, *, eta: float = 1.0) -> Schedule:
    """DDIM's steps for x_t = cos x_0 + sin e, with angles from .96 to .03 of a quarter turn; eta = 1 is DDPM.

        x'  = signal' x_0hat + sqrt(noise'^2 - std^2) e_hat + std a
        std = eta noise' / noise sqrt(1 - (signal / signal')^2)

    Args:
      steps: T.
      eta: the share of DDPM's noise.
    """
    times = np.linspace(0.96, 0.03, steps + 1)
    signal, noise = np.cos(0.5 * np.pi * times), np.sin(0.5 * np.pi * times)
    std = eta * noise[1:] / noise[:-1] * np.sqrt(1.0 - (signal[:-1] / signal[1:]) ** 2)
    keep = signal[1:] / signal[:-1]
    push = np.sqrt(noise[1:] ** 2 - std**2) - keep * noise[:-1]
    return _rows(times[:-1], signal[:-1], noise[:-1], keep, push, std, times[:-1] - times[1:])


def _rows(*arrays: np.ndarray) -> Schedule:
    return Schedule(*(np.asarray(x, np.float32) for x in arrays))


def schedule_of(process: str, steps: int, eta: float) -> Schedule:
    """The Schedule of a process. Raises ValueError if it is unknown, or the numbers are out of range."""
    if process not in PROCESSES:
        raise ValueError(f"process={process!r} is none of {', '.join(PROCESSES)}")
    if steps < 2 or not 0.0 < eta <= 1.0:
        raise ValueError(f"steps={steps} must be 2 or more, and eta={eta} above 0 and at most 1")
    return flow_schedule(steps, eta=eta) if process == "flow" else diffusion_schedule(steps, eta=eta)


def reward_of(x: chex.Array, direction: chex.Array, *, kind: str, margin: float, radius: float) -> chex.Array:
    """ "half": 1 if x . direction > margin, else 0. "along": x . direction / radius. "cosine": of the angle between
    them, as of two embeddings. float [] of x [2]."""
    along = jnp.sum(x * direction)
    if kind == "cosine":
        return along * jax.lax.rsqrt(jnp.sum(jnp.square(x)) + 1e-6)
    return (along > margin).astype(jnp.float32) if kind == "half" else along / radius


def environment(
    *,
    process: str = "flow",
    steps: int = 10,
    eta: float = 0.7,
    modes: int = 8,
    radius: float = 2.0,
    deviation: float = 0.2,
    reward: str = "half",
    margin: float = 1.2,
    prompts: int = 4,
    jump: int = 0,
) -> Environment:
    """The chain of a pretrained model of a ring of modes, as an Environment.

    Args:
      process: "flow" or "diffusion".
      steps: T.
      eta: noise level of the steps.
      modes: of the mixture.
      radius: of the ring.
      deviation: of each mode.
      reward: "half" (sparse), "along" or "cosine"; the last two have a gradient.
      margin: of "half".
      prompts: number of directions, evenly around the circle from the x axis on.
      jump: ReFL's shortcut for gradients through the reward. The chain ends at a random one of its last `jump` steps,
        whose prediction of x_0 is paid; no gradient goes through the steps before. 0: whole chains.

    Raises:
      ValueError: if process or reward is unknown, or a number is out of range.
    """
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r} is none of {', '.join(REWARDS)}")
    if modes < 1 or prompts < 1:
        raise ValueError(f"modes={modes} and prompts={prompts} must be 1 or more")
    if not 0 <= jump <= steps:
        raise ValueError(f"jump={jump} must be from 0 to steps={steps}")
    mixture, schedule = ring(modes, radius, deviation), schedule_of(process, steps, eta)

    def observe(chain: Chain) -> chex.Array:
        now = jax.tree.map(lambda column: jnp.asarray(column)[jnp.minimum(chain.step, steps - 1)], schedule)
        left = 0.0 if jump else steps - chain.step.astype(jnp.float32)
        rest = jnp.stack([now.time, now.push / now.std, now.std, now.span, left])
        x = jax.lax.stop_gradient(chain.x) if jump else chain.x  # the policy reads it, too
        return jnp.concatenate([x, chain.direction, rest])

    def reset(key: chex.PRNGKey):
        noise_key, prompt_key, end_key = jax.random.split(key, 3)
        angle = 2.0 * jnp.pi * jax.random.randint(prompt_key, (), 0, prompts) / prompts
        direction = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        start = schedule.signal[0] * mixture.means.mean(0) + schedule.noise[0] * jax.random.normal(noise_key, (2,))
        end = jax.random.randint(end_key, (), steps - max(jump, 1), steps) + 1
        chain = Chain(start, direction, jnp.int32(0), end)
        return chain, observe(chain)

    def step(key: chex.PRNGKey, chain: Chain, action: chex.Array):
        now = jax.tree.map(lambda column: jnp.asarray(column)[jnp.minimum(chain.step, steps - 1)], schedule)
        x = jax.lax.stop_gradient(chain.x) if jump else chain.x
        predicted = predict(process, mixture, x, now.signal, now.noise)
        chain = chain._replace(x=now.keep * x + now.push * predicted + now.std * action, step=chain.step + 1)
        done = chain.step >= chain.end
        if jump:  # the model's own prediction: the action's mean is push / std times its correction
            own = predicted + now.std / now.push * action
            clean = x - now.noise * own if process == "flow" else (x - now.noise * own) / now.signal
            chain = chain._replace(x=jnp.where(done, clean, chain.x))
        paid = reward_of(chain.x, chain.direction, kind=reward, margin=margin, radius=radius)
        return chain, Step(observe(chain), jnp.where(done, paid, 0.0), done, NO)

    def noised(noise: chex.Array, clean: chex.Array, direction: chex.Array, index: chex.Array):
        now = jax.tree.map(lambda column: jnp.asarray(column)[index], schedule)
        x = now.signal * clean + now.noise * noise
        aim = noise - clean if process == "flow" else noise
        apart = aim - predict(process, mixture, x, now.signal, now.noise)
        return observe(Chain(x, direction, index, jnp.int32(steps))), now.push / now.std * apart

    high = np.asarray([np.inf] * 2 + [1.0] * 3 + [np.inf] * 3 + [0 if jump else steps], np.float32)
    anything = Box(np.full(2, -np.inf, np.float32), np.full(2, np.inf, np.float32))
    seen = Box(np.where(np.arange(9) == 8, 0.0, -high).astype(np.float32), high)
    return Environment(reset, step, seen, anything, noised=noised)


def mode_shares(x: chex.Array, mixture: Mixture) -> chex.Array:
    """The share of the points x [N, 2] whose nearest mode is each of the K: float32 [K]."""
    gaps = jnp.sum(jnp.square(x[:, None] - mixture.means[None]), axis=-1)
    return jnp.mean(jax.nn.one_hot(jnp.argmin(gaps, axis=-1), len(mixture.means)), axis=0)


def sample_composed(
    first: Mixture,
    second: Mixture,
    weight: chex.Array,
    key: chex.PRNGKey,
    *,
    process: str,
    schedule: Schedule,
    count: int,
) -> chex.Array:
    """Samples of the composition of two models: f = w f_1 + (1 - w) f_2 at each step. Source: GPC, arXiv 2510.01068.

    Args:
      first: what the first model was trained on.
      second: the same for the second.
      weight: w, float [].
      key: typed PRNG key.
      process: "flow" or "diffusion".
      schedule: of the process.
      count: N.

    Returns:
      x_0, float32 [N, 2].
    """
    start_key, noise_key = jax.random.split(key)
    x = schedule.noise[0] * jax.random.normal(start_key, (count, 2))

    def step(x: chex.Array, drawn):
        now, noise = drawn

        def predicted(x: chex.Array) -> chex.Array:
            both = [predict(process, mixture, x, now.signal, now.noise) for mixture in (first, second)]
            return weight * both[0] + (1.0 - weight) * both[1]

        return now.keep * x + now.push * jax.vmap(predicted)(x) + now.std * noise, None

    noises = jax.random.normal(noise_key, (len(schedule.time), count, 2))
    return jax.lax.scan(step, x, (jax.tree.map(jnp.asarray, schedule), noises))[0]
