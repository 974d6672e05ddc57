"""Whether a dynamics model that is likelier is the better one to plan with: objective mismatch, and its remedy."""

import functools
from collections.abc import Callable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import optax

from experiments.studies.base import Outcome, descend, per_seed, seed_keys
from rl_jax.control import dynamics

Batch = tuple[chex.Array, chex.Array, chex.Array]


def slope_world(states: chex.Array, actions: chex.Array, *, waves: float) -> chex.Array:
    """A point on a line, with a hilly country on both sides: (p, v) [..., 2] and a [..., 1] -> the next state.

        v' = .8 v + .5 a + waves sin(6 p) sigmoid(20 (|p| - 1.3)),   p' = p + .4 v'

    Args:
      states: float [..., 2].
      actions: float [..., 1].
      waves: size of the hills.
    """
    place, speed = states[..., 0], states[..., 1]
    far = jax.nn.sigmoid(20.0 * (jnp.abs(place) - 1.3))
    speed = 0.8 * speed + 0.5 * actions[..., 0] + far * waves * jnp.sin(6.0 * place)
    return jnp.stack([place + 0.4 * speed, speed], axis=-1)


def paid(states: chex.Array) -> chex.Array:
    """-p^2 - .1 v^2 of states [..., 2]."""
    return -jnp.square(states[..., 0]) - 0.1 * jnp.square(states[..., 1])


