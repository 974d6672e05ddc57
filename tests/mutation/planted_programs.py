"""Planted faults of the programs besides grpo and ppo: the fields of planted.Planted."""

STEPS = "tests/step_checks"
EQUATIONS = "test_three_updates_are_those_of_the_equations"
DPO, DPO_PACKED = (f"{STEPS}/test_dpo_step.py::{EQUATIONS}[{case}]" for case in ("padded", "lora-packed"))
SFT = f"{STEPS}/test_sft_step.py::{EQUATIONS}"
PAIRS, RANKINGS = (f"{STEPS}/test_reward_model_step.py::{EQUATIONS}[{case}]" for case in ("pairs", "rankings"))
ONLINE = f"{STEPS}/test_online_dpo_step.py::test_six_updates_are_those_of_the_equations"
DRAWN = f"{STEPS}/test_online_dpo_step.py::test_samples_are_drawn_at_the_temperature_from_the_newest_policy[0.6]"
CONTROL = f"{STEPS}/test_control_step.py::test_two_updates_are_those_of_the_equations"
LEARNED = f"{STEPS}/test_control_preferences_step.py"
CUT, FITTED = (
    f"{LEARNED}::test_segments_are_cut_and_labelled_as_the_slow_code_does",
    f"{LEARNED}::test_the_fit_is_that_of_the_slow_code",
)
MIXED = f"{LEARNED}::test_the_steps_of_segments_are_of_the_teacher_and_of_another[reward]"
PAID = f"{LEARNED}::test_ppo_on_the_learned_reward_is_that_of_the_slow_code"
SELF_PLAY = f"{LEARNED}::test_self_play_is_that_of_the_slow_code"
TEST_ONLINE, TEST_MODEL = "tests/experiments/test_online_dpo.py", "tests/experiments/test_reward_model.py"
WIRING, PROGRAMS = "tests/experiments/test_preference_wiring.py", "tests/experiments/test_program_wiring.py"
EVALUATE = "tests/experiments/test_evaluate.py::test_pass_at_1_is_exact_and_padding_is_not_counted[2]"
BEST, BEST_RUN = (
    f"tests/experiments/test_best_of_n.py::test_{x}" for x in ("rankings_of_samples", "the_verifier_as_its_own_proxy")
)

DATA, PREFERENCES = "experiments/parts/preference_data.py", "experiments/parts/preference_steps.py"
DPO_LOOP, ONLINE_LOOP = "experiments/dpo.py", "experiments/online_dpo.py"
CANDIDATES, READERS = "experiments/parts/sample_candidates.py", "experiments/parts/reward_readers.py"
MODEL_LOOP, WARM_START = "experiments/reward_model.py", "experiments/parts/warm_start.py"
ENCODING, JUDGING = "experiments/parts/encoding.py", "experiments/parts/judging.py"
BEST_OF_N = "experiments/best_of_n.py"
UPDATE, ALGORITHM, RUNS = "rl_jax/control/update.py", "rl_jax/control/algorithm.py", "experiments/parts/control_runs.py"
PREFERENCES_LOOP, SEGMENTS = "experiments/control/preferences.py", "rl_jax/control/segments.py"
COLLECTED, REWARD = "experiments/parts/control_segments.py", "experiments/parts/control_rewards.py"

