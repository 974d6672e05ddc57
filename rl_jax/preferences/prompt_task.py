"""Preferences as a task for a policy: their prompts are sampled for, their best responses are demonstrations."""

import json
from collections.abc import Mapping

from rl_jax.preferences import load as load_preferences
from rl_jax.preferences.judge_task import PRINTABLE
from rl_jax.tasks.base import RecordSource, Task
from rl_jax.tokenizers import CharTokenizer, Llama2cTokenizer


class Asked(RecordSource):
    """The records of preferences: prompt, best response and info, with the principle if there is one."""

    def __init__(self, source, principle: str):
        """source: of preferences whose prompts are texts. principle: of all records; "": their own, if any."""
        super().__init__(source, name="prompts", split=source.split, report=source.report)
        self._principle = principle

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        if not isinstance(record["prompt"], str):
            raise ValueError("prompt_task: prompts are chats; only texts can be asked here")
        info = record["info"] | ({"principle": self._principle} if self._principle else {})
        return {"prompt": record["prompt"], "completion": record["responses"][0], "info": json.dumps(info)}


def load(*, data: Mapping, principle: str = "", alphabet: str = PRINTABLE, tokenizer_path: str = "") -> Task:
    """The task without a reward of its own: a judge gives it (config.judge).

    Args:
      data: keywords of rl_jax.preferences.load, of pairs or rankings.
      principle: what a judge is to grade by, info["principle"] of each record.
      alphabet: the characters of the tokenizer.
      tokenizer_path: llama2.c tokenizer.bin, instead of characters.

    Returns:
      Task.

    Raises:
      ValueError: if the data are of another kind, or (when read) a prompt is a chat.
    """
    prefs = load_preferences(**data)
    if prefs.kind not in ("pairs", "rankings"):
        raise ValueError(f"prompt_task: {prefs.name} are {prefs.kind}, and pairs or rankings are needed")
    splits = {"sft_train": "train", "train": "train", "test": "test"}
    tokenizer = Llama2cTokenizer(tokenizer_path) if tokenizer_path else CharTokenizer(alphabet)
    return Task("prompts", tokenizer, lambda split: Asked(prefs.data_source(splits[split]), principle), None)
