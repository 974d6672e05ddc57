"""The meaning of the fields of every shipped config, by dotted name: for `--help` and the page of the config files.

The first sentence of each is shown by `--help`, all of it on the page. `describe` finds the text of a field. A group
with a field `fn` names a function; its other fields are that function's keywords, and the group is described as one.
The fields of an OPEN group belong to what its name selects (a task, an environment); the most used ones of the shipped
ones are here too. tests/configs/test_fields.py checks that no field is missing and no entry is left over.
"""

from configs.control.fields import CONTROL

OPEN = {  # group -> the function whose keywords its fields are
    "task": "rl_jax.tasks.load",
    "env": "rl_jax.envs.load_vector",
    "data": "rl_jax.preferences.load",
    "sample.pairs": "rl_jax.preferences.load",
    "benchmarks.sets": "rl_jax.preferences.load, by name",
    "algorithm.reference": "rl_jax.dpo.Objective.reference",
    "arms": "experiments.frontier",
    "programs": "the configs of the programs that are named",
}

OPTIMIZER = {
    "learning_rate": "Peak learning rate of AdamW.",
    "warmup_steps": "Updates of linear warm-up. 0: none.",
    "decay_steps": "Updates of the cosine decay. They follow the warm-up; 0: the rate stays constant.",
    "final_fraction": "Rate at the end of the decay, as a share of the peak.",
    "b1": "Adam's decay of the mean of the gradients.",
    "b2": "Adam's decay of the mean of their squares.",
    "eps": "Adam's epsilon, added to the root of the mean square.",
    "weight_decay": "AdamW's decoupled weight decay, per update times the rate. 0: none.",
}
ADAM = {name: OPTIMIZER[name] for name in ("b1", "b2", "eps")}
UPDATE = {
    "micro_batches": "Parts of an update, to save memory. The result is the same; they divide its rows.",
    "max_grad_norm": "Global norm that gradients are scaled down to. inf: never.",
}
SAMPLING = {
    "temperature": "Sampling temperature, above 0. For greedy decoding take top_k=1.",
    "top_k": "Sample among so many likeliest tokens. 0: all.",
    "top_p": "Sample among the likeliest tokens of this mass. 1.0: all.",
    "min_p": "Least probability of a token, as a share of the likeliest one's. 0: all.",
}
SUPPORT = {
    "low": "Lowest value that a categorical loss (hl_gauss, two_hot) expects.",
    "high": "Highest value that a categorical loss expects.",
    "num_bins": "Bins of a categorical loss, padding included.",
    "padding": "Bins beyond low, and as many beyond high, so that targets near an end are not cut off.",
}


def _under(groups: str, fields: dict[str, str]) -> dict[str, str]:
    return {f"{group}.{name}": text for group in groups.split() for name, text in fields.items()}


