"""`--help` of the programs (one screen), and error messages for bad command lines (one line per mistake).

`parse_flags_helpfully` replaces absl's own parser in app.run. Everything else is a pure function of texts and configs.
"""

import importlib.util
import itertools
import pathlib
import re
import runpy
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

import configs
from configs import fields
from experiments.parts import check_config, real_data, refusals, stops
from experiments.parts.budgets import module_of
from experiments.parts.help_fields import MAIN, TAKES
from experiments.parts.nearest import nearest_field, ratio, show

FLAGS = flags.FLAGS
ROOT = pathlib.Path(configs.__file__).parent.parent
WIDTH, VALUE_WIDTH = 100, 17  # columns per line, and per value
ASKED = ("--help", "-help", "-h", "--helpshort", "-helpshort")
BY_HAND = "--coordinator=HOST:PORT --num_processes=N --process_id=I"
SEVERAL = ("distributed", "coordinator", "num_processes", "process_id", "heartbeat_timeout_s")
VALUES = {"config": "=FILE.py:WORDS", **dict.fromkeys(("workdir", "fork", "compile_cache", "replay"), "=FOLDER")}
VALUES["profile"] = "=FROM:TO"


def parse_flags_helpfully(argv: list[str], *, several_processes: bool = True) -> list[str]:
    """Parses the flags for absl's app.run(flags_parser=...), and checks the config. Nothing is compiled or loaded yet.

    `--help` prints one screen and exits with 0. A bad command line exits with 2 and a message, without a traceback.

    Args:
      argv: the command line, the program's name first.
      several_processes: whether `--help` shows the flags of several processes.

    Returns:
      The arguments that are no flags, the program's name first.
    """
    name, doc = started()
    if any(argument in ASKED for argument in argv[1:]):
        _print_help(name, doc, [argument for argument in argv if argument not in ASKED], several_processes)
        raise SystemExit(0)
    rest = _parsed(name, doc, argv)
    if len(rest) > 1:
        hint = f"; a field is set by --config.{rest[1]}" if "=" in rest[1] and not rest[1].startswith("-") else ""
        refusals.refuse(name, f"unexpected arguments: {rest[1:]}{hint}")
    return rest


def parse_plain_flags(argv: list[str]) -> list[str]:
    """Parses the flags of a tool without a config, for absl's app.run(flags_parser=...); as parse_flags_helpfully."""
    name, doc = started()
    before = argv[: argv.index("--")] if "--" in argv else argv  # a tool may take a command after it
    if any(argument in ASKED for argument in before[1:]):
        print(help_text(doc, None, _program_flags(name)).rpartition("\n\n")[0])
        raise SystemExit(0)
    try:
        return FLAGS(argv)
    except flags.Error as error:
        refusals.refuse(name, f"{error}. --help lists the flags")


def started() -> tuple[str, str]:
    """(module name, docstring) of the program that was started; for a package those of its cli."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec else pathlib.Path(sys.argv[0]).stem
    return name, (sys.modules.get(f"{name}.cli", main).__doc__ or "").strip()


READS_NO_DATA = {"experiments.plan"}  # it may run before anything is downloaded


def _parsed(name: str, doc: str, argv: list[str]) -> list[str]:
    """The arguments that are no flags. Exits if flags or config are wrong."""
    try:
        _check_config_file(argv)
        rest = FLAGS(argv)
        wrong = other_program(name, FLAGS.config, argv)
    except Exception as error:
        wrong = explain(error, argv, doc)
        if wrong is None:
            raise
    if wrong is None:
        try:
            check_config.check(FLAGS.config)
            if name not in READS_NO_DATA:
                real_data.check(FLAGS.config)
            return rest
        except ValueError as error:
            wrong = str(error)
    refusals.refuse(name, wrong)


def _check_config_file(argv: Sequence[str]) -> None:
    """Raises ValueError if --config is a pipe: loading it would wait for good. `explain` says so."""
    if _is_pipe(place := (on_command_line(argv)[0] or "").partition(":")[0]):
        raise ValueError(place)


def _is_pipe(path: str) -> bool:
    place = pathlib.Path(path)
    return place.exists() and not place.is_file() and not place.is_dir()


def _print_help(name: str, doc: str, argv: list[str], several_processes: bool) -> None:
    source, _ = on_command_line(argv)
    if source is not None:
        try:
            FLAGS(argv)
            config = FLAGS.config
            config.get("program")  # raises here if the file could not be read
        except Exception as error:
            refusals.refuse(name, explain(error, argv, doc) or str(error))
    else:
        source = usual_config(doc)
        config = load_config(str(ROOT / source)) if source and (ROOT / source.partition(":")[0]).is_file() else None
    program_flags = _program_flags(name)
    if not several_processes:
        program_flags = {flag: said for flag, said in program_flags.items() if flag not in SEVERAL}
    print(help_text(doc, config, program_flags, program=name.rpartition(".")[2], source=source))


def _program_flags(name: str) -> dict[str, str]:
    """Flag -> help, of a program; another tool's flags may be loaded, too."""
    result, own = {}, ("experiments.parts.", f"{name}.")
    for module, defined in FLAGS.flags_by_module_dict().items():
        if module.startswith(own) or module in (name, sys.argv[0]):
            result |= {flag.name: flag.help for flag in defined if not flag.name.startswith("config.")}
    return result


