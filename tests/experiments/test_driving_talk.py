"""experiments/tools/driving_talk.py: what the planner reads, and a drive that a server plans."""

import json

import jax
import numpy as np
import pytest

from experiments.tools import driving_talk
from experiments.tools.two_level import CRUISES, make_levels
from rl_jax.control import two_level
from rl_jax.envs.worlds import driving, spoken
from rl_jax.models.agents.features import Net
from rl_jax.rollout.lm import client
from tests.experiments.loopback import speaking


def seen(speed, gap, lead, cruise):
    shown = [float(x == cruise) for x in CRUISES]
    return np.float32([speed / driving.LIMIT, (gap + driving.CAR) / 50.0, lead / driving.LIMIT, 0.5, 0.0, *shown])


def test_what_the_planner_reads_and_says():
    text = driving_talk.question(seen(5.0, 30.0, 4.0, 9.0))
    assert text == (
        "Drive at 9 m/s and keep your distance. Your speed is 5.0 m/s. The car in front is 30 m ahead at 4.0 m/s. "
        "Command:"
    )
    rows = [
        seen(v, gap, lead, cruise)
        for v in (0.0, 4.0, 9.0)
        for gap in (5.0, 40.0)
        for lead in (3.0, 8.0)
        for cruise in CRUISES
    ]
    right = spoken.pedal_command(spoken.driver(np.stack(rows)[:, :5], np.float32([CRUISES[int(x[6])] for x in rows])))
    said = driving_talk.scripted([driving_talk.question(x) for x in rows])
    assert said == [spoken.PEDAL_TEXTS[i] for i in right.tolist()] and len(set(said)) > 2
    found = [driving_talk.command_of(text, 3) for text in ("Brake hard!", " brake", "keep speed now", "sing")]
    assert found == [0, 1, 2, 3], "what names no command changes nothing"


def test_demonstrations_are_written_once_each(tmp_path):
    rows = np.stack([seen(5.0, 30.0, 4.0, 9.0)] * 2 + [seen(6.0, 30.0, 4.0, 9.0)])
    assert driving_talk.write(tmp_path / "a" / "drives.jsonl", rows, np.array([3, 3, 2])) == 2
    found = [json.loads(line) for line in (tmp_path / "a" / "drives.jsonl").read_text().splitlines()]
    assert found[0]["completion"] == found[0]["answer"] == " speed up" and found[1]["prompt"].startswith("Drive at 9")


def test_a_planner_that_does_not_answer_is_a_message(monkeypatch):
    monkeypatch.setattr(client, "BACKOFF_S", 0.0)
    monkeypatch.setattr(driving_talk, "shown", lambda *_: (two_level.Said(np.zeros((1, 7)), None, None), None))
    monkeypatch.setattr(two_level, "fit_low", lambda *_, **__: None)
    monkeypatch.setattr(driving_talk, "drive", lambda levels, low, planner, key, **_: planner(["Command:"]))
    with pytest.raises(SystemExit, match="experiments.tools.driving_talk: http://127.0.0.1:9/.*Connection"):
        driving_talk.main(["--planner=http://127.0.0.1:9"])


@pytest.mark.slow
def test_a_server_plans_a_drive():
    """With a controller that is exact: (-2, -1, 0, 1) m/s^2. A planner that says nothing of use stays where it is."""
    levels = make_levels(7, 1, spoken.PEDAL_TEXTS)
    table = np.linalg.lstsq(np.asarray(levels.commands), np.float32([-2.0, -1.0, 0.0, 1.0])[:, None], rcond=None)[0]
    levels = two_level.Levels(levels.high, Net(None, lambda low, x: x[:, 7:] @ low), levels.commands)
    fields = dict(episodes=4, length=60, every=4)
    with speaking(lambda text: "Let us " + driving_talk.scripted([text])[0]) as server:
        planner = driving_talk.by_server(url=server.url, chat=False, remember=False)
        total = driving_talk.drive(levels, table, planner, jax.random.key(0), **fields)
        assert len(server.texts) <= 4 * 15 and all(text.endswith("Command:") for text in server.texts)
    idle = driving_talk.drive(levels, table, lambda texts: ["hm"] * len(texts), jax.random.key(0), **fields)
    assert total.shape == (4,) and total.min() > 25.0 and np.abs(idle).max() < 1.0, (total, idle)
