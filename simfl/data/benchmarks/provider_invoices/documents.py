"""Invoices as documents: words with boxes as a scanner reads them, questions with answers, a picture if wanted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simfl.data.benchmarks.provider_invoices.dice import Dice
from simfl.data.benchmarks.provider_invoices.invoice import Question, ask, make_invoice
from simfl.data.benchmarks.provider_invoices.layout import Page, lay_out
from simfl.data.benchmarks.provider_invoices.ocr import habits, misread, noise_rate
from simfl.data.benchmarks.provider_invoices.page import Scan, draw, scan
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK, OTHERS, Provider, make_provider
from simfl.data.io.drawing import png

NAMESPACE = "benchmark"
GRID = 1000  # boxes are whole thousandths of the page's width and height


@dataclass(frozen=True)
class Recipe:
    """How documents are made, besides their provider."""

    seed: int = 1
    groups: int = 10  # scanners, each with its own language and habits
    questions: int = 6  # asked of a page
    max_lines: int = 5  # rows of a page's table
    noise: float = 0.06  # share of characters the worst scanner misreads
    image_width: int = 224  # pixels; 0: no picture


@dataclass(frozen=True)
class Document:
    """One page. `boxes` holds left, top, right, bottom of each word, flat, in thousandths of the page."""

    id: str
    provider: str
    group: int
    words: list[str]
    boxes: list[int]
    questions: tuple[Question, ...]
    image: bytes = b""
    width: int = 0  # of the picture, in pixels
    height: int = 0


def draw_documents(
    name: str, count: int, start: int = 0, per_provider: int = 4, recipe: Recipe | None = None
) -> Iterator[Document]:
    """Documents `start` to `start + count` of an endless, repeatable stream called `name`, for pretraining.

    No provider, company, person or printed label is one of the benchmark's: they come from the other half of the
    surnames and wordings. A new provider comes every `per_provider` documents; without a recipe there are no pictures.
    """
    recipe = recipe or Recipe(image_width=0)
    provider = None
    for i in range(start, start + count):
        index, page = divmod(i, per_provider)
        if provider is None or page == 0:
            provider = make_provider(f"drawn/{name}", recipe.seed, index, index % recipe.groups, OTHERS)
        yield make_document(provider, page, f"drawn/{name}", OTHERS, recipe)


def benchmark_providers(seed: int, count: int, unseen: int, groups: int) -> tuple[list[Provider], list[Provider]]:
    """The benchmark's providers and those never seen in training; no two share a company name."""
    taken: set[str] = set()
    providers = []
    for i in range(count + unseen):
        group = i * groups // count if i < count else (i - count) * groups // unseen
        provider = make_provider(NAMESPACE, seed, i, group, BENCHMARK, taken)
        taken.add(provider.company)
        providers.append(provider)
    return providers[:count], providers[count:]


def make_document(provider: Provider, index: int, namespace: str, half: int, recipe: Recipe) -> Document:
    """Document `index` of a provider: the same whatever else is made, and whether or not there is a picture."""
    dice = Dice(namespace, recipe.seed, provider.id, index)
    invoice = make_invoice(provider, index, dice, half, recipe.max_lines)
    questions = ask(invoice, dice, recipe.questions)
    page = lay_out(invoice, dice)
    words, boxes = _reading_order(page)
    rate = noise_rate(provider.group, recipe.groups, recipe.noise)
    table = habits(namespace, recipe.seed, provider.group)
    words = misread(words, table, rate, dice.generator)
    image, width, height = _picture(page, provider, dice, recipe)
    return Document(invoice.id, provider.id, provider.group, words, boxes, questions, image, width, height)


def _reading_order(page: Page) -> tuple[list[str], list[int]]:
    """Line by line from the top, each from the left, as OCR engines give them."""
    words = sorted(page.words, key=lambda w: (round(w.baseline), w.left))
    boxes: list[int] = []
    for word in words:
        top, bottom = word.baseline - 0.78 * word.size, word.baseline + 0.22 * word.size
        right = word.left + word.width
        boxes += (_grid(word.left, 1000.0), _grid(top, page.height), _grid(right, 1000.0), _grid(bottom, page.height))
    return [word.text for word in words], boxes


def _grid(value: float, whole: float) -> int:
    return min(GRID, max(0, int(value * GRID / whole + 0.5)))


def _picture(page: Page, provider: Provider, dice: Dice, recipe: Recipe) -> tuple[bytes, int, int]:
    if not recipe.image_width:
        return b"", 0, 0
    image = draw(page, recipe.image_width)
    if provider.group % 2:  # half of the clients have a poor scanner
        how = Scan(degrees=3 * dice.real() - 1.5, blur=0.6 * dice.real(), noise=12 * dice.real())
        image = scan(image, how, dice.generator)
    return png(image), image.width, image.height
