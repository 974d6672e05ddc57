"""Lags and what they do to weights, against numbers by hand."""

import numpy as np
import pytest

from rl_jax.experience import lag

VERSIONS = np.array([[3, 3, 5], [5, 5, 9], [9, 9, 9]])
MASK = np.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]], bool)


def test_lags_by_hand():
    found = lag.lag_metrics(5, VERSIONS, MASK, bound=3)
    assert found == pytest.approx(
        {
            "lag/token_mean": 4 / 5, "lag/token_max": 2.0, "lag/row_mean": 1.0, "lag/row_max": 2.0,
            "lag/versions_per_row": 1.5, "lag/tokens/0": 0.6, "lag/tokens/1": 0.0, "lag/tokens/2": 0.4,
            "lag/tokens/3": 0.0,
        }
    )  # fmt: skip
    assert lag.lag_metrics(5, VERSIONS, MASK & False, bound=3) == {}
    with pytest.raises(ValueError, match="a token has version 5, above the policy's 4"):
        lag.lag_metrics(4, VERSIONS, MASK, bound=3)


def test_weights_by_lag_by_hand():
    log_probs = np.log(np.array([[0.5, 0.1, 0.3], [0.2, 0.2, 0.9], [0.9, 0.9, 0.9]]))
    sampled = np.log(np.array([[0.25, 0.2, 0.3], [0.2, 0.1, 0.1], [0.1, 0.1, 0.1]]))
    found = lag.gaps_by_lag(5, VERSIONS, MASK, log_probs, sampled, bound=3)
    assert found == pytest.approx(
        {
            "sampler/gap/0": np.log(2) / 3, "sampler/ess/0": 16 / (3 * 6),  # weights 1, 1, 2
            "sampler/gap/2": np.log(2), "sampler/ess/2": 2.5**2 / (2 * 4.25),  # weights 2, .5
        }
    )  # fmt: skip


def test_columns_of_a_view():
    assert lag.columns(None, MASK, 0) == {}
    assert lag.columns(VERSIONS, MASK, 0)["lag"].tolist() == [2, 2, 0]
    assert lag.columns(VERSIONS, MASK, 1)["lag"].tolist() == [0, 0, 0]
