"""The task type, and how a task's records become a TFDS dataset. No jax; tfds is imported inside functions.

Preparing: `record_splits` runs a task's generator once into an array_record dataset (the one TFDS format that works
without TensorFlow) under `data_dir/<name>/<digest>`. The digest covers the contents of the source files, the task's
arguments and the code that makes the records, so a change of data, arguments or code never reads a stale copy. The
dataset is made in a temporary folder next to it and renamed, so two processes may prepare it concurrently.
"""
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_jax.data import readers

DEFAULT_DATA_DIR = "~/.cache/rl_jax/tfds"
FIELDS = ("prompt", "completion", "info")


class Task(NamedTuple):
    """A tokenizer, records and a reward.

    Attributes:
      name: of the task.
      tokenizer: see tokenizers.base.
      data_source: split -> RecordSource of {"prompt", "completion" (an SFT target, may be ""), "info" (JSON)}, and
        where it has them "messages" (a chat, what is then encoded), "source" (its metrics are kept apart) and "id".
        Splits: "sft_train" (records with a completion), "train" and "test" (prompts).
      reward_fn: (prompt, completion, info: dict, **reward_kwargs) -> {"reward": total, named components...}. None: a
        program that needs a reward says so.
      reward_kwargs: of reward_fn.
      check_prompts: whether all prompts are measured before the run, as those of files that nobody has read yet.
      no_reward: why reward_fn is None, if its records are to blame.
    """
    name: str
    tokenizer: Any
    data_source: Callable[[str], "RecordSource"]
    reward_fn: Callable[..., dict]
    reward_kwargs: Mapping[str, Any] = {}
    check_prompts: bool = False
    no_reward: str = ""


class RecordSource:
    """Random access to one split: len(source), source[i] -> {"prompt", "completion", "info"} of str.

    Attributes:
      name: of the task.
      split: of the task.
      report: all counts from making the dataset.
      num_skipped: number of bad records left out when the dataset was made.
    """

    def __init__(self, data, *, name: str, split: str, report: Mapping[str, Any]):
        self._data, self.name, self.split, self.report = data, name, split, dict(report)
        self.num_skipped = int(self.report.get("num_skipped", 0))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, str]:
        index = range(len(self))[index]  # negative and out-of-range indices work as in a list
        record = self._data[index]
        return {field: record[field].decode("utf-8") for field in FIELDS}

    def place_of(self, index: int) -> str:
        """Where a record comes from, for messages: its file and line if it has one."""
        return f"record {index} of {self.name}'s {self.split} split"

    def __repr__(self) -> str:  # grain prints it in error messages: it must not show the data
        return f"RecordSource({self.name!r}, {self.split!r}, {len(self)} records)"


@functools.cache
def _builder_class():
    import tensorflow_datasets as tfds

    class OwnInfo(tfds.core.DatasetInfo):
        """Without a search for a published copy of the dataset, which leaves an empty folder in /tmp each time."""

        def initialize_from_bucket(self):
            pass

    class RecordBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Records of three texts, in the order in which they are made."""
        VERSION = tfds.core.Version("1.0.0")
        name = "records"
        # TFDS would look for download checksums there. There are none, and the search needs the undeclared
        # package importlib_resources.
        code_path = None

        def __init__(self, *, splits=None, **kwargs):
            self._splits_to_write = splits
            super().__init__(file_format="array_record", **kwargs)

        def _info(self):
            features = tfds.features.FeaturesDict({field: tfds.features.Text() for field in FIELDS})
            return OwnInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {name: self._generate_examples(records) for name, records in self._splits_to_write.items()}

        def _generate_examples(self, records):
            yield from enumerate(records)

    return RecordBuilder


def record_splits(name: str, make: Callable[[], tuple[Mapping[str, Sequence[dict]], dict]], *, arguments: Mapping,
                  sources: Iterable = (), code: Iterable = (), data_dir=DEFAULT_DATA_DIR
                  ) -> Callable[[str], RecordSource]:
    """Prepares a dataset unless its digest is already stored.

    Args:
      name: of the task.
      make: () -> ({split: records}, report). Called only if the dataset is missing.
      arguments: JSON values that determine the records.
      sources: data files.
      code: the Python files that make the records.
      data_dir: where datasets are stored.

    Returns:
      split name -> RecordSource.

    Raises:
      ValueError: if a split has no records.
    """
    identity = {"arguments": dict(arguments), "sources": readers.content_hash(sources),
                "code": readers.content_hash([__file__, readers.__file__, *code])}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    final = pathlib.Path(data_dir).expanduser() / name / digest
    if not final.exists():
        _prepare(final, name, make, identity)
    report = json.loads((final / "report.json").read_text())
    builder = _builder_class()(data_dir=str(final))

    @functools.cache
    def data_source(split: str) -> RecordSource:
        """Opens one split of the prepared dataset."""
        stored = report["splits"].get(split)
        if stored is None:
            raise ValueError(f"{name} has no split {split!r}; it has {sorted(report['splits'])}")
        return RecordSource(builder.as_data_source(split=stored), name=name, split=split, report=report)

    return data_source


def _prepare(final: pathlib.Path, name: str, make, identity: dict) -> None:
    import tensorflow_datasets as tfds

    splits, report = make()
    for split, records in splits.items():
        if not len(records):
            raise ValueError(f"{name}: split {split!r} has no records; report: {report}")
    # If the SFT records of a task are its training records, they are not written twice.
    shared = {} if "sft_train" in splits or "train" not in splits else {"sft_train": "train"}
    names = {split: split for split in splits} | shared
    report = {**report, "splits": names, "identity": identity,
              "num_records": {split: len(records) for split, records in splits.items()}}
    scratch = final.parent / f".{final.name}.{os.getpid()}.{uuid.uuid4().hex}"
    scratch.mkdir(parents=True)
    try:
        tfds.disable_progress_bar()
        with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints its progress to stdout
            _builder_class()(data_dir=str(scratch), splits=splits).download_and_prepare()
        shutil.rmtree(scratch / "downloads", ignore_errors=True)  # TFDS makes it even if nothing is downloaded
        (scratch / "report.json").write_text(json.dumps(report, sort_keys=True, indent=1))
        try:
            scratch.rename(final)
        except OSError:
            if not (final / "report.json").exists():
                raise
            # Another process finished the same dataset first. The two are equal: keep that one.
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
