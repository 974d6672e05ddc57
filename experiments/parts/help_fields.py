"""The fields that the `--help` of each program shows."""

LANGUAGE = ("grpo", "grpo_async", "agents", "ppo", "dpo", "online_dpo", "reward_model", "best_of_n", "sft", "evaluate")
TAKES = {"sft": LANGUAGE, "evaluate": LANGUAGE}  # programs that run other programs' configs
_START = "task.name task.path model.path model.lora.rank init_from sft.steps"
_ROLLOUTS = "sample.prompts_per_step sample.group_size rollout.completion_length rollout.temperature"
_AGENT = "agent.env agent.max_turns agent.max_turn_tokens agent.max_tokens agent.max_context agent.overflow"
_ENGINE = " rollout.engine.name reward.time_limit_s"
_LOSS = (
    "algorithm.surrogate algorithm.aggregate algorithm.kl_coef algorithm.reward_kl_coef algorithm.entropy_coef "
    "algorithm.mask_truncated"
)
_DPO = (
    "algorithm.beta algorithm.link algorithm.compare algorithm.reference algorithm.regularizer_coef algorithm.responses"
)
_TRAIN = (
    "train.steps train.batch_size train.data_epochs train.epochs train.minibatches train.micro_batches "
    "train.max_grad_norm train.optimizer.learning_rate train.optimizer.warmup_steps train.optimizer.decay_steps"
)
_CRITIC = "critic.shared critic.advantage critic.loss critic.warmup_steps critic.optimizer.learning_rate"
_END = "eval.every eval.num_prompts checkpoint.every mesh seed"
_DATA = "data.name data.path data.kind rollout.prompt_buckets rollout.completion_length"
_CONTROL = (
    "env.name sample.num_envs sample.num_steps train.total_steps num_seeds mesh seed",
    "network.kind network.hidden network.activation",
    "algorithm.advantage algorithm.surrogate algorithm.value_loss algorithm.entropy_coef algorithm.kl_coef "
    "algorithm.normalize_observations algorithm.normalize_rewards train.epochs train.minibatches train.max_grad_norm "
    "train.optimizer.learning_rate",
)
_CONTROL_END = "log_every eval.num_episodes eval.max_steps checkpoint.every"
# program -> the fields that `--help` shows, in groups; fields that a config lacks are left out.
MAIN: dict[str, tuple[str, ...]] = {
    "grpo": (_START, _ROLLOUTS + _ENGINE, "algorithm.shaping algorithm.advantage " + _LOSS, _TRAIN, _END),
    "grpo_async": (
        _START,
        "flow.eta flow.age flow.schedule flow.in_flight",
        _ROLLOUTS,
        "algorithm.advantage algorithm.behavior_weight algorithm.surrogate algorithm.aggregate",
        _TRAIN,
        _END,
    ),
    "agents": (
        _START,
        _AGENT,
        _ROLLOUTS,
        "algorithm.advantage " + _LOSS,
        _TRAIN,
        _END,
    ),
    "ppo": (_START, _AGENT, _ROLLOUTS, _LOSS, _CRITIC, _TRAIN, _END),
    "dpo": (_START, _DATA, _DPO + " algorithm.batch_stats", _TRAIN, _END),
    "online_dpo": (_START, _ROLLOUTS + " judge", _DPO + " algorithm.pair_selection", _TRAIN, _END),
    "reward_model": (
        "model.path model.checkpoint model.lora.rank init_from " + _DATA,
        "algorithm.reads algorithm.responses algorithm.loss algorithm.members algorithm.regularizer_coef",
        _TRAIN,
        _END + " benchmarks.names",
    ),
    "sft": (
        "task.name task.path model.path model.lora.rank rollout.prompt_buckets rollout.completion_length",
        "sft.steps sft.batch_size sft.micro_batches sft.max_grad_norm sft.eval_every sft.stop_at "
        "sft.optimizer.learning_rate sft.optimizer.warmup_steps sft.optimizer.decay_steps",
        "eval.num_prompts checkpoint.every mesh seed",
    ),
    "evaluate": (
        "task.name task.path model.path init_from rollout.prompt_buckets rollout.completion_length",
        "eval.num_prompts eval.samples_per_prompt eval.batch_size eval.temperature eval.top_k eval.top_p",
        "reward.num_workers reward.time_limit_s mesh seed",
    ),
    "best_of_n": (
        "task.name task.path model.path model.checkpoint init_from rollout.completion_length rollout.temperature",
        "best_of_n.num_prompts best_of_n.samples best_of_n.sizes best_of_n.batch_size best_of_n.proxies "
        "best_of_n.combine best_of_n.label_noise",
        "mesh seed",
    ),
    "masked_diffusion": (
        "task.name init_from sft.steps sft.stop_at",
        _ROLLOUTS + " denoise.steps denoise.block_length denoise.order",
        "algorithm.objective algorithm.samples algorithm.masking algorithm.advantage "
        "hints.on hints.low hints.high hints.replaced hints.entropy_share",
        _TRAIN,
        _END,
    ),
    "control.ppo": (*_CONTROL, _CONTROL_END),
    "control.replay": (
        "env.name sample.num_envs sample.num_steps train.total_steps num_seeds mesh seed",
        "replay.capacity replay.warmup replay.batch_size network.hidden network.members",
        "algorithm.method algorithm.head algorithm.discount algorithm.n_step algorithm.tau algorithm.target_every "
        "train.gradient_steps train.actor_every train.optimizer.learning_rate",
        _CONTROL_END,
    ),
    "control.preferences": (
        "preferences.method env.name sample.num_envs sample.num_steps train.total_steps num_seeds mesh seed",
        "segments.num_pairs segments.length segments.label segments.beta fit.updates fit.batch_size "
        "fit.optimizer.learning_rate reward.members reward.loss cpl.alpha cpl.bias spo.preference spo.queue_size",
        "algorithm.advantage algorithm.surrogate algorithm.entropy_coef train.optimizer.learning_rate",
        _CONTROL_END,
    ),
    "control.asynchronous": (
        "env.name sample.num_envs sample.num_steps train.total_steps seed",
        "actors.count actors.policies actors.kind actors.inference actors.block actors.ring",
        "flow.schedule flow.delay flow.ahead",
        "algorithm.advantage algorithm.surrogate algorithm.entropy_coef train.optimizer.learning_rate",
        "network.hidden " + _CONTROL_END,
    ),
    "control.offline": (
        "env.name algorithm dataset.path dataset.behaviours dataset.shares dataset.num_envs num_seeds mesh seed",
        "network.hidden train.total_steps train.batch_size train.optimizer.learning_rate",
        _CONTROL_END,
    ),
}
