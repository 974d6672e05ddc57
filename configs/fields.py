"""The meaning of the fields of every shipped config, by dotted name: for `--help` and the page of the config files.

The first sentence of each is shown by `--help`, all of it on the page. `describe` finds the text of a field. A group
with a field `fn` names a function; its other fields are that function's keywords, and the group is described as one.
The fields of an OPEN group belong to what its name selects (a task, an environment); the most used ones of the shipped
ones are here too. tests/configs/test_fields.py checks that no field is missing and no entry is left over.
"""

from configs.agents_fields import AGENT
from configs.control.fields import CONTROL
from configs.flow_fields import FLOW
from configs.masked_diffusion_fields import MASKED_DIFFUSION
from configs.preferences.fields import PREFERENCES
from configs.tasks.fields import TASK

OPEN = {  # group -> the function whose keywords its fields are
    "task": "rl_jax.tasks.load",
    "model.template": "the chat template of model.path",
    "env": "rl_jax.envs.load_vector",
    "data": "rl_jax.preferences.load",
    "sample.pairs": "rl_jax.preferences.load",
    "benchmarks.sets": "rl_jax.preferences.load, by name",
    "judge": "experiments.parts.judges, by name",
    "foreign": "experiments.parts.foreign_kinds, by name",
    "schedules": "rl_jax.core.schedules, by name",
    "reward.terms": "the reward terms that are named (rl_jax.rewards.terms)",
    "algorithm.reference": "rl_jax.dpo.Objective.reference",
    "arms": "experiments.frontier",
    "programs": "the configs of the programs that are named",
}

