"""Suggestions for config fields that do not exist.

Looks for renamed fields, names of other frameworks, the same word in another group, misspellings, and keywords of a
function that the config does not set.
"""

import ast
import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import fields
from experiments.parts import check_config
from rl_jax import preferences
from rl_jax.core.binding import public_functions

NEAR = 0.75  # difflib's ratio above which a keyword counts as a misspelling
FAR = 0.6  # the same for a field, in any group
METHOD = ("algorithm", "train", "sample")  # the likeliest groups
GROUPS = (*METHOD, "rollout", "model", "eval", "critic", "sft")  # nearest first
RENAMED = {  # fields of older configs whose last word changed, too
    "grpo.selection": "algorithm.token_selection",
    "online.value": "algorithm.candidate_value",
    "online.selection": "algorithm.pair_selection",
    "online.schedule": "algorithm.reference_schedule",
    "online.soup": "algorithm.reference_soup",
    "sample.judge": "judge",
    "dpo.epochs": "train.data_epochs",
    "algorithm.advantage": "critic.advantage",  # where there is a critic
}
_ADVANTAGE = "algorithm.advantage critic.advantage"
_RATE = "optimizer.learning_rate"
_CLIP = "surrogate.clip_low surrogate.clip_high algorithm.surrogate"
_KL = "algorithm.beta algorithm.kl_coef algorithm.reward_kl_coef"
_PROMPTS = "train.batch_size sample.prompts_per_step fit.batch_size"
_MICRO = "train.micro_batches"
_MINI = "train.minibatches"
_EPOCHS = "train.epochs train.data_epochs"
_STEPS = "train.steps train.total_steps"
_GROUP = "sample.group_size best_of_n.samples"
_LENGTH = "rollout.completion_length"
_EVAL, _SAVE = "eval.every log_every", "checkpoint.every"
_LOSS = "algorithm.surrogate algorithm.link algorithm.loss"
# A word of TRL, verl, OpenRLHF, Tunix, CleanRL, PureJaxRL or Stable Baselines 3 -> ends of names here, likeliest first.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "actor_lr", "policy_lr", "peak_lr", "step_size"), _RATE),
    **dict.fromkeys(("critic_lr", "vf_lr", "value_lr"), f"critic.{_RATE}"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "lr_warmup_steps", "warmup_ratio"), "optimizer.warmup_steps"),
    **dict.fromkeys(("lr_scheduler_type", "lr_schedule"), "optimizer.decay optimizer.decay_steps"),
    **dict.fromkeys(("lr_decay_steps",), "optimizer.decay_steps"),
    **dict.fromkeys(("optim", "optimizer_name", "optimizer_type"), "optimizer.rule"),
    **dict.fromkeys(("anneal_lr", "min_lr", "min_lr_ratio", "end_lr"), "optimizer.final_fraction"),
    **dict.fromkeys(("adam_beta1", "beta1"), "optimizer.b1"),
    **dict.fromkeys(("adam_beta2", "beta2"), "optimizer.b2"),
    **dict.fromkeys(("adam_epsilon", "adam_eps"), "optimizer.eps"),
    **dict.fromkeys(("wd", "l2"), "optimizer.weight_decay"),
    **dict.fromkeys(("grad_clip", "clip_grad", "max_norm", "gradient_clipping", "clip_grad_norm"), "max_grad_norm"),
    **dict.fromkeys(("batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size"), _PROMPTS),
    **dict.fromkeys(("num_prompts", "num_unique_prompts_rollout"), "sample.prompts_per_step eval.num_prompts"),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps", "grad_accum", "micro_batch_size"), _MICRO),
    **dict.fromkeys(("num_minibatches", "num_mini_batches", "mini_batch_size", "ppo_mini_batch_size"), _MINI),
    **dict.fromkeys(("ppo_epochs", "num_epochs", "n_epochs", "update_epochs", "num_ppo_epochs", "mu"), _EPOCHS),
    **dict.fromkeys(("num_iterations", "num_train_epochs"), _EPOCHS),
    **dict.fromkeys(("steps", "max_steps", "num_steps", "total_training_steps", "num_updates", "iterations"), _STEPS),
    **dict.fromkeys(("total_timesteps", "timesteps", "total_env_steps"), "train.total_steps train.steps"),
    **dict.fromkeys(("n_steps", "rollout_length", "unroll_length", "num_rollout_steps"), "num_steps"),
    **dict.fromkeys(("n_envs", "num_environments", "num_workers"), "num_envs reward.num_workers"),
    **dict.fromkeys(("env_id", "env_name"), "env.name"),
    **dict.fromkeys(("num_generations", "n", "g", "rollout_n", "n_samples_per_prompt", "num_samples"), _GROUP),
    **dict.fromkeys(("num_samples_per_prompt", "samples_per_prompt", "num_return_sequences"), _GROUP),
    **dict.fromkeys(("max_new_tokens", "max_completion_length", "max_tokens", "response_length"), _LENGTH),
    **dict.fromkeys(("max_response_length", "max_length", "total_generation_steps"), _LENGTH),
    **dict.fromkeys(("max_prompt_length", "prompt_length"), "rollout.prompt_buckets"),
    **dict.fromkeys(("temp",), "rollout.temperature eval.temperature"),
    **dict.fromkeys(("vllm_mode", "use_vllm", "vllm"), "rollout.engine.name"),
    **dict.fromkeys(("clip_eps", "epsilon", "cliprange", "clip_range", "clip_ratio", "clip_coef"), _CLIP),
    **dict.fromkeys(("eps_clip", "clip", "clip_epsilon"), _CLIP),
    **dict.fromkeys(("epsilon_low", "clip_ratio_low", "eps_clip_low"), "surrogate.clip_low"),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high", "clip_higher", "eps_clip_high"), "surrogate.clip_high"),
    **dict.fromkeys(("cliprange_value", "vf_clip", "clip_vloss", "vf_clip_param"), "loss.value_clip value_clip"),
    **dict.fromkeys(("beta", "kl_beta", "kl_loss_coef", "init_kl_coef", "kl_penalty", "kl_weight"), _KL),
    **dict.fromkeys(("kl_coeff", "kl_ctl"), _KL),
    **dict.fromkeys(("vf_coef", "value_loss_coef", "critic_coef"), "value_coef"),
    **dict.fromkeys(("ent_coef", "entropy_coeff", "entropy_bonus", "entropy_beta", "entropy"), "entropy_coef"),
    **dict.fromkeys(("gamma", "discount_factor"), "advantage.discount fit.discount"),
    **dict.fromkeys(("lam", "lambda", "gae_lambda", "lambd"), "advantage.lam"),
    **dict.fromkeys(("norm_adv", "whiten_advantages", "normalize_advantage", "whiten_rewards"), "whiten"),
    **dict.fromkeys(("normalize_obs", "norm_obs"), "normalize_observations"),
    **dict.fromkeys(("norm_reward", "normalize_reward", "reward_scaling"), "normalize_rewards algorithm.shaping"),
    **dict.fromkeys(("adv_estimator", "advantage_estimator", "scale_rewards"), _ADVANTAGE),
    **dict.fromkeys(("loss_type", "policy_loss", "loss_fn"), _LOSS),
    **dict.fromkeys(("loss_agg_mode", "loss_aggregation"), "algorithm.aggregate"),
    **dict.fromkeys(("mask_truncated_completions", "overlong_filter"), "algorithm.mask_truncated"),
    **dict.fromkeys(("label_smoothing",), "algorithm.link"),
    **dict.fromkeys(("importance_sampling_level", "ratio_type"), "algorithm.surrogate"),
    **dict.fromkeys(("model_name", "model_name_or_path", "model_path", "pretrained", "model_id"), "model.path"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "model.remat"),
    **dict.fromkeys(("bf16", "fp16", "precision", "torch_dtype"), "model.dtype"),
    **dict.fromkeys(("attn_implementation", "flash_attention"), "model.attention"),
    **dict.fromkeys(("lora_r", "lora_rank", "r"), "model.lora.rank"),
    **dict.fromkeys(("lora_alpha",), "model.lora.alpha"),
    **dict.fromkeys(("target_modules", "lora_target_modules"), "model.lora.targets"),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), "model.embed_dim network.hidden"),
    **dict.fromkeys(("n_layer", "n_layers"), "model.num_layers"),
    **dict.fromkeys(("n_head", "n_heads"), "model.num_heads"),
    **dict.fromkeys(("intermediate_size", "d_ff"), "model.mlp_dim"),
    **dict.fromkeys(("eval_steps", "eval_interval", "eval_freq", "test_freq", "eval_every"), _EVAL),
    **dict.fromkeys(("logging_steps", "log_interval", "log_freq"), "log_every"),
    **dict.fromkeys(("save_steps", "save_freq", "save_interval", "checkpoint_interval", "save_every"), _SAVE),
    **dict.fromkeys(("save_total_limit", "max_to_keep"), "checkpoint.keep"),
    **dict.fromkeys(("dataset", "dataset_name", "train_files", "data_path"), "data.path task.path task.name"),
    **dict.fromkeys(("prompt_key", "input_key", "prompt_column", "text_column"), "task.prompt"),
    **dict.fromkeys(("label_key", "answer_key", "ground_truth_key"), "task.answer"),
    **dict.fromkeys(("eval_dataset", "val_files", "test_files"), "task.test_path"),
    **dict.fromkeys(("system_prompt",), "task.system"),
    **dict.fromkeys(("chat_template_kwargs", "apply_chat_template_kwargs"), "model.template"),
    **dict.fromkeys(("apply_chat_template",), "model.chat"),
    **dict.fromkeys(("reward_fn", "reward_funcs", "reward_function", "verifier"), "reward.function"),
    **dict.fromkeys(("reward_model_path", "reward_model"), "judge best_of_n.proxies"),
    **dict.fromkeys(("ref_model", "reference_model"), "algorithm.reference init_from"),
    **dict.fromkeys(("resume_from_checkpoint", "checkpoint_path", "load_path"), "init_from"),
    **dict.fromkeys(("tensor_parallel_size", "tp", "n_gpus_per_node", "num_devices", "devices", "dp", "fsdp"), "mesh"),
    **dict.fromkeys(("report_to", "use_wandb", "logger", "track"), "log.tensorboard log.wandb.project"),
    **dict.fromkeys(("project_name", "wandb_project"), "log.wandb.project"),
    **dict.fromkeys(("log_completions", "num_completions_to_print", "log_val_generations"), "log.print_completions"),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words"), "rollout.stop_strings eval.stop_strings"),
    **dict.fromkeys(("num_generations_eval",), "eval.samples_per_prompt"),
    **dict.fromkeys(("hub_model_id", "revision", "model_revision"), "model.path"),
}


