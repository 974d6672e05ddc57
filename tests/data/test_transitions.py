"""data/transitions.py and data/rlds.py: what is written is read, other layouts are read, and errors say where."""

import importlib.util

import numpy as np
import pytest

from rl_jax.data import rlds, transitions
from rl_jax.data.readers import DataError

HAS_HDF5 = importlib.util.find_spec("h5py") is not None
hdf5 = pytest.mark.skipif(not HAS_HDF5, reason="h5py is not installed: pip install -e '.[offline]'")


def arrays(count=6, ends=(2, 5)):
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(count, 3)).astype(np.float32)
    ended = np.isin(np.arange(count), ends)
    return dict(
        observations=observations,
        actions=rng.normal(size=(count, 2)).astype(np.float32),
        rewards=np.arange(count, dtype=np.float32),
        next_observations=observations + 1.0,
        terminated=ended & (np.arange(count) < 4),
        truncated=ended & (np.arange(count) >= 4),
    )


def recorded(name="here", **fields):
    return transitions.check(name, arrays() | fields, {"env": "probes/pointmass", "behaviours": ["expert"]})


def same(left, right):
    for name in transitions.FIELDS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_what_is_written_is_read(tmp_path):
    transitions.write(tmp_path / "a.npz", recorded())
    found = transitions.read(tmp_path / "a.npz")
    same(found, recorded())
    assert found.metadata == recorded().metadata and found.episode.tolist() == [0, 0, 0, 1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_an_episode_without_an_end_ends_where_its_recording_stopped():
    """A return must not run on into the next episode."""
    never = np.zeros(6, bool)
    found = recorded(terminated=never, truncated=never, episode=np.array([0, 0, 1, 1, 1, 2]))
    assert found.truncated.tolist() == [False, True, False, False, True, True] and not found.terminated.any()
    whole = arrays()
    np.testing.assert_array_equal(recorded().truncated, whole["truncated"])
    over = recorded(terminated=np.arange(6) == 1, truncated=never, episode=np.array([0, 0, 1, 1, 1, 1]))
    assert over.truncated.tolist() == [False] * 5 + [True]


def test_a_folder_is_one_dataset(tmp_path):
    transitions.write(tmp_path / "a.npz", recorded("a"))
    transitions.write(tmp_path / "b.npz", recorded("b"))
    found = transitions.read(tmp_path)
    assert found.episode.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert found.source.tolist() == [0] * 6 + [1] * 6 == found.behaviour.tolist()
    assert found.metadata["sources"] == ["a", "b"] and found.metadata["behaviours"] == ["expert", "expert"]
    transitions.write(tmp_path / "c.npz", recorded("c", actions=np.zeros(6, int)))
    with pytest.raises(DataError, match=r"c, field 'actions': int32 \(\) per step, but a has float32 \(2,\)"):
        transitions.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(rewards=np.zeros((0,))), r"field 'rewards': shape \(0,\), expected \[N\]"),
        (dict(actions=np.zeros((5, 2))), r"field 'actions': shape \(5, 2\), expected \(6, 2\): 6 steps have rewards"),
        (dict(next_observations=np.zeros((6, 2))), r"'next_observations': shape \(6, 2\), expected that of obs"),
        (dict(rewards=np.array([0, 1, np.nan, 0, 0, 0])), "field 'rewards', step 2: nan is not finite"),
        (dict(observations=np.array(["a"] * 6)), "field 'observations': dtype <U1"),
        (dict(episode=np.array([0, 1, 0, 1, 1, 1])), "field 'episode': 1 is followed by 0 at step 2"),
        (dict(terminated=np.zeros((6, 2))), r"field 'terminated': shape \(6, 2\)"),
    ],
)
def test_wrong_fields_are_named(changes, said):
    with pytest.raises(DataError, match=said):
        recorded("FILE", **changes)


