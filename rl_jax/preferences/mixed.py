"""Several sources of preferences as one, for ablations of the data (arXiv 2509.16127). No jax."""

import collections
from collections.abc import Callable, Mapping

from rl_jax.preferences import places, sources
from rl_jax.tasks.records import mixture_order

Load = Callable[..., sources.Preferences]


def mix(
    load: Load, *, parts: Mapping[str, Mapping], leave_out: str = "", data_dir: str = sources.DEFAULT_DATA_DIR
) -> sources.Preferences:
    """The records of several sources, spread evenly, so that any first part of a split has each source's share.

    A source that is left out is not trained on, but stays in the test split: what it was worth is the difference. Each
    record's info.file is its source's name, so a reward model's evaluation gives the accuracy on each. Source: arXiv
    2509.16127 (BaseReward), which compares reward models trained on one data set less, or more, on all benchmarks.

    Args:
      load: rl_jax.preferences.load.
      parts: a name of your own -> keywords of `load` ("name" among them).
      leave_out: names of parts without which the train split is made, separated by commas.
      data_dir: of the parts that do not say their own.

    Returns:
      Preferences of the parts' kind.

    Raises:
      ValueError: if there is no part, one has no name of a dataset, kinds differ, leave_out names none of them, or it
        names all.
    """
    if not parts or not all("name" in spec for spec in parts.values()):
        raise ValueError(f"mixed: parts={dict(parts)} must be a name -> keywords, each with the name of a dataset")
    without = set(filter(None, (name.strip() for name in leave_out.split(","))))
    if without - set(parts) or without == set(parts):
        raise ValueError(f"mixed: leave_out={leave_out!r} must name some of {', '.join(parts)}, and not all")
    made = {name: load(**({"data_dir": data_dir} | dict(spec))) for name, spec in parts.items()}
    kinds = {name: found.kind for name, found in made.items()}
    if len(set(kinds.values())) > 1:
        raise ValueError(f"mixed: the parts are of different kinds, {kinds}: give all the same")

    def data_source(split: str) -> Mixed:
        kept = [name for name in made if split != "train" or name not in without]
        return Mixed(split, {name: made[name].data_source(split) for name in kept})

    return sources.Preferences("mixed", next(iter(kinds.values())), data_source)


class Mixed:
    """One split of several sources.

    Attributes:
      kind: of all of them.
      name: "mixed".
      split: of all of them.
      report: the counts of each, by name; "skipped", the first bad records of each.
      num_skipped: bad records left out of all of them.
    """

    def __init__(self, split: str, parts: Mapping[str, sources.PreferenceSource]):
        self._parts, self.name, self.split = parts, "mixed", split
        self.kind = next(iter(parts.values())).kind
        skipped = [place for part in parts.values() for place in part.report.get("skipped", [])]
        self.report = {name: part.report for name, part in parts.items()} | {"skipped": skipped}
        self.num_skipped = sum(part.num_skipped for part in parts.values())
        self._places = spread({name: len(part) for name, part in parts.items()})

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict:
        name, place = self._places[index]
        record = self._parts[name][place]
        return places.copied(record, record | {"info": record["info"] | {"file": name}})

    def __repr__(self) -> str:
        counts = collections.Counter(name for name, _ in self._places)
        return f"Mixed({self.split!r}, {dict(counts)} {self.kind})"


def spread(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """(name, place) of all records in records.mixture_order, of which sources by name: each runs through evenly."""
    records_of = [(name, place) for name in sorted(sizes) for place in range(sizes[name])]
    return [records_of[i] for i in mixture_order([sizes[name] for name in sorted(sizes)])]
