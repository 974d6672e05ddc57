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
    "decay_steps": "Updates of the cosine decay. It follows the warm-up; 0: the rate stays constant.",
    "final_fraction": "Rate at the end of the decay, as a fraction of the peak.",
    "b1": "Adam's decay of the mean of the gradients.",
    "b2": "Adam's decay of the mean of their squares.",
    "eps": "Adam's epsilon, added to the root of the mean square.",
    "weight_decay": "AdamW's decoupled weight decay, per update times the rate. 0: none.",
}
ADAM = {name: OPTIMIZER[name] for name in ("b1", "b2", "eps")}
UPDATE = {
    "micro_batches": "Gradient-accumulation parts of an update. The result is the same; must divide its rows.",
    "max_grad_norm": "Global norm to clip gradients to. inf: never.",
}
SAMPLING = {
    "temperature": "Sampling temperature, above 0. For greedy decoding set top_k=1.",
    "top_k": "Sample among this many likeliest tokens. 0: all.",
    "top_p": "Sample among the likeliest tokens of this mass. 1.0: all.",
    "min_p": "Lowest probability of a token, as a fraction of the likeliest one's. 0: all.",
}
SUPPORT = {
    "low": "Lowest value of a categorical loss (hl_gauss, two_hot).",
    "high": "Highest value of a categorical loss.",
    "num_bins": "Bins of a categorical loss, padding included.",
    "padding": "Extra bins below low and above high, so that targets near an end are not cut off.",
}


def _under(groups: str, fields: dict[str, str]) -> dict[str, str]:
    return {f"{group}.{name}": text for group in groups.split() for name, text in fields.items()}


