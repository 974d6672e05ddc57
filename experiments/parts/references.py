"""The reference policy of a run: where it starts and how it moves. config.algorithm has

reference_soup       its start: the policy's, or a weighted average of that and another run's (SALSA)
reference_schedule   its moves, one of rl_jax.selection.reference_policy: fixed, per_iteration (refreshed every N
                     steps), moving_average (EMA); in online_dpo extrapolated, too
"""

from collections.abc import Callable

import jax

from experiments.parts import action_mask, policy
from experiments.parts.setup import Setup, load_params
from rl_jax.core.binding import bind
from rl_jax.core.types import Params
from rl_jax.selection import reference_policy
from rl_jax.selection.reference_policy import References


def first(setup: Setup, params: Params) -> Params:
    """The first reference: `params`, or a soup of them and another run's."""
    settings = setup.config.algorithm.reference_soup
    if not settings.init_from:
        return params
    other = load_params(setup, settings.init_from)
    return reference_policy.soup([params, other], [1.0 - settings.weight, settings.weight])


def make_schedule(config) -> Callable:
    """(References, policy, step) -> (References, policy), from algorithm.reference_schedule."""
    return bind(config.algorithm.reference_schedule.to_dict(), reference_policy)


def is_read(config) -> bool:
    """Whether grpo, agents or ppo read the reference's params: for log-probs or samples; as partner, guide or mask."""
    offline = "critic" in config and config.critic.offline
    sampled = config.sample.references > 0 or bool(config.foreign) or offline
    partner = "agent" in config and config.agent.get("partner", "") == "reference"
    return policy.needs_ref_log_probs(config) or sampled or partner or action_mask.is_on(config)


def start(setup: Setup, params: Params) -> tuple[Callable, Params | None]:
    """The reference of grpo, agents and ppo.

    Args:
      setup: of the run.
      params: of the policy; not donated.

    Returns:
      (move, the first reference in buffers of its own). move(reference, policy, step) -> the reference after a step.
      With an action mask, the mask policy is carried with the reference (action_mask.Lagged). Where nothing reads a
      reference there is none: no copy of the params in memory or in a checkpoint, and move gives None.

    Raises:
      ValueError: if the schedule also moves the policy.
    """
    schedule = make_schedule(setup.config)
    if getattr(schedule, "func", schedule) is reference_policy.extrapolated:
        raise ValueError("algorithm.reference_schedule='extrapolated' moves the policy, too: only online_dpo does that")

    if not is_read(setup.config):
        return lambda reference, params, step: None, None

    def move(reference: Params, params: Params, step: int) -> Params:
        moved = schedule(References(reference), params, step)[0].ref
        return jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), moved, reference)

    reference = reference_policy.start(schedule, params, first(setup, params)).ref
    return action_mask.with_mask(setup.config, move, reference, params)
