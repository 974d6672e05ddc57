"""experiments.tools.pass_rates, and the flags that a world's task makes of its file: UR2's search for hard prompts."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from configs import agents_papers
from experiments.parts import players
from experiments.parts.setup import load_task
from experiments.tools import pass_rates
from rl_jax.experience import trajectory
from rl_jax.experience.prompt import prompt_id
from rl_jax.experience.trajectory import Span, Trajectory, Turn


def config_of(tmp_path, words):
    config = agents_papers.get_config(f"{words},smoke")
    config.task.update(num_train=4, num_test=2, data_dir=str(tmp_path / "data"))
    return config


def episode(name, right, sample, group, status="done"):
    one = np.array([1], np.int32)
    spans = (Span("prompt", one), Span("sampled", one, *[np.zeros(1, np.float32)] * 2, one * 0))
    return Trajectory(name, group, sample, (spans,), (Turn(0.0, "", {"correct": float(right)}),), status)


@pytest.mark.slow
def test_only_prompts_that_are_hard_without_the_tool_get_it(tmp_path, capsys):
    """Two of three prompts that were played are hard; a failed episode does not count, nor one of another task."""
    config, run = config_of(tmp_path, "ur2,alone"), tmp_path / "run"
    source = load_task(config).data_source("train")
    records = [source[i] for i in range(len(source))]
    names = [prompt_id(record) for record in records]
    assert len(set(names)) == 4
    rights = {names[0]: [1, 1, 0], names[1]: [1, 0, 0], names[2]: [0, 0], "other": [1]}
    played = [episode(n, x, s, g) for g, (n, found) in enumerate(rights.items()) for s, x in enumerate(found)]
    played.append(episode(names[2], 1, 2, 2, status="error"))
    (run / "trajectories").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(config.to_dict()))
    pyarrow.parquet.write_table(trajectory.to_table(played), run / "trajectories/00000001.parquet")
    assert pass_rates.main([str(run)]) == 0 and "3 prompts, mean pass rate 0.333" in capsys.readouterr().out
    rows = json.loads((run / pass_rates.NAME).read_text())
    assert [row["rate"] for row in rows] == pytest.approx([2 / 3, 1 / 3, 0])
    assert [row["episodes"] for row in rows] == [3, 3, 2]

    config = config_of(tmp_path, "ur2")
    config.task.rates = str(run / pass_rates.NAME)
    source, flags = load_task(config).data_source("train"), []
    for record, like in zip((source[i] for i in range(4)), records, strict=True):
        info = json.loads(record["info"])
        flags.append(info.pop("search", None))
        assert info == json.loads(like["info"]) and record["prompt"] == like["prompt"]
        env = players.environment_of(config)()
        env.reset(record, 0)
        answer = env.step("s ann has").messages[0]["content"]
        assert (answer == "off\n") == (flags[-1] is False)
    assert flags == [False, True, True, None]
    alone = players.environment_of(config_of(tmp_path, "ur2,alone"))()
    alone.reset(records[1], 0)
    assert alone.step("s ann has").messages[0]["content"] == "off\n"
    assert pass_rates.main([str(tmp_path)]) == 2
    config.task.rates = str(run / "config.json")
    with pytest.raises(ValueError, match="no file of experiments.tools.pass_rates"):
        load_task(config)
