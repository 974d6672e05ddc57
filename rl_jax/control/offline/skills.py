"""PSEC: a policy, skills that are low-rank adapters of it, and their composition for a new task.

    stage 0            the base W0, on the first task's data
    stage 1 .. K       skill k (A_k, B_k), on its own task's data; W0 and the other skills are held
    stage K + 1        alpha(s), on the new task's data; W0 and all skills are held:
                       W(s) = W0 + s sum_k alpha_k(s) A_k B_k

Source: arXiv 2502.05932; its equations were read in the public code (ltlhuuu/PSEC), not in the paper. There the policy
is a diffusion; here its loss is that of `base`. The code also draws the mean of alpha to the adapters' scale; not here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.recipe import Batch, Recipe, mean


class SkillTasks(NamedTuple):
    """What a fit reads of K + 2 tasks; or, sampled, a batch of it.

    Attributes:
      data: OfflineData [K + 2, N] of the tasks; sampled: [n] of the present one.
      task: int32 [], the present one's number.
    """

    data: datasets.OfflineData
    task: chex.Array


def sample_present(tasks: SkillTasks, key: chex.PRNGKey, size: int) -> SkillTasks:
    """`size` steps of the present task's data, with replacement."""
    own = jax.tree.map(lambda x: x[tasks.task], tasks.data)
    return SkillTasks(datasets.sample(own, key, size), tasks.task)


def stage_coefs(alpha: chex.Array, task: chex.Array) -> chex.Array:
    """What each skill counts in a stage: 0 in stage 0, one-hot in that of a skill, alpha afterwards. float [N, K].

    Args:
      alpha: float [N, K].
      task: int32 [].
    """
    chex.assert_rank([alpha, task], [2, 0])
    skills = alpha.shape[1]
    fixed = jnp.broadcast_to(jax.nn.one_hot(task - 1, skills), alpha.shape)
    return jnp.where(task == skills + 1, alpha, fixed)


def held(policy: dict[str, Any], task: chex.Array) -> dict[str, Any]:
    """The params of the policy, with a gradient for what the stage learns only.

    Args:
      policy: {"base": vector, "skills": leaves [K, .], "weights": vector}.
      task: int32 [].
    """
    skills = len(policy["skills"]["a"])
    own = (jnp.arange(skills) == task - 1)[:, None]

    def only(learns: chex.Array):
        return lambda x: jnp.where(learns, x, jax.lax.stop_gradient(x))

    return {
        "base": only(task == 0)(policy["base"]),
        "skills": jax.tree.map(only(own), policy["skills"]),
        "weights": only(task == skills + 1)(policy["weights"]),
    }


def psec(nets, *, base: Callable) -> Recipe:
    """PSEC: `base` with the policy of the stage. Source: arXiv 2502.05932 (there IQL's weights).

    What a stage does not learn has gradient 0 and, as Adam starts anew with each stage, does not move at all.

    Args:
      nets: models.agents.skills.SkillNetworks.
      base: OfflineNetworks -> Recipe, a method whose policy scores the data's actions, such as iql or bc.
    """

    def of_stage(task: chex.Array) -> Recipe:
        def policy(params, observations: chex.Array) -> chex.Array:
            own = held(params["policy"], task)
            return nets.composed(own, observations, stage_coefs(nets.weights(own, observations), task))

        return base(nets.single._replace(policy=policy))

    def loss(params, batch: Batch):
        task = batch.data.task
        whole, metrics = of_stage(task).loss(params, batch._replace(data=batch.data.data))
        alpha = nets.weights(params["policy"], batch.data.data.steps.observations)
        return whole, metrics | {f"skills/alpha_{k}": mean(alpha[:, k]) for k in range(nets.skills)}

    return of_stage(jnp.int32(0))._replace(loss=loss)
