"""Reward against KL(pi || ref): the points of several methods as a frontier, a table and a picture. No jax here.

A point is {"method", "setting", "step", "reward", "reward_se", "kl", "kl_se", "kl_per_token"}: held-out mean reward,
and KL in nats per sequence, each with its standard error. The picture has its own colours for light and dark pages
(Okabe and Ito's, safe for the colour-blind), one marker shape per method, and the names at the ends of the lines.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from experiments.report.charts import nice_ticks, short_number

Point = Mapping[str, float | str | int]

WIDTH, HEIGHT = 760, 470
LEFT, RIGHT, TOP, BOTTOM = 58, 132, 34, 52
# (light page, dark page), by index of the method.
COLOURS = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fd3a3"),
    ("#b0508a", "#e39ac4"),
    ("#946c00", "#f0c84a"),
    ("#4b3fa7", "#a79cf5"),
    ("#1b1b1b", "#f2f2f2"),
    ("#6b6b6b", "#a3a3a3"),
)
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus", "down", "ring")


def sequence_kl(log_ratios: np.ndarray, mask: np.ndarray, samples: int = 1) -> dict[str, float]:
    """KL(pi || ref) from samples of pi: the mean of sum_t (log pi - log ref), which is unbiased.

    Args:
      log_ratios: log pi - log ref of sampled tokens, float [B, C].
      mask: bool [B, C].
      samples: per prompt; samples of one prompt are adjacent rows.

    Returns:
      {"kl", "kl_se", "kl_per_token"}: the mean, its standard error, and the mean per token.
    """
    total = np.where(mask, log_ratios, 0.0).sum(axis=1, dtype=np.float64)
    return {
        "kl": float(total.mean()),
        "kl_se": standard_error(total, samples),
        "kl_per_token": float(total.sum() / max(mask.sum(), 1)),
    }


def standard_error(values: np.ndarray, samples: int = 1) -> float:
    """The standard error of the mean.

    Args:
      values: float [B].
      samples: adjacent values per prompt; only prompts are independent.

    Returns:
      0 for one prompt.
    """
    values = np.asarray(values, np.float64).reshape(-1, samples).mean(axis=1)
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def methods_of(points: Sequence[Point]) -> list[str]:
    """The methods in order of their first point."""
    return list(dict.fromkeys(point["method"] for point in points))


def is_finite(point: Point) -> bool:
    """Whether a point has a place: a diverged policy may have a reward or a KL that is nan or infinite."""
    return math.isfinite(point["reward"]) and math.isfinite(point["kl"])


def best_within(points: Sequence[Point], method: str, budget: float) -> Point | None:
    """The method's finite point of highest reward with a KL of at most `budget` nats; None if there is none."""
    mine = [point for point in points if point["method"] == method and is_finite(point)]
    inside = [point for point in mine if point["kl"] <= budget]
    return max(inside, key=lambda point: point["reward"], default=None)


def frontier(points: Sequence[Point], method: str) -> list[Point]:
    """The method's points, by rising KL, that no other of its points beats with less KL."""
    kept, highest = [], -math.inf
    for point in sorted((p for p in points if p["method"] == method), key=lambda p: (p["kl"], -p["reward"])):
        if point["reward"] > highest:
            kept.append(point)
            highest = point["reward"]
    return kept


def table(points: Sequence[Point], budgets: Sequence[float]) -> str:
    """Markdown: for each method and KL budget the best mean reward, its standard error, and its setting."""
    lines = [
        "| method | " + " | ".join(f"KL <= {short_number(budget)}" for budget in budgets) + " | best point |",
        "|---|" + "---|" * (len(budgets) + 1),
    ]
    for method in methods_of(points):
        result = [best_within(points, method, budget) for budget in budgets]
        cells = ["-" if p is None else f"{p['reward']:.3f} ± {p['reward_se']:.3f}" for p in result]
        best = best_within(points, method, math.inf)
        where = best and f"{best['reward']:.3f} at {best['kl']:.2f} nats ({best['setting']}, step {best['step']})"
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {where or '-'} |")
    return "\n".join(lines) + "\n"


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Label positions at least `gap` apart, in the order of `places` and close to them (one pass each way)."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved, last = list(places), low - gap
    for i in order:
        last = moved[i] = max(places[i], last + gap)
    last = high + gap
    for i in reversed(order):
        last = moved[i] = min(moved[i], last - gap)
    return moved


