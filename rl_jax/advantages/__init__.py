"""Rewards -> advantages, of whole completions [B] or of tokens [B, T]. A config names one of these.

Arrays that only some need are required keywords, which the recipe supplies by name (rl_jax.core.binding.supply).
Estimators that take a critic's values, and also return the critic's targets, are in `tokens` and `steps`; the scans
they share are in `recursion`.
"""

from rl_jax.advantages.groups import (
    gpg,
    group_centered,
    group_mean_batch_std,
    group_relative,
    leave_one_out,
    maxrl,
    nemo_leave_one_out,
    opo,
)
from rl_jax.advantages.hybrid import hybrid
from rl_jax.advantages.outcome import (
    batch_centered,
    batch_relative,
    beta_normalized,
    gdpo,
    no_baseline,
    remax,
    tracked_baseline,
    tracked_relative,
)
from rl_jax.advantages.passk import best_of_group, pass_at_k
from rl_jax.advantages.returns import (
    gdpo_tokens,
    optimal_token_baseline,
    prime,
    process_supervised,
    reinforce_pp,
    reinforce_pp_baseline,
    remax_to_go,
    reward_to_go,
)

__all__ = [
    "batch_centered",
    "batch_relative",
    "best_of_group",
    "beta_normalized",
    "gdpo",
    "gdpo_tokens",
    "gpg",
    "group_centered",
    "group_mean_batch_std",
    "group_relative",
    "hybrid",
    "leave_one_out",
    "maxrl",
    "nemo_leave_one_out",
    "no_baseline",
    "opo",
    "optimal_token_baseline",
    "pass_at_k",
    "prime",
    "process_supervised",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "remax",
    "remax_to_go",
    "reward_to_go",
    "tracked_baseline",
    "tracked_relative",
]
