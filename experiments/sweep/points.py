"""Expands a config and the names of its sweeps into points, each with a name, overrides and the command of one run."""

import difflib
import hashlib
import importlib.util
import itertools
import pathlib
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_flags import tuple_parser

from configs import sweeps
from experiments.parts import own_folder, reward_spec
from experiments.parts.budgets import module_of, program_of

PLAIN = (bool, int, float, str)
TERMS = "reward.terms"  # the one group of fields that has a short form on command lines
LONGEST_NAME = 120  # characters; a longer name is cut and ends in a hash


class Point(NamedTuple):
    """One run of a sweep.

    Attributes:
      name: its folder under points/.
      overrides: {dotted field: plain value}, including "config" and "argument".
      arm: the name without the seed.
      seed: config.seed.
      config: the file and its argument.
      program: the module of experiments that runs it.
    """

    name: str
    overrides: dict[str, Any]
    arm: str
    seed: int
    config: str
    program: str

    def command(self, workdir: str | pathlib.Path, extra: Sequence[str] = ()) -> list[str]:
        """The command line of the run; extra: further arguments for it."""
        fields = [f"--config.{name}={_flag(value)}" for name, value in fields_of(self.overrides).items()]
        start = [sys.executable, "-m", module_of(self.program), f"--config={self.config}", f"--workdir={workdir}"]
        return [*start, *fields, *extra]

    def record(self) -> dict[str, Any]:
        """The point as stored in sweep.json."""
        kept = ("name", "overrides", "arm", "seed", "config", "program")
        return {name: getattr(self, name) for name in kept} | {"workdir": f"points/{self.name}"}


def fields_of(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that are fields of a config."""
    return {name: value for name, value in overrides.items() if name not in ("config", "argument")}


def load_module(path: str) -> ModuleType:
    """The config file as a module.

    Raises:
      FileNotFoundError: if there is no such file; the message names similar ones.
    """
    file = pathlib.Path(own_folder.found(path))
    if not file.is_file():
        near = [str(other) for other in sorted(file.parent.glob("*.py"))] if file.parent.is_dir() else []
        raise FileNotFoundError(f"there is no config file {path}{_near(path, near)}")
    own_folder.put_on_path(path)
    if file.resolve().is_relative_to(pathlib.Path.cwd()):  # the same module that others import
        parts = file.resolve().relative_to(pathlib.Path.cwd()).with_suffix("").parts
        if (pathlib.Path.cwd() / parts[0] / "__init__.py").exists():
            return importlib.import_module(".".join(parts))
    name = "config_" + hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def load_config(config: str) -> ConfigDict:
    """The locked config of "configs/FILE.py:arguments".

    Raises:
      ValueError: if the file makes no config.
    """
    path, _, argument = config.partition(":")
    module = load_module(path)
    if not hasattr(module, "get_config"):
        raise ValueError(f"{path} is no config: it has no function get_config, which makes one")
    return module.get_config(argument or None).lock()


def functions_of(module: ModuleType, prefix: str) -> dict[str, Any]:
    """{NAME: function} for the functions prefix_NAME of a config file and of the config files that it builds on."""
    result: dict[str, Any] = {}
    waiting, seen = [module], set()
    while waiting:
        module = waiting.pop(0)
        if module.__name__ in seen:
            continue
        seen.add(module.__name__)
        for name, value in vars(module).items():
            if name.startswith(prefix) and callable(value):
                result.setdefault(name.removeprefix(prefix), value)
        imported = [value for value in vars(module).values() if isinstance(value, ModuleType)]
        waiting += [value for value in imported if value.__name__.startswith("configs.") and value is not sweeps]
    return result


def set_fields(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
    """A locked copy of `config` with other values, as strict as the command line of a run.

    Args:
      config: the config.
      overrides: {dotted field: value}. Of reward.terms also the short form, "math,0.2*my_rewards:brief".

    Raises:
      ValueError: if a field does not exist (the message names similar ones) or is a group of fields, or if a value has
        another type than the field (an int is a valid float).
    """
    result = config.copy_and_resolve_references()
    for name, value in fields_of(overrides).items():
        *groups, last = name.split(".")
        place: Any = result
        for part in [*groups, last]:
            if not isinstance(place, ConfigDict) or part not in place:
                raise ValueError(f"the config has no field {name}{_near(name, _names(config))}")
            parent, place = place, place[part]
        if name == TERMS and isinstance(value, str):
            parent[last] = ConfigDict(reward_spec.parse_terms(value))
            continue
        if isinstance(place, ConfigDict):
            raise ValueError(f"{name} is a group of fields; name one of {', '.join(f'{name}.{key}' for key in place)}")
        if not _fits(value, place):
            raise ValueError(f"{name}={place!r} is a {type(place).__name__}, but {value!r} is a {type(value).__name__}")
        parent[last] = float(value) if type(place) is float else value
    return result.lock()


def expand(
    config: str, names: str, *, program: str | None = None, subsample: int | None = None, fixed: Sequence[str] = ()
) -> list[Point]:
    """The points of the product of the sweeps in `names`, in the order of the config's functions.

    Args:
      config: "configs/FILE.py:arguments".
      names: sweeps and their arguments, "lr,seed:8".
      program: None takes the config's own.
      subsample: how many points to sample without replacement; None for all.
      fixed: "field=value" for every point, as on a command line.

    Raises:
      ValueError: if a sweep, argument or field is unknown (the message names similar ones), or if two points have the
        same name.
    """
    module = load_module(config.partition(":")[0])
    known = functions_of(module, "sweep_")
    parts = []
    for text in filter(None, names.split(",")):
        name, _, arg = text.partition(":")
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{config} has no sweep {name!r}{_near(name, known)}; it has: {there}")
        parts.append([(name, overrides) for overrides in known[name](arg or None)])
        if not parts[-1]:
            raise ValueError(f"the sweep {text!r} returned no points")
    points = [_point(config, combination, program, fixed) for combination in itertools.product(*parts)]
    if subsample is not None:
        kept = sweeps.subsample([{"point": index} for index in range(len(points))], subsample)
        points = [points[chosen["point"]] for chosen in kept]
    sweeps.check_seeds(sorted({point.seed for point in points}), tuning=False)
    return check_names(points)


def check_names(points: Iterable[Point]) -> list[Point]:
    """The points as a list.

    Raises:
      ValueError: if two have the same name.
    """
    points, seen = list(points), set()
    for point in points:
        if point.name in seen:
            raise ValueError(f"two points of the sweep have the name {point.name}")
        seen.add(point.name)
    return points


def resolve(point: Point) -> ConfigDict:
    """The config of a point's run. Raises ValueError as set_fields does."""
    return set_fields(load_config(point.config), point.overrides)


def make_point(
    config: str, overrides: Mapping[str, Any], *, name: str, arm: str, program: str | None = None
) -> Point:
    """A point whose config is known to load with its overrides.

    Args:
      config: the sweep's; the overrides "config" and "argument" change it.
      overrides: {dotted field: plain value}.
      name: of the point.
      arm: the name without the seed.
      program: None takes the config's own.

    Raises:
      ValueError: if an override is invalid, as in `set_fields`, or is not plain data.
    """
    for field, value in overrides.items():
        if not _is_plain(value):
            raise ValueError(f"{field}={value!r}: an override must be a number, a string, a bool or a tuple of these")
    path, _, argument = str(overrides.get("config", config)).partition(":")
    argument = argument or config.partition(":")[2]  # another file, the same task or size
    words = [word for word in (argument, overrides.get("argument", "")) if word]
    place = f"{path}:{','.join(words)}" if words else path
    resolved = set_fields(load_config(place), overrides)
    program = program or program_of(resolved)
    return Point(name, dict(overrides), arm, int(resolved.get("seed", 0)), place, program)


def _point(config: str, parts: Sequence[tuple[str, Mapping]], program: str | None, fixed: Sequence[str]) -> Point:
    overrides: dict[str, Any] = {}
    names, arms = [], []
    for sweep, part in parts:
        twice = sorted(set(overrides) & set(part))
        if twice:
            raise ValueError(f"two sweeps set {', '.join(twice)}")
        overrides |= part
        label = f"{sweep}={_label(part, sweep)}"
        names.append(label)
        if "seed" not in part:
            arms.append(label)
    for text in fixed:
        name, _, value = text.partition("=")
        if name in overrides:
            raise ValueError(f"{name} is both set on the command line and swept: leave one out")
        overrides[name] = _parsed(name, value, load_config(config))
    return make_point(
        config, overrides, name=_short(",".join(names) or "only"), arm=_short(",".join(arms) or "all"), program=program
    )


def _label(overrides: Mapping[str, Any], sweep: str) -> str:
    """The part of a name from one sweep: its values, equal ones once. A seed is its number, a file is its stem."""
    if sweep == "seed" and "seed" in overrides:
        return str(overrides["seed"])
    values = []
    for name, value in overrides.items():
        text = pathlib.Path(value.partition(":")[0]).stem if name == "config" else _text(value)
        values.append(text or "none")
    return "_".join(dict.fromkeys(values))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, (tuple, list)):
        return "+".join(map(_text, value))
    return re.sub(r"[^\w.+-]", "-", str(value))


