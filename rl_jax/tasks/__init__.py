"""Tasks by name: `load("arithmetic", digits=2)`. A task takes the keywords of its module's `load`."""
import importlib
import inspect

from rl_jax.tasks.base import RecordSource, Task

__all__ = ["NAMES", "RecordSource", "Task", "load"]

NAMES = ("arithmetic", "game24", "stories")


def load(name: str, **kwargs) -> Task:
    """Loads a task: `rl_jax.tasks.<name>.load(**kwargs)`.

    Raises:
      ValueError: if the name or a keyword is unknown, or a keyword is missing; the message lists the valid ones.
    """
    if name not in NAMES:
        raise ValueError(f"unknown task {name!r}; the tasks are {', '.join(NAMES)}")
    function = importlib.import_module(f"rl_jax.tasks.{name}").load
    parameters = inspect.signature(function).parameters
    unknown = sorted(set(kwargs) - set(parameters))
    if unknown:
        raise ValueError(f"task {name!r} takes no {', '.join(unknown)}; it takes {', '.join(parameters)}")
    missing = [key for key, value in parameters.items() if value.default is value.empty and key not in kwargs]
    if missing:
        raise ValueError(f"task {name!r} needs {', '.join(missing)}; it takes {', '.join(parameters)}")
    return function(**kwargs)
