"""Prompts with ids, the sources that choose them, and what is remembered of each. numpy and the standard library.

The first stage of a run (docs/pages/prompts.md):

    prompts = PromptStream(records, sources.by_success(PromptTable(records), seed=0), batch_size=32)
    batch = next(prompts)                       # records with id, source and index
    prompts.feedback([Feedback(...)])           # once per step, what became of them; the next batch is chosen by it

`prompts.get_state()` is a JSON value with everything that the choice depends on.
"""

from rl_jax.experience.prompt import Feedback, PromptMemory, PromptTable, prompt_id
from rl_jax.experience.stream import PromptStream

__all__ = ["Feedback", "PromptMemory", "PromptStream", "PromptTable", "prompt_id"]
