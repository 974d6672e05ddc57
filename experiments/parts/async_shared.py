"""The part of a config that two processes of one run must have alike, and what is said if they do not."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parts import origin
from experiments.parts.check_config import leaves


def shared_fields(config, groups: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """The fields that both sides must have alike: name -> JSON value.

    Args:
      config: of one side.
      groups: of the config, or its fields without a group.
      own: fields and groups that may differ all the same.
    """
    own = tuple(f"{name}." for name in own)
    fields = {name: value for name, value in leaves(config) if not f"{name}.".startswith(own)}
    fields = {name: value for name, value in fields.items() if name.partition(".")[0] in groups}
    return json.loads(json.dumps(origin.named(fields)))


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Names the first fields that differ: "2 fields differ: flow.eta=2 here, 8 there; ..."; "" if none does."""
    differ = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    few = "; ".join(f"{name}={ours.get(name)!r} here, {theirs.get(name)!r} there" for name in differ[:4])
    return f"{len(differ)} fields differ: {few}" if differ else ""


def oldest_resumed(checkpoints: pathlib.Path, keep: int | None) -> int | None:
    """The oldest step that a resume falls back to, if there is a checkpoint: of the newest `keep` (None: of all).

    Those of checkpoint.keep_every and keep_best are for other uses: with them the first would stay for ever, and what a
    link holds since.
    """
    saved = sorted(int(path.name) for path in checkpoints.glob("*") if path.name.isdecimal())
    newest = saved if keep is None else saved[-keep:]
    return newest[0] if newest else None
