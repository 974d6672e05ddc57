"""Which of PPO's two networks learns in a step, and whose answers it learns from: critic.warmup_steps, critic.offline.

    steps                  learns                 answers are those of
    up to warmup_steps     the critic             the policy, which is still where it starts
    after that             both                   the policy
    after that, offline    the policy             the reference
"""

from typing import Any

from ml_collections import ConfigDict

CRITIC, POLICY, BOTH = "critic", "policy", ""


def check(config: ConfigDict, *, of_turns: bool) -> None:
    """Checks critic.shared, critic.bootstrap_truncated and critic.offline.

    Args:
      config: of a run of PPO.
      of_turns: whether the critics are those of turns.

    Raises:
      ValueError: if critics of turns are to do what they cannot, or, offline, no stage of the critic comes first.
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


def learner_of(settings: ConfigDict, step: int) -> str:
    """Which network alone is updated in a step, or BOTH. settings: config.critic; step: from 1."""
    if step <= settings.warmup_steps:
        return CRITIC
    return POLICY if settings.offline else BOTH


def sampler_of(settings: ConfigDict, policy: Any, reference: Any) -> Any:
    """The params that sample the answers of a step. settings: config.critic."""
    return reference if settings.offline else policy
