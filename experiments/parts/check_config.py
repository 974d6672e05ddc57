"""Checks a config before anything is loaded or compiled: `check` names each wrong field and its valid range."""

import functools
import importlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from experiments.parts import check_compose, check_fields, foreign_rule
from rl_jax.core.binding import bind, resolve
from rl_jax.rewards.terms import load_terms

FOLDER = "FOLDER"  # the placeholder for model.path in configs that need a pretrained model
_KL, _LOSS = "rl_jax.losses.kl", "rl_jax.losses.policy"
_PROMPTS = {"sample.prompts": "rl_jax.experience.sources"}
_REWARD = {"reward.compose": "rl_jax.rewards.compose", "rollout.engine.sync": "rl_jax.rollout.lm.weight_sync"}
_POLICY = (
    _PROMPTS
    | _REWARD
    | {
        "algorithm.shaping": "rl_jax.credit.shaping",
        "algorithm.reward_kl": _KL,
        "algorithm.advantage": "rl_jax.advantages",
        "algorithm.behavior_weight": "rl_jax.token_weights",
        "algorithm.token_weight": "rl_jax.token_weights",
        "algorithm.token_selection": "rl_jax.token_weights",
        "algorithm.entropy_weight": "rl_jax.token_weights",
        "algorithm.row_selection": "rl_jax.selection.rows",
        "algorithm.surrogate": _LOSS,
        "algorithm.kl": _KL,
        "algorithm.aggregate": "rl_jax.losses.aggregate",
        "algorithm.entropy_aggregate": "rl_jax.losses.aggregate",
        "algorithm.reference_schedule": "rl_jax.selection.reference_policy",
        **{
            f"algorithm.trackers.{place}": "rl_jax.core.trackers"
            for place in ("reward_scale", "baseline", "reward_kl", "loss_kl", "entropy")
        },
    }
)
_PREFERENCES = _REWARD | {
    "algorithm.token_weight": "rl_jax.losses.preference.score_maps",
    "algorithm.score_map": "rl_jax.losses.preference.score_maps",
    "algorithm.scale": "rl_jax.losses.preference.scales",
    "algorithm.offset": "rl_jax.losses.preference.offsets",
    "algorithm.compare": "rl_jax.losses.preference.compare",
    "algorithm.link": "rl_jax.losses.preference.links",
    "algorithm.weight": "rl_jax.losses.preference.prompt_weights",
    "algorithm.regularizer": "rl_jax.losses.preference.regularizers",
    "algorithm.batch_stats": "rl_jax.losses.preference.batch_stats",
}
_ONLINE = (
    _PREFERENCES
    | _PROMPTS
    | {
        "algorithm.candidate_value": "rl_jax.selection.candidate_values",
        "algorithm.pair_selection": "rl_jax.selection.pair_selection",
        "algorithm.reference_schedule": "rl_jax.selection.reference_policy",
    }
)
_CONTROL = {
    "algorithm.updater": "rl_jax.control",
    "algorithm.advantage": "rl_jax.advantages.steps",
    "algorithm.surrogate": _LOSS,
    "algorithm.kl": _KL,
    "algorithm.kl_control": "rl_jax.core.trackers",
    "algorithm.relabel": "rl_jax.control.relabelling",
    "algorithm.auxiliary": "rl_jax.control.auxiliary",
    "algorithm.value_loss": "rl_jax.losses.value",
    "network.distribution": "rl_jax.models.agents.distributions",
}
_AGENT = {"agent.env": "rl_jax.envs.text", "agent.branching": "rl_jax.experience.branching"}
# config.program -> field -> module of the functions that the field names.
FUNCTIONS = {
    "grpo": _POLICY,
    "grpo_async": _POLICY,
    "agents": _POLICY | _AGENT,
    "masked_diffusion": _PROMPTS | _REWARD | {"algorithm.advantage": "rl_jax.advantages"},
    "ppo": {name: module for name, module in _POLICY.items() if name != "algorithm.advantage"}
    | _AGENT
    | {"critic.advantage": "rl_jax.advantages.tokens", "critic.loss": "rl_jax.losses.value"},
    "dpo": _PREFERENCES,
    "online_dpo": _ONLINE,
    "frontier": _ONLINE,
    "reward_model": _REWARD
    | {
        "algorithm.loss": "rl_jax.losses.reward_model",
        "algorithm.regularizer": "rl_jax.losses.reward_model.rankings",
        "algorithm.combine": "rl_jax.credit.ensembles",
        "algorithm.aggregate": "rl_jax.credit.process_rewards",
    },
    "best_of_n": _REWARD | {"best_of_n.combine": "rl_jax.credit.ensembles"},
    "control.ppo": _CONTROL,
    "control.replay": {
        "algorithm.method": "rl_jax.control.replay_methods",
        "algorithm.head": "rl_jax.losses.value_heads",
    },
    "control.preferences": _CONTROL
    | {
        "reward.loss": "rl_jax.losses.reward_model",
        "reward.regularizer": "rl_jax.losses.reward_model.rankings",
        "spo.preference": "rl_jax.control.duels",
    },
    "control.offline": {"algorithm": "rl_jax.control.offline", "labels.picture": "rl_jax.envs.pictures"},
    "control.asynchronous": {
        name: module
        for name, module in _CONTROL.items()
        if name.rpartition(".")[2] not in ("updater", "kl_control", "relabel", "auxiliary")
    },
}
OPTIMIZERS = dict.fromkeys(
    (f"{group}.optimizer.rule" for group in ("train", "sft", "critic")), "rl_jax.training.optimizers"
) | {"sft.loss": "rl_jax.losses.one_token", "sft.prompts": "rl_jax.experience.sources"}
OPTIONAL = (  # fn "" means none
    "agent.branching",
    *("rollout.engine.sync", "algorithm.token_selection", "algorithm.row_selection", "algorithm.trackers"),
    "algorithm.entropy_weight",
    "algorithm.entropy_aggregate",
    "algorithm.kl_control",
    "algorithm.relabel",
    "agent.branching",
    "algorithm.auxiliary",
    "sft.loss",
    "sft.prompts",
)

