"""Charts as SVG: pure functions from numbers to markup, with titles for screen readers and the values as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import floor, log10

from markupsafe import Markup

Value = tuple[float, float | None]
"""A time, and what was measured; None is a break in the line."""
Place = tuple[float, float]
Scale = Callable[[Place], Place]
"""From a time and a value to x and y."""
GAP_SECONDS_MIN = 90.0
"""A longer pause between two values breaks the line, if it is longer than three usual ones."""
WIDTH, HEIGHT = 480, 170
LEFT, BOTTOM, TOP = 52, 24, 10
ROWS_MAX = 12
"""Of the table below a chart."""
_SPARK = Markup(
    '<svg class="spark" role="img" viewBox="0 0 {0} {1}" width="{0}" height="{1}"><title>{2}</title>{3}</svg>'
)
_CHART = Markup("""<figure class="chart"><figcaption>{title} <span class="now">{now}</span></figcaption>
<svg role="img" viewBox="0 0 {width} {height}"><title>{title}: {summary}</title>{inner}</svg>
<details><summary>Values</summary><table>
<thead><tr><th scope="col">Time (UTC)</th><th scope="col">{title}</th></tr></thead>
<tbody>{rows}</tbody></table></details></figure>""")


def sparkline(values: Sequence[Value], title: str, width: int = 120, height: int = 28) -> Markup:
    """A small line without axes; its title has the meaning."""
    lines = list(_lines(values[:: max(1, len(values) // (width // 2))]))
    if not lines:
        base = Markup('<path class="axis" d="M1 {0}H{1}"/>').format(height - 2, width - 1)
        return _SPARK.format(width, height, f"{title}: no values yet", base)
    scale = _scale(lines, max(value for line in lines for _, value in line), (1, 2, width - 4, height - 4))
    x, y = scale(lines[-1][-1])
    dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2"/>').format(x, y)
    return _SPARK.format(width, height, title, _paths(lines, scale, height - 2) + dot)


def line_chart(values: Sequence[Value], title: str, shown: Callable[[float | None], str]) -> Markup:
    """A line over time with axes and its values as a table; `shown` formats a value."""
    lines = list(_lines(values))
    if not lines:
        note = Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">no values yet</text>')
        inner = note.format(WIDTH // 2, HEIGHT // 2)
        return _CHART.format(
            title=title, now="", width=WIDTH, height=HEIGHT, summary="no values yet", inner=inner, rows=""
        )
    flat = [place for line in lines for place in line]
    top = _nice(max(value for _, value in flat))
    scale = _scale(lines, top, (LEFT, TOP, WIDTH - LEFT - 8, HEIGHT - TOP - BOTTOM))
    inner = Markup("").join(_axes(lines, top, scale, shown)) + _paths(lines, scale, HEIGHT - BOTTOM)
    step = max(1, len(flat) // ROWS_MAX)
    row = Markup("<tr><td>{:%m-%d %H:%M:%S}</td><td>{}</td></tr>")
    rows = Markup("").join(row.format(_utc(at), shown(value)) for at, value in flat[::-1][::step][:ROWS_MAX])
    low, high, last = min(value for _, value in flat), max(value for _, value in flat), flat[-1][1]
    summary = f"now {shown(last)}, at least {shown(low)}, at most {shown(high)}"
    return _CHART.format(
        title=title, now=shown(last), width=WIDTH, height=HEIGHT, summary=summary, inner=inner, rows=rows
    )


def _lines(values: Sequence[Value]) -> Iterator[list[Place]]:
    """The unbroken parts."""
    gaps = sorted(after[0] - before[0] for before, after in pairwise(values))
    pause_max = max(GAP_SECONDS_MIN, 3 * gaps[len(gaps) // 2]) if gaps else 0.0
    line: list[Place] = []
    for at, value in values:
        if line and (value is None or at - line[-1][0] > pause_max):
            yield line
            line = []
        if value is not None:
            line.append((at, value))
    if line:
        yield line


def _scale(
    lines: Sequence[Sequence[Place]], top: float, box: tuple[float, float, float, float]
) -> Callable[[Place], Place]:
    """From times and values to places in a box of x, y, width and height."""
    x, y, width, height = box
    start, end = lines[0][0][0], lines[-1][-1][0]
    span, top = max(end - start, 1.0), top or 1.0
    return lambda place: (x + width * (place[0] - start) / span, y + height * (1 - max(0.0, place[1]) / top))


def _paths(lines: Sequence[Sequence[Place]], scale: Scale, base: float) -> Markup:
    """The area and the line of every unbroken part."""
    result = Markup("")
    for line in lines:
        places = [scale(place) for place in line]
        text = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        result += Markup('<path class="area" d="M{:.1f} {}L{}V{}Z"/><path class="line" d="M{}"/>').format(
            places[0][0], base, text, base, text
        )
    return result


def _axes(
    lines: Sequence[Sequence[Place]], top: float, scale: Scale, shown: Callable[[float], str]
) -> Iterator[Markup]:
    start, end = lines[0][0][0], lines[-1][-1][0]
    label = Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
    for value in (0.0, top / 2, top):
        y = scale((start, value))[1]
        yield Markup('<path class="axis" d="M{} {:.1f}H{}"/>').format(LEFT, y, WIDTH - 8)
        yield label.format(LEFT - 6, y + 4, "end", shown(value))
    style = "%H:%M" if end - start <= 86_400 else "%d %b"
    for at, anchor in ((start, "start"), ((start + end) / 2, "middle"), (end, "end")):
        yield label.format(scale((at, 0))[0], HEIGHT - 6, anchor, _utc(at).strftime(style))


def _nice(value: float) -> float:
    """A round number that is at least as large: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** floor(log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
