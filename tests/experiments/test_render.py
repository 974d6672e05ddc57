"""Episodes as pictures and text: what is drawn is where the state says, nothing is lost on the disk, and no name of an
environment can become markup."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from experiments.report import render, scenes
from rl_jax.runs.logging import encode_row
from tests.experiments import episodes

ROWS = episodes.rows()
DRAWN = [name for name in ROWS if not name.startswith("probes")]
NUMBER = r"(-?[\d.]+)"


def frames(name: str) -> list[str]:
    """The frames of a film, the header of each left out."""
    film = str(render.film(ROWS[name], render.scene_for(ROWS[name])))
    reel = film.split('<g class="reel">')[1]
    return re.split(r'<g transform="translate\(0 \d+\)">', reel)[1:]


def written(row: dict) -> dict:
    """A row as it comes back from the disk."""
    return json.loads(encode_row(row))


@pytest.mark.parametrize("name", ROWS)
def test_what_is_written_is_what_is_read(name):
    row = written(ROWS[name])
    found, expected = render.observations_of(row), render.observations_of(ROWS[name])
    np.testing.assert_array_equal(found, expected)
    assert found.shape[0] == len(row["rewards"]) + 1 == len(row["actions"]) + 1


def test_a_board_takes_a_bit_a_cell_and_comes_back():
    board = episodes.board(20)
    row = written(render.episode_row(episodes.episode(board, np.zeros(20, int)), step=1, env="x"))
    np.testing.assert_array_equal(render.observations_of(row), board)
    assert len(row["observations"]["bits"][0]) == 100


def test_numbers_keep_six_digits_and_what_is_not_finite_stays_so():
    observations = np.array([[np.pi], [np.nan], [1e-9]])
    row = written(render.episode_row(episodes.episode(observations, np.zeros(2, int)), step=1, env="x"))
    np.testing.assert_allclose(render.observations_of(row), observations, rtol=1e-6)
    assert render.scene_for(row) is None and "n/a" in render.as_text(row)


def test_large_observations_are_left_out_and_said_so_by_the_table():
    images = np.random.default_rng(0).random((4, 30, 30, 3))
    row = written(render.episode_row(episodes.episode(images, np.zeros(3, int)), step=1, env="gymnasium/Big-v0"))
    assert row["observations"] is None
    section = render.section(row)
    assert section["film"] is None and section["table"]["head"] == ["step", "action", "reward", "return"]


def test_a_damaged_row_is_refused():
    with pytest.raises(ValueError, match="step 400 has 41 observations"):
        render.observations_of(ROWS["gymnax/CartPole-v1"] | {"rewards": [1.0] * 7})


def test_the_cart_and_its_pole_are_where_the_state_says():
    states = render.observations_of(ROWS["gymnax/CartPole-v1"])
    for frame, state in zip(frames("gymnax/CartPole-v1"), states, strict=True):
        x, angle = map(float, re.search(rf"translate\({NUMBER} 128\).*rotate\({NUMBER}\)", frame).groups())
        assert (x - 180) / 65 == pytest.approx(state[0], abs=1e-3)
        assert math.radians(angle) == pytest.approx(state[2], abs=2e-3)  # to the right where it is positive


def test_the_pendulum_turns_against_the_clock_from_upright():
    for frame, (cos, sin, _) in zip(
        frames("gymnax/Pendulum-v1"), render.observations_of(ROWS["gymnax/Pendulum-v1"]), strict=True
    ):
        x, y = map(float, re.search(rf"M0 0L{NUMBER} {NUMBER}", frame).groups())
        assert (-x / 68, -y / 68) == pytest.approx((sin, cos), abs=2e-3)


def test_the_acrobats_tip_is_above_the_line_where_the_goal_is_reached():
    row = ROWS["gymnax/Acrobot-v1"]
    tips = [float(re.search(rf"second\" d=\"M\S+ \S+L\S+ {NUMBER}\"", frame).group(1)) for frame in
            frames("gymnax/Acrobot-v1")]  # fmt: skip
    for tip, (cos1, sin1, cos2, sin2, *_) in zip(tips, render.observations_of(row), strict=True):
        above = -cos1 - (cos1 * cos2 - sin1 * sin2)  # gymnasium's rule: reached where it is above 1
        assert tip / 38 == pytest.approx(-above, abs=2e-3)


def test_the_car_stands_on_the_hill():
    hill = re.search(r'class="ground" d="M([^"]+)"', str(scenes.mountain_car().back)).group(1)
    points = np.array([list(map(float, point.split())) for point in hill.split("L")])
    for frame in frames("gymnax/MountainCar-v0"):
        x, y = map(float, re.search(rf"translate\({NUMBER} {NUMBER}\) rotate", frame).groups())
        assert y == pytest.approx(np.interp(x, *points.T), abs=1.0)


def test_every_cell_of_a_board_is_drawn_once_in_its_channels_colour():
    states = render.observations_of(ROWS["gymnax/Breakout-MinAtar"])
    for frame, state in zip(frames("gymnax/Breakout-MinAtar"), states, strict=True):
        drawn = np.zeros((10, 10, 4))
        for channel, path in re.findall(r'class="c(\d)" d="([^"]+)"', frame):
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", path):
                drawn[int(y), int(x) : int(x) + int(width), int(channel)] += 1
        np.testing.assert_array_equal(drawn, state)


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_one_file_of_frames_one_under_the_other(name):
    row, scene = ROWS[name], render.scene_for(ROWS[name])
    tree = ElementTree.fromstring(render.picture(row))
    count = len(row["rewards"]) + 1
    window = list(map(float, tree.get("viewBox").split()))
    style = dict(part.split(":") for part in tree.get("style").split(";"))
    assert window[2:] == [scenes.WIDTH, scene.height] and style["--shots"] == str(count - 1)
    assert style["--travel"] == f"-{(count - 1) * scene.height}px"
    assert len(frames(name)) == count and f"return {render.short_number(sum(row['rewards']))}" in frames(name)[-1]
    assert render.summary(row) in tree.get("aria-label")
    assert not {"script", "image", "use"} & {node.tag.rpartition("}")[2] for node in tree.iter()}
    assert [still["step"] for still in render.stills(row, scene)] == [0, *np.linspace(0, count - 1, 6).round()[1:]]


def test_a_long_episode_is_thinned_where_the_motion_is_smooth_and_cut_where_it_is_not():
    smooth, game = scenes.cartpole(), scenes.grid((10, 10, 4), (), ())
    places = render.picked(1001, smooth)
    assert places[0] == 0 and places[-1] == 1000 and len(places) <= render.MAX_FRAMES + 1
    assert set(np.diff(places)) == {4}
    assert render.picked(1001, game) == list(range(render.MAX_FRAMES))
    assert render.picked(3, smooth) == render.picked(3, game) == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "shape"), [("mine/CartPole-v1", (5,)), ("mine/Other-v0", (4,)), ("mine/Images-v0", (40, 40, 3))]
)
def test_what_nobody_has_drawn_has_no_picture(name, shape):
    row = render.episode_row(episodes.episode(np.zeros((3, *shape)), [0, 1]), step=1, env=name)
    assert render.scene_for(row) is None
    with pytest.raises(ValueError, match="print the steps with --text"):
        render.picture(row)


def test_the_name_of_an_environment_is_no_markup():
    row = ROWS["gymnax/CartPole-v1"] | {"env": '"><script>alert(1)</script>/CartPole-v1'}
    assert "<script>" not in render.film(row, render.scene_for(row))


def test_the_steps_as_text():
    lines = render.as_text(ROWS["gymnax/CartPole-v1"]).splitlines()
    assert lines[0] == "gymnax/CartPole-v1 after 400 updates: 40 steps, return 40, terminated"
    assert lines[1].split()[:3] == ["step", "position", "velocity"] and len(lines) == 42
    assert lines[3].split()[0] == "1" and lines[3].split()[5:] == ["right", "1", "2"]
    game = render.as_text(ROWS["gymnax/Breakout-MinAtar"]).split("\n\n")
    assert game[0].splitlines()[1] == "# paddle, o ball, . trail, = brick"
    assert game[1].splitlines()[0] == "step 0: stay" and game[2].splitlines()[0] == "step 1, reward 1: left"
    assert game[1].splitlines()[2:5] == ["|==========|"] * 3 and game[1].splitlines()[-1] == "|         #|"
    assert render.as_text(ROWS["probes/aim"]).splitlines()[-1].split() == ["0", "1", "0.4", "-0.01", "-0.01"]


def test_long_tables_leave_the_middle_out():
    found = render.table(ROWS["gymnax/CartPole-v1"] | {
        "rewards": [1.0] * 200, "actions": [0] * 200, "observations": {"shape": [4], "values": [[0.0] * 4] * 201}
    }, None)  # fmt: skip
    assert found["total"] == 200 and found["rows"].count(None) == 1
    assert [cells[0] for cells in found["rows"] if cells] == [*map(str, range(60)), *map(str, range(188, 200))]


def test_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="render: no episode under"):
        render.main([str(tmp_path)])
    lines = [encode_row(ROWS["probes/aim"]), encode_row(ROWS["gymnax/Acrobot-v1"])]
    (tmp_path / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    render.main([str(tmp_path), "--text"])
    assert capsys.readouterr().out.startswith("gymnax/Acrobot-v1 after 400 updates: 40 steps, return -40")
    render.main([str(tmp_path)])
    assert capsys.readouterr().out == f"{tmp_path / 'episode.svg'}\n"
    assert ElementTree.parse(tmp_path / "episode.svg").getroot().tag.endswith("svg")