def network(params: Mapping[str, chex.Array], states: chex.Array, actions: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(mean of the next state, log std), both [..., 2], of a layer of tanh."""
    x = jnp.concatenate([states, actions], axis=-1)
    hidden = jnp.tanh(x @ params["in"] + jnp.broadcast_to(params["bias"], (*x.shape[:-1], len(params["bias"]))))
    out = hidden @ params["out"] + jnp.broadcast_to(params["end"], (*x.shape[:-1], 4))
    return states + out[..., :2], jnp.clip(out[..., 2:], -5.0, 1.0)


def controlled(
    step: Callable,
    key: chex.PRNGKey,
    *,
    world: Callable,
    start: chex.Array,
    length: int,
    horizon: int,
    planner: Mapping[str, float],
) -> tuple[chex.Array, chex.Array, chex.Array]:
    """An episode of the world under CEM with a model of it: (states [T, 2], actions [T, 1], return []).

    Args:
      step: the model, (states [..., 2], actions [..., 1]) -> next states.
      key: of the plans.
      world: of the same form.
      start: float [2].
      length: T.
      horizon: H of a plan.
      planner: rounds, samples, elites and std of dynamics.cem.
    """

    def sums(state: chex.Array, plans: chex.Array) -> chex.Array:
        def ahead(states, actions):
            states = step(states, actions)
            return states, paid(states)

        states = jnp.broadcast_to(state, (len(plans), 2))
        return jnp.sum(jax.lax.scan(ahead, states, jnp.swapaxes(plans, 0, 1))[1], axis=0)

    def act(carry, key):
        state, plan = carry
        plan = dynamics.cem(lambda plans: sums(state, plans), plan, key, **planner)
        action, following = plan[0], world(state, plan[0])
        plan = jnp.concatenate([plan[1:], jnp.zeros((1, 1))])
        return (following, plan), (state, action, paid(following))

    first = start, jnp.zeros((horizon, 1))
    _, (states, actions, rewards) = jax.lax.scan(act, first, jax.random.split(key, length))
    return states, actions, jnp.sum(rewards)


def drawn(key: chex.PRNGKey, *, world: Callable, rows: int, span: float, noise: float) -> Batch:
    """Steps from anywhere: (states [N, 2] in +-span, actions [N, 1] in +-1, what is observed of the next states)."""
    place_key, action_key, noise_key = jax.random.split(key, 3)
    states = span * jax.random.uniform(place_key, (rows, 2), minval=-1.0, maxval=1.0)
    actions = jax.random.uniform(action_key, (rows, 1), minval=-1.0, maxval=1.0)
    return states, actions, world(states, actions) + noise * jax.random.normal(noise_key, (rows, 2))


def likelihood(params: Mapping[str, chex.Array], batch: Batch, weights: chex.Array) -> chex.Array:
    """The mean over the rows of weight times log-likelihood, float []. weights: [N]."""
    states, actions, following = batch
    return -jnp.mean(weights * dynamics.gaussian_nll(*network(params, states, actions), following))


def fitted(
    key: chex.PRNGKey,
    batch: Batch,
    count: chex.Array,
    weights: chex.Array,
    *,
    width: int,
    updates: int,
    adam: optax.GradientTransformation,
) -> Mapping[str, chex.Array]:
    """Params of `network` fitted to the first `count` rows of the batch, by likelihood with these weights [N]."""
    in_key, out_key = jax.random.split(key)
    first = {
        "in": jax.random.normal(in_key, (3, width)),
        "bias": jnp.zeros(width),
        "out": 0.1 * jax.random.normal(out_key, (width, 4)),
        "end": jnp.zeros(4),
    }
    kept = (jnp.arange(len(weights)) < count) * weights
    kept = kept / jnp.maximum(jnp.mean(kept), 1e-6)
    return descend(lambda params: -likelihood(params, batch, kept), first, adam, updates)


def rank_correlation(x: chex.Array, y: chex.Array) -> chex.Array:
    """Spearman's correlation of x and y, [N] each; equal values share a rank, and nan if all of x or y are equal."""

    def ranks(values: chex.Array) -> chex.Array:
        first, second = values[:, None], values[None]
        return jnp.sum(first > second, axis=1) + 0.5 * jnp.sum(first == second, axis=1)

    return jnp.corrcoef(ranks(x), ranks(y))[0, 1]


def objective_mismatch(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, float],
    models: int,
    rows: int,
    width: int,
    updates: int,
    learning_rate: float,
    waves: float,
    span: float,
    noise: float,
    length: int,
    horizon: int,
    planner: Mapping[str, float],
) -> Outcome:
    """Models of a world fitted by likelihood, weighted towards a near-optimal trajectory or not, then planned with.

    Each seed has `models` data sets, whose rows lie anywhere in |p|, |v| < span, of sizes from rows / 16 to rows; each
    is fitted once per arm. Metrics: return, of CEM with the model in the world, the mean over the models, at least that
    of standing still; correlation, of the ranks, between the log-likelihood that the arm's weights give fresh data and
    the return, over the models of the first arm in every arm, nan if all returns are one. Source: arXiv 2002.04523.

    Args:
      seeds: of the data.
      arms: name -> scale of the weights' distance; inf, the first: the plain likelihood.
      models: per arm and seed.
      rows: of the largest data set.
      width: of the model's only layer.
      updates: of Adam, on all rows.
      learning_rate: its.
      waves: of the world.
      span: of the data.
      noise: deviation of what is observed of the next state.
      length: steps of an episode, from p = 1 and v = 0.
      horizon: H of a plan.
      planner: rounds, samples, elites, std of CEM.
    """
    start = jnp.float32([1.0, 0.0])
    adam = optax.adam(optax.linear_schedule(learning_rate, learning_rate / 10, updates))
    counts, scales = jnp.geomspace(rows / 16, rows, models), jnp.float32(list(arms.values()))
    fit = functools.partial(fitted, width=width, updates=updates, adam=adam)

    def world(states, actions):
        return slope_world(states, actions, waves=waves)

    draw = functools.partial(drawn, world=world, rows=rows, span=span, noise=noise)
    episode = dict(world=world, start=start, length=length, horizon=horizon, planner=dict(planner))

    def one_model(fit_key, plan_key, batch, count, weights):
        params = fit(fit_key, batch, count, weights)
        found = controlled(lambda states, actions: network(params, states, actions)[0], plan_key, **episode)[2]
        return params, jnp.maximum(found, length * paid(start))

    def study(key):
        expert_key, test_key, *own = jax.random.split(key, 5)
        states, actions, best = controlled(world, expert_key, **episode)
        expert = jnp.concatenate([states, actions], axis=1)

        def weights_of(batch, scale):
            return dynamics.trajectory_weights(jnp.concatenate(batch[:2], axis=1), expert, scale=scale)

        data_keys, fit_keys, plan_keys = (jax.random.split(key, models) for key in own)
        batches, fresh = jax.vmap(draw)(data_keys), draw(test_key)
        weights = jax.vmap(jax.vmap(weights_of, (0, None)), (None, 0))(batches, scales)
        each = jax.vmap(jax.vmap(one_model), (None, None, None, None, 0))
        params, returns = each(fit_keys, plan_keys, batches, counts, weights)
        # Of one arm's models: each arm's are the likelier under its own weights, whatever these say of the return.
        judged = jax.tree.map(lambda x: x[0], params)
        judges = jax.vmap(weights_of, (None, 0))(fresh, scales)
        said = jax.vmap(jax.vmap(likelihood, (0, None, None)), (None, None, 0))(judged, fresh, judges)
        correlation = jax.vmap(rank_correlation, (0, None))(said, returns[0])
        best = jnp.broadcast_to(best, (len(arms),))
        return {"return": jnp.mean(returns, axis=1), "correlation": correlation, "best": best}

    found = jax.jit(jax.vmap(study))(seed_keys(seeds))
    values = {arm: per_seed({name: x[:, i] for name, x in found.items()}) for i, arm in enumerate(arms)}
    return Outcome(values, note=f"CEM with the world itself: {float(jnp.mean(found['best'])):.2f}")
