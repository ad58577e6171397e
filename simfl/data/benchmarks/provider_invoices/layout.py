"""Layout of a page: positions of words and shapes in thousandths of the page width; y grows downwards."""

from __future__ import annotations

from dataclasses import dataclass

from simfl.data.benchmarks.fonts import FAMILIES, widths
from simfl.data.benchmarks.provider_invoices.invoice import Invoice
from simfl.data.benchmarks.provider_invoices.provider import Provider, Style
from simfl.data.benchmarks.random_stream import RandomStream

LEADING = 1.35  # line distance over text size
SPACE = 0.32  # between words, in ems: wide enough to be visible in a small picture
SHARE = {"position": 0.07, "quantity": 0.17, "price": 0.2, "amount": 0.2}  # of the table width; the item gets the rest
LEFT, RIGHT, CENTRE = 0.0, 1.0, 0.5  # share of a text that is left of its x


@dataclass(frozen=True)
class PrintedWord:
    """One printed word. Lengths, font size included, are in page units."""

    text: str
    left: float
    baseline: float
    width: float
    size: float
    bold: bool
    ink: int  # 0 black, 1 accent, 2 white


@dataclass(frozen=True)
class Shape:
    """One figure within its bounds."""

    kind: str  # box, square, line, disc, ring, triangle, diamond, bars
    left: float
    top: float
    right: float
    bottom: float
    shade: int  # 0 black, 1 accent, 2 grey


@dataclass(frozen=True)
class InvoicePage:
    """A page after layout; `height` is in thousandths of its width."""

    words: tuple[PrintedWord, ...]
    shapes: tuple[Shape, ...]
    height: float
    family: str
    accent: tuple[int, int, int]