def picture(points: Sequence[Point], *, title: str, baseline: float | None = None) -> str:
    """The SVG: every point, each method's frontier as a line, and its name at the end.

    The x axis is sqrt(KL), in which the reward of an optimal policy starts as a straight line.

    Args:
      points: of all methods. Those that are not finite are left out.
      title: of the picture.
      baseline: the reference's reward, drawn as a line.
    """
    points = [point for point in points if is_finite(point)]
    methods = methods_of(points)
    top_kl = max([point["kl"] for point in points] + [1e-6]) * 1.04
    rewards = [point["reward"] for point in points] + ([] if baseline is None else [baseline]) or [0.0]
    y_ticks = nice_ticks(min(rewards), max(max(rewards), min(rewards) + 0.01), 6)

    def x(kl):
        return LEFT + math.sqrt(max(kl, 0.0) / top_kl) * (WIDTH - LEFT - RIGHT)

    def y(reward):
        return HEIGHT - BOTTOM - (reward - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [_head(title, points), *_axes(x, y, top_kl, y_ticks, baseline)]
    ends = []
    for index, method in enumerate(methods):
        line = frontier(points, method)
        path = " ".join(f"{'L' if i else 'M'}{x(p['kl']):.1f} {y(p['reward']):.1f}" for i, p in enumerate(line))
        parts.append(Markup('<path class="line m{}" d="{}"/>').format(index % len(COLOURS), path))
        for point in (p for p in points if p["method"] == method):
            words = (
                f"{method}, {point['setting']}, step {point['step']}: reward {point['reward']:.3f} ± "
                f"{point['reward_se']:.3f}, KL {point['kl']:.2f} ± {point['kl_se']:.2f} nats per sequence"
            )
            on_line = any(point is kept for kept in line)
            parts.append(_marker(index, x(point["kl"]), y(point["reward"]), words, strong=on_line))
        ends.append((x(line[-1]["kl"]), y(line[-1]["reward"])))
    places = spread([end[1] for end in ends], 15, TOP + 6, HEIGHT - BOTTOM - 6)
    for index, (method, end, place) in enumerate(zip(methods, ends, places, strict=True)):
        edge, kind = WIDTH - RIGHT + 14, index % len(COLOURS)
        parts.append(Markup('<path class="leader m{}" d="M{:.1f} {:.1f} L{} {:.1f} L{} {:.1f}"/>').format(
            kind, end[0] + 6, end[1], edge - 8, place, edge - 2, place))
        parts.append(_marker(index, edge + 4, place, method, strong=True))
        parts.append(Markup('<text class="name t{}" x="{}" y="{:.1f}">{}</text>').format(
            kind, edge + 13, place + 4, method))
    return str(Markup("\n").join([*parts, Markup("</svg>\n")]))


def _head(title: str, points: Sequence[Point]) -> Markup:
    """The svg element, its style for light and dark pages, and the picture in words."""
    rules = []
    for index, (light, dark) in enumerate(COLOURS):
        rules.append((f".m{index}{{stroke:{light}}}.f{index},.t{index}{{fill:{light}}}",
                      f".m{index}{{stroke:{dark}}}.f{index},.t{index}{{fill:{dark}}}"))
    style = (
        "svg{background:#fff}text{font-family:system-ui,sans-serif;font-size:12px;fill:#333}.name{font-weight:600}.title{font-size:14px}"
        ".grid{stroke:#e2e2e2}.base{stroke:#999;stroke-dasharray:4 4}.line{fill:none;stroke-width:2}"
        ".leader{fill:none;stroke-width:.8;opacity:.55}.mark{stroke-width:1.6}.weak{opacity:.35}"
        + "".join(light for light, _ in rules)
        + "@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#d6d6d6}.grid{stroke:#30343b}"
        + "".join(dark for _, dark in rules) + "}.hollow{fill:none}"
    )
    words = []
    for method in methods_of(points):
        best = best_within(points, method, math.inf)
        words.append(f"{method}: highest reward {best['reward']:.3f} at a KL of {best['kl']:.2f} nats")
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}"><style>{}</style>'
        '<text class="title" x="{}" y="20">{}</text>'
    ).format(WIDTH, HEIGHT, f"{title}. {'; '.join(words)}.", Markup(style), LEFT, title)