def help_text(
    program_module_doc: str, config: ConfigDict | None, flags: Mapping[str, str], *, program: str = "", source: str = ""
) -> str:
    """One screen: what a program does, how to start it, its flags, and the config's main fields with their values.

    Args:
      program_module_doc: docstring of the program's module; its first paragraph and the commands below it are shown.
      config: whose values are shown; None leaves the fields out.
      flags: name -> help.
      program: whose main fields are shown; "": that of config.program.
      source: the config's file, for the heading.

    Returns:
      Lines of at most 100 columns.
    """
    lines = _head(program_module_doc) + ["", "Flags"]
    for name, said in sorted(flags.items(), key=lambda item: list(VALUES).index(item[0]) if item[0] in VALUES else 9):
        if name not in SEVERAL:
            start = f"  --{name}{VALUES.get(name, '')}".ljust(27)
            lines += textwrap.wrap(said, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    if "workdir" in flags:
        lines.append(f"  Ctrl-C or SIGTERM saves and exits with status {stops.STOPPED}; a complete run exits with 0")
    if set(flags) & set(SEVERAL):
        lines.append(f"  several processes: {BY_HAND}, or --distributed=auto")
    if config is None:
        return "\n".join([*lines, "", "--config=FILE.py --help also shows the config's main fields."])
    blocks = MAIN.get(program) or MAIN.get(config.get("program", "")) or ("",)
    shown = [[n for n in block.split() if check_config.get(config, n) is not None] for block in blocks]
    width = max((len(name) for block in shown for name in block), default=0) + 1
    lines += ["", f"Main fields{f' of {source}' if source else ''}, set by --config.NAME=VALUE"]
    for block in filter(None, shown):
        lines += [row for name in block for row in _row(config, name, width)] + [""]
    return "\n".join(
        [
            *lines,
            "All fields: configs/fields.py, and the site's config page (make docs). All flags: --helpfull.",
            "A group that shows a function is replaced as a whole: --config.GROUP=\"{'fn': 'NAME', 'keyword': 1}\"",
        ]
    )


def _head(doc: str) -> list[str]:
    """The first paragraph and the commands below it."""
    paragraphs = [part for part in doc.strip().split("\n\n") if part.strip()]
    lines = textwrap.wrap(" ".join(paragraphs[0].split()), WIDTH) if paragraphs else []
    if len(paragraphs) > 1 and paragraphs[1].lstrip().startswith("python "):
        indents = dict(initial_indent="    ", subsequent_indent=" " * 8)
        for command in re.sub(r"\\\n\s*", "", paragraphs[1]).splitlines():
            command = re.sub(r"\s+", " ", command.strip())
            lines += textwrap.wrap(command, WIDTH, break_on_hyphens=False, break_long_words=False, **indents)
    return lines


def _row(config: ConfigDict, name: str, width: int) -> list[str]:
    """A field's name, value and summary: one line, or two if value and summary do not fit.

    The module of a function is left out if it does not fit.
    """
    start = f"  {name:{width}}{show(check_config.get(config, name))}"
    column, said = 2 + width + VALUE_WIDTH, fields.summary(name)
    if len(said) > WIDTH - column:
        said = textwrap.shorten(re.sub(r" \(rl_jax[^)]*\)$", "", said), WIDTH - column, placeholder=" ...")
    if len(start) < column:
        return [start.ljust(column) + said]
    if len(start) + 2 + len(said) <= WIDTH:
        return [f"{start}  {said}"]
    return [start[:WIDTH], " " * column + said]


def usual_config(doc: str) -> str | None:
    """The config in the command of a program's docstring; None if there is none."""
    match = re.search(r"--config=([^\s\]]+)", doc)
    return match.group(1) if match else None


def load_config(text: str) -> ConfigDict:
    """The config of "FILE.py:WORDS", for messages about it: the file runs again, and may raise."""
    path, *words = text.split(":", 1)
    return runpy.run_path(path)["get_config"](*words)


def on_command_line(argv: Sequence[str]) -> tuple[str | None, dict[str, str | None]]:
    """(the value of --config, {dotted name: value} of its overrides); None for a value that is absent."""
    text, overrides = None, {}
    argv = FLAGS.read_flags_from_files(list(argv)[1:], force_gnu=False)
    for argument, following in itertools.zip_longest(argv, argv[1:]):
        if argument == "--":
            break
        match = re.fullmatch(r"--?(?:no)?config(?:\.([^=]+))?(?:=(.*))?", argument, flags=re.S)
        if match is None:
            continue
        name, value = match.groups()
        if value is None and following is not None and not following.startswith("-"):
            value = following
        if name is None:
            text = value
        else:
            overrides[name] = value
    return text, overrides


def explain(error: Exception, argv: Sequence[str], doc: str = "") -> str | None:
    """What is wrong with a command line that could not be parsed, in words for the user who typed it.

    Args:
      error: what parsing it raised.
      argv: the command line, the program's name first.
      doc: the program's docstring; its config is given as an example.

    Returns:
      One line per mistake; None for an error that is not about the command line.
    """
    text, overrides = on_command_line(argv)
    unknown = isinstance(error, flags.UnrecognizedFlagError) and not (error.flagname or "").startswith("config.")
    if unknown:
        return f"{error}. --help lists the flags".replace(" ?.", "?")
    if text is None:
        example = usual_config(doc)
        return f"--config=FILE.py is missing{f', as in --config={example}' if example else ''}; see --help"
    path = text.partition(":")[0]
    if not pathlib.Path(path).is_file():
        return no_config_file(path)
    try:
        config = load_config(text)
    except (ValueError, OSError) as of_config:
        return f"--config={text}: {of_config}"
    except Exception:
        return None  # an error in the file: its traceback shows where
    missing = [name for name in overrides if not has_field(config, name)]
    if missing:
        return "\n".join(nearest_field(config, name, overrides[name], overrides) for name in missing)
    if isinstance(error, flags.Error):
        return re.sub(r"^flag ", "", str(error))
    return None


def other_program(name: str, config: ConfigDict, argv: Sequence[str]) -> str | None:
    """The command to run instead, if the config is for another program than the one started; else None.

    Args:
      name: module that was started. Programs outside of experiments/ take any config.
      config: its field `program` names its program.
      argv: the command line, the program's name first.
    """
    started, wanted = name.removeprefix("experiments."), config.get("program")
    if started not in MAIN or wanted in (None, started, *TAKES.get(started, ())):
        return None
    module = module_of(wanted)
    if module != wanted and importlib.util.find_spec(module) is None:
        nearest = max(MAIN, key=lambda program: ratio(program, wanted))
        return f"config.program={wanted!r}: experiments has no such program; nearest: {nearest!r}"
    return f"this config is for {module}: python -m {module} {shlex.join(argv[1:])}{_word_for(started, argv)}"


def _word_for(program: str, argv: Sequence[str]) -> str:
    """How to ask the config's file for a config of `program`, if a word of that name does so."""
    text, _ = on_command_line(argv)
    path, _, words = (text or "").partition(":")
    wanted = f"{path}:{','.join(filter(None, (program, words)))}"
    try:
        found = load_config(wanted)
    except Exception:  # noqa: BLE001 - the file knows no such word
        return ""
    return f", or for experiments.{program}: --config={wanted}" if found.get("program") == program else ""


def no_config_file(path: str) -> str:
    """The message that a config file does not exist, with the nearest that does."""
    here = pathlib.Path.cwd()
    files = {*(ROOT / "configs").rglob("*.py"), *(here / path).parent.glob("*.py")}
    files = sorted(file for file in files if not file.name.startswith("_"))
    known = [str(file.relative_to(here) if file.is_relative_to(here) else file) for file in files]

    def likeness(other: str) -> float:
        return 2 * ratio(pathlib.Path(path).stem, pathlib.Path(other).stem) + ratio(path, other)

    nearest = max(known, key=likeness, default="")
    if pathlib.Path(path).is_dir() or (path and (ROOT / path).is_dir()):
        return f"{path} is a folder: name a file in it"
    if _is_pipe(path):
        return f"{path} is a pipe or a device, not a file: give a config file"
    return f"there is no config file {path}" + (f"; the nearest is {nearest}" if likeness(nearest) > 1.5 else "")


def has_field(config: ConfigDict, name: str) -> bool:
    """Whether a config has a field of this dotted name."""
    try:
        config_path.get_value(name, config)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):
        return False
    return True
