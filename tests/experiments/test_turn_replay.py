"""experiments.parts.turn_replay: ArCHer's replayed turns (2402.19446), by hand; test_agents_ppo.py runs them."""

import io
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

from experiments import ppo
from experiments.parts import turn_replay
from rl_jax.experience import trajectory as t
from rl_jax.experience.episode import Limits
from rl_jax.rollout.lm.episodes import as_rollout
from rl_jax.runs.logging import write_atomically
from tests.experiments.test_agents_ppo import tiny

SHAPE = dict(prompt_length=2, completion_length=8, pad_id=0)


def episode(*rewards, status="done"):
    """A prompt of two tokens; each turn says 5, 6 and hears 7."""
    spans = [t.prompt([1, 2])]
    for _ in rewards:
        spans += [t.sampled([5, 6], [-1.0, -1.0]), t.given("observation", [7])]
    return t.Trajectory("p", 0, 0, (tuple(spans[:-1]),), tuple(t.Turn(x) for x in rewards), status)


def test_the_targets_are_those_of_one_turn_by_hand():
    """Q: .5 + .9 V' of the next turn; the last turn has none. V: Q' of the fresh action, not of the old one."""
    chosen = [turn_replay.Transition(episode(0.5, 2.0), 0), turn_replay.Transition(episode(0.5, 2.0), 1)]
    rows = as_rollout([one.episode for one in chosen], **SHAPE)
    fresh = as_rollout([turn_replay.until(one, [8, 9, 4]) for one in chosen], **SHAPE)
    np.testing.assert_array_equal(fresh.batch.tokens, [[1, 2, 8, 9, 4, 0, 0, 0, 0, 0], [1, 2, 5, 6, 7, 8, 9, 4, 0, 0]])
    old, new = np.full((2, 8, 4), 99.0, np.float32), np.full((2, 8, 4), 99.0, np.float32)
    old[:, 1], old[:, 4] = [1, 2, 3, 4], [5, 6, 7, 8]  # Q_1, Q_2, V_1, V_2 on the last tokens of the two turns
    new[0, 2], new[1, 5] = [11, 12, 13, 14], [21, 22, 23, 24]
    returns, learned = turn_replay.targets(chosen, rows, fresh, old, new, 0.9)
    expected = np.zeros((2, 8, 4))
    expected[0, 1] = [0.5 + 0.9 * 7, 0.5 + 0.9 * 8, 11, 12]
    expected[1, 4] = [2.0, 2.0, 21, 22]
    np.testing.assert_allclose(returns, expected, rtol=1e-6)
    assert learned.sum() == 2 and learned[0, 1] and learned[1, 4]


def test_a_draw_goes_on_from_the_state_and_fits_the_row():
    one = turn_replay.Transition(episode(0.0, 0.0), 1)
    (draw,) = turn_replay.draws([one], Limits(turns=3, context=100, row=8, turn_tokens=9))
    assert draw.prompt.tolist() == [1, 2] and draw.tokens.tolist() == [5, 6, 7] and draw.limit == 5
    assert turn_replay.draws([one], Limits(turns=3, context=100, row=8, turn_tokens=2))[0].limit == 2
    assert turn_replay.draws([one], Limits(turns=3, context=7, row=8))[0].limit == 2
    assert turn_replay.draws([one], Limits(turns=3, context=100, row=8, tokens=3))[0].limit == 1


def test_the_pool_is_the_turns_of_the_last_steps(tmp_path):
    for step, episodes in enumerate(
        [[episode(1.0)], [episode(2.0, 3.0)], [episode(4.0), episode(5.0, status="error")]], 1
    ):
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(t.to_table(episodes), buffer)
        write_atomically(tmp_path / f"{step:08d}.parquet", buffer.getvalue())
    cache = {}

    def paid(newest, steps):
        return [x.episode.turns[x.turn].reward for x in turn_replay.transitions(tmp_path, newest, steps, cache)]

    assert paid(1, 2) == [1.0] and paid(3, 2) == [2.0, 3.0, 4.0] and sorted(cache) == [2, 3]
    assert paid(3, 9) == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(FileNotFoundError, match=r"00000004.parquet: .* earlier steps, and those of step 4 are not"):
        paid(4, 2)


def test_what_replay_cannot_have_is_refused(tmp_path):
    config = tiny(tmp_path, "maze,archer_replay")
    ppo.check_config(config)
    with config.unlocked():
        config.agent.record, config.critic.replay.batches = False, -1
    with pytest.raises(ValueError, match="(?s)set agent.record=True.*critic.replay.batches=-1 must be 0"):
        ppo.check_config(config)
    config = tiny(tmp_path, "maze,turn_ppo", record=True)
    with config.unlocked():
        config.critic.replay.batches = 1
    with pytest.raises(ValueError, match="turn_gae' has no critics of turns; take"):
        ppo.check_config(config)
    off = SimpleNamespace(config=tiny(tmp_path))
    assert turn_replay.train(None, off, None, "as it was", None, None) == ("as it was", [])
