"""Tasks by name, `load("arithmetic", digits=2)`, or by import path, `load("my_package.my_task:load")`.

A task takes the keywords of the function that loads it. One of your own returns a `Task`, and may lie anywhere on
sys.path; a config names it as `config.task = dict(name="my_package.my_task:load", **keywords)`.
"""
import importlib
import inspect

from rl_jax.core.binding import resolve
from rl_jax.tasks.base import RecordSource, Task

__all__ = ["NAMES", "RecordSource", "Task", "load"]

# Short names of the shipped tasks: rl_jax.tasks.NAME:load.
NAMES = ("records", "arithmetic", "game24", "sat", "stories", "preferences", "word_problems")
NAMES += ("toys", "geoquery", "bfcl", "calculator", "code_problems", "issues")
NAMES += ("restored_text", "labelled_text", "random_calculation", "countdown", "sudoku")


def load(name: str, **kwargs) -> Task:
    """Loads a task.

    Args:
      name: a short name of NAMES, or an import path "module:function".
      **kwargs: keywords of the task's function.

    Raises:
      ValueError: if the name or a keyword is unknown, or a keyword is missing; the message lists the valid ones. Also
        if the function does not return a Task.
    """
    if ":" in name:
        function = resolve(name)
    elif name in NAMES:
        function = importlib.import_module(f"rl_jax.tasks.{name}").load
    else:
        raise ValueError(f"unknown task {name!r}; the tasks are {', '.join(NAMES)}. "
                         'To use your own, write "module:function"')
    parameters = inspect.signature(function).parameters
    named = {key: value for key, value in parameters.items() if value.kind is not value.VAR_KEYWORD}
    unknown = sorted(set(kwargs) - set(named)) if len(named) == len(parameters) else []
    if unknown:
        raise ValueError(f"task {name!r} takes no {', '.join(unknown)}; it takes {', '.join(named) or 'nothing'}")
    missing = [key for key, value in named.items() if value.default is value.empty and key not in kwargs]
    if missing:
        raise ValueError(f"task {name!r} needs {', '.join(missing)}; it takes {', '.join(named)}")
    task = function(**kwargs)
    if not isinstance(task, Task):
        raise ValueError(f"task {name!r} returned a {type(task).__name__}; it must return an rl_jax.tasks.Task")
    return task
