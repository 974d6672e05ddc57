"""experiments/tools/compose_scores.py: the weight that the search finds is where the errors cancel."""

import pytest

from experiments.tools import compose_scores


@pytest.fixture(scope="module")
def found():
    return compose_scores.search("opposite", process="flow", rollouts=100, seed=0)


def test_two_wrong_policies_compose_to_a_right_one(found):
    assert found.rates[0] < 0.3 and found.rates[-1] < 0.3
    assert 0.4 <= found.best <= 0.6 and found.fresh > 0.8


def test_the_table_has_each_alone_and_the_composition(found):
    assert f"| opposite | {found.rates[-1]:.3f} | {found.rates[0]:.3f} | {found.best:.1f} | {found.fresh:.3f} |" in (
        compose_scores.table({"opposite": found})
    )


@pytest.mark.parametrize(
    ("wrong", "said"), [(["best"], "tasks ['best'] are not in"), (["--rollouts=0"], "--rollouts=0")]
)
def test_what_is_refused(wrong, said, capsys):
    with pytest.raises(SystemExit):
        compose_scores.main(wrong)
    assert said in capsys.readouterr().err
