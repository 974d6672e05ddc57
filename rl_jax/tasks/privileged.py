"""A task whose judge reads more than its policy: info["judge_prompt"] (arXiv 2309.14525)."""

import json
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.preferences.privileged import TEMPLATE, augmented
from rl_jax.tasks.base import RecordSource, Task


class Privileged(RecordSource):
    """The records of a source, with what the judge reads in info["judge_prompt"]."""

    def __init__(self, source, template: str):
        """source: of the task. template: see `load`."""
        super().__init__(source, name="privileged", split=source.split, report=source.report)
        self._template = template

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        info = json.loads(record["info"])
        more = {"judge_prompt": augmented(record["prompt"], info, self._template)}
        return {**record, "info": json.dumps(info | more)}


def load(*, of: Mapping, template: str = TEMPLATE) -> Task:
    """A task with the same prompts, completions and reward, and facts for its judge.

    Args:
      of: keywords of rl_jax.tasks.load, its name among them.
      template: what the judge reads in place of the prompt, with {prompt} and {name} for what a record's info has.

    Returns:
      Task.

    Raises:
      ValueError: if (when it is read) a record lacks what the template names.
    """
    task = tasks.load(**of)
    return task._replace(
        name=f"privileged_{task.name}", data_source=lambda split: Privileged(task.data_source(split), template)
    )
