"""The arithmetic verifier: only a well-formed integer after the last "=" that is the answer scores."""
import pytest

from rl_jax.rewards.arithmetic import score


@pytest.mark.parametrize("completion, answer, correct, well_formed", [
    ("95", 95, 1, 1), ("95-12=83", 83, 1, 1), ("-60-48=-108", -108, 1, 1), ("0", 0, 1, 1), (" 95\n", 95, 1, 1),
    ("96-12=83", 83, 1, 1),  # only the answer is verified, not the steps
    ("84", 83, 0, 1), ("83=84", 83, 0, 1), ("", 0, 0, 0), ("=", 0, 0, 0), ("083", 83, 0, 0), ("+83", 83, 0, 0),
    ("-0", 0, 0, 0), ("8 3", 83, 0, 0), ("95-12", 83, 0, 0), ("83=", 83, 0, 0), ("٨٣", 83, 0, 0),
    ("8" * 5000, 8, 0, 0)])
def test_score(completion, answer, correct, well_formed):
    assert score("...=", completion, {"answer": answer}) == {
        "reward": correct, "correct": correct, "format": well_formed}
