"""Policy optimization in JAX: every loss is a pure function of arrays.

A recipe is one page, with its equation at the top. Log-probs of any model go in, a Mean and metrics come out:

    import jax.numpy as jnp
    from rl_jax import PolicyBatch, TokenScores, grpo

    log_probs = jnp.log(jnp.array([[0.5, 0.2], [0.4, 0.1]]))    # float [B, T]
    old, mask, advantages = log_probs - 0.1, jnp.ones((2, 2), bool), jnp.array([[1.0, 1.0], [-1.0, -1.0]])
    batch = PolicyBatch(None, mask, advantages, old_log_probs=old, behavior_log_probs=old, ref_log_probs=old)
    loss, metrics = grpo.loss(TokenScores(log_probs, -log_probs), batch, grpo.Objective(kl_coef=0.04))

Every term of it is an argument, and one of your own is held to the laws that all losses here obey:

    from rl_jax import testing
    from rl_jax.losses import policy

    def leaky_clip(log_probs, old_log_probs, advantages, mask):
        clipped = policy.clipped_surrogate(log_probs, old_log_probs, advantages, mask)
        free = policy.importance_sampling(log_probs, old_log_probs, advantages, mask)
        return clipped._replace(loss=0.9 * clipped.loss + 0.1 * free.loss)

    loss, metrics = grpo.loss(TokenScores(log_probs, -log_probs), batch, grpo.Objective(surrogate=leaky_clip))
    testing.check_surrogate(leaky_clip)    # padding, micro-batches, stop-gradients, both signs of the advantage, ...
    testing.learns(leaky_clip)             # trains a small problem with it

Recipes, one module each:
    grpo            GRPO and the methods that change its advantage, its loss or its aggregation; start reading here.
    ppo             PPO with a critic.
    dpo             DPO and the other losses on preferences: pairs, labels, rankings.
    sft             supervised fine-tuning.
    reward_model    reward models from pairs, rankings, grades and labelled steps.

What recipes are made of, packages of small functions:
    losses          policy surrogates, KL estimators, aggregations, value, preference and reward-model losses.
    advantages      rewards -> advantages.
    token_weights   weights on tokens: importance corrections, rejection, selections.
    credit          rewards -> advantages and weights of a whole batch: shaping, KL in the reward, process rewards.
    testing         laws that a loss of your own is held to, and small problems that it must learn.

Arrays: Rollout (what a sampler returns), TokenBatch, PolicyBatch and PreferenceBatch (what a recipe trains on),
TokenScores (log-probs and entropies of a forward pass), Surrogate (what a policy surrogate returns), Mean (a sum and
what to divide it by, divided once). Helpers: zero_masked, log_ratio, and bind, which takes a function by its name or as
"module:function".

Nothing is imported before it is used, so that data, reward and report code can run without jax. Models, tasks,
environments, samplers and checkpoints are in the other packages; `ls rl_jax` lists them.
"""

import importlib

__version__ = "0.1.0"

__all__ = [
    "Mean",
    "PolicyBatch",
    "PreferenceBatch",
    "Rollout",
    "Surrogate",
    "TokenBatch",
    "TokenScores",
    "advantages",
    "bind",
    "credit",
    "dpo",
    "grpo",
    "log_ratio",
    "losses",
    "ppo",
    "reward_model",
    "sft",
    "testing",
    "token_weights",
    "zero_masked",
]
# Where the names that are no modules of this package live.
_HOME = {
    "Mean": "core.masked",
    "PolicyBatch": "core.types",
    "PreferenceBatch": "core.types",
    "Rollout": "core.types",
    "Surrogate": "losses.policy.base",
    "TokenBatch": "core.types",
    "TokenScores": "core.types",
    "bind": "core.binding",
    "log_ratio": "losses.policy.base",
    "zero_masked": "core.masked",
}


def __getattr__(name: str):
    """Imports a public name on first use. __init__.pyi tells type checkers the same."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOME:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
