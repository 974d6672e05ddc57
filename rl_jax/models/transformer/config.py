"""What distinguishes one decoder-only transformer from another, as data. `families.py` fills it from a config.json."""

import dataclasses
import math

import jax

LAYER_INPUT = "layer_input"  # the name of x [B, T, D] before a layer
ADAPTED = "adapted"  # the name of a layer's product with a weight that has an adapter, both added
# What a layer's backward pass does not compute again: nothing but its input, the products with weights, or nothing,
# and the input lies in the host's memory meanwhile.
REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(ADAPTED),
    ),
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
RECOMPUTES_ALL = ("full", "offload")  # those that run a layer's whole forward again
# So many layers are no loop on a CPU: four compile as fast, and a train step takes a tenth to a seventh less. In models
# narrower than that compiling is most of the time, and the loop compiles faster.
NEGATIVE = -1e30  # finite, so that a row that attends to nothing stays finite
UNROLLED_LAYERS, UNROLLED_WIDTH = 8, 128
ACTIVATIONS = ("silu", "gelu_tanh")
NORMS = ("rms", "layer")
ROPE_SCALINGS = ("none", "linear", "llama3")
ATTENTIONS = ("dot_product", "splash", "cudnn", "ring", "auto")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes, parts and policies. The defaults are Llama's parts (RMSNorm, RoPE, SwiGLU, no biases).

    Attributes:
      vocab_size: V.
      embed_dim: D.
      num_layers: L.
      num_heads: H.
      num_kv_heads: K; divides num_heads.
      head_dim: h.
      mlp_dim: width of the MLP, or of one expert.
      tied_head: whether the head is the transposed embedding.
      rope_theta: base of the rotary frequencies.
      norm_eps: as in the checkpoint.
      dtype: of the matmuls.
      param_dtype: of what is stored and optimised.
      remat: a key of REMAT_POLICIES.
      attention: of a full forward, a name in ATTENTIONS; splash is the TPU's kernel (transformer/splash.py), cudnn the
        NVIDIA GPU's (attention.attend_fused), auto takes that of the backend for rows that it can do; ring passes keys
        around the mesh's context axis (transformer/ring.py).
      activation: a name in ACTIVATIONS.
      gated_mlp: act(gate x) * up x instead of act(up x).
      norm: a name in NORMS.
      norm_offset: added to every RMSNorm's stored scale (Gemma: 1).
      post_norms: also a norm after each branch.
      qk_norm: an RMSNorm over each head's query and key.
      qkv_bias: of the projections q, k and v.
      o_bias: of the output projection.
      mlp_bias: of the MLP.
      embed_scale: multiplies the embeddings.
      query_pre_attn_scalar: scores are divided by its square root; 0 is head_dim.
      attention_softcap: c of c * tanh(x / c) on the scores, 0 is none.
      logit_softcap: c of c * tanh(x / c) on the logits, 0 is none.
      learned_positions: length of a learned position table; 0 is RoPE.
      windows: one per layer: a query sees keys less than that many positions back, 0 sees all; () is 0 everywhere.
      local_rope_theta: if not 0, layers with a window use it as base, unscaled.
      rope_scaling: a name in ROPE_SCALINGS; for the numbers below see attention.rope_frequencies.
      rope_factor: of linear and llama3 scaling.
      rope_low_freq_factor: of llama3 scaling.
      rope_high_freq_factor: of llama3 scaling.
      rope_original_length: of llama3 scaling.
      num_experts: 0 is a dense MLP.
      experts_per_token: number of experts per token, weighted by the router's probabilities.
      norm_topk_prob: make these weights sum to 1.
      causal: False lets each token see its whole segment (masked diffusion). Such a model has no KV cache.
      unroll: layers in a turn of the loop over layers; 0 is all of them on a CPU, if they are at most UNROLLED_LAYERS
        of UNROLLED_WIDTH or more and nothing is recomputed, and 1 elsewhere. A loop writes what the backward pass
        reads into stacks of all layers and reads it back, on one core; its program does not grow with the depth.
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    tied_head: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: str = "none"
    attention: str = "dot_product"
    activation: str = "silu"
    gated_mlp: bool = True
    norm: str = "rms"
    norm_offset: float = 0.0
    post_norms: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    embed_scale: float = 1.0
    query_pre_attn_scalar: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    learned_positions: int = 0
    windows: tuple[int, ...] = ()
    local_rope_theta: float = 0.0
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_length: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    norm_topk_prob: bool = True
    causal: bool = True
    unroll: int = 0

    def __post_init__(self):
        # A list, as read from JSON, is not hashable; windows of 0 everywhere are the same model as none.
        object.__setattr__(self, "windows", tuple(self.windows) if any(self.windows) else ())
        for name in ("vocab_size", "embed_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be 1 or more")
        for name in ("rope_theta", "norm_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be a number above 0")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")
        for name, known in [
            ("remat", tuple(REMAT_POLICIES)),
            ("attention", ATTENTIONS),
            ("activation", ACTIVATIONS),
            ("norm", NORMS),
            ("rope_scaling", ROPE_SCALINGS),
        ]:
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(known)}")
        if self.windows and (len(self.windows) != self.num_layers or min(self.windows) < 0):
            raise ValueError(f"windows={self.windows} must hold {self.num_layers} lengths of at least 0, one per layer")
        if not self.causal and (self.windows or self.attention == "splash"):
            raise ValueError(
                f"causal=False takes attention='dot_product' or 'auto' and no windows, not {self.attention!r} and "
                f"{self.windows}"
            )
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} is not in 1..num_experts={self.num_experts}")
        if self.num_experts and (self.mlp_bias or not self.gated_mlp):
            raise ValueError("experts are gated and have no biases: set gated_mlp=True and mlp_bias=False")
        if self.rope_scaling == "llama3" and self.rope_original_length < 1:
            raise ValueError("rope_scaling='llama3' needs rope_original_length, the context length of pretraining")
        if self.norm == "layer" and self.norm_offset:
            raise ValueError("norm_offset is for norm='rms' only")
        if not 0 <= self.unroll <= self.num_layers:
            raise ValueError(f"unroll={self.unroll} is not in 0..num_layers={self.num_layers}")

    @property
    def attention_scale(self) -> float:
        """The factor of the scores."""
        return (self.query_pre_attn_scalar or self.head_dim) ** -0.5