class PageBuilder:
    """Collector of the words and shapes of one page."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.step = style.size * LEADING
        self.left, self.right = float(style.margin), 1000.0 - style.margin
        self.words: list[PrintedWord] = []
        self.shapes: list[Shape] = []
        self._widths = (widths(style.family, False), widths(style.family, True))
        self._scale = FAMILIES[style.family].scale

    def width(self, text: str, scale: float = 1.0, bold: bool = False) -> float:
        """Return the width of a text at `scale` times the body size."""
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
        """Add one line of text, as one `PrintedWord` a word."""
        size = self.style.size * scale * self._scale
        em, add, space = self._widths[bold], self.words.append, SPACE * size
        parts = text.split(" ")
        lengths = [em[part] * size for part in parts]
        if align:
            x -= align * (sum(lengths) + space * (len(parts) - 1))
        for part, length in zip(parts, lengths, strict=True):
            add(PrintedWord(part, x, baseline, length, size, bold, ink))
            x += length + space

    def shape(self, kind: str, left: float, top: float, right: float, bottom: float, shade: int) -> None:
        """Add a figure within the given bounds."""
        self.shapes.append(Shape(kind, left, top, right, bottom, shade))


def lay_out(invoice: Invoice, random: RandomStream) -> InvoicePage:
    """Lay out an invoice in the style of its provider; some vertical spacing is random for each page."""
    provider, style = invoice.provider, invoice.provider.style
    page = PageBuilder(style)
    gap = page.step * (0.9 + 0.5 * random.random())
    y = _header(page, provider, style.margin + page.step) + gap
    y = max(_customer(page, invoice, y), _meta(page, invoice, y)) + gap
    if style.meta == "column heads":
        y = _meta_heads(page, invoice, y) + gap
    y = _table(page, invoice, y) + gap
    y = _totals(page, invoice, y) + gap
    y = _footer(page, provider, max(y, style.height - style.margin - 2 * page.step))
    height = max(float(style.height), y + style.margin)
    return InvoicePage(tuple(page.words), tuple(page.shapes), height, style.family, style.accent)


def _header(page: PageBuilder, provider: Provider, y: float) -> float:
    style, labels = provider.style, provider.labels
    x, align = {"left": (page.left, LEFT), "right": (page.right, RIGHT), "centre": (500.0, CENTRE)}[style.header]
    name = 1.5
    if style.logo != "none":
        side = 2.1 * page.step
        start = x - align * (side + 12 + page.width(provider.company, name, True))
        page.shape(style.logo, start, y - 0.9 * page.step, start + side, y - 0.9 * page.step + side, 1)
        x, align = start + side + 12, LEFT
    page.text(x, y, provider.company, align, name, bold=True)
    street, city = provider.address
    page.text(x, y + page.step, f"{street}, {city}", align, 0.9)
    if style.header == "centre":
        page.text(500, y + 2.8 * page.step, labels["title"], CENTRE, 1.8, True, 1)
        return y + 3.6 * page.step
    side_x, side_align = (page.right, RIGHT) if style.header == "left" else (page.left, LEFT)
    below = 1.9 * page.step * (page.width(provider.company, name, True) > 500)  # a long name pushes the title down
    page.text(side_x, y + 0.3 * page.step + below, labels["title"], side_align, 1.8, True, 1)
    return y + 1.8 * page.step + 0.8 * below


def _customer(page: PageBuilder, invoice: Invoice, y: float) -> float:
    x = 560.0 if invoice.provider.style.swapped else page.left
    texts = (invoice.provider.labels["customer"] + invoice.provider.style.colon, invoice.customer, *invoice.address)
    for i, text in enumerate(texts):
        page.text(x, y + i * page.step, text, bold=i == 0)
    return y + len(texts) * page.step


def _meta_rows(invoice: Invoice) -> tuple[tuple[str, str], ...]:
    labels = invoice.provider.labels
    return (labels["number"], invoice.number), (labels["date"], invoice.date), (labels["due"], invoice.due)


def _meta(page: PageBuilder, invoice: Invoice, y: float) -> float:
    style = invoice.provider.style
    if style.meta != "rows":
        return y
    x = page.left if style.swapped else 540.0
    rows = [(label + style.colon, value) for label, value in _meta_rows(invoice)]
    column = x + max(page.width(label, bold=True) for label, _ in rows) + 18
    for i, (label, value) in enumerate(rows):
        page.text(x, y + i * page.step, label, bold=True)
        page.text(column, y + i * page.step, value)
    return y + len(rows) * page.step


def _meta_heads(page: PageBuilder, invoice: Invoice, y: float) -> float:
    third = (page.right - page.left) / 3
    page.shape("box", page.left - 6, y - 0.9 * page.step, page.right + 6, y + 0.3 * page.step, 2)
    for i, (label, value) in enumerate(_meta_rows(invoice)):
        page.text(page.left + i * third, y, label, bold=True)
        page.text(page.left + i * third, y + 1.15 * page.step, value)
    return y + 2 * page.step


def _table(page: PageBuilder, invoice: Invoice, y: float) -> float:
    provider, style, step = invoice.provider, invoice.provider.style, page.step * 1.1
    span = page.right - page.left
    item = 1 - sum(SHARE.get(name, 0) for name in provider.columns)
    edges, x = [], page.left
    for name in provider.columns:
        edges.append((x, x + span * SHARE.get(name, item)))
        x = edges[-1][1]
    top, rows = y - 0.85 * step, len(invoice.lines)
    _table_shapes(page, style.table, top, step, rows, [right for _, right in edges[:-1]])
    heads = {"position": "#", **provider.labels}
    for name, (left, right) in zip(provider.columns, edges, strict=True):
        ink = 2 if style.table == "bar" else 0
        _cell(page, name, left, right, y, heads[name], bold=True, ink=ink)
        for i, line in enumerate(invoice.lines):
            cell = {
                "position": str(i + 1),
                "item": line.item,
                "quantity": str(line.quantity),
                "price": provider.money.number(line.price),
                "amount": provider.money.number(line.amount),
            }
            _cell(page, name, left, right, y + (i + 1) * step, cell[name])
    return y + (rows + 1) * step


def _cell(
    page: PageBuilder, name: str, left: float, right: float, y: float, text: str, bold: bool = False, ink: int = 0
) -> None:
    if name in ("price", "amount"):
        page.text(right - 6, y, text, RIGHT, bold=bold, ink=ink)
    else:
        page.text(left + (24 if name == "quantity" else 6), y, text, LEFT, bold=bold, ink=ink)


def _table_shapes(page: PageBuilder, table: str, top: float, step: float, rows: int, inner: list[float]) -> None:
    left, right, bottom = page.left, page.right, top + (rows + 1) * step + 0.1 * step
    if table == "bar":
        page.shape("box", left, top, right, top + step, 1)
    if table == "zebra":
        for i in range(0, rows + 1, 2):
            page.shape("box", left, top + i * step, right, top + (i + 1) * step, 2)
    if table == "lines":
        page.shape("line", left, top + step, right, top + step, 0)
    if table == "grid":
        for i in range(rows + 2):
            page.shape("line", left, top + i * step, right, top + i * step, 0)
        for x in (left, *inner, right):
            page.shape("line", x, top, x, top + (rows + 1) * step, 0)
    else:
        page.shape("line", left, bottom, right, bottom, 0)


def _totals(page: PageBuilder, invoice: Invoice, y: float) -> float:
    provider, style = invoice.provider, invoice.provider.style
    labels, money = provider.labels, provider.money
    rows = [(labels["total"], money.format(invoice.total))]
    if invoice.tax:
        rows = [(labels["net"], money.format(invoice.net)), (provider.tax_label, money.format(invoice.tax)), *rows]
    right = page.right - 6 if style.totals == "right" else page.left + 440
    for i, (label, value) in enumerate(rows):
        last = i == len(rows) - 1
        page.text(right - 420, y + i * page.step * 1.1, label + style.colon, bold=last)
        page.text(right, y + i * page.step * 1.1, value, RIGHT, bold=last)
    above = y + (len(rows) - 1) * page.step * 1.1 - 0.85 * page.step
    page.shape("line", right - 420, above, right, above, 1)
    return y + len(rows) * page.step * 1.1


def _footer(page: PageBuilder, provider: Provider, y: float) -> float:
    page.text(500, y, provider.labels["thanks"], CENTRE, 0.9)
    page.text(500, y + page.step, " ".join(provider.contact), CENTRE, 0.8)
    return y + page.step
