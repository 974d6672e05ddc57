"""Where these methods start: token-mean GRPO on a task's config. A file of configs/prompts sets what differs.

A word after a config's colon names the task, and `smoke` the smallest size of it, as in
`configs/prompts/pcl.py:game24,smoke`.
"""

from ml_collections import ConfigDict

from configs import common
from configs.tasks import arithmetic, game24, sat

TASKS = {"arithmetic": arithmetic, "game24": game24, "sat": sat}


def grpo(key: str, arg: str | None, *tasks: str) -> ConfigDict:
    """The task's config under the method's name.

    Args:
      key: the method's, for the run's name.
      arg: a task and `smoke`, or None.
      *tasks: those that have what the method needs, first the default; none: all, sat first.
    """
    tasks = tasks or ("sat", "arithmetic", "game24")
    words = common.parse(arg, (*tasks, "smoke"))
    named = [name for name in tasks if name in words] or [tasks[0]]
    if len(named) > 1:
        raise ValueError(f"choose one task, not {len(named)}: {', '.join(named)}")
    config = TASKS[named[0]].get_config("smoke" if "smoke" in words else None)
    config.name = "_".join([key, config.name, *(words & {"smoke"})])
    return config