OPTIMIZER = {
    "learning_rate": "Peak learning rate.",
    "rule": "Optimizer: adamw, lion, adafactor, muon, sgd (rl_jax.training.optimizers).",
    "hold_steps": "Updates at the peak rate, between warm-up and decay. 0: none.",
    "decay": 'Shape of the decay: "cosine", "linear" or "sqrt".',
    "warmup_steps": "Updates of linear warm-up. 0: none.",
    "decay_steps": "Updates of the decay. It follows the warm-up; 0: the rate stays constant.",
    "final_fraction": "Rate at the end of the decay, as a fraction of the peak.",
    "b1": "Adam's decay of the mean of the gradients.",
    "b2": "Adam's decay of the mean of their squares.",
    "eps": "Adam's epsilon, added to the root of the mean square.",
    "weight_decay": "AdamW's decoupled weight decay, per update times the rate. 0: none.",
    "decayed": 'What decays: "all", or "matrices", without norms and biases (as transformers\' Trainer).',
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
    "repetition_penalty": "Divides positive logits of tokens of prompt and completion; multiplies others. 1.0: none.",
    "stop_strings": "Texts that end a completion, which keeps them. A tuple, as in ('###',); (): only EOS ends it.",
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
    "checkpoint.every": "Steps between checkpoints. In control: updates, a multiple of log_every.",
    "checkpoint.keep": "Number of newest checkpoints to keep.",
    "checkpoint.keep_every": "Also keep checkpoints at multiples of this many steps. 0: none.",
    "checkpoint.keep_best": "Also keep this many of the best by best_metric. 0: none.",
    "checkpoint.best_metric": 'Metric of metrics.jsonl for keep_best. "": eval/pass@1; without it eval/return, '
    "eval/reward or the accuracy of preferences.",
    "checkpoint.best_mode": 'Whether the "max" or the "min" of best_metric is best.',
    "log.progress": "Print progress.",
    "log.tensorboard": "Write TensorBoard files to WORKDIR/tb.",
    "log.wandb.project": 'Project of Weights & Biases to log to, beside the files of the run. "": none.',
    "log.wandb.mode": '"offline": into WORKDIR/wandb, for `wandb sync`; "online": to wandb\'s server; "disabled".',
    "log.profile_steps": "First and last step to trace, as in (3, 5). jax's profiler writes WORKDIR/profile; (): none.",
    "log.peak_flops": "bfloat16 FLOP/s of one device, for the MFU. 0: by its kind (experiments.parts.peaks).",
    "log.print_completions": "Completions printed per evaluation, of each split. 0: none.",
    "log.sample_rows": "Completions written to samples.jsonl per evaluation.",
}
MODEL = {
    "model.path": 'Hugging Face folder: sizes, weights, tokenizer. Or hf://ORG/NAME@REVISION. "": the fields below.',
    "model.ignore_fields": "Unknown fields of model.path's config.json that change nothing, as in ('made_by',).",
    "model.chat": "Put prompts that are texts into the chat template of model.path. Chats always are.",
    "model.template": "Arguments of the chat template, as in {'enable_thinking': False}.",
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
    "model.num_experts": "Experts of a mixture in each layer, each an MLP of mlp_dim. 0: one dense MLP.",
    "model.experts_per_token": "How many experts run for a token.",
    "model.qk_norm": "An RMSNorm over each head's query and key. experiments.export takes a mixture only with it.",
    "model.replay_routes": "Scoring and training run the experts that ran in sampling. Not with packed rows.",
    "model.tied_head": "Share the embedding's weights with the output head.",
    "model.rope_theta": "Base of the rotary frequencies.",
    "model.norm_eps": "Epsilon of RMSNorm.",
    "model.dtype": "Dtype of the matrix products: float32, bfloat16, auto. auto: bfloat16 on an accelerator only.",
    "model.param_dtype": "Dtype in which params are stored; what is trained needs float32.",
    "model.remat": 'Recomputed backwards: "none", "dots", "full", "offload" (rl_jax.models.transformer.config).',
    "model.attention": 'Attention: "splash" (a TPU kernel), "cudnn" (a GPU kernel), "dot_product", "auto": what fits. '
    '"ring": keys go around the mesh\'s context axis, for long rows.',
    "rollout.completion_length": "Longest completion, in tokens.",
    "rollout.window": "ppo: tokens of an answer that are sampled per step; the answer goes on in the next. 0: all.",
    "rollout.prompt_buckets": "Lengths that prompts are padded to. The largest is the longest prompt.",
    "rollout.long_prompts": 'Prompts over the largest bucket: "stop" the run, "drop" them, or "cut" to their ends.',
    **_under("rollout eval", SAMPLING),
    "rollout.engine.name": 'Sampler: lockstep, continuous or openai. "lockstep": a batch runs until its last row '
    'has ended; "continuous": slots are refilled; "openai": a vLLM server.',
    "rollout.engine.slots": "continuous: rows decoded at the same time. 0: one per completion.",
    "rollout.engine.url": "openai: address of the server, http://HOST:PORT.",
    "rollout.engine.model": "openai: the server's name for the model.",
    "rollout.engine.timeout_s": "openai: seconds to wait for an answer.",
    "rollout.engine.sync": 'openai: sends it the params: vllm, sglang (rl_jax.rollout.lm.weight_sync). fn "": never.',
    **_under("rollout", dict(weights='Sampler: "int8", "fp8"; "": as trained.', cache='As weights; "": model.dtype.')),
    "rollout.mesh": 'Mesh for sampling, if it differs from `mesh`. "": the same.',
    "rollout.devices": 'Devices of rollout.mesh: "shared" with training, or "separate" (additional ones).',
    "score.chunk": "Token columns whose logits are in memory at the same time in scoring.",
    "score.micro_batches": "Parts in which a step's rows are scored, one after the other; as train.micro_batches.",
    "packing.mode": "Layout of the rows: padded, packed or shared_prefix. packed: several sequences per row; "
    "shared_prefix: each prompt once, its completions attend to it.",
    "packing.row_length": "Tokens per packed row. 0: two padded rows; shared_prefix: the cheapest for full groups.",
    "packing.min_rows": "Minimum of packed rows per micro-batch and device. More than needed keeps the shape constant, "
    "which saves compilations.",
    "reward.function": 'Your own reward, "module:function", instead of the task\'s. "": the task\'s.',
    "reward.terms": "Several rewards by name, each dict(fn=..., weight=1.0, **keywords). fn: a short name of "
    'rl_jax.rewards.terms, "module:function", or "task". Empty: the task\'s own reward. On a command line also '
    "math,0.2*my_rewards:brief.",
    "judge": "Learned judges by name (experiments.parts.judges). Each dict(fn=..., weight=1.0, **keywords). They are "
    "further terms of the reward, or rewards of tokens.",
    "reward.compose": "From the terms to one reward (rl_jax.rewards.compose).",
    "reward.all_failed": 'If the reward fails on every completion of a batch: "stop", or "count" and go on.',
    "reward.num_workers": "Processes that run the verifier. 0: this process, without a time limit.",
    "reward.time_limit_s": "Time limit of the verifier per completion. In seconds.",
    "reward.memory_gb": "GiB of address space that scoring one completion may take on top of the imports. inf: any.",
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
    "sft.loss": 'Loss of the warm start. "": -log p of the demonstrations, else one of rl_jax.losses.one_token.',
    "sft.prompts": 'Order of the demonstrations, one of experience.sources that learns nothing. "": shuffled epochs.',
    "sft.batch_size": "Demonstrations per update of the warm start.",
    "sft.eval_every": "Steps of the warm start between evaluations.",
    "sft.stop_at": "Pass@1 at which the warm start ends early. Above 1: never.",
    "sample.prompts_per_step": "Prompts per step.",
    "sample.group_size": "Completions per prompt.",
    "sample.dynamic_sampling.max_batches": "DAPO: maximum number of batches to sample until prompts_per_step groups "
    "have differing rewards. 1: off.",
    "sample.prompts": "Which prompts come next: shuffled, by success, in stages, mixtures (rl_jax.experience.sources).",
    "sample.memory.on": "Remember each prompt's visits, success and shortest right answer; they are checkpointed.",
    "sample.memory.last": "Keep a completion of each prompt's last visit; score it again at the next (SPO, a forward).",
    "sample.memory.successes": "Right completions kept per prompt, the newest. 0: none.",
    "sample.references": "Samples of the reference per prompt, to compare rewards with (PAR). 0: none.",
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
    "data": "Preferences to train on (rl_jax.preferences).",
    "data.name": 'Data set; "jsonl" is your own file.',
    "data.path": "Files of preferences. JSONL, Parquet (commas, globs), or a folder.",
    "data.kind": 'Kind of the records: pairs, rankings or labels. For reward models also "steps".',
    "data.columns": "Field -> name of its column, as in {'chosen': 'better'}. Fields: rl_jax.preferences.records.",
    "data.contradictions": 'Pairs that say the opposite of each other: "stop" (an error) or "keep".',
    "data.parts": "mixed: name -> keywords of rl_jax.preferences.load, of each source.",
    "data.leave_out": "mixed: parts that are not trained on, only evaluated on; separated by commas.",
    "data.pairs": "episodes: pairs of turns or of episodes; none: labelled episodes, for SFT.",
    "data.gap": "episodes: least difference of the two returns.",
    "data.least": "episodes: reward from which an episode is a good one.",
    "data.newest": "episodes: how many of the newest recorded steps are read. 0: all.",
    "data.sort_by_reward": "jsonl rankings: sort responses by their rewards. False: an unsorted record is an error.",
    "data.test_share": "jsonl: fraction of the prompts that is held out.",
    "data.skip_bad_records": "Skip and count bad records instead of stopping. --skip_bad_records sets it.",
    "data.data_dir": "Folder of the prepared data sets.",
    "encode.truncate": 'For a prompt over the largest bucket: "refuse", "left" (keep its end) or "drop".',
    "encode.separator": "Text after each step of a solution, which a process reward model reads it at.",
    "encode.identical": 'For two responses with the same tokens: "refuse" or "drop".',
    "eval.every": "Steps between evaluations. 0: only before the first step and after the last.",
    "eval.num_prompts": "Held-out prompts per evaluation.",
    "eval.samples_per_prompt": "Samples per held-out prompt.",
    "eval.batch_size": "Held-out prompts per batch.",
    "eval.completion_length": "Longest completion, in tokens. 0: rollout.completion_length.",
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
    "algorithm.row_selection": 'Rows to train on, by their rewards (rl_jax.selection.rows). fn "": all, once.',
    "algorithm.entropy_weight": 'Entropy bonus of each token (rl_jax.token_weights.forking). fn "": entropy_coef.',
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
    "algorithm.perception.kl_coef": "PAPO (grpo): weight of the KL to the policy that reads a corrupted prompt.",
    "algorithm.perception.share": "Share of the prompt's tokens that are hidden.",
    "algorithm.perception.entropy_coef": "Weight of the entropy that is held down beside it.",
    "algorithm.perception.corrupted_entropy_coef": "The same after the corrupted prompt.",
    "algorithm.mirror_step": "grpo: step size t of mirror descent; the loss has KL(pi || pi_old) / t. 0: none.",
    "algorithm.action_mask.top_p": "NLPO: mass of the mask policy's nucleus; nothing outside is sampled. 1: off.",
    "algorithm.action_mask.min_tokens": "The least number of tokens in a nucleus.",
    "algorithm.action_mask.every": "Steps after which the mask policy becomes the policy.",
    "algorithm.measure_kl": "Log the KL to the reference. False saves a forward pass if no term needs it.",
    "algorithm.entropy_coef": "Weight of the entropy bonus. 0: none.",
    "algorithm.aggregate": "Token losses to one loss (rl_jax.losses.aggregate). reward_model: step scores of a "
    "solution to one score (rl_jax.credit.process_rewards).",
    "algorithm.entropy_aggregate": 'Aggregate of the entropy bonus (rl_jax.losses.aggregate). fn "": that of the loss.',
    "algorithm.reference_schedule": "When the reference is updated (rl_jax.selection.reference_policy).",
    "algorithm.reference_soup.init_from": 'SALSA: run to average into the initial reference. "": none.',
    "algorithm.reference_soup.weight": "Weight of that run's params.",
    "schedules": "Coefficients that change with the step (rl_jax.core.schedules). Name -> dict(field=, fn=, ...).",
    "algorithm.ptx.coef": "PPO-ptx: weight of an SFT loss on demonstrations, one per row. 0: none.",
    "algorithm.ptx.split": "Split of the task with these demonstrations.",
    "critic.init_from": 'Run that the critic starts from: a reward model (with its head), or a policy. "": the policy.',
    "foreign": "Demonstrations, hints, refinements and replay among the rows (experiments.parts.foreign_rows). Name -> "
    "dict(fn=, ...); empty: none.",
    "critic.shared": "Value head on the policy's trunk. False: a separate network with the same initial params.",
    "critic.warmup_steps": "Steps at the start that train the critic only. Must be 0 if it is shared.",
    "critic.offline": "After critic.warmup_steps only the policy learns, from answers that the reference samples.",
    "critic.advantage": "Rewards and values to advantages (rl_jax.advantages.tokens).",
    "critic.whiten": "Normalize advantages to mean 0 and deviation 1.",
    "critic.bootstrap_truncated": "Bootstrap truncated completions with the critic's value. False: with 0.",
    "critic.epochs": "Passes of a separate critic over a step's rows, all but one before the policy's updates.",
    "critic.target_rate": "Share by which the slow copy of critics of turns (archer_td) follows them per step.",
    **_under("critic.replay", dict(steps="Steps whose turns are replayed.", batches="Minibatches a step; 0: none.")),
    "critic.loss": "Value loss per token (rl_jax.losses.value).",
    **_under("critic.support algorithm.support", SUPPORT),
    "critic.support.members": "Critics on one trunk, of which the smallest counts (several_critics:each_two_hot).",
    "critic.value_coef": "Weight of the value loss if the trunk is shared.",
}

FIELDS = RUN | TASK | MODEL | TRAINING | POLICY | AGENT | FLOW | PREFERENCES | CONTROL | MASKED_DIFFUSION
FIELDS |= _under("fit.optimizer", {"learning_rate": "Learning rate of Adam."} | ADAM)


def describe(name: str) -> str | None:
    """The description of a field; within an open group or one with `fn`, the group's; None for an unknown one."""
    while name not in FIELDS and "." in name:
        name = name.rpartition(".")[0]
    return FIELDS.get(name)


def summary(name: str) -> str:
    """The first sentence of a field's description, without its full stop; "" for an unknown field."""
    return (describe(name) or "").split(". ")[0].rstrip(".")