def nearest_field(
    config: ConfigDict, dotted: str, value: str | None = None, given: Mapping[str, str | None] = {}
) -> str:
    """What to write instead of a field that a config does not have.

    Args:
      config: the config.
      dotted: the name that it does not have.
      value: the text that it was set to, repeated in the advice.
      given: all overrides of the command line, by dotted name.

    Returns:
      One line: the field's name, and the nearest field, or how to pass another keyword to its group.
    """
    start, dotted = f"there is no field config.{dotted}", _moved(config, dotted)
    group, _, key = dotted.rpartition(".")
    inside = check_config.get(config, group) if group else None
    names = list(_names(config))
    if inside is not None and not isinstance(inside, ConfigDict):
        return f"{start}: config.{group} is a value, {show(inside)}, not a group"
    if dotted in names:
        result = [dotted]
    elif inside is not None and ("fn" in inside or group in fields.OPEN):
        near = difflib.get_close_matches(key, inside, 1, NEAR)
        result = [f"{group}.{near[0]}"] if near else _by_other_name(names, dotted, within=group)
        if not result:
            return f"{start}. {_whole_group(config, group, key, value, given)}"
    else:
        result = _candidates(names, dotted)
    if not result:
        return f"{start}. Its groups and fields: {', '.join(config)}; --help shows the main fields"
    first, *others = result
    top = f"{dotted.partition('.')[0]}."
    if first.startswith(top):  # the named group has one
        others = [name for name in others if name.startswith(top)]
    more = f", or {', '.join(others[:3])}" if others else ""
    return f"{start}; the nearest is {_advice(config, first, value)}{more}"


