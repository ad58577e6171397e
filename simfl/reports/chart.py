"""Charts as SVG text: lines, strips of dots, a heat map, bars over time. Colours and fonts are the page's.

Series differ in colour, dash and marker at once, so no reader depends on colour alone. Coordinates are in the units of
a view box; the page scales it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

import numpy as np

WIDTH, HEIGHT = 440.0, 280.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 14.0, 12.0, 44.0
NUM_COLOURS = 8  # of the page: classes c0 to c7
CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 18000, 36000, 86400, 172800)  # seconds
WIDE = 7  # letters of a tick's text of which only a few find room
DASHES = ("", "7 4", "2 3", "9 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high: what the seeds span


@dataclass(frozen=True)
class Bar:
    """A stretch of time."""

    row: str
    begin: float
    end: float
    name: str
    colour: int = 0


def lines(series: Sequence[Series], x: str, y: str, form: Callable[[float], str] | None = None) -> str:
    """Lines over a common axis, and their legend; `form` writes a value of x."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [p[0] for one in drawn for p in one.points]
    ys = [p[1] for one in drawn for p in one.points] + [v for one in drawn for b in one.band for v in b[1:]]
    across, up = Scale.over(xs, LEFT, WIDTH - RIGHT), Scale.over(ys, HEIGHT - BOTTOM, TOP)
    body = [_axes(across, up, x, y, form or number)]
    for i, one in enumerate(drawn):
        body.append(_line(one, i, across, up))
    return _svg(HEIGHT, "".join(body), f"{y} over {x}") + legend([one.name for one in drawn])


def strips(groups: Sequence[tuple[str, Sequence[float]]], y: str) -> str:
    """A row of dots for each group, its median as a bar: how far apart the values lie."""
    step, label = 26.0, 168.0
    height = TOP + step * len(groups) + BOTTOM
    across = Scale.over([v for _, values in groups for v in values], label, WIDTH - RIGHT)
    body = [_x_axis(across, height - BOTTOM, TOP, y, number)]
    for i, (name, values) in enumerate(groups):
        middle = TOP + step * (i + 0.5)
        body.append(f'<text x="{label - 8}" y="{middle + 4:.1f}" class="end">{escape(_short(name, 24))}</text>')
        for k, value in enumerate(values):  # equal values lie a little above and below one another
            place = f'cx="{across(value):.1f}" cy="{middle + 2.5 * (k % 5 - 2):.1f}" r="3.5"'
            title = f"<title>{escape(name)}: {number(value)}</title>"
            body.append(f'<circle {place} class="dot c{_colour(i)}">{title}</circle>')
        half = across(float(np.median(values)))
        body.append(f'<path d="M{half:.1f} {middle - 9:.1f}v18" class="median"/>')
    return _svg(height, "".join(body), f"{y} of each client")


def heat(rows: Sequence[str], columns: Sequence[str], values: np.ndarray, what: str) -> str:
    """A cell for each row and column, darker for more; float or int [rows, columns]."""
    left, top = 78.0, 22.0 + 5.4 * min(max((len(name) for name in columns), default=0), 11)
    wide, high = (WIDTH - left - 2 * RIGHT) / max(len(columns), 1), min(22.0, 300.0 / max(len(rows), 1))
    most = float(values.max()) or 1.0
    body = []
    for i, row in enumerate(rows):
        if high >= 10 or i % math.ceil(12 / high) == 0:
            at = f'x="{left - 6}" y="{top + high * (i + 0.5) + 4:.1f}"'
            body.append(f'<text {at} class="end">{escape(_short(row, 10))}</text>')
        for j, column in enumerate(columns):
            share = math.sqrt(float(values[i, j]) / most)
            title = f"<title>{escape(row)}, {escape(column)}: {number(float(values[i, j]))}</title>"
            place = f'x="{left + wide * j:.1f}" y="{top + high * i:.1f}" width="{wide:.1f}" height="{high:.1f}"'
            body.append(f'<rect {place} class="cell" style="--share:{share:.3f}">{title}</rect>')
    for j, column in enumerate(columns):
        if (len(columns) - 1 - j) % max(
            1, math.ceil(12 / wide) if wide < 9 else 1
        ) == 0:  # the last, of all others, too
            at = f"translate({left + wide * (j + 0.5) + 4:.1f} {top - 5})rotate(-55)"
            body.append(f'<text transform="{at}">{escape(_short(column, 11))}</text>')
    return _svg(top + high * len(rows) + 8, "".join(body), what)


