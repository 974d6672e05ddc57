"""Rewards made of terms, shaped by a potential, paid by a machine, or held to a constraint.

by_terms      r' = keep r + sum_k w_k f_k                       Eureka 2310.12931, 2309.11489, 2306.08647
by_potential  r' = r + scale (gamma Phi(s') - Phi(s))           Ng et al. 1999; 2503.21949
by_machine    r' = keep r + delta(u, L(s'))                     reward machines, 2310.11840
by_lagrange   r' = (r - sum_k lam_k c_k) / (1 + sum_k lam_k)    2412.07177
              lam_k <- [lam_k + eta (mean c_k - d_k)]_+
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import machines, potentials, terms
from rl_jax.control.relabelling.base import PerEnv, as_the_env, mean_of
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions


def by_terms(
    *,
    distribution,
    terms_of: Mapping[str, Mapping],
    weights: Mapping[str, float],
    keep: float = 0.0,
    signs: bool = False,
    axis_name=None,
) -> Relabel:
    """r' = keep r + sum_k w_k f_k(s, a, s'): a reward as a list of named terms and weights.

    The weights may be swept (config.sweep or config.runs: "algorithm.relabel.weights.NAME"), so that many candidates
    train in one compiled program. Source: arXiv 2310.12931, 2309.11489, 2306.08647 (terms and weights instead of code).

    Args:
      distribution: of the policy's actions.
      terms_of: name -> a function of relabelling.terms, or "module:function", with its keywords.
      weights: name -> w_k, the same names.
      keep: weight of the environment's own reward.
      axis_name: mapped axis over which the environments are spread.
      signs: takes sgn(f_k), so a term says only which way (Auto MC-Reward, 2312.09238: sgn(sparse) + sgn(dense)).

    Raises:
      ValueError: if the names differ.
    """
    if set(terms_of) != set(weights):
        raise ValueError(f"by_terms: terms_of has {sorted(terms_of)}, weights has {sorted(weights)}: name both alike")
    functions = {name: bind(dict(spec), terms) for name, spec in terms_of.items()}

    def init() -> dict[str, chex.Array]:
        return {name: jnp.float32(0.0) for name in functions}

    def apply(state: dict, rows: Transitions) -> tuple[dict, Transitions]:
        seen = as_the_env(rows, distribution)
        found = {name: fn(seen) for name, fn in functions.items()}
        for name, value in found.items():
            if value.shape != rows.rewards.shape:
                raise ValueError(f"by_terms: {name} gives {value.shape}, but rewards are {rows.rewards.shape}")
        total = keep * rows.rewards
        for name, value in found.items():
            total = total + weights[name] * (jnp.sign(value) if signs else value)
        means = {name: mean_of(value, axis_name) for name, value in found.items()}
        return means, rows._replace(rewards=total)

    return Relabel(init, apply, measure=lambda state: {f"relabel/{name}": x for name, x in state.items()})


def shaped(
    rewards: chex.Array, before: chex.Array, after: chex.Array, terminated: chex.Array, discount: float | chex.Array
) -> chex.Array:
    """r + gamma Phi(s') - Phi(s), with Phi = 0 after the end, so that no policy gains by ending somewhere.

    The discounted sum over an episode is then changed by -Phi(s_0) alone. Source: Ng, Harada and Russell, 1999; Grzes,
    2017 for the end.

    Args:
      rewards: float [...].
      before: Phi(s), float [...].
      after: Phi(s'), float [...].
      terminated: bool [...]. A truncated step keeps its Phi(s').
      discount: gamma, the advantage's.
    """
    chex.assert_equal_shape([rewards, before, after, terminated])
    return rewards + discount * jnp.where(terminated, 0.0, after) - before


def by_potential(*, discount, potential: Mapping | str, scale: float = 1.0) -> Relabel:
    """Adds scale (gamma Phi(s') - Phi(s)): the same best policies, found sooner.

    Args:
      discount: gamma, the advantage's.
      potential: a function of relabelling.potentials, or "module:function", with its keywords.
      scale: of the potential; 0 changes nothing.
    """
    fn = bind(potential, potentials)

    def apply(state: tuple, rows: Transitions) -> tuple[tuple, Transitions]:
        before, after = (scale * fn(x) for x in (rows.observations, rows.next_observations))
        return state, rows._replace(rewards=shaped(rows.rewards, before, after, rows.terminated, discount))

    return Relabel(lambda: (), apply)


def by_machine(*, num_envs: int, machine: Mapping, keep: float = 0.0, axis_name=None) -> Relabel:
    """Pays the transitions of a finite machine that reads labels of the states: r' = keep r + delta(u, L(s')).

    A reward that is no function of (s, a, s'). The policy does not see u: if it has to, take an environment that shows
    it (envs.worlds.errands). Source: arXiv 2310.11840 (reward machines among 17 formalisms); Icarte et al., 2018.

    Args:
      num_envs: B.
      machine: a function of relabelling.machines, or "module:function", with its keywords; gives a Machine.
      keep: weight of the environment's own reward.
      axis_name: unused: the machines are per environment.
    """
    made = bind(machine, machines)()

    def init() -> PerEnv:
        return PerEnv(jnp.zeros(num_envs, jnp.int32))

    def apply(state: PerEnv, rows: Transitions) -> tuple[PerEnv, Transitions]:
        labels = made.labels(rows.next_observations)
        last, paid = machines.run(made, state.worlds, labels, rows.terminated | rows.truncated)
        return PerEnv(last), rows._replace(rewards=keep * rows.rewards + paid)

    return Relabel(init, apply)


class Multipliers(NamedTuple):
    """State of `by_lagrange`.

    Attributes:
      multipliers: float32 [K], in the order of the names, sorted.
      costs: float32 [K]. Mean costs of the last batch.
    """

    multipliers: chex.Array
    costs: chex.Array


def moved_multipliers(
    multipliers: chex.Array, costs: chex.Array, limits: chex.Array, rate: float | chex.Array
) -> chex.Array:
    """[lam + eta (c - d)]_+, float [K]: rises while a cost is above its limit, and is never negative."""
    chex.assert_equal_shape([multipliers, costs, limits])
    return jnp.maximum(multipliers + rate * (costs - limits), 0.0)


def by_lagrange(
    *,
    distribution,
    costs: Mapping[str, Mapping],
    limits: Mapping[str, float],
    rate: float = 0.05,
    initial: float = 0.0,
    normalize: bool = True,
    axis_name=None,
) -> Relabel:
    """Holds the mean cost of a step to a limit: r' = (r - sum_k lam_k c_k) / (1 + sum_k lam_k).

    Source: constrained MDPs; arXiv 2412.07177 (behaviour by constraints, normalised multipliers).

    Args:
      distribution: of the policy's actions.
      costs: name -> a function of relabelling.terms, or "module:function", with its keywords.
      limits: name -> d_k, of the mean over steps.
      rate: eta per batch.
      initial: lam_k at the start.
      normalize: divide by 1 + sum_k lam_k, so that rewards keep their size.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if the names differ.
    """
    if set(costs) != set(limits):
        raise ValueError(f"by_lagrange: costs has {sorted(costs)}, limits has {sorted(limits)}: name the same ones")
    names = sorted(costs)
    functions: list[Callable] = [bind(dict(costs[name]), terms) for name in names]

    def init() -> Multipliers:
        return Multipliers(jnp.full(len(names), initial, jnp.float32), jnp.zeros(len(names)))

    def apply(state: Multipliers, rows: Transitions) -> tuple[Multipliers, Transitions]:
        seen = as_the_env(rows, distribution)
        found = jnp.stack([fn(seen) for fn in functions])
        total = rows.rewards - jnp.tensordot(state.multipliers, found, 1)
        total = total / (1.0 + jnp.sum(state.multipliers)) if normalize else total
        means = jnp.stack([mean_of(x, axis_name) for x in found])
        bounds = jnp.stack([jnp.asarray(limits[name], jnp.float32) for name in names])
        moved = moved_multipliers(state.multipliers, means, bounds, rate)
        return Multipliers(moved, means), rows._replace(rewards=jax.lax.stop_gradient(total))

    def measure(state: Multipliers) -> dict[str, chex.Array]:
        result = {f"relabel/multiplier_{name}": state.multipliers[i] for i, name in enumerate(names)}
        return result | {f"relabel/cost_{name}": state.costs[i] for i, name in enumerate(names)}

    return Relabel(init, apply, measure=measure)