def test_wrong_files_are_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"no")
    with pytest.raises(DataError, match="a.npz: not a readable npz"):
        transitions.read(tmp_path / "a.npz")
    np.savez(tmp_path / "objects.npz", rewards=np.array([{}], dtype=object))  # pickled: never loaded
    with pytest.raises(DataError, match="objects.npz: not a readable npz"):
        transitions.read(tmp_path / "objects.npz")
    np.savez(tmp_path / "part.npz", rewards=np.zeros(3))
    with pytest.raises(DataError, match=r"part.npz: no field 'observations' \(it has \['rewards'\]\)"):
        transitions.read(tmp_path / "part.npz")
    with pytest.raises(DataError, match="no such file"):
        transitions.read(tmp_path / "b.npz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="a folder without"):
        transitions.read(tmp_path / "empty")


@pytest.mark.skipif(HAS_HDF5, reason="h5py is installed")
def test_hdf5_without_h5py_says_what_to_install(tmp_path):
    (tmp_path / "a.hdf5").write_bytes(b"")
    with pytest.raises(ImportError, match="a.hdf5: reading HDF5 needs h5py: pip install h5py"):
        transitions.read(tmp_path / "a.hdf5")


@hdf5
def test_minaris_layout(tmp_path):
    import h5py

    data = arrays()
    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "w") as file:
        for episode, part in enumerate((slice(0, 3), slice(3, 6))):
            group = file.create_group(f"episode_{episode}")
            last = data["next_observations"][part][-1:]
            group["observations"] = np.concatenate([data["observations"][part], last])
            group["actions"], group["rewards"] = data["actions"][part], data["rewards"][part]
            group["terminations"], group["truncations"] = data["terminated"][part], data["truncated"][part]
    found = transitions.read(tmp_path)
    for name in ("observations", "actions", "rewards", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), data[name])
    np.testing.assert_array_equal(found.next_observations[:2], data["observations"][1:3])
    np.testing.assert_array_equal(found.next_observations[2], data["next_observations"][2])
    assert found.episode.tolist() == [0, 0, 0, 1, 1, 1]
    with h5py.File(tmp_path / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/observations"]
        file["episode_1/observations"] = data["observations"][3:]
    with pytest.raises(DataError, match=r"'episode_1/observations': shape \(3, 3\), expected 4 observations"):
        transitions.read(tmp_path)


@hdf5
def test_an_empty_episode_of_minari_is_no_episode_and_a_terminal_is_no_truncation(tmp_path):
    import h5py

    def write(*lengths):
        with h5py.File(path, "w") as file:
            for episode, steps in enumerate(lengths):
                group = file.create_group(f"episode_{episode}")
                group["observations"], group["actions"] = np.zeros((steps + 1, 3)), np.zeros((steps, 2))
                group["rewards"], over = np.full(steps, episode), np.arange(steps) == steps - 1
                group["terminations"], group["truncations"] = over & (episode == 0), over

    path = tmp_path / "main_data.hdf5"
    write(2, 0, 3)
    found = transitions.read(path)
    assert found.episode.tolist() == [0, 0, 1, 1, 1] and found.rewards.tolist() == [0, 0, 2, 2, 2]
    assert np.flatnonzero(found.terminated).tolist() == [1] and np.flatnonzero(found.truncated).tolist() == [4]
    write(0, 0)
    with pytest.raises(DataError, match="main_data.hdf5: no episode of a step or more"):
        transitions.read(path)


@hdf5
def test_d4rls_layout(tmp_path):
    import h5py

    data = arrays()
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"], file["rewards"] = data["observations"], data["actions"], data["rewards"]
        file["terminals"], file["timeouts"] = data["terminated"], data["truncated"]
    found = transitions.read(path)  # as d4rl.qlearning_dataset: the step at the timeout has no next observation
    assert found.rewards.tolist() == [0, 1, 2, 3, 4] and found.episode.tolist() == [0, 0, 0, 1, 1]
    assert found.terminated.tolist() == [False, False, True, False, False]
    assert found.truncated.tolist() == [False, False, False, False, True]
    np.testing.assert_array_equal(found.next_observations[3], data["observations"][4])
    with h5py.File(path, "a") as file:
        file["next_observations"] = data["next_observations"]
    same(transitions.read(path), transitions.check(path, data))
    with h5py.File(path, "a") as file:
        del file["actions"]
        file["actions"] = data["actions"][:4]
    with pytest.raises(DataError, match=r"a.hdf5, field 'actions': shape \(4, 2\), expected 6 rows"):
        transitions.read(path)
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros(2)
    with pytest.raises(DataError, match=r"neither Minari's layout.*it has \['images'\]"):
        transitions.read(path)


def write_d4rl(path, data, *names):
    import h5py

    with h5py.File(path, "w") as file:
        file["terminals"] = data["terminated"]
        for name in ("observations", "actions", "rewards", *names):
            file[name] = data[name]


@hdf5
def test_a_d4rl_file_without_timeouts_needs_the_length_of_an_episode(tmp_path):
    """Without next_observations a transition would lead across a reset; the length cuts if no terminal came before."""
    path, terminated = tmp_path / "a.hdf5", np.isin(np.arange(9), (1, 7))
    data = arrays(count=9) | dict(terminated=terminated)
    write_d4rl(path, data)
    with pytest.raises(DataError, match="a.hdf5: no field 'timeouts' and no 'next_observations'.*episode_length"):
        transitions.read(path)
    found = transitions.read(path, episode_length=4)  # rows 0 1 | 2 3 4 5 | 6 7 | 8, of which 5 and 8 have no next
    assert found.rewards.tolist() == [0, 1, 2, 3, 4, 6, 7] and found.episode.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert np.flatnonzero(found.terminated).tolist() == [1, 6] and np.flatnonzero(found.truncated).tolist() == [4]
    two = transitions.read(path, episode_length=2)  # a terminal in the last step of an episode is a terminal
    assert two.rewards.tolist() == [0, 1, 2, 4, 6, 7] and np.flatnonzero(two.terminated).tolist() == [1, 5]
    write_d4rl(path, data, "next_observations")
    assert not transitions.read(path).truncated[:-1].any()  # nothing leads across, so it may be read as one episode
    known = transitions.read(path, episode_length=4)
    assert known.rewards.tolist() == list(range(9)) and np.flatnonzero(known.truncated).tolist() == [5, 8]
    assert known.episode.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 3]
    write_d4rl(path, data | dict(timeouts=np.arange(9) == 3), "timeouts")
    own = transitions.read(path, episode_length=4)  # what the file says goes before
    assert own.rewards.tolist() == [0, 1, 2, 4, 5, 6, 7] and np.flatnonzero(own.truncated).tolist() == [2]


