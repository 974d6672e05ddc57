"""Which of PPO's two networks learns in a step, and whose answers it learns from: critic.warmup_steps, critic.offline.

    steps                  learns                 answers are those of
    up to warmup_steps     the critic             the policy, which is still where it starts
    after that             both                   the policy
    after that, offline    the policy             the reference
"""

from typing import Any

from ml_collections import ConfigDict

from experiments.parts import action_mask, quantized

CRITIC, POLICY, BOTH = "critic", "policy", ""


def check(config: ConfigDict, *, of_turns: bool) -> None:
    """Checks critic.shared, critic.bootstrap_truncated and critic.offline.

    Args:
      config: of a run of PPO.
      of_turns: whether the critics are those of turns.

    Raises:
      ValueError: if critics of turns are to do what they cannot; or, offline, if no stage of the critic comes first or
        no other after it, the reference moves, or nothing corrects for answers that are not the policy's.
    """
    settings = config.critic
    for field in ("shared", "bootstrap_truncated"):
        if of_turns and settings[field]:
            raise ValueError(
                f"critic.{field}=True: critics of turns (critic.advantage={settings.advantage.fn!r}) have a "
                "network of their own and no value after the last turn; set it to False"
            )
    if settings.offline and (settings.shared or not settings.warmup_steps or of_turns):
        raise ValueError(
            "critic.offline=True: a critic of states learns first and is fixed then; set critic.warmup_steps to the "
            "steps in which it learns, and critic.shared to False"
        )
    if not settings.offline:
        return
    if config.train.steps <= settings.warmup_steps:
        raise ValueError(
            f"critic.offline=True: train.steps={config.train.steps} must be above "
            f"critic.warmup_steps={settings.warmup_steps}, or the policy never learns"
        )
    if (moved := config.algorithm.reference_schedule.fn) != "fixed":
        raise ValueError(
            f"critic.offline=True: the answers and the critic are those of one policy; set "
            f"algorithm.reference_schedule.fn to 'fixed', not {moved!r}"
        )
    if not quantized.corrects(config):
        raise ValueError(
            "critic.offline=True: the answers are the reference's, and nothing in config.algorithm corrects for it. "
            "Take a surrogate that asks for behavior_log_probs "
            "(rl_jax.losses.policy.regression:offline_direct_advantage), or set "
            "--config.algorithm.behavior_weight.fn=truncated"
        )


def learner_of(settings: ConfigDict, step: int) -> str:
    """Which network alone is updated in a step, or BOTH. settings: config.critic; step: from 1."""
    if step <= settings.warmup_steps:
        return CRITIC
    return POLICY if settings.offline else BOTH


def sampler_of(settings: ConfigDict, policy: Any, reference: Any) -> Any:
    """The params that sample the answers of a step. settings: config.critic."""
    return action_mask.reference_of(reference) if settings.offline else policy
