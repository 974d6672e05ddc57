"""Rewards written as text, several candidates in one program.

by_code   r' = the text's `reward` of (o, o', a, the terms, r)     Eureka 2310.12931, Text2Reward 2309.11489
"""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.control import reward_code
from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import terms
from rl_jax.control.relabelling.base import action_entries, as_the_env, mean_of
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions

OWN = ("reward", "task_reward", "not_finite")  # what is measured beside the components


def known_names(
    *, distribution, observation_size: int, names: Sequence[str] = (), terms_of: Mapping[str, Mapping] = {}
) -> reward_code.Known:
    """What a reward's text may read.

    `obs` and `next_obs` (vectors), NAME and next_NAME of each named entry of them, `action` (a vector, or the number of
    a discrete one), the terms, `task_reward` and `terminated` (1.0 or 0.0).

    Args:
      distribution: of the policy's actions.
      observation_size: D.
      names: of the entries of the observation, all or none.
      terms_of: name -> a function of relabelling.terms with its keywords.

    Raises:
      ValueError: if there is another number of names than entries, or a name is no identifier or is there twice.
    """
    if names and len(names) != observation_size:
        raise ValueError(
            f"by_code: {len(names)} names for an observation of {observation_size} entries: name all or ()"
        )
    size = action_entries(distribution)
    vectors = {"obs": observation_size, "next_obs": observation_size} | ({"action": size} if size else {})
    scalars = (*names, *(f"next_{name}" for name in names), *terms_of, "task_reward", "terminated")
    scalars += () if size else ("action",)
    everything = [*scalars, *vectors, *reward_code.FUNCTIONS, reward_code.REWARD, "not_finite"]
    for name in (*names, *terms_of):
        if not name.isidentifier() or everything.count(name) > 1:
            raise ValueError(f"by_code: {name!r} is no name of its own: choose another for this entry or term")
    return reward_code.Known(scalars, vectors, reserved=("not_finite",))


def metric_names(codes: Sequence[reward_code.Code], index: int) -> dict[str, str]:
    """{component of a text: its metric}. One text has metrics by name, several share relabel/component_0, ...

    Args:
      codes: of the program.
      index: of the text among them.
    """
    alone = len(codes) == 1
    return {
        name: f"relabel/{name}" if alone else f"relabel/component_{i}" for i, name in enumerate(codes[index].components)
    }


def by_code(
    *,
    distribution,
    observation_size: int,
    programs: Sequence[str],
    choice: float = 0.0,
    names: Sequence[str] = (),
    terms_of: Mapping[str, Mapping] = {},
    axis_name=None,
) -> Relabel:
    """r' = the `reward` of the chosen text (control.reward_code), a function of (o, o', a, the terms, r).

    All texts are computed, arithmetic per step, and one is chosen: `choice` may be swept (config.sweep or config.runs:
    "algorithm.relabel.choice"), so that many candidates train in one compiled program. A step whose reward is not
    finite pays 0 and is counted; a swept choice that is no text's pays nan, so that no gradient is finite. Source:
    arXiv 2310.12931, 2309.11489. Departs: arithmetic in place of Python.

    Measured: relabel/reward, relabel/task_reward (the environment's own), relabel/not_finite (share of the steps) and
    the mean of each component.

    Args:
      distribution: of the policy's actions.
      observation_size: D.
      programs: the texts.
      choice: index of the text, a whole number.
      names: of the entries of the observation, all or ().
      terms_of: name -> a function of relabelling.terms, or "module:function", with its keywords.
      axis_name: mapped axis over which the environments are spread.

    Raises:
      ValueError: if there is no text, a text is refused, names are not to be used, or choice is the index of no text.
    """
    if not programs or isinstance(programs, str):
        raise ValueError("by_code: programs must be a tuple of one text or more")
    if not isinstance(choice, jax.core.Tracer) and choice not in range(len(programs)):
        raise ValueError(f"by_code: choice={choice} is the index of no text: there are {len(programs)}, from 0 on")
    known = known_names(distribution=distribution, observation_size=observation_size, names=names, terms_of=terms_of)
    codes = [reward_code.parse(text, known, label=f"by_code: program {i}") for i, text in enumerate(programs)]
    functions = {name: bind(dict(spec), terms) for name, spec in terms_of.items()}
    width = max(1, *(len(code.components) for code in codes))  # a state without entries cannot be mapped over runs

    def means_of(code: reward_code.Code, one: Mapping[str, chex.Array]) -> chex.Array:
        means = [mean_of(one[name], axis_name) for name in code.components]
        return jnp.stack(means + [jnp.float32(0.0)] * (width - len(means)))

    def init() -> dict[str, chex.Array]:
        return {name: jnp.float32(0.0) for name in OWN} | {"components": jnp.zeros(width)}

    def apply(state: dict, rows: Transitions) -> tuple[dict, Transitions]:
        values = values_of(as_the_env(rows, distribution), known, names, functions)
        found = [reward_code.evaluate(code, values, rows.rewards.shape) for code in codes]
        index = jnp.clip(jnp.asarray(choice, jnp.int32), 0, len(codes) - 1)
        is_text = index == choice  # a traced choice may be any number
        rewards = jnp.stack([one[reward_code.REWARD] for one in found])[index]
        finite = jnp.isfinite(rewards) & is_text
        rewards = jnp.where(is_text, jnp.where(finite, rewards, 0.0), jnp.nan)
        means = jnp.stack([means_of(code, one) for code, one in zip(codes, found, strict=True)])
        measured = {
            "reward": mean_of(rewards, axis_name),
            "task_reward": mean_of(rows.rewards, axis_name),
            "not_finite": mean_of(1.0 - finite, axis_name),
        }
        return measured | {"components": means[index]}, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    def measure(state: dict) -> dict[str, chex.Array]:
        labels = [f"component_{i}" for i in range(width)] if len(codes) > 1 else codes[0].components
        parts = dict(zip(labels, state["components"], strict=False))  # one text may have none
        return {f"relabel/{name}": x for name, x in parts.items()} | {f"relabel/{name}": state[name] for name in OWN}

    return Relabel(init, apply, measure=measure)


def values_of(rows: Transitions, known: reward_code.Known, names, functions: Mapping) -> dict[str, chex.Array]:
    """name -> float32 [B, T], or [B, T, size] of a vector, of all that a text may read.

    Args:
      rows: [B, T], as the environment saw them.
      known: of `known_names`.
      names: of the entries of the observation.
      functions: name -> term, rows -> float [B, T].
    """
    shape = rows.rewards.shape
    before, after = (x.reshape(*shape, -1).astype(jnp.float32) for x in (rows.observations, rows.next_observations))
    values = {"obs": before, "next_obs": after}
    values |= {name: before[..., i] for i, name in enumerate(names)}
    values |= {f"next_{name}": after[..., i] for i, name in enumerate(names)}
    values |= {name: fn(rows).astype(jnp.float32) for name, fn in functions.items()}
    actions = rows.actions.astype(jnp.float32)
    values["action"] = actions.reshape(*shape, -1) if "action" in known.vectors else actions.reshape(shape)
    return values | {"task_reward": rows.rewards, "terminated": rows.terminated.astype(jnp.float32)}