def steps(count, terminal, last_reward=0.0):
    rewards = [10 * i for i in range(count - 1)] + [last_reward]
    rows = [
        dict(observation=np.full(2, i, np.float32), action=np.int32(i), reward=np.float32(reward))
        for i, reward in enumerate(rewards)
    ]
    flags = [dict(is_terminal=terminal and i == count - 1, is_last=i == count - 1) for i in range(count)]
    return {"steps": [row | flag for row, flag in zip(rows, flags, strict=True)]}


def test_rlds_episodes():
    """The last step is an observation only; whether the task ended there is is_terminal."""
    found = rlds.from_episodes([steps(4, True), steps(1, False), steps(3, False)])
    assert found.rewards.tolist() == [0, 10, 20, 0, 10] and found.actions.tolist() == [0, 1, 2, 0, 1]
    assert found.next_observations[:, 0].tolist() == [1, 2, 3, 1, 2]
    assert found.terminated.tolist() == [False, False, True, False, False]
    assert found.truncated.tolist() == [False, False, False, False, True]
    assert found.episode.tolist() == [0, 0, 0, 1, 1]
    wrong = steps(3, True)
    del wrong["steps"][1]["reward"]
    with pytest.raises(DataError, match="NAME, episode 0, step 1: no field 'reward'"):
        rlds.from_episodes([wrong], "NAME")
    with pytest.raises(DataError, match="no episode of two steps"):
        rlds.from_episodes([steps(1, True)])
    wrong = steps(2, True)
    wrong["steps"][0]["observation"] = {"image": np.zeros(2)}
    with pytest.raises(DataError, match=r"field 'observation': a dict of \['image'\]"):
        rlds.from_episodes([wrong])


def test_a_reward_of_rldss_last_step_is_refused_kept_or_dropped_as_told():
    """By the convention it is invalid; some datasets have the success there, which must not vanish unseen."""
    episodes = [steps(3, True), steps(3, True, last_reward=5.0)]
    with pytest.raises(DataError, match="NAME, episode 1: its last step has the reward 5.0.*last_reward"):
        rlds.from_episodes(episodes, "NAME")
    with pytest.raises(DataError, match="episode 0: its last step has the reward -1.0"):
        rlds.from_episodes([steps(1, True, last_reward=-1.0)])
    found = rlds.from_episodes(episodes, last_reward="keep")
    assert found.rewards.tolist() == [0, 10, 0, 15] and found.terminated.tolist() == [False, True] * 2
    with pytest.raises(DataError, match="episode 0: one step only"):
        rlds.from_episodes([steps(1, True, last_reward=-1.0)], last_reward="keep")
    assert rlds.from_episodes(episodes, last_reward="drop").rewards.tolist() == [0, 10, 0, 10]
    with pytest.raises(ValueError, match="last_reward='sum' must be 'refuse', 'keep' or 'drop'"):
        rlds.from_episodes(episodes, last_reward="sum")
    for last_reward in ("refuse", "keep"):  # a placeholder, which says that there is none
        undefined = rlds.from_episodes([steps(3, True, last_reward=np.nan)], last_reward=last_reward)
        assert undefined.rewards.tolist() == [0, 10]
