"""Probe environments: each can be solved in seconds, but only by an agent in which one specific thing works.

    value         one state, one step, reward 1: V must become 1
    observation   two states, one step, the reward is the state: V must read the observation
    discount      two steps, reward 1 at the end: V of the first state is gamma, not 1
    action        one state, one step, two actions, one pays: the policy must move
    matching      two states, two actions, the right one pays: the policy must read the observation
    corridor      walk right for `length` steps, paid at the end only: the reward must travel back
    endless       reward 1 for ever, cut off every few steps: V is 1 / (1 - gamma) only if truncation bootstraps
    aim           the action is a number in [-2, 2], the reward -(action - target(observation))^2
    recall        matching, but the state is shown `delay` steps before it counts: the agent must remember
    privileged    matching under large reward noise that only the second feature shows, for the critic to read
    drive         a road after another car, its reward a product or a sum of terms (envs.worlds.driving)
    inventory     a store whose best policy is known in closed form, differentiable (envs.worlds.inventory)
    behaviours    one state, one step, the reward is the action's index: for preferences that no reward can express
    laser         a pulse shaped by the phase of its spectrum, its optimum known (envs.worlds.laser)
    restless      two of six coupled arms, the best policy known by dynamic programming (envs.worlds.restless)
    restless_vectors   the same, of any number, whose actions are vectors of 0 and 1
    docking       a point pushed to the origin, and a controller that misses it (envs.worlds.docking)
    hover         a planar quadrotor, its reward a sum of weighted terms (envs.worlds.hovering)
    gridworld     a square with a goal in a corner, also available as arrays (envs.worlds.tabular)
    junction      a grid whose place is not seen, and a sign at the start to be remembered (envs.worlds.tabular)
    pointmass     a point in the plane with inertia that should go to a goal (envs.worlds.pointmass)
    television    a line with a screen of noise at its left end, the reward at its right end (worlds.television)
    tour          stops on a line in order, in episodes of a fixed length: for imitation (worlds.tour)
    recovering    arms that pay more after a rest; a bound of every policy is known (worlds.recovering)
    bidding       auctions with a budget, solved by dynamic programming (worlds.bidding)
    salesman      the shortest way through some cities, by enumeration for few of them (worlds.salesman)
    branching     branch and bound on knapsacks, the smallest trees known by recursion (worlds.branching)
    mapping       tensors in a fast memory, the best mapping by going through all (worlds.mapping)
    passage       a narrow passage and the waypoints of a planner (worlds.passage)
    errands       reach one end of a line, then the other: a reward that is no function of the place (worlds.errands)
    camp          a need that a word names: for goals in words (worlds.camp)
    partner       somebody of a hidden kind, to be known by what it did (worlds.partners)
    denoise       a chain of denoising steps whose pretrained model is exact (worlds.denoising)
    unmask        masked diffusion of a string, differentiable by Gumbel-softmax (worlds.unmasking)

Each is a function that returns an Environment. Source of the idea: A. Jones, "Debugging RL, without the agonizing
pain"; in JAX, rejax's test environments.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit
from rl_jax.envs.worlds import bidding as auctions
from rl_jax.envs.worlds import branching as knapsacks
from rl_jax.envs.worlds import camp as camps
from rl_jax.envs.worlds import denoising as chains
from rl_jax.envs.worlds import docking as dockings
from rl_jax.envs.worlds import driving, hovering, tabular
from rl_jax.envs.worlds import errands as lines
from rl_jax.envs.worlds import inventory as stores
from rl_jax.envs.worlds import laser as lasers
from rl_jax.envs.worlds import mapping as memories
from rl_jax.envs.worlds import partners as meetings
from rl_jax.envs.worlds import passage as tunnels
from rl_jax.envs.worlds import pointmass as points
from rl_jax.envs.worlds import recovering as resting
from rl_jax.envs.worlds import restless as coupled
from rl_jax.envs.worlds import salesman as ways
from rl_jax.envs.worlds import television as screens
from rl_jax.envs.worlds import tour as walks
from rl_jax.envs.worlds import unmasking as strings

UNIT = Box(np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32))
NO = np.bool_(False)  # numpy, so that the import starts no jax backend
YES = np.bool_(True)


def _observe(x: chex.Array) -> chex.Array:
    return jnp.asarray(x, jnp.float32).reshape(1)


def _sign(key: chex.PRNGKey) -> chex.Array:
    """-1 or 1, float32 []."""
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)


def _one_step(reward, actions: int | Box = 1, *, two_states: bool = False) -> Environment:
    """Episodes of one step. reward: (state float32 [], action) -> float32 []; the state is 0, or -1 or 1."""

    def reset(key: chex.PRNGKey):
        state = _sign(key) if two_states else jnp.float32(0.0)
        return state, _observe(state)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        return state, Step(_observe(state), jnp.asarray(reward(state, action), jnp.float32), YES, NO)

    return Environment(reset, step, UNIT, Discrete(actions) if isinstance(actions, int) else actions)


def value() -> Environment:
    """One state, one action, reward 1."""
    return _one_step(lambda state, action: 1.0)


def observation() -> Environment:
    """The observation is -1 or 1, and so is the reward."""
    return _one_step(lambda state, action: state, two_states=True)


def discount() -> Environment:
    """Two steps, observations 0 and 1, reward 1 after the second."""

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), _observe(0.0)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        last = state == 1
        return state + 1, Step(_observe(1.0), last.astype(jnp.float32), last, NO)

    return Environment(reset, step, UNIT, Discrete(1))


def action() -> Environment:
    """Two actions: 0 costs 1, 1 pays 1."""
    return _one_step(lambda state, action: 2.0 * action - 1.0, 2)


def matching() -> Environment:
    """The observation is -1 or 1. Action 1 is right for 1, action 0 for -1; reward 1 if right, else -1."""
    return _one_step(lambda state, action: state * (2.0 * action - 1.0), 2, two_states=True)


def aim() -> Environment:
    """The action, in [-2, 2], should be half the observation, -1 or 1: reward -(action - observation / 2)^2."""
    span = Box(np.full(1, -2.0, np.float32), np.full(1, 2.0, np.float32))
    return _one_step(lambda state, action: -jnp.square(action[0] - 0.5 * state), span, two_states=True)


def corridor(*, length: int = 12) -> Environment:
    """Places 0 .. length, starting at 0; action 1 goes right, 0 left; reward 1 at the end, truncated at 4 length.

    A random walk needs about length^2 steps, so the first rewards are rare and late.
    """

    def observe(place: chex.Array) -> chex.Array:
        return jax.nn.one_hot(place, length + 1)

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: chex.PRNGKey, place: chex.Array, action: chex.Array):
        place = jnp.where(action == 1, place + 1, jnp.maximum(place - 1, 0))
        arrived = place == length
        return place, Step(observe(place), arrived.astype(jnp.float32), arrived, NO)

    space = Box(np.zeros(length + 1, np.float32), np.ones(length + 1, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), 4 * length)


def endless(*, limit: int = 5) -> Environment:
    """Reward 1 per step, never terminates; truncated after `limit` steps. V = 1 / (1 - gamma)."""

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), _observe(0.0)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        return state, Step(_observe(0.0), jnp.float32(1.0), NO, NO)

    return time_limit(Environment(reset, step, UNIT, Discrete(1)), limit)


def recall(*, delay: int = 3) -> Environment:
    """A cue, 1 or 0, then `delay` observations of 0; the last action must equal the cue: reward 1 if it does, else -1.

    Without memory the mean return is 0. A memory that is not cleared between episodes mistakes the last one's 1 for a
    cue.
    """

    def reset(key: chex.PRNGKey):
        cue = jax.random.bernoulli(key).astype(jnp.float32)
        return (cue, jnp.int32(0)), _observe(cue)

    def step(key: chex.PRNGKey, state: tuple[chex.Array, chex.Array], action: chex.Array):
        cue, time = state
        last = time == delay
        reward = jnp.where(last, jnp.where(action == cue, 1.0, -1.0), 0.0)
        return (cue, time + 1), Step(_observe(0.0), reward, last, NO)

    return Environment(reset, step, UNIT, Discrete(2))


def privileged(*, noise: float = 10.0, shown: bool = True) -> Environment:
    """`matching` with noise * z added to the reward, z = -1 or 1; the observation is (state, z).

    A critic that sees z removes the noise from the advantages. shown: False replaces z by 0.
    """

    def reset(key: chex.PRNGKey):
        state = jnp.stack([_sign(part) for part in jax.random.split(key)])
        return state, state * jnp.asarray([1.0, 1.0 if shown else 0.0])

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        reward = state[0] * (2.0 * action - 1.0) + noise * state[1]
        return state, Step(state * jnp.asarray([1.0, 1.0 if shown else 0.0]), reward, YES, NO)

    return Environment(reset, step, Box(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32)), Discrete(2))


def drive(*, reward: str = "product", length: float = 200.0, max_steps: int = 200) -> Environment:
    """A road of `length` metres after another car. reward: "product" or "sum", see envs.worlds.driving."""
    return driving.road(reward=reward, length=length, max_steps=max_steps)


def inventory(
    *,
    mean: float = 5.0,
    lead_time: int = 0,
    holding: float = 1.0,
    penalty: float = 9.0,
    lost: bool = False,
    max_order: float = 20.0,
    periods: int = 50,
) -> Environment:
    """A store with Poisson demand of this mean per period; other arguments as in envs.worlds.inventory.Store."""
    store = stores.Store(stores.poisson(mean), lead_time, holding, penalty, lost)
    return stores.environment(store, max_order=max_order, periods=periods)


def behaviours(*, count: int = 3) -> Environment:
    """One state, one step; the reward of action i is i, which identifies the action and does not rate it."""
    return _one_step(lambda state, action: action, count)


def gridworld(*, size: int = 4, step_reward: float = 0.0, slip: float = 0.0, limit: int = 50) -> Environment:
    """envs.worlds.tabular.gridworld as an environment, with the same arguments."""
    return tabular.environment(tabular.gridworld(size=size, step_reward=step_reward, slip=slip, limit=limit))


def junction(*, length: int = 4, slip: float = 0.0, limit: int = 0) -> Environment:
    """envs.worlds.tabular.junction as an environment, with the same arguments."""
    return tabular.environment(*tabular.junction(length=length, slip=slip, limit=limit))


def pointmass(
    *,
    inertia: float = 0.5,
    limit: int = 20,
    delay: int = 0,
    wind: float = 0.0,
    goal: tuple[float, float] = (0.0, 0.0),
) -> Environment:
    """envs.worlds.pointmass.environment, with the same arguments."""
    return points.environment(inertia=inertia, limit=limit, delay=delay, wind=wind, goal=tuple(goal))


def recovering(*, rewards: tuple = ((0.5, 0.8, 0.95, 1.0), (0.3, 0.7, 1.0, 1.2)), horizon: int = 32) -> Environment:
    """envs.worlds.recovering: one pull a step, R_i(tau) of arms that rest. rewards: [N][D], by tau = 1, 2, ..."""
    return resting.environment(rewards=rewards, horizon=horizon)


def bidding(*, rounds: int = 12, budget: int = 12, largest: int = 5) -> Environment:
    """envs.worlds.bidding: `rounds` auctions with a budget; bids and prices up to `largest`."""
    return auctions.environment(auctions=rounds, budget=budget, largest=largest)


def passage(*, count: int = 16, length: int = 8, cost: float = 0.02, limit: int = 80, seed: int = 0) -> Environment:
    """envs.worlds.passage: a planner's waypoints through narrow passages of 3 x 3 cells."""
    return tunnels.environment(count=count, length=length, cost=cost, limit=limit, seed=seed)


def _offered(name: str, world: Callable) -> Callable:
    """`world`, with its arguments and its docstring, as the function of this name of this module."""

    @functools.wraps(world)
    def environment(**keywords):
        return world(**keywords)

    environment.__module__, environment.__name__, environment.__qualname__ = __name__, name, name
    return environment


laser = _offered("laser", lasers.environment)
restless = _offered("restless", coupled.environment)
restless_vectors = _offered("restless_vectors", coupled.vector_environment)
docking = _offered("docking", dockings.environment)
hover = _offered("hover", hovering.environment)
errands = _offered("errands", lines.environment)
television = _offered("television", screens.environment)
tour = _offered("tour", walks.environment)
salesman = _offered("salesman", ways.environment)
branching = _offered("branching", knapsacks.environment)
mapping = _offered("mapping", memories.environment)
camp = _offered("camp", camps.environment)
partner = _offered("partner", meetings.environment)
denoise = _offered("denoise", chains.environment)
unmask = _offered("unmask", strings.environment)
