"""Charts as SVG text: line charts, strips of dots, heat maps, bars over time. The page defines colours and fonts.

Series differ in colour, dash and marker, so a reader need not distinguish colours. Coordinates are in the units of a
view box, which the page scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

WIDTH, HEIGHT = 440.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 44.0
NUM_COLOURS = 8  # of the page: classes c0 to c7
TIME_STEPS = (  # seconds between the ticks of a time axis
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400, 172800,
)  # fmt: skip  # seconds between ticks
MAX_TICK_LETTERS = 7  # with longer tick labels, an axis has fewer ticks
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
Point = tuple[float, float]


@dataclass(frozen=True)
class LineSeries:
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high: the range over the seeds


@dataclass(frozen=True)
class Dot:
    """A point of a scatter chart."""

    x: float
    y: float
    name: str
    hollow: bool = False


@dataclass(frozen=True)
class Bar:
    """A period of time."""

    row: str
    begin: float
    end: float
    name: str
    colour: int = 0


def line_chart(
    series: Sequence[LineSeries], x: str, y: str, format_x: Callable[[float], str] | None = None, log: bool = False
) -> str:
    """Draw lines over a common axis, and their legend; an empty text if there are no points."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [p[0] for one in drawn for p in one.points]
    ys = [p[1] for one in drawn for p in one.points] + [v for one in drawn for b in one.band for v in b[1:]]
    x_scale, y_scale = Scale.over(xs, LEFT, WIDTH - RIGHT, log), Scale.over(ys, HEIGHT - BOTTOM, TOP)
    body = [_axes(x_scale, y_scale, x, y, format_x or format_number)]
    for i, one in enumerate(drawn):
        body.append(_line(one, i, x_scale, y_scale))
    return _svg(HEIGHT, "".join(body), f"{y} over {x}") + legend([one.name for one in drawn])


def scatter_chart(dots: Sequence[Dot], x: str, y: str, line: Sequence[Point] = (), log: bool = False) -> str:
    """Draw points, hollow or filled, and a line over the same axes; an empty text without points.

    Args:
        dots: The points.
        x: Label of the x axis.
        y: Label of the y axis.
        line: A line such as the best score so far.
        log: Whether the x axis is logarithmic; all x are then above 0.
    """
    if not dots:
        return ""
    x_scale = Scale.over([dot.x for dot in dots], LEFT, WIDTH - RIGHT, log)
    y_scale = Scale.over([dot.y for dot in dots], HEIGHT - BOTTOM, TOP)
    body = [_axes(x_scale, y_scale, x, y, format_number)]
    if line:
        path = "M" + "L".join(f"{x_scale(a):.1f} {y_scale(b):.1f}" for a, b in line)
        body.append(f'<path d="{path}" class="line c1"/>')
    for dot in dots:
        place = f'cx="{x_scale(dot.x):.1f}" cy="{y_scale(dot.y):.1f}" r="3.8"'
        title = f"<title>{escape(dot.name)}: {format_number(dot.y)}</title>"
        body.append(f'<circle {place} class="dot{" hollow" if dot.hollow else ""} c0">{title}</circle>')
    return _svg(HEIGHT, "".join(body), f"{y} over {x}")


def stacked_bars(rows: Sequence[tuple[str, Mapping[str, float]]], x: str) -> str:
    """Draw a bar for each row, divided into its parts in seconds, and the legend of the parts."""
    parts = list(dict.fromkeys(name for _, row in rows for name in row))
    step, label = 22.0, 168.0
    height, total = TOP + step * len(rows) + BOTTOM, max((sum(row.values()) for _, row in rows), default=0.0)
    x_scale = replace(Scale.over([0.0, total], label, WIDTH - RIGHT), steps=TIME_STEPS)
    body = [_x_axis(x_scale, height - BOTTOM, TOP, x, format_tick)]
    for i, (name, row) in enumerate(rows):
        at, end = TOP + step * i, 0.0
        body.append(f'<text x="{label - 8}" y="{at + 15:.1f}" class="end">{escape(_short(name, 24))}</text>')
        for part, value in row.items():
            place = f'x="{x_scale(end):.1f}" y="{at + 3:.1f}" height="{step - 6}"'
            width, title = x_scale(end + value) - x_scale(end), f"{name}, {part}: {format_tick(value)}"
            colour = f"bar c{_colour(parts.index(part))}"
            body.append(f'<rect {place} width="{width:.1f}" class="{colour}"><title>{escape(title)}</title></rect>')
            end += value
    return _svg(height, "".join(body), x) + swatches(parts)


