"""Laws and small problems for functions of your own. No test runner is needed.

    from rl_jax import testing

    testing.check_surrogate(my_loss)        # (log_probs, old_log_probs, advantages, mask) -> Surrogate
    testing.check_kl(my_estimator)          # (log_probs, ref_log_probs, mask) -> float [B, T]
    testing.check_aggregate(my_mean)        # (per_token, mask) -> Mean
    testing.check_advantage(my_advantage)   # (rewards, *, group_size) -> float [B]
    testing.learns(my_loss)                 # trains a table of logits with it
    testing.learns_preferences(objective)   # the same for a dpo.Objective

Each raises AssertionError if something does not hold: the message names the function, the law and the argument at
fault. The laws: what is behind the mask changes nothing (garbage, nan, width, rows without a token), nor does the order
of the rows, their split into micro-batches or devices, or jit; nothing flows into what is data; where the ratio is 1
the gradient is minus the advantage, for both signs; without advantages there is none. They do not pin constants: hold
the values of a function to its formula as well.

A law about devices runs if jax has several (jax.config.update("jax_num_cpu_devices", 8) before its first use). A law
that a method breaks on purpose is named: `except_for={"order_of_the_rows_changes_nothing"}`.

`broken(case, laws)` returns what does not hold in place of raising, a law at a time. `ragged_batch` makes the random
batches. The tests of this library apply the same laws to all of its functions.
"""

from rl_jax.testing.advantage_laws import LAWS as ADVANTAGE_LAWS
from rl_jax.testing.advantage_laws import advantage_case, check_advantage
from rl_jax.testing.aggregate_laws import LAWS as AGGREGATE_LAWS
from rl_jax.testing.aggregate_laws import aggregate_case, check_aggregate
from rl_jax.testing.batches import Batch, ragged_batch
from rl_jax.testing.holding import broken
from rl_jax.testing.laws import KL_LAWS, LAWS, check_kl, check_surrogate, kl_case, recipe_case, surrogate_case
from rl_jax.testing.preference_probes import learns_preferences
from rl_jax.testing.probes import learns

__all__ = [
    "ADVANTAGE_LAWS",
    "AGGREGATE_LAWS",
    "KL_LAWS",
    "LAWS",
    "Batch",
    "advantage_case",
    "aggregate_case",
    "broken",
    "check_advantage",
    "check_aggregate",
    "check_kl",
    "check_surrogate",
    "kl_case",
    "learns",
    "learns_preferences",
    "ragged_batch",
    "recipe_case",
    "surrogate_case",
]
