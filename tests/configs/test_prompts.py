"""Every file of configs/prompts: it says what it is, and its source of prompts runs on its task."""

import importlib
import pathlib
import re

import numpy as np
import pytest

from configs.tasks import sat
from experiments.parts.prompts import make_prompts
from experiments.parts.setup import make_setup
from rl_jax.experience import Feedback
from tests.paths import REPO_ROOT

KEYS = sorted(p.stem for p in (REPO_ROOT / "configs" / "prompts").glob("*.py") if not p.stem.startswith("_"))


def module_of(key: str):
    return importlib.import_module(f"configs.prompts.{key}")


@pytest.mark.parametrize("key", KEYS)
def test_a_file_says_what_it_is(key):
    text = module_of(key).__doc__
    title, equation, *_ = text.split("\n\n")
    assert re.search(r"arXiv \d{4}\.\d{5}", title) and equation.startswith("    ") and re.search(r"[=<>~]", equation)
    assert f"    python -m experiments.grpo --config=configs/prompts/{key}.py\n" in text
    assert module_of(key).get_config("smoke,game24" if key in ("hapo", "pcl") else None).name.startswith(key)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("key", KEYS)
def test_its_source_runs_on_its_task(key, data):
    config = module_of(key).get_config("smoke")
    assert config.sample.prompts.fn != "shuffled" or config.sample.memory.on
    config.task.update(num_train=50, num_test=10, data_dir=str(data))
    config.model.update(embed_dim=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, mlp_dim=8)
    setup = make_setup(config)
    records = setup.task.data_source("train")
    stream = make_prompts(setup, records, batch_size=8)
    for step in range(3):
        batch, shape = next(stream), (8, config.sample.group_size)
        indices, ids = [record["index"] for record in batch], [record["id"] for record in batch]
        success = np.float32(np.arange(np.prod(shape)).reshape(shape) % (step + 2) == 0)
        seen = Feedback(np.array(indices), ids, success, success, np.full(shape, 3), [["x"] * shape[1]] * 8)
        stream.feedback(seen)
    assert len(next(stream)) == 8 and stream.get_state()["source"]["draws"] == 4
    if config.task.name == "sat":
        assert len(records) == 50 * len(sat.LEVELS)
        assert stream.metrics()["prompts/effective"] > 1 if key != "pcl" else "prompts/value_error" in stream.metrics()


def test_one_task_at_a_time():
    with pytest.raises(ValueError, match="choose one task, not 2: sat, arithmetic"):
        module_of("vla_rl").get_config("sat,arithmetic")
    with pytest.raises(ValueError, match="config argument"):
        module_of("saturn").get_config("game24")  # it has no levels
