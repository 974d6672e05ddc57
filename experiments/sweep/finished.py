"""Whether a sweep's finished points are those of its config file as it is now."""

import pathlib
from collections.abc import Sequence

from experiments.parts import hub, origin
from experiments.sweep.points import Point, resolve
from rl_jax.runs.run_record import is_complete, read_json


def check_finished(folder: pathlib.Path, points: Sequence[Point]) -> None:
    """Checks each complete point, which is not run again, before its result is taken for one of these settings.

    Args:
      folder: the sweep's.
      points: of the sweep.

    Raises:
      ChangedError: if a point was finished with other settings, as when the config file was edited since; names the
        fields.
    """
    for point in points:
        check_run(folder / "points" / point.name, point)


def check_run(workdir: pathlib.Path, point: Point) -> None:
    """Checks the run in `workdir`, if it is complete and has a record of its config. Raises as `check_finished`."""
    if not is_complete(workdir) or not all((workdir / name).is_file() for name in ("config.json", "run.json")):
        return
    config = resolve(point)
    with config.unlocked():
        hub.settle(config, workdir)  # a run's config names the commits of its paths of the Hub
    # Which module runs a point is in sweep.json; the run's record has the name that the module gives itself.
    origin.check_result(config, workdir, read_json(workdir / "run.json").get("algorithm", point.program))
