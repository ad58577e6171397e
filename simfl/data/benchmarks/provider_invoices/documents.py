"""Invoices as documents: words with boxes as a scanner reads them, questions with answers, and an optional picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simfl.data.benchmarks.provider_invoices.invoice import InvoiceQuestion, ask, make_invoice
from simfl.data.benchmarks.provider_invoices.layout import InvoicePage, lay_out
from simfl.data.benchmarks.provider_invoices.provider import BENCHMARK, OTHERS, Provider, make_provider
from simfl.data.benchmarks.provider_invoices.scan import ScanEffects, confusions, draw, error_rate, misread, scan
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.io.images import encode_png

NAMESPACE = "benchmark"
GRID = 1000  # boxes are whole thousandths of the page width and height


@dataclass(frozen=True)
class Recipe:
    """Settings of document generation that do not depend on the provider."""

    seed: int = 1
    groups: int = 10  # scanners, each with its own language and errors
    questions: int = 6  # number of questions per page
    max_lines: int = 5  # rows of a page's table
    noise: float = 0.06  # share of characters that the worst scanner misreads
    image_width: int = 224  # pixels; 0: no picture


@dataclass(frozen=True)
class Document:
    """One page. `boxes` holds left, top, right, bottom of each word, flat, in thousandths of the page."""

    id: str
    provider: str
    group: int
    words: list[str]
    boxes: list[int]
    questions: tuple[InvoiceQuestion, ...]
    image: bytes = b""
    width: int = 0  # of the picture, in pixels
    height: int = 0


def draw_documents(
    name: str, count: int, start: int = 0, per_provider: int = 4, recipe: Recipe | None = None
) -> Iterator[Document]:
    """Yield documents `start` to `start + count` of an endless, repeatable stream called `name`, for pretraining.

    No provider, company, person or printed label is one of the benchmark's: they come from the other half of the
    surnames and wordings. The provider changes every `per_provider` documents. Without a recipe there are no pictures.
    """
    recipe = recipe or Recipe(image_width=0)
    provider = None
    for i in range(start, start + count):
        index, page = divmod(i, per_provider)
        if provider is None or page == 0:
            provider = make_provider(f"drawn/{name}", recipe.seed, index, index % recipe.groups, OTHERS)
        yield make_document(provider, page, f"drawn/{name}", OTHERS, recipe)


def benchmark_providers(seed: int, count: int, unseen: int, groups: int) -> tuple[list[Provider], list[Provider]]:
    """Return the benchmark's providers and those not seen in training. No two share a company name."""
    taken: set[str] = set()
    providers = []
    for i in range(count + unseen):
        group = i * groups // count if i < count else (i - count) * groups // unseen
        provider = make_provider(NAMESPACE, seed, i, group, BENCHMARK, taken)
        taken.add(provider.company)
        providers.append(provider)
    return providers[:count], providers[count:]


def make_document(provider: Provider, index: int, namespace: str, half: int, recipe: Recipe) -> Document:
    """Make document `index` of a provider.

    It depends neither on the other documents made nor, apart from the image, on `recipe.image_width`.
    """
    random = RandomStream("provider_invoices", namespace, recipe.seed, provider.id, index)
    invoice = make_invoice(provider, index, random, half, recipe.max_lines)
    questions = ask(invoice, random, recipe.questions)
    page = lay_out(invoice, random)
    words, boxes = _reading_order(page)
    rate = error_rate(provider.group, recipe.groups, recipe.noise)
    table = confusions(namespace, recipe.seed, provider.group)
    words = misread(words, table, rate, random.generator)
    image, width, height = _picture(page, provider, random, recipe)
    return Document(invoice.id, provider.id, provider.group, words, boxes, questions, image, width, height)


def _reading_order(page: InvoicePage) -> tuple[list[str], list[int]]:
    """Return words and boxes line by line from the top, each line from the left, as OCR engines do."""
    words = sorted(page.words, key=lambda w: (round(w.baseline), w.left))
    boxes: list[int] = []
    for word in words:
        top, bottom = word.baseline - 0.78 * word.size, word.baseline + 0.22 * word.size
        right = word.left + word.width
        boxes += (_grid(word.left, 1000.0), _grid(top, page.height), _grid(right, 1000.0), _grid(bottom, page.height))
    return [word.text for word in words], boxes


def _grid(value: float, whole: float) -> int:
    return min(GRID, max(0, int(value * GRID / whole + 0.5)))


def _picture(page: InvoicePage, provider: Provider, random: RandomStream, recipe: Recipe) -> tuple[bytes, int, int]:
    """Return the encoded picture with its width and height; empty and 0 x 0 if none is wanted."""
    if not recipe.image_width:
        return b"", 0, 0
    image = draw(page, recipe.image_width)
    if provider.group % 2:  # half of the clients have a poor scanner
        effects = ScanEffects(degrees=3 * random.random() - 1.5, blur=0.6 * random.random(), noise=12 * random.random())
        image = scan(image, effects, random.generator)
    return encode_png(image), image.width, image.height
