"""The fields of a Hugging Face config.json that several families share: rotary embedding, windows, activation.

Every field is taken once. A field that was not taken may change the model in an unknown way, and is refused by name.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

from rl_jax.data.readers import DataError
from rl_jax.models.transformer.config import TransformerConfig

REQUIRED = object()
KINDS = {bool: "true or false", str: "a text", list: "a list", dict: "an object"}  # of JSON, in words
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}  # theirs -> ours
# Fields that do not change what a forward in evaluation mode computes.
HARMLESS = frozenset(
    """_attn_implementation _attn_implementation_autoset _name_or_path architectures attention_dropout
    attn_implementation attn_pdrop bos_token_id cache_implementation chunk_size_feed_forward dtype embd_pdrop
    eos_token_id finetuning_task gradient_checkpointing id2label initializer_range is_llama_config label2id
    max_position_embeddings n_ctx name_or_path output_attentions output_hidden_states output_router_logits pad_token_id
    pretraining_tp problem_type resid_pdrop return_dict router_aux_loss_coef summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params tokenizer_class torch_dtype
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_cache""".split()
)


class Fields:
    """The fields of the config.json at `path`, taken one by one. `ignore`: names that the caller knows as harmless."""

    def __init__(self, path, raw: Mapping[str, Any], ignore: Collection[str] = ()):
        self.path = path
        self.raw = raw
        self.left = set(raw) - HARMLESS - {"model_type"} - set(ignore)

    def error(self, name: str, problem: str) -> DataError:
        """A DataError about one field."""
        return DataError(f"{self.path}, field {name!r}: {problem}")

    def take(self, name: str, default=REQUIRED, *, kind: type | None = None, least: int = 1):
        """The value of a field.

        Args:
          name: of the field.
          default: its value if it is missing or null; REQUIRED refuses that.
          kind: bool, str, list or dict; int: at least `least`; float: a number above 0. None: anything.
          least: of an int.

        Raises:
          DataError: if it is missing, or of another kind; names the file and the field.
        """
        self.left.discard(name)
        value = self.raw.get(name)
        if value is None and default is REQUIRED:
            raise self.error(name, "missing, and no other field determines it")
        if value is None:
            return default
        return self.of_kind(name, value, kind, least)

    def of_kind(self, name: str, value: Any, kind: type | None, least: int = 1) -> Any:
        """The value, which may be a part of a field; an int as a float if kind is float. Arguments, errors: as take."""
        if kind is float:
            return self.positive(name, value)
        if kind is int and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise self.error(name, f"{value!r} is not {'a positive integer' if least == 1 else '0 or more'}")
        if kind in KINDS and not isinstance(value, kind):
            raise self.error(name, f"{value!r:.60} is not {KINDS[kind]}")
        return value

    def positive(self, name: str, value: Any) -> float:
        """The value as a float. Refuses one that is no number above 0: the model would compute nan."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise self.error(name, f"{value!r} is not a number above 0")
        return float(value)

    def expect(self, name: str, *values) -> None:
        """Refuses a field whose value we do not support."""
        value = self.take(name, values[0])
        if value not in values:
            raise self.error(name, f"{value!r} is not supported, only {' or '.join(map(repr, values))}")

    def finish(self, *, may_ignore: bool = False) -> None:
        """Refuses fields that were not taken, except null ones. may_ignore: whether callers can name harmless ones."""
        unknown = sorted(name for name in self.left if self.raw[name] is not None)
        if unknown:
            listed = ", ".join(f"{name}={self.raw[name]!r}"[:100] for name in unknown)
            remedy = f"; those that do not can be named in ignore={tuple(unknown)!r}"
            remedy += f', in a run --config.model.ignore_fields="{tuple(unknown)!r}"'
            raise ValueError(
                f"{self.path}: unknown fields: {listed}. They may change what the model computes{remedy * may_ignore}"
            )


