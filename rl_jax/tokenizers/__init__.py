"""Tokenizers, without jax: characters, llama2.c's vocabulary, and Hugging Face folders (protocol in base)."""

from rl_jax.tokenizers.characters import CharTokenizer
from rl_jax.tokenizers.chat import ChatTemplate
from rl_jax.tokenizers.folder import check_vocabulary, load_tokenizer
from rl_jax.tokenizers.llama2c import Llama2cTokenizer
from rl_jax.tokenizers.prompts import ChatPrompts

__all__ = ["CharTokenizer", "ChatPrompts", "ChatTemplate", "Llama2cTokenizer", "check_vocabulary", "load_tokenizer"]
