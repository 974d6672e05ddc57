"""Further rules for the values of a config's fields, as those of experiments.parts.check_config, and between fields."""

import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

COUNT = "1 or more"
NOT_NEGATIVE = "0 or more"


def _choice(*known: str) -> tuple[Callable[[Any], bool], str]:
    shown = [repr(name) for name in known]
    return lambda x: x in known, f"{', '.join(shown[:-1])} or {shown[-1]}"


def _is_count(x: Any) -> bool:
    return x >= 1 and x == int(x)


def _all_counts(x: Any) -> bool:
    return not isinstance(x, str) and all(_is_count(size) for size in x)


# (endings of dotted names, test of the value, the test in words). nan passes none of them.
RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("seed", lambda x: 0 <= x < 2**32, "from 0 to 2**32 - 1"),
    ("optimizer.decayed", *_choice("all", "matrices")),
    ("optimizer.b1 optimizer.b2", lambda x: 0 <= x < 1, "from 0 to below 1"),
    ("optimizer.eps final_fraction length_power brevity", lambda x: 0 <= x < math.inf, NOT_NEGATIVE),
    ("regularizer_coef missing_eos_penalty", lambda x: 0 <= x < math.inf, NOT_NEGATIVE),
    ("failure_reward", math.isfinite, "a number"),
    ("sft.stop_at", lambda x: not math.isnan(x), "a pass@1; above 1 never stops"),
    ("max_nonfinite_in_a_row", _is_count, COUNT),
    ("actors.count actors.policies actors.block actors.ring flow.ahead flow.samplers", _is_count, COUNT),
    ("actors.restarts flow.delay", lambda x: x >= 0 and x == int(x), NOT_NEGATIVE),
    ("actors.timeout_s", lambda x: x > 0, "above 0 seconds"),
    ("actors.kind", *_choice("thread", "process")),
    ("actors.inference", *_choice("remote", "inline")),
    ("checkpoint.keep", lambda x: x >= 1, "1 or more: a run resumes from the newest checkpoint"),
    ("keep_every keep_best", lambda x: x >= 0, "0 (none) or more"),
    ("best_mode", *_choice("max", "min")),
    ("packing.mode", *_choice("padded", "packed", "shared_prefix")),
    ("packing.row_length", lambda x: x >= 0, "0 (chosen by the program) or more"),
    ("packing.min_rows", _is_count, COUNT),
    ("engine.name", *_choice("lockstep", "continuous", "openai")),
    ("rollout.devices", *_choice("shared", "separate")),
    ("encode.truncate", *_choice("refuse", "left", "drop")),
    ("encode.identical", *_choice("refuse", "drop")),
    ("algorithm.responses algorithm.members reward.members", _is_count, COUNT),
    ("algorithm.reads", *_choice("response", "steps", "log_ratio", "user")),
    ("head.layers", _is_count, COUNT),
    ("head.activation", *_choice("none", "tanh", "silu")),
    ("algorithm.samples denoise.steps denoise.block_length hints.min_chunk hints.max_chunk", _is_count, COUNT),
    ("algorithm.objective", *_choice("bgpo", "bgpo_clipped", "elbo", "diffu_grpo")),
    ("algorithm.masking", *_choice("count", "uniform")),
    ("denoise.order", *_choice("confidence", "random")),
    ("hints.low hints.high hints.entropy_share", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("algorithm.prompt_masking", lambda x: 0 <= x < 1, "from 0 to below 1"),
    ("hints.replaced", lambda x: x >= 0 and x == int(x), NOT_NEGATIVE),
    ("support.num_bins", lambda x: x >= 2, "2 or more"),
    ("views.coef meta.step_size", lambda x: 0 <= x < math.inf, NOT_NEGATIVE),
    ("views.rate", lambda x: 0 <= x < 1, "from 0 to below 1"),
    ("views.temperature", lambda x: 0 < x < math.inf, "a number above 0"),
    ("reference_soup.weight best_of_n.label_noise segments.flip_rate", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("sample.references opponents.samples", lambda x: x >= 0, "0 (none) or more"),
    ("best_of_n.sizes", lambda x: len(x) > 0 and _all_counts(x), "counts of 1 or more, as in (1, 2, 4)"),
    ("best_of_n.num_prompts train.data_epochs", lambda x: 0 <= x < math.inf, NOT_NEGATIVE),
    ("model.embed_dim model.num_layers model.num_heads model.num_kv_heads model.head_dim", _is_count, COUNT),
    ("model.mlp_dim", _is_count, COUNT),
    ("model.rope_theta model.norm_eps lora.alpha", lambda x: 0 < x < math.inf, "a number above 0"),
    ("model.dtype", *_choice("auto", "float32", "bfloat16", "float16")),
    ("model.param_dtype", *_choice("float32", "bfloat16", "float16")),
    ("model.remat", *_choice("none", "full", "dots", "offload")),
    ("model.attention", *_choice("auto", "dot_product", "splash", "cudnn", "ring")),
    ("lora.variant", *_choice("lora", "rslora", "dora")),
    # Control.
    ("dataset.layout", *_choice("auto", "rlds", "episodes")),
    ("dataset.episode_length", lambda x: x >= 0 and x == int(x), "0 (not known) or more"),
    ("dataset.last_reward", *_choice("refuse", "keep", "drop")),
    ("network.kind", *_choice("mlp", "gru", "transformer", "denoiser", "windows")),
    ("network.hidden", _all_counts, "a tuple of widths of 1 or more, as in (64, 64)"),
    ("network.width network.context network.heads network.layers env.frame_stack", _is_count, COUNT),
    ("network.channels network.actor_features", lambda x: x >= 0, NOT_NEGATIVE),
    ("spread", *_choice("jit", "pmap")),
    ("group actor_lag eval.max_steps", _is_count, COUNT),
    ("segments.num_pairs segments.length segments.held_out fit.updates spo.queue_size", _is_count, COUNT),
    ("segments.teacher_steps cloning_updates spo.horizon", lambda x: x >= 0, NOT_NEGATIVE),
    ("segments.beta cpl.alpha", lambda x: x > 0, "above 0"),
    ("replay.kept", lambda x: x >= 0, NOT_NEGATIVE),
    ("replay.capacity replay.warmup n_step target_every gradient_steps actor_every network.members", _is_count, COUNT),
    ("replay.tau algorithm.tau", lambda x: 0 < x <= 1, "above 0, and 1 (a copy) at most"),
    ("exploration.initial exploration.final exploration.fraction", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("noise.acting noise.target noise.target_clip priority.exponent", lambda x: x >= 0, NOT_NEGATIVE),
    ("priority.correction", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("priority.floor", lambda x: 0 < x < math.inf, "a number above 0"),
    ("preferences.method", *_choice("reward", "regret", "cpl", "spo")),
)


def between(values: Mapping[str, Any], others: tuple = ()) -> Iterator[str]:
    """What is wrong between fields, one line each, and every nan that no rule speaks of.

    Args:
      values: dotted name -> value.
      others: further rules, as in RULES.
    """

    def of(*names: str) -> list[Any] | None:
        found = [values.get(name) for name in names]
        return None if None in found else found

    for group in ("algorithm", "critic"):
        if (ends := of(f"{group}.support.low", f"{group}.support.high")) and not _below(*ends):
            yield f"{group}.support.low={ends[0]!r} must be below {group}.support.high={ends[1]!r}"
    heads = of("model.num_heads", "model.num_kv_heads", "model.head_dim")
    if heads and not values.get("model.path") and not values.get("model.checkpoint"):
        if heads[0] % heads[1]:
            yield f"model.num_heads={heads[0]} must be a multiple of model.num_kv_heads={heads[1]}"
        if heads[2] % 2:
            yield f"model.head_dim={heads[2]} must be even, for rotary embeddings"
    yield from _around_a_ring(values)
    yield from _without_decay(values)
    if values.get("rollout.engine.name") == "openai" and not values.get("rollout.engine.url"):
        yield (
            "rollout.engine.url is empty: rollout.engine.name=openai needs a server, "
            "--config.rollout.engine.url=http://HOST:PORT"
        )
    best = of("checkpoint.keep_best", "checkpoint.best_mode", "checkpoint.best_metric")
    if best and best[0] and best[1:] == ["min", ""]:
        yield "checkpoint.best_mode='min' needs checkpoint.best_metric: without it a reward counts, or a share"
    counts = of("checkpoint.every", "log_every")
    if counts and counts[0] % counts[1]:
        yield f"checkpoint.every={counts[0]} must be a multiple of log_every={counts[1]}"
    members = of("algorithm.members", "algorithm.reads")
    if members and members[0] > 1 and members[1] != "response":
        yield f"algorithm.members={members[0]}: only algorithm.reads='response' has several, not {members[1]!r}"
    layers = of("algorithm.head.layers", "algorithm.reads")
    if layers and layers[0] > 1 and layers[1] not in ("response", "steps"):
        yield f"algorithm.head.layers={layers[0]}: algorithm.reads={layers[1]!r} has no such head"
    ends = [f".{end}" for words, _, _ in (*RULES, *others) for end in words.split()]
    for name, value in values.items():
        if isinstance(value, float) and math.isnan(value) and not f".{name}".endswith((*ends, ".clip_low")):
            yield f"{name}=nan must be a number"


def _without_decay(values: Mapping[str, Any]) -> Iterator[str]:
    """What an optimizer's fields say of a decay that its decay_steps=0 leaves out."""
    unread = {"final_fraction": 1.0, "hold_steps": 0, "decay": "cosine"}
    for name, steps in values.items():
        group, _, last = name.rpartition(".")
        if last != "decay_steps" or steps:
            continue
        for field, plain in unread.items():
            if (value := values.get(f"{group}.{field}", plain)) != plain:
                yield (
                    f"{group}.{field}={value!r} does nothing with {name}=0, which keeps the rate constant: set "
                    f"{name} to the updates of the decay, or {group}.{field}={plain!r}"
                )


def _around_a_ring(values: Mapping[str, Any]) -> Iterator[str]:
    """What model.attention=ring needs: an axis of the mesh to go around, and rows that divide over it.

    Heads, and rows whose width the data decide, are refused by the model, where they are known.
    """
    mesh = values.get("mesh")
    if values.get("model.attention") != "ring" or not isinstance(mesh, str):
        return
    count = dict(part.strip().partition(":")[::2] for part in mesh.split(",")).get("context", "")
    if not count.isdecimal() or int(count) < 1:
        yield f"model.attention='ring' needs a context axis, as in --config.mesh=context:2: mesh={mesh!r} has none"
        return
    widths = [("packing.row_length", values.get("packing.row_length") or 0)]
    if not values.get("rollout.mesh"):  # else prompts are read on the other mesh
        widths += [("rollout.prompt_buckets", width) for width in values.get("rollout.prompt_buckets") or ()]
    if values.get("packing.mode") == "padded":  # rows are prompts and completions
        widths.append(("rollout.completion_length", values.get("rollout.completion_length") or 0))
    for name, width in widths:
        if width % int(count):
            yield f"{name}={width} does not divide over mesh={mesh!r}, for model.attention='ring'"


def pipes(values: Mapping[str, Any]) -> Iterator[str]:
    """A line for each field that names a pipe, a socket or a device: opening one can wait for good."""
    for name, value in values.items():
        if not isinstance(value, str) or not value or "\0" in value or len(value) > 1000:
            continue
        try:
            mode = os.stat(os.path.expanduser(value)).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            yield f"{name}={value!r} is a pipe or a device, not a file: write its content to a file"


def _below(low: Any, high: Any) -> bool:
    try:
        return -math.inf < low < high < math.inf
    except TypeError:
        return False