def read_activation(fields: Fields, names: Collection[str], default: str) -> str:
    """Our name of the activation.

    Args:
      fields: of the config.json.
      names: those that may give it; all that are present must agree.
      default: their name, if none is present.

    Raises:
      ValueError: if they contradict each other, or it is not supported.
    """
    values = {fields.take(name, None, kind=str) for name in names} - {None}
    if len(values) > 1:
        raise fields.error(names[0], f"contradicts {', '.join(map(repr, names[1:]))}: {sorted(values)}")
    (value,) = values or {default}
    if value not in ACTIVATIONS:
        raise fields.error(names[0], f"{value!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def _read_scaling(fields: Fields, name: str, spec: Any, theta: float) -> dict[str, Any]:
    """One dict of RoPE parameters, old or new style, as our fields."""
    spec = fields.of_kind(name, spec, dict)
    spec = {key: value for key, value in spec.items() if value is not None}
    old_name = spec.pop("type", "default")
    kind = spec.pop("rope_type", old_name)
    ours: dict[str, Any] = {"rope_theta": fields.positive("rope_theta", spec.pop("rope_theta", theta))}
    try:
        if kind == "linear":
            factor = fields.positive(f"{name}.factor", spec.pop("factor"))
            ours |= {"rope_scaling": "linear", "rope_factor": factor}
        elif kind == "llama3":
            length = spec.pop("original_max_position_embeddings", fields.raw.get("max_position_embeddings"))
            length = fields.of_kind(f"{name}.original_max_position_embeddings", length, int)
            factor = fields.positive(f"{name}.factor", spec.pop("factor"))
            ours |= {"rope_scaling": "llama3", "rope_factor": factor, "rope_original_length": length}
            ends = ("low_freq_factor", "high_freq_factor")
            low, high = (fields.positive(f"{name}.{end}", spec.pop(end)) for end in ends)
            if low >= high:  # the wavelengths between the two are interpolated by 1 / (high - low)
                raise fields.error(f"{name}.high_freq_factor", f"{high:g} is not above low_freq_factor={low:g}")
            ours |= {"rope_low_freq_factor": low, "rope_high_freq_factor": high}
        elif kind != "default":
            raise fields.error(name, f"rope_type {kind!r} is not supported, only default, linear, llama3")
    except KeyError as error:
        raise fields.error(name, f"rope_type {kind!r} needs {error.args[0]!r}") from None
    if spec:
        raise fields.error(name, f"unknown parameters of RoPE: {', '.join(sorted(spec))}")
    return ours


def read_rope(fields: Fields, *, local: bool) -> dict[str, Any]:
    """Our RoPE fields. local: layers with a window have their own base (Gemma 3), unscaled."""
    theta, scaling = fields.take("rope_theta", None, kind=float), fields.take("rope_scaling", None, kind=dict)
    spec, name = fields.take("rope_parameters", {}, kind=dict), "rope_parameters"
    if scaling:
        spec, name = scaling, "rope_scaling"
    if not local:
        return _read_scaling(fields, name, spec, 10_000.0 if theta is None else theta)
    local_theta = fields.take("rope_local_base_freq", 10_000.0, kind=float)
    if not {"full_attention", "sliding_attention"} & set(spec):
        spec = {"full_attention": spec}
    known = {"full_attention": 1_000_000.0 if theta is None else theta, "sliding_attention": local_theta}
    unknown = sorted(set(spec) - set(known))
    if unknown:
        raise fields.error(name, f"unknown kinds of layers: {', '.join(unknown)}")
    parts = {kind: {} if spec.get(kind) is None else spec[kind] for kind in known}
    ours, sliding = (_read_scaling(fields, f"{name}.{kind}", parts[kind], base) for kind, base in known.items())
    if "rope_scaling" in sliding:
        raise fields.error(name, "scaling in layers with a window is not supported")
    return ours | {"local_rope_theta": sliding["rope_theta"]}


def write_rope(config: TransformerConfig, *, local: bool) -> dict[str, Any]:
    """The inverse of read_rope, in the form of transformers 5 (rope_parameters) and in that of 4 (the other fields)."""
    spec: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling != "none":
        spec |= {"rope_type": config.rope_scaling, "factor": config.rope_factor}
    if config.rope_scaling == "llama3":
        spec |= {
            "low_freq_factor": config.rope_low_freq_factor,
            "high_freq_factor": config.rope_high_freq_factor,
            "original_max_position_embeddings": config.rope_original_length,
        }
    old: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.rope_scaling != "none":
        old["rope_scaling"] = {name: value for name, value in spec.items() if name != "rope_theta"}
    if not local:
        return old | {"rope_parameters": spec}
    sliding = {"rope_type": "default", "rope_theta": config.local_rope_theta}
    old["rope_local_base_freq"] = config.local_rope_theta
    return old | {"rope_parameters": {"full_attention": spec, "sliding_attention": sliding}}


def read_windows(fields: Fields, num_layers: int, style: str) -> tuple[int, ...]:
    """The window of each layer, 0 for none.

    Args:
      fields: of the config.json.
      num_layers: L.
      style: "none". "all": every layer has sliding_window. "all_if_used", "types_if_used": only if use_sliding_window
        is true. "every_2", "every_6": layer_types, or if they are missing, one in 2 (6) sees all.
    """
    if style == "none":
        return (0,) * num_layers
    used = style not in ("all_if_used", "types_if_used") or fields.take("use_sliding_window", False, kind=bool)
    # null is no window; a missing field is the class's default.
    window = fields.take("sliding_window", 0 if "sliding_window" in fields.raw else 4096, kind=int, least=0)
    window = window if used else 0
    if style in ("all", "all_if_used"):
        return (window,) * num_layers
    if style == "types_if_used":
        first = fields.take("max_window_layers", 28, kind=int, least=0)
        sliding = [bool(window) and i >= first for i in range(num_layers)]
    else:
        pattern = fields.take("sliding_window_pattern", int(style.removeprefix("every_")), kind=int)
        pattern = fields.take("_sliding_window_pattern", pattern, kind=int)
        sliding = [(i + 1) % pattern > 0 for i in range(num_layers)]
    types = fields.take("layer_types", None, kind=list)
    if types is not None:
        if len(types) != num_layers or any(kind not in ("full_attention", "sliding_attention") for kind in types):
            raise fields.error("layer_types", f"{types} are not {num_layers} of full_attention or sliding_attention")
        sliding = [kind == "sliding_attention" for kind in types]
    if any(sliding) and not window:
        raise fields.error("layer_types", "some layers have a window, but sliding_window gives no length")
    return tuple(window if local else 0 for local in sliding)


def write_windows(config: TransformerConfig, style: str) -> dict[str, Any]:
    """The inverse of read_windows. Windows that the style cannot express come out wrong, which the caller checks."""
    window = max(config.windows, default=0) or None
    if style == "none":
        return {}
    fields: dict[str, Any] = {"sliding_window": window}
    if style in ("all_if_used", "types_if_used"):
        fields["use_sliding_window"] = window is not None
    if style not in ("all", "all_if_used"):
        windows = config.windows or (0,) * config.num_layers
        fields["layer_types"] = ["sliding_attention" if w else "full_attention" for w in windows]
    if style.startswith("every_"):
        fields["sliding_window"] = window or 4096  # transformers makes the mask of a window even if no layer has one
    return fields
