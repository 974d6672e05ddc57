"""Which annotators belong together: the E step of MaxMin-RLHF, arXiv 2402.08925.

    for u in 0 1; do
      python -m experiments.reward_model --config=configs/preferences/maxmin.py:group$u --workdir=runs/maxmin_$u
    done
    python -m experiments.tools.preference_groups runs/maxmin_0 runs/maxmin_1 --data=annotators --out=groups_1.json
    # again, with --config.data.assignment=groups_1.json and other workdirs, until the groups stay as they are

Each annotator goes to the group whose reward model explains their pairs best. `--by` is the field of a record's info
that names its annotator. The report has the sizes of the groups, and if the pairs know their annotators' true tastes
(info["user"]), the share that is together with its own.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize

from experiments.parts import pair_scores
from rl_jax.preferences import annotators
from rl_jax.runs.logging import write_atomically


def report(groups: Mapping, records: Sequence[Mapping], by: str, count: int) -> str:
    """The sizes of the groups, and how well they agree with the true tastes, whatever the groups are called."""
    sizes = [list(groups.values()).count(group) for group in range(count)]
    said = f"{len(groups)} annotators in groups of {', '.join(map(str, sizes))}"
    truth = {record["info"][by]: record["info"].get("user") for record in records}
    if None in truth.values():
        return said
    tastes = sorted(set(truth.values()))
    members = np.zeros((len(tastes), count), int)
    for name, group in groups.items():
        members[tastes.index(truth[name]), group] += 1
    best = members[optimize.linear_sum_assignment(members, maximize=True)].sum() / len(groups)
    return f"{said}; {best:.3f} of them with their own taste"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="workdirs of experiments.reward_model, one for each group")
    parser.add_argument("--data", default="jsonl", help="name of the pairs, of rl_jax.preferences")
    parser.add_argument("--path", default="", help="their file")
    parser.add_argument("--by", default="annotator", help="field of info that names the annotator")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the JSON file to write")
    parser.add_argument("--data_dir", default="", help="where the pairs are prepared")
    options = parser.parse_args(arguments)
    try:
        if options.out.exists():
            raise FileExistsError(f"{options.out} is there already: name another file, or remove it")
        records = pair_scores.read_pairs(options.data, options.path, "all", data_dir=options.data_dir)
        names = [record["info"].get(options.by) for record in records]
        if None in names:
            raise ValueError(f"record {names.index(None)} has no {options.by!r} in info: name the annotators with --by")
        gaps = np.stack([pair_scores.gaps(pair_scores.load_scorer(run)[0], records) for run in options.runs])
        groups = annotators.assign(gaps, names)
        said = report(groups, records, options.by, len(options.runs))
        text = json.dumps({str(name): group for name, group in groups.items()}) + "\n"
        write_atomically(options.out, text.encode())
    except (ValueError, OSError) as error:
        print(f"experiments.tools.preference_groups: {error}", file=sys.stderr)
        return 2
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
