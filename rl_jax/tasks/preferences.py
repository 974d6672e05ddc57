"""A tokenizer and nothing else: what preference data need of a task."""

from rl_jax.tasks import base
from rl_jax.tokenizers import ByteTokenizer, CharTokenizer, Llama2cTokenizer, PlainPrompts

REMEDY = (
    ": give all that occur, --config.task.alphabet=CHARACTERS, or none for a model of bytes, --config.task.alphabet= "
    "(a model's folder, --config.model.path, has its own tokenizer)"
)


def load(*, alphabet: str, tokenizer_path: str = "") -> base.Task:
    """The task without records and without a reward. Chats are encoded as plain text.

    Args:
      alphabet: the characters of the tokenizer; "": bytes, which write any text.
      tokenizer_path: llama2.c tokenizer.bin, instead of characters.

    Returns:
      Task.
    """
    if tokenizer_path:
        tokenizer = Llama2cTokenizer(tokenizer_path)
    else:
        tokenizer = CharTokenizer(alphabet, remedy=REMEDY) if alphabet else ByteTokenizer()
    return base.Task("preferences", PlainPrompts(tokenizer), None, None)