RUN = {
    "program": "Program under experiments/ that runs the config.",
    "name": "Name of the run. Without --workdir it is written to runs/NAME.",
    "seed": "Seed of parameters, data order and sampling.",
    "mesh": 'Device mesh; "" is one device. Axes with sizes: "data:2,fsdp:4,tensor:2" (rl_jax.core.axis_table); in '
    'control "seeds:2" (the runs) or "envs:8" (each run\'s environments).',
    "init_from": 'Run to take the initial params from. A workdir, or RUN/checkpoints/STEP; "": the warm start, if any.',
    "task": "Task: its name and its own keywords (rl_jax.tasks).",
    "task.name": 'Task: prompts, verifier and tokenizer (rl_jax.tasks). Your own: "module:function".',
    "task.path": "File or folder of the task's records.",
    "task.data_dir": "Folder of the prepared data sets.",
    "task.skip_bad_records": "Skip and count bad records instead of stopping. --skip_bad_records sets it.",
    "task.num_operands": "arithmetic: (fewest, most) operands of a sum.",
    "task.digits": "arithmetic: maximum number of digits of an operand.",
    "task.operators": 'arithmetic: "+", "-" or "+-".',
    "task.num_train": "arithmetic: distinct problems to train on.",
    "task.num_test": "arithmetic: distinct held-out problems.",
    "task.worked": "arithmetic, game24: demonstrations show their steps.",
    "task.unfinished_share": "arithmetic: fraction of the demonstrations that stop before the last total.",
    "task.max_solutions_per_puzzle": "game24: maximum number of demonstrations per puzzle.",
    "task.max_prompt_tokens": "stories: longest prompt, in tokens: the first sentence of a story, or its first words.",
    "task.tokenizer_path": 'Tokenizer file of llama2.c. "" (preferences only): characters; model.path brings its own.',
    "task.alphabet": "preferences: the characters of the tokenizer if tokenizer_path is empty.",
    "task.sentiment_path": "stories: folder of SST-2, on which the sentiment model (the reward) is trained.",
    "checkpoint.every": "Steps between checkpoints. In control: updates, a multiple of log_every.",
    "checkpoint.keep": "Number of newest checkpoints to keep.",
    "checkpoint.keep_every": "Also keep checkpoints at multiples of this many steps. 0: none.",
    "checkpoint.keep_best": "Also keep this many of the best by best_metric. 0: none.",
    "checkpoint.best_metric": "Metric of metrics.jsonl for keep_best.",
    "checkpoint.best_mode": 'Whether the "max" or the "min" of best_metric is best.',
    "log.progress": "Print progress.",
    "log.tensorboard": "Write TensorBoard files to WORKDIR/tb.",
    "log.sample_rows": "Completions written to samples.jsonl per evaluation.",
}
MODEL = {
    "model.path": 'Hugging Face folder: sizes, weights, tokenizer. "": the model that the fields below describe.',
    "model.chat": "Put prompts into the chat template of model.path.",
    "model.checkpoint": 'llama2.c file to start from. It gives the sizes; "": random params.',
    "model.lora.rank": "Rank of the LoRA adapters. They are trained instead of the model, heads in full; 0: none.",
    "model.lora.alpha": "Adapters are scaled by alpha / rank.",
    "model.lora.targets": "Regular expression of the kernels that get an adapter.",
    "model.lora.variant": '"lora", "rslora" or "dora".',
    "model.embed_dim": "Width of the model.",
    "model.num_layers": "Number of layers.",
    "model.num_heads": "Number of query heads.",
    "model.num_kv_heads": "Number of key and value heads; must divide num_heads.",
    "model.head_dim": "Width of a head; must be even.",
    "model.mlp_dim": "Inner width of the MLP.",
    "model.tied_head": "Share the embedding's weights with the output head.",
    "model.rope_theta": "Base of the rotary frequencies.",
    "model.norm_eps": "Epsilon of RMSNorm.",
    "model.dtype": "Dtype of the matrix products: float32, bfloat16.",
    "model.param_dtype": "Dtype in which params are stored and trained.",
    "model.remat": 'What the backward pass recomputes: "none", "dots", "full" (rl_jax.models.transformer.config).',
    "model.attention": 'Attention: "dot_product", or "splash" (a TPU kernel).',
    "rollout.completion_length": "Longest completion, in tokens.",
    "rollout.prompt_buckets": "Lengths that prompts are padded to. The largest is the longest prompt.",
    **_under("rollout eval", SAMPLING),
    "rollout.engine.name": 'Sampler: lockstep, continuous or openai. "lockstep": a batch runs until its last row '
    'has ended; "continuous": slots are refilled; "openai": a vLLM server.',
    "rollout.engine.slots": "continuous: rows decoded at the same time. 0: one per completion.",
    "rollout.engine.url": "openai: address of the server, http://HOST:PORT.",
    "rollout.engine.model": "openai: the server's name for the model.",
    "rollout.engine.timeout_s": "openai: seconds to wait for an answer.",
    "rollout.engine.sync": "openai: function that sends the params to it (rl_jax.rollout.lm.external). None: never.",
    "rollout.mesh": 'Mesh for sampling, if it differs from `mesh`. "": the same.',
    "rollout.devices": 'Devices of rollout.mesh: "shared" with training, or "separate" (additional ones).',
    "score.chunk": "Token columns whose logits are in memory at the same time in scoring.",
    "packing.mode": "Layout of the rows: padded, packed or shared_prefix. packed: several sequences per row; "
    "shared_prefix: each prompt once, its completions attend to it.",
    "packing.row_length": "Tokens per packed row. 0: about two padded rows.",
    "packing.min_rows": "Minimum of packed rows per micro-batch and device. More than needed keeps the shape constant, "
    "which saves compilations.",
    "reward.function": 'Your own reward, "module:function", instead of the task\'s. "": the task\'s.',
    "reward.num_workers": "Processes that run the verifier. 0: this process, without a time limit.",
    "reward.time_limit_s": "Time limit of the verifier per completion. In seconds.",
    "reward.failure_reward": "Reward of a completion if the verifier fails or takes too long.",
}
TRAINING = {
    "train.steps": "Training steps. Each has its own rollouts if the program samples.",
    "train.batch_size": "Prompts (with their responses) per update.",
    "train.epochs": "Passes over a step's samples.",
    "train.minibatches": "Updates per pass. Must divide the rows of a step; in environments num_envs x num_steps, or "
    "num_envs with a memory.",
    **_under("train sft critic", UPDATE),
    **_under("train.optimizer sft.optimizer critic.optimizer", OPTIMIZER),
    **_under("train sft", {"max_nonfinite_in_a_row": "Stop after this many non-finite gradients in a row."}),
    "train.data_epochs": "Passes over the records, instead of train.steps. 0: use train.steps.",
    "train.reference_cache": 'Folder of cached reference log-probs, keyed by model and data. "": WORKDIR/reference.',
    "sft.steps": "Steps of the warm start (SFT). 0: none.",
    "sft.batch_size": "Demonstrations per update of the warm start.",
    "sft.eval_every": "Steps of the warm start between evaluations.",
    "sft.stop_at": "Pass@1 at which the warm start ends early. Above 1: never.",
    "sample.prompts_per_step": "Prompts per step.",
    "sample.group_size": "Completions per prompt.",
    "sample.dynamic_sampling.max_batches": "DAPO: maximum number of batches to sample until prompts_per_step groups "
    "have differing rewards. 1: off.",
    "sample.prompts_per_batch": "Prompts per call of the sampler; must divide prompts_per_step.",
    "sample.share": "Sample from pi^(1 - share) ref^share. 0: the policy; 1: the reference (RSO, EGPO).",
    "sample.opponents.samples": "Further samples per prompt. 0: none.",
    "sample.opponents.share": "Like sample.share, but for these.",
    "sample.opponents.candidates": "Let them be selected, too (XPO). False: they are only compared with (Nash-MD).",
    "sample.data": 'Further candidates from the records. "": none; "completion" (SPIN); "pairs": the two responses of '
    "sample.pairs (HyPO), which are not scored.",
    "sample.pairs": 'Given pairs if sample.data is "pairs" (rl_jax.preferences).',
    "sample.pairs.name": 'Data set, like data.name; "jsonl" is your own file.',
    "sample.pairs.path": "File or folder of the pairs.",
    "sample.missing_eos_penalty": "Penalty subtracted from the reward of a truncated completion.",
    "sample.judge": 'Workdir of the reward model to score with. "": the task\'s verifier.',
    "data": "Preferences to train on (rl_jax.preferences).",
    "data.name": 'Data set; "jsonl" is your own file.',
    "data.path": "File of preferences (jsonl), or folder.",
    "data.kind": 'Kind of the records: pairs, rankings or labels. For reward models also "steps".',
    "data.sort_by_reward": "jsonl rankings: sort responses by their rewards. False: an unsorted record is an error.",
    "data.test_share": "jsonl: fraction of the prompts that is held out.",
    "data.skip_bad_records": "Skip and count bad records instead of stopping. --skip_bad_records sets it.",
    "data.data_dir": "Folder of the prepared data sets.",
    "encode.truncate": 'For a prompt over the largest bucket: "refuse", "left" (keep its end) or "drop".',
    "encode.identical": 'For two responses with the same tokens: "refuse" or "drop".',
    "eval.every": "Steps between evaluations.",
    "eval.num_prompts": "Held-out prompts per evaluation.",
    "eval.samples_per_prompt": "Samples per held-out prompt.",
    "eval.batch_size": "Held-out prompts per batch.",
}
POLICY = {
    "algorithm.mask_truncated": "Leave truncated completions out of the loss (DAPO).",
    "algorithm.shaping": "Rewards to shaped rewards (rl_jax.credit.shaping).",
    "algorithm.reward_kl": "Estimator of the KL in the reward (rl_jax.losses.kl).",
    "algorithm.reward_kl_coef": "Weight of the KL in the reward. 0: none.",
    "algorithm.advantage": "Rewards to advantages (rl_jax.advantages). In environments rl_jax.advantages.steps. PPO "
    "has critic.advantage instead.",
    "algorithm.behavior_weight": "Correction from sampler to trainer (rl_jax.token_weights).",
    "algorithm.token_weight": "Weights of tokens. grpo, ppo: rl_jax.token_weights; dpo, online_dpo: "
    "rl_jax.losses.preference.score_maps.",
    "algorithm.token_selection": 'Tokens that some surrogates treat differently (rl_jax.token_weights). fn "": none.',
    "algorithm.trackers.reward_scale": "Running mean and deviation of rewards, for shaping (rl_jax.core.trackers).",
    "algorithm.trackers.baseline": 'Running mean of rewards, for advantages (rl_jax.core.trackers). fn "": none.',
    "algorithm.trackers.reward_kl": 'Controller of reward_kl_coef (rl_jax.core.trackers.adaptive_kl). fn "": none.',
    "algorithm.trackers.loss_kl": 'Controller of kl_coef (rl_jax.core.trackers.adaptive_kl). fn "": none.',
    "algorithm.trackers.entropy": 'Controller of entropy_coef (rl_jax.core.trackers.adaptive_entropy). fn "": none.',
    "algorithm.surrogate": "Policy loss per token or step (rl_jax.losses.policy).",
    "algorithm.kl": "Estimator of the KL in the loss (rl_jax.losses.kl). To the reference; in environments to the "
    "policy before the update.",
    "algorithm.kl_coef": "Weight of the KL in the loss. 0: none.",
    "algorithm.measure_kl": "Log the KL to the reference. False saves a forward pass if no term needs it.",
    "algorithm.entropy_coef": "Weight of the entropy bonus. 0: none.",
    "algorithm.aggregate": "Token losses to one loss (rl_jax.losses.aggregate). reward_model: step scores of a "
    "solution to one score (rl_jax.credit.process_rewards).",
    "critic.shared": "Value head on the policy's trunk. False: a separate network with the same initial params.",
    "critic.warmup_steps": "Steps at the start that train the critic only. Must be 0 if it is shared.",
    "critic.advantage": "Rewards and values to advantages (rl_jax.advantages.tokens).",
    "critic.whiten": "Normalize advantages to mean 0 and deviation 1.",
    "critic.bootstrap_truncated": "Bootstrap truncated completions with the critic's value. False: with 0.",
    "critic.loss": "Value loss per token (rl_jax.losses.value).",
    **_under("critic.support algorithm.support", SUPPORT),
    "critic.value_coef": "Weight of the value loss if the trunk is shared.",
}
PREFERENCES = {
    "algorithm.responses": "Responses per prompt: 2 for pairs. 1: labelled ones; more: rankings.",
    "algorithm.brevity": "Cost per token, if a method needs other_rewards (MODPO) and the records have none.",
    "algorithm.contrast.better": "T-REG: instruction before the prompt that makes good tokens more likely.",
    "algorithm.contrast.worse": "T-REG: the opposite instruction.",
    "algorithm.reference": 'Policies that the score is compared with. "ref" or "prev" -> share; empty: none.',
    "algorithm.reference.ref": "Share of the reference's log-probs.",
    "algorithm.reference.prev": "Share of the policy's log-probs before the step (online_dpo).",
    "algorithm.length_power": "Scores are divided by length ** length_power. 0: sums; 1: means.",
    "algorithm.score_map": "Map of the score before beta (rl_jax.losses.preference.score_maps).",
    "algorithm.beta": "Strength of the KL to the reference, above 0. reward_model: of an implicit reward.",
    "algorithm.scale": "Schedule or rule for beta (rl_jax.losses.preference.scales).",
    "algorithm.offset": "Offset added to scores (rl_jax.losses.preference.offsets).",
    "algorithm.compare": "Scores to margins (rl_jax.losses.preference.compare).",
    "algorithm.link": "Margin to loss (rl_jax.losses.preference.links).",
    "algorithm.weight": "Weights of prompts (rl_jax.losses.preference.prompt_weights).",
    "algorithm.regularizer": "Additional loss term. dpo, online_dpo: rl_jax.losses.preference.regularizers; "
    "reward_model: rl_jax.losses.reward_model.rankings.",
    "algorithm.regularizer_coef": "Weight of algorithm.regularizer. 0: none.",
    "algorithm.batch_stats": "Statistics of a whole batch (rl_jax.losses.preference.batch_stats).",
    "algorithm.candidate_value": "Rewards to values (rl_jax.selection.candidate_values).",
    "algorithm.pair_selection": "Which candidates are compared (rl_jax.selection.pair_selection).",
    "algorithm.reference_schedule": "When the reference is updated (rl_jax.selection.reference_policy).",
    "algorithm.extragradient": "EGPO: look ahead one step, then update from the original point.",
    "algorithm.reference_soup.init_from": 'SALSA: run to average into the initial reference. "": none.',
    "algorithm.reference_soup.weight": "Weight of that run's params.",
    "algorithm.reads": 'Where the loss reads a response. "response": at its last token; "steps": at the last token of '
    'each step; "log_ratio": no head, an implicit reward.',
    "algorithm.loss": "Reward model's loss (rl_jax.losses.reward_model).",
    "algorithm.members": "Number of heads (an ensemble) on one trunk.",
    "algorithm.combine": "How the members give one reward when the model is used (rl_jax.credit.ensembles).",
    "algorithm.standardize": "Standardize each member (mean 0, deviation 1) before combining them.",
    "algorithm.attribute_weights": "Loss `attributes`: weight of each attribute in the reward.",
    "benchmarks.names": "Names of benchmarks.sets to evaluate on.",
    "benchmarks.sets": "Name -> keywords of rl_jax.preferences.load.",
    "best_of_n.split": "Split of the task's prompts.",
    "best_of_n.num_prompts": "Prompts to sample for.",
    "best_of_n.samples": "Samples per prompt.",
    "best_of_n.sizes": "Values of n in best-of-n, at most best_of_n.samples.",
    "best_of_n.batch_size": "Prompts per batch.",
    "best_of_n.proxies": 'Workdirs of reward models, separated by commas. "": the verifier chooses.',
    "best_of_n.combine": "How several proxies give one reward (rl_jax.credit.ensembles).",
    "best_of_n.label_noise": "Fraction of prompts with reversed grades. In the rankings.jsonl that is written.",
    "frontier.title": "Title of the picture.",
    "frontier.points": "Evenly spaced measurements per arm.",
    "frontier.budgets": "KL budgets of the table, in nats per sequence.",
    "frontier.best_of": "n for best-of-n of the reference.",
    "frontier.arms": "Arms to run, in this order.",
    "arms": "Name -> method, setting, program, and changed fields.",
    "programs": "Fields of the online arms, by program.",
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
