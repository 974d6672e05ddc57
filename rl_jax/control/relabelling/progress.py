"""A learned model of progress as a potential (Robo-Dopamine): hops between the states of demonstrations.

    H(p, q)  = (Phi_q - Phi_p) / (1 - Phi_p) if q > p;  (Phi_q - Phi_p) / Phi_p if q < p;  0 if q = p
    Phi_k    = k / M  of the states s_0 .. s_M of a demonstration: what remains is 1 - Phi_p, what is done Phi_p
    I_t      = I_{t-1} + (1 - I_{t-1}) H(s_{t-1}, s_t)  if H >= 0,  else  I_{t-1} + I_{t-1} H(s_{t-1}, s_t);   I_0 = 0
    F_t      = H(s_0, s_t),   B_t = 1 + H(goal, s_t)
    Phi(s_t) = (I_t + F_t + B_t) / 3,  each in [0, 1]
    r'       = r + scale (gamma Phi(s_{t+1}) - Phi(s_t))

A network predicts H from (first state, goal, s_p, s_q). Source: arXiv 2512.23703. The label, the balanced pairs and I,
F and B are those of its code (as dddais/Robo-dopamine has it, where the three are separate modes). That the reward
takes their mean is from summaries of the paper; its check of how far F and B agree could not be read. Stand-ins:
vectors and a small network in place of several cameras and a vision-language model; squared error in place of tokens
of percent; states evenly spread over an episode in place of annotated key frames.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import demonstrations
from rl_jax.control.relabelling.base import PerEnv, begin, descend
from rl_jax.control.relabelling.shaping import shaped
from rl_jax.rollout.envs.steps import Transitions

VIEWS = ("incremental", "forward", "backward")


def hop(before: chex.Array, after: chex.Array) -> chex.Array:
    """H, float [...] in [-1, 1]: the share of what remained that was done, or minus the share of what was done.

    Args:
      before: Phi_p, float [...] in [0, 1].
      after: Phi_q, float [...] in [0, 1].
    """
    chex.assert_equal_shape([before, after])
    change = after - before
    whole = jnp.where(change >= 0.0, 1.0 - before, before)
    return jnp.where(change == 0.0, 0.0, change / jnp.where(whole > 0.0, whole, 1.0))


def moved(progress: chex.Array, hops: chex.Array) -> chex.Array:
    """The progress after a hop, float [...]: Phi_q of Phi_p and H(p, q). In [0, 1] for any hop in [-1, 1].

    Args:
      progress: Phi_p, float [...] in [0, 1].
      hops: H, float [...] in [-1, 1].
    """
    chex.assert_equal_shape([progress, hops])
    return progress + jnp.where(hops >= 0.0, 1.0 - progress, progress) * hops


class Pairs(NamedTuple):
    """All N pairs of states of some episodes.

    Attributes:
      inputs: float32 [N, 4 D]. First state, goal, s_p and s_q.
      hops: float32 [N]. H(p, q).
      weights: float32 [N]. How often each is drawn; the sum is 1.
    """

    inputs: np.ndarray
    hops: np.ndarray
    weights: np.ndarray


def make_pairs(episodes: list[np.ndarray], *, bins: int) -> Pairs:
    """Every ordered pair of states of each episode, p = q among them, with its label.

    Hops near 0 and states near each other are most of all pairs. So the range of hops is cut into `bins` parts, the
    distances within each part into `bins` more, and every part that has a pair is drawn as often as another.

    Args:
      episodes: float32 [M + 1, D] each, M >= 1.
      bins: parts; 1 draws all pairs alike.

    Raises:
      ValueError: if bins is below 1, or an episode has one state only.
    """
    if bins < 1 or min(map(len, episodes)) < 2:
        raise ValueError(f"make_pairs: bins={bins} must be 1 or more, and each episode 2 states or more")
    inputs, hops, gaps = [], [], []
    for states in episodes:
        before, after = (x.reshape(-1) for x in np.meshgrid(*2 * [np.arange(len(states))], indexing="ij"))
        ends = np.broadcast_to(np.concatenate([states[0], states[-1]]), (len(before), 2 * states.shape[1]))
        inputs.append(np.concatenate([ends, states[before], states[after]], axis=1))
        progress = np.linspace(0.0, 1.0, len(states), dtype=np.float32)
        with jax.ensure_compile_time_eval():  # a program is made inside a jit
            hops.append(np.asarray(hop(progress[before], progress[after])))
        gaps.append(np.abs(after - before) / (len(states) - 1))
    found, apart = np.concatenate(hops), np.concatenate(gaps)
    of_hop = np.minimum((0.5 * (found + 1.0) * bins).astype(int), bins - 1)
    part = of_hop * bins + np.minimum((apart * bins).astype(int), bins - 1)
    shares = 1.0 / np.bincount(part, minlength=bins * bins)[part]
    return Pairs(np.concatenate(inputs).astype(np.float32), found, (shares / shares.sum()).astype(np.float32))


class Episodes(NamedTuple):
    """Where the environments' episodes are.

    Attributes:
      starts: float32 [B, D]. The first state of each environment's episode.
      incremental: float32 [B]. I of each environment's state.
      over: bool [B]. Whether its episode has ended, so that the next state is a first one.
    """

    starts: chex.Array
    incremental: chex.Array
    over: chex.Array


class Progress(NamedTuple):
    """State of `by_progress`.

    Attributes:
      params: of the network; they do not change after the fit.
      error: float32 []. Mean |H - predicted H| over the demonstrations' pairs, as they are drawn.
      episodes: PerEnv of Episodes.
      mean: float32 []. Mean progress over the last batch.
    """

    params: Any
    error: chex.Array
    episodes: PerEnv
    mean: chex.Array


def by_progress(
    *,
    discount,
    observation_size: int,
    num_envs: int,
    make_net: Callable,
    demos: str = "",
    last: int = 1,
    frames: int = 64,
    views: tuple[str, ...] = VIEWS,
    bins: int = 5,
    hidden: tuple[int, ...] = (64, 64),
    updates: int = 1000,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    scale: float = 1.0,
    axis_name=None,
) -> Relabel:
    """Adds scale (gamma Phi(s') - Phi(s)) of a progress that demonstrations taught: the same best policies.

    The network is fitted once, before the first update. I depends on the way to a state, so Phi is of the episode so
    far; its discounted sum over an episode is -Phi(s_0) all the same, and no policy gains by it. `goal` is the last
    state of the last demonstration.

    Args:
      discount: gamma, the advantage's.
      observation_size: numbers in an observation, D.
      num_envs: B.
      make_net: models.agents.features.make_net.
      demos: episodes.jsonl of a run of experiments.control.ppo.
      last: episodes of it, the last ones; they should end where the task is done.
      frames: at most so many states of each, evenly spread.
      views: which of VIEWS the mean is over.
      bins: of make_pairs.
      hidden: widths of the network.
      updates: minibatches of the fit.
      batch_size: pairs per minibatch.
      learning_rate: of Adam; 0 leaves the network as it is drawn.
      scale: of the potential; 0 changes nothing.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if a number is out of range, views are unknown or none, the demonstrations are of another size, or the
        environments are spread over devices.
    """
    if axis_name is not None:
        raise ValueError("by_progress fits its network on one device: set mesh without envs")
    if not views or set(views) - set(VIEWS):
        raise ValueError(f"by_progress: views={tuple(views)} must be some of {', '.join(VIEWS)}")
    if min(updates, batch_size) < 1 or frames < 2:
        raise ValueError(
            f"by_progress: updates={updates}, batch_size={batch_size} must be 1 or more, frames={frames} 2"
        )
    episodes = _states(demos, last, observation_size, frames)
    pairs, goal = jax.tree.map(jnp.asarray, make_pairs(episodes, bins=bins)), jnp.asarray(episodes[-1][-1])
    net, optimizer = make_net(4 * observation_size, 1, hidden=hidden), optax.adam(learning_rate)

    def predict(params: Any, inputs: chex.Array) -> chex.Array:
        return jnp.tanh(net.apply(params, inputs.reshape(-1, inputs.shape[-1]))[:, 0]).reshape(inputs.shape[:-1])

    def init(key: chex.PRNGKey) -> Progress:
        net_key, fit_key = jax.random.split(key)

        def loss_fn(params: Any, key: chex.PRNGKey) -> chex.Array:
            drawn = jax.random.choice(key, len(pairs.hops), (batch_size,), p=pairs.weights)
            return jnp.mean(jnp.square(predict(params, pairs.inputs[drawn]) - pairs.hops[drawn]))

        params = descend(loss_fn, begin(net.init(net_key), optimizer, fit_key), optimizer, steps=updates).params
        error = jnp.sum(pairs.weights * jnp.abs(predict(params, pairs.inputs) - pairs.hops))
        blank = Episodes(jnp.zeros((num_envs, observation_size)), jnp.zeros(num_envs), jnp.ones(num_envs, bool))
        return Progress(params, error, PerEnv(blank), jnp.float32(0.0))

    def apply(state: Progress, rows: Transitions) -> tuple[Progress, Transitions]:
        seen, after, own = rows.observations, rows.next_observations, state.episodes.worlds
        over = rows.terminated | rows.truncated
        first = jnp.concatenate([own.over[:, None], over[:, :-1]], axis=1)
        starts = first_states(seen, first, own.starts)
        ends = jnp.broadcast_to(goal, seen.shape)

        def hops(p: chex.Array, q: chex.Array) -> chex.Array:
            return predict(state.params, jnp.concatenate([starts, ends, p, q], axis=-1))

        newest, progress, following = increments(hops(seen, after), first, own.incremental)
        before, behind = (
            fused({"incremental": i, "forward": hops(starts, x), "backward": 1.0 + hops(ends, x)}, views)
            for i, x in ((progress, seen), (following, after))
        )
        rewards = shaped(rows.rewards, scale * before, scale * behind, rows.terminated, discount)
        episodes = PerEnv(Episodes(starts[:, -1], newest, over[:, -1]))
        moved_on = state._replace(episodes=episodes, mean=jnp.mean(behind))
        return moved_on, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    def measure(state: Progress) -> dict[str, chex.Array]:
        return {"relabel/hop_error": state.error, "relabel/progress": state.mean}

    return Relabel(init, apply, seeded=True, measure=measure)


def fused(of: dict[str, chex.Array], views: tuple[str, ...]) -> chex.Array:
    """The mean of the views, each clipped to [0, 1]: float [...]."""
    return sum(jnp.clip(of[name], 0.0, 1.0) for name in views) / len(views)


def first_states(seen: chex.Array, first: chex.Array, before: chex.Array) -> chex.Array:
    """The first state of the episode that each step is in: float [B, T, D].

    Args:
      seen: states, float [B, T, D].
      first: bool [B, T], where an episode begins.
      before: the first states of the episodes that the rows go on with, float [B, D].
    """
    chex.assert_equal_shape_prefix([seen, first], 2)

    def step(start: chex.Array, x: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        start = jnp.where(x[1][:, None], x[0], start)
        return start, start

    return jnp.moveaxis(jax.lax.scan(step, before, (jnp.moveaxis(seen, 1, 0), first.T))[1], 0, 1)


def increments(hops: chex.Array, first: chex.Array, before: chex.Array) -> tuple[chex.Array, ...]:
    """I before and after each step, 0 at the first state of an episode.

    Args:
      hops: H(s_t, s_{t+1}), float [B, T].
      first: bool [B, T], where an episode begins.
      before: I of the states that the rows go on from, float [B].

    Returns:
      (I after the last step float [B], I of s_t float [B, T], I of s_{t+1} float [B, T]).
    """
    chex.assert_equal_shape([hops, first])

    def step(progress: chex.Array, x: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, tuple]:
        own = jnp.where(x[1], 0.0, progress)
        following = moved(own, x[0])
        return following, (own, following)

    end, (own, following) = jax.lax.scan(step, before, (hops.T, first.T))
    return end, own.T, following.T


def _states(demos: str, last: int, observation_size: int, frames: int) -> list[np.ndarray]:
    """The states of the last episodes of a file, float32 [M + 1, D] each, at most `frames` of one."""
    shown = demonstrations.read(demos, last=last)
    if shown.observations.shape[1] != observation_size:
        raise ValueError(f"{demos}: observations of {shown.observations.shape[1]} numbers, but {observation_size} here")
    result = []
    for start, following in zip(shown.starts, shown.trajectories(), strict=True):
        states = np.concatenate([shown.observations[start : start + 1], following])
        chosen = np.linspace(0, len(states) - 1, min(frames, len(states))).round().astype(int)
        result.append(states[chosen])
    return result
