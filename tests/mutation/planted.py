"""Faults in the wiring that no mechanical rule makes, planted by hand, and the test that notices each.

    python -m tests.mutation.planted                    each fault in its tests; names those that nothing noticed
    python -m tests.mutation.planted ppo reference      those whose names or tests contain one of these words

A wrong array of the right shape, a term left out, an old value for a new one: between the recipes, which the laws hold,
and the metrics, which say that something was learned. Nothing is written to the files: a fault lives in the import
hook of a child process (tests/mutation/world.py).
"""

import collections
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.mutation import planted_programs
from tests.mutation.plan import use_cache
from tests.mutation.world import Child, run_all, run_mutant

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "planted"


class Planted(NamedTuple):
    """`new` in the place of `old`, which is in `file` once; `tests` of test file notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    """"file" or "file::test" or "file::test[parameter]", of which one must fail."""


GRPO, PPO = "tests/step_checks/test_grpo_step.py", "tests/step_checks/test_ppo_step.py"
STEP, ROWS = "test_the_steps_are_those_of_the_slow_code", "test_the_rows_are_those_of_the_slow_code"
LORA, PACKED = f"{GRPO}::{STEP}[lora]", f"{GRPO}::{STEP}[packed]"
SEPARATE, SHARED = f"{PPO}::{STEP}[separate, lora]", f"{PPO}::{STEP}[shared, packed]"
SAMPLED, PPO_SAMPLED = f"{GRPO}::{ROWS}[lora]", f"{PPO}::{ROWS}[separate, lora]"
CUT_OFF = "tests/credit/test_rows_cut_off.py"
ENDS = "tests/rollout/test_ends.py"
ORDERS = f"{GRPO}::test_the_orders_of_epochs_are_all_rows_each_in_another_one[lora]"

LOOP, PPO_LOOP, POLICY = "experiments/grpo.py", "experiments/ppo.py", "experiments/parts/policy.py"
LOGGED = "experiments/parts/logged.py"
CRITIC = "experiments/parts/actor_critic.py"
STAGES = "experiments/parts/policy_steps.py"
TRACKERS, RULE, RECIPE = "experiments/parts/trackers.py", "rl_jax/credit/rule.py", "rl_jax/ppo.py"
PACKING = "rl_jax/training/packing.py"

PLANTED = [
    # --- Those of the review that no test had noticed (the fifteenth, the KL's mask, is noticed in GRPO) -------------
    Planted("lengths of the shaping: of the loss", RULE, "shaped = shape(rewards, jnp.sum(mask, axis=1),",
            "shaped = shape(rewards, jnp.sum(rule.loss_mask(rollout), axis=1),", CUT_OFF),
    Planted("lengths of the shaping: of the loss, in a step", RULE, "shaped = shape(rewards, jnp.sum(mask, axis=1),",
            "shaped = shape(rewards, jnp.sum(rule.loss_mask(rollout), axis=1),", LORA),
    Planted("lengths of the advantage: of the loss", RULE, '"lengths": jnp.sum(rollout.completion_mask, axis=1)',
            '"lengths": jnp.sum(rule.loss_mask(rollout), axis=1)', CUT_OFF),
    Planted("selection among all tokens", RULE, "supply(rule.selection, known)(mask)",
            "supply(rule.selection, known)(rollout.completion_mask)", CUT_OFF),
    Planted("group_tokens of all tokens", RULE, "_group_tokens(mask, group_size)",
            "_group_tokens(rollout.completion_mask, group_size)", LORA),
    Planted("KL in the reward on tokens of the loss only", RULE, "(log_probs, ref_log_probs, mask)\n        rows",
            "(log_probs, ref_log_probs, rule.loss_mask(rollout))\n        rows", LORA),
    Planted("old log-probs: the sampler's", POLICY, "batch = batch._replace(old_log_probs=before.log_probs)",
            "batch = batch._replace(old_log_probs=rollout.sampled_log_probs)", LORA),
    Planted("reference: the policy", STAGES,
            "programs.on_host(action_mask.reference_of(ref_params), rows).log_probs",
            "programs.on_host(params, rows).log_probs", LORA),
    Planted("ppo: temperature of the joint loss", CRITIC, "sampling = Sampling(config.rollout.temperature)",
            "sampling = Sampling()", SHARED),
    Planted("temperature of the scorer", POLICY, "sampling=Sampling(rollout.temperature)", "sampling=Sampling()", LORA),
    Planted("ppo: temperature of the scorer", POLICY, "sampling=Sampling(rollout.temperature)", "sampling=Sampling()",
            SEPARATE),
    Planted("rows counted without a token", POLICY, "live = jnp.any(batch.completion_mask, axis=1)",
            "live = jnp.ones(batch.completion_mask.shape[:1], bool)", PACKED),
    Planted("rows counted over all minibatches", POLICY, "_count_rows(jax.tree.map(lambda x, i=i: x[i], batch))",
            "jax.tree.map(lambda x, i=i: x[i], _count_rows(batch))", PACKED),
    Planted("aborted rows are truncated", "rl_jax/rollout/lm/requests.py",
            'np.array([completion.reason == "length" for completion in completions])', "~finished", ENDS),
    Planted("ppo: reference: the policy", PPO_LOOP,
            "reference = programs.score(action_mask.reference_of(ref_params), rows).log_probs",
            "reference = before.log_probs", SEPARATE),
    Planted("ppo: values of 0", PPO_LOOP, "values = programs.predict(learner.critic_params(), rows)",
            "values = programs.predict(learner.critic_params(), rows) * 0", SEPARATE),
    Planted("ppo: no old log-probs", CRITIC, "if policy_parts.has_several_updates(config):", "if False:", SEPARATE),
    Planted("an EOS in the padding finishes a row", "rl_jax/rollout/lm/engine.py",
            "finished = jnp.any(completion_mask & is_any(out, eos_ids), axis=1)",
            "finished = jnp.any(is_any(out, eos_ids), axis=1)", ENDS),
    # --- The loop of GRPO --------------------------------------------------------------------------------------------
    Planted("sampled by the reference", LOOP, "collect(state.params, rollout_key, step.clock, ref_params)",
            "collect(ref_params, rollout_key, step.clock, state.params)", SAMPLED),
    Planted("one key for all steps", LOOP, "jax.random.split(processes.step_key(state, step.number), 3)",
            "jax.random.split(processes.step_key(state, 1), 3)", ORDERS),
    Planted("the policy's own scores: the reference's", LOOP,
            "scores, reference = score(config, programs, rows, state.params, ref_params",
            "scores, reference = score(config, programs, rows, ref_params, ref_params", LORA),
    Planted("rewards of the step not seen", LOOP,
            "rows), trackers.see(estimators, state, collected, step.number)", "rows), state", PACKED),
    Planted("baseline of raw rewards", LOOP, "collected, metrics, earned)", "collected, metrics)", PACKED),
    Planted("trackers not moved", LOOP, "state, metrics = trackers.observe_step(",
            "_, metrics = trackers.observe_step(", LORA),
    Planted("the reference moved towards itself", LOOP, "move(ref_params, state.params, step.number)",
            "move(ref_params, ref_params, step.number)", LORA),
    Planted("the reference not moved", LOOP, "ref_params = move(ref_params, state.params, step.number)", "pass", LORA),
    Planted("only the last minibatch", STAGES, "for part in policy.minibatches(setup.config, batch, key):",
            "for part in policy.minibatches(setup.config, batch, key)[-1:]:", LORA),
    Planted("every update from the first state", STAGES, "state, metrics = programs.train_step(state, part, *beside)",
            "_, metrics = programs.train_step(jax.tree.map(jax.numpy.copy, state), part, *beside)", LORA),
    # --- What both loops share ---------------------------------------------------------------------------------------
    Planted("one order for all epochs", POLICY, "jax.random.permutation(jax.random.fold_in(key, epoch), rows)",
            "jax.random.permutation(key, rows)", ORDERS),
    Planted("rows in order", POLICY, "jax.random.permutation(jax.random.fold_in(key, epoch), rows)",
            "jnp.arange(rows)", ORDERS),
    Planted("the first minibatch again and again", POLICY, "for order in orders for i in jnp.split(order, count)",
            "for order in orders for i in [jnp.split(order, count)[0]] * count", ORDERS),
    Planted("advantages of other rows", POLICY, "    parts = [_whole(batch)] * epochs if count == 1 else",
            "    batch = batch._replace(advantages=batch.advantages[::-1])\n"
            "    parts = [_whole(batch)] * epochs if count == 1 else", LORA),
    Planted("the other temperature", POLICY, "sampling=Sampling(rollout.temperature)",
            "sampling=Sampling(1.0 / rollout.temperature)", PACKED),
    Planted("the model scored as sampled, with top-k", POLICY, "sampling=Sampling(rollout.temperature)",
            "sampling=sampling_of(rollout)", LORA),
    Planted("group size of one prompt more", POLICY, '"group_size": config.sample.group_size,',
            '"group_size": 2 * config.sample.group_size,', LORA),
    Planted("objective: the KL's weight is the entropy's", POLICY, "kl_coef=settings.kl_coef,",
            "kl_coef=settings.entropy_coef,", PACKED),
    Planted("objective: no entropy bonus", POLICY, "entropy_coef=settings.entropy_coef,", "", LORA),
    Planted("credit: the loss's KL in the reward", POLICY, "reward_kl=bind(settings.reward_kl.to_dict(), kl)",
            "reward_kl=bind(settings.kl.to_dict(), kl)", LORA),
    Planted("credit: truncated rows not masked", POLICY, "mask_truncated=settings.mask_truncated,", "", LORA),
    Planted("credit: no weights against the sampler", POLICY,
            "behavior_weight=bind(settings.behavior_weight.to_dict(), token_weights),", "", LORA),
    Planted("effective samples of the last update", LOGGED,
            'weight, squared = updates[0]["sampler/weight"], updates[0]["sampler/weight_squared"]',
            'weight, squared = updates[-1]["sampler/weight"], updates[-1]["sampler/weight_squared"]', LORA),
    Planted("weight of the reward's KL not tracked", TRACKERS, 'result["reward_kl_coef"] = states["reward_kl"].coef',
            "pass", LORA),
    Planted("weight of the loss's KL from the other tracker", TRACKERS, 'jnp.full(rows, states["loss_kl"].coef)',
            'jnp.full(rows, states["reward_kl"].coef)', LORA),
    Planted("the entropy's coef, not what is applied", TRACKERS, 'jnp.full(rows, states["entropy"].applied)',
            'jnp.full(rows, states["entropy"].coef)', PACKED),
    Planted("tracker fed with k3", TRACKERS, 'kl = jnp.float32(metrics["kl/k1"])', 'kl = jnp.float32(metrics["kl/k3"])',
            LORA),
    Planted("a sample counted as one row", TRACKERS, "samples = jnp.float32(len(rewards))", "samples = jnp.float32(1)",
            LORA),
    Planted("the baseline has seen the rewards that it is subtracted from", TRACKERS,
            "    if schedules.PLACE in estimators:\n        values",
            '    rewards = jnp.asarray(collected.judged.result.rewards)\n    if "baseline" in states:\n'
            '        states = states | {"baseline": estimators["baseline"].update(states["baseline"], rewards)}\n'
            "    if schedules.PLACE in estimators:\n        values", PACKED),
    Planted("the loss on all columns", RULE, "        completion_mask=mask,\n",
            "        completion_mask=mask | True,\n",
            LORA),
    Planted("soup the other way round", "experiments/parts/references.py",
            "[1.0 - settings.weight, settings.weight]", "[settings.weight, 1.0 - settings.weight]", LORA),
    Planted("LoRA's scale twice", "experiments/parts/setup.py", "lora.attach_trained(config, params),",
            "lora.attach_trained(dataclasses.replace(config, alpha=2 * config.alpha), params),", LORA),
    Planted("LoRA's base trained too", "experiments/parts/training.py", 'optimizer = freeze(optimizer, "base")', "pass",
            LORA),
    Planted("Adam's b1 and b2 exchanged", "experiments/parts/training.py", "    return bind(rule, optimizers, **adam)",
            '    adam["b1"], adam["b2"] = adam["b2"], adam["b1"]\n    return bind(rule, optimizers, **adam)', LORA),
    Planted("no clip of the norm", "experiments/parts/training.py", "max_grad_norm=settings.max_grad_norm",
            "max_grad_norm=None", LORA),
    Planted("sampled at temperature 1", "experiments/parts/setup.py", "return Sampling(fields.temperature,",
            "return Sampling(1.0,", SAMPLED),
    Planted("rewards of the neighbour's prompt", "experiments/parts/judging.py",
            "[records[i] for i in kept_prompts for _ in range(samples)], samples)",
            "[records[i] for _ in range(samples) for i in kept_prompts], samples)", SAMPLED),
    Planted("the sampler's log-probs: the model's own", RULE,
            "        behavior_log_probs=rollout.sampled_log_probs,\n        ref",
            "        behavior_log_probs=rollout.raw_log_probs,\n        ref", LORA),
    Planted("the reward's KL the other way round", RULE, "(log_probs, ref_log_probs, mask)\n        rows",
            "(ref_log_probs, log_probs, mask)\n        rows", LORA),
    Planted("the reward's KL on tokens, not on rows", RULE,
            "        rows = shaped - reward_kl_coef * masked_sum(penalty, mask, axis=1)\n", "", LORA),
    Planted("the loss's KL the other way round", "rl_jax/grpo.py",
            "(scores.log_probs, batch.ref_log_probs, mask)\n        per_token +=",
            "(batch.ref_log_probs, scores.log_probs, mask)\n        per_token +=", LORA),
    Planted("weights on the regularisers, too", "rl_jax/grpo.py",
            "    result = supply(objective.aggregate, available)(per",
            "    per_token = per_token * zero_masked(batch.token_weights, mask)\n"
            "    result = supply(objective.aggregate, available)(per", LORA),
    # --- Packed rows -------------------------------------------------------------------------------------------------
    Planted("positions of completions one too far", PACKING, "= batch.positions.reshape(-1)[source]",
            "= batch.positions.reshape(-1)[source] + (prefix[piece] > 0)", PACKED),
    Planted("completions do not see their prompt", PACKING, "= np.repeat(prefix.astype(np.int32), lengths)", "= 0",
            PACKED),
    Planted("a token predicted from itself", PACKING, "last[piece], place - 1)", "last[piece], place)", PACKED),
    Planted("a first token predicted from the neighbour", PACKING,
            "np.where(place == start[piece], last[piece], place - 1)", "place - 1", PACKED),
    Planted("all completions in one segment", PACKING, "segment += share_prefix", "segment += 0", PACKED),
    Planted("ppo: the first value of the neighbour", PACKING, "= last[last >= 0]", "= last[last >= 0] - 1", SHARED),
    Planted("ppo: values one token late", PACKING, "packed.columns[row_of, column + 1] = place",
            "packed.columns[row_of, column + 1] = place - 1", SHARED),
    Planted("rows not put back into their order", "experiments/parts/packers.py",
            "return _with_rows(jax.tree.map(lambda x: x[order], _with_rows(batch, None)), packed)",
            "return _with_rows(batch, packed)", PACKED),
    # --- PPO ---------------------------------------------------------------------------------------------------------
    Planted("ppo: sampled by the reference", PPO_LOOP,
            "collect(learner.sampler(config.critic, ref_params), rollout_key, step.clock, ref_params)",
            "collect(ref_params, rollout_key, step.clock, ref_params)", PPO_SAMPLED),
    Planted("ppo: scores of the reference", PPO_LOOP, "before = programs.score(learner.policy_params(), rows)",
            "before = programs.score(ref_params, rows)", SEPARATE),
    Planted("ppo: the critic's trunk is the policy's", PPO_LOOP,
            "values = programs.predict(learner.critic_params(), rows)",
            "values = programs.predict({**learner.critic_params(), **learner.policy_params()}, rows)", SEPARATE),
    Planted("ppo: the value after a token", RECIPE, "return outputs[:, :-1]", "return outputs[:, 1:]", SEPARATE),
    Planted("ppo: the value after a token, shared", CRITIC, "values[:, :-1], batch, objective_of(batch))",
            "values[:, 1:], batch, objective_of(batch))", SHARED),
    Planted("ppo: the critic trained as the policy is", CRITIC,
            "make_trainer(setup, settings, critics.make_loss(", "make_trainer(setup, config.train, critics.make_loss(",
            SEPARATE),
    Planted("ppo: whitened or not, the other way", CRITIC, "whiten=settings.whiten", "whiten=not settings.whiten",
            SHARED),
    Planted("ppo: the reference not moved", PPO_LOOP,
            "ref_params = move(ref_params, learner.policy_params(), step.number)", "pass", SHARED),
    Planted("ppo: trackers not moved", PPO_LOOP, "    return learner._replace(policy=policy), metrics\n",
            "    return learner, metrics\n", SEPARATE),
    Planted("ppo: one order of rows in all steps", PPO_LOOP,
            "jax.random.split(processes.step_key(learner.policy, step.number), 3)",
            "jax.random.split(processes.step_key(learner.policy, 1), 3)",
            f"{PPO}::test_the_orders_of_epochs_are_all_rows_each_in_another_one[separate, lora]"),
    Planted("ppo: bootstrapped with the first value", RECIPE, "return values[:, -1]", "return values[:, 0]", SEPARATE),
    Planted("ppo: finished rows bootstrapped", RECIPE, "rollout.truncated & estimator", "rollout.finished & estimator",
            SEPARATE),
    Planted("ppo: whitened with the rows cut off", RECIPE, "masked_whiten(advantages, mask, ddof=1",
            "masked_whiten(advantages, rollout.completion_mask, ddof=1", SHARED),
    Planted("ppo: token rewards without the KL", RECIPE, "token_rewards = zero_masked(earned.tokens, mask)",
            "token_rewards = zero_masked(jnp.where(earned.tokens > 0, earned.tokens, 0.0), mask)", SEPARATE),
    Planted("ppo: the policy's count on the critic's sum", RECIPE,
            "policy.total + objective.value_coef * critic.total", "policy.total + critic.total", SHARED),
    *(Planted(*fault) for fault in planted_programs.PLANTED),
]  # fmt: skip


def problems(root: Path = ROOT) -> list[str]:
    """Faults whose text is not in its file exactly once, or whose tests do not exist: these need another look."""
    found = [
        f"{f.name}: {f.file} has its text {n} times"
        for f in PLANTED
        if (n := (root / f.file).read_text().count(f.old)) != 1
    ]
    for f in PLANTED:
        file, _, test = f.tests.partition("::")
        called = f"def {test.partition('[')[0]}(" if test else ""
        if not (root / file).exists() or called not in (root / file).read_text():
            found.append(f"{f.name}: no {f.tests}")
    names = collections.Counter(f.name for f in PLANTED)
    return found + [f"{name}: {n} faults of this name" for name, n in names.items() if n > 1]


def run(fault: Planted) -> dict:
    """Runs the tests of a fault with it in place, in this process."""
    use_cache(WORK / "xla", write=True)
    file, _, test = fault.tests.partition("::")
    source = (ROOT / fault.file).read_text().replace(fault.old, fault.new)
    return run_mutant(ROOT, fault.file, source, file, [fault.tests] if test else None, slow=bool(test))


def main(words: list[str]) -> int:
    from tests.mutate import _warm

    if wrong := problems():
        print(*wrong, sep="\n")
        return 2
    _warm()
    (WORK / "logs").mkdir(parents=True, exist_ok=True)
    chosen = [fault for fault in PLANTED if not words or any(word in f"{fault.name} {fault.tests}" for word in words)]
    jobs = ((f, lambda f=f: Child(lambda: run(f), WORK / "logs" / f"{PLANTED.index(f)}.txt", 300)) for f in chosen)
    alive = 0
    for fault, answer in run_all(jobs, 1):
        killer = answer.get("killer") or answer.get("died")
        alive += killer is None
        said = f"killed by {killer}" if killer else f"SURVIVED {answer['ran']} tests"  # 0: no test of this name
        print(f"{fault.name}: {said} ({answer.get('seconds_run', 0):.0f} s)", flush=True)
    print(f"{len(chosen)} faults, {alive} not noticed, at {time.strftime('%H:%M')}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
