"""The model families of Hugging Face folders as data: how config.json and tensor names map to a TransformerConfig.

Read and write are inverses: `write_config` only returns what `read_config` reads back as the same config.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from rl_jax.models.hf.hf_fields import (
    ACTIVATIONS,
    REQUIRED,
    Fields,
    read_activation,
    read_rope,
    read_windows,
    write_rope,
    write_windows,
)
from rl_jax.models.transformer.config import TransformerConfig

_MAX_POSITIONS = 32_768  # for the file only: it has no effect in families with RoPE

_SIZES = {
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_dim": "intermediate_size",
}
_TOP = {"embed/embedding": "model.embed_tokens.weight", "final_norm/scale": "model.norm.weight"}
_LAYER = {
    **{f"{name}/{ours}": f"self_attn.{name}_proj.{theirs}"
       for name in "qkvo" for ours, theirs in [("kernel", "weight"), ("bias", "bias")]},
    **{f"{name}/{ours}": f"mlp.{name}_proj.{theirs}"
       for name in ("gate", "up", "down") for ours, theirs in [("kernel", "weight"), ("bias", "bias")]},
    **{f"{name}_norm/scale": f"self_attn.{name}_norm.weight" for name in "qk"},
    "attention_norm/scale": "input_layernorm.weight",
    "mlp_norm/scale": "post_attention_layernorm.weight",
}
_GEMMA_NORMS = {
    "attention_post_norm/scale": "post_attention_layernorm.weight",
    "mlp_norm/scale": "pre_feedforward_layernorm.weight",
    "mlp_post_norm/scale": "post_feedforward_layernorm.weight",
}
_EXPERTS = {
    "experts/router/kernel": "mlp.gate.weight",
    **{f"experts/{name}": f"mlp.experts.{{expert}}.{name}_proj.weight" for name in ("gate", "up", "down")},
}
_GPT2_LAYER = {
    **{f"{norm}_norm/{ours}": f"{theirs}.{kind}" for norm, theirs in [("attention", "ln_1"), ("mlp", "ln_2")]
       for ours, kind in [("scale", "weight"), ("bias", "bias")]},
    **{f"{name}/{ours}": f"{theirs}.{kind}"
       for name, theirs in [("q", "attn.c_attn"), ("k", "attn.c_attn"), ("v", "attn.c_attn"), ("o", "attn.c_proj"),
                            ("up", "mlp.c_fc"), ("down", "mlp.c_proj")]
       for ours, kind in [("kernel", "weight"), ("bias", "bias")]},
}


class Family(NamedTuple):
    """One model_type. Names on the left of a mapping are ours, except in `fixed` and `aliases`.

    Attributes:
      architecture: its class in transformers.
      constants: our fields that all its models share.
      optional: our field -> (theirs, the value if it is missing).
      fixed: their fields of which we support some values only, the default first.
      sizes: our field -> theirs.
      derived: sizes that may be missing, with their value; None if it follows from others.
      aliases: another name of a field -> the name used here.
      unused: their fields that have no effect.
      activation: their fields that name it.
      default_activation: their name of it, if none does.
      norm_eps: (theirs, the value if it is missing).
      tied_head: the value if tie_word_embeddings is missing.
      scaled_embedding: whether embeddings are multiplied by sqrt(embed_dim).
      windows: see hf_fields.read_windows.
      local_rope: see hf_fields.read_rope.
      top: our path -> tensor name.
      layer: our path -> tensor name after `layer_prefix`.
      layer_prefix: of the layers' tensor names.
      conv1d: kernels are stored as [in, out], and q, k, v as one.
    """

    architecture: str
    constants: Mapping[str, Any] = {}
    optional: Mapping[str, tuple[str, Any]] = {}
    fixed: Mapping[str, tuple] = {}
    sizes: Mapping[str, str] = _SIZES
    derived: Mapping[str, int | None] = {"head_dim": None}
    aliases: Mapping[str, str] = {}
    unused: frozenset[str] = frozenset()
    activation: tuple[str, ...] = ("hidden_act",)
    default_activation: str = "silu"
    norm_eps: tuple[str, float] = ("rms_norm_eps", 1e-6)
    tied_head: bool = False
    scaled_embedding: bool = False
    windows: str = "none"
    local_rope: bool = False
    top: Mapping[str, str] = _TOP
    layer: Mapping[str, str] = _LAYER
    layer_prefix: str = "model.layers."
    conv1d: bool = False


_ATTENTION_BIAS = {"qkv_bias": ("attention_bias", False), "o_bias": ("attention_bias", False)}
_GEMMA_OPTIONAL = _ATTENTION_BIAS | {"query_pre_attn_scalar": ("query_pre_attn_scalar", 256)}
_GEMMA_FIXED = {"use_bidirectional_attention": (None, False)}
_GEMMA = dict(
    activation=("hidden_activation", "hidden_act"),
    default_activation="gelu_pytorch_tanh",
    derived={},
    tied_head=True,
    scaled_embedding=True,
    layer=_LAYER | _GEMMA_NORMS,
)

FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        optional=_ATTENTION_BIAS | {"mlp_bias": ("mlp_bias", False)},
        fixed={"rope_interleaved": (False,)},
        derived={"head_dim": None, "num_kv_heads": None},
    ),
    "mistral": Family("MistralForCausalLM", windows="all"),
    "qwen2": Family("Qwen2ForCausalLM", {"qkv_bias": True}, fixed={"use_mrope": (False,)}, windows="types_if_used"),
    "qwen3": Family(
        "Qwen3ForCausalLM", {"qk_norm": True}, _ATTENTION_BIAS, derived={"head_dim": 128}, windows="types_if_used"
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        {"qk_norm": True},
        _ATTENTION_BIAS | {"norm_topk_prob": ("norm_topk_prob", False)},
        {"decoder_sparse_step": (1,), "mlp_only_layers": (None, [])},
        sizes=_SIZES | {"mlp_dim": "moe_intermediate_size", "num_experts": "num_local_experts",
                        "experts_per_token": "num_experts_per_tok"},
        aliases={"num_experts": "num_local_experts"},
        unused=frozenset({"intermediate_size", "max_window_layers"}),  # of dense layers, which do not occur
        windows="all_if_used",
        layer=_LAYER | _EXPERTS,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        {"norm_offset": 1.0, "post_norms": True},
        _GEMMA_OPTIONAL
        | {"attention_softcap": ("attn_logit_softcapping", 50.0), "logit_softcap": ("final_logit_softcapping", 30.0)},
        _GEMMA_FIXED,
        windows="every_2",
        **_GEMMA,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        {"norm_offset": 1.0, "post_norms": True, "qk_norm": True},
        _GEMMA_OPTIONAL | {"logit_softcap": ("final_logit_softcapping", 0.0)},
        _GEMMA_FIXED | {"attn_logit_softcapping": (None,)},
        windows="every_6",
        local_rope=True,
        **_GEMMA,
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {"norm": "layer", "gated_mlp": False, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
        fixed={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
            "add_cross_attention": (False,),
        },
        sizes={"vocab_size": "vocab_size", "embed_dim": "n_embd", "num_layers": "n_layer", "num_heads": "n_head",
               "mlp_dim": "n_inner", "learned_positions": "n_positions"},
        derived={"mlp_dim": None},
        activation=("activation_function",),
        default_activation="gelu_new",
        norm_eps=("layer_norm_epsilon", 1e-5),
        tied_head=True,
        top={"embed/embedding": "transformer.wte.weight", "position_embed/embedding": "transformer.wpe.weight",
             "final_norm/scale": "transformer.ln_f.weight", "final_norm/bias": "transformer.ln_f.bias"},
        layer=_GPT2_LAYER,
        layer_prefix="transformer.h.",
        conv1d=True,
    ),
}


def _read_sizes(family: Family, fields: Fields) -> dict[str, Any]:
    """Our sizes, including the derived ones."""
    ours = {}
    for field, theirs in family.sizes.items():
        default = family.derived[field] if field in family.derived else REQUIRED
        ours[field] = fields.take(theirs, default, kind=int)
    ours["num_kv_heads"] = ours.get("num_kv_heads") or ours["num_heads"]
    ours["head_dim"] = ours.get("head_dim") or ours["embed_dim"] // ours["num_heads"]
    ours["mlp_dim"] = ours["mlp_dim"] or 4 * ours["embed_dim"]
    return ours


def check_model_type(raw: Mapping[str, Any], path) -> str:
    """The model_type of a config.json's content. Raises ValueError if it is no key of FAMILIES. path: for messages."""
    name = raw.get("model_type")
    if name == "gemma3":
        raise ValueError(f"{path}: model_type 'gemma3' is multimodal: save its text model alone, as 'gemma3_text'")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ValueError(f"{path}: unknown model_type {name!r}; supported are {', '.join(FAMILIES)}")
    return name


