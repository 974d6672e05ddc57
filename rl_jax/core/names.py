"""The arrays and numbers that a function may ask for by name, with `*, name` in its signature and no default.

A recipe gives each function what it asks for (rl_jax.core.binding.supply). A batch's `extras` may hold further names of
your own; what is listed here is what the recipes and programs provide. No jax.

    B rows, C completion tokens (policy recipes);  N prompts, K responses each, C tokens (preference recipes);
    G rows per prompt, M reference responses, S steps of a solution
"""

from typing import NamedTuple


class Name(NamedTuple):
    """One row of the table.

    shape: dtype and shape.
    meaning: what it holds.
    source: who supplies it, first the function or module, then a condition if there is one.
    """

    shape: str
    meaning: str
    source: str


NAMES = {
    # --- Policy recipes: rewards, advantages, weights, losses -----------------------------------------------------
    "group_size": Name("int", "G, rows per prompt; the rows of a group are neighbours", "credit.assign"),
    "lengths": Name("int [B] or float [N, K]", "tokens of each completion", "credit.assign, dpo.loss"),
    "truncated": Name("bool [B]", "completions that were cut off", "credit.assign"),
    "completion_mask": Name("bool [B, C]", "tokens that the loss sees", "credit.assign"),
    "token_rewards": Name(
        "float [B, C] or [N, K, C]",
        "rewards on tokens: the shaped reward, minus the KL penalty, plus the rollout's own; T-REG's in DPO",
        "credit.assign, experiments.dpo",
    ),
    "step_rewards": Name(
        "float [B, C]", "reward of each step, on its last token", "credit.assign, if there are token rewards"
    ),
    "step_ends": Name("bool [B, C]", "last token of each step", "credit.assign, if there are token rewards"),
    "versions": Name(
        "int32 [B, C]", "policy version that sampled each token", "credit.assign, if the rollout has them"
    ),
    "lags": Name(
        "int32 [B, C]", "updates of the policy since each token was sampled, 0 elsewhere", "experiments.grpo_async"
    ),
    "foreign": Name(
        "bool [B]",
        "rows that the policy did not sample for their prompt: demonstrations, replay, ...",
        "credit.assign, if config.foreign is set",
    ),
    "turns": Name("int32 [B, C]", "which turn a sampled token is of, from 0; -1 on others", "experiments.agents"),
    "turn_rewards": Name("float [B, C]", "reward of each turn, on its last token", "experiments.agents"),
    "state_keys": Name(
        "int32 [B, C]",
        "number of the state in which a turn was spoken, equal in a group for equal states; -1 if there is none",
        "experiments.agents, if the environment has state_key()",
    ),
    "branches": Name(
        "int32 [B, C]",
        "number of the branch on the tokens of a turn, equal in a group for rows that share it; -1 on others",
        "experiments.agents, if config.agent.branching is set",
    ),
    "state_values": Name(
        "float [B, C]",
        "mean return of fresh episodes from the state of each turn, on its last token",
        "experiments.agents, if config.agent.state_rollouts is set",
    ),
    "answer_probs": Name(
        "float [B, C]",
        "probability of the right answer after each turn and what came back, on its last token",
        "experiments.agents, if the environment has right_answer()",
    ),
    "prior_answer_probs": Name(
        "float [B]", "the same before the first turn", "experiments.agents, if the environment has right_answer()"
    ),
    "implicit_rewards": Name(
        "float [B, C]",
        "log pi - log pi_ref of each token, or beta (log phi - log pi) of a reward model phi in training",
        "experiments.agents, from the policy and the reference, or of config.agent.step_model",
    ),
    "log_probs": Name(
        "float [B, C] or [N, K, C]",
        "of the policy: before the updates in credit, differentiated in a DPO slot or a gate",
        "credit.assign, ppo.assign, dpo.loss, losses.policy.gated, control.credited",
    ),
    "entropy": Name(
        "float [B, C]", "entropy of the policy at each token, in nats, without gradient", "credit.assign, grpo.loss"
    ),
    "advantages": Name("float [B, C]", "advantages, for weights, selections and KLs", "credit.weigh, grpo.loss"),
    "key": Name("PRNG key", "randomness of the weights and the selection", "credit.weigh"),
    "behavior_log_probs": Name(
        "float [B, C]",
        "log-probs under the distribution that was sampled from",
        "credit.assign, ppo.assign, grpo.loss, control.credited",
    ),
    "old_log_probs": Name(
        "float [B, C]",
        "log-probs of the proximal policy",
        "grpo.loss, credit.token_rewards, losses.policy.gated",
    ),
    "ref_log_probs": Name("float [B, C]", "log-probs of the reference policy", "grpo.loss, if the batch has them"),
    "greedy_rewards": Name(
        "float [B]", "shaped reward of the prompt's greedy completion", "credit.assign, if given; experiments.grpo"
    ),
    "components": Name("float [B, K]", "named components of the reward", "experiments.grpo, if the task returns them"),
    "difficulty": Name(
        "float [B]",
        "weight of the row's prompt: the part `difficulty` of the reward",
        "experiments.grpo, if there is one",
    ),
    "prompt_ids": Name(
        "int32 [B]", "place of each row's prompt in the training split", "experiments.grpo, experiments.ppo"
    ),
    "best_lengths": Name(
        "float [B]",
        "tokens of the shortest right completion of the row's prompt so far, 0 if none",
        "experiments.grpo and experiments.ppo, if sample.memory.on",
    ),
    "divergence": Name(
        "float [B]",
        "mean |change of log-prob| of the completion of the prompt's last visit, 0 at the first",
        "experiments.grpo and experiments.ppo, if sample.memory.last",
    ),
    "prompt_moments": Name(
        "float [B, 3]", "visits, mean and std of the prompt's rewards so far", "advantages.memory.prompt_moments"
    ),
    "score_quantiles": Name(
        "float [3]", "two quantiles of the scores of bundles, and the steps seen", "advantages.memory.bundle_quantiles"
    ),
    "partition": Name(
        "float [B, 3]",
        "log of the prompt's partition function, its samples so far, and the mean of past pseudo-rewards",
        "advantages.memory.partitions",
    ),
    "tokens": Name("int32 [B, C]", "sampled tokens", "credit.assign, credit.weigh, ppo.assign"),
    "baseline": Name("float [] or [B]", "reward baseline of the steps before", "trackers.baseline"),
    "reward_mean": Name("float []", "mean of all rewards so far", "trackers.reward_scale"),
    "reward_std": Name("float []", "standard deviation of all rewards so far", "trackers.reward_scale"),
    "cost_quantiles": Name("float [2]", "quantiles of what the last episodes have cost", "credit.prices.cost_window"),
    "reference_rewards": Name(
        "float [B, M]", "rewards of M responses of the reference policy", "sample.references, grpo and ppo"
    ),
    "sum_pi_squared": Name("float [B, C]", "sum over the vocabulary of pi^2", "experiments.grpo"),
    "selected": Name(
        "bool [B, C]", "tokens that a surrogate treats differently", "credit.weigh, if there is a selection"
    ),
    "group_tokens": Name("float [B]", "tokens of the row's whole group", "credit.weigh"),
    "batch_rows": Name("float [B]", "rows of the whole update that have a token", "experiments.grpo.minibatches"),
    "entropy_scale": Name(
        "float [B]",
        "count of the loss over that of an entropy bonus with an aggregate of its own, of the whole update",
        "grpo.with_entropy_scale",
    ),
    "kl_coefs": Name("float [B]", "KL weight set by a controller", "trackers.loss_kl, control"),
    "entropy_coefs": Name(
        "float [B] or [B, C]",
        "entropy weight set by a controller, or by a band",
        "trackers.entropy, CreditRule.entropy_weight, control",
    ),
    "mask": Name("bool [B, C] or [N, K, C]", "tokens that count", "losses.policy.gated, dpo.loss"),
    # --- Critics ----------------------------------------------------------------------------------------------------
    "bootstrap_values": Name("float [B]", "value after the last token of each row", "ppo.assign"),
    "target_values": Name(
        "float [B, C, 2 K]", "Q_k and V_k of the slow copy of K pairs of critics of turns", "ppo.assign, if given"
    ),
    "unfinished": Name("bool [B]", "answers that go on in a later step", "ppo.assign, rollout.window"),
    "old_values": Name("float [B, C]", "values before the updates", "ppo.value_loss"),
    "support": Name("value.Support", "bins of a categorical head", "ppo.value_loss, reward_model.loss"),
    # --- Preference recipes -----------------------------------------------------------------------------------------
    "rewards": Name("float [N, K]", "reward, grade or label of each response", "dpo.loss"),
    "present": Name("bool [N, K]", "responses that exist", "dpo.loss"),
    "log_ratios": Name("float [N, K, C]", "log-probs minus the weighted reference log-probs", "dpo.loss"),
    "sequence_scores": Name("float [N, K]", "u, the score of each response", "dpo.loss"),
    "beta": Name("float", "beta of the objective", "dpo.loss, reward_model.implicit_loss"),
    "sequence_kl": Name("float [N, K]", "KL to the reference over the whole vocabulary", "experiments.dpo"),
    "response_weights": Name("float [N, K]", "WPO's likelihood weights", "experiments.dpo"),
    "degree_logits": Name("float [N, K, D]", "of a head that tells how degraded a response is", "experiments.dpo"),
    "degrees": Name("float [N, K]", "how degraded each response is, 0 .. D - 1", "the data's info"),
    "anchor": Name("float [N]", "KTO's or BCO's reference point", "losses.preference.batch_stats"),
    "partners": Name("float [N, 2]", "AOT's scores to compare with", "losses.preference.batch_stats"),
    "batch_beta": Name("float [N]", "beta-DPO's beta of the batch", "losses.preference.batch_stats"),
    "kept": Name("float [N]", "beta-DPO's filter, as weights", "losses.preference.batch_stats"),
    "mean_tokens": Name(
        "float [N]", "mean chosen tokens per prompt of the update", "experiments.parts.preference_data"
    ),
    "from_reference": Name("bool [N, K]", "responses sampled from the reference", "experiments.online_dpo"),
    "sampled": Name("bool [N, K]", "responses sampled from the current policy", "experiments.online_dpo"),
    "label_probs": Name("float [N]", "probability that the first response is better", "the data's label_prob"),
    "margins": Name("float [N]", "how much better the first response is", "the data's margin"),
    "offsets": Name("float [N, K]", "offsets of the scores", "the data's info"),
    "other_rewards": Name("float [N, K]", "weighted sum of the other objectives", "the data's info, or brevity"),
    "prior_log_ratios": Name("float [N, K]", "log prior minus log proposal", "the data's info"),
    "prompt_weights": Name("float [N]", "weight of each prompt", "the data's info"),
    "values": Name("float [N]", "mean reward of the reference policy on the prompt", "the data's info"),
    # --- Reward models ----------------------------------------------------------------------------------------------
    "targets": Name(
        "float [N, K]", "grades or labels; bool [N, K] for target_nll", "reward_model.loss, the data's info"
    ),
    "attribute_targets": Name("float [N, K, A]", "grades of A attributes", "the data's info"),
    "attribute_mask": Name("bool [N, K, A]", "attributes that are labelled", "the data's info"),
    "step_labels": Name("float [N, S]", "whether the solution is right so far", "reward_model.steps_loss"),
}


def describe(name: str) -> str:
    """One line about a name, as "versions: int32 [B, C], ... (from credit.assign, ...)"; the name alone if unknown."""
    if name not in NAMES:
        return name
    row = NAMES[name]
    return f"{name}: {row.shape}, {row.meaning} (from {row.source})"
