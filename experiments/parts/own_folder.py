"""Work in a folder of one's own: configs of the checkout by their short names, modules beside a config on sys.path.

    cd my_folder; export PYTHONPATH=CHECKOUT; python -m experiments.grpo --config=configs/task.py ...

Python puts the folder where `python -m` is started on sys.path, so "my_rewards:score" is found there, too.
"""

import pathlib
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def found(config: str) -> str:
    """The config "FILE.py:arguments", in the checkout if there is no such file here."""
    file, colon, arguments = config.partition(":")
    there = CHECKOUT / file
    return f"{there}{colon}{arguments}" if file and not pathlib.Path(file).exists() and there.is_file() else config


def put_on_path(config: str) -> None:
    """Appends the folder of a config file, "FOLDER/FILE.py:arguments", to sys.path.

    A folder of the checkout is left out: its modules have full names, as in "configs.tasks.arithmetic:f". Reward
    workers inherit the program's sys.path.
    """
    file = pathlib.Path(config.partition(":")[0])
    if not file.suffix == ".py" or not file.is_file():
        return  # loading the config reports what is wrong
    folder = file.resolve().parent
    if not folder.is_relative_to(CHECKOUT) and str(folder) not in sys.path:
        sys.path.append(str(folder))


def of_command_line(arguments: list[str]) -> None:
    """`found` and `put_on_path` for the --config of a command line, which is changed, before its config is loaded."""
    for place, flag in enumerate(arguments):
        name, equals, given = flag.partition("=")
        if name not in ("--config", "-config"):
            continue
        if equals:
            arguments[place] = f"{name}={found(given)}"
            put_on_path(given)
        elif place + 1 < len(arguments):
            arguments[place + 1] = found(arguments[place + 1])
            put_on_path(arguments[place + 1])
