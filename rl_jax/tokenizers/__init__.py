"""Tokenizers, without jax: bytes, characters, llama2.c's vocabulary, and Hugging Face folders (protocol in base)."""

from rl_jax.tokenizers.byte_level import ByteTokenizer
from rl_jax.tokenizers.characters import CharTokenizer
from rl_jax.tokenizers.chat import ChatTemplate
from rl_jax.tokenizers.folder import check_vocabulary, load_tokenizer
from rl_jax.tokenizers.llama2c import Llama2cTokenizer
from rl_jax.tokenizers.prompts import ChatPrompts, PlainPrompts, of_texts, plain_text
from rl_jax.tokenizers.template import ChatTemplateError

__all__ = [
    "ByteTokenizer",
    "CharTokenizer",
    "ChatPrompts",
    "ChatTemplate",
    "ChatTemplateError",
    "Llama2cTokenizer",
    "PlainPrompts",
    "check_vocabulary",
    "load_tokenizer",
    "of_texts",
    "plain_text",
]
