"""What searches of a reward share: candidates that train in one program, their file, fields on the command line."""

import argparse
import ast
import collections
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import control_runs, control_setup, origin
from rl_jax.runs.logging import encode_row, write_atomically

ROWS = "search.jsonl"
SETTINGS = "settings.json"
COUNTS = ("generations", "candidates", "seeds", "test_seeds")
# Options that may be others when a search goes on. config: the file, whose fields are compared; url: a server started
# again may have another port.
MAY_CHANGE = ("workdir", "config", "generations", "url")
TEST_SEEDS = 1_000_000  # the first of them


def run_fields(
    config: ConfigDict, fields: Sequence[Sequence[tuple[str, float]]], seeds: Sequence[Sequence[int]]
) -> tuple[dict[str, np.ndarray], Any, ConfigDict]:
    """Trains every candidate on its seeds, all in one program.

    Args:
      config: of experiments.control.ppo.
      fields: of each candidate, (dotted name, number), the same names for each.
      seeds: of each candidate's runs, as many for each.

    Returns:
      ({metric: float [rows of metrics, candidates, seeds]}, the last state of all runs, the config with its runs).
    """
    config = config.copy_and_resolve_references()
    config.runs = tuple((seed, tuple(field)) for field, own in zip(fields, seeds, strict=True) for seed in own)
    config.group = len(config.runs)
    program = control_runs.make_program(config)
    state, found = program.init(), []
    for _ in range(control_setup.num_updates(config) // config.log_every):
        state, metrics = program.advance(state)
        found.append(jax.device_get(metrics))
    shape = (len(fields), len(seeds[0]))
    by_candidate = {name: np.stack([np.reshape(row[name], shape) for row in found]) for name in found[-1]}
    return by_candidate, state, config


def append(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """Adds rows to a JSONL file, all of them or none."""
    before = path.read_bytes() if path.exists() else b""
    write_atomically(path, before + _lines(rows))


def write(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    """Makes rows the content of a JSONL file, all of them or none."""
    write_atomically(path, _lines(rows))


def _lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(encode_row(row) + "\n" for row in rows).encode()


def check_resumed(
    path: pathlib.Path, config: ConfigDict, options: argparse.Namespace, rows: list[dict[str, Any]], tested: list
) -> None:
    """Keeps the settings of a search that begins in WORKDIR/SETTINGS, and refuses to go on with one of others.

    Args:
      path: of its rows.
      config: with the fields of the command line.
      options: of the command line. May change: those of MAY_CHANGE.
      rows: of the candidates so far.
      tested: rows of the test.

    Raises:
      ValueError: if an option that counts is below 1, or if the search had other settings or was tested before its
        end now.
    """
    for name in COUNTS:
        if (value := getattr(options, name)) < 1:
            raise ValueError(f"--{name}={value} must be 1 or more")
    flags = {f"--{name}": value for name, value in vars(options).items() if name not in MAY_CHANGE}
    origin.keep(path.with_name(SETTINGS), config.to_dict() | flags, made=bool(rows or tested))
    sizes = collections.Counter(row["generation"] for row in rows)
    if tested and len(rows) < options.generations * options.candidates:
        raise ValueError(
            f"{path}: its {len(sizes)} generations were tested already, and --generations={options.generations} would "
            "choose anew after the test: use another workdir"
        )


def given(arguments: Sequence[str]) -> dict[str, Any]:
    """{dotted field: value} of --config.a.b=value.

    Raises:
      ValueError: if an argument is of another form.
    """
    result = {}
    for text in arguments:
        name, equals, value = text.partition("=")
        if not name.startswith("--config.") or not equals:
            raise ValueError(f"{text!r} is no flag of reward_search; a field of the config is --config.a.b=value")
        try:
            result[name.removeprefix("--config.")] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            result[name.removeprefix("--config.")] = value
    return result
