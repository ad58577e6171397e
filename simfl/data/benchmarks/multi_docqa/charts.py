"""Charts of real numbers: curves over time whose values only the picture shows, and bars, some with their values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.multi_docqa.archive import Source
from simfl.data.benchmarks.multi_docqa.asked import Asked, printed
from simfl.data.benchmarks.multi_docqa.sheet import Mark, Sheet
from simfl.data.benchmarks.multi_docqa.tables import ROW, Table
from simfl.data.benchmarks.provider_invoices.fonts import widths
from simfl.data.readers.table_page import ASCENT, DESCENT, FAMILY, TablePage, Word

POINTS = (5, 8)  # on a curve or in bars
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 30.0, 20.0, 4.0, 3.0, 3.0  # ems: the page, and the frame within it
LABEL = 9.0  # ems left of bars, for their names
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
TIME = re.compile("year|time", re.IGNORECASE)


@dataclass(frozen=True)
class Series:
    """Some values of one quantity, each with its name."""

    title: str
    quantity: str
    names: tuple[str, ...]
    values: tuple[Decimal, ...]
    over_time: bool


def series(source: Source, table: Table, dice: Dice) -> Series | None:
    """Neighbouring values of a column over time, or values of rows with names; None if the table has neither."""
    time = next((name for name in table.numbers if TIME.fullmatch(name)), None)
    over_time = time is not None or TIME.fullmatch(table.key) is not None
    if not over_time and table.key == ROW:
        return None
    names = _times(table.columns[time]) if time else list(table.keys)
    quantity = dice.pick([name for name in table.numbers if name != time])
    values = table.numbers[quantity]
    count = dice.between(*POINTS)
    if names is None or len(set(names)) < len(names) or len(names) < count:
        return None
    first = dice.between(0, len(names) - count)
    rows = list(range(first, first + count)) if over_time else sorted(dice.sample(range(len(names)), count))
    shown = [values[row] for row in rows]
    told = tuple(value for value in shown if value is not None)
    if len(told) < count or len(set(told)) < 3 or max(map(len, (names[row] for row in rows))) > 20:
        return None
    label = source.name if quantity in ("x", "value", source.name) else quantity
    return Series(table.title, label, tuple(names[row] for row in rows), told, over_time)


def _times(column: Sequence[str]) -> list[str] | None:
    """Times as an axis names them: 1949.083 is Feb 1949 in monthly series; None where they are no years."""
    values = [float(cell) if cell != "NA" else 0.0 for cell in column]
    if not all(1500 < value < 2100 for value in values):
        return None
    if all(value == int(value) for value in values):
        return [str(int(value)) for value in values]
    step = round(1 / max(1e-3, values[1] - values[0]))
    if step == 12:
        return [f"{MONTHS[round(v % 1 * 12) % 12]} {int(v + 1 / 24)}" for v in values]
    return [f"{int(v + 0.01)} Q{round(v % 1 * 4) % 4 + 1}" for v in values] if step == 4 else None


def lay_out(shown: Series, told: bool) -> Sheet:
    """The chart as a page; `told`: values are printed beside their bars or points."""
    placed: list[Word] = []
    _text(placed, f"{shown.title}", WIDTH / 2, 1.4, 0.5, bold=True)
    low, high, ticks = scale(shown.values)
    share = [float((value - low) / (high - low)) for value in shown.values]
    draw = _curve if shown.over_time else _bars
    marks, lines = draw(placed, shown, share, told)
    _ticks(placed, shown.over_time, low, high, ticks)
    return Sheet(TablePage(tuple(placed), lines, WIDTH, HEIGHT), marks)


def scale(values: Sequence[Decimal]) -> tuple[Decimal, Decimal, list[Decimal]]:
    """The ends of an axis that holds these values, and its 4 to 7 ticks, the ends among them."""
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
    placed: list[Word], shown: Series, share: list[float], told: bool
) -> tuple[tuple[Mark, ...], tuple[float, ...]]:
    inner, base = WIDTH - LEFT - 2.0, HEIGHT - BOTTOM
    slot = inner / len(share)
    points = []
    for i, (name, part) in enumerate(zip(shown.names, share, strict=True)):
        x, y = LEFT + (i + 0.5) * slot, base - part * (base - TOP)
        points.append((x, y))
        year = name.split(" ")
        for row, word in enumerate(year):
            _text(placed, word, x, base + 1.2 + row, 0.5)
        if told:
            _text(placed, printed(shown.values[i]), x, y - 0.5, 0.5)
    return (Mark("curve", tuple(points)),), (base,)


def _bars(
    placed: list[Word], shown: Series, share: list[float], told: bool
) -> tuple[tuple[Mark, ...], tuple[float, ...]]:
    base, slot = HEIGHT - BOTTOM, (HEIGHT - BOTTOM - TOP) / len(share)
    marks = []
    for i, (name, part) in enumerate(zip(shown.names, share, strict=True)):
        top = TOP + i * slot
        right = LABEL + part * (WIDTH - LABEL - 4.0)
        marks.append(Mark("bar", ((LABEL, top + 0.2 * slot), (right, top + 0.8 * slot))))
        _text(placed, name, LABEL - 0.4, top + 0.5 * slot + 0.35, 1.0)
        if told:
            _text(placed, printed(shown.values[i]), right + 0.4, top + 0.5 * slot + 0.35, 0.0)
    return tuple(marks), (base,)


def _ticks(placed: list[Word], over_time: bool, low: Decimal, high: Decimal, ticks: list[Decimal]) -> None:
    base = HEIGHT - BOTTOM
    for tick in ticks:
        part = float((tick - low) / (high - low))
        if over_time:
            _text(placed, printed(tick), LEFT - 0.4, base - part * (base - TOP) + 0.35, 1.0)
        else:
            _text(placed, printed(tick), LABEL + part * (WIDTH - LABEL - 4.0), base + 1.2, 0.5)


def _text(placed: list[Word], text: str, x: float, baseline: float, align: float, bold: bool = False) -> None:
    """A line of text of which the share `align` stands left of x; it stays on the page."""
    em = widths(FAMILY, bold)
    words = text.split()
    whole = sum(em[word] for word in words) + em[" "] * (len(words) - 1)
    left = min(max(0.3, x - align * whole), max(0.3, WIDTH - whole - 0.3))
    baseline = min(max(baseline, ASCENT), HEIGHT - DESCENT)
    for word in words:
        placed.append(Word(word, left, left + em[word], baseline, bold))
        left += em[word] + em[" "]


def ask(shown: Series, dice: Dice, told: bool, count: int) -> list[Asked]:
    """Up to `count` questions of different kinds; values are asked for where they are told, else their nearest tick."""
    asked = [kind(shown, dice) for kind in (_extreme(True), _extreme(False), _higher, _told if told else _nearest)]
    found = [question for question in asked if question]
    return dice.sample(found, min(count, len(found)))


def _extreme(highest: bool) -> Callable[[Series, Dice], Asked | None]:
    def ask_extreme(shown: Series, dice: Dice) -> Asked | None:
        best = max(shown.values) if highest else min(shown.values)
        if shown.values.count(best) > 1:
            return None
        word, when = "highest" if highest else "lowest", "When" if shown.over_time else "Where"
        name = shown.names[shown.values.index(best)]
        return Asked(word, f"{when} is {shown.quantity} {word}?", (name,))

    return ask_extreme


def _higher(shown: Series, dice: Dice) -> Asked | None:
    first, second = dice.sample(range(len(shown.names)), 2)
    if shown.values[first] == shown.values[second]:
        return None
    best = first if shown.values[first] > shown.values[second] else second
    question = f"Is {shown.quantity} higher at {shown.names[first]} or at {shown.names[second]}?"
    return Asked("higher of two", question, (shown.names[best],))


def _told(shown: Series, dice: Dice) -> Asked | None:
    row = dice.below(len(shown.names))
    return Asked("value", f"What is {shown.quantity} at {shown.names[row]}?", (printed(shown.values[row]),))


def _nearest(shown: Series, dice: Dice) -> Asked | None:
    row = dice.below(len(shown.names))
    _, _, ticks = scale(shown.values)
    distance = sorted((abs(tick - shown.values[row]), tick) for tick in ticks)
    if distance[1][0] - distance[0][0] < (ticks[1] - ticks[0]) / 5:
        return None  # about half way between two
    question = f"Which number on the axis is nearest to {shown.quantity} at {shown.names[row]}?"
    return Asked("nearest tick", question, (printed(distance[0][1]),))
