"""The study of offline value losses under outliers, at its smoke size."""

import numpy as np
import pytest

from experiments.ablation import cli


@pytest.mark.slow
def test_outliers_overflow_the_equation_of_xql_only(tmp_path):
    """V without outliers is the papers' for Q = 0, 1, 2 and small noise: log mean exp Q, 1.42857 (chi^2), 1 (tv)."""
    paper = cli.load("chi2_outliers", smoke=True)
    paper.settings.steps = 400
    found = cli.run_study(paper)[0]
    for arm, value in (("chi2", 1.43), ("tv", 1.0), ("xql_code", 1.31)):
        assert (found[arm]["finite"] == 1.0).all()
        np.testing.assert_allclose(found[arm]["clean"], value, atol=0.12)
    assert (found["xql_equation"]["finite"] == 0.0).all()
    assert (found["tv"]["shift"] < found["chi2"]["shift"]).all()