RUN = {
    "program": "Program under experiments/ that the config is for.",
    "name": "Name of the run. Without --workdir it is written to runs/NAME.",
    "seed": "Seed of parameters, data order and sampling.",
    "mesh": 'Devices, "" is one. Axes with sizes: "data:2,fsdp:4,tensor:2" (rl_jax.core.axis_table); in control '
    '"seeds:2" (the runs) or "envs:8" (each run\'s environments).',
    "init_from": 'Run whose params to start from. A workdir, or RUN/checkpoints/STEP; "": the warm start, if any.',
    "task": "Task: its name and its own keywords (rl_jax.tasks).",
    "task.name": 'Task: prompts, verifier and tokenizer (rl_jax.tasks). One of your own: "module:function".',
    "task.path": "File or folder of the task's records.",
    "task.data_dir": "Folder where data sets are prepared, once.",
    "task.skip_bad_records": "Leave bad records out and count them, instead of stopping. --skip_bad_records sets it.",
    "task.num_operands": "arithmetic: (fewest, most) operands of a sum.",
    "task.digits": "arithmetic: most digits of an operand.",
    "task.operators": 'arithmetic: "+", "-" or "+-".',
    "task.num_train": "arithmetic: distinct problems to train on.",
    "task.num_test": "arithmetic: distinct held-out problems.",
    "task.worked": "arithmetic, game24: demonstrations show their steps.",
    "task.unfinished_share": "arithmetic: share of the demonstrations that stop at a total before the last.",
    "task.max_solutions_per_puzzle": "game24: most demonstrations of one puzzle.",
    "task.max_prompt_tokens": "stories: longest prompt, in tokens; it is the first sentence, or its first words.",
    "task.tokenizer_path": 'Tokenizer file of llama2.c. "" (preferences only): characters; model.path brings its own.',
    "task.alphabet": "preferences: the characters of the tokenizer, where tokenizer_path is empty.",
    "task.sentiment_path": "stories: folder of SST-2, on which the sentiment model (the reward) is trained.",
    "checkpoint.every": "Steps between checkpoints. In control updates, a multiple of log_every.",
    "checkpoint.keep": "How many of the newest checkpoints stay.",
    "checkpoint.keep_every": "Checkpoints at multiples of so many steps stay too. 0: none.",
    "checkpoint.keep_best": "So many of the best by best_metric stay too. 0: none.",
    "checkpoint.best_metric": "Metric of metrics.jsonl that keep_best compares.",
    "checkpoint.best_mode": '"max" or "min" of best_metric is best.',
    "log.progress": "Print a line per step.",
    "log.tensorboard": "Write TensorBoard files to WORKDIR/tb.",
    "log.sample_rows": "Completions written to samples.jsonl per evaluation.",
}
MODEL = {
    "model.path": 'Hugging Face folder: sizes, weights, tokenizer. "": the model that the fields below describe.',
    "model.chat": "Prompts are messages in the chat template of model.path.",
    "model.checkpoint": 'llama2.c file to start from. It gives the sizes; "": random params.',
    "model.lora.rank": "Rank of the LoRA adapters. They are trained in the model's place, heads in full; 0: none.",
    "model.lora.alpha": "Adapters are scaled by alpha / rank.",
    "model.lora.targets": "Pattern of the kernels that get an adapter.",
    "model.lora.variant": '"lora", "rslora" or "dora".',
    "model.embed_dim": "Width of the model.",
    "model.num_layers": "Layers.",
    "model.num_heads": "Query heads.",
    "model.num_kv_heads": "Key and value heads; they divide num_heads.",
    "model.head_dim": "Width of a head, even.",
    "model.mlp_dim": "Inner width of the MLP.",
    "model.tied_head": "The head shares the embedding's weights.",
    "model.rope_theta": "Base of the rotary frequencies.",
    "model.norm_eps": "Epsilon of RMSNorm.",
    "model.dtype": "Type of the matrix products: float32, bfloat16.",
    "model.param_dtype": "Type in which params are stored and trained.",
    "model.remat": 'What the backward pass computes again: "none", "dots", "full" (rl_jax.models.transformer.config).',
    "model.attention": '"dot_product", or "splash", the TPU\'s kernel.',
    "rollout.completion_length": "Longest completion, in tokens.",
    "rollout.prompt_buckets": "Widths that prompts are padded to. The largest is the longest prompt.",
    **_under("rollout eval", SAMPLING),
    "rollout.engine.name": 'Sampler: lockstep, continuous or openai. "lockstep": all rows until the last has ended; '
    '"continuous": slots that are refilled; "openai": a server of vLLM.',
    "rollout.engine.slots": "continuous: rows that are decoded at once. 0: one per completion.",
    "rollout.engine.url": "openai: http://HOST:PORT of the server.",
    "rollout.engine.model": "openai: the name under which the server knows the model.",
    "rollout.engine.timeout_s": "openai: seconds to wait for an answer.",
    "rollout.engine.sync": "openai: (params) -> None hands it the weights (rl_jax.rollout.lm.external). None: never.",
    "rollout.mesh": 'Other layout of the weights to sample in. "": that of `mesh`.',
    "rollout.devices": 'Devices of rollout.mesh: "shared" with the training, or "separate", as many more.',
    "score.chunk": "Columns whose logits are in memory at once when tokens are scored.",
    "packing.mode": "Rows of the forwards: padded, packed or shared_prefix. packed: several sequences per row; "
    "shared_prefix: each prompt once, its completions attend to it.",
    "packing.row_length": "Tokens of a packed row. 0: about two padded rows.",
    "packing.min_rows": "Least packed rows per micro-batch and device. More than needed keeps the shape, and so "
    "saves compilations.",
    "reward.function": 'A reward of your own, "module:function", in place of the task\'s. "": the task\'s.',
    "reward.num_workers": "Processes that run the verifier. 0: this process, without a time limit.",
    "reward.time_limit_s": "Seconds that the verifier may take per completion.",
    "reward.failure_reward": "Reward if the verifier fails or takes too long.",
}
TRAINING = {
    "train.steps": "Steps to train. Each has its own rollouts, if the program samples.",
    "train.batch_size": "Prompts (with their responses) per update.",
    "train.epochs": "Passes over the samples of a step.",
    "train.minibatches": "Updates per pass. They divide the rows of a step; in environments num_envs x num_steps, or "
    "num_envs with a memory.",
    **_under("train sft critic", UPDATE),
    **_under("train.optimizer sft.optimizer critic.optimizer", OPTIMIZER),
    **_under("train sft", {"max_nonfinite_in_a_row": "Stop after so many non-finite gradients in a row."}),
    "train.data_epochs": "Passes over the records, in place of train.steps. 0: train.steps decides.",
    "train.reference_cache": 'Folder of the reference\'s log-probs, kept by model and data. "": WORKDIR/reference.',
    "sft.steps": "Steps of the warm start (SFT). 0: none.",
    "sft.batch_size": "Demonstrations per update of the warm start.",
    "sft.eval_every": "Steps of the warm start between evaluations.",
    "sft.stop_at": "The warm start ends at this pass@1. Above 1: never.",
    "sample.prompts_per_step": "Prompts per step.",
    "sample.group_size": "Completions per prompt.",
    "sample.dynamic_sampling.max_batches": "DAPO: most batches to sample until prompts_per_step groups have rewards "
    "that differ. 1: off.",
    "sample.prompts_per_batch": "Prompts per call of the sampler; they divide prompts_per_step.",
    "sample.share": "Sample from pi^(1 - share) ref^share. 0: the policy; 1: the reference (RSO, EGPO).",
    "sample.opponents.samples": "Further samples per prompt. 0: none.",
    "sample.opponents.share": "The same as sample.share, of these.",
    "sample.opponents.candidates": "They may be chosen, too (XPO). False: they are only compared with (Nash-MD).",
    "sample.data": 'Further candidates from the records. "": none; "completion" (SPIN); "pairs": the two responses of '
    "sample.pairs (HyPO), which are not judged.",
    "sample.pairs": 'Given pairs, where sample.data is "pairs" (rl_jax.preferences).',
    "sample.pairs.name": 'Data set, as data.name; "jsonl" is a file of your own.',
    "sample.pairs.path": "File or folder of the pairs.",
    "sample.missing_eos_penalty": "Taken from the reward of a completion that was cut off.",
    "sample.judge": 'Workdir of the reward model that judges. "": the task\'s verifier.',
    "data": "Preferences to train on (rl_jax.preferences).",
    "data.name": 'Data set; "jsonl" is a file of your own.',
    "data.path": "File of preferences (jsonl), or folder.",
    "data.kind": 'Kind of a record: pairs, rankings or labels. For reward models "steps", too.',
    "data.sort_by_reward": "jsonl rankings: order responses by their rewards. False: another order is an error.",
    "data.test_share": "jsonl: share of the prompts that are held out.",
    "data.skip_bad_records": "Leave bad records out and count them, instead of stopping. --skip_bad_records sets it.",
    "data.data_dir": "Folder where data sets are prepared, once.",
    "encode.truncate": 'A prompt over the largest bucket: "refuse", "left" (keep its end) or "drop".',
    "encode.identical": 'Two responses with the same tokens: "refuse" or "drop".',
    "eval.every": "Steps between evaluations.",
    "eval.num_prompts": "Held-out prompts per evaluation.",
    "eval.samples_per_prompt": "Samples per held-out prompt.",
    "eval.batch_size": "Held-out prompts at once.",
}
POLICY = {
    "algorithm.mask_truncated": "No loss on completions that were cut off (DAPO).",
    "algorithm.shaping": "Rewards to shaped rewards (rl_jax.credit.shaping).",
    "algorithm.reward_kl": "Estimator of the KL in the reward (rl_jax.losses.kl).",
    "algorithm.reward_kl_coef": "Weight of the KL in the reward. 0: none.",
    "algorithm.advantage": "Rewards to advantages (rl_jax.advantages). In environments rl_jax.advantages.steps. PPO has "
    "critic.advantage instead.",
    "algorithm.behavior_weight": "Correction from sampler to trainer (rl_jax.token_weights).",
    "algorithm.token_weight": "Weights of tokens. grpo, ppo: rl_jax.token_weights; dpo, online_dpo: "
    "rl_jax.losses.preference.score_maps.",
    "algorithm.token_selection": 'Tokens that some surrogates treat apart (rl_jax.token_weights). fn "": none.',
    "algorithm.trackers.reward_scale": "Running mean and spread of rewards, for shaping (rl_jax.core.trackers).",
    "algorithm.trackers.baseline": 'Running mean of rewards, for advantages (rl_jax.core.trackers). fn "": none.',
    "algorithm.trackers.reward_kl": 'Moves reward_kl_coef (rl_jax.core.trackers.adaptive_kl). fn "": none.',
    "algorithm.trackers.loss_kl": 'Moves kl_coef (rl_jax.core.trackers.adaptive_kl). fn "": none.',
    "algorithm.trackers.entropy": 'Moves entropy_coef (rl_jax.core.trackers.adaptive_entropy). fn "": none.',
    "algorithm.surrogate": "Policy loss per token or step (rl_jax.losses.policy).",
    "algorithm.kl": "Estimator of the KL in the loss (rl_jax.losses.kl). To the reference; in environments to the "
    "policy before the update.",
    "algorithm.kl_coef": "Weight of the KL in the loss. 0: none.",
    "algorithm.measure_kl": "Log the KL to the reference. False saves its forward if no term needs it.",
    "algorithm.entropy_coef": "Weight of the entropy bonus. 0: none.",
    "algorithm.aggregate": "Token losses to one loss (rl_jax.losses.aggregate). reward_model: the steps of a "
    "solution to its score (rl_jax.credit.process_rewards).",
    "critic.shared": "Value head on the policy's trunk. False: a network of its own, from the same params.",
    "critic.warmup_steps": "First steps, which train the critic only. 0 if it is shared.",
    "critic.advantage": "Rewards and values to advantages (rl_jax.advantages.tokens).",
    "critic.whiten": "Advantages to mean 0 and deviation 1.",
    "critic.bootstrap_truncated": "Returns of a completion that was cut off go on with its last value. False: 0.",
    "critic.loss": "Value loss per token (rl_jax.losses.value).",
    **_under("critic.support algorithm.support", SUPPORT),
    "critic.value_coef": "Weight of the value loss, where the trunk is shared.",
}
PREFERENCES = {
    "algorithm.responses": "Responses per prompt: 2 is pairs. 1: labelled ones; more: rankings.",
    "algorithm.brevity": "Cost of a token, where a method needs other_rewards (MODPO) and the records have none.",
    "algorithm.contrast.better": "T-REG: instruction before the prompt under which good tokens get likelier.",
    "algorithm.contrast.worse": "T-REG: its opposite.",
    "algorithm.reference": 'What the score is compared with. "ref" or "prev" (policy) -> share; empty: nothing.',
    "algorithm.reference.ref": "Share of the reference's log-probs.",
    "algorithm.reference.prev": "Share of the policy's log-probs before the step (online_dpo).",
    "algorithm.length_power": "Scores are divided by length ** length_power. 0: sums; 1: means.",
    "algorithm.score_map": "Map of the score before beta (rl_jax.losses.preference.score_maps).",
    "algorithm.beta": "Strength of the KL to the reference, above 0. reward_model: of an implicit reward.",
    "algorithm.scale": "What moves beta (rl_jax.losses.preference.scales).",
    "algorithm.offset": "Added to scores (rl_jax.losses.preference.offsets).",
    "algorithm.compare": "Scores to margins (rl_jax.losses.preference.compare).",
    "algorithm.link": "Margin to loss (rl_jax.losses.preference.links).",
    "algorithm.weight": "Weights of prompts (rl_jax.losses.preference.prompt_weights).",
    "algorithm.regularizer": "Further loss term. dpo, online_dpo: rl_jax.losses.preference.regularizers; reward_model: "
    "rl_jax.losses.reward_model.rankings.",
    "algorithm.regularizer_coef": "Weight of algorithm.regularizer. 0: none.",
    "algorithm.batch_stats": "Statistics of a whole batch (rl_jax.losses.preference.batch_stats).",
    "algorithm.candidate_value": "Rewards to values (rl_jax.selection.candidate_values).",
    "algorithm.pair_selection": "Which candidates are compared (rl_jax.selection.pair_selection).",
    "algorithm.reference_schedule": "When the reference moves (rl_jax.selection.reference_policy).",
    "algorithm.extragradient": "EGPO: a trial step, then the real one against where it led.",
    "algorithm.reference_soup.init_from": 'SALSA: run that is mixed into the first reference. "": none.',
    "algorithm.reference_soup.weight": "Share of that run's params.",
    "algorithm.reads": 'What the loss reads of a response. "response": its last token; "steps": the last one of each '
    'step; "log_ratio": no head, an implicit reward.',
    "algorithm.loss": "Reward model's loss (rl_jax.losses.reward_model).",
    "algorithm.members": "Heads of an ensemble over one trunk.",
    "algorithm.combine": "Members to one reward, where it is used (rl_jax.credit.ensembles).",
    "algorithm.standardize": "Members to mean 0 and deviation 1 before they are combined.",
    "algorithm.attribute_weights": "What each attribute adds to the reward, of the loss `attributes`.",
    "benchmarks.names": "Data to evaluate on at the end, of benchmarks.sets.",
    "benchmarks.sets": "Name -> keywords of rl_jax.preferences.load.",
    "best_of_n.split": "Split of the task's prompts.",
    "best_of_n.num_prompts": "Prompts to sample for.",
    "best_of_n.samples": "Samples per prompt.",
    "best_of_n.sizes": "The n of best-of-n, none above best_of_n.samples.",
    "best_of_n.batch_size": "Prompts at once.",
    "best_of_n.proxies": 'Workdirs of reward models, with commas. "": the verifier chooses.',
    "best_of_n.combine": "Several proxies to one (rl_jax.credit.ensembles).",
    "best_of_n.label_noise": "Share of prompts with reversed grades. Of rankings.jsonl, which it writes.",
    "frontier.title": "Title of the picture.",
    "frontier.points": "Measurements of an arm, evenly spaced.",
    "frontier.budgets": "KL budgets of the table, in nats per sequence.",
    "frontier.best_of": "n of the reference's best-of-n.",
    "frontier.arms": "Arms that are run, in this order.",
    "arms": "Name -> method, setting, program, and the fields that differ.",
    "programs": "Fields of the arms that sample for themselves, by program.",
}

FIELDS = RUN | MODEL | TRAINING | POLICY | PREFERENCES | CONTROL
FIELDS |= _under("fit.optimizer", {"learning_rate": "Learning rate of Adam."} | ADAM)


def describe(name: str) -> str | None:
    """The description of a field; within an open group or one with `fn`, the group's; None for an unknown one."""
    while name not in FIELDS and "." in name:
        name = name.rpartition(".")[0]
    return FIELDS.get(name)


def summary(name: str) -> str:
    """The first sentence of a field's description, without its full stop; "" for an unknown field."""
    return (describe(name) or "").split(". ")[0].rstrip(".")