def read_config(raw: Mapping[str, Any], *, path="config.json", ignore: Collection[str] = ()) -> TransformerConfig:
    """The TransformerConfig of a config.json's content.

    Args:
      raw: the content.
      path: for messages.
      ignore: fields to skip.

    Raises:
      ValueError: naming the field, if there is an unknown model_type, an unknown field, or an unsupported value.
    """
    family = FAMILIES[check_model_type(raw, path)]
    fields = Fields(path, {family.aliases.get(key, key): value for key, value in raw.items()}, ignore)
    for other, theirs in family.aliases.items():
        found = [raw[name] for name in (theirs, other) if raw.get(name) is not None]
        if found[1:] and found[0] != found[1]:
            raise fields.error(other, f"{found[1]!r} contradicts {theirs}={found[0]!r}")
        fields.raw[theirs] = found[0] if found else None
    fields.left -= family.unused
    ours = _read_sizes(family, fields) | family.constants
    ours["norm_eps"] = fields.take(*family.norm_eps, kind=float)
    ours["tied_head"] = fields.take("tie_word_embeddings", family.tied_head, kind=bool)
    ours["activation"] = read_activation(fields, family.activation, family.default_activation)
    for field, (theirs, default) in family.optional.items():
        # null means no softcap; a missing field is the class's default.
        kind = bool if isinstance(default, bool) else float
        ours[field] = fields.take(theirs, 0.0 if theirs in raw and field.endswith("softcap") else default, kind=kind)
    for theirs, values in family.fixed.items():
        fields.expect(theirs, *values)
    if "learned_positions" not in family.sizes:
        ours |= read_rope(fields, local=family.local_rope)
    ours["windows"] = read_windows(fields, ours["num_layers"], family.windows)
    if family.scaled_embedding:
        ours["embed_scale"] = float(ours["embed_dim"] ** 0.5)
    fields.expect("is_encoder_decoder", False)
    fields.finish(may_ignore=True)
    try:
        return TransformerConfig(**ours)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _write(config: TransformerConfig, name: str, family: Family) -> dict[str, Any]:
    """A config.json of one family, with what it can express of `config`."""
    theirs_of = {ours: theirs for theirs, ours in ACTIVATIONS.items() if theirs != "gelu_new"}
    if name == "gpt2":
        theirs_of["gelu_tanh"] = "gelu_new"
    raw: dict[str, Any] = {"model_type": name, "architectures": [family.architecture]}
    raw |= {theirs: getattr(config, field) for field, theirs in family.sizes.items()}
    raw |= {other: raw[theirs] for other, theirs in family.aliases.items()}  # transformers 4 knows these only
    raw |= {family.norm_eps[0]: config.norm_eps, "tie_word_embeddings": config.tied_head}
    raw[family.activation[0]] = theirs_of[config.activation]
    for field, (theirs, _) in family.optional.items():
        value = getattr(config, field)
        raw[theirs] = (value or None) if field.endswith("softcap") else value
        if field == "query_pre_attn_scalar":
            raw[theirs] = int(value)
    if "learned_positions" not in family.sizes:
        raw |= write_rope(config, local=family.local_rope) | {"max_position_embeddings": _MAX_POSITIONS}
    return raw | write_windows(config, family.windows)


def write_config(config: TransformerConfig) -> dict[str, Any]:
    """The content of a config.json, of the first family that can express all of `config` except its policies.

    Raises:
      ValueError: if no family can; lists what the closest one would get wrong.
    """
    expected = same_numbers(config)
    closest: tuple[int, str] | None = None
    for name, family in FAMILIES.items():
        try:
            raw = _write(expected, name, family)
            read = dataclasses.asdict(read_config(raw))
        except (ValueError, KeyError):
            continue
        wrong = [f"{key}={value!r}" for key, value in dataclasses.asdict(expected).items() if read[key] != value]
        if not wrong:
            return raw
        if closest is None or len(wrong) < closest[0]:
            closest = (len(wrong), f"{name} does not support {', '.join(wrong)}")
    raise ValueError(f"no family of {', '.join(FAMILIES)} describes this model: {closest[1] if closest else config}")


def same_numbers(config: TransformerConfig) -> TransformerConfig:
    """`config` with default policies, since a config.json does not contain them."""
    return dataclasses.replace(
        config, dtype="float32", param_dtype="float32", remat="none", attention="dot_product", unroll=0
    )
