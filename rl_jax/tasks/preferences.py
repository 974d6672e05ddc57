"""A tokenizer and nothing else: what preference data need of a task."""

from rl_jax.tasks import base
from rl_jax.tokenizers import CharTokenizer, Llama2cTokenizer, PlainPrompts


def load(*, alphabet: str, tokenizer_path: str = "") -> base.Task:
    """The task without records and without a reward. Chats are encoded as plain text.

    Args:
      alphabet: the characters of the tokenizer.
      tokenizer_path: llama2.c tokenizer.bin, instead of characters.

    Returns:
      Task.
    """
    tokenizer = Llama2cTokenizer(tokenizer_path) if tokenizer_path else CharTokenizer(alphabet)
    return base.Task("preferences", PlainPrompts(tokenizer), None, None)
