"""The charts of an ablation as stand-alone SVG files: one interval per arm, and lines over steps."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from experiments.report.charts import HEIGHT, WIDTH, Points, line_chart, nice_ticks, short_number
from rl_jax.stats import bootstrap_mean

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
ROW, LABELS, FOOT = 26, 150, 46
_STYLE = (
    "svg{font:12px sans-serif}text{fill:#333}.grid{stroke:#ddd}.line,.mark{fill:none;stroke-width:2}.raw{opacity:.3}"
    + "".join(f".series{i}{{stroke:{colour}}}.dot.series{i}{{fill:{colour}}}" for i, colour in enumerate(COLOURS))
)


def _page(width: int, height: int, body: Markup, label: str) -> str:
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    back = f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>'
    return str(Markup(head).format(width, height, label) + Markup(back) + body + Markup("</svg>\n"))


def interval_chart(
    values: Mapping[str, Sequence[float]], *, title: str, within: tuple[float, float] | None = None
) -> str:
    """One row per arm: one dot per seed, and the mean with its interval if there are two seeds or more.

    Args:
      values: arm -> one value per seed.
      title: the metric, written below the axis.
      within: the metric's range, as in `claims.judgements`.

    Returns:
      The SVG file's text.
    """
    every = [value for row in values.values() for value in row] or [0.0]
    low, high = min(every), max(every)
    pad = (high - low) * 0.05 or max(abs(high) * 0.1, 0.01)
    ticks = nice_ticks(low - pad, high + pad)
    height = ROW * len(values) + FOOT

    def x(value):
        return LABELS + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (WIDTH - 20)

    means = {arm: bootstrap_mean(row, within=within) for arm, row in values.items() if len(row) > 1}
    parts = []
    for tick in ticks:
        grid = Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="6" y2="{1}"/>')
        parts.append(grid.format(x(tick), height - 40))
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            x(tick), height - 24, short_number(tick)))
    for index, (arm, row) in enumerate(values.items()):
        y, colour = 6 + ROW * (index + 0.5), f"series{index % len(COLOURS)}"
        parts.append(Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(LABELS - 12, y + 4, arm))
        dot = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3" opacity=".35"/>')
        parts += [dot.format(colour, x(value), y) for value in row]
        if arm not in means:
            continue
        mean, *ends = means[arm]
        mark = Markup('<path class="mark {}" d="M{:.1f} {:.1f}H{:.1f}M{:.1f} {:.1f}v14"/>')
        parts.append(mark.format(colour, x(ends[0]), y, x(ends[1]), x(mean), y - 7))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
        LABELS + WIDTH // 2, height - 6, title))
    words = "; ".join("{}: {:.3g} [{:.3g}, {:.3g}]".format(arm, *mean) for arm, mean in means.items())
    return _page(LABELS + WIDTH, height, Markup("").join(parts), f"{title}. {words}")


def curves_chart(curves: Mapping[str, Points], *, title: str) -> str:
    """Lines over steps with a legend below.

    Args:
      curves: arm -> [(step, mean over the seeds)].
      title: the metric.

    Returns:
      The SVG file's text.
    """
    parts = [line_chart(curves, title=title)]
    for index, arm in enumerate(curves):
        y = HEIGHT + 14 + 18 * index
        parts.append(Markup('<path class="mark series{}" d="M12 {}h24"/>').format(index % len(COLOURS), y - 4))
        parts.append(Markup('<text x="44" y="{}">{}</text>').format(y, f"{arm}: {title}"))
    inner = Markup('<svg width="{}" height="{}">').format(WIDTH, HEIGHT) + parts[0] + Markup("</svg>")
    return _page(WIDTH, HEIGHT + 18 * len(curves) + 10, Markup("").join([inner, *parts[1:]]), title)
