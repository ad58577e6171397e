"""Where everything stands on the page. Lengths are thousandths of the page's width; y grows downwards."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.data.benchmarks.provider_invoices.dice import Dice
from simfl.data.benchmarks.provider_invoices.fonts import SIZE, widths
from simfl.data.benchmarks.provider_invoices.invoice import Invoice
from simfl.data.benchmarks.provider_invoices.provider import Provider, Style

LEADING = 1.35  # line distance over text size
SPACE = 0.32  # between words, in ems: wide enough to be seen in a small picture
SHARE = {"position": 0.07, "quantity": 0.17, "price": 0.2, "amount": 0.2}  # of the table's width; the item has the rest
LEFT, RIGHT, CENTRE = 0.0, 1.0, 0.5  # how much of a text lies left of its x


@dataclass(frozen=True)
class Word:
    """One printed word; `baseline` and `left` in page units, `size` of its font."""

    text: str
    left: float
    baseline: float
    width: float
    size: float
    bold: bool
    ink: int  # 0 black, 1 accent, 2 white


@dataclass(frozen=True)
class Shape:
    """A figure. `kind`: box, square, line, disc, ring, triangle, diamond, bars; `shade`: 0 black, 1 accent, 2 grey."""

    kind: str
    left: float
    top: float
    right: float
    bottom: float
    shade: int


@dataclass(frozen=True)
class Page:
    """A laid out page, `height` thousandths of its width high."""

    words: tuple[Word, ...]
    shapes: tuple[Shape, ...]
    height: float
    family: str
    accent: tuple[int, int, int]


class Pen:
    """Collects words and shapes of one page."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.step = style.size * LEADING
        self.left, self.right = float(style.margin), 1000.0 - style.margin
        self.words: list[Word] = []
        self.shapes: list[Shape] = []
        self._widths = (widths(style.family, False), widths(style.family, True))
        self._scale = SIZE[style.family]

    def width(self, text: str, scale: float = 1.0, bold: bool = False) -> float:
        """Width of a text at `scale` times the body size."""
        return self._widths[bold][text] * self.style.size * scale * self._scale

    def text(
        self,
        x: float,
        baseline: float,
        text: str,
        align: float = LEFT,
        scale: float = 1.0,
        bold: bool = False,
        ink: int = 0,
    ) -> None:
        """One line of text; its words are kept apart."""
        size = self.style.size * scale * self._scale
        em, add, space = self._widths[bold], self.words.append, SPACE * size
        parts = text.split(" ")
        lengths = [em[part] * size for part in parts]
        if align:
            x -= align * (sum(lengths) + space * (len(parts) - 1))
        for part, length in zip(parts, lengths, strict=True):
            add(Word(part, x, baseline, length, size, bold, ink))
            x += length + space

    def shape(self, kind: str, left: float, top: float, right: float, bottom: float, shade: int) -> None:
        """A figure within these bounds."""
        self.shapes.append(Shape(kind, left, top, right, bottom, shade))


def lay_out(invoice: Invoice, dice: Dice) -> Page:
    """The page of an invoice in its provider's style; a little of the vertical spacing is this page's own."""
    provider, style = invoice.provider, invoice.provider.style
    pen = Pen(style)
    gap = pen.step * (0.9 + 0.5 * dice.real())
    y = _header(pen, provider, style.margin + pen.step) + gap
    y = max(_customer(pen, invoice, y), _meta(pen, invoice, y)) + gap
    if style.meta == "column heads":
        y = _meta_heads(pen, invoice, y) + gap
    y = _table(pen, invoice, y) + gap
    y = _totals(pen, invoice, y) + gap
    y = _footer(pen, provider, max(y, style.height - style.margin - 2 * pen.step))
    height = max(float(style.height), y + style.margin)
    return Page(tuple(pen.words), tuple(pen.shapes), height, style.family, style.accent)


def _header(pen: Pen, provider: Provider, y: float) -> float:
    style, labels = provider.style, provider.labels
    x, align = {"left": (pen.left, LEFT), "right": (pen.right, RIGHT), "centre": (500.0, CENTRE)}[style.header]
    name = 1.5
    if style.logo != "none":
        side = 2.1 * pen.step
        start = x - align * (side + 12 + pen.width(provider.company, name, True))
        pen.shape(style.logo, start, y - 0.9 * pen.step, start + side, y - 0.9 * pen.step + side, 1)
        x, align = start + side + 12, LEFT
    pen.text(x, y, provider.company, align, name, bold=True)
    street, city = provider.address
    pen.text(x, y + pen.step, f"{street}, {city}", align, 0.9)
    if style.header == "centre":
        pen.text(500, y + 2.8 * pen.step, labels["title"], CENTRE, 1.8, True, 1)
        return y + 3.6 * pen.step
    side_x, side_align = (pen.right, RIGHT) if style.header == "left" else (pen.left, LEFT)
    below = 1.9 * pen.step * (pen.width(provider.company, name, True) > 500)  # a long name pushes the title down
    pen.text(side_x, y + 0.3 * pen.step + below, labels["title"], side_align, 1.8, True, 1)
    return y + 1.8 * pen.step + 0.8 * below


