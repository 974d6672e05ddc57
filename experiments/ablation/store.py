"""Writes the stored result of a claim, experiments/ablation/results/KEY.json, from a finished ablation."""

import json
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from experiments.ablation.claims import asked
from rl_jax import stats
from rl_jax.runs.logging import write_atomically
from rl_jax.runs.run_record import is_complete


def store(key: str, ablation: ConfigDict, settings: str, workdir: pathlib.Path, results: pathlib.Path) -> pathlib.Path:
    """Writes results/KEY.json from the finished result in workdir, over what is stored.

    Args:
      key: the ablation.
      ablation: its content, at full size.
      settings: what the result in workdir has to be of.
      workdir: its folder.
      results: the folder of stored results.

    Returns:
      The path of the stored result.

    Raises:
      ValueError: if the ablation has not finished in workdir, if one of its runs has begun again, or if the result is
        of other settings: of a smoke run, of overrides, or of the claim as it was before.
    """
    path, again = workdir / "ablation.json", f"run python -m experiments.ablation {key}"
    if not path.exists():
        raise ValueError(f"{path} does not exist: {again} to its end")
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("settings") != settings:
        of = "a smoke run, of overrides, or of the file as it was before"
        raise ValueError(f"{path} is not of the settings of configs/papers/{key}.py (of {of}): {again}")
    folders = [workdir / f"seed{seed}" / arm for seed in ablation.seeds for arm in ablation.get("arms", ())]
    if open_runs := [str(folder) for folder in folders if folder.exists() and not is_complete(folder)]:
        raise ValueError(f"{path} is older than these runs, which have not finished: {', '.join(open_runs)}; {again}")
    text = json.dumps(to_store(found, ablation), indent=1) + "\n"
    write_atomically(results / f"{key}.json", text.encode())
    return results / f"{key}.json"


def to_store(result: Mapping, ablation: ConfigDict) -> dict:
    """A finished result with intervals in place of the values of each seed.

    Numbers have three digits, and more if with three a statement would be judged differently.

    Args:
      result: the content of an ablation.json.
      ablation: its content.

    Raises:
      ValueError: if the seeds are not consecutive, or an arm has fewer than two values of the metric: the stored form
        has no place for either.
    """
    key, seeds, metric, arms = result["key"], result["seeds"], result["metric"], {}
    if seeds != list(range(seeds[0], seeds[-1] + 1)):
        raise ValueError(f"{key}: only consecutive seeds can be stored, not {seeds}")
    within = result["ranges"].get(metric)
    for arm, row in sorted(result["values"].items()):
        present = [value for value in row[metric] if value is not None]
        if len(present) < 2:
            raise ValueError(f"{key}: {metric} of {arm} has a value with {len(present)} seeds; its interval needs two")
        arms[arm] = _rounded(stats.bootstrap_mean(present, within=within and tuple(within)), {}, len(present), 1)
    statements, each = [], asked(result["values"], ablation.expected)
    for row, (_, sides, bounds, _) in zip(result["statements"], each, strict=True):
        interval = _rounded(stats.Interval(**row["interval"]), bounds, len(sides[0]), len(result["statements"]))
        more = {name: row[name] for name in ("dropped", "more_seeds") if row.get(name)}
        statements.append(dict(statement=row["statement"], interval=interval, **more))
    where = f" on {result['cores']} cores" if "cores" in result else ""
    return {
        **{name: result[name] for name in ("key", "paper", "claim", "metric")},
        "arms": arms,
        "seeds": dict(first=seeds[0], last=seeds[-1]),
        "statements": statements,
        **{name: result[name] for name in ("verdict", "tried", "command", "date")},
        "wall_minutes": round(max(result["wall_seconds"] / 60, 0.1), 1),
        "source": f"run of the command{where}",
        **({"note": result["note"]} if result["note"] else {}),
    }


def _rounded(interval: stats.Interval, bounds: Mapping[str, float], n: int, statements: int) -> dict[str, float]:
    def verdicts(one: stats.Interval) -> list[str]:
        return [stats.judge(each, **bounds) for each in (one, stats.widened(one, n, statements))]

    shorter = (stats.Interval(*(float(f"{number:.{digits}g}") for number in interval)) for digits in range(3, 17))
    return next((one for one in shorter if verdicts(one) == verdicts(interval)), interval)._asdict()
