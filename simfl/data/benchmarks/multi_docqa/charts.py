"""Charts of real numbers: curves over time, and bars; half of them have their values printed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from simfl.data.benchmarks.fonts import widths
from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.page import Mark, MarkedPage, PageQuestion, format_number
from simfl.data.benchmarks.multi_docqa.tables import ROW, DataTable
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.io.table_page import ASCENT, DESCENT, FAMILY, PlacedWord, TablePage

POINTS = (5, 8)  # range of the number of points of a curve or of bars
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 30.0, 20.0, 4.0, 3.0, 3.0  # ems: the page, and the frame within it
LABEL = 9.0  # ems left of bars, for their names
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TIME = re.compile("year|time", re.IGNORECASE)


@dataclass(frozen=True)
class Series:
    """Named values of one quantity."""

    title: str
    quantity: str
    names: tuple[str, ...]
    values: tuple[Decimal, ...]
    over_time: bool


def sample_series(source: Source, table: DataTable, random: RandomStream) -> Series | None:
    """Sample consecutive values of a column over time, or values of named rows; None if the table has neither."""
    time = next((name for name in table.numbers if TIME.fullmatch(name)), None)
    over_time = time is not None or TIME.fullmatch(table.key) is not None
    if not over_time and table.key == ROW:
        return None
    names = _times(table.columns[time]) if time else list(table.keys)
    quantity = random.choice([name for name in table.numbers if name != time])
    values = table.numbers[quantity]
    count = random.randint(*POINTS)
    if names is None or len(set(names)) < len(names) or len(names) < count:
        return None
    first = random.randint(0, len(names) - count)
    rows = list(range(first, first + count)) if over_time else sorted(random.sample(range(len(names)), count))
    shown = [values[row] for row in rows]
    known = tuple(value for value in shown if value is not None)
    if len(known) < count or len(set(known)) < 3 or max(map(len, (names[row] for row in rows))) > 20:
        return None
    label = source.name if quantity in ("x", "value", source.name) else quantity
    return Series(table.title, label, tuple(names[row] for row in rows), known, over_time)


def _times(column: Sequence[str]) -> list[str] | None:
    """Return times as axis labels: 1949.083 is Feb 1949 in a monthly series. None if the values are no years."""
    values = [float(cell) if cell != "NA" else 0.0 for cell in column]
    if not all(1500 < value < 2100 for value in values):
        return None
    if all(value == int(value) for value in values):
        return [str(int(value)) for value in values]
    step = round(1 / max(1e-3, values[1] - values[0]))
    if step == 12:
        return [f"{MONTHS[round(v % 1 * 12) % 12]} {int(v + 1 / 24)}" for v in values]
    return [f"{int(v + 0.01)} Q{round(v % 1 * 4) % 4 + 1}" for v in values] if step == 4 else None


def lay_out(shown: Series, with_values: bool) -> MarkedPage:
    """Lay out a chart as a page, with values printed next to their bars or points if `with_values`."""
    placed: list[PlacedWord] = []
    _add_text(placed, f"{shown.title}", WIDTH / 2, 1.4, 0.5, bold=True)
    low, high, ticks = scale(shown.values)
    share = [float((value - low) / (high - low)) for value in shown.values]
    draw = _curve if shown.over_time else _bars
    marks, lines = draw(placed, shown, share, with_values)
    _ticks(placed, shown.over_time, low, high, ticks)
    return MarkedPage(TablePage(tuple(placed), lines, WIDTH, HEIGHT), marks)


def scale(values: Sequence[Decimal]) -> tuple[Decimal, Decimal, list[Decimal]]:
    """Return both ends of an axis that covers these values, and its 4 to 7 ticks, the ends included."""
    low, high = min(values), max(values)
    if low > 0 and low < high * Decimal("0.6"):
        low = Decimal(0)
    power = Decimal(10) ** math.floor(math.log10(float(high - low)))
    steps = [power * part for part in map(Decimal, ("0.2", "0.25", "0.5", "1", "2", "2.5"))]
    step = next(s for s in steps if (high - low) / s <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [step * i for i in range(first, last + 1)]
    return ticks[0], ticks[-1], ticks


def _curve(
    placed: list[PlacedWord], shown: Series, share: list[float], with_values: bool
) -> tuple[tuple[Mark, ...], tuple[float, ...]]:
    inner, base = WIDTH - LEFT - 2.0, HEIGHT - BOTTOM
    slot = inner / len(share)
    points = []
    for i, (name, part) in enumerate(zip(shown.names, share, strict=True)):
        x, y = LEFT + (i + 0.5) * slot, base - part * (base - TOP)
        points.append((x, y))
        year = name.split(" ")
        for row, word in enumerate(year):
            _add_text(placed, word, x, base + 1.2 + row, 0.5)
        if with_values:
            _add_text(placed, format_number(shown.values[i]), x, y - 0.5, 0.5)
    return (Mark("curve", tuple(points)),), (base,)


def _bars(
    placed: list[PlacedWord], shown: Series, share: list[float], with_values: bool
) -> tuple[tuple[Mark, ...], tuple[float, ...]]:
    base, slot = HEIGHT - BOTTOM, (HEIGHT - BOTTOM - TOP) / len(share)
    marks = []
    for i, (name, part) in enumerate(zip(shown.names, share, strict=True)):
        top = TOP + i * slot
        right = LABEL + part * (WIDTH - LABEL - 4.0)
        marks.append(Mark("bar", ((LABEL, top + 0.2 * slot), (right, top + 0.8 * slot))))
        _add_text(placed, name, LABEL - 0.4, top + 0.5 * slot + 0.35, 1.0)
        if with_values:
            _add_text(placed, format_number(shown.values[i]), right + 0.4, top + 0.5 * slot + 0.35, 0.0)
    return tuple(marks), (base,)


def _ticks(placed: list[PlacedWord], over_time: bool, low: Decimal, high: Decimal, ticks: list[Decimal]) -> None:
    base = HEIGHT - BOTTOM
    for tick in ticks:
        part = float((tick - low) / (high - low))
        if over_time:
            _add_text(placed, format_number(tick), LEFT - 0.4, base - part * (base - TOP) + 0.35, 1.0)
        else:
            _add_text(placed, format_number(tick), LABEL + part * (WIDTH - LABEL - 4.0), base + 1.2, 0.5)


def _add_text(placed: list[PlacedWord], text: str, x: float, baseline: float, align: float, bold: bool = False) -> None:
    """Add a line of text, a share `align` of it left of x, moved inside the page if needed."""
    em = widths(FAMILY, bold)
    words = text.split()
    length = sum(em[word] for word in words) + em[" "] * (len(words) - 1)
    left = min(max(0.3, x - align * length), max(0.3, WIDTH - length - 0.3))
    baseline = min(max(baseline, ASCENT), HEIGHT - DESCENT)
    for word in words:
        placed.append(PlacedWord(word, left, left + em[word], baseline, bold))
        left += em[word] + em[" "]


def ask(shown: Series, random: RandomStream, with_values: bool, count: int) -> list[PageQuestion]:
    """Sample up to `count` questions of different kinds.

    Questions about a value ask for the value if it is printed, else for the nearest tick of the axis.
    """
    kinds = (_extreme(True), _extreme(False), _higher, _value if with_values else _nearest)
    questions = [kind(shown, random) for kind in kinds]
    found = [question for question in questions if question]
    return random.sample(found, min(count, len(found)))


def _extreme(highest: bool) -> Callable[[Series, RandomStream], PageQuestion | None]:
    def ask_extreme(shown: Series, random: RandomStream) -> PageQuestion | None:
        best = max(shown.values) if highest else min(shown.values)
        if shown.values.count(best) > 1:
            return None
        word, when = "highest" if highest else "lowest", "When" if shown.over_time else "Where"
        name = shown.names[shown.values.index(best)]
        return PageQuestion(word, f"{when} is {shown.quantity} {word}?", (name,))

    return ask_extreme


def _higher(shown: Series, random: RandomStream) -> PageQuestion | None:
    first, second = random.sample(range(len(shown.names)), 2)
    if shown.values[first] == shown.values[second]:
        return None
    best = first if shown.values[first] > shown.values[second] else second
    question = f"Is {shown.quantity} higher at {shown.names[first]} or at {shown.names[second]}?"
    return PageQuestion("higher of two", question, (shown.names[best],))


def _value(shown: Series, random: RandomStream) -> PageQuestion | None:
    row = random.randrange(len(shown.names))
    return PageQuestion(
        "value", f"What is {shown.quantity} at {shown.names[row]}?", (format_number(shown.values[row]),)
    )


def _nearest(shown: Series, random: RandomStream) -> PageQuestion | None:
    row = random.randrange(len(shown.names))
    _, _, ticks = scale(shown.values)
    distance = sorted((abs(tick - shown.values[row]), tick) for tick in ticks)
    if distance[1][0] - distance[0][0] < (ticks[1] - ticks[0]) / 5:
        return None  # about halfway between two
    question = f"Which number on the axis is nearest to {shown.quantity} at {shown.names[row]}?"
    return PageQuestion("nearest tick", question, (format_number(distance[0][1]),))
