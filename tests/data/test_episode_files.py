"""data/episode_files.py: D5RL's layout, an npz of each episode, and errors that say where."""

import numpy as np
import pytest

from rl_jax.data import episode_files
from rl_jax.data.readers import DataError


def write(folder, name, rows, **more):
    folder.mkdir(parents=True, exist_ok=True)
    count = np.arange(rows, dtype=np.float32)
    fields = {"proprio": np.stack([count, -count], 1), "action": count[:, None] * 10, "reward": count} | more
    np.savez(folder / name, **fields)


def test_a_row_is_what_its_action_led_to_and_each_folder_is_a_source(tmp_path):
    write(tmp_path / "play", "b.npz", 3)
    write(tmp_path / "expert" / "deep", "a.npz", 4, note=np.array([{"an": "object"}], dtype=object))
    found = episode_files.read(tmp_path)
    assert found.observations[:, 0].tolist() == [0, 1, 2, 0, 1] and found.next_observations[:, 1].tolist() == [
        -1, -2, -3, -1, -2
    ]  # fmt: skip
    assert found.actions[:, 0].tolist() == [10, 20, 30, 10, 20] and found.rewards.tolist() == [1, 2, 3, 1, 2]
    assert found.episode.tolist() == [0, 0, 0, 1, 1] and found.truncated.tolist() == [False, False, True, False, True]
    assert not found.terminated.any() and found.metadata["sources"] == ["expert/deep", "play"]
    assert found.source.tolist() == [0, 0, 0, 1, 1]


def test_rewards_of_objects_are_summed(tmp_path):
    terms = {"reward kettle": np.float32([0, 1, 1]), "reward microwave": np.float32([0, 0, 2]), "state": np.eye(3)}
    write(tmp_path, "a.npz", 3, **terms)
    found = episode_files.read(tmp_path, observation="state", terms=("kettle", "microwave"))
    assert found.rewards.tolist() == [1, 3] and found.observations.shape == (2, 3)


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({}, dict(observation="image"), r"a.npz: no field 'image' \(it has"),
        ({}, dict(terms=("kettle",)), "a.npz: no field 'reward kettle'"),
        (dict(action=np.zeros((2, 1))), {}, r"have \[2, 3\] rows, expected one number above 1"),
        (dict(reward=np.array([None] * 3)), {}, "a.npz: not a readable npz of plain arrays"),
        (dict(proprio=np.float32([[0], [np.nan], [0]])), {}, "field 'observations', step 1"),
    ],
)
def test_errors_say_where(tmp_path, fields, options, said):
    write(tmp_path, "a.npz", 3, **fields)
    with pytest.raises(DataError, match=said):
        episode_files.read(tmp_path, **options)


def test_no_episodes_and_episodes_that_differ(tmp_path):
    with pytest.raises(DataError, match="no folder with episodes"):
        episode_files.read(tmp_path / "nowhere")
    write(tmp_path, "a.npz", 3)
    write(tmp_path, "b.npz", 3, action=np.zeros((3, 2)))
    with pytest.raises(DataError, match="episodes of different shapes"):
        episode_files.read(tmp_path)
