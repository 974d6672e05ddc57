"""advantages/paired.py: BRPO by a plain loop."""

import numpy as np
import pytest

from rl_jax.advantages.paired import brpo

# One row of each group is its reference, which has 1/2; it wins 1/8, 7/8, 1/2, 0 and 1 of its two comparisons.
WINS = np.float32([[0.5, 1.0, 0.75], [0.25, 0.5, 0.0], [0.5, 0.0, 1.0], [1.0, 0.5, 1.0], [0.0, 0.0, 0.5]])


def by_hand(most):
    """A = 2 w - 1; nothing in a group whose reference wins or loses more than `most` of the G - 1 comparisons."""
    found = []
    for group in WINS.tolist():
        lost = (sum(group) - 0.5) / (len(group) - 1)  # w is the others' share: theirs is what the reference loses
        teaches = lost <= most and 1.0 - lost <= most
        found += [2.0 * w - 1.0 if teaches else 0.0 for w in group]
    return found


@pytest.mark.parametrize("most", [0.53125, 0.875, 0.9375, 1.0])  # .875 is the bound itself: it still teaches
def test_brpo_is_a_plain_loop(most):
    np.testing.assert_allclose(brpo(WINS.reshape(-1), group_size=3, most=most), by_hand(most), rtol=1e-6)


def test_the_smallest_groups_and_what_is_refused():
    np.testing.assert_array_equal(brpo(WINS.reshape(-1), group_size=3), np.float32(by_hand(1.0)))  # all groups teach
    np.testing.assert_array_equal(brpo(np.float32([0.5, 1.0]), group_size=2, most=0.9), 0.0)  # one comparison, lost
    np.testing.assert_array_equal(brpo(np.float32([0.5, 0.75]), group_size=1), [0.0, 0.5])  # no comparison at all
    for most in (0.0, 0.25, 0.5, 1.001, 2.0):
        with pytest.raises(ValueError, match=f"most={most} must be above 1/2 and at most 1"):
            brpo(WINS.reshape(-1), group_size=3, most=most)
    with pytest.raises(ValueError, match="15 rewards do not divide into groups of group_size=4"):
        brpo(WINS.reshape(-1), group_size=4)
