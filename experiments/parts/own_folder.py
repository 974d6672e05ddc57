"""A config anywhere: its folder is put on sys.path, so that "my_losses:my_surrogate" next to it is found."""

import pathlib
import sys
from collections.abc import Sequence


def put_on_path(config: str) -> None:
    """Appends the folder of a config file, "FOLDER/FILE.py:arguments", to sys.path.

    A folder of the checkout is left out: its modules have full names, as in "configs.tasks.arithmetic:f". Reward
    workers inherit the program's sys.path.
    """
    file = pathlib.Path(config.partition(":")[0])
    if not file.suffix == ".py" or not file.is_file():
        return  # loading the config reports what is wrong
    folder = file.resolve().parent
    if not folder.is_relative_to(pathlib.Path(__file__).resolve().parents[2]) and str(folder) not in sys.path:
        sys.path.append(str(folder))


def of_command_line(arguments: Sequence[str]) -> None:
    """put_on_path of the --config of a command line, before its config is loaded."""
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, given = flag.partition("=")
        if name in ("--config", "-config"):
            put_on_path(given if equals else value)
