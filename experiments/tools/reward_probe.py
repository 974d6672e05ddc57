"""Which dimensions of preference reward models represent: MRMBench's linear probes.

    python -m experiments.tools.reward_probe runs/reward_model --data=generated --labels=grades,length --classes=3

Each response of the pairs gives a hidden state at its last token and a value per dimension: a list of the record's info
with one number per response (`grades` of generated pairs, the aspects of ultrafeedback), or `length`. Values become
classes by their quantiles. A linear layer is fitted on the training split's states, the model frozen, and the table has
its accuracy on the test split beside the share of the commonest class, and MRMBench's inference-time probing: the mean
accuracy of the half of the responses that are nearest to one centroid. The paper's six dimensions are labelled by
people and models; its data are not here.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.parts import pair_scores
from experiments.parts.hidden_states import Embed, make_embed
from rl_jax.preferences import probing
from rl_jax.preferences.records import prompt_of

LENGTH = "length"


class Row(NamedTuple):
    """What a probe of one dimension says: accuracies in [0, 1]."""

    accuracy: float
    commonest: float
    sure: float


def values_of(records: Sequence[Mapping], name: str) -> np.ndarray:
    """A value of each response, record by record. float64 [N * K].

    Raises:
      ValueError: if a record lacks it, or it is not one number per response.
    """
    found: list[float] = []
    for place, record in enumerate(records):
        if name == LENGTH:
            found += [float(len(text)) for text in record["responses"]]
            continue
        values = record["info"].get(name)
        if not isinstance(values, list) or len(values) != len(record["responses"]):
            lists = [LENGTH, *sorted(key for key, value in record["info"].items() if isinstance(value, list))]
            raise ValueError(f"record {place} has no number per response in {name!r}; --labels: {', '.join(lists)}")
        found += [float(value) for value in values]
    return np.array(found)


def measure(states: Sequence[np.ndarray], values: Sequence[np.ndarray], classes: int) -> Row:
    """A probe of one dimension, fitted on the first and measured on the second of states and values."""
    labels = probing.classes_of(np.concatenate(values), classes)
    train, test = labels[: len(values[0])], labels[len(values[0]) :]
    probe = probing.fit(states[0], train, classes=classes)
    right = probe.predict(states[1]) == test
    confidence = probe.confidence(states[1])
    surest = confidence >= np.median(confidence)
    nearest = np.argmin(probe.distances(states[1]), axis=1) == test
    return Row(float(right.mean()), float(np.bincount(test).max() / len(test)), float(nearest[surest].mean()))


def states_of(embed: Embed, records: Sequence[Mapping]) -> np.ndarray:
    """The hidden states of all responses, record by record, each after its own prompt."""
    prompts = [prompt_of(record, place) for record in records for place in range(len(record["responses"]))]
    return embed(prompts, [text for record in records for text in record["responses"]])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model or dpo")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--labels", default=LENGTH, help="dimensions, separated by commas")
    parser.add_argument("--classes", type=int, default=2, help="classes of each dimension")
    parser.add_argument("--limit", type=int, default=1_000, help="most pairs of each split; 0: all")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        more = dict(limit=options.limit, data_dir=options.data_dir)
        splits = [pair_scores.read_pairs(options.data, options.path, split, **more) for split in ("train", "test")]
        names = options.labels.split(",")
        values = {name: [values_of(records, name) for records in splits] for name in names}
        print("| run | dimension | accuracy | commonest class | nearest centroid, surer half |\n|---|---|---|---|---|")
        for run in options.runs:
            embed = make_embed(run, pair_scores.load_scorer(run)[0])
            states = [states_of(embed, records) for records in splits]
            for name in names:
                row = measure(states, values[name], options.classes)
                print(f"| {run} | {name} | {row.accuracy:.3f} | {row.commonest:.3f} | {row.sure:.3f} |")
    except (ValueError, OSError) as error:
        print(f"experiments.tools.reward_probe: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