def _short(name: str) -> str:
    """The name, short enough for a folder on any file system."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _flag(value: Any) -> str:
    return str(value) if isinstance(value, str) else repr(value)


def _parsed(name: str, text: str, config: ConfigDict) -> Any:
    """The value of a command line's "field=value", converted to the type of the field."""
    place: Any = config
    for part in name.split("."):
        if not isinstance(place, ConfigDict) or part not in place:
            raise ValueError(f"the config has no field {name}{_near(name, _names(config))}")
        place = place[part]
    if name == TERMS:
        return text
    if isinstance(place, (tuple, list)):  # as a program reads it: (8,16) or 8,16
        try:
            return type(place)(tuple_parser.TupleParser().parse(text))
        except (SyntaxError, TypeError, ValueError):
            raise ValueError(f"{name}={text}: the value must be a tuple, such as (8,16)") from None
    if not isinstance(place, PLAIN):
        raise ValueError(f"{name} is a {type(place).__name__}: set it in the config file")
    try:
        return {"true": True, "false": False}[text.lower()] if isinstance(place, bool) else type(place)(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name}={text}: the value must be a {type(place).__name__}") from None


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, (tuple, list)) and all(map(_is_plain, value)))


def _fits(value: Any, place: Any) -> bool:
    """Whether `value` has a type that a field with value `place` accepts."""
    if place is None or isinstance(place, (tuple, list)) and isinstance(value, (tuple, list)):
        return True
    if type(place) is float:
        return type(value) in (int, float)
    return type(value) is type(place)


def _names(config: ConfigDict, prefix: str = "") -> list[str]:
    """The dotted names of all fields."""
    result = []
    for key, value in config.items():
        result += _names(value, f"{prefix}{key}.") if isinstance(value, ConfigDict) else [prefix + key]
    return result


def _near(name: str, known: Iterable[str]) -> str:
    """"; near it: a, b", or nothing."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; near it: {', '.join(near)}" if near else ""


def shown(command: Sequence[str]) -> str:
    """A command line to paste into a shell."""
    return shlex.join(command)