def _customer(pen: Pen, invoice: Invoice, y: float) -> float:
    x = 560.0 if invoice.provider.style.swapped else pen.left
    texts = (invoice.provider.labels["customer"] + invoice.provider.style.colon, invoice.customer, *invoice.address)
    for i, text in enumerate(texts):
        pen.text(x, y + i * pen.step, text, bold=i == 0)
    return y + len(texts) * pen.step


def _dated(invoice: Invoice) -> tuple[tuple[str, str], ...]:
    labels = invoice.provider.labels
    return (labels["number"], invoice.number), (labels["date"], invoice.date), (labels["due"], invoice.due)


def _meta(pen: Pen, invoice: Invoice, y: float) -> float:
    style = invoice.provider.style
    if style.meta != "rows":
        return y
    x = pen.left if style.swapped else 540.0
    rows = [(label + style.colon, value) for label, value in _dated(invoice)]
    column = x + max(pen.width(label, bold=True) for label, _ in rows) + 18
    for i, (label, value) in enumerate(rows):
        pen.text(x, y + i * pen.step, label, bold=True)
        pen.text(column, y + i * pen.step, value)
    return y + len(rows) * pen.step


def _meta_heads(pen: Pen, invoice: Invoice, y: float) -> float:
    third = (pen.right - pen.left) / 3
    pen.shape("box", pen.left - 6, y - 0.9 * pen.step, pen.right + 6, y + 0.3 * pen.step, 2)
    for i, (label, value) in enumerate(_dated(invoice)):
        pen.text(pen.left + i * third, y, label, bold=True)
        pen.text(pen.left + i * third, y + 1.15 * pen.step, value)
    return y + 2 * pen.step


def _table(pen: Pen, invoice: Invoice, y: float) -> float:
    provider, style, step = invoice.provider, invoice.provider.style, pen.step * 1.1
    span = pen.right - pen.left
    item = 1 - sum(SHARE.get(name, 0) for name in provider.columns)
    edges, x = [], pen.left
    for name in provider.columns:
        edges.append((x, x + span * SHARE.get(name, item)))
        x = edges[-1][1]
    top, rows = y - 0.85 * step, len(invoice.lines)
    _table_shapes(pen, style.table, top, step, rows, [right for _, right in edges[:-1]])
    heads = {"position": "#", **provider.labels}
    for name, (left, right) in zip(provider.columns, edges, strict=True):
        ink = 2 if style.table == "bar" else 0
        _cell(pen, name, left, right, y, heads[name], bold=True, ink=ink)
        for i, line in enumerate(invoice.lines):
            cell = {
                "position": str(i + 1),
                "item": line.item,
                "quantity": str(line.quantity),
                "price": provider.money.number(line.price),
                "amount": provider.money.number(line.amount),
            }
            _cell(pen, name, left, right, y + (i + 1) * step, cell[name])
    return y + (rows + 1) * step


def _cell(
    pen: Pen, name: str, left: float, right: float, y: float, text: str, bold: bool = False, ink: int = 0
) -> None:
    if name in ("price", "amount"):
        pen.text(right - 6, y, text, RIGHT, bold=bold, ink=ink)
    else:
        pen.text(left + (24 if name == "quantity" else 6), y, text, LEFT, bold=bold, ink=ink)


def _table_shapes(pen: Pen, table: str, top: float, step: float, rows: int, inner: list[float]) -> None:
    left, right, bottom = pen.left, pen.right, top + (rows + 1) * step + 0.1 * step
    if table == "bar":
        pen.shape("box", left, top, right, top + step, 1)
    if table == "zebra":
        for i in range(0, rows + 1, 2):
            pen.shape("box", left, top + i * step, right, top + (i + 1) * step, 2)
    if table == "lines":
        pen.shape("line", left, top + step, right, top + step, 0)
    if table == "grid":
        for i in range(rows + 2):
            pen.shape("line", left, top + i * step, right, top + i * step, 0)
        for x in (left, *inner, right):
            pen.shape("line", x, top, x, top + (rows + 1) * step, 0)
    else:
        pen.shape("line", left, bottom, right, bottom, 0)


def _totals(pen: Pen, invoice: Invoice, y: float) -> float:
    provider, style = invoice.provider, invoice.provider.style
    labels, money = provider.labels, provider.money
    rows = [(labels["total"], money.printed(invoice.total))]
    if invoice.tax:
        rows = [(labels["net"], money.printed(invoice.net)), (provider.tax_label, money.printed(invoice.tax)), *rows]
    right = pen.right - 6 if style.totals == "right" else pen.left + 440
    for i, (label, value) in enumerate(rows):
        last = i == len(rows) - 1
        pen.text(right - 420, y + i * pen.step * 1.1, label + style.colon, bold=last)
        pen.text(right, y + i * pen.step * 1.1, value, RIGHT, bold=last)
    above = y + (len(rows) - 1) * pen.step * 1.1 - 0.85 * pen.step
    pen.shape("line", right - 420, above, right, above, 1)
    return y + len(rows) * pen.step * 1.1


def _footer(pen: Pen, provider: Provider, y: float) -> float:
    pen.text(500, y, provider.labels["thanks"], CENTRE, 0.9)
    pen.text(500, y + pen.step, " ".join(provider.contact), CENTRE, 0.8)
    return y + pen.step
