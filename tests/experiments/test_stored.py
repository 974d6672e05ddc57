"""experiments.parts.stored: a config of before some fields existed is read as what its run did."""

import json
import math

from ml_collections import ConfigDict

from configs import common
from configs.preferences import reward_models
from experiments.parts import stored
from experiments.parts.judges import base
from experiments.parts.run import record_run
from tests.experiments.small import config as small_config


def without_later_fields(config: ConfigDict) -> dict:
    found = json.loads(config.to_json_best_effort())
    for group, fields in stored.LATER.items():
        for field in fields:
            (found[group] if group else found).pop(field, None) if not group or group in found else None
    return found


def test_an_older_run_is_read_with_todays_fields(tmp_path):
    record_run(small_config(tmp_path), tmp_path, "grpo", ())
    config = stored.read_config(tmp_path)
    older = without_later_fields(config)
    assert "judge" not in older and "long_prompts" not in older["rollout"] and "encode" not in older
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert stored.read_config(tmp_path).to_dict() == config.to_dict(), "the values are those of the defaults"
    assert base.setup_of(tmp_path, "").config.rollout.long_prompts == "stop"


def test_a_config_with_a_number_that_is_not_finite_is_read(tmp_path):
    config = small_config(tmp_path)
    config.train.max_grad_norm = math.inf
    record_run(config, tmp_path, "grpo", ())
    found = stored.read_config(tmp_path)
    assert found.train.max_grad_norm == math.inf and "nonfinite" not in found


def test_what_is_there_stays_and_groups_that_are_not_do_not_come():
    config = common.base("x")
    config.rollout.long_prompts = "cut"
    assert stored.with_later_fields(config).rollout.long_prompts == "cut" and "encode" not in config
    model = reward_models.get_config("steps")
    model.encode.separator = "="
    assert stored.with_later_fields(model).encode.separator == "="
    assert stored.with_later_fields(ConfigDict(without_later_fields(model))).encode.separator == "\n"
    assert stored.with_later_fields(ConfigDict({"env": {"name": "x"}})).to_dict() == {"env": {"name": "x"}, "judge": {}}
