"""Line charts, sparklines and share bars as inline SVG: text that scales, colours from the page's style sheet.

Every string that comes from a run is escaped here; series are told apart by dash as well as by colour.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

Points = Sequence[tuple[float, float | None]]  # (step, value); None breaks the line

WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 38
MAX_POINTS = 400  # of a line: more than its pixels only makes the page heavy
_DASHES = ("none", "6 3", "2 3", "8 3 2 3", "12 4", "1 4")


def short_number(value: float | None) -> str:
    """A number in at most three significant digits: 0.412, 5.12k, 1.2e-05; "n/a" for None."""
    if value is None:
        return "n/a"
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that cover [low, high]; low < high."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def thin(points: Points, limit: int = MAX_POINTS) -> list[tuple[float, float | None]]:
    """At most about `limit` points: of each bucket its lowest and highest, so that no spike disappears."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept = []
    for start in range(0, len(points), size):
        bucket = [point for point in points[start : start + size] if point[1] is not None]
        if bucket:
            kept.extend(sorted({min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}))
        else:
            kept.append(points[start])
    return kept


def smooth(points: Points, window: int) -> list[tuple[float, float | None]]:
    """The running mean over up to `window` values centred on each point; None stays None."""
    half, result = window // 2, []
    for index, (step, value) in enumerate(points):
        near = [v for _, v in points[max(index - half, 0) : index + half + 1] if v is not None]
        result.append((step, None if value is None else sum(near) / len(near)))
    return result


def _paths(points: Points, x, y) -> str:
    """SVG path commands; a None lifts the pen."""
    commands, pen_up = [], True
    for step, value in points:
        if value is None:
            pen_up = True
            continue
        commands.append(f"{'M' if pen_up else 'L'}{x(step):.1f} {y(value):.1f}")
        pen_up = False
    return " ".join(commands)


def _describe(series: Mapping[str, Points]) -> str:
    """The chart in words, for those who do not see it."""
    words = []
    for name, points in series.items():
        values = [value for _, value in points if value is not None]
        first, last, low, high = (short_number(v) for v in (values[0], values[-1], min(values), max(values)))
        words.append(f"{name}: from {first} to {last}, lowest {low}, highest {high}")
    return "; ".join(words)


def line_chart(series: Mapping[str, Points], *, title: str, palette: Sequence[str] = ()) -> Markup | None:
    """One chart of a metric over steps, a line a run; None when no run has a value.

    series: run name -> points. title: the metric, for screen readers.
    palette: all run names in order, so that a run keeps its colour and dash where others lack the metric.
    """
    series = {name: points for name, points in series.items() if any(value is not None for _, value in points)}
    if not series:
        return None
    order = list(palette) or list(series)
    steps = [step for points in series.values() for step, _ in points]
    values = [value for points in series.values() for _, value in points if value is not None]
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(abs(high), 1e-12):  # a flat line needs some air
        low, high = low - max(abs(low) * 0.1, 0.01), high + max(abs(high) * 0.1, 0.01)
    y_ticks = nice_ticks(low, high)
    first, last = min(steps), max(max(steps), min(steps) + 1)
    x_ticks = [tick for tick in nice_ticks(first, last) if first <= tick <= last and tick == int(tick)]

    def x(step):
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, f"{title} over steps. {_describe(series)}"
        )
    ]
    for tick in y_ticks:
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, WIDTH - RIGHT, y(tick), y(tick)))
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 6, y(tick) + 4, short_number(tick)))
    for tick in x_ticks:
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(tick), HEIGHT - BOTTOM + 16, short_number(tick)))
    parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">step</text>').format(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5))
    for name, points in series.items():
        parts.extend(_line(points, order.index(name), name, x, y))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _line(points: Points, index: int, name: str, x, y) -> list[Markup]:
    """One run's line: with many points the raw values stay faint behind their running mean, with few they get dots."""
    colour, dash = f"series{index % len(_DASHES)}", _DASHES[index % len(_DASHES)]
    path = Markup('<path class="{} {}" stroke-dasharray="{}" d="{}"><title>{}</title></path>')
    parts = []
    if len(points) > 60:
        parts.append(path.format("line raw", colour, "none", _paths(thin(points), x, y), name))
        points = smooth(points, max(len(points) // 30, 3))
    parts.append(path.format("line", colour, dash, _paths(thin(points), x, y), name))
    if len(points) <= 30:
        dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>step {}: {}</title></circle>')
        parts += [dot.format(colour, x(s), y(v), s, short_number(v)) for s, v in points if v is not None]
    return parts


def sparkline(points: Points) -> Markup:
    """A line of 120 x 24 without axes, for a table cell; empty when there is nothing to draw."""
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return Markup("")
    low, high = min(values), max(values)
    first, last = points[0][0], points[-1][0]

    def x(step):
        return 2 + 116 * (step - first) / max(last - first, 1)

    def y(value):
        return 12.0 if high == low else 22 - 20 * (value - low) / (high - low)

    svg = Markup('<svg class="spark" viewBox="0 0 120 24" aria-hidden="true"><path class="line series0" d="{}"/></svg>')
    return svg.format(_paths(thin(points, 120), x, y))


def share_bar(shares: Mapping[str, float]) -> Markup:
    """A horizontal bar cut into named shares. shares: name -> fraction, summing to 1."""
    head = '<svg class="shares" viewBox="0 0 600 28" preserveAspectRatio="none" aria-hidden="true">'
    rect = Markup('<rect class="fill{}" x="{:.1f}" y="0" width="{:.1f}" height="28"><title>{} {:.0%}</title></rect>')
    start, parts = 0.0, [Markup(head)]
    for index, (name, share) in enumerate(shares.items()):
        parts.append(rect.format(index % len(_DASHES), 600 * start, 600 * share, name, share))
        start += share
    return Markup("").join([*parts, Markup("</svg>")])
