"""The charts: inside their frame, nothing lost when thinned, gaps where a value is missing."""

import math
import re

import pytest

from experiments.report import charts as charts

RANGES = [(0.0, 1.0), (-0.013, 0.0007), (3.0, 12345.0), (1e-7, 3e-7), (-5.0, -4.0), (1e-15, 9e-15)]
ROWS = [[0.5] * 5, [0.0] * 5, [1e-9, 2e-9, 3e-9], [1e-15, 3e-15], [1e6, -1e6], [0.25], list(range(500))]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ticks_cover_the_range_with_round_numbers(low, high):
    ticks = charts.nice_ticks(low, high)
    assert ticks[0] <= low and ticks[-1] >= high and 3 <= len(ticks) <= 7
    gap = ticks[1] - ticks[0]
    mantissa = gap / 10 ** math.floor(math.log10(gap) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 2.5, 5)) < 1e-6


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (0, "0"), (0.41234, "0.412"), (5120, "5.12k"), (-2.5e6, "-2.5M"), (1.2e-5, "1.2e-05")],
)
def test_short_numbers(value, text):
    assert charts.short_number(value) == text


def test_thinning_keeps_every_spike():
    points = [(step, 0.0) for step in range(10_000)]
    points[1234], points[9876] = (1234, 7.0), (9876, -7.0)
    thinned = charts.thin(points)
    assert len(thinned) <= charts.MAX_POINTS + 2
    assert (1234, 7.0) in thinned and (9876, -7.0) in thinned
    assert [step for step, _ in thinned] == sorted(step for step, _ in thinned)


def test_smoothing_is_a_centred_mean_that_skips_gaps():
    smoothed = charts.smooth([(0, 1.0), (1, None), (2, 3.0), (3, 8.0)], window=3)
    assert smoothed == [(0, 1.0), (1, None), (2, 5.5), (3, 5.5)]


def test_a_missing_value_lifts_the_pen():
    svg = charts.line_chart({"run": [(0, 1.0), (1, 2.0), (2, None), (3, 1.5), (4, 1.0)]}, title="loss")
    path = re.search(r' d="([^"]+)"', svg).group(1)
    assert path.count("M") == 2 and path.count("L") == 2


@pytest.mark.parametrize("values", ROWS)
def test_every_point_lies_inside_the_frame(values):
    svg = charts.line_chart({"run": list(enumerate(values))}, title="x")
    numbers = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", svg)
    assert numbers
    for x, y in numbers:
        assert charts.LEFT - 0.1 <= float(x) <= charts.WIDTH - charts.RIGHT + 0.1
        assert charts.TOP - 0.1 <= float(y) <= charts.HEIGHT - charts.BOTTOM + 0.1


def test_higher_values_are_drawn_higher():
    svg = charts.line_chart({"run": [(0, 1.0), (10, 3.0)]}, title="x")
    (x0, y0), (x1, y1) = re.findall(r"[ML]([\d.]+) ([\d.]+)", svg)
    assert float(x1) > float(x0) and float(y1) < float(y0)


def test_a_chart_is_also_told_in_words():
    svg = charts.line_chart({"a/b": [(0, 1.0), (1, 4.0), (2, 2.0)]}, title="reward")
    assert 'aria-label="reward against step. a/b: from 1 to 2, lowest 1, highest 4"' in svg


def test_nothing_to_draw_gives_no_chart():
    assert charts.line_chart({"run": [(0, None)], "other": []}, title="x") is None
    assert charts.sparkline([(0, 1.0)]) == ""


def test_a_run_keeps_its_colour_where_another_lacks_the_metric():
    svg = charts.line_chart({"one": [], "two": [(0, 1.0), (1, 2.0)]}, title="x", palette=["one", "two"])
    assert "line series1" in svg and "line series0" not in svg


@pytest.mark.parametrize("row", [[0.5, 0.5 + 1e-16 * 2], [0.0, 0.0], [1e-15, 4e-15], [3.0]])
def test_an_interval_chart_holds_every_seed_in_its_arms_colour(row):
    svg = charts.interval_chart({"late": row}, {}, title="x", palette=["early", "late"])
    places = [float(x) for x in re.findall(r'class="seed series1" cx="([\d.]+)"', svg)]
    assert len(places) == len(row) and all(14 <= x <= charts.WIDTH - 14 for x in places)
    assert '<g class="arm1">' in svg and "arm0" not in svg


def test_shares_fill_the_bar():
    svg = charts.share_bar({"rollout": 0.5, "train": 0.3, "rest": 0.2})
    assert sum(map(float, re.findall(r'width="([\d.]+)" height="28"', svg))) == pytest.approx(600)
