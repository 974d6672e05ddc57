"""rl_jax/credit/rewrites.py: token rewards from a corrected answer, against the paper's procedure token by token."""

import numpy as np

from rl_jax.credit.rewrites import rewrite_rewards


def by_hand(tokens, preferred, mask, kept, changed):
    """One row after the other: generate until the texts diverge, then feed the answer's own tokens."""
    result = np.zeros(tokens.shape, np.float32)
    for row, (answer, model, real) in enumerate(zip(tokens, preferred, mask, strict=True)):
        together = True
        for place in np.flatnonzero(real):
            same = answer[place] == model[place]
            together = together and same
            result[row, place] = kept if together else (0.0 if same else changed)
    return result


def test_rewards_are_positive_up_to_the_first_change_and_negative_at_each_change():
    rng = np.random.default_rng(0)
    tokens, preferred = rng.integers(0, 2, (2, 40, 9))
    mask = (np.arange(9)[None] < rng.integers(0, 10, (40, 1))) & (rng.random((40, 9)) < 0.6)  # with holes
    preferred[0], mask[0] = tokens[0], True
    found = np.asarray(rewrite_rewards(tokens, preferred, mask, kept=0.5, changed=-2.0))
    np.testing.assert_array_equal(found, by_hand(tokens, preferred, mask, 0.5, -2.0))
    np.testing.assert_array_equal(found[0], 0.5)  # its own rewriting: the most there is
    assert {-2.0, 0.0, 0.5} == set(found[mask].tolist())
    usual = np.asarray(rewrite_rewards(tokens, preferred, mask))
    np.testing.assert_array_equal(usual, by_hand(tokens, preferred, mask, 1.0, -1.0))
