"""Line charts, interval charts, sparklines and share bars as inline SVG.

Text scales, and colours come from the page's style sheet. Every string that comes from a run is escaped here. Series
differ in dash as well as in colour.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

Points = Sequence[tuple[float, float | None]]  # (step, value); None breaks the line
Band = Sequence[tuple[float, float, float]]  # (step, low, high)

WIDTH, HEIGHT = 360, 208
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 38
MAX_POINTS = 400  # per line: more points than pixels only make the page larger
_DASHES = ("none", "6 3", "2 3", "8 3 2 3", "12 4", "1 4")


def look(index: int) -> tuple[int, str]:
    """(colour, dash) of the series at an index: the first six differ in both, and no two of the first 36 are equal."""
    colours = len(_DASHES)
    return index % colours, _DASHES[(index + index // colours) % colours]


def short_number(value: float | None) -> str:
    """A number in at most three significant digits: 0.412, 5.12k, 1.2e-05; "n/a" for None."""
    if value is None:
        return "n/a"
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that cover [low, high]; low < high."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 2 - math.floor(math.log10(step))  # a fixed 12 would round metrics near 1e-14, such as a first KL, to 0
    return [round(index * step, digits) for index in range(first, last + 1)]


def with_air(low: float, high: float) -> tuple[float, float]:
    """Widens an empty or nearly empty range, so that it can be cut into ticks."""
    if high - low >= 1e-12 * max(abs(low), abs(high), 1e-12):
        return low, high
    return low - max(abs(low) * 0.1, 0.01), high + max(abs(high) * 0.1, 0.01)


def thin(points: Points, limit: int = MAX_POINTS) -> list[tuple[float, float | None]]:
    """At most about `limit` points: the lowest and highest of each bucket, so that no spike disappears."""
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
    """The chart in words, for screen readers."""
    words = []
    for name, points in series.items():
        values = [value for _, value in points if value is not None]
        first, last, low, high = (short_number(v) for v in (values[0], values[-1], min(values), max(values)))
        words.append(f"{name}: from {first} to {last}, lowest {low}, highest {high}")
    return "; ".join(words)


def line_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    palette: Sequence[str] = (),
    bands: Mapping[str, Band] | None = None,
    along: str = "step",
    span: tuple[float, float] | None = None,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    faint: Mapping[str, Sequence[Points]] | None = None,
) -> Markup | None:
    """One chart of a metric with one line per run or arm.

    Args:
      series: name -> points.
      title: the metric, for screen readers.
      palette: all names in order, so that a run keeps its colour and dash in charts of metrics that others lack.
      bands: name -> the area shaded behind its line.
      along: name of the horizontal axis.
      span: vertical range, for charts that are compared with each other.
      size: (width, height) of the picture; the text keeps its size.
      faint: name -> lines drawn behind its own, for example of single seeds.

    Returns:
      The SVG; None if no series has a value.
    """
    series = {name: points for name, points in series.items() if any(value is not None for _, value in points)}
    if not series:
        return None
    order, bands = list(palette) or list(series), bands or {}
    width, height = size
    steps = [step for points in series.values() for step, _ in points]
    values = [value for points in series.values() for _, value in points if value is not None]
    values += [value for name in series for _, *ends in bands.get(name, ()) for value in ends]
    faint = {name: lines for name, lines in (faint or {}).items() if name in series}
    values += [value for lines in faint.values() for points in lines for _, value in points if value is not None]
    y_ticks = nice_ticks(*with_air(*(span or (min(values), max(values)))), 4 if height > 150 else 2)
    first, last = min(steps), max(steps)
    if last == first or (along == "step" and last < first + 1):
        last = first + 1
    x_ticks = [tick for tick in nice_ticks(first, last, 4 if width > 250 else 2) if first <= tick <= last]

    def x(step):
        return LEFT + (step - first) / (last - first) * (width - LEFT - RIGHT)

    def y(value):
        return height - BOTTOM - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (height - TOP - BOTTOM)

    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            width, height, f"{title} against {along}. {_describe(series)}"
        )
    ]
    for tick in y_ticks:
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, width - RIGHT, y(tick), y(tick)))
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 6, y(tick) + 4, short_number(tick)))
    for tick in x_ticks:
        if along != "step" or tick == int(tick):
            parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                x(tick), height - BOTTOM + 16, short_number(tick)))
    parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        (LEFT + width - RIGHT) / 2, height - 5, along))
    parts += [_shade(bands[name], order.index(name), x, y) for name in series if bands.get(name)]
    for name, lines in faint.items():
        paths = " ".join(_paths(thin(points), x, y) for points in lines)
        number = order.index(name)
        behind = Markup('<path class="line raw series{} arm{}" d="{}"/>')
        parts.append(behind.format(look(number)[0], number, paths))
    for name, points in series.items():
        lines = _line(points, order.index(name), name, x, y, raw=not bands, along=along)
        parts += [Markup('<g class="arm{}">').format(order.index(name)), *lines, Markup("</g>")]
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _shade(band: Band, index: int, x, y) -> Markup:
    """The area between a band's ends."""
    upper = [f"{x(step):.1f} {y(high):.1f}" for step, _, high in band]
    back = [f"{x(step):.1f} {y(low):.1f}" for step, low, _ in reversed(band)]
    return Markup('<path class="band fill{} arm{}" d="M{}Z"/>').format(look(index)[0], index, "L".join(upper + back))


