"""experiments/tools/tiny_clip.py, and what is learned from what it sees: a reward in words, in stages, of preferences."""

import functools
import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.control import images as configs
from configs.control import offline_images
from experiments.parts import check_config, control_runs, control_setup, image_encoders, offline_labels, offline_runs
from experiments.tools import tiny_clip
from rl_jax.models import clip
from rl_jax.models.hf import clip_folder
from rl_jax.tokenizers import load_tokenizer

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
SIZE = 16
CORNER, OTHER = "the dot is far right and at the top", "the dot is far left and at the bottom"


@functools.cache
def folder() -> pathlib.Path:
    """A trained model that the tests of this file share."""
    made = pathlib.Path(tempfile.mkdtemp()) / "clip"
    right = tiny_clip.write("pointmass", made, steps=400, batch_size=64, size=SIZE)
    assert right > 0.6, right  # of 25 captions
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(control_runs, "CPU_OPTIONS", QUICK)


def small(word="pointmass", **fields):
    config = configs.get_config(word)
    config.network.hidden = (32,)
    config.train.total_steps = 30 * 16 * 40
    config.train.optimizer.learning_rate = 3e-3
    config.log_every = 30
    with config.unlocked():
        if config.algorithm.relabel.fn:
            config.algorithm.relabel.update(encoder=str(folder()), picture=dict(fn="pointmass", size=SIZE))
        config.update_from_flattened_dict({name.replace("__", "."): value for name, value in fields.items()})
    return config


@functools.cache
def returns(**fields):
    """eval/return of each seed after 30 updates: minus the distance to (1, 1), summed over 20 steps."""
    config = small(**fields)
    check_config.check(config)
    init, advance, _ = control_runs.make_run(config)
    run = jax.jit(
        lambda *args: jax.lax.map(lambda own: advance(init(*own), own[1], 30)[1], args), compiler_options=QUICK
    )
    return np.asarray(run(*control_setup.runs_of(config))["eval/return"])