def _advice(config: ConfigDict, name: str, value: str | None) -> str:
    """The argument that sets a field, its current value, and its summary."""
    now, parent = check_config.get(config, name), check_config.get(config, name.rpartition(".")[0])
    if isinstance(now, ConfigDict) and not now:
        entry = repr({"NAME": {"fn": "..."}})
        return f'--config.{name}="{entry}", a table that is empty now. {fields.summary(name)}'
    if isinstance(now, ConfigDict) and "fn" not in now:
        return f"the group config.{name}, which has {', '.join(now)}"
    of_function = isinstance(parent, ConfigDict) and "fn" in parent
    said = "" if of_function else fields.summary(name)
    argument = f"--config.{name}{'.fn' if isinstance(now, ConfigDict) else ''}={'VALUE' if value is None else value}"
    return f"{argument} (now {show(now)}{f'; {said[0].lower()}{said[1:]}' if said else ''})"


def _moved(config: ConfigDict, dotted: str) -> str:
    """The name in its new group, if its first word is no group: grpo.surrogate.fn -> algorithm.surrogate.fn."""
    for old, new in RENAMED.items():
        if f"{dotted}.".startswith(f"{old}.") and check_config.get(config, new) is not None:
            return new + dotted.removeprefix(old)
    first, _, rest = dotted.partition(".")
    if first in config or not rest:
        return dotted
    for group in METHOD:
        if check_config.get(config, f"{group}.{rest}") is not None:
            return f"{group}.{rest}"
        if "." in rest and check_config.get(config, f"{group}.{rest.rpartition('.')[0]}") is not None:
            return f"{group}.{rest}"
    return dotted