def _axes(x, y, top_kl: float, y_ticks: Sequence[float], baseline: float | None) -> list[Markup]:
    """Grid, numbers, names of the axes, the reference's reward."""
    parts = []
    for tick in y_ticks:
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
            LEFT, WIDTH - RIGHT, y(tick), y(tick)))
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
            LEFT - 8, y(tick) + 4, short_number(tick)))
    # Round numbers, denser near 0, where sqrt has room.
    rounds = [m * 10.0**power for power in range(-3, 4) for m in (1, 2, 5)]
    shown, last = [0.0], x(0.0)
    for tick in (tick for tick in rounds if tick <= top_kl):
        if x(tick) - last > 44:
            shown.append(tick)
            last = x(tick)
    for tick in shown:
        parts.append(Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>').format(
            x(tick), x(tick), TOP, HEIGHT - BOTTOM))
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(tick), HEIGHT - BOTTOM + 18, short_number(tick)))
    parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "KL(policy || reference), nats per sequence (square-root scale)"))
    parts.append(Markup('<text transform="translate(16 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>').format(
        (TOP + HEIGHT - BOTTOM) / 2, "held-out reward"))
    if baseline is not None:
        line = Markup('<line class="base" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"><title>{}</title></line>')
        height = y(baseline)
        parts.append(line.format(LEFT, WIDTH - RIGHT, height, height, f"reference: {baseline:.3f}"))
    return parts


def _marker(index: int, x: float, y: float, words: str, *, strong: bool) -> Markup:
    """A method's shape at (x, y), faint if the point is not on its method's frontier."""
    shapes = {
        "circle": '<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" class="{c}">',
        "ring": '<circle cx="{x:.1f}" cy="{y:.1f}" r="3.8" class="{c} hollow">',
        "square": '<path d="M{x:.1f} {y:.1f}m-3.4 -3.4h6.8v6.8h-6.8z" class="{c}">',
        "triangle": '<path d="M{x:.1f} {y:.1f}m0 -4.4l4.2 7.4h-8.4z" class="{c}">',
        "down": '<path d="M{x:.1f} {y:.1f}m0 4.4l4.2 -7.4h-8.4z" class="{c}">',
        "diamond": '<path d="M{x:.1f} {y:.1f}m0 -4.8l4.4 4.8l-4.4 4.8l-4.4 -4.8z" class="{c}">',
        "cross": '<path d="M{x:.1f} {y:.1f}m-3.4 -3.4l6.8 6.8m0 -6.8l-6.8 6.8" class="{c}">',
        "plus": '<path d="M{x:.1f} {y:.1f}m-4.2 0h8.4m-4.2 -4.2v8.4" class="{c}">',
    }
    shape = MARKERS[index % len(MARKERS)]
    kind = index % len(COLOURS)
    tag = shapes[shape].split(" ", 1)[0][1:]
    classes = f"mark m{kind} f{kind}" + ("" if strong else " weak")
    drawn = Markup(shapes[shape].format(x=x, y=y, c=classes))
    return drawn + Markup("<title>{}</title></{}>").format(words, Markup(tag))