def _line(points: Points, index: int, name: str, x, y, *, raw: bool = True, along: str = "step") -> list[Markup]:
    """One run's line: many points are drawn faint behind their running mean, a few points get dots."""
    number, dash = look(index)
    colour = f"series{number}"
    path = Markup('<path class="{} {}" stroke-dasharray="{}" d="{}"><title>{}</title></path>')
    parts = []
    if raw and len(points) > 60:
        parts.append(path.format("line raw", colour, "none", _paths(thin(points), x, y), name))
        points = smooth(points, max(len(points) // 30, 3))
    parts.append(path.format("line", colour, dash, _paths(thin(points), x, y), name))
    if len(points) <= 30:
        dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="2.5"><title>{} {:.6g}: {}</title></circle>')
        parts += [dot.format(colour, x(s), y(v), along, s, short_number(v)) for s, v in points if v is not None]
    return parts


def interval_chart(
    values: Mapping[str, Sequence[float]],
    intervals: Mapping[str, tuple[float, float, float]],
    *,
    title: str,
    palette: Sequence[str] = (),
) -> Markup:
    """One row per arm: one dot per seed, the interval as a bar and the estimate as a mark across it.

    Args:
      values: arm -> one value per seed.
      intervals: arm -> (estimate, low, high); arms of one seed have none.
      title: the metric.
      palette: all arms in order, those without a value included.
    """
    every = [value for row in [*values.values(), *intervals.values()] for value in row]
    (low, high), order = with_air(min(every), max(every)), list(palette) or list(values)
    ticks = nice_ticks(low - 0.05 * (high - low), high + 0.05 * (high - low))
    height = 44 * len(values) + BOTTOM + 4

    def x(value):
        return 14 + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - 28)

    words = [f"{arm}: " + ", ".join(map(short_number, row)) for arm, row in values.items()]
    head = '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    parts = [Markup(head).format(WIDTH, height, f"{title}, the value of each seed. {'; '.join(words)}")]
    for tick in ticks:
        parts.append(Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="4" y2="{1}"/>').format(
            x(tick), height - BOTTOM))
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(tick), height - BOTTOM + 16, short_number(tick)))
    for place, (arm, row) in enumerate(values.items()):
        index, y = order.index(arm), 44 * place + 28
        colour = look(index)[0]
        parts.append(Markup('<g class="arm{}"><text class="name" x="14" y="{}">{}</text>').format(index, y - 12, arm))
        if arm in intervals:
            middle, low, high = intervals[arm]
            bar = '<path class="bar series{}" d="M{:.1f} {}H{:.1f}"/><path class="mark series{}" d="M{:.1f} {}v16"/>'
            parts.append(Markup(bar).format(colour, x(low), y, max(x(high), x(low) + 1), colour, x(middle), y - 8))
        dot = Markup('<circle class="seed series{}" cx="{:.1f}" cy="{}" r="3.2"><title>{}</title></circle>')
        parts += [dot.format(colour, x(value), y, short_number(value)) for value in row]
        parts.append(Markup("</g>"))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text></svg>').format(
        WIDTH / 2, height - 5, title))
    return Markup("").join(parts)


def sparkline(points: Points) -> Markup:
    """A line of 120 x 24 without axes, for a table cell; empty if there is nothing to draw."""
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