PLANTED = [
    # --- dpo ---------------------------------------------------------------------------------------------------------
    (
        "dpo: chosen and rejected exchanged",
        DATA,
        "take_responses(record, (0, -1))",
        "take_responses(record, (-1, 0))",
        DPO,
    ),
    (
        "dpo: no mask",
        DATA,
        'mask = taken["completion_mask"] & present[:, :, None]',
        'mask = (taken["completion_mask"] | True) & present[:, :, None]',
        DPO,
    ),
    (
        "dpo: the reference under the other key",
        DATA,
        'taken.get("ref_log_probs"), taken.get("prev_log_probs")',
        'taken.get("prev_log_probs"), taken.get("ref_log_probs")',
        DPO,
    ),
    (
        "dpo: the reference's scores of other records",
        DATA,
        'taken["rewards"], taken.get("ref_log_probs")',
        'taken["rewards"], arrays["ref_log_probs"][: len(rows)]',
        DPO,
    ),
    (
        "dpo: shares of the reference of 1",
        PREFERENCES,
        "reference=config.algorithm.reference.to_dict()",
        'reference={"ref": 1.0}',
        DPO,
    ),
    ("dpo: sums in place of powers of lengths", PREFERENCES, "length_power=config.algorithm.length_power,", "", DPO),
    ("dpo: no regularizer", PREFERENCES, "regularizer_coef=config.algorithm.regularizer_coef,", "", DPO),
    (
        "dpo: packed for one micro-batch",
        DPO_LOOP,
        "packer(batch, settings.micro_batches))\n            step.clock",
        "packer(batch))\n            step.clock",
        DPO_PACKED,
    ),
    (
        "dpo: responses dealt to other micro-batches",
        DATA,
        "order = order.swapaxes(1, 2).reshape(-1)",
        "order = order.reshape(-1)",
        DPO_PACKED,
    ),
    (
        "dpo: evaluated on what it is trained on",
        DPO_LOOP,
        "evaluate = make_evaluate(setup, programs, encoder, held_out, reference)",
        "evaluate = make_evaluate(setup, programs, encoder, arrays, reference)",
        f"{PROGRAMS}::test_dpo_is_evaluated_on_the_held_out_records",
    ),
    (
        "dpo: one noise for all updates",
        PREFERENCES,
        "processes.step_key(state, state.step)",
        "processes.step_key(state, 0)",
        WIRING,
    ),
    (
        "dpo: statistics of a batch not carried on",
        PREFERENCES,
        "return state._replace(trackers=tracker), batch._replace(",
        "return state, batch._replace(",
        WIRING,
    ),
    (
        "dpo: statistics of a batch lost by the loop",
        DPO_LOOP,
        "            state, batch = add_batch_statistics(",
        "            _, batch = add_batch_statistics(",
        f"{PROGRAMS}::test_dpo_carries_the_statistics_of_its_batches",
    ),
    # --- online_dpo --------------------------------------------------------------------------------------------------
    (
        "online_dpo: sampled by the reference",
        ONLINE_LOOP,
        "draw(sampler, compared.ref, keys[0], step.clock)",
        "draw(compared.ref, compared.ref, keys[0], step.clock)",
        DRAWN,
    ),
    (
        "online_dpo: the reference's scores are the policy's",
        ONLINE_LOOP,
        "ref_log_probs=score(reference)",
        "ref_log_probs=score(policy)",
        ONLINE,
    ),
    (
        "online_dpo: the scores of before are the reference's",
        ONLINE_LOOP,
        "prev_log_probs=score(policy)",
        "prev_log_probs=score(reference)",
        f"{TEST_ONLINE}::test_references_are_scored_by_their_own_params",
    ),
    ("online_dpo: the reference not moved", ONLINE_LOOP, "compared, moved = schedule(", "_, moved = schedule(", ONLINE),
    (
        "online_dpo: temperature of the evaluation",
        CANDIDATES,
        "sampling=sampling_of(settings)",
        "sampling=sampling_of(setup.config.eval)",
        DRAWN,
    ),
    (
        "online_dpo: desirable and undesirable exchanged",
        ONLINE_LOOP,
        "np.arange(len(batch.rewards)) < count",
        "np.arange(len(batch.rewards)) >= count",
        f"{TEST_ONLINE}::test_labelled_responses_are_rows_of_their_own",
    ),
    (
        "online_dpo: absent pairs trained on",
        ONLINE_LOOP,
        "present = present.reshape(prompts * lists, responses)",
        "present = present.reshape(prompts * lists, responses) | True",
        ONLINE,
    ),
    (
        "online_dpo: rewards in place of values",
        ONLINE_LOOP,
        "rewards=take(rewards)",
        "rewards=take(candidates.rewards)",
        f"{TEST_ONLINE}::test_choose_gives_win_rates_as_rewards",
    ),
    (
        "online_dpo: one order for all epochs",
        ONLINE_LOOP,
        "jax.random.permutation(jax.random.fold_in(key, epoch), rows)",
        "jax.random.permutation(key, rows)",
        f"{TEST_ONLINE}::test_minibatches_deal_every_list_out_once_an_epoch",
    ),
    (
        "online_dpo: one key for all steps",
        ONLINE_LOOP,
        "processes.step_key(state, step.number), 5)",
        "processes.step_key(state, 1), 5)",
        ONLINE,
    ),
    (
        "online_dpo: the trial step is not sampled from",
        ONLINE_LOOP,
        "return trial.params",
        "return state.params",
        f"{PROGRAMS}::test_the_trial_step_is_sampled_from_and_forgotten",
    ),
    (
        "online_dpo: the trial step is kept",
        ONLINE_LOOP,
        "jax.tree.map(jnp.copy, state), batch, ref, keys[2])\n    return trial.params",
        "state, batch, ref, keys[2])\n    return trial.params",
        f"{PROGRAMS}::test_the_trial_step_is_sampled_from_and_forgotten",
    ),
    # --- reward_model ------------------------------------------------------------------------------------------------
    (
        "reward_model: responses exchanged",
        READERS,
        "predict(params, flat(batch.batch)).reshape(*batch.present.shape, -1)",
        "predict(params, flat(batch.batch)).reshape(*batch.present.shape, -1)[:, ::-1]",
        PAIRS,
    ),
    (
        "reward_model: absent responses count",
        DATA,
        'present = taken["present"] & (',
        'present = (taken["present"] | True) & (',
        RANKINGS,
    ),
    (
        "reward_model: no regularizer",
        READERS,
        "        regularizer_coef=config.algorithm.regularizer_coef,\n",
        "",
        RANKINGS,
    ),
    (
        "reward_model: packed for one micro-batch",
        MODEL_LOOP,
        "reader.pack(batch, setup.config.train.micro_batches)",
        "reader.pack(batch, 1)",
        PAIRS,
    ),
    (
        "reward_model: the settings of SFT",
        MODEL_LOOP,
        "make_trainer(setup, config.train, reader.loss, params)",
        "make_trainer(setup, config.sft, reader.loss, params)",
        PAIRS,
    ),
    (
        "reward_model: the probability that a step is wrong",
        READERS,
        "jax.nn.softmax(outputs(params, batch), axis=-1)[..., 1:]",
        "jax.nn.softmax(outputs(params, batch), axis=-1)[..., :1]",
        f"{TEST_MODEL}::test_steps_are_learned",
    ),
    (
        "reward_model: steps read at the token before",
        READERS,
        'arrays["step_ends"] + prompt_length)',
        'arrays["step_ends"] + prompt_length - 1)',
        f"{PROGRAMS}::test_steps_are_read_at_their_last_tokens",
    ),
    (
        "reward_model: a log-ratio without the reference",
        READERS,
        "zero_masked(log_probs, mask) - zero_masked(batch.ref_log_probs, mask)",
        "zero_masked(log_probs, mask)",
        f"{PROGRAMS}::test_an_implicit_reward_is_a_log_ratio",
    ),
    (
        "reward_model: moments of absent responses",
        MODEL_LOOP,
        'held_out_rewards[held_out[0]["present"]]',
        "held_out_rewards.reshape(-1, held_out_rewards.shape[-1])",
        f"{PROGRAMS}::test_the_moments_of_a_reward_model_are_of_its_held_out_responses",
    ),
    # --- sft ---------------------------------------------------------------------------------------------------------
    ("sft: the worst response", DATA, 'record.get("responses", [""])[0]', 'record.get("responses", [""])[-1]', SFT),
    (
        "sft: the first batch again and again",
        WARM_START,
        "encode_sft(setup, next(batches))",
        "encode_sft(setup, pipeline.peek(batches))",
        SFT,
    ),
    (
        "sft: no mask",
        ENCODING,
        'return batch, rows["completion_mask"][:, -length:]',
        'return batch, rows["completion_mask"][:, -length:] | True',
        SFT,
    ),
    (
        "sft: the prompt as its completion",
        ENCODING,
        '"completion": record["completion"]',
        '"completion": record["prompt"]',
        SFT,
    ),
    (
        "sft: the settings of the main loop",
        WARM_START,
        "make_trainer(setup, settings, own.loss_fn",
        "make_trainer(setup, config.train, own.loss_fn",
        SFT,
    ),
    (
        "sft: a warm start that is not loaded",
        WARM_START,
        'return load_params(setup, workdir / "sft") if fine_tune(setup, loop, own) else None',
        "return setup.init_params() if fine_tune(setup, loop, own) else None",
        f"{PROGRAMS}::test_a_warm_start_is_what_the_sft_ended_with",
    ),
    # --- evaluate ----------------------------------------------------------------------------------------------------
    (
        "evaluate: rows that fill up a batch count",
        JUDGING,
        "mine, own_prompts, len(records), stop_strings",
        "mine, own_prompts, None, stop_strings",
        EVALUATE,
    ),
    (
        "evaluate: one key for all batches",
        JUDGING,
        "jax.random.fold_in(key, index)",
        "jax.random.fold_in(key, 0)",
        EVALUATE,
    ),
    (
        "evaluate: the last batch only",
        JUDGING,
        "results.append(judged.result._replace(components=own))",
        "results = [judged.result._replace(components=own)]",
        EVALUATE,
    ),
    (
        "evaluate: sampled as in training",
        JUDGING,
        "sampling=sampling_of(config),",
        "sampling=sampling_of(rollout),",
        f"{PROGRAMS}::test_an_evaluation_samples_by_its_own_settings",
    ),
    (
        "evaluate: lengths of training",
        JUDGING,
        "config.completion_length or rollout.completion_length",
        "rollout.completion_length",
        f"{PROGRAMS}::test_an_evaluation_samples_by_its_own_settings",
    ),
    (
        "evaluate: random params",
        "experiments/evaluate.py",
        "load_params(setup, config.init_from) if config.init_from else setup.init_params()",
        "setup.init_params()",
        f"{PROGRAMS}::test_what_is_evaluated_is_what_the_config_names",
    ),
    # --- best_of_n ---------------------------------------------------------------------------------------------------
    (
        "best_of_n: the verifier picks, not the model",
        BEST_OF_N,
        "members = proxy_scores(judged, model)",
        "members = proxy_scores(judged, None)",
        BEST_RUN,
    ),
    (
        "best_of_n: gold and proxy exchanged",
        BEST_OF_N,
        "benchmarks.best_of_n(proxy, gold, sizes), strict=True)",
        "benchmarks.best_of_n(gold, proxy, sizes), strict=True)",
        BEST_RUN,
    ),
    ("best_of_n: order never turned", BEST_OF_N, "reverse=not turned", "reverse=True", BEST),
    ("best_of_n: grades of the first batch", BEST_OF_N, "float(gold[first + i])", "float(gold[i])", BEST),
    (
        "best_of_n: a random policy",
        BEST_OF_N,
        "judged = sample(setup, params, rewards, stop)",
        "judged = sample(setup, setup.init_params(), rewards, stop)",
        f"{PROGRAMS}::test_best_of_n_samples_its_warm_start",
    ),
    (
        "best_of_n: the judges' grades are the gold",
        BEST_OF_N,
        "part.result.components[TASK] for part in judged",
        "part.result.rewards for part in judged",
        f"{PROGRAMS}::test_gold_is_the_task_s_own_reward",
    ),
    # --- control.ppo -------------------------------------------------------------------------------------------------
    (
        "control.ppo: values of 0",
        ALGORITHM,
        "(algorithm.objective.values(x).reshape(rows.rewards.shape) for x in outputs)",
        "(0 * algorithm.objective.values(x).reshape(rows.rewards.shape) for x in outputs)",
        CONTROL,
    ),
    (
        "control.ppo: values of where it was, not of where it led",
        ALGORITHM,
        "for x in (rows.observations, rows.next_observations))",
        "for x in (rows.observations, rows.observations))",
        CONTROL,
    ),
    (
        "control.ppo: ends and cuts exchanged",
        ALGORITHM,
        "values, next_values, rows.terminated, rows.truncated)",
        "values, next_values, rows.truncated, rows.terminated)",
        CONTROL,
    ),
    (
        "control.ppo: trackers lost",
        UPDATE,
        "ControlState(train._replace(trackers=carried), worlds, actor)",
        "ControlState(train, worlds, actor)",
        CONTROL,
    ),
    (
        "control.ppo: worlds not carried on",
        UPDATE,
        "ControlState(train._replace(trackers=carried), worlds, actor)",
        "ControlState(train._replace(trackers=carried), state.worlds, actor)",
        CONTROL,
    ),
    (
        "control.ppo: the newest moments",
        UPDATE,
        "rule.assign(unravel(train.params), rows, normalize, state.worlds)",
        "rule.assign(unravel(train.params), rows, normalizer(carried), state.worlds)",
        CONTROL,
    ),
    (
        "control.ppo: rewards not scaled",
        UPDATE,
        'scaled = rows.rewards / states["rewards"].moments.std()',
        "scaled = rows.rewards",
        CONTROL,
    ),
    (
        "control.ppo: returns run on over cuts",
        UPDATE,
        "done = rows.terminated | rows.truncated\n        states",
        "done = rows.terminated\n        states",
        CONTROL,
    ),
    (
        "control.ppo: one order for all updates",
        UPDATE,
        "jax.random.fold_in(train.rng, count), axis_name)",
        "jax.random.fold_in(train.rng, 0), axis_name)",
        CONTROL,
    ),
    (
        "control.ppo: the rate decays by updates",
        RUNS,
        "total = num_updates(config) * config.train.epochs * config.train.minibatches",
        "total = num_updates(config)",
        CONTROL,
    ),
    (
        "control.ppo: metrics of the last update",
        RUNS,
        "return (state, merge(carry[1], metrics)), None",
        "return (state, metrics), None",
        CONTROL,
    ),
    # --- control.preferences -----------------------------------------------------------------------------------------
    (
        "control.preferences: labels the other way round",
        SEGMENTS,
        "jnp.where(right[:, None], pairs, pairs[:, ::-1])",
        "jnp.where(right[:, None], pairs[:, ::-1], pairs)",
        f"{CUT}[reward]",
    ),
    (
        "control.preferences: segments run on over ends",
        SEGMENTS,
        "jax.tree.map(fold, steps), over == 0",
        "jax.tree.map(fold, steps), over >= 0",
        f"{CUT}[reward]",
    ),
    (
        "control.preferences: labels of undiscounted sums",
        COLLECTED,
        "segments.segment_sums(added, mask, discount=settings.label.discount)",
        "segments.segment_sums(added, mask)",
        f"{CUT}[reward]",
    ),
    (
        "control.preferences: regret of partial returns",
        COLLECTED,
        '"regret": regret}',
        '"regret": partial_return}',
        f"{CUT}[regret]",
    ),
    (
        "control.preferences: fitted to the held-out pairs",
        PREFERENCES_LOOP,
        "learn(fit_key, *gather(gather_key, values))",
        "learn(fit_key, *gather(gather_key, values)[::-1])",
        f"{CUT}[reward]",
    ),
    (
        "control.preferences: the fitted reward not put in",
        PREFERENCES_LOOP,
        '{"relabel": reward, "fitted": fitted}',
        '{"fitted": fitted}',
        PAID,
    ),
    (
        "control.preferences: the true reward",
        "rl_jax/control/reward_learning.py",
        "rows._replace(rewards=jax.lax.stop_gradient(rewards))",
        "rows",
        PAID,
    ),
    ("control.preferences: rewards not centred", REWARD, "center=fields.center)", "center=False)", f"{FITTED}[reward]"),
    (
        "control.preferences: a fit without its discount",
        REWARD,
        "discount=fit.discount, center",
        "discount=1.0, center",
        f"{FITTED}[reward]",
    ),
    (
        "control.preferences: one minibatch for all updates of a fit",
        SEGMENTS,
        "jax.random.fold_in(state.rng, state.step)",
        "jax.random.fold_in(state.rng, 0)",
        f"{CUT}[reward]",
    ),
    (
        "control.preferences: teacher and untrained exchanged",
        COLLECTED,
        "(1.0 - share) * best + share * worst",
        "(1.0 - share) * worst + share * best",
        MIXED,
    ),
    (
        "control.preferences: the regret model's discount",
        PREFERENCES_LOOP,
        "discount=config.fit.discount)",
        "discount=config.tabular.discount)",
        f"{FITTED}[regret]",
    ),
    (
        "control.preferences: cloning forgotten",
        PREFERENCES_LOOP,
        "return cpl.clone(score, ravel_pytree(agent.init(init_key))[0], fit_key, data, updates=updates, **fit)",
        "return ravel_pytree(agent.init(init_key))[0]",
        f"{FITTED}[cpl]",
    ),
    (
        "control.preferences: returns of running episodes lost",
        "rl_jax/control/self_play.py",
        "return Contest(last, queue, size), settled",
        "return Contest(state.returns, queue, size), settled",
        SELF_PLAY,
    ),
    (
        "control.preferences: cuts not settled in self-play",
        "rl_jax/control/self_play.py",
        "rows._replace(rewards=rates, terminated=done, truncated=jnp.zeros_like(done))",
        "rows._replace(rewards=rates)",
        SELF_PLAY,
    ),
]
