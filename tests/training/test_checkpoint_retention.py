"""retention.py: the newest, the best and every so many steps stay, through restarts and over damaged metrics."""

import jax.numpy as jnp
import pytest

from rl_jax.training.checkpoint import Checkpointer

NAN = float("nan")


def save(folder, values, **options):
    """Saves the steps of `values` {step: metric or None}, and returns the steps that are there afterwards."""
    with Checkpointer(folder, every=1, **options) as checkpoints:
        for step, value in values.items():
            metrics = None if value is None else {"score": value, "loss": 0.0}
            checkpoints.save(step, {"state": {"x": jnp.full(4, step)}}, {"step": step}, metrics)
        best = checkpoints.best_step()
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()), best


BEST = {"keep_best": 1, "best_metric": "score"}


@pytest.mark.parametrize(
    ("values", "options", "kept", "best"),
    [
        ({1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, {"keep": 1}, [4], None),
        ({1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, {"keep": None}, [1, 2, 3, 4], None),
        ({1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, {"keep": 1, **BEST}, [1, 4], 1),
        ({1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, {"keep": 1, **BEST, "best_mode": "min"}, [2, 4], 2),
        ({1: 5.0, 2: 1.0, 3: 2.0, 4: 3.0}, {"keep": 2, **BEST, "keep_best": 2}, [1, 3, 4], 1),
        ({2: 1.0, 3: 1.0, 4: 0.0, 5: 0.0}, {"keep": 1, **BEST}, [3, 5], 3),  # of equals the later
        ({1: 2.0, 2: None, 3: NAN, 4: None}, {"keep": 1, **BEST}, [1, 4], 1),  # not evaluated, not a number
        ({2: None, 4: None, 6: None, 8: None, 9: None}, {"keep": 1, "keep_every": 4}, [4, 8, 9], None),
        ({2: 9.0, 4: 1.0, 6: 1.0, 7: 1.0}, {"keep": 1, "keep_every": 4, **BEST}, [2, 4, 7], 2),
    ],
)  # fmt: skip
def test_what_stays(tmp_path, values, options, kept, best):
    assert save(tmp_path, values, **options) == (kept, best)


def test_the_best_stays_through_a_restart(tmp_path):
    assert save(tmp_path, {1: 5.0, 2: 1.0, 3: 2.0}, keep=1, **BEST) == ([1, 3], 1)
    assert save(tmp_path, {4: 4.0}, keep=1, **BEST) == ([1, 4], 1)
    (tmp_path / "1" / "metric" / "metadata").write_text('{"sco')  # cannot be compared any more
    with pytest.warns(UserWarning, match="1/metric/metadata is damaged .*: its step is not ranked"):
        assert save(tmp_path, {5: 1.0}, keep=1, **BEST) == ([4, 5], 4)


def test_a_metric_that_is_not_there_is_said_once(tmp_path):
    with pytest.warns(UserWarning, match="best_metric='scroe' is not among the metrics of step 1: loss, score") as told:
        kept, best = save(tmp_path, {1: 5.0, 2: 6.0}, keep=1, keep_best=1, best_metric="scroe")
    assert (kept, best, len(told)) == ([2], None, 1)


def test_of_several_metrics_the_first_that_a_step_has_decides_for_the_run(tmp_path):
    """A metric that comes later would not be in one order with it."""
    several = dict(keep=1, keep_best=1, best_metric=("other", "score", "loss"))
    assert save(tmp_path, {1: None, 2: 1.0, 3: 5.0, 4: 2.0}, **several) == ([3, 4], 3)
    assert save(tmp_path, {5: 3.0}, **several) == ([3, 5], 3), "read again"
    with Checkpointer(tmp_path, every=1, **several) as checkpoints:
        checkpoints.save(6, {"state": {"x": jnp.zeros(4)}}, {"step": 6}, {"other": 9.0, "loss": 9.0})
        assert checkpoints.best_step() == 3
    with pytest.warns(UserWarning, match="best_metric='a' or 'b' is not among the metrics of step 1: loss, score"):
        save(tmp_path / "none", {1: 5.0}, keep=1, keep_best=1, best_metric=("a", "b"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"keep": 0}, "checkpoint.keep=0 must be at least 1"),
        ({"every": 0}, "checkpoint.every=0"),
        ({"keep_every": -1}, "keep_every=-1"),
        ({"keep_best": 1}, "keep_best=1 needs checkpoint.best_metric"),
        ({"best_mode": "least"}, "best_mode='least' is none of max, min"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, match):
    with pytest.raises(ValueError, match=match):
        Checkpointer(tmp_path, **{"every": 1, **options})