# (endings of dotted names, test of the value, the test in words). nan passes none of them.
RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("learning_rate", lambda x: 0 < x < math.inf, "a number above 0"),
    ("max_grad_norm", lambda x: x > 0, "above 0 (inf never scales a gradient)"),
    ("train.steps sft.steps data_epochs warmup_steps hold_steps decay_steps", lambda x: x >= 0, "0 or more"),
    ("optimizer.decay", lambda x: x in ("cosine", "linear", "sqrt"), "cosine, linear or sqrt"),
    (
        "epochs minibatches micro_batches group_size batch_size prompts_per_step prompts_per_batch max_batches "
        "sft.eval_every checkpoint.every log_every eval.num_prompts samples_per_prompt "
        "total_steps num_envs num_steps num_seeds rollout.completion_length score.chunk best_of_n.samples "
        "action_mask.min_tokens action_mask.every",
        lambda x: x >= 1,
        "1 or more",
    ),
    ("kl_coef reward_kl_coef ptx.coef value_coef weight_decay", lambda x: 0 <= x < math.inf, "0 or more"),
    ("entropy_coef", math.isfinite, "a number"),
    ("clip_high value_clip", lambda x: x >= 0, "0 or more: a distance from 1, or from the old value"),
    ("discount lam", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("algorithm.beta", lambda x: 0 < x < math.inf, "a number above 0"),
    ("reward.time_limit_s engine.timeout_s", lambda x: x > 0, "above 0 seconds"),
    ("flow.eta flow.age flow.max_running flow.train_ticks flow.decode_steps", lambda x: x >= 0, "0 or more"),
    ("flow.timeout_s", lambda x: x > 0, "above 0 seconds"),
    ("flow.order", lambda x: x in ("ready", "oldest", "drop"), "ready, oldest or drop"),
    ("flow.schedule", lambda x: x in ("counted", "free"), "counted or free"),
    ("flow.in_flight", lambda x: x in ("interrupt", "drain", "keep"), "interrupt, drain or keep"),
    ("reward.memory_gb", lambda x: x > 0, "above 0 GiB (inf: no limit)"),
    ("reward.failure_reward", math.isfinite, "a number"),
    ("reward.num_workers eval.num_episodes lora.rank engine.slots", lambda x: x >= 0, "0 or more"),
    ("rollout.window algorithm.mirror_step", lambda x: x >= 0, "0 (off) or more"),
    ("rollout.temperature eval.temperature", lambda x: 1e-6 <= x <= 1e6, "above 0; for greedy decoding set top_k=1"),
    ("reward.all_failed", lambda x: x in ("stop", "count"), '"stop" or "count"'),
    ("top_k", lambda x: x >= 0, "0 (all tokens) or more"),
    ("top_p", lambda x: 0 < x <= 1, "above 0, and 1 (all tokens) at most"),
    ("min_p sample.share opponents.share perception.share", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("eval.every", lambda x: x >= 0, "0 (only before and after) or more"),
    ("peak_flops", lambda x: 0 <= x < math.inf, "0 or more FLOP/s"),
    ("profile_steps", lambda x: not x or (len(x) == 2 and 1 <= x[0] <= x[1]), "two steps in order, as in (3, 5)"),
    ("print_completions sample_rows", lambda x: x >= 0, "0 (none) or more"),
    ("wandb.mode", lambda x: x in ("offline", "online", "disabled"), "offline, online or disabled"),
    ("rollout.long_prompts", lambda x: x in ("stop", "drop", "cut"), "stop, drop or cut"),
    ("eval.completion_length", lambda x: x >= 0, "0 (that of rollout) or more"),
    ("repetition_penalty", lambda x: 0 < x < math.inf, "above 0; 1.0 changes nothing"),
    ("stop_strings ignore_fields", lambda x: _are_texts(x), "a tuple of texts, none empty, as in ('###',)"),
    ("rollout.prompt_buckets", lambda x: len(x) > 0 and min(x) >= 1, "widths of 1 or more, as in (16, 32)"),
)
# Checked elsewhere.
OUTSIDE = (
    *("task.", "env.", "agent.env.", "data.", "reward.terms.", "judge.", "foreign.", "schedules."),
    *("arms.", "programs.", "benchmarks."),
)


def check(config: ConfigDict) -> None:
    """Checks what can be known about a config before it runs.

    Args:
      config: of a program. If it has no field `program`, its functions and divisions are not checked.

    Raises:
      ValueError: one line per wrong field, with its dotted name, its value and what it must be.
    """
    problems = [*_ranges(config), *_missing(config), *check_fields.pipes(dict(leaves(config)))]
    problems += [] if problems else check_fields.between(_inside(config), RULES)
    # jax is imported for the fields that need it: a second of each start of a sweep whose configs have none of them.
    if "schedules" in config:
        from experiments.parts import schedules, window_rule

        problems += [*schedules.problems(config), *foreign_rule.problems(config), *window_rule.problems(config)]
    divisions = _divisions(config) if not problems else ()  # a count of 0 divides nothing
    if "rollout" in config:
        from experiments.parts import quantized

        problems += quantized.problems(config)
    problems += [*_functions(config), *_terms(config), *_judges(config), *divisions]
    problems += [] if problems else _meshes(config)
    if problems:
        raise ValueError("\n".join(problems))


def get(config: ConfigDict, name: str) -> Any:
    """The value of a dotted name; None if there is none."""
    for part in name.split("."):
        if not isinstance(config, ConfigDict) or part not in config:
            return None
        config = config[part]
    return config


def literal(name: str, spec: dict[str, Any]) -> str:
    """The argument that replaces a group of fields as a whole, quoted for a shell."""
    text = repr(spec)
    quoted = f'"{text}"' if not set('"$`\\!') & set(text) else "'" + text.replace("'", "'\\''") + "'"
    return f"--config.{name}={quoted}"


def leaves(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every field, including the keywords of functions."""
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _ranges(config: ConfigDict) -> Iterator[str]:
    for name, value in leaves(config):
        if name.startswith(OUTSIDE) or value is None:
            continue
        for ends, allowed, words in _rules().get(name.rpartition(".")[2], ()):
            if f".{name}".endswith(ends) and not _holds(allowed, value):
                yield f"{name}={value!r} must be {words}"
        if name.endswith(".clip_low"):
            yield from _clip_low(config, name, value)


@functools.cache
def _rules() -> dict[str, list[tuple[tuple[str, ...], Callable[[Any], bool], str]]]:
    """The rules by the last part of a field's name: each program starts with a check of hundreds of fields."""
    result = {}
    for ends, allowed, words in (*RULES, *check_fields.RULES):
        of_last = {}
        for end in ends.split():
            of_last.setdefault(end.rpartition(".")[2], []).append(f".{end}")
        for last, found in of_last.items():
            result.setdefault(last, []).append((tuple(found), allowed, words))
    return result


def _inside(config: ConfigDict) -> dict[str, Any]:
    return {name: value for name, value in leaves(config) if not name.startswith(OUTSIDE)}


def _are_texts(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(text, str) and text for text in value)


def _holds(allowed: Callable[[Any], bool], value: Any) -> bool:
    try:
        return allowed(value)
    except (TypeError, ValueError, OverflowError):  # a text instead of a number; nan or inf instead of a count
        return False


def _clip_low(config: ConfigDict, name: str, value: float) -> Iterator[str]:
    """Ratios are at least 0, so clip_low above 1 sets no bound. Only R1's setting, 10 on both sides, may do so."""
    high = get(config, f"{name.removesuffix('.clip_low')}.clip_high")
    if not _holds(lambda x: x >= 0 and (x <= 1 or (high is not None and high >= x)), value):
        yield f"{name}={value!r} must be from 0 to 1: a distance from 1, not a ratio"


def _missing(config: ConfigDict) -> Iterator[str]:
    if (own := get(config, "task.name") == "records") and not (get(config, "task.path") or get(config, "task.sources")):
        yield (
            "task.path: give --config.task.path=PROMPTS.jsonl, a JSON object per line with `prompt` (a text or chat "
            "messages) and, for a reward that compares with it, `answer`; generated sums: --config.task.path=EXAMPLE"
        )
    if get(config, "model.path") == FOLDER and not os.path.isdir(FOLDER):
        yield (
            "model.path: give --config.model.path=FOLDER, a Hugging Face folder with config.json, *.safetensors and "
            "tokenizer.json, or --config.model.path=hf://ORG/NAME@REVISION"
            + ("; or --config=configs/task.py:scratch" if own else "")
        )
    for group, read in (("data", True), ("sample.pairs", get(config, "sample.data") == "pairs")):
        if read and get(config, f"{group}.name") == "jsonl" and not get(config, f"{group}.path"):
            yield f"{group}.path is empty: give --config.{group}.path=PAIRS.jsonl, a JSON object per line"


def _meshes(config: ConfigDict) -> Iterator[str]:
    if get(config, "rollout.mesh") is not None:
        from experiments.parts import rollout_mesh

        try:
            rollout_mesh.mesh_sizes(config)
        except ValueError as error:
            yield str(error)


def _divisions(config: ConfigDict) -> Iterator[str]:
    def has(name: str) -> bool:
        return get(config, name) is not None

    if not has("program"):  # part of a config
        return
    if get(config, "score.micro_batches") not in (None, 1) and config.program not in SCORES_IN_PARTS:
        count, program = config.score.micro_batches, config.program
        yield f"score.micro_batches={count}: experiments.{program} scores all rows at once, set it to 1"
    if has("train.minibatches") and has("sample.group_size"):
        counts = [("sample.prompts_per_step", "sample.group_size"), ("train.minibatches",), ("train.micro_batches",)]
        yield from _divide(config, *counts)
        yield from _divide(config, counts[0], ("score.micro_batches",))
        if has("critic") and not config.critic.shared:
            yield from _divide(config, *counts[:2], ("critic.micro_batches",))
    if has("train.batch_size"):
        yield from _divide(config, ("train.batch_size",), ("train.micro_batches",))
    if has("sample.prompts_per_batch"):
        yield from _divide(config, ("sample.prompts_per_step",), ("sample.prompts_per_batch",))
    if get(config, "sft.steps"):
        yield from _divide(config, ("sft.batch_size",), ("sft.micro_batches",))
    if has("sample.num_envs") and get(config, "preferences.method") in (None, "reward", "spo"):
        whole_rows = config.network.kind != "mlp"  # of an agent with memory
        steps = ("sample.num_envs",) if whole_rows else ("sample.num_envs", "sample.num_steps")
        yield from _divide(config, steps, ("train.minibatches",))
    if has("best_of_n") and max(config.best_of_n.sizes) > config.best_of_n.samples:
        yield f"best_of_n.sizes={config.best_of_n.sizes} must be at most best_of_n.samples={config.best_of_n.samples}"


def _divide(config: ConfigDict, *counts: tuple[str, ...]) -> Iterator[str]:
    """Divides the product of the first names by that of each following group in turn. Absent fields count as 1."""
    rows, *parts = [math.prod(get(config, name) or 1 for name in names) for names in counts]
    left = rows
    for number in parts:
        if left % number:
            whole, *others = [" x ".join(f"{name}={get(config, name)}" for name in names) for names in counts]
            total = f" ({rows} rows)" if len(counts[0]) > 1 else ""
            yield f"{whole}{total} must be a multiple of {' x '.join(others)}"
            return
        left //= number


def _terms(config: ConfigDict) -> Iterator[str]:
    """Terms of the task's own reward are checked with the task, those of a judge with the judge."""
    spec = get(config, "reward.terms")
    others = {name: fields for name, fields in (spec.to_dict() if spec else {}).items() if name not in config.judge}
    named = dict(others)
    others = {name: fields for name, fields in others.items() if get(spec, f"{name}.fn") != "task"}
    if named and get(config, "reward.function") and others == named:
        yield (
            f"reward.function={config.reward.function!r} is in none of reward.terms: name it there, as fn='task' or by "
            "its import path, or leave it empty"
        )
    try:
        load_terms(others, resolve)
    except ValueError as error:
        yield str(error)
        return
    if judges := get(config, "judge"):
        named = (named or {"task": {}}) | judges.to_dict()
    composed = get(config, "reward.compose")
    composition = composed.to_dict() if composed else {"fn": "weighted_sum"}
    if named:
        weights = {name: fields.get("weight", 1.0) for name, fields in named.items() if isinstance(fields, dict)}
        yield from check_compose.problems(composition, weights)
    elif composition != {"fn": "weighted_sum"}:
        yield (
            f"reward.compose={composition}: there are no reward.terms, so nothing is composed: name the task's own "
            "reward there, as reward.terms=task"
        )


TRAINS_JUDGES = ("grpo", "ppo", "online_dpo")  # the programs
SCORES_IN_PARTS = ("grpo", "grpo_async", "ppo", "agents")  # the programs


def _retrained(config: ConfigDict) -> Iterator[str]:
    """Judges that are to learn where nothing teaches them."""
    program, given = get(config, "program"), get(config, "sample.data") == "pairs"
    for name in config.judge:
        every = get(config.judge, f"{name}.retrain_every")
        if every and (program not in TRAINS_JUDGES or given):
            why = "sample.data='pairs' judges nothing" if given else f"experiments.{program} trains no judge"
            yield f"judge.{name}.retrain_every={every!r}: {why}; leave it at 0 (it is for {', '.join(TRAINS_JUDGES)})"


def _judges(config: ConfigDict) -> Iterator[str]:
    if get(config, "judge"):
        yield from _retrained(config)
        table = importlib.import_module("experiments.parts.judges.table")  # imports jax
        try:
            table.check(config.judge.to_dict(), config.reward.terms.to_dict())
        except ValueError as error:
            yield str(error)


def _functions(config: ConfigDict) -> Iterator[str]:
    for name, module in (FUNCTIONS.get(get(config, "program"), {}) | OPTIMIZERS).items():
        spec = get(config, name)
        if spec is None or (name.startswith(OPTIONAL) and get(config, f"{name}.fn") == ""):
            continue
        spec = spec.to_dict() if isinstance(spec, ConfigDict) else spec
        try:
            bind(spec, importlib.import_module(module))
        except ValueError as error:
            hint = ""
            if "takes no keyword" in str(error):
                mine = literal(name, {"fn": spec["fn"]})
                hint = f". A group with `fn` is replaced as a whole: {mine} takes that function's defaults"
            yield f"{name}: {error}{hint}"
