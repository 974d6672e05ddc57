"""Pairs whose prompt begins with facts that a policy does not see: factually augmented RLHF (arXiv 2309.14525).

    "Fact: 24\n12+8-2+6="   "20=18=24" before "20=19=25"

A reward model that reads them need not know the answer itself to see what is made up. The task of `load_task` gives the
same text to the judge (info["judge_prompt"]) and the question alone to the policy.
"""

import json
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.preferences import generated, sources
from rl_jax.tasks.base import RecordSource, Task

TEMPLATE = "Fact: {answer}\n{prompt}"


def augmented(prompt: str, info: Mapping, template: str = TEMPLATE) -> str:
    """The prompt with facts: the template with {prompt} and {name} for what the record's info has.

    Raises:
      ValueError: if the template names what the info lacks, or has no {prompt}.
    """
    texts = {**{name: str(value) for name, value in info.items()}, "prompt": prompt}
    try:
        result = template.format_map(texts)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"template={template!r}: the record has {', '.join(sorted(texts))}: {error}") from error
    if "{prompt}" not in template:
        raise ValueError(f"template={template!r} must have {{prompt}}")
    return result


def load(
    *,
    template: str = TEMPLATE,
    num_prompts: int = 2_000,
    seed: int = 0,
    test_share: float = 0.1,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """Generated pairs of sums, asked with their facts.

    Args:
      template: of the prompt, with {prompt} and {answer}; "{prompt}" leaves the facts out.
      num_prompts: distinct prompts.
      seed: of everything that is drawn.
      test_share: the share of prompts in the test split.
      data_dir: where the dataset is prepared, once.

    Returns:
      sources.Preferences of kind "pairs".

    Raises:
      ValueError: if the template names what a record lacks.
    """
    augmented("", {"answer": 0, "grades": ()}, template)
    plain = generated.load(num_prompts=num_prompts, seed=seed, test_share=test_share, data_dir=data_dir)
    return plain._replace(name="privileged", data_source=lambda split: Augmented(plain.data_source(split), template))


class Augmented:
    """The records of a source with facts in their prompts.

    Attributes:
      kind: of the source.
      name: "privileged".
      split: of the source.
      report: of the source.
      num_skipped: of the source.
    """

    def __init__(self, source: sources.PreferenceSource, template: str):
        """The records of `source`, asked as `template` says."""
        self._source, self._template = source, template
        self.kind, self.name, self.split = source.kind, "privileged", source.split
        self.report, self.num_skipped = source.report, source.num_skipped

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict:
        record = self._source[index]
        return {**record, "prompt": augmented(record["prompt"], record["info"], self._template)}


class Privileged(RecordSource):
    """The records of a source, with what the judge reads in info["judge_prompt"]."""

    def __init__(self, source, template: str):
        """source: of the task. template: see `load_task`."""
        super().__init__(source, name="privileged", split=source.split, report=source.report)
        self._template = template

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        info = json.loads(record["info"])
        more = {"judge_prompt": augmented(record["prompt"], info, self._template)}
        return {**record, "info": json.dumps(info | more)}


def load_task(*, of: Mapping, template: str = TEMPLATE) -> Task:
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
