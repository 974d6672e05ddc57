"""The config.json of a finished run, as today's programs read it."""

import copy
import pathlib
from typing import Any

from ml_collections import ConfigDict

from rl_jax.runs.run_record import last_config

# Fields that came later, with what runs of before did: group -> field -> value. Groups that a run lacks stay away.
LATER: dict[str, dict[str, Any]] = {
    "": {"judge": {}},
    "model": {"template": {}, "ignore_fields": []},
    "rollout": {"long_prompts": "stop"},
    "eval": {"completion_length": 0},
    "encode": {"separator": "\n"},
}


def read_config(workdir: pathlib.Path) -> ConfigDict:
    """The config of a run, with the fields that it was too early to have.

    Args:
      workdir: with config.json.
    """
    return with_later_fields(ConfigDict(last_config(workdir)))


def with_later_fields(config: ConfigDict) -> ConfigDict:
    """Sets the fields of LATER that `config` lacks. Returns it."""
    for name, fields in LATER.items():
        group = config.get(name) if name else config
        for field, value in fields.items() if isinstance(group, ConfigDict) else ():
            if field not in group:
                group[field] = copy.deepcopy(value)
    return config
