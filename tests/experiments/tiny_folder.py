"""A Hugging Face folder with a tiny Qwen3 of random weights, a tokenizer and a chat template; made without torch."""

import json
import pathlib

import jax

from rl_jax.models.hf import families, loading
from rl_jax.models.transformer.model import make_transformer
from tests import tiny_tokenizers

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
QWEN3 = dict(
    **SIZES,
    architectures=["Qwen3ForCausalLM"],
    model_type="qwen3",
    head_dim=16,
    vocab_size=384,
    tie_word_embeddings=True,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    hidden_act="silu",
    attention_bias=False,
    eos_token_id=2,
    pad_token_id=0,
)


def qwen3(folder: pathlib.Path, *, seed: int = 0) -> pathlib.Path:
    """Writes the folder, which must not exist yet, and returns it."""
    config = families.read_config(QWEN3)
    loading.save_hf(folder, config, make_transformer(config).init(jax.random.key(seed)))
    tiny_tokenizers.chatml(folder, template=tiny_tokenizers.QWEN3)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"eos_token_id": 2, "pad_token_id": 0}))
    return folder
