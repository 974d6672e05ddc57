"""advantages/turn_arrays.py by hand: what stands on a row's last end."""

import numpy as np

from rl_jax.advantages import turn_arrays

TURNS = np.int32([[0, 0, -1, 1], [0, 1, 2, -1], [-1, -1, -1, -1], [0, 0, 0, -1]])
REWARDS = np.float32([1.0, 3.0, 0.0, 2.0])


def test_of_a_row_only_its_last_end_is_read():
    """Whatever x is elsewhere, on other turns' ends too; groups of two, of which the second has one row with a turn."""
    at = turn_arrays.episodes(REWARDS, TURNS, np.zeros(TURNS.shape, np.float32), 2)
    x = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(turn_arrays.on_rows(x, at), [[4, 4, 0, 4], [7, 7, 7, 0], [0] * 4, [0] * 4])
    whole, place = turn_arrays.whole_rows(at)
    np.testing.assert_array_equal(place, [[0, 0, 0, 1], [0, 0, 1, 0], [0] * 4, [0, 0, 1, 0]])
    np.testing.assert_array_equal(whole, [[0, 0, 0, 1], [0, 0, 3, 0], [0] * 4, [0, 0, 2, 0]])