def bars(given: Sequence[Bar], x: str) -> str:
    """Stretches of seconds, a row for each name."""
    rows = list(dict.fromkeys(bar.row for bar in given))
    step, label = 22.0, 150.0
    height = TOP + step * len(rows) + BOTTOM
    across = replace(Scale.over([v for bar in given for v in (bar.begin, bar.end)], label, WIDTH - RIGHT), steps=CLOCK)
    body = [_x_axis(across, height - BOTTOM, TOP, x, clock)]
    for i, row in enumerate(rows):
        body.append(
            f'<text x="{label - 6}" y="{TOP + step * (i + 0.5) + 4:.1f}" class="end">{escape(_short(row, 21))}</text>'
        )
    for bar in given:
        top, wide = TOP + step * rows.index(bar.row) + 3, max(across(bar.end) - across(bar.begin), 0.6)
        place = f'x="{across(bar.begin):.1f}" y="{top:.1f}" width="{wide:.1f}" height="{step - 6}"'
        body.append(f'<rect {place} class="bar c{_colour(bar.colour)}"><title>{escape(bar.name)}</title></rect>')
    return _svg(height, "".join(body), x)


def legend(names: Sequence[str]) -> str:
    """What each colour, dash and marker means."""
    items = [
        f'<li><svg class="key" viewBox="0 0 26 16" aria-hidden="true">{_key(i)}</svg>{escape(name)}</li>'
        for i, name in enumerate(names)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _key(i: int) -> str:
    return f'<path d="M1 8h24" class="line c{_colour(i)}" {_dash(i)}/>{_marker(i, 13, 8)}'


@dataclass(frozen=True)
class Scale:
    """Values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    whole: bool = False  # all values are whole numbers, and so are the ticks
    steps: tuple[float, ...] = ()  # between ticks, rising, where they may not be 1, 2 or 5 times a power of ten

    @staticmethod
    def over(values: Iterable[float], start: float, end: float) -> Scale:
        """From the least to the greatest value, a little room around a single one."""
        found = [v for v in values if math.isfinite(v)] or [0.0]
        low, high = min(found), max(found)
        room = (high - low) * 0.03 or abs(high) * 0.1 or 1.0
        return Scale(low - (room if low else 0.0), high + room, start, end, all(v == int(v) for v in found))

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """Round values inside the scale."""
        raw = max((self.high - self.low) / most, 1.0 if self.whole else 0.0)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
        if self.steps and self.steps[0] <= raw <= self.steps[-1]:
            step = next(known for known in self.steps if known >= raw)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def clock(seconds: float) -> str:
    """A tick of a scale of time: 0, 0.5 s, 30 s, 1 min 30 s, 2 min, 1 h 30 min."""
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds else "0"
    (whole, unit), (rest, small) = ((3600, "h"), (60, "min")) if seconds >= 3600 else ((60, "min"), (1, "s"))
    more = round(seconds % whole / rest)
    return f"{int(seconds // whole)} {unit}" + (f" {more:02d} {small}" if more else "")


def number(value: float) -> str:
    """Short, with as many digits as matter."""
    return f"{value:.4g}" if value else "0"


def _axes(across: Scale, up: Scale, x: str, y: str, form: Callable[[float], str]) -> str:
    grid = "".join(
        f'<path d="M{LEFT} {up(v):.1f}H{WIDTH - RIGHT}" class="grid"/>'
        f'<text x="{LEFT - 6}" y="{up(v) + 4:.1f}" class="end">{number(v)}</text>'
        for v in up.ticks()
    )
    middle = (TOP + HEIGHT - BOTTOM) / 2
    side = f'<text transform="translate(15 {middle})rotate(-90)" class="middle label">{escape(y)}</text>'
    return grid + side + _x_axis(across, HEIGHT - BOTTOM, HEIGHT - BOTTOM, x, form)


def _x_axis(across: Scale, base: float, top: float, x: str, form: Callable[[float], str]) -> str:
    ticks = "".join(
        (f'<path d="M{across(v):.1f} {top}V{base}" class="grid"/>' if top < base else "")
        + f'<text x="{across(v):.1f}" y="{base + 16:.1f}" class="{_anchor(across(v))}">{form(v)}</text>'
        for v in across.ticks(3 if any(len(form(v)) > WIDE for v in across.ticks()) else 5)
    )
    middle = (across.start + across.end) / 2
    axis = f'<path d="M{across.start} {base}H{across.end}" class="axis"/>'
    return f'{ticks}{axis}<text x="{middle}" y="{base + 36:.1f}" class="middle label">{escape(x)}</text>'


def _anchor(x: float) -> str:
    """Of a tick's text: what stands at the right edge ends there."""
    return "end" if x > WIDTH - RIGHT - 16 else "middle"


def _line(one: Series, i: int, across: Scale, up: Scale) -> str:
    path = "M" + "L".join(f"{across(a):.1f} {up(b):.1f}" for a, b in one.points)
    band = ""
    if one.band:
        edge = [(a, high) for a, _, high in one.band] + [(a, low) for a, low, _ in reversed(one.band)]
        outline = "M" + "L".join(f"{across(a):.1f} {up(b):.1f}" for a, b in edge) + "Z"
        band = f'<path d="{outline}" class="band c{_colour(i)}"/>'
    every = max(1, len(one.points) // 8)
    marks = "".join(_marker(i, across(a), up(b)) for k, (a, b) in enumerate(one.points) if k % every == 0)
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