def swatches(names: Sequence[str]) -> str:
    """Return a legend of plain colours."""
    items = [
        f'<li><svg class="key" viewBox="0 0 26 16" aria-hidden="true">'
        f'<rect x="3" y="3" width="20" height="10" class="bar c{_colour(i)}"/></svg>{escape(name)}</li>'
        for i, name in enumerate(names)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def dot_strips(groups: Sequence[tuple[str, Sequence[float]]], y: str) -> str:
    """Draw each group as a strip of dots, with its median as a bar."""
    step, label = 26.0, 168.0
    height = TOP + step * len(groups) + BOTTOM
    x_scale = Scale.over([v for _, values in groups for v in values], label, WIDTH - RIGHT)
    body = [_x_axis(x_scale, height - BOTTOM, TOP, y, format_number)]
    for i, (name, values) in enumerate(groups):
        middle = TOP + step * (i + 0.5)
        body.append(f'<text x="{label - 8}" y="{middle + 4:.1f}" class="end">{escape(_short(name, 24))}</text>')
        for k, value in enumerate(values):  # equal values are offset vertically
            place = f'cx="{x_scale(value):.1f}" cy="{middle + 2.5 * (k % 5 - 2):.1f}" r="3.5"'
            title = f"<title>{escape(name)}: {format_number(value)}</title>"
            body.append(f'<circle {place} class="dot c{_colour(i)}">{title}</circle>')
        half = x_scale(float(np.median(values)))
        body.append(f'<path d="M{half:.1f} {middle - 9:.1f}v18" class="median"/>')
    return _svg(height, "".join(body), f"{y} of each client")


def heat_map(rows: Sequence[str], columns: Sequence[str], values: np.ndarray, title: str) -> str:
    """Draw a cell for each row and column, darker for larger values; `values` are floats or ints [rows, columns]."""
    left, top = 78.0, 22.0 + 5.4 * min(max((len(name) for name in columns), default=0), 11)
    width, height = (WIDTH - left - 2 * RIGHT) / max(len(columns), 1), min(22.0, 300.0 / max(len(rows), 1))
    largest = float(values.max()) or 1.0
    body = []
    for i, row in enumerate(rows):
        if height >= 10 or i % math.ceil(12 / height) == 0:
            at = f'x="{left - 6}" y="{top + height * (i + 0.5) + 4:.1f}"'
            body.append(f'<text {at} class="end">{escape(_short(row, 10))}</text>')
        for j, column in enumerate(columns):
            share = math.sqrt(float(values[i, j]) / largest)
            tooltip = f"<title>{escape(row)}, {escape(column)}: {format_number(float(values[i, j]))}</title>"
            place = f'x="{left + width * j:.1f}" y="{top + height * i:.1f}" width="{width:.1f}" height="{height:.1f}"'
            body.append(f'<rect {place} class="cell" style="--share:{share:.3f}">{tooltip}</rect>')
    step = max(1, math.ceil(12 / width) if width < 9 else 1)
    for j, column in enumerate(columns):
        if (len(columns) - 1 - j) % step == 0:  # narrow columns: every step-th label, and the last
            at = f"translate({left + width * (j + 0.5) + 4:.1f} {top - 5})rotate(-55)"
            body.append(f'<text transform="{at}">{escape(_short(column, 11))}</text>')
    return _svg(top + height * len(rows) + 8, "".join(body), title)


def bar_chart(given: Sequence[Bar], x: str) -> str:
    """Draw periods in seconds, one row for each name."""
    rows = list(dict.fromkeys(bar.row for bar in given))
    step, label = 22.0, 150.0
    height = TOP + step * len(rows) + BOTTOM
    x_scale = replace(
        Scale.over([v for bar in given for v in (bar.begin, bar.end)], label, WIDTH - RIGHT), steps=TIME_STEPS
    )
    body = [_x_axis(x_scale, height - BOTTOM, TOP, x, format_tick)]
    for i, row in enumerate(rows):
        body.append(
            f'<text x="{label - 6}" y="{TOP + step * (i + 0.5) + 4:.1f}" class="end">{escape(_short(row, 21))}</text>'
        )
    for bar in given:
        top, width = TOP + step * rows.index(bar.row) + 3, max(x_scale(bar.end) - x_scale(bar.begin), 0.6)
        place = f'x="{x_scale(bar.begin):.1f}" y="{top:.1f}" width="{width:.1f}" height="{step - 6}"'
        body.append(f'<rect {place} class="bar c{_colour(bar.colour)}"><title>{escape(bar.name)}</title></rect>')
    return _svg(height, "".join(body), x)


def legend(names: Sequence[str]) -> str:
    """Return the legend: the colour, dash and marker of each name."""
    items = [
        f'<li><svg class="key" viewBox="0 0 26 16" aria-hidden="true">{_key(i)}</svg>{escape(name)}</li>'
        for i, name in enumerate(names)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _key(i: int) -> str:
    return f'<path d="M1 8h24" class="line c{_colour(i)}" {_dash(i)}/>{_marker(i, 13, 8)}'


@dataclass(frozen=True)
class Scale:
    """A linear map from values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    whole: bool = False  # all values are whole numbers, and so are the ticks
    steps: tuple[float, ...] = ()  # distances between ticks, ascending, in place of 1, 2 or 5 times a power of ten
    log: bool = False  # `low` and `high` are decimal logarithms

    @staticmethod
    def over(values: Iterable[float], start: float, end: float, log: bool = False) -> Scale:
        """Return a scale from the smallest to the largest value, with a margin."""
        found = [v for v in values if math.isfinite(v)] or [1.0]
        if log:
            low, high = math.log10(min(found)), math.log10(max(found))
            room = (high - low) * 0.03 or 0.1
            return Scale(low - room, high + room, start, end, log=True)
        low, high = min(found), max(found)
        room = (high - low) * 0.03 or abs(high) * 0.1 or 1.0
        return Scale(low - (room if low else 0.0), high + room, start, end, all(v == int(v) for v in found))

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Return round values inside the scale, about `most` of them."""
        if self.log:
            return self._log_ticks()
        raw = max((self.high - self.low) / most, 1.0 if self.whole else 0.0)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
        if self.steps and self.steps[0] <= raw <= self.steps[-1]:
            step = next(known for known in self.steps if known >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _log_ticks(self) -> list[float]:
        """Return powers of ten, or with fewer than three of them 1, 2 and 5 times a power of ten."""
        powers = range(math.floor(self.low) - 1, math.ceil(self.high) + 1)
        for factors in ((1,), (1, 2, 5)):
            inside = [m * 10.0**p for p in powers for m in factors if self.low <= math.log10(m * 10.0**p) <= self.high]
            if len(inside) >= 3:
                break
        return inside


def format_tick(seconds: float) -> str:
    """Format a tick of a time axis: 0, 0.5 s, 30 s, 1 min 30 s, 2 min, 1 h 30 min."""
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds else "0"
    (whole, unit), (rest, small) = ((3600, "h"), (60, "min")) if seconds >= 3600 else ((60, "min"), (1, "s"))
    more = round(seconds % whole / rest)
    return f"{int(seconds // whole)} {unit}" + (f" {more:02d} {small}" if more else "")


def format_number(value: float) -> str:
    """Format a number with 4 significant digits."""
    return f"{value:.4g}" if value else "0"


def _axes(x_scale: Scale, y_scale: Scale, x: str, y: str, format_x: Callable[[float], str]) -> str:
    grid = "".join(
        f'<path d="M{LEFT} {y_scale(v):.1f}H{WIDTH - RIGHT}" class="grid"/>'
        f'<text x="{LEFT - 6}" y="{y_scale(v) + 4:.1f}" class="end">{format_number(v)}</text>'
        for v in y_scale.ticks()
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    side = f'<text transform="translate(15 {middle})rotate(-90)" class="middle label">{escape(y)}</text>'
    return grid + side + _x_axis(x_scale, HEIGHT - BOTTOM, HEIGHT - BOTTOM, x, format_x)


def _x_axis(x_scale: Scale, base: float, top: float, x: str, format_x: Callable[[float], str]) -> str:
    ticks = "".join(
        (f'<path d="M{x_scale(v):.1f} {top}V{base}" class="grid"/>' if top < base else "")
        + f'<text x="{x_scale(v):.1f}" y="{base + 16:.1f}" class="{_anchor(x_scale(v))}">{format_x(v)}</text>'
        for v in x_scale.ticks(3 if any(len(format_x(v)) > MAX_TICK_LETTERS for v in x_scale.ticks()) else 5)
    )
    middle = (x_scale.start + x_scale.end) / 2
    axis = f'<path d="M{x_scale.start} {base}H{x_scale.end}" class="axis"/>'
    return f'{ticks}{axis}<text x="{middle}" y="{base + 36:.1f}" class="middle label">{escape(x)}</text>'


def _anchor(x: float) -> str:
    """Return the anchor of a tick label: at the right edge of the chart, its end."""
    return "end" if x > WIDTH - RIGHT - 16 else "middle"


def _line(one: LineSeries, i: int, x_scale: Scale, y_scale: Scale) -> str:
    path = "M" + "L".join(f"{x_scale(a):.1f} {y_scale(b):.1f}" for a, b in one.points)
    band = ""
    if one.band:
        edge = [(a, high) for a, _, high in one.band] + [(a, low) for a, low, _ in reversed(one.band)]
        outline = "M" + "L".join(f"{x_scale(a):.1f} {y_scale(b):.1f}" for a, b in edge) + "Z"
        band = f'<path d="{outline}" class="band c{_colour(i)}"/>'
    every = max(1, len(one.points) // 8)
    marks = "".join(_marker(i, x_scale(a), y_scale(b)) for k, (a, b) in enumerate(one.points) if k % every == 0)
    title = f"<title>{escape(one.name)}</title>"
    return f'<g>{title}{band}<path d="{path}" class="line c{_colour(i)}" {_dash(i)}/>{marks}</g>'


def _marker(i: int, x: float, y: float) -> str:
    shapes = {
        "circle": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4"',
        "square": f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"',
        "triangle": f'<path d="M{x:.1f} {y - 4:.1f}l4 7h-8z"',
        "diamond": f'<path d="M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"',
    }
    return f'{shapes[MARKERS[i % len(MARKERS)]]} class="mark c{_colour(i)}"/>'


def _dash(i: int) -> str:
    dash = DASHES[i // len(MARKERS) % len(DASHES)]
    return f'stroke-dasharray="{dash}"' if dash else ""


def _colour(i: int) -> int:
    return i % NUM_COLOURS


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _svg(height: float, body: str, name: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH:g} {height:.0f}" role="img" aria-label="{escape(name)}">{body}</svg>'