def _names(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    """The dotted names of fields and of groups."""
    for name, value in config.items():
        yield prefix + name
        if isinstance(value, ConfigDict):
            yield from _names(value, f"{prefix}{name}.")


def _candidates(names: list[str], dotted: str) -> list[str]:
    """The fields that a name may mean, likeliest first.

    They have the same word in another group, another framework's name for it, or a similar spelling.
    """
    last = dotted.rpartition(".")[2]
    same = [name for name in names if name.rpartition(".")[2] == last != "fn"]
    method = [name for name in same if name.partition(".")[0] in METHOD]
    result = _ordered(method, dotted) or _by_other_name(names, dotted) or _ordered(same, dotted)
    if result:
        return result
    scores = {name: 0.7 * ratio(last, name.rpartition(".")[2]) + 0.3 * ratio(dotted, name) for name in names}
    best = max(scores.values(), default=0.0)
    return [name for name in sorted(names, key=scores.__getitem__, reverse=True) if scores[name] >= max(best, FAR)]


def _by_other_name(names: list[str], dotted: str, within: str = "") -> list[str]:
    """The fields that other frameworks call by the last word of `dotted`, restricted to those below `within`."""
    ends = OTHER_NAMES.get(dotted.rpartition(".")[2].lower(), "").split()
    if within:
        ends = [end.rpartition(".")[2] for end in ends]
        return [f"{within}.{end}" for end in ends if f"{within}.{end}" in names]
    result = [_ordered([name for name in names if f".{name}".endswith(f".{end}")], dotted) for end in ends]
    return _ordered(list(dict.fromkeys(name for part in result for name in part)), dotted, keep=True)


def _ordered(names: list[str], dotted: str, keep: bool = False) -> list[str]:
    """Fields in the named group first; then by GROUPS, or in their given order if `keep`."""
    top = dotted.partition(".")[0]

    def rank(name: str) -> tuple[bool, int]:
        group = name.partition(".")[0]
        return group != top, 0 if keep else GROUPS.index(group) if group in GROUPS else len(GROUPS)

    return sorted(names, key=rank)


def _whole_group(config: ConfigDict, group: str, key: str, value: str | None, given: Mapping[str, str | None]) -> str:
    """How to pass a keyword that a function's group does not have yet: replace the group as a whole."""
    spec = check_config.get(config, group).to_dict()
    if group == "data" and (said := _of_a_file(spec, key, value)):
        return said
    if group in fields.OPEN:
        has = ", ".join(spec) or "nothing"
        spec |= {name.rpartition(".")[2]: _typed(x) for name, x in given.items() if name.rpartition(".")[0] == group}
        return (
            f"config.{group} has {has}, keywords of {fields.OPEN[group]}; to add one, set the whole group: "
            f"{check_config.literal(group, spec | {key: _typed(value)})}"
        )
    module = check_config.FUNCTIONS.get(config.get("program", ""), {}).get(group)
    functions = public_functions(importlib.import_module(module)) if module else {}
    known = {name: _keywords(fn) for name, fn in functions.items()}
    takers = sorted((name for name, words in known.items() if key in words), key=lambda name: (len(known[name]), name))
    named = given.get(f"{group}.fn") or spec["fn"]
    if known and not takers:
        takes = f"; {named} takes {', '.join(known[named]) or 'none'}" if named in known else ""
        return f"No function of {module} has a keyword {key}{takes}"
    chosen = named if named in takers or not takers else takers[0]
    kept = {name: x for name, x in spec.items() if name != "fn" and name in known.get(chosen, spec)}
    who = f"; of {module} {', '.join(takers)} take{'s' * (len(takers) == 1)} {key}" if chosen != named else ""
    example = ", as in" if chosen != named and len(takers) > 1 else ":"
    return (
        f"config.{group} is {show(check_config.get(config, group))}{who}. A group with `fn` is replaced as a whole"
        f"{example} {check_config.literal(group, {'fn': chosen} | kept | {key: _typed(value)})}"
    )


def _of_a_file(spec: dict[str, Any], key: str, value: str | None) -> str:
    """How to give a keyword of one's own file where config.data generates preferences; "" if it is none of these."""
    takes, given = (inspect.signature(preferences.LOADERS[name]).parameters for name in ("generated", "given"))
    if spec.get("name") != "generated" or key in takes or key not in given:
        return ""
    kept = {name: x for name, x in spec.items() if name in given}
    return (
        f"config.data is name='generated', which takes no {key}; files of yours are name='given', as in "
        "--config=configs/preferences/reward_models.py:given; in another config: "
        f"{check_config.literal('data', {'name': 'given'} | kept | {key: _typed(value)})}"
    )


def _keywords(fn: Any) -> list[str]:
    """The keywords with a default: those that a config can set."""
    parameters = inspect.signature(fn).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]


def _typed(value: str | None) -> Any:
    try:
        return ast.literal_eval(value or "...")
    except (SyntaxError, ValueError):
        return value


def ratio(a: str, b: str) -> float:
    """How alike two words are, from 0 to 1."""
    return difflib.SequenceMatcher(None, a, b).ratio()


def show(value: Any) -> str:
    """A field's value for people: functions as calls, texts without quotes."""
    if isinstance(value, ConfigDict) and "fn" in value:
        keywords = ", ".join(f"{name}={show(x)}" for name, x in value.items() if name != "fn")
        name = getattr(value.fn, "__qualname__", value.fn) or '""'
        return f"{name}({keywords})" if keywords else str(name)
    if isinstance(value, ConfigDict):
        return repr(value.to_dict())
    return (value or '""') if isinstance(value, str) else repr(value)
