"""Drawn pages with what is printed where: pixels, characters of each patch, and conversations about the page.

The pages are the invoices of `provider_invoices` in its stream for pretraining: other providers, companies, people and
labels than those of the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import cos, radians, sin

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import widths
from simfl.data.benchmarks.provider_invoices.documents import make_invoice
from simfl.data.benchmarks.provider_invoices.invoice import ask
from simfl.data.benchmarks.provider_invoices.layout import InvoicePage, PrintedWord, lay_out
from simfl.data.benchmarks.provider_invoices.provider import OTHERS, Provider, make_provider
from simfl.data.benchmarks.provider_invoices.scan import ScanEffects, draw, scan
from simfl.data.benchmarks.random_stream import RandomStream

SIDE, PATCH = 448, 16  # pixels of a page and of a patch
GRID = SIDE // PATCH
ROWS, COLUMNS = 2, 6  # cells of a patch, each with the character centred in it; lines are 13 pixels apart
SLOTS = ROWS * COLUMNS
NUM_CLASSES = 256  # characters; 0: none
GROUPS = 10  # of providers: language and scanner
MAX_LINES = 5  # rows of an invoice's table
EURO = 0x80  # class of €, which is outside of Latin-1


@dataclass(frozen=True)
class DrawnPage:
    """A page: grey pixels uint8 [SIDE, SIDE], characters int16 [GRID², SLOTS], words, and questions with answers.

    `cells` has the place of each letter of each word: SLOTS · patch + cell within it; −1 outside of the page.
    """

    pixels: np.ndarray
    slots: np.ndarray
    words: list[str]
    cells: list[list[int]]
    questions: list[tuple[str, tuple[str, ...]]]


def draw_page(stream: str, number: int, questions: int = 6, per_provider: int = 4) -> DrawnPage:
    """Draw page `number` of an endless, repeatable stream; the provider changes every `per_provider` pages."""
    index, page_number = divmod(number, per_provider)
    provider = _provider(stream, index)
    random = RandomStream("provider_invoices", f"drawn/{stream}", 1, provider.id, page_number)
    invoice = make_invoice(provider, page_number, random, OTHERS, MAX_LINES)
    asked = ask(invoice, random, questions)
    page = lay_out(invoice, random)
    image, degrees = draw(page, SIDE), 0.0
    size = image.size
    if provider.group % 2:  # half of the providers have a poor scanner
        degrees = 3 * random.random() - 1.5
        image = scan(image, ScanEffects(degrees, 0.6 * random.random(), 12 * random.random()), random.generator)
    pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.uint8)
    words = sorted(page.words, key=lambda w: (round(w.baseline), w.left))
    cells = _cells(page, words, size, degrees)
    questions_of_page = [(q.question, q.answers) for q in asked]
    return DrawnPage(pixels, _slots(words, cells), [word.text for word in words], cells, questions_of_page)


@cache
def _provider(stream: str, index: int) -> Provider:
    return make_provider(f"drawn/{stream}", 1, index, index % GROUPS, OTHERS)


def _cells(page: InvoicePage, words: list[PrintedWord], size: tuple[int, int], degrees: float) -> list[list[int]]:
    """Return the cell of the centre of each letter, on a page turned by some degrees."""
    found = []
    width, height = size
    turn, scale = radians(degrees), width / 1000
    for word in words:
        pen, cells = word.left, []
        for char in word.text:
            advance = widths(page.family, word.bold)[char] * word.size
            x, y = (pen + advance / 2) * scale - width / 2, (word.baseline - 0.3 * word.size) * scale - height / 2
            across = int((x * cos(turn) + y * sin(turn) + width / 2) * GRID * COLUMNS / width)
            down = int((y * cos(turn) - x * sin(turn) + height / 2) * GRID * ROWS / height)
            patch = down // ROWS * GRID + across // COLUMNS
            inside = 0 <= across < GRID * COLUMNS and 0 <= down < GRID * ROWS
            cells.append(patch * SLOTS + down % ROWS * COLUMNS + across % COLUMNS if inside else -1)
            pen += advance
        found.append(cells)
    return found


def _slots(words: list[PrintedWord], cells: list[list[int]]) -> np.ndarray:
    """Return the class of the character in each cell; the first of a page, where two share one."""
    slots: np.ndarray = np.zeros(GRID * GRID * SLOTS, np.int16)
    for word, places in zip(words, cells, strict=True):
        for char, cell in zip(word.text, places, strict=True):
            if cell >= 0 and not slots[cell]:
                slots[cell] = _class(char)
    return slots.reshape(GRID * GRID, SLOTS)


def _class(char: str) -> int:
    code = EURO if char == "€" else ord(char)
    return code if code < NUM_CLASSES else 1


READING = (
    ("Read on from: {}", 4),
    ("Which words follow {}?", 6),
    ("Continue after {}", 12),
)  # tasks of reading, and how many words are to be read


def reading_tasks(words: list[str], generator: np.random.Generator) -> list[tuple[str, str]]:
    """Return a task of each kind: words of the page, and the words that follow them in reading order."""
    places = [0, *np.sort(generator.integers(1, max(2, len(words) - 3), 2 * len(READING))).tolist()]
    tasks = []
    for (wording, count), (start, _) in zip(READING, list(pairwise(places))[::2], strict=False):
        key, rest = words[start : start + 2], words[start + 2 : start + 2 + count]
        if rest:
            tasks.append((wording.format(" ".join(key)), " ".join(rest)))
    whole = ("Read the page.", " ".join(words[:48]))
    return [whole, *tasks] if generator.random() < 0.5 else tasks
